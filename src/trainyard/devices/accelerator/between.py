"""What stays on chip between the Works of a step (`reuse="layers"`): costs for `mapping.between_layers`.

A kept tensor takes its bytes of the scratchpad; the tiles of a Work share the rest. Its tiles need no room of their own. An operand
that is loaded and stays is read once, and the cycles are at most those of reading it with every tile. Sums of a result that stays
are kept in its place where they fit there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from trainyard.devices.accelerator.costs import Costing
from trainyard.errors import BadInput
from trainyard.ir import DeviceCost, Step, Work
from trainyard.ir.protocols import Divisible
from trainyard.mapping.bands import Band
from trainyard.mapping.between_layers.accesses import tensors_of
from trainyard.mapping.between_layers.search import Choice, Cost, choose, total
from trainyard.mapping.demand import Demand, NoDemand, OnChip, PlainDemand, Policy, ProductDemand, Residency, StreamDemand
from trainyard.mapping.profile import RAW, plain_demand, profile, works
from trainyard.mapping.works import is_exchange
from trainyard.masks.dma import Densities

Sets = tuple[int, OnChip]
"""A Work and what it finds on chip, whatever room that takes."""


EXCHANGE = NoDemand(ops=1, why="exchange")
"""What the system does, not the device."""


@dataclass(slots=True)
class _Rooms:
    """The costs of one demand by the bytes that others take; a cost that two of them share holds in between."""

    occupied: list[int] = field(default_factory=list)
    costs: list[Cost | None] = field(default_factory=list)

    def find(self, occupied: int) -> tuple[int, bool]:
        """Where a number of bytes belongs, and whether its cost is known there."""
        place = bisect_left(self.occupied, occupied)
        if place < len(self.occupied) and self.occupied[place] == occupied:
            return place, True
        if place and self.costs[place - 1] is None:  # even more room was too little
            return place - 1, True
        return place, 0 < place < len(self.occupied) and self.costs[place - 1] == self.costs[place]

    def put(self, occupied: int, cost: Cost | None) -> None:
        place = bisect_left(self.occupied, occupied)
        if place == len(self.occupied) or self.occupied[place] != occupied:
            self.occupied.insert(place, occupied)
            self.costs.insert(place, cost)

    def same(self, occupied: int) -> tuple[int, int]:
        """The range of bytes with the cost that is known at `occupied`."""
        place, _ = self.find(occupied)
        low = high = place
        while low and self.costs[low - 1] == self.costs[place]:
            low -= 1
        while high + 1 < len(self.costs) and self.costs[high + 1] == self.costs[place]:
            high += 1
        return self.occupied[low], self.occupied[high]


class WorkCosts:
    """Costs of the Works of a step by what they find on chip; equal demands share them."""

    def __init__(
        self,
        step: Step,
        ordered: Sequence[Work],
        policy: Policy,
        costing: Costing,
        band: Band | None = None,
        rooms: dict[PlainDemand, _Rooms] | None = None,
    ) -> None:
        self.step, self.works, self.policy, self.costing, self.band = step, ordered, policy, costing, band
        self.rooms: dict[PlainDemand, _Rooms] = {} if rooms is None else rooms
        self.demands: dict[Sets, tuple[PlainDemand, _Rooms]] = {}

    def cost(self, work: int, state: OnChip) -> Cost | None:
        demand, rooms = self._known(work, state)
        place, found = rooms.find(state.occupied_bytes)
        if not found:
            self._measure(demand, rooms, state.occupied_bytes)
            place, _ = rooms.find(state.occupied_bytes)
        return rooms.costs[place]

    def demand(self, work: int, state: OnChip) -> PlainDemand:
        return self._known(work, state)[0]

    def same(self, work: int, state: OnChip) -> tuple[int, int]:
        return self._known(work, state)[1].same(state.occupied_bytes)

    def _known(self, work: int, state: OnChip) -> tuple[PlainDemand, _Rooms]:
        sets = work, state._replace(occupied_bytes=0)
        known = self.demands.get(sets)
        if known is None:
            exchange = is_exchange(self.step, self.works[work])
            demand = EXCHANGE if exchange else plain_demand(self.step, self.works[work], self.policy, on_chip=state, band=self.band)
            known = self.demands[sets] = demand, self.rooms.setdefault(demand, _Rooms())
        return known

    def _measure(self, demand: PlainDemand, rooms: _Rooms, occupied: int) -> None:
        """The cost with so many bytes taken, with none, and with as many as leave room for the tiles that were found."""
        if occupied and not rooms.occupied:
            self._measure(demand, rooms, 0)
        costing = self.costing.beside(occupied)
        cost, most = None, occupied
        with suppress(BadInput):
            if isinstance(demand, ProductDemand) and self._by_tiles:
                cost, tiles_bytes = _product(costing, demand)
                most = max(occupied, math.floor(2 * (self.costing.supply.resident_bytes - tiles_bytes)))
            else:
                (whole,) = costing.costs((demand,))
                cost = Cost(whole.cycles, sum(whole.bytes.values()))
                if isinstance(demand, NoDemand) or (isinstance(demand, StreamDemand) and demand.again is None):
                    most = max(occupied, math.floor(2 * self.costing.supply.resident_bytes))
        rooms.put(occupied, cost)
        rooms.put(most, cost)

    @property
    def _by_tiles(self) -> bool:
        plain = self.costing.schedule.reuse == "step" and self.costing.on_chip is None
        return plain and not isinstance(self.costing.array, Divisible)


def _product(costing: Costing, demand: ProductDemand) -> tuple[Cost, float]:
    """`Costing.costs` of a product, without its events, and the scratchpad bytes of a step's tiles."""
    (tiled,) = costing.searched([demand.problem])
    op, rates = demand.problem.op, demand.problem.sram_rates
    m, n, k = min(tiled.tiling.m, op.M), min(tiled.tiling.n, op.N), min(tiled.tiling.k, op.K)
    tiles_bytes = m * k * rates[0] + k * n * rates[1] + m * n * rates[2]
    a_stays, b_stays = demand.loaded_bytes
    a_read = tiled.a_read if a_stays is None else demand.problem.a_bytes
    b_read = tiled.b_read if b_stays is None else demand.problem.b_bytes
    moved = sum(move.size for moves in demand.drained for move in moves)
    vector = -(-demand.vector_operations // costing.vector_lanes)
    cost = Cost(max(tiled.cycles, vector), a_read + b_read + moved + tiled.spill_write + tiled.spill_read)
    return cost, tiles_bytes


def chosen_between(
    step: Step, policy: Policy, costing: Costing, scratchpad_bytes: int, *, slices: bool = False
) -> tuple[Policy, Mapping[Demand, DeviceCost]]:
    """The policy for a step, with tensors that stay between its Works if that takes less time; and what was costed."""
    kept, choice = kept_between(step, policy, costing, scratchpad_bytes)
    policies = [policy, kept]
    if slices:
        from trainyard.devices.accelerator.sliced import sliced_between

        sliced = sliced_between(step, policy, costing, scratchpad_bytes, choice)
        policies[1:1] = [sliced[0]] if sliced else []
    candidates = [(one, _costed(step, one, costing, RAW)) for one in dict.fromkeys(policies)]
    chosen, (costs, _) = min(candidates, key=lambda candidate: candidate[1][1])
    if choice.ended and chosen.residency is None:
        chosen = replace(policy, residency=Residency({}, ended=True))
    return chosen, costs


def better(step: Step, policies: Sequence[Policy], costing: Costing, zeros: Densities) -> Policy:
    """The policy under which a step takes least time with tensors that a DMA engine compresses."""
    return min(policies, key=lambda policy: _costed(step, policy, costing, zeros)[1])


def _costed(step: Step, policy: Policy, costing: Costing, zeros: Densities) -> tuple[dict[Demand, DeviceCost], Cost]:
    """The costs of a step's demands, and those of all Works together."""
    demands = profile(step, policy, zeros)
    costs = costing.costs(demands.demands)
    each = [Cost(costs[number].cycles, sum(costs[number].bytes.values())) for number in demands.number.values()]
    return dict(zip(demands.demands, costs, strict=True)), total(each)


def kept_between(step: Step, policy: Policy, costing: Costing, scratchpad_bytes: int) -> tuple[Policy, Choice]:
    """The policy with the tensors of a step that are worth keeping between its Works."""
    ordered = works(step, policy)
    costs, effort = WorkCosts(step, ordered, policy, costing), costing.goal.effort
    choice = choose(tensors_of(step, ordered, policy), len(ordered), costs, scratchpad_bytes, effort)
    if not choice.states:
        return policy, choice
    residency = Residency({ordered[work].ops: state for work, state in choice.states.items()}, choice.ended)
    return replace(policy, residency=residency), choice
