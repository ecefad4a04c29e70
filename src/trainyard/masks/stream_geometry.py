"""The order of a product's reduction in a stream, from shapes alone: no bits are read. The table is in `masks.streams`."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MaskView, TensorKey
from trainyard.ir.step import CONVOLUTION_LETTERS
from trainyard.masks.views import Bits, Range, geometry_letter, ranges, shape_of

Side = Literal["a", "b"]
Integers = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Elements of the reduction that follow each other in the stream, counted from the view's cut; padded to whole steps."""

    start: int
    stride: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of a view's streams.

    `steps` are those of each segment. Row i equals row i - distinct_rows, and segment i segment i - distinct_segments, where fewer
    samples were recorded than the step has.
    """

    rows: int
    steps: tuple[int, ...]
    distinct_rows: int
    distinct_segments: int
    lanes: int

    @property
    def words(self) -> int:
        """Words of a row, by the longest segment."""
        return words(max(self.steps), self.lanes)


def words(steps: int, lanes: int) -> int:
    """Words of a packed row: its bits, and one spare so that unaligned reads stay inside.

    >>> words(16, 4), words(17, 4)
    (2, 3)
    """
    return -(-steps * lanes // 64) + 1


class StreamAccess(NamedTuple):
    """How streams read a tensor's own matrix: the range of stream rows, and the range that is reduced."""

    rows: Range
    reduction: Range
    by_rows: bool
    """Streams are rows of the tensor's own matrix, and its columns are reduced."""
    taps: int
    """Taps of a reduction over channels and kernel; 1 where it has none."""
    positions: int
    """Positions of one sample where the reduction runs over them; else 0."""
    shape: tuple[int, ...]

    def runs(self) -> tuple[tuple[Run, ...], ...]:
        """The runs of each segment of the reduction."""
        (first, last), taps = self.reduction, self.taps
        if taps > 1:
            runs_of_taps = []
            for tap in range(taps):
                low, high = -(-(first - tap) // taps), -(-(last - tap) // taps)
                if high > low:
                    runs_of_taps.append(Run(low * taps + tap - first, taps, high - low))
            return (tuple(runs_of_taps),)
        if self.positions:
            ends = [first, *range((first // self.positions + 1) * self.positions, last, self.positions), last]
            return tuple((Run(start - first, 1, end - start),) for start, end in itertools.pairwise(ends))
        return ((Run(0, 1, last - first),),)


def stream_access(view: MaskView, side: Side) -> StreamAccess:
    rows, columns = ranges(view)
    by_rows, body, place = (side == "a") != view.transposed, view.geometry, geometry_letter(view)
    taps, positions = 1, 0
    if body is not None:
        over_columns = place == "A" or view.dilated == (place == "G")  # W, or the dilated G
        if over_columns if by_rows else place == "W" and view.dilated:
            taps = math.prod(body.kernel)
        if place != "W" and not by_rows:
            positions = _positions_of_sample(view, body)
    stream_rows, reduction = (rows, columns) if by_rows else (columns, rows)
    return StreamAccess(stream_rows, reduction, by_rows, taps, positions, shape_of(view.source, view.key))


def layout(view: MaskView, side: Side, lanes: int) -> Layout:
    """The number and length of a view's streams.

    >>> fire = Convolution(batch=8, in_channels=16, out_channels=64, size=(55, 55), kernel=(3, 3), padding=(1, 1))
    >>> [dense_layout(fire.as_product(p), "a", 4, "dilated").steps[0] for p in ("forward", "grad_input", "grad_weight")]
    [36, 144, 757]
    """
    return layout_of(view, stream_access(view, side), lanes)


def layout_of(view: MaskView, read: StreamAccess, lanes: int) -> Layout:
    """The layout of a view whose access is known."""
    steps = tuple(sum(-(-run.length // lanes) for run in segment) for segment in read.runs())
    rows, segments = read.rows[1] - read.rows[0], len(steps)
    body, recorded = view.geometry, read.shape[0] if read.shape else 1
    if body is None:
        rows_again = math.prod(read.shape[:-1]) if read.by_rows else rows
        return Layout(rows=rows, steps=steps, distinct_rows=min(rows, rows_again), distinct_segments=segments, lanes=lanes)
    distinct_rows, distinct_segments = rows, segments
    if geometry_letter(view) != "W" and recorded < body.batch:
        positions = _positions_of_sample(view, body)
        if read.by_rows and _in_one_block(read.rows, body.batch * positions):
            distinct_rows = min(rows, recorded * positions)
        if (
            read.positions
            and _in_one_block(read.reduction, body.batch * positions)
            and not any(end % positions for end in read.reduction)
        ):
            distinct_segments = min(segments, recorded)
    return Layout(rows=rows, steps=steps, distinct_rows=distinct_rows, distinct_segments=distinct_segments, lanes=lanes)


def order(view: MaskView, side: Side, lanes: int) -> list[Integers]:
    """For each segment, the element of the reduction at each lane position, -1 in the padding."""
    segments = []
    for segment in stream_access(view, side).runs():
        pieces = []
        for start, stride, length in segment:
            piece = np.full(-(-length // lanes) * lanes, -1, dtype=np.int64)
            piece[:length] = start + stride * np.arange(length)
            pieces.append(piece)
        segments.append(np.concatenate(pieces))
    return segments


@dataclass(frozen=True, slots=True)
class _Shapes:
    """A mask source that has a tensor's shape only."""

    shape: tuple[int, ...]
    digest: str = ""

    def spec(self, key: TensorKey) -> _Shapes:
        return self

    def bits(self, key: TensorKey) -> Bits:
        return np.ones(self.shape, dtype=np.bool_)


def dense_layout(
    body: Convolution,
    side: Side,
    lanes: int,
    grad_input: Literal["col2im", "dilated"] = "col2im",
    rows: Range | None = None,
    columns: Range | None = None,
) -> Layout:
    """The layout of one operand of a convolution's product without a mask; `rows` and `columns` cut its matrix."""
    letter = CONVOLUTION_LETTERS[body.product]["ab".index(side)]
    shape: tuple[int, ...] = (body.out_channels, body.in_channels // body.groups, *body.kernel)
    if letter != "W":
        channels, size = (body.in_channels, body.size) if letter == "A" else (body.out_channels, body.out_size)
        shape = (body.batch, channels, *size)
    dilated = body.product == "grad_input" and grad_input == "dilated"
    transposed = (body.product, side) in (("forward", "b"), ("grad_weight", "a"))
    return layout(MaskView(_Shapes(shape), ("", 0, letter), body, transposed, rows, columns, letter, dilated), side, lanes)


def _positions_of_sample(view: MaskView, body: Convolution) -> int:
    """Positions of one sample: those of the output, or of the input for dilated gradients."""
    return math.prod(body.size if view.dilated and geometry_letter(view) == "G" else body.out_size)


def _in_one_block(cut: Range, size: int) -> bool:
    """Whether a range lies inside one block of `size`."""
    return cut[0] // size == (cut[1] - 1) // size
