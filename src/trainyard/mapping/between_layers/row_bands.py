"""The bands of a block of Works: which rows of every tensor each band reads, computes and keeps.

A band is so many rows of the result of the block's last Work. What the Works in front of it compute for it follows backwards
through the block: the rows under all windows, which grow with every convolution. Rows that two bands need are kept in a line buffer
(`keeps_overlap`), each row is then computed and read once; or every band computes and reads them again. dW and bias gradients sum
over each row once in any case. The last band takes all rows that are left, so that all bands together are the whole Work.

Where dX adds up windows ("col2im"), a kept overlap is one of unfinished sums: the gradients dY are gone through once, and sums to
which the next band adds stay. Where zeros are inserted ("dilated"), rows of dY stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainyard.mapping.bands import Rows
from trainyard.mapping.between_layers.rows import RowWork
from trainyard.mapping.lowering import GradInput


@dataclass(frozen=True, slots=True)
class TensorBands:
    """Of each band: the rows [begin, end) of a tensor that are computed or read, and the first row that is needed on chip."""

    rows: int
    begin: Rows
    end: Rows
    lowest: Rows

    @property
    def new(self) -> Rows:
        return self.end - self.begin

    @property
    def window(self) -> int:
        """Most rows on chip at a time."""
        return int((self.end - np.minimum(self.begin, self.lowest)).max())

    @property
    def overlap(self) -> int:
        """Most rows that stay from one band to the next, where they are not computed again."""
        kept = np.minimum(self.end[:-1], self.begin[1:]) - np.minimum(self.begin, self.lowest)[1:]
        return int(kept.max(initial=0))


@dataclass(slots=True)
class BlockBands:
    """The bands of a block: of each Work the rows of its result, and of its product where these differ; of each tensor its rows."""

    begin: dict[int, Rows] = field(default_factory=dict)
    end: dict[int, Rows] = field(default_factory=dict)
    product_rows: dict[int, Rows] = field(default_factory=dict)
    unfinished: dict[int, int] = field(default_factory=dict)
    """Work -> most rows of dX that the next band adds to."""
    tensors: dict[int, TensorBands] = field(default_factory=dict)


def ends_of(rows: int, bands: int) -> Rows:
    """Where bands end that are equal, or the first ones a row larger.

    >>> ends_of(10, 4).tolist()
    [3, 6, 8, 10]
    """
    least, more = divmod(rows, bands)
    number = np.arange(1, bands + 1)
    return number * least + np.minimum(number, more)


def bands_of(works: Mapping[int, RowWork], bands: int, *, keeps_overlap: bool, grad_input: GradInput) -> BlockBands | None:
    """The bands of Works in program order, the last of which is cut into so many; None where a Work would have an empty band."""
    last = max(works)
    if bands > works[last].rows:
        return None
    found = BlockBands()
    ends = ends_of(works[last].rows, bands)
    needed: dict[int, tuple[Rows, Rows]] = {}
    rows_of: dict[int, int] = {}
    for number in sorted(works, reverse=True):
        work = works[number]
        asked = [needed[base] for base in work.writes if base in needed]
        end = np.maximum.reduce([high for _, high in asked]) if asked else -(-ends * work.rows // works[last].rows)
        end[-1] = work.rows
        begin = _before(end)
        if not keeps_overlap and not work.sum:
            begin = np.minimum.reduce([begin, *(low for low, _ in asked)])
        found.begin[number], found.end[number] = begin, end
        if (end <= begin).any() or not _goes_through(found, number, work, keeps_overlap=keeps_overlap, grad_input=grad_input):
            return None
        for read in work.reads:
            low, high = read.window.needed(begin, end, read.rows)
            high[-1] = read.rows
            high = np.maximum.accumulate(high)
            if keeps_overlap and read == work.gradient and grad_input == "col2im":
                low = _before(high)
            _ask(needed, read.base, low, high)
            rows_of[read.base] = read.rows
        rows_of.update(dict.fromkeys(work.writes, work.rows))
    writers = {base: number for number in sorted(works, reverse=True) for base in works[number].writes}
    for base, rows in rows_of.items():
        if base in writers:
            begin, end = found.begin[writers[base]], found.end[writers[base]]
        else:
            end = needed[base][1]
            begin = _before(end) if keeps_overlap else np.minimum(_before(end), needed[base][0])
        lowest = needed[base][0] if base in needed else begin
        found.tensors[base] = TensorBands(rows, begin, end, lowest)
    return found


def _before(end: Rows) -> Rows:
    """Where a band begins that follows the one before."""
    return np.concatenate([np.zeros(1, np.int64), end[:-1]])


def _ask(needed: dict[int, tuple[Rows, Rows]], base: int, low: Rows, high: Rows) -> None:
    before = needed.get(base)
    needed[base] = (low, high) if before is None else (np.minimum(before[0], low), np.maximum(before[1], high))


def _goes_through(found: BlockBands, number: int, work: RowWork, *, keeps_overlap: bool, grad_input: GradInput) -> bool:
    """Finds the rows that the product of a Work goes through; False where a band has none."""
    begin, end = found.begin[number], found.end[number]
    if work.gradient is None or grad_input != "col2im":
        found.product_rows[number] = end - begin
        return True
    low, high = work.gradient.window.needed(begin, end, work.gradient.rows)
    high[-1] = work.gradient.rows
    high = np.maximum.accumulate(high)
    if keeps_overlap:
        low = _before(high)
        reached = work.gradient.window.reached(high, work.rows)
        found.unfinished[number] = int((reached - end).max(initial=0))
    found.product_rows[number] = high - low
    return bool((high > low).all())


def writes_nothing_over(works: Sequence[RowWork]) -> bool:
    """Whether no Work writes over a tensor of which an earlier one may need rows again for the next band."""
    windowed: set[int] = set()
    for work in works:
        if windowed.intersection(work.writes):
            return False
        windowed |= {read.base for read in work.reads if read.window.kernel > 1}
    return True
