"""Blocks of Works that run for a band of rows at a time (fused-layer tiling of M. Alwani, H. Chen, M. Ferdman, P. Milder:
Fused-Layer CNN Accelerators, MICRO 2016), sample after sample.

What goes from one Work to the next is kept on chip for one band, with the rows that the next band needs again (`row_bands`). This
pays where one sample alone does not fit: a single large image, or the first layers of a network.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from trainyard.ir import Step, Work
from trainyard.mapping.bands import Band
from trainyard.mapping.between_layers.accesses import Tensor
from trainyard.mapping.between_layers.row_bands import BlockBands, bands_of, writes_nothing_over
from trainyard.mapping.between_layers.rows import RowCuttable, RowWork
from trainyard.mapping.between_layers.slices import Block, Blocks, Cuttable, Part, Use, divisors, what_stays
from trainyard.mapping.demand import OnChip, Policy, TensorBytes

TRIED = 3
"""Numbers of bands that are costed: the fewest that fit, and the next ones, which leave more room to tiles."""


class RowBlocks(Blocks):
    """The tensors of a step as blocks of its Works use them, in bands of rows of one sample; of all where these stay together."""

    def __init__(self, step: Step, works: Sequence[Work], tensors: Sequence[Tensor], policy: Policy, sample: Step) -> None:
        self.step, self.tensors, self.policy, self.sample = step, tensors, policy, sample
        self.groups = step.batch // sample.batch
        rows = RowCuttable(sample, tuple(works))
        self.rows, kinds = rows.works, rows.kinds
        can = [work is not None for work in rows.works]
        if self.groups > 1:
            by_sample = Cuttable(step)
            can = [can_ and by_sample.work(work) for can_, work in zip(can, works, strict=True)]
            kinds = tuple(kind if kind == other else "other" for kind, other in zip(kinds, by_sample.kinds, strict=True))
        self._sizes = TensorBytes(sample, policy, {})
        self._bands: dict[tuple[int, int, int], BlockBands | None] = {}
        self._prepare(kinds, can)

    def _of(self, first: int, last: int) -> dict[int, RowWork]:
        return {work: found for work in range(first, last + 1) if (found := self.rows[work]) is not None}

    def uses(self, first: int, last: int) -> list[Use] | None:
        if not writes_nothing_over([*self._of(first, last).values()]):
            return None
        return super().uses(first, last)

    def key(self, first: int, last: int) -> Hashable:
        """The rows that Works need, with tensors numbered within the block."""
        numbers: dict[int, int] = {}
        works = []
        for work in self._of(first, last).values():
            reads = tuple((numbers.setdefault(read.base, len(numbers)), read.rows, read.window) for read in work.reads)
            works.append((work.rows, reads, tuple(numbers.setdefault(base, len(numbers)) for base in work.writes), work.sum))
        return tuple(works)

    def bands(self, block: Block) -> BlockBands | None:
        key = block.first, block.last, block.bands
        if key not in self._bands:
            if len(self._bands) > 64:
                self._bands.clear()
            self._bands[key] = bands_of(
                self._of(block.first, block.last), block.bands,
                keeps_overlap=self.policy.line_buffer, grad_input=self.policy.grad_input,
            )  # fmt: skip
        return self._bands[key]

    def cuts(self, first: int, last: int, uses: Sequence[Use], capacity_bytes: int) -> Iterator[Block]:
        final = self.rows[last]
        assert final is not None
        for weights, sums in what_stays(uses):
            tried = 0
            for bands in numbers_of_bands(final.rows):
                block = Block(
                    first=first, last=last, slices=bands * self.groups, weights=weights, sums=sums, bands=bands
                )  # fmt: skip
                if self.bands(block) is None or self.most_occupied(block, uses) > capacity_bytes:
                    continue
                yield block
                tried += 1
                if tried == TRIED:
                    break

    def _held(self, block: Block, use: Use, work: int) -> int:
        """Scratchpad bytes of a tensor while a Work of the block runs: those of a band, or of the rows that the next one needs."""
        if use.kind != "samples":
            return super()._held(block, use, work)
        bands = self.bands(block)
        assert bands is not None
        base = use.tensor.base
        tensor = bands.tensors[base]
        stays = use.whole and len(use.works) > 1 and use.works[0] <= work <= use.works[-1]
        row_bytes = -(-self._sizes.bytes(base) // tensor.rows)
        return (tensor.window if stays else tensor.overlap) * row_bytes

    def occupied(self, block: Block, uses: Sequence[Use], work: int) -> int:
        """With the sums of dX to which the next band adds."""
        bands = self.bands(block)
        assert bands is not None
        return super().occupied(block, uses, work) + sum(
            rows * self._sum_bytes(self.rows[number]) for number, rows in bands.unfinished.items() if rows
        )

    def _sum_bytes(self, work: RowWork | None) -> int:
        """Bytes of the unfinished sums of a row of dX."""
        assert work is not None
        result = work.writes[0]
        return max(self._sizes.elements(result) * self.policy.accumulator_bytes, self._sizes.bytes(result)) // work.rows

    def parts(self, block: Block, uses: Sequence[Use]) -> dict[int, tuple[Part, ...]]:
        bands = self.bands(block)
        assert bands is not None
        found: dict[int, tuple[Part, ...]] = {}
        for work, own in self._of(block.first, block.last).items():
            occupied = self.occupied(block, uses, work)
            bases = list(dict.fromkeys((*(read.base for read in own.reads), *own.writes)))
            columns = [bands.end[work] - bands.begin[work], bands.product_rows[work], *(bands.tensors[base].new for base in bases)]
            its_uses = [use for use in uses if work in use.works]
            states = {turn: self._state(block, its_uses, work, turn, occupied) for turn in ("first", "middle", "last")}
            merged: dict[tuple[OnChip, Band], int] = {}
            for number, (rows, product, *moved) in enumerate(np.stack(columns, axis=1).tolist()):
                tensors = tuple((base, new, bands.tensors[base].rows) for base, new in zip(bases, moved, strict=True))
                band, times = Band(rows, own.rows, product, tensors), self.groups
                for at, turn in ((0, "first"), (block.bands - 1, "last")):
                    if number == at:
                        times -= 1
                        merged[states[turn], band] = merged.get((states[turn], band), 0) + 1
                merged[states["middle"], band] = merged.get((states["middle"], band), 0) + times
            found[work] = tuple(Part(times, state, self.sample.batch, band) for (state, band), times in merged.items() if times)
        return found


def numbers_of_bands(rows: int) -> list[int]:
    """Into how many bands so many rows are cut, fewest first: about 2, 3, 4, 6, 8, 12, ..., or a near divisor of the rows.

    >>> numbers_of_bands(224)
    [2, 3, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224]
    """
    equal, found = divisors(rows), set[int]()
    size = 2
    while size <= rows:
        for number in (size, size * 3 // 2):
            if number <= rows:
                found.add(next((near for near in equal if number <= near <= number * 1.25), number))
        size *= 2
    return sorted(found)
