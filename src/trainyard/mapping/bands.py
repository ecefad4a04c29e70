"""Bands of rows: which rows of an image a band of rows of its consumer needs, and the op that computes one band.

The rows of a tensor (batch, channels, rows, ...) are its first spatial axis. Rows [first, last) of a convolution's result need the
rows under their windows, rows of dX the gradients dY whose windows reach them; both grow with the kernel and are clipped at the
edges of the image. `padding` may be a range: what is recorded of a pooling does not tell it, and the rows needed are then those of
every padding in the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, Copy, ElementWise, Op, Reduction
from trainyard.mapping.lowering import GradInput

Rows = npt.NDArray[np.int64]
N = TypeVar("N", int, Rows)


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of an input some rows of a result need. `direction`: as windows of the result's rows reach into the input
    (`forward`), or as windows around the input's rows reach the result (`backward`).

    >>> Window(kernel=3, padding=(1, 1)).needed(0, 4, 224), Window(kernel=3, padding=(1, 1)).needed(4, 8, 224)
    ((0, 5), (3, 9))
    >>> Window(direction="backward", kernel=3, stride=2, padding=(1, 1)).needed(4, 8, 112)
    (2, 5)
    """

    direction: Literal["forward", "backward"] = "forward"
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: tuple[int, int] = (0, 0)

    def needed(self, first: N, last: N, rows: int) -> tuple[N, N]:
        """First row and end of what rows `first` to `last` (exclusive) need of an input of so many rows; arrays for many bands."""
        low, high = self.padding
        reach = self.dilation * (self.kernel - 1)
        if self.direction == "forward":
            begin, end = first * self.stride - high, (last - 1) * self.stride - low + reach + 1
        else:
            begin, end = -((reach - low - first) // self.stride), (last - 1 + high) // self.stride + 1
        return _clipped(begin, rows), _clipped(end, rows)

    def reached(self, last: N, rows: int) -> N:
        """Of a `backward` window: the end of the result's rows to which the input's rows up to `last` add something."""
        return _clipped((last - 1) * self.stride - self.padding[0] + self.dilation * (self.kernel - 1) + 1, rows)


SAME_ROWS = Window()


def _clipped(row: N, rows: int) -> N:
    return min(max(row, 0), rows) if isinstance(row, int) else np.clip(row, 0, rows)


@dataclass(frozen=True, slots=True)
class Band:
    """What a Work does at a time: `rows` of all `of` rows of its result, or of dY where it sums over rows (dW).

    `product_rows` are the rows that its convolution goes through: those of dY where dX adds up windows. `tensors` are the rows of
    each base tensor that move, and all of its rows.
    """

    rows: int
    of: int
    product_rows: int
    tensors: tuple[tuple[int, int, int], ...]

    def elements(self, base: int, all_elements: int) -> int:
        """Of a tensor that moves with this band; all of one that every band shares."""
        for tensor, rows, of in self.tensors:
            if tensor == base:
                return all_elements // of * rows
        return all_elements

    def op(self, op: Op, grad_input: GradInput) -> Op:
        """The op that computes this band: a convolution without padding along the rows, others on their share of the elements."""
        body = op.body
        match body:
            case Convolution():
                return replace(op, body=banded(body, self.product_rows, grad_input), slope=())
            case ElementWise() | Copy():
                return replace(op, body=replace(body, elements=self._share(body.elements)), slope=())
            case Reduction():
                results = body.results if body.results % self.of or is_sum(body) else self._share(body.results)
                return replace(op, body=replace(body, elements=self._share(body.elements), results=results), slope=())
            case _:
                raise AssertionError(f"{op.name} has no rows")

    def _share(self, elements: int) -> int:
        return elements // self.of * self.rows


def is_sum(body: Reduction) -> bool:
    """Whether a reduction sums over rows (a bias gradient), so that bands add up to one result."""
    return body.function == "sum"


def banded(body: Convolution, rows: int, grad_input: GradInput) -> Convolution:
    """A convolution on a band: `rows` of its result, or of dX where zeros are inserted (`dilated`)."""
    reach = body.dilation[0] * (body.kernel[0] - 1)
    dilated = body.product == "grad_input" and grad_input == "dilated"
    size, padding = (rows, reach) if dilated else ((rows - 1) * body.stride[0] + reach + 1, 0)
    return replace(body, size=(size, *body.size[1:]), padding=(padding, *body.padding[1:]))
