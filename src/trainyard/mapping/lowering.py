"""A convolution as the matrix product that an array runs, and back: shared by every machine.

With p = prod(out_size), f = prod(kernel), C = in_channels / groups, O = out_channels / groups, each of the three products is a
MatMul repeated `groups` times:

| product               | M               | N     | K         | A (M,K)              | B (K,N)       | result            |
|-----------------------|-----------------|-------|-----------|----------------------|---------------|-------------------|
| forward               | batch * p       | O     | C * f     | im2col(X)            | W             | Y                 |
| grad_weight           | C * f           | O     | batch * p | im2col(X) transposed | dY            | dW                |
| grad_input, "col2im"  | batch * p       | C * f | O         | dY                   | W             | col2im(...) = dX  |
| grad_input, "dilated" | batch * size    | C     | O * f     | im2col(dilated dY)   | W turned      | dX                |

"col2im" does exactly the convolution's MACs. "dilated" puts stride - 1 zeros between the gradients; its extra MACs multiply zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MatMul, ProductBody
from trainyard.ir.letters import operand_order as operand_order
from trainyard.ir.windows import backward_table, forward_table

GradInput = Literal["col2im", "dilated"]
Label = Literal["X", "W", "Y", "dX", "dW", "dY"]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One matrix of a lowered product.

    `elements` are those of the tensor that it really takes from memory (or leaves there), `matrix` those of the matrix, of all
    groups: im2col repeats elements of overlapping windows, and skips those that no window sees.
    """

    label: Label
    elements: int
    matrix: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A product ready for an array, with what its matrices are made of."""

    product: MatMul
    a: Side
    b: Side
    out: Side
    source: ProductBody
    grad_input: GradInput = "col2im"

    @property
    def extra_macs(self) -> int:
        """MACs beyond those of the convolution (negative where padding is dropped instead)."""
        return self.product.macs - self.source.macs

    @property
    def zero_macs(self) -> int:
        """MACs whose operand is a padded or an inserted zero, known without looking at data."""
        body = self.source
        if isinstance(body, MatMul):
            return 0
        pairs = math.prod(int((forward_table(body, axis) >= 0).sum()) for axis in range(len(body.size)))
        return self.product.macs - body.batch * body.out_channels * (body.in_channels // body.groups) * pairs

    def matrices(self, first: Array, second: Array) -> tuple[Array, Array]:
        """The operands as matrices (count, M, K) and (count, K, N), from the tensors that a and b are made of."""
        body = self.source
        if isinstance(body, MatMul):
            return first.reshape(body.count, body.M, body.K), second.reshape(body.count, body.K, body.N)
        if body.product == "forward":
            return im2col(first, body), _weight_rows(second, body).transpose(0, 2, 1)
        if body.product == "grad_weight":
            return im2col(first, body).transpose(0, 2, 1), _gradient_rows(second, body)
        if self.grad_input == "col2im":
            return _gradient_rows(first, body), _weight_rows(second, body)
        return _dilated_rows(first, body), _weight_turned(second, body)

    def tensor(self, result: Array) -> Array:
        """The output tensor from the product (count, M, N)."""
        body = self.source
        if isinstance(body, MatMul):
            return result.reshape((body.count, body.M, body.N) if body.count > 1 else (body.M, body.N))
        if body.product == "grad_weight":
            return result.transpose(0, 2, 1).reshape(body.out_channels, body.in_channels // body.groups, *body.kernel)
        if body.product == "grad_input" and self.grad_input == "col2im":
            return col2im(result, body)
        size, channels = (body.out_size, body.out_channels) if body.product == "forward" else (body.size, body.in_channels)
        parted = result.reshape(body.groups, body.batch, math.prod(size), -1)
        return parted.transpose(1, 0, 3, 2).reshape(body.batch, channels, *size)

    def execute(self, first: Array, second: Array) -> Array:
        """Really compute it, through the matrices."""
        a, b = self.matrices(first, second)
        return self.tensor(np.matmul(a, b))


@lru_cache(maxsize=4096)
def lower(body: ProductBody, grad_input: GradInput = "col2im") -> Lowered:
    """The product of a body; a MatMul is its own.

    >>> body = Convolution(batch=8, in_channels=3, out_channels=64, size=(224, 224), kernel=(7, 7), stride=(2, 2), padding=(3, 3))
    >>> lower(body).product, lower(body.as_product("grad_input"), "dilated").extra_macs // body.macs
    (MatMul(M=100352, N=64, K=147, count=1), 3)
    """
    if isinstance(body, MatMul):
        left, right, out = (body.count * size for size in (body.M * body.K, body.K * body.N, body.M * body.N))
        return Lowered(
            product=body,
            a=Side(label="X", elements=left, matrix=left),
            b=Side(label="W", elements=right, matrix=right),
            out=Side(label="Y", elements=out, matrix=out),
            source=body,
        )
    rows, deep = body.batch * math.prod(body.out_size), body.in_channels // body.groups * math.prod(body.kernel)
    wide = body.out_channels // body.groups
    columns = body.groups * rows * deep
    image = Side(label="X", elements=_seen(body), matrix=columns)
    weight = Side(label="W", elements=body.weight_elements, matrix=body.weight_elements)
    output = Side(label="Y", elements=body.output_elements, matrix=body.output_elements)
    gradient = Side(label="dY", elements=body.output_elements, matrix=body.output_elements)
    if body.product == "forward":
        return Lowered(product=MatMul(rows, wide, deep, body.groups), a=image, b=weight, out=output, source=body)
    if body.product == "grad_weight":
        result = Side(label="dW", elements=body.weight_elements, matrix=body.weight_elements)
        return Lowered(product=MatMul(deep, wide, rows, body.groups), a=image, b=gradient, out=result, source=body)
    if grad_input == "col2im":
        result = Side(label="dX", elements=body.input_elements, matrix=columns)
        return Lowered(product=MatMul(rows, deep, wide, body.groups), a=gradient, b=weight, out=result, source=body)
    spread = MatMul(body.batch * math.prod(body.size), body.in_channels // body.groups, wide * math.prod(body.kernel), body.groups)
    used = math.prod(len(np.unique(t[t >= 0])) for t in (backward_table(body, axis) for axis in range(len(body.size))))
    gradient = Side(label="dY", elements=body.batch * body.out_channels * used, matrix=spread.count * spread.M * spread.K)
    result = Side(label="dX", elements=body.input_elements, matrix=body.input_elements)
    return Lowered(product=spread, a=gradient, b=weight, out=result, source=body, grad_input="dilated")


def _seen(body: Convolution) -> int:
    tables = (forward_table(body, axis) for axis in range(len(body.size)))
    return body.batch * body.in_channels * math.prod(len(np.unique(t[t >= 0])) for t in tables)


def _windows(tensor: Array, tables: list[npt.NDArray[np.int64]], groups: int) -> Array:
    """(batch, channels, *size) -> (groups, batch * positions, channels / groups * kernel positions); a table's -1 is a zero."""
    rank = len(tables)
    padded = np.pad(tensor, [(0, 0), (0, 0), *[(0, 1)] * rank])
    for axis, table in enumerate(tables):
        padded = np.take(padded, table.reshape(-1), axis=axis + 2)  # -1 takes the zero at the end
    batch, channels = tensor.shape[:2]
    positions, kernel = [t.shape[0] for t in tables], [t.shape[1] for t in tables]
    parted = padded.reshape(batch, groups, channels // groups, *(n for pair in zip(positions, kernel, strict=True) for n in pair))
    places, taps = [3 + 2 * axis for axis in range(rank)], [4 + 2 * axis for axis in range(rank)]
    ordered = parted.transpose(1, 0, *places, 2, *taps)
    return ordered.reshape(groups, batch * math.prod(positions), channels // groups * math.prod(kernel))


def im2col(tensor: Array, body: Convolution) -> Array:
    """X (batch, in_channels, *size) -> (groups, batch * out_size, in_channels / groups * kernel); bits work as well as numbers."""
    return _windows(tensor, [forward_table(body, axis) for axis in range(len(body.size))], body.groups)


def col2im(columns: Array, body: Convolution) -> Array:
    """The transpose of `im2col`: every window's values added where they were taken from."""
    rank, channels = len(body.size), body.in_channels // body.groups
    parted = columns.reshape(body.groups, body.batch, *body.out_size, channels, *body.kernel)
    places = [n for axis in range(rank) for n in (2 + axis, 3 + rank + axis)]
    pairs = [n for axis in range(rank) for n in (body.out_size[axis] * body.kernel[axis],)]
    spread = parted.transpose(1, 0, 2 + rank, *places).reshape(body.batch, body.in_channels, *pairs)
    for axis in range(rank):
        table = forward_table(body, axis).reshape(-1)
        moved = np.moveaxis(spread, axis + 2, 0)
        summed = np.zeros((body.size[axis] + 1, *moved.shape[1:]), dtype=moved.dtype)
        np.add.at(summed, table, moved)
        spread = np.moveaxis(summed[:-1], 0, axis + 2)
    return spread


def _weight_rows(weight: Array, body: Convolution) -> Array:
    return weight.reshape(body.groups, body.out_channels // body.groups, -1)


def _weight_turned(weight: Array, body: Convolution) -> Array:
    """(groups, out_channels / groups * kernel, in_channels / groups): what dilated gradients are multiplied with."""
    parted = weight.reshape(body.groups, body.out_channels // body.groups, body.in_channels // body.groups, -1)
    return parted.transpose(0, 1, 3, 2).reshape(body.groups, -1, body.in_channels // body.groups)


def _gradient_rows(gradient: Array, body: Convolution) -> Array:
    parted = gradient.reshape(body.batch, body.groups, body.out_channels // body.groups, -1)
    return parted.transpose(1, 0, 3, 2).reshape(body.groups, -1, body.out_channels // body.groups)


def _dilated_rows(gradient: Array, body: Convolution) -> Array:
    return _windows(gradient, [backward_table(body, axis) for axis in range(len(body.size))], body.groups)
