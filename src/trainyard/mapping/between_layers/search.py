"""Which gaps to keep, so that a step takes least time, then moves least bytes.

Gaps are added one by one, the shortest first, each with the exact cost of every Work that it touches, and taken back where that is
better: first those that save cycles, then those that save bytes alone. Keeping nothing is where it begins, so the result is never
worse. Of few gaps, all subsets are tried after that, branches cut off by a lower bound. `bound` is what the Works would cost if all
gaps were kept and took no room; no choice is better, within the tolerance of the tile search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from trainyard.mapping.between_layers.accesses import ALONE, Gap, Tensor, gaps_of
from trainyard.mapping.between_layers.residency import NONE, Ledger, by_tensor
from trainyard.mapping.demand import OnChip
from trainyard.progress import counted

FEW, MOST_BRANCHES = 24, 2000
"""Gaps of which all subsets are tried, and branches that are looked at before that is given up."""
ROUNDS = 3
"""Most passes over all gaps; later ones find little."""


class Cost(NamedTuple):
    """Cycles first, then bytes over the DRAM's pins."""

    cycles: int
    bytes: int


class CostOf(Protocol):
    """Costs of Works, as a device has them."""

    def cost(self, work: int, state: OnChip) -> Cost | None:
        """What a Work costs with what it finds on chip; None where its tiles have no room."""
        ...

    def same(self, work: int, state: OnChip) -> tuple[int, int]:
        """The least and the most `occupied_bytes` with which the cost is known to be the same."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The gaps that are kept, what the Works find on chip, and costs: before, after, and what no choice can beat.

    `proved`: no subset of the gaps is better. `ended`: the effort was spent before all changes were tried.
    """

    kept: tuple[Gap, ...]
    states: dict[int, OnChip]
    costs: tuple[Cost, ...]
    before: Cost
    after: Cost
    bound: Cost
    proved: bool
    ended: bool = False


def choose(tensors: Sequence[Tensor], works: int, cost_of: CostOf, capacity_bytes: int, effort: int = 0) -> Choice:
    """The gaps to keep in a scratchpad of so many bytes; `effort` is the most changes that are tried, 0 for no limit."""
    gaps = [gap for gap in gaps_of(tensors) if tensors[gap.tensor].bytes <= capacity_bytes]
    search = _Search(tensors, works, cost_of, capacity_bytes, effort)
    before, bound = total(search.costs), search.bound(gaps)
    if bound < before:
        search.improve(gaps)
    proved = total(search.costs) == bound or (not search.ended and len(gaps) <= FEW and search.exhaust(gaps))
    kept = tuple(gap for gap in gaps if gap.number in search.ledger.kept.get(gap.tensor, NONE))
    after = total(search.costs)
    states = dict(search.ledger.states()) if kept else {}
    costs = tuple(search.costs)
    return Choice(
        kept=kept, states=states, costs=costs, before=before, after=after, bound=bound, proved=proved, ended=search.ended
    )  # fmt: skip


def total(costs: Iterable[Cost]) -> Cost:
    cycles = moved = 0
    for cost in costs:
        cycles, moved = cycles + cost.cycles, moved + cost.bytes
    return Cost(cycles, moved)


@dataclass(slots=True)
class _Incumbent:
    """The best subset so far: its cost, and its gaps where it was found here."""

    cost: Cost
    kept: tuple[Gap, ...] | None = None
    branches: int = 0


class _Search:
    """The gaps that are kept now, and what each Work costs with them."""

    def __init__(self, tensors: Sequence[Tensor], works: int, cost_of: CostOf, capacity_bytes: int, effort: int = 0) -> None:
        self.effort, self.tried, self.ended = effort, 0, False
        self.most_branches = min(MOST_BRANCHES, effort or MOST_BRANCHES)
        self.ledger, self.cost_of, self.capacity = Ledger(tensors, works), cost_of, capacity_bytes
        self.states, self.costs = [OnChip()] * works, [Cost(0, 0)] * works
        self.low, self.high = np.zeros(works, np.int64), np.zeros(works, np.int64)
        for work in range(works):
            self._take(work, OnChip(), self._feasible(work, OnChip()))

    def _feasible(self, work: int, state: OnChip) -> Cost:
        cost = self.cost_of.cost(work, state)
        assert cost is not None  # a step without kept tensors was costed before
        return cost

    def _take(self, work: int, state: OnChip, cost: Cost) -> None:
        self.states[work], self.costs[work] = state, cost
        self.low[work], self.high[work] = self.cost_of.same(work, state)

    def bound(self, gaps: Sequence[Gap]) -> Cost:
        """All gaps kept, without the room that they take."""
        free = Ledger(self.ledger.tensors, self.ledger.works)
        _keep(free, gaps)
        return total(self._feasible(work, free.state(work)._replace(occupied_bytes=0)) for work in range(free.works))

    def attempt(self, tensor: int, gaps: frozenset[int], least_cycles: int = 0) -> bool:
        """Keeps exactly these gaps of a tensor if that is better, by so many cycles at least."""
        ledger, before = self.ledger, self.ledger.kept.get(tensor, NONE)
        self.ended = self.ended or (self.effort > 0 and self.tried >= self.effort and gaps != before)
        if self.ended or gaps == before or not ledger.change(tensor, gaps):
            return False
        self.tried += 1
        changed = self._recosted(tensor, before ^ gaps)
        if changed is not None:
            cycles = sum(cost.cycles - self.costs[work].cycles for work, (_, cost) in changed.items())
            moved = sum(cost.bytes - self.costs[work].bytes for work, (_, cost) in changed.items())
            if (cycles, moved) < (0, 0) and cycles <= -least_cycles:
                for work, (state, cost) in changed.items():
                    self._take(work, state, cost)
                return True
        ledger.change(tensor, before)
        return False

    def _recosted(self, tensor: int, gaps: frozenset[int]) -> dict[int, tuple[OnChip, Cost]] | None:
        """New costs of the Works around gaps that changed, of those that write the tensor, and of those with other room for their
        tiles; None where one has too little."""
        ledger, accesses = self.ledger, self.ledger.tensors[tensor].accesses
        ends = {end for gap in gaps for end in ((gap, gap + 1) if gap < ALONE else (gap - ALONE,))}
        first, last = accesses[min(ends)].work, accesses[max(ends)].work + 1
        occupied = ledger.occupied[first:last]
        if occupied.max() > self.capacity:
            return None
        changed: dict[int, tuple[OnChip, Cost]] = {}
        other_room = (occupied < self.low[first:last]) | (occupied > self.high[first:last])
        own = [accesses[end].work for end in sorted(ends)]
        own += [access.work for access in accesses[: max(ends)] if access.write_bytes]
        for work in dict.fromkeys([*own, *(np.flatnonzero(other_room) + first).tolist()]):
            state = ledger.state(work)
            cost = self.cost_of.cost(work, state)
            if cost is None:
                return None
            changed[work] = state, cost
        return changed

    def improve(self, gaps: Sequence[Gap]) -> None:
        tensors = self.ledger.tensors
        ordered = sorted(
            gaps, key=lambda gap: (gap.number >= ALONE, gap.last - gap.first, -tensors[gap.tensor].bytes, gap.first, gap.tensor)
        )
        between = by_tensor(gap for gap in gaps if gap.number < ALONE)
        together = sorted(between.items(), key=lambda item: _life(tensors[item[0]], item[1]))
        for attempt in range(ROUNDS):
            least = 1 if attempt == 0 else 0
            better = [
                self.attempt(gap.tensor, self._kept(gap) | {gap.number}, least)
                for gap in counted(ordered, "search of tensors that stay on chip")
            ]
            better += [
                self.attempt(tensor, self.ledger.kept.get(tensor, NONE).union(numbers), least)
                for tensor, numbers in together
                if len(numbers) > 1
            ]
            better += [self.attempt(gap.tensor, self._kept(gap) - {gap.number}) for gap in reversed(ordered)]
            if attempt and not any(better):
                return

    def _kept(self, gap: Gap) -> frozenset[int]:
        return self.ledger.kept.get(gap.tensor, NONE)

    def exhaust(self, gaps: Sequence[Gap]) -> bool:
        """The best of all subsets, by branch and bound; whether all branches could be looked at."""
        incumbent = _Incumbent(total(self.costs))
        self._branch(gaps, 0, (), incumbent)
        self.ended = 0 < self.effort < incumbent.branches
        if incumbent.kept is None:
            return incumbent.branches <= self.most_branches
        for tensor in by_tensor(gaps):
            self.ledger.change(tensor, NONE)
        _keep(self.ledger, incumbent.kept)
        for work in range(self.ledger.works):
            state = self.ledger.state(work)
            self._take(work, state, self._feasible(work, state))
        return incumbent.branches <= self.most_branches

    def _branch(self, gaps: Sequence[Gap], depth: int, kept: tuple[Gap, ...], incumbent: _Incumbent) -> None:
        """`depth` gaps are decided; the others count as kept, without room, in the bound of a branch."""
        incumbent.branches += 1
        if incumbent.branches > self.most_branches:
            return
        undecided = Ledger(self.ledger.tensors, self.ledger.works)
        decided = Ledger(self.ledger.tensors, self.ledger.works)
        if not _keep(decided, kept) or decided.occupied.max(initial=0) > self.capacity:
            return
        _keep(undecided, (*kept, *gaps[depth:]))
        states = [undecided.state(work)._replace(occupied_bytes=int(decided.occupied[work])) for work in range(decided.works)]
        costs = [self.cost_of.cost(work, state) for work, state in enumerate(states)]
        feasible = [cost for cost in costs if cost is not None]
        if len(feasible) < len(costs) or total(feasible) >= incumbent.cost:
            return
        if depth == len(gaps):
            incumbent.cost, incumbent.kept = total(feasible), kept
            return
        self._branch(gaps, depth + 1, (*kept, gaps[depth]), incumbent)
        self._branch(gaps, depth + 1, kept, incumbent)


def _keep(ledger: Ledger, gaps: Sequence[Gap]) -> bool:
    """Keeps all of these gaps that can begin; whether all could."""
    complete = True
    for gap in sorted(gaps, key=lambda gap: (gap.tensor, gap.number % ALONE, gap.number)):
        complete &= ledger.change(gap.tensor, ledger.kept.get(gap.tensor, NONE) | {gap.number})
    return complete


def _life(tensor: Tensor, gaps: Sequence[int]) -> int:
    return sum(tensor.accesses[gap + 1].work - tensor.accesses[gap].work for gap in gaps)
