"""Which blocks of Works run slice by slice, and in which slices: dynamic programming over the Works of a step.

A block costs what its Works cost for each slice, with everything that goes from one to the next on chip; a Work outside blocks
costs what it costs with whole tensors kept. The best blocks of Works 0 to n are those of 0 to m and one block from m to n, or Work
n by itself. Every way to cut a block (by samples, by rows) is costed, blocks of the same Works on tensors of the same sizes once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Protocol

from trainyard.mapping.between_layers.search import Cost, total
from trainyard.mapping.between_layers.slices import LONGEST, Block, Cutter, Part
from trainyard.progress import counted


class PartCosts(Protocol):
    """Costs of Works for one of several slices."""

    def part_cost(self, work: int, part: Part) -> Cost | None: ...

    def name(self, work: int) -> Hashable:
        """Equal for Works that ask for the same."""
        ...


class BlockSearch:
    """Blocks of one step; `alone` are the costs of its Works outside blocks."""

    def __init__(
        self, cutters: Sequence[Cutter], costs: PartCosts, alone: Sequence[Cost], capacity_bytes: int, effort: int = 0
    ) -> None:
        self.cutters, self.costs, self.alone, self.capacity, self.effort = cutters, costs, alone, capacity_bytes, effort
        self.ended = False
        """Whether `effort`, the most blocks that are costed (0: no limit), left some out."""
        self.cache: dict[Hashable, tuple[Cost, Block] | None] = {}

    def best(self) -> list[tuple[Block, Cutter]]:
        """The blocks that take least time together with the Works outside them, and what cuts them."""
        count = len(self.alone)
        ends: list[tuple[Cost, tuple[tuple[Block, Cutter], ...]]] = [(Cost(0, 0), ())]
        candidates: dict[int, list[tuple[Cost, Block, Cutter]]] = {}
        for first in counted(range(count), "search of blocks of layers"):
            for cutter in self.cutters:
                for cost, block in self._starting_at(first, cutter):
                    candidates.setdefault(block.last, []).append((cost, block, cutter))
        for last in range(count):
            before, blocks = ends[last]
            best = total((before, self.alone[last])), blocks
            for cost, block, cutter in candidates.get(last, ()):
                base, earlier = ends[block.first]
                best = min(best, (total((base, cost)), (*earlier, (block, cutter))), key=lambda option: option[0])
            ends.append(best)
        return list(ends[-1][1])

    def _starting_at(self, first: int, cutter: Cutter) -> list[tuple[Cost, Block]]:
        """Blocks from a Work on that are better than their Works alone."""
        found = []
        for last in range(first, min(first + LONGEST, len(self.alone))):
            if not cutter.can[last] or (last > first and not cutter.linked(first, last)):
                break
            if last == first:
                continue
            alone = total(self.alone[first : last + 1])
            costed = self._costed(first, last, cutter)
            if costed is not None and costed[0] < alone:
                found.append(costed)
        return found

    def _costed(self, first: int, last: int, cutter: Cutter) -> tuple[Cost, Block] | None:
        """The best way to cut a block; None where it cannot be cut or nothing fits."""
        uses = cutter.uses(first, last)
        if uses is None:
            return None
        key = (
            cutter.key(first, last),
            tuple(map(self.costs.name, range(first, last + 1))),
            tuple(
                (use.kind, use.needed_after, use.whole, use.tensor.bytes, tuple(work - first for work in use.works)) for use in uses
            ),
        )
        if key not in self.cache and self.effort and len(self.cache) >= self.effort:
            self.ended = True
            return None
        if key not in self.cache:
            best: tuple[Cost, Block] | None = None
            for block in cutter.cuts(first, last, uses, self.capacity):
                cost = self.cost(cutter.parts(block, uses))
                if cost is not None and (best is None or cost < best[0]):
                    best = cost, block
            self.cache[key] = best
        known = self.cache[key]
        return known and (known[0], replace(known[1], first=first, last=last))

    def cost(self, parts: dict[int, tuple[Part, ...]]) -> Cost | None:
        """All Works of a block, all slices; None where something does not fit."""
        costs = []
        for work, own in parts.items():
            for part in own:
                cost = self.costs.part_cost(work, part)
                if cost is None:
                    return None
                costs.append(Cost(part.times * cost.cycles, part.times * cost.bytes))
        return total(costs)
