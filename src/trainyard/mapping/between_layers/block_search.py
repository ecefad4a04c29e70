"""Which blocks of Works run slice by slice, and in how many slices: dynamic programming over the Works of a step.

A block costs what its Works cost for each slice, with everything that goes from one to the next on chip; a Work outside blocks
costs what it costs with whole tensors kept. The best blocks of Works 0 to n are those of 0 to m and one block from m to n, or Work
n by itself. Blocks of the same Works on tensors of the same sizes are costed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Protocol

from trainyard.mapping.between_layers.search import Cost, total
from trainyard.mapping.between_layers.slices import LONGEST, Block, Blocks, Part, divisors
from trainyard.mapping.demand import OnChip


class SliceCosts(Protocol):
    """Costs of Works for one of several slices."""

    def slice_cost(self, slices: int, work: int, on_chip: OnChip) -> Cost | None: ...

    def name(self, work: int) -> Hashable:
        """Equal for Works that ask for the same."""
        ...


class BlockSearch:
    """Blocks of one step; `alone` are the costs of its Works outside blocks."""

    def __init__(self, blocks: Blocks, costs: SliceCosts, batch: int, alone: Sequence[Cost], capacity_bytes: int) -> None:
        self.blocks, self.costs, self.alone, self.capacity = blocks, costs, alone, capacity_bytes
        self.counts = divisors(batch)
        self.cache: dict[Hashable, tuple[Cost, Block] | None] = {}

    def best(self) -> list[Block]:
        """The blocks that take least time together with the Works outside them."""
        count = len(self.alone)
        ends: list[tuple[Cost, tuple[Block, ...]]] = [(Cost(0, 0), ())]
        candidates: dict[int, list[tuple[Cost, Block]]] = {}
        for first in range(count):
            for cost, block in self._starting_at(first):
                candidates.setdefault(block.last, []).append((cost, block))
        for last in range(count):
            before, blocks = ends[last]
            best = total((before, self.alone[last])), blocks
            for cost, block in candidates.get(last, ()):
                base, earlier = ends[block.first]
                best = min(best, (total((base, cost)), (*earlier, block)), key=lambda option: option[0])
            ends.append(best)
        return list(ends[-1][1])

    def _starting_at(self, first: int) -> list[tuple[Cost, Block]]:
        """Blocks from a Work on that are better than their Works alone."""
        found = []
        for last in range(first, min(first + LONGEST, len(self.alone))):
            if not self.blocks.can[last] or (last > first and not self.blocks.linked(first, last)):
                break
            if last == first:
                continue
            alone = total(self.alone[first : last + 1])
            costed = self._costed(first, last)
            if costed is not None and costed[0] < alone:
                found.append(costed)
        return found

    def _costed(self, first: int, last: int) -> tuple[Cost, Block] | None:
        """The best number of slices for a block; None where it cannot be cut or nothing fits."""
        uses = self.blocks.uses(first, last)
        if uses is None:
            return None
        key = (
            tuple(map(self.costs.name, range(first, last + 1))),
            tuple(
                (use.kind, use.needed_after, use.whole, use.tensor.bytes, tuple(work - first for work in use.works)) for use in uses
            ),
        )
        if key not in self.cache:
            self.cache[key] = self._best_cut(first, last)
        known = self.cache[key]
        if known is None:
            return None
        cost, block = known
        return cost, Block(first=first, last=last, slices=block.slices, weights=block.weights, sums=block.sums)

    def _best_cut(self, first: int, last: int) -> tuple[Cost, Block] | None:
        uses, best = self.blocks.uses(first, last) or [], None
        shared = [use for use in uses if use.kind == "shared"]
        weights = (True, False) if any(not use.written for use in shared) else (False,)
        sums = (True, False) if any(use.written for use in shared) else (False,)
        for slices, keeps_weights, keeps_sums in product(self.counts, weights, sums):
            block = Block(first=first, last=last, slices=slices, weights=keeps_weights, sums=keeps_sums)
            cost = self.cost(self.blocks.parts(block, uses), slices)
            if cost is not None and (best is None or cost < best[0]):
                best = cost, block
        return best

    def cost(self, parts: dict[int, tuple[Part, ...]], slices: int) -> Cost | None:
        """All Works of a block, all slices; None where something does not fit."""
        if any(part.on_chip.occupied_bytes > self.capacity for own in parts.values() for part in own):
            return None
        costs = []
        for work, own in parts.items():
            for part in own:
                cost = self.costs.slice_cost(slices, work, part.on_chip)
                if cost is None:
                    return None
                costs.append(Cost(part.times * cost.cycles, part.times * cost.bytes))
        return total(costs)
