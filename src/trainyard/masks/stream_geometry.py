"""How the reduction of a product lies in a stream: geometry alone, no bits are read. The table is in `masks.streams`."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MaskView, TensorKey
from trainyard.ir.letters import PLACES
from trainyard.masks.views import Bits, Cut, cuts, place_of, shape_of

Side = Literal["a", "b"]
Whole = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Elements of the reduction that follow each other in the stream, counted from the view's cut; padded to whole steps."""

    start: int
    stride: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of a view's streams, from geometry alone.

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


class Reading(NamedTuple):
    """How streams take a tensor's own matrix: what lies along their rows, and what is reduced."""

    along: Cut
    deep: Cut
    by_rows: bool
    """Streams are rows of the tensor's own matrix, and its columns are reduced."""
    taps: int
    """Taps of a reduction over channels and kernel; 1 where it has none."""
    positions: int
    """Positions of one sample where the reduction runs over them; else 0."""
    shape: tuple[int, ...]

    def runs(self) -> tuple[tuple[Run, ...], ...]:
        """The runs of each segment of the reduction."""
        (first, last), taps = self.deep, self.taps
        if taps > 1:
            found = []
            for tap in range(taps):
                low, high = -(-(first - tap) // taps), -(-(last - tap) // taps)
                if high > low:
                    found.append(Run(low * taps + tap - first, taps, high - low))
            return (tuple(found),)
        if self.positions:
            ends = [first, *range((first // self.positions + 1) * self.positions, last, self.positions), last]
            return tuple((Run(start - first, 1, end - start),) for start, end in itertools.pairwise(ends))
        return ((Run(0, 1, last - first),),)


def reading(view: MaskView, side: Side) -> Reading:
    rows, columns = cuts(view)
    by_rows, body, place = (side == "a") != view.transposed, view.geometry, place_of(view)
    taps, positions = 1, 0
    if body is not None:
        over_columns = place == "A" or view.dilated == (place == "G")  # W, or the dilated G
        if over_columns if by_rows else place == "W" and view.dilated:
            taps = math.prod(body.kernel)
        if place != "W" and not by_rows:
            positions = _places(view, body)
    along, deep = (rows, columns) if by_rows else (columns, rows)
    return Reading(along, deep, by_rows, taps, positions, shape_of(view.source, view.key))


def layout(view: MaskView, side: Side, lanes: int) -> Layout:
    """How many streams a view has, and how long they are; no bits are read.

    >>> fire = Convolution(batch=8, in_channels=16, out_channels=64, size=(55, 55), kernel=(3, 3), padding=(1, 1))
    >>> [dense_layout(fire.as_product(p), "a", 4, "dilated").steps[0] for p in ("forward", "grad_input", "grad_weight")]
    [36, 144, 757]
    """
    return layout_of(view, reading(view, side), lanes)


def layout_of(view: MaskView, found: Reading, lanes: int) -> Layout:
    """The layout of a view whose reading is known."""
    steps = tuple(sum(-(-run.length // lanes) for run in segment) for segment in found.runs())
    rows, segments = found.along[1] - found.along[0], len(steps)
    body, recorded = view.geometry, found.shape[0] if found.shape else 1
    if body is None:
        rows_again = math.prod(found.shape[:-1]) if found.by_rows else rows
        return Layout(rows=rows, steps=steps, distinct_rows=min(rows, rows_again), distinct_segments=segments, lanes=lanes)
    distinct_rows, distinct_segments = rows, segments
    if place_of(view) != "W" and recorded < body.batch:
        places = _places(view, body)
        if found.by_rows and _in_one(found.along, body.batch * places):
            distinct_rows = min(rows, recorded * places)
        if found.positions and _in_one(found.deep, body.batch * places) and not any(end % places for end in found.deep):
            distinct_segments = min(segments, recorded)
    return Layout(rows=rows, steps=steps, distinct_rows=distinct_rows, distinct_segments=distinct_segments, lanes=lanes)


def order(view: MaskView, side: Side, lanes: int) -> list[Whole]:
    """Of each segment, the element of the reduction at each lane position, -1 in the padding: the plain form of a stream."""
    found = []
    for segment in reading(view, side).runs():
        pieces = []
        for start, stride, length in segment:
            piece = np.full(-(-length // lanes) * lanes, -1, dtype=np.int64)
            piece[:length] = start + stride * np.arange(length)
            pieces.append(piece)
        found.append(np.concatenate(pieces))
    return found


@dataclass(frozen=True, slots=True)
class _Shapes:
    """A source that knows a tensor's shape and none of its bits."""

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
    rows: Cut | None = None,
    columns: Cut | None = None,
) -> Layout:
    """The layout of one side of a convolution's product of which no mask is known; `rows` and `columns` cut its matrix."""
    place = PLACES[body.product]["ab".index(side)]
    shape: tuple[int, ...] = (body.out_channels, body.in_channels // body.groups, *body.kernel)
    if place != "W":
        channels, size = (body.in_channels, body.size) if place == "A" else (body.out_channels, body.out_size)
        shape = (body.batch, channels, *size)
    dilated = body.product == "grad_input" and grad_input == "dilated"
    turned = (body.product, side) in (("forward", "b"), ("grad_weight", "a"))
    return layout(MaskView(_Shapes(shape), ("", 0, place), body, turned, rows, columns, place, dilated), side, lanes)


def _places(view: MaskView, body: Convolution) -> int:
    """Places of one sample: positions of the output, or of the input where gradients are spread over it."""
    return math.prod(body.size if view.dilated and place_of(view) == "G" else body.out_size)


def _in_one(cut: Cut, size: int) -> bool:
    """Whether a range lies inside one block of `size`."""
    return cut[0] // size == (cut[1] - 1) // size
