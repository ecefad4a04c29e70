"""Works of convolutions that can run for a band of rows at a time, and which rows of their tensors they need.

A Work can be cut by rows if rows of its result need neighbouring rows of its inputs only: convolutions in all three products,
poolings, concatenations of channels, and element-wise ops between images of the same rows. dW and bias gradients sum over rows.
Normalisations, losses and matrix products need all rows and end a block. Of a pooling the area of its window is recorded: it counts
as square, with a padding anywhere between none and half of the window, and is left out where the stride does not follow from that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from trainyard.ir import Convolution, Copy, ElementWise, Op, Reduction, Step, Work
from trainyard.mapping.bands import SAME_ROWS, Window, is_sum
from trainyard.mapping.between_layers.slices import Kind
from trainyard.mapping.lowering import operand_order

ROW_AXIS = 2


@dataclass(frozen=True, slots=True)
class RowRead:
    """A base tensor of so many rows of which a Work needs those under a window of its own rows."""

    base: int
    rows: int
    window: Window


@dataclass(frozen=True, slots=True)
class RowWork:
    """A Work in rows: those of its result, or of dY where it is a `sum` over rows. `gradient` is the dY of a convolution's dX."""

    rows: int
    reads: tuple[RowRead, ...]
    writes: tuple[int, ...]
    shared: tuple[int, ...]
    sum: bool = False
    gradient: RowRead | None = None


@dataclass(slots=True)
class _Found:
    """What the ops of a Work add up to."""

    rows: int | None = None
    reads: list[RowRead] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    sum: bool = False
    gradient: RowRead | None = None


class _NoRows(Exception):
    """The Work needs all rows at once."""


class RowCuttable:
    """Which tensors and Works of a step can be cut into bands of rows; of a tensor, `samples` means by rows."""

    def __init__(self, step: Step, works: tuple[Work, ...]) -> None:
        self.step = step
        self.works = [self._work(work) for work in works]

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """A tensor that is an image in one Work and shared in another cannot be cut."""
        kinds: list[Kind] = ["other"] * len(self.step.tensors)
        found: dict[int, set[Kind]] = {}
        for work in self.works:
            if work is not None:
                for base in (*(read.base for read in work.reads), *work.writes):
                    found.setdefault(base, set()).add("samples")
                for base in work.shared:
                    found.setdefault(base, set()).add("shared")
        for base, kind in found.items():
            kinds[base] = next(iter(kind)) if len(kind) == 1 else "other"
        return tuple(kinds)

    def _work(self, work: Work) -> RowWork | None:
        ops = [self.step.ops[index] for index in work.ops]
        if work.grouping not in ("single", "chain") or any(op.fused is not None or op.routing is not None for op in ops):
            return None
        found = _Found()
        try:
            for op in ops:
                self._op(op, found)
        except _NoRows:
            return None
        if found.rows is None or not (found.writes or found.sum):
            return None
        inside = {base for base in found.writes if self._first_is_a_write(ops, base)}
        reads = tuple(read for read in dict.fromkeys(found.reads) if read.base not in inside)
        return RowWork(
            found.rows, reads, tuple(dict.fromkeys(found.writes)), tuple(dict.fromkeys(found.shared)), found.sum, found.gradient
        )  # fmt: skip

    def _first_is_a_write(self, ops: list[Op], base: int) -> bool:
        for op in ops:
            if base in map(self.step.base, op.inputs):
                return False
            if base in map(self.step.base, op.outputs):
                return True
        return False

    def _op(self, op: Op, found: _Found) -> None:
        body = op.body
        match body:
            case Convolution():
                self._convolution(op, body, found)
            case ElementWise():
                self._same_rows(op, body.elements, found)
            case Copy() if body.function == "cat":
                self._same_rows(op, body.elements, found)
            case Reduction() if is_sum(body) and body.passes == 1 and len(op.inputs) == 1:
                base, rows = self._image(op.inputs[0])
                self._count(found, rows, body.elements)
                if any(len(self.step.tensors[t].shape) > 1 for t in op.outputs):
                    raise _NoRows  # not summed over rows, as far as the shapes tell
                found.reads.append(RowRead(base, rows, SAME_ROWS))
                found.shared += map(self.step.base, op.outputs)
                found.sum = True
            case Reduction() if "pool" in body.function and body.passes == 1:
                self._pool(op, body, found)
            case _:
                raise _NoRows

    def _convolution(self, op: Op, body: Convolution, found: _Found) -> None:
        if len(op.inputs) < 2 or len(op.outputs) != 1:
            raise _NoRows
        window = Window("forward", body.kernel[0], body.stride[0], body.dilation[0], (body.padding[0], body.padding[0]))
        first, second = (op.inputs[position] for position in operand_order(self.step, op))
        if body.product == "grad_weight":
            image, gradient = self._image(first, body.size[0]), self._image(second, body.out_size[0])
            found.rows, found.sum = body.out_size[0], True
            found.reads += [RowRead(*image, window), RowRead(*gradient, SAME_ROWS)]
            found.shared.append(self.step.base(op.outputs[0]))
            return
        forward = body.product == "forward"
        into, out = (body.size, body.out_size) if forward else (body.out_size, body.size)
        read = RowRead(*self._image(first, into[0]), window if forward else Window("backward", *_geometry(window)))
        found.rows, found.gradient = out[0], None if forward else read
        found.reads.append(read)
        found.shared.append(self.step.base(second))
        found.writes.append(self._image(op.outputs[0], out[0])[0])
        for tensor in op.inputs[2:]:  # a bias
            self._beside(tensor, found)

    def _same_rows(self, op: Op, elements: int, found: _Found) -> None:
        images = [self._image(tensor) for tensor in op.outputs]
        if not images or len({rows for _, rows in images}) != 1:
            raise _NoRows
        self._count(found, images[0][1], elements)
        found.writes += [base for base, _ in images]
        for tensor in op.inputs:
            self._beside(tensor, found)

    def _beside(self, tensor: int, found: _Found) -> None:
        """An image with the same rows, or a vector that all rows share."""
        spec, base = self.step.tensors[tensor], self.step.base(tensor)
        if len(spec.shape) <= 1:
            found.shared.append(base)
            return
        base, rows = self._image(tensor)
        if rows != found.rows:
            raise _NoRows
        found.reads.append(RowRead(base, rows, SAME_ROWS))

    def _pool(self, op: Op, body: Reduction, found: _Found) -> None:
        backward = "backward" in body.function
        large, small = self.step.tensors[(op.outputs if backward else op.inputs)[0]], self.step.tensors[
            (op.inputs if backward else op.outputs)[0]
        ]  # fmt: skip
        if len(large.shape) != len(small.shape) or len(large.shape) <= ROW_AXIS:
            raise _NoRows
        window = self._pool_windows.get((op.layer, large.shape, small.shape))
        if window is None:
            raise _NoRows
        images = [self._image(tensor) for tensor in op.outputs]
        self._count(found, images[0][1], body.elements)
        if any(rows != found.rows for _, rows in images):
            raise _NoRows
        found.writes += [base for base, _ in images]
        reaching = Window("backward", *_geometry(window)) if backward else window
        for tensor in op.inputs:
            base, rows = self._image(tensor)
            found.reads.append(RowRead(base, rows, SAME_ROWS if rows == found.rows else reaching))
            if rows == found.rows and large.shape[ROW_AXIS] == small.shape[ROW_AXIS]:
                found.reads.append(RowRead(base, rows, reaching))  # rows do not tell the map from its gradient

    @cached_property
    def _pool_windows(self) -> dict[tuple[str, tuple[int, ...], tuple[int, ...]], Window | None]:
        """By layer and shapes; None where two poolings of a layer differ."""
        found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Window | None] = {}
        for op in self.step.ops:
            body = op.body
            if not isinstance(body, Reduction) or "pool" not in body.function or "backward" in body.function:
                continue
            if not op.inputs or not op.outputs:
                continue
            large, small = self.step.tensors[op.inputs[0]].shape, self.step.tensors[op.outputs[0]].shape
            window, key = pool_window(body, large, small), (op.layer, large, small)
            found[key] = window if found.get(key, window) == window else None
        return found

    def _image(self, tensor: int, rows: int | None = None) -> tuple[int, int]:
        """The base of an image and its rows; a view must be all of its memory, in the same shape."""
        base, shape = self.step.base(tensor), self.step.tensors[tensor].shape
        if len(shape) <= ROW_AXIS or shape != self.step.tensors[base].shape or (rows is not None and shape[ROW_AXIS] != rows):
            raise _NoRows
        return base, shape[ROW_AXIS]

    def _count(self, found: _Found, rows: int, elements: int) -> None:
        if found.rows not in (None, rows) or elements % rows:
            raise _NoRows
        found.rows = rows


def _geometry(window: Window) -> tuple[int, int, int, tuple[int, int]]:
    return window.kernel, window.stride, window.dilation, window.padding


def pool_window(body: Reduction, large: tuple[int, ...], small: tuple[int, ...]) -> Window | None:
    """The rows of a pooling's window, from its area and the sizes of its image and result; None where they leave the stride open.

    >>> pool_window(Reduction("max_pool2d", 9 * 64, 64), (1, 1, 16, 16), (1, 1, 8, 8))
    Window(direction='forward', kernel=3, stride=2, dilation=1, padding=(0, 1))
    """
    axes = len(large) - ROW_AXIS
    if axes < 1 or len(small) != len(large) or "adaptive" in body.function or "fractional" in body.function:
        return None
    area = body.elements // body.results
    kernel = round(area ** (1 / axes))
    if kernel**axes != area or body.elements % body.results:
        return None
    strides = set.intersection(
        *(
            {stride for stride in range(1, kernel + 1) if _fits(large[axis], small[axis], kernel, stride)}
            for axis in range(2, 2 + axes)
        )
    )
    return Window("forward", kernel, min(strides), 1, (0, kernel // 2)) if len(strides) == 1 else None


def _fits(rows: int, results: int, kernel: int, stride: int) -> bool:
    """Whether a window of this stride, with some padding of at most half of it, has so many results."""
    return any(
        results in ((rows + 2 * pad - kernel) // stride + 1, math.ceil((rows + 2 * pad - kernel) / stride) + 1)
        for pad in range(kernel // 2 + 1)
        if rows + 2 * pad >= kernel
    )
