"""The lowered products of a convolution with numbers: operand matrices, product, output tensor. Oracle of `mapping.lowering`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MatMul, ProductBody
from trainyard.ir.ops import backward_table, forward_table
from trainyard.mapping.lowering import GradInput, lower

Array = npt.NDArray[Any]


def execute_product(body: ProductBody, first: Array, second: Array, grad_input: GradInput = "col2im") -> Array:
    """The output tensor of a product, computed through its matrices."""
    a, b = matrices(body, first, second, grad_input)
    return _output_tensor(body, np.matmul(a, b), grad_input)


def matrices(body: ProductBody, first: Array, second: Array, grad_input: GradInput = "col2im") -> tuple[Array, Array]:
    """The operands as matrices (count, M, K) and (count, K, N), from the tensors of a and b."""
    if isinstance(body, MatMul):
        return first.reshape(body.count, body.M, body.K), second.reshape(body.count, body.K, body.N)
    if body.product == "forward":
        return im2col(first, body), _weight_rows(second, body).transpose(0, 2, 1)
    if body.product == "grad_weight":
        return im2col(first, body).transpose(0, 2, 1), _gradient_rows(second, body)
    if grad_input == "col2im":
        return _gradient_rows(first, body), _weight_rows(second, body)
    return _dilated_rows(first, body), _transposed_weight(second, body)


def zero_macs(body: ProductBody, grad_input: GradInput = "col2im") -> int:
    """MACs with a padded or an inserted zero as operand, whatever the data."""
    if isinstance(body, MatMul):
        return 0
    pairs = math.prod(int((forward_table(body, axis) >= 0).sum()) for axis in range(len(body.size)))
    return lower(body, grad_input).product.macs - body.batch * body.out_channels * (body.in_channels // body.groups) * pairs


def _output_tensor(body: ProductBody, result: Array, grad_input: GradInput) -> Array:
    if isinstance(body, MatMul):
        return result.reshape((body.count, body.M, body.N) if body.count > 1 else (body.M, body.N))
    if body.product == "grad_weight":
        return result.transpose(0, 2, 1).reshape(body.out_channels, body.in_channels // body.groups, *body.kernel)
    if body.product == "grad_input" and grad_input == "col2im":
        return col2im(result, body)
    size, channels = (body.out_size, body.out_channels) if body.product == "forward" else (body.size, body.in_channels)
    by_group = result.reshape(body.groups, body.batch, math.prod(size), -1)
    return by_group.transpose(1, 0, 3, 2).reshape(body.batch, channels, *size)


def _windows(tensor: Array, tables: list[npt.NDArray[np.int64]], groups: int) -> Array:
    """(batch, channels, *size) -> (groups, batch * positions, channels / groups * kernel positions); -1 in a table is a zero."""
    rank = len(tables)
    padded = np.pad(tensor, [(0, 0), (0, 0), *[(0, 1)] * rank])
    for axis, table in enumerate(tables):
        padded = np.take(padded, table.reshape(-1), axis=axis + 2)  # -1 takes the zero at the end
    batch, channels = tensor.shape[:2]
    positions, kernel = [t.shape[0] for t in tables], [t.shape[1] for t in tables]
    by_group = padded.reshape(batch, groups, channels // groups, *(n for pair in zip(positions, kernel, strict=True) for n in pair))
    position_axes, kernel_axes = [3 + 2 * axis for axis in range(rank)], [4 + 2 * axis for axis in range(rank)]
    ordered = by_group.transpose(1, 0, *position_axes, 2, *kernel_axes)
    return ordered.reshape(groups, batch * math.prod(positions), channels // groups * math.prod(kernel))


def im2col(tensor: Array, body: Convolution) -> Array:
    """X (batch, in_channels, *size) -> (groups, batch * out_size, in_channels / groups * kernel), for numbers or bits."""
    return _windows(tensor, [forward_table(body, axis) for axis in range(len(body.size))], body.groups)


def col2im(columns: Array, body: Convolution) -> Array:
    """The transpose of `im2col`: the values of every window added at their positions in the image."""
    rank, channels = len(body.size), body.in_channels // body.groups
    by_group = columns.reshape(body.groups, body.batch, *body.out_size, channels, *body.kernel)
    axes = [n for axis in range(rank) for n in (2 + axis, 3 + rank + axis)]
    pairs = [body.out_size[axis] * body.kernel[axis] for axis in range(rank)]
    image = by_group.transpose(1, 0, 2 + rank, *axes).reshape(body.batch, body.in_channels, *pairs)
    for axis in range(rank):
        table = forward_table(body, axis).reshape(-1)
        moved = np.moveaxis(image, axis + 2, 0)
        summed = np.zeros((body.size[axis] + 1, *moved.shape[1:]), dtype=moved.dtype)
        np.add.at(summed, table, moved)
        image = np.moveaxis(summed[:-1], 0, axis + 2)
    return image


def _weight_rows(weight: Array, body: Convolution) -> Array:
    return weight.reshape(body.groups, body.out_channels // body.groups, -1)


def _transposed_weight(weight: Array, body: Convolution) -> Array:
    """(groups, out_channels / groups * kernel, in_channels / groups): the second operand of dilated gradients."""
    by_group = weight.reshape(body.groups, body.out_channels // body.groups, body.in_channels // body.groups, -1)
    return by_group.transpose(0, 1, 3, 2).reshape(body.groups, -1, body.in_channels // body.groups)


def _gradient_rows(gradient: Array, body: Convolution) -> Array:
    by_group = gradient.reshape(body.batch, body.groups, body.out_channels // body.groups, -1)
    return by_group.transpose(1, 0, 3, 2).reshape(body.groups, -1, body.out_channels // body.groups)


def _dilated_rows(gradient: Array, body: Convolution) -> Array:
    return _windows(gradient, [backward_table(body, axis) for axis in range(len(body.size))], body.groups)
