"""What demands cost on an array behind a scratchpad: cycles, bytes, events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainyard.devices.demand import Demand, FusedDemand, Move, NoDemand, ProductDemand, StreamDemand, TogetherDemand
from trainyard.devices.masked import add_events, guides, tile_cost
from trainyard.devices.together import Costs, Shares, adjusted, divisible, fastest, merged, parts, several
from trainyard.errors import BadInput
from trainyard.ir import DTYPE_BYTES, Array, DeviceCost, Direction, Masks, MatMul, Step, Work
from trainyard.mapping.tiling import Supply, Tiled, Tiling, search
from trainyard.mapping.walk import walk
from trainyard.mapping.works import apart
from trainyard.parts.folds import Folds
from trainyard.parts.operands import letter_of

PORTS = ("scratchpad_read", "scratchpad_write", "local_read", "local_write")
"""What an array counts in elements by operand: `scratchpad_read_a`, `local_write_out`."""
CostOf = Callable[["Costing", int], DeviceCost]
"""What one of several products costs on a device of these sizes."""


@dataclass(slots=True)
class Traffic:
    """What moves between DRAM and scratchpad: bytes over the pins by tensor, and what they are on chip, where they may be more."""

    bytes: dict[tuple[str, Direction], int] = field(default_factory=dict)
    events: dict[str, float] = field(
        default_factory=lambda: {"dram_read": 0.0, "dram_write": 0.0, "scratchpad_write": 0.0, "scratchpad_read": 0.0}
    )

    def add(self, move: Move) -> None:
        """Every DRAM byte also crosses the scratchpad's port once, expanded; a spill goes out and comes back."""
        if not move.size:
            return
        key = move.label, move.direction
        self.bytes[key] = self.bytes.get(key, 0) + move.size
        comes = {"read": 1.0, "write": 0.0, "spill": 0.5}[move.direction]
        self.events["dram_read"] += move.size * comes
        self.events["dram_write"] += move.size * (1.0 - comes)
        self.events["scratchpad_write"] += move.held * comes
        self.events["scratchpad_read"] += move.held * (1.0 - comes)

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Costing:
    """The sizes of a device that costs depend on."""

    array: Array
    supply: Supply
    vector_lanes: int
    tile: tuple[int, int, int] | None = None

    def costs(self, demands: Sequence[Demand]) -> list[DeviceCost]:
        """Each demand's cost; the tiles of all products are searched in one go."""
        products = [demand for demand in demands if isinstance(demand, ProductDemand)]
        tiled = iter(search([demand.problem for demand in products], self.array, self.supply, self.tile))
        found: list[DeviceCost] = []
        for demand in demands:
            match demand:
                case ProductDemand():
                    found.append(self._whole(demand, next(tiled)))
                case TogetherDemand():
                    found.append(self._together(demand.products))
                case StreamDemand():
                    found.append(self._stream(demand))
                case FusedDemand():
                    found.append(self._fused(demand))
                case NoDemand():
                    found.append(DeviceCost(cycles=0, compute_cycles=0, bytes={}, share=shares([0] * demand.ops), bound=demand.why))
        return found

    def masked(self, step: Step, work: Work, demand: Demand, masks: Masks) -> DeviceCost | None:
        """A product whose tiles the array looks at one by one; None for any other demand."""
        if isinstance(demand, TogetherDemand):
            works = apart(step, work)
            return self._together(
                demand.products, lambda costing, which: costing._looked_at(step, works[which], demand.products[which], masks)
            )
        if not isinstance(demand, ProductDemand):
            return None
        op = step.ops[work.ops[0]]
        if divisible(self.array) and demand.problem.op.count > 1 and not any(letter_of(step, op, side) for side in (0, 1)):
            return None  # heads: no masks, and perhaps several at once
        return self._looked_at(step, work, demand, masks)

    def _looked_at(self, step: Step, work: Work, demand: ProductDemand, masks: Masks) -> DeviceCost:
        op = step.ops[work.ops[0]]
        likely = guides(self.array, step, op, masks)
        (planned,) = search([demand.problem], self.array, self.supply, self.tile, likely)
        events: dict[str, float] = {}
        compute = tile_cost(self.array, step, op, demand.grad_input, masks, events)
        tiled = walk(demand.problem, planned.tiling, self.supply, compute)
        return replace(self._product(demand, tiled, events), uncertainty=compute.uncertainty)

    def _together(self, products: Sequence[ProductDemand], looked_at: CostOf | None = None) -> DeviceCost:
        """Side by side on parts of the array, or one after another where that is not slower (`devices.together`).

        The division is that of dense products; where `looked_at` costs them by their zeros, it is adjusted to these.
        """
        whole = self.costs(products) if looked_at is None else [looked_at(self, which) for which in range(len(products))]
        alone = merged(whole, beside=False)
        if not divisible(self.array) or len(products) != 2:
            return alone
        found = fastest(self.array, lambda shares: self._divided(products, shares))
        costs = found and found[1]
        if found and looked_at is not None:
            costs = adjusted(found[0], lambda shares: self._divided(products, shares, looked_at))
        beside = costs and merged(costs, beside=True)
        return beside if beside and beside.cycles < alone.cycles else alone

    def _divided(self, products: Sequence[ProductDemand], shares: Shares, looked_at: CostOf | None = None) -> Costs | None:
        """Each product on its share of everything; None where a tile of one of them has no room."""
        assert divisible(self.array)
        pieces = parts(self.array, self.supply, self.vector_lanes, shares)
        costings = [replace(self, array=p.array, supply=p.supply, vector_lanes=p.vector_lanes) for p in pieces]
        each = looked_at or (lambda costing, which: costing.costs((products[which],))[0])
        try:
            return [each(costing, which) for which, costing in enumerate(costings)]
        except BadInput:
            return None

    def _compute(self, op: MatMul) -> int:
        """A product whose operands are on chip already; closed forms count without the closing -1 of a whole op."""
        if divisible(self.array) and op.count > 1:
            return self.array.cost(op).cycles
        forms: Sequence[Folds] = getattr(self.array, "folds", ())
        return min((form.cycles(op.M, op.N, op.K) for form in forms), default=0) * op.count or self.array.cost(op).cycles

    def _transfer(self, size: float) -> int:
        return self.supply.latency_cycles + math.ceil(size / self.supply.bytes_per_cycle) if size > 0 else 0

    def _whole(self, demand: ProductDemand, tiled: Tiled) -> DeviceCost:
        """Without a look at zeros: tile by tile, or, of many small products, several at once where that is faster."""
        op, size = demand.problem.op, 1
        cut = self.tile is not None and any(t < d for t, d in zip(self.tile, (op.M, op.N, op.K), strict=True))
        if divisible(self.array) and op.count > 1 and not cut:
            found = [(tiled, 1), *several(demand.problem, self.array, self.supply)]
            tiled, size = min(found, key=lambda one: one[0].cycles)
        return self._product(demand, tiled, self._tile_events(op, tiled.tiling, size))

    def _product(self, demand: ProductDemand, tiled: Tiled, events: Mapping[str, float]) -> DeviceCost:
        traffic, problem, spilled = Traffic(), demand.problem, tiled.spill_write + tiled.spill_read
        traffic.add(Move(demand.labels[0], "read", tiled.a_read, _expanded(tiled.a_read, problem.a_bytes, problem.a_held_bytes)))
        traffic.add(Move(demand.labels[1], "read", tiled.b_read, _expanded(tiled.b_read, problem.b_bytes, problem.b_held_bytes)))
        for moves in demand.drained:
            for move in moves:
                traffic.add(move)
        traffic.add(Move(demand.labels[2], "spill", spilled, spilled))
        vector = -(-demand.vector_operations // self.vector_lanes)
        cycles = max(tiled.cycles, vector)
        dram = math.ceil(tiled.dram_bytes / self.supply.bytes_per_cycle)
        bound = _bound(compute=tiled.compute_cycles, dram=dram, vector=vector)
        waiting = max(0, cycles - tiled.compute_cycles) / max(1, tiled.dram_bytes)  # an epilogue's bytes hide behind the array
        weights = [sum(move.size for move in moves) * waiting for moves in demand.drained]
        weights[0] = cycles - sum(weights[1:])
        return DeviceCost(
            cycles=cycles,
            compute_cycles=tiled.compute_cycles,
            bytes=traffic.bytes,
            share=shares(weights),
            events=_events(events, demand, traffic),
            bound=bound,
        )

    def _tile_events(self, op: MatMul, tiling: Tiling, size: int = 1) -> dict[str, float]:
        """What the array does in all tiles of a product; along each axis they have one size, and maybe another at the end.

        An array that can be divided is asked for as many of the op's products as share a step, others for all in a row.
        """
        events: dict[str, float] = {}
        together = size if divisible(self.array) else op.count
        for (m, rows), (n, columns), (k, deep) in itertools.product(
            _sizes(op.M, tiling.m), _sizes(op.N, tiling.n), _sizes(op.K, tiling.k)
        ):
            tile = MatMul(m, n, k, together)
            counted, alike = self.array.cost(tile).events, rows * columns * (op.count // together)
            first = 1 if k == min(op.K, tiling.k) else 0  # along the reduction, the tile that begins the sums
            if first:
                add_events(events, counted, tile, begun=False, times=alike)
            if deep > first:
                add_events(events, counted, tile, begun=True, times=alike * (deep - first))
        return events

    def _stream(self, demand: StreamDemand) -> DeviceCost:
        traffic = Traffic()
        for move in demand.moves:
            traffic.add(move)
        if demand.again is not None and demand.row_bytes > self.supply.resident_bytes:
            traffic.add(demand.again)
        vector, dram = -(-demand.vector_operations // self.vector_lanes), self._transfer(traffic.total)
        return DeviceCost(
            cycles=max(1, dram, vector),
            compute_cycles=vector,
            bytes=traffic.bytes,
            share=(1.0,),
            events={"vector_op": demand.vector_operations, **traffic.events},
            bound=_bound(compute=0, dram=dram, vector=vector),
        )

    def _fused(self, demand: FusedDemand) -> DeviceCost:
        """Array, vector unit and DRAM work side by side on a kernel that never leaves the chip in between."""
        traffic = Traffic()
        for move in demand.moves:
            traffic.add(move)
        parts = max(1, math.ceil(demand.item_bytes / self.supply.resident_bytes))
        for move in demand.again:
            traffic.add(move._replace(size=move.size * (parts - 1), held=move.held * (parts - 1)))
        cycles_of = [0 if op is None else self._compute(op) for op in demand.products]
        vectors = [-(-operations // self.vector_lanes) for operations in demand.vector_operations]
        events: dict[str, float] = {"vector_op": sum(demand.vector_operations), **traffic.events}
        for op in demand.products:
            if op is not None:
                size = DTYPE_BYTES[demand.number]
                _count_array(events, self.array.cost(op).events, (size, size, size), demand.number)
        compute, vector, dram = sum(cycles_of), sum(vectors), self._transfer(traffic.total)
        return DeviceCost(
            cycles=max(1, compute, vector, dram),
            compute_cycles=compute,
            bytes=traffic.bytes,
            share=shares([cycles + vector for cycles, vector in zip(cycles_of, vectors, strict=True)]),
            events=events,
            bound=_bound(compute=compute, dram=dram, vector=vector),
        )


def _sizes(extent: int, size: int) -> list[tuple[int, int]]:
    """Sizes of the tiles along an axis, and how many there are of each.

    >>> _sizes(10, 4), _sizes(8, 4), _sizes(3, 4)
    ([(4, 2), (2, 1)], [(4, 2)], [(3, 1)])
    """
    size = min(size, extent)
    whole, rest = divmod(extent, size)
    return [(size, whole), *([(rest, 1)] if rest else [])]


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights as parts of 1 that add up to exactly 1; all to the first where there are none.

    >>> shares([2, 1, 1]), sum(shares([1, 1, 1])), shares([0, 0])
    ((0.5, 0.25, 0.25), 1.0, (1.0, 0.0))
    """
    total = float(sum(weights))
    if total <= 0:
        return (1.0, *[0.0] * (len(weights) - 1))
    parts = [weight / total for weight in weights[:-1]]
    return (*parts, 1.0 - sum(parts))


def _expanded(moved: int, size: int, held: int | None) -> int:
    """What an operand is on chip that goes through as often as `moved` holds its `size`."""
    return moved if held is None or not size else moved * held // size


def _bound(**cycles: int) -> str:
    return max(cycles, key=lambda name: cycles[name])


def _count_array(events: dict[str, float], counted: Mapping[str, float], sizes: tuple[int, int, int], number: str) -> None:
    """An array's own events: elements at the ports of scratchpads become bytes, MACs are kept by their format as well.

    The scratchpad is the device's; `local` ones belong to the array.
    """
    operands = {"a": sizes[0], "b": sizes[1], "out": 4}
    for name, count in counted.items():
        target, _, operand = name.rpartition("_")
        if target not in PORTS or operand not in operands:
            target, operand = name, ""
        size = operands.get(operand, 1)
        events[target] = events.get(target, 0.0) + count * size
    kept = f"mac_{number}"
    events[kept] = events.get(kept, 0.0) + counted.get("mac", 0.0)


def _events(counted: Mapping[str, float], demand: ProductDemand, traffic: Traffic) -> dict[str, float]:
    events: dict[str, float] = {"vector_op": demand.vector_operations, **traffic.events}
    _count_array(events, counted, demand.element_bytes, demand.number)
    return events
