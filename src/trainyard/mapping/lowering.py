"""Lowering: the matrix product that an array runs for a convolution.

With p = prod(out_size), f = prod(kernel), C = in_channels / groups, O = out_channels / groups, each of the three products is a
MatMul repeated `groups` times:

| product               | M               | N     | K         | A (M,K)              | B (K,N)       | result            |
|-----------------------|-----------------|-------|-----------|----------------------|---------------|-------------------|
| forward               | batch * p       | O     | C * f     | im2col(X)            | W             | Y                 |
| grad_weight           | C * f           | O     | batch * p | im2col(X) transposed | dY            | dW                |
| grad_input, "col2im"  | batch * p       | C * f | O         | dY                   | W             | col2im(...) = dX  |
| grad_input, "dilated" | batch * size    | C     | O * f     | im2col(dilated dY)   | W transposed  | dX                |

"col2im" does exactly the MACs of the convolution. "dilated" inserts stride - 1 zeros between gradients: extra MACs multiply zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MatMul, ProductBody
from trainyard.ir.ops import backward_table, forward_table
from trainyard.ir.step import operand_order as operand_order

GradInput = Literal["col2im", "dilated"]
Label = Literal["X", "W", "Y", "dX", "dW", "dY"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One matrix of a lowered product, all groups together.

    `elements` are the tensor's elements that are read from memory or written there, `matrix` the elements of the matrix: im2col
    repeats elements of overlapping windows, and skips those in no window.
    """

    label: Label
    elements: int
    matrix: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A matrix product and its operands and result."""

    product: MatMul
    a: Side
    b: Side
    out: Side


@lru_cache(maxsize=4096)
def lower(body: ProductBody, grad_input: GradInput = "col2im") -> Lowered:
    """The matrix product of a convolution, or of a MatMul itself.

    >>> from trainyard.ir import Convolution
    >>> body = Convolution(batch=8, in_channels=3, out_channels=64, size=(224, 224), kernel=(7, 7), stride=(2, 2), padding=(3, 3))
    >>> lower(body).product, lower(body.as_product("grad_input"), "dilated").product.macs // body.macs
    (MatMul(M=100352, N=64, K=147, count=1), 4)
    """
    if isinstance(body, MatMul):
        left, right, out = (body.count * size for size in (body.M * body.K, body.K * body.N, body.M * body.N))
        return Lowered(product=body, a=_side("X", left), b=_side("W", right), out=_side("Y", out))
    positions, depth = body.batch * math.prod(body.out_size), body.in_channels // body.groups * math.prod(body.kernel)
    channels = body.out_channels // body.groups
    columns = body.groups * positions * depth
    visited = body.batch * body.in_channels * _visited(forward_table, *_windows(body))
    image = _side("X", visited, columns)
    weight, gradient = _side("W", body.weight_elements), _side("dY", body.output_elements)
    if body.product == "forward":
        product = MatMul(positions, channels, depth, body.groups)
        return Lowered(product=product, a=image, b=weight, out=_side("Y", body.output_elements))
    if body.product == "grad_weight":
        product = MatMul(depth, channels, positions, body.groups)
        return Lowered(product=product, a=image, b=gradient, out=_side("dW", body.weight_elements))
    if grad_input == "col2im":
        product = MatMul(positions, depth, channels, body.groups)
        return Lowered(product=product, a=gradient, b=weight, out=_side("dX", body.input_elements, columns))
    product = MatMul(
        body.batch * math.prod(body.size), body.in_channels // body.groups, channels * math.prod(body.kernel), body.groups
    )
    used = body.batch * body.out_channels * _visited(backward_table, *_windows(body))
    gradient = _side("dY", used, product.count * product.M * product.K)
    return Lowered(product=product, a=gradient, b=weight, out=_side("dX", body.input_elements))


def _side(label: Label, elements: int, matrix: int | None = None) -> Side:
    return Side(label=label, elements=elements, matrix=elements if matrix is None else matrix)


Windows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _windows(body: Convolution) -> Windows:
    """Where windows look: the same at every batch size and for any number of channels."""
    return body.size, body.kernel, body.stride, body.padding, body.dilation


@lru_cache(maxsize=4096)
def _visited(
    table: Callable[[Convolution, int], npt.NDArray[np.int64]],
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> int:
    """Positions of one map that some window visits; -1 in a table is padding."""
    one = Convolution(
        batch=1, in_channels=1, out_channels=1, size=size, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    tables = [table(one, axis) for axis in range(len(size))]
    return math.prod(len(np.unique(positions[positions >= 0])) for positions in tables)
