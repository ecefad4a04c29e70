"""What demands cost on an array behind a scratchpad: cycles, bytes, events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainyard.devices.accelerator.chained import chained, in_turn
from trainyard.devices.accelerator.choices import TileChoice
from trainyard.devices.accelerator.counting import Traffic, added, bound_of, count_array, events_of, expanded, shares, sizes
from trainyard.devices.accelerator.masked_tiles import TileCosts as SeenTiles
from trainyard.devices.accelerator.masked_tiles import add_events, guides
from trainyard.devices.accelerator.ordered import Costs as TileCosts
from trainyard.devices.accelerator.ordered import Orderly, Schedule
from trainyard.devices.accelerator.side_by_side import (
    Costs,
    Division,
    Shares,
    adjusted,
    divisions,
    merged,
    parts,
    repeated,
    several,
    units,
)  # fmt: skip
from trainyard.devices.accelerator.sparse_tiles import SparseTileSearch, TileCounts, known_share, layout_slowdown, tile_counts
from trainyard.devices.accelerator.sparse_tiles import fastest as fastest_tiling
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DTYPE_BYTES, Array, DeviceCost, Masks, MatMul, Op, Step, Work
from trainyard.ir.folds import Folds, Pooled
from trainyard.ir.protocols import Divisible, HasClosedForm
from trainyard.ir.step import letter_of
from trainyard.mapping.demand import (
    ChainDemand,
    Demand,
    FusedDemand,
    KeptDemand,
    Move,
    NoDemand,
    PairDemand,
    ProductDemand,
    SlicedDemand,
    StreamDemand,
    TogetherDemand,
)
from trainyard.mapping.gradient_order.search import EFFORT, EFFORT_FOR_TRAFFIC
from trainyard.mapping.gradient_order.works import split_layers
from trainyard.mapping.levels.array import LeveledArray, OnChip
from trainyard.mapping.tiling import FASTEST, Goal, Problem, Size, Supply, Tiled, Tiling, search
from trainyard.mapping.works import separate_products
from trainyard.progress import counted

FRONT = (
    ("time", 0.0),
    ("time", 0.01),
    ("time", 0.03),
    ("time", 0.1),
    ("time", 0.3),
    ("time", 0.99),
    ("traffic", 0.1),
    ("traffic", 0.0),
)
"""Goals between the least time and the least traffic: what is to be least, and how much more of it may be taken for the other."""
CostOf = Callable[["Costing", int], DeviceCost]
"""What one of several products costs on a device of these sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costing:
    """The sizes of a device that costs depend on."""

    array: Array
    supply: Supply
    vector_lanes: int
    tile: tuple[int, int, int] | None = None
    schedule: Schedule = field(default_factory=Schedule)
    goal: Goal = FASTEST
    value: Callable[[DeviceCost], float] | None = None
    """What is to be least where only the events of a cost tell it (energy): of a front of goals, the best cost is taken."""
    on_chip: OnChip | None = None
    """Memory levels inside the scratchpad, and the width of its port; None where the array reads the scratchpad without waiting."""

    def costs(self, demands: Sequence[Demand]) -> list[DeviceCost]:
        """Each demand's cost; the tiles of all products are searched in one go, also of those that a pair may leave apart."""
        if self.value is not None:
            fronts = zip(*(costing.costs(demands) for costing in self._front), strict=True)
            return [min(front, key=self.value) for front in fronts]
        if self.on_chip is not None:
            return [self._behind_levels(self.on_chip, demand).costs((demand,))[0] for demand in demands]
        orderly = self.schedule.reuse != "step"
        pairs_of = [demand for demand in demands if isinstance(demand, PairDemand)]
        products = [product for demand in pairs_of if self._may_stay_apart(demand) for product in (demand.dx, demand.dw)]
        products += [demand for demand in demands if isinstance(demand, ProductDemand) and not orderly]
        tiled = iter(self.searched([demand.problem for demand in products]))
        paired = [
            self._pair(demand, (next(tiled), next(tiled)) if self._may_stay_apart(demand) else None)
            for demand in counted(pairs_of, "gradient pairs")
        ]
        pairs = iter(paired)
        costs_of_demands: list[DeviceCost] = []
        divided = iter(self._divisions([demand.products for demand in demands if isinstance(demand, TogetherDemand)]))
        sliced = [part for demand in demands if isinstance(demand, SlicedDemand) for _, part in demand.parts]
        kept = self._kept([*(demand for demand in demands if isinstance(demand, KeptDemand)), *sliced])
        for demand in demands:
            match demand:
                case ProductDemand():
                    costs_of_demands.append(self.orderly.product(demand) if orderly else self._whole(demand, next(tiled)))
                case PairDemand():
                    costs_of_demands.append(next(pairs))
                case ChainDemand():
                    each = self.costs((demand.upper, demand.lower, *demand.beside))
                    costs_of_demands.append(chained(self.orderly, demand, in_turn(each)))
                case TogetherDemand():
                    costs_of_demands.append(self._together(demand.products, next(divided)))
                case StreamDemand():
                    costs_of_demands.append(self._stream(demand))
                case FusedDemand():
                    costs_of_demands.append(self._fused(demand))
                case KeptDemand():
                    costs_of_demands.append(kept[demand])
                case SlicedDemand():
                    costs_of_demands.append(repeated([(times, kept[part]) for times, part in demand.parts]))
                case NoDemand():
                    costs_of_demands.append(
                        DeviceCost(cycles=0, compute_cycles=0, bytes={}, share=shares([0] * demand.ops), bound=demand.why)
                    )
        return costs_of_demands

    @property
    def _front(self) -> list[Costing]:
        """The same device with goals from the least time to the least traffic."""
        goals = [replace(self.goal, objective=name, tolerance=most) for name, most in FRONT]  # type: ignore[arg-type]  # objectives
        return [replace(self, value=None, goal=goal) for goal in goals]

    def beside(self, occupied_bytes: int) -> Costing:
        """With so much of the scratchpad taken by tensors that are kept between Works."""
        return replace(self, supply=replace(self.supply, resident_bytes=self.supply.resident_bytes - occupied_bytes / 2))

    def _kept(self, demands: Sequence[KeptDemand]) -> dict[KeptDemand, DeviceCost]:
        """Demands with the same room left for tiles are costed in one go."""
        by_room: dict[int, list[KeptDemand]] = {}
        for demand in dict.fromkeys(demands):
            by_room.setdefault(demand.occupied_bytes, []).append(demand)
        return {
            demand: cost
            for occupied, group in by_room.items()
            for demand, cost in zip(group, self.beside(occupied).costs([demand.inner for demand in group]), strict=True)
        }

    def _behind_levels(self, on_chip: OnChip, demand: Demand) -> Costing:
        """The same device with its array behind levels, which hold elements of this demand's sizes."""
        asked = demand.parts[0][1] if isinstance(demand, SlicedDemand) else demand
        asked = asked.inner if isinstance(asked, KeptDemand) else asked
        sizes = asked.element_bytes if isinstance(asked, ProductDemand) else (4, 4, 4)
        if isinstance(asked, FusedDemand):
            sizes = (DTYPE_BYTES[asked.number] * asked.packed,) * 3
        return replace(self, array=on_chip.around(self.array, sizes), on_chip=None)

    def searched(self, problems: Sequence[Problem]) -> list[Tiled]:
        """The best tiles of products on this array."""
        return search(problems, self.array, self.supply, self.tile, goal=self.goal)

    def masked(self, step: Step, work: Work, demand: Demand, masks: Masks) -> DeviceCost | None:
        """A product whose tiles the array looks at one by one; None for any other demand."""
        if self.value is not None:
            costs = [costing.masked(step, work, demand, masks) for costing in self._front]
            return min((cost for cost in costs if cost is not None), key=self.value, default=None)
        if isinstance(demand, KeptDemand):
            return self.beside(demand.occupied_bytes).masked(step, work, demand.inner, masks)
        if self.on_chip is not None:
            raise NotModelled(
                f"{type(self.array).__name__} looks at the zeros of each tile, and levels cut tiles further: give no masks, or no "
                "levels and no scratchpad_width"
            )
        if isinstance(demand, ProductDemand | FusedDemand) and demand.packed > 1:
            raise NotModelled("rates put several numbers into one multiplier, masks tell them apart: give rates={} or no masks")
        if isinstance(demand, TogetherDemand):
            works = separate_products(step, work)
            return self._masked_together(
                demand.products, lambda costing, which: costing._looked_at(step, works[which], demand.products[which], masks)
            )
        if isinstance(demand, PairDemand):
            works = separate_products(step, work)
            return self._pair_seen(
                demand,
                lambda which: self._tiles_seen(step, works[which], (demand.dx, demand.dw)[which], masks),
                lambda costing, which: costing._looked_at(step, works[which], (demand.dx, demand.dw)[which], masks),
            )
        if isinstance(demand, ChainDemand):  # zeros are looked at layer by layer
            layers = zip(split_layers(step, work), (demand.upper, demand.lower, *demand.beside), strict=True)
            return in_turn([self.masked(step, one, part, masks) or self.costs((part,))[0] for one, part in layers])
        if not isinstance(demand, ProductDemand):
            return None
        op = step.ops[work.ops[0]]
        if (
            isinstance(self.array, Divisible)
            and demand.problem.op.count > 1
            and not any(letter_of(step, op, side) for side in (0, 1))
        ):
            return None  # heads: no masks, and perhaps several at once
        return self._looked_at(step, work, demand, masks)

    @property
    def orderly(self) -> Orderly:
        lean = self.goal.objective == "traffic"
        return Orderly(
            array=self.array, supply=self.supply, vector_lanes=self.vector_lanes, tile=self.tile, schedule=self.schedule,
            tolerance=self.goal.tolerance, effort=self.goal.effort or (EFFORT_FOR_TRAFFIC if lean else EFFORT),
            objective="traffic" if lean else "time",
        )  # fmt: skip

    def _may_stay_apart(self, demand: PairDemand) -> bool:
        """Whether dX and dW of a pair may also follow each other, each with tiles of its own."""
        return self.schedule.order == "cost" and self.schedule.reuse == "step" and not demand.is_constrained

    def _pair(self, demand: PairDemand, apart: tuple[Tiled, Tiled] | None) -> DeviceCost:
        """dX and dW in the best order, or, where that is faster, one after the other with tiles of their own (`apart`).

        The cycles apart are known first: a search that cannot end below them is short.
        """
        if apart is None:
            return self.orderly.pair(demand.dx, demand.dw)
        products, alone = tuple(zip((demand.dx, demand.dw), apart, strict=True)), None
        if isinstance(self.array, Divisible):
            alone = merged([self._whole(product, tiled) for product, tiled in products], beside=False)
        if self.goal.objective == "traffic":
            alone = merged([self._whole(product, tiled) for product, tiled in products], beside=False)
            paired = self.orderly.pair_within(demand.dx, demand.dw, math.inf)
            return alone if paired is None or self._moves_as_little(alone, paired) else paired
        vectors = (-(-product.vector_operations // self.vector_lanes) for product, _ in products)
        cycles = alone.cycles if alone else sum(map(max, vectors, (tiled.cycles for _, tiled in products)))
        paired = self.orderly.pair_within(demand.dx, demand.dw, cycles)
        if paired is not None and paired.cycles <= cycles:
            return paired
        return alone or merged([self._whole(product, tiled) for product, tiled in products], beside=False)

    def _moves_as_little(self, alone: DeviceCost, paired: DeviceCost) -> bool:
        """Whether two products move, within the tolerance, no more bytes alone than in turn: their own tiles take less energy."""
        least = min(sum(cost.bytes.values()) for cost in (alone, paired))
        return sum(alone.bytes.values()) <= least * (1 + self.goal.tolerance)

    def _pair_seen(self, demand: PairDemand, seen: Callable[[int], TileCosts], looked_at: CostOf) -> DeviceCost:
        """dX and dW with the zeros in their tiles, in the order that the schedule says; `cost` may also leave them apart."""
        paired = self.orderly.pair(demand.dx, demand.dw, lambda: (*seen(0), *seen(1)))
        if not self._may_stay_apart(demand):
            return paired
        alone = merged([looked_at(self, which) for which in (0, 1)], beside=False)
        if self.goal.objective == "traffic":
            return alone if self._moves_as_little(alone, paired) else paired
        return alone if alone.cycles < paired.cycles else paired

    def _tiles_seen(self, step: Step, work: Work, demand: ProductDemand, masks: Masks) -> TileCosts:
        from trainyard.devices.accelerator.structured import tile_cost

        return (tile_cost(self.array, step, step.ops[work.ops[0]], demand.grad_input, masks, {}),)

    def _looked_at(self, step: Step, work: Work, demand: ProductDemand, masks: Masks) -> DeviceCost:
        op = step.ops[work.ops[0]]
        if self.schedule.reuse != "step":
            masked = any(letter_of(step, op, side) for side in (0, 1))
            return self.orderly.product(demand, (lambda: self._tiles_seen(step, work, demand, masks)) if masked else None)
        from trainyard.devices.accelerator.structured import stored

        demand = stored(self.array, step, op, demand, masks)
        problem, key = demand.problem, (work.ops[0], demand.grad_input, self.array)
        known = tile_counts(step, masks)
        views, likely = known.get(key, lambda: self._views(step, op, demand, masks))
        left, right = (known_share(view(0, (0, 1), (0, 1))) for view in (views.left, views.right))
        choice = SparseTileSearch(array=self.array, supply=self.supply, tile=self.tile, goal=self.goal)
        slowdown = layout_slowdown(self.array, views)
        cycles_of: dict[Size, int] = known.get((self.array, left, right) if slowdown is None else (*key, "expected"), dict)

        def count(tiling: Tiling) -> TileCounts:
            return known.get((*key, problem.op, tiling), lambda: TileCounts.of(problem.op, tiling, views.fresh()))

        candidates = choice.candidates(problem, likely, left, right, cycles_of, slowdown)
        tiled, counts = fastest_tiling(problem, candidates, self.supply, count)
        return replace(self._product(demand, tiled, counts.events), uncertainty=counts.uncertainty)

    def _views(self, step: Step, op: Op, demand: ProductDemand, masks: Masks) -> tuple[SeenTiles, tuple[Pooled, ...]]:
        """The zeros of both operands, and closed forms that know their shares."""
        from trainyard.devices.accelerator.structured import tile_cost

        return tile_cost(self.array, step, op, demand.grad_input, masks, {}), guides(self.array, step, op, masks)

    def _together(self, products: Sequence[ProductDemand], division: Division | None) -> DeviceCost:
        """Side by side on parts of the array, or one after another where that is not slower (`side_by_side`)."""
        costs = None
        if division is not None and division.cycles < sum(self._product_cycles(products)):
            costs = self._divided(products, division.shares)
        return merged(self.costs(products), beside=False) if costs is None else merged(costs, beside=True)

    def _masked_together(self, products: Sequence[ProductDemand], looked_at: CostOf) -> DeviceCost:
        """The same where `looked_at` costs products by their zeros: the division is that of dense ones, adjusted to the zeros."""
        alone = merged([looked_at(self, which) for which in range(len(products))], beside=False)
        (division,) = self._divisions([products])
        costs = division and adjusted(division.shares, lambda shares: self._divided(products, shares, looked_at))
        beside = costs and merged(costs, beside=True)
        return beside if beside and beside.cycles < alone.cycles else alone

    def _divisions(self, works: Sequence[Sequence[ProductDemand]]) -> list[Division | None]:
        """The best division of the array between two products, of each Work; None where it cannot be divided or has no room."""
        pairs = [products for products in works if len(products) == 2]
        if not pairs or not isinstance(self.array, Divisible):
            return [None] * len(works)
        array, whole = self.array, units(self.array)

        def cycles(size: int, which: Sequence[int]) -> list[float]:
            pieces = parts(array, self.supply, self.vector_lanes, (size, whole - size))
            costings = [replace(self, array=p.array, supply=p.supply, vector_lanes=p.vector_lanes) for p in pieces]
            each = [costing._product_cycles([pairs[one][place] for one in which]) for place, costing in enumerate(costings)]
            return [max(first, second) for first, second in zip(*each, strict=True)]

        found = iter(divisions(whole, len(pairs), cycles))
        return [next(found) if len(products) == 2 else None for products in works]

    def _product_cycles(self, demands: Sequence[ProductDemand]) -> list[float]:
        """Cycles alone of several products, searched in one go; infinite where a tile has no room."""
        try:
            tiled = self.searched([demand.problem for demand in demands])
        except BadInput:
            return [math.inf] if len(demands) == 1 else [self._product_cycles([demand])[0] for demand in demands]
        pairs = zip(demands, tiled, strict=True)
        return [max(self._beside(d, t)[0].cycles, -(-d.vector_operations // self.vector_lanes)) for d, t in pairs]

    def _divided(self, products: Sequence[ProductDemand], shares: Shares, looked_at: CostOf | None = None) -> Costs | None:
        """Each product on its share of everything; None where a tile of one of them has no room."""
        assert isinstance(self.array, Divisible)
        pieces = parts(self.array, self.supply, self.vector_lanes, shares)
        costings = [replace(self, array=p.array, supply=p.supply, vector_lanes=p.vector_lanes) for p in pieces]
        each = looked_at or (lambda costing, which: costing.costs((products[which],))[0])
        try:
            return [each(costing, which) for which, costing in enumerate(costings)]
        except BadInput:
            return None

    def _compute(self, op: MatMul) -> int:
        """A product whose operands are on chip already; closed forms count without the closing -1 of a whole op.

        Several cores take equal products one by one, or rows of a single one.
        """
        if self.schedule.cores > 1:
            cores = min(self.schedule.cores, max(op.count, op.M))
            part = replace(op, count=-(-op.count // cores)) if op.count >= cores else replace(op, M=-(-op.M // cores))
            return replace(self, schedule=replace(self.schedule, cores=1))._compute(part)
        if isinstance(self.array, Divisible) and op.count > 1:
            return self.array.cost(op).cycles
        forms: Sequence[Folds] = self.array.folds if isinstance(self.array, HasClosedForm) else ()
        return min((form.cycles(op.M, op.N, op.K) for form in forms), default=0) * op.count or self.array.cost(op).cycles

    def _transfer(self, size: float) -> int:
        return self.supply.latency_cycles + math.ceil(size / self.supply.bytes_per_cycle) if size > 0 else 0

    def _whole(self, demand: ProductDemand, tiled: Tiled) -> DeviceCost:
        """Without a look at zeros: tile by tile, or, of many small products, several at once where that is faster."""
        tiled, size = self._beside(demand, tiled)
        return self._product(demand, tiled, self._tile_events(demand.problem.op, tiled.tiling, size), size)

    def _beside(self, demand: ProductDemand, tiled: Tiled) -> tuple[Tiled, int]:
        """The faster of the searched tiles and of several whole products in each step, and how many those are."""
        op = demand.problem.op
        cut = self.tile is not None and any(t < d for t, d in zip(self.tile, (op.M, op.N, op.K), strict=True))
        fixed = demand.problem.is_constrained or self.goal.objective != "time"
        if not isinstance(self.array, Divisible) or op.count == 1 or cut or fixed:
            return tiled, 1
        candidates = [(tiled, 1), *several(demand.problem, self.array, self.supply)]
        return min(candidates, key=lambda candidate: candidate[0].cycles)

    def _product(self, demand: ProductDemand, tiled: Tiled, events: Mapping[str, float], beside: int = 1) -> DeviceCost:
        traffic, problem = Traffic(), demand.problem
        a_stays, b_stays = demand.loaded_bytes
        if demand.loaded_bytes != (None, None):  # what is kept is read once; the cycles are those of reading it with every tile
            a_read = tiled.a_read if a_stays is None else problem.a_bytes
            b_read = tiled.b_read if b_stays is None else problem.b_bytes
            tiled = replace(tiled, a_read=a_read, b_read=b_read)
        spilled = tiled.spill_write + tiled.spill_read
        if problem.halo is not None:  # sums that two tiles add to
            spilled += tiled.out_moved - problem.out_bytes
        held = problem.a_sram_bytes if a_stays is None else a_stays, problem.b_sram_bytes if b_stays is None else b_stays
        traffic.add(Move(demand.labels[0], "read", tiled.a_read, expanded(tiled.a_read, problem.a_bytes, held[0])))
        traffic.add(Move(demand.labels[1], "read", tiled.b_read, expanded(tiled.b_read, problem.b_bytes, held[1])))
        for moves in demand.drained:
            for move in moves:
                traffic.add(move)
        traffic.add(Move(demand.labels[2], "spill", spilled, spilled))
        vector = -(-demand.vector_operations // self.vector_lanes)
        cycles = max(tiled.cycles, vector)
        dram = math.ceil(tiled.dram_bytes / self.supply.bytes_per_cycle)
        bound = bound_of(compute=tiled.compute_cycles, dram=dram, vector=vector)
        if bound == "compute" and isinstance(self.array, LeveledArray):
            bound = self.array.bound(MatMul(tiled.tiling.m, tiled.tiling.n, tiled.tiling.k))
        waiting = max(0, cycles - tiled.compute_cycles) / max(1, tiled.dram_bytes)  # an epilogue's bytes hide behind the array
        weights = [sum(move.size for move in moves) * waiting for moves in demand.drained]
        weights[0] = cycles - added(weights[1:])
        return DeviceCost(
            cycles=cycles,
            compute_cycles=tiled.compute_cycles,
            bytes=traffic.bytes,
            share=shares(weights),
            events=events_of(events, demand, traffic),
            bound=bound,
            chosen=(TileChoice(demand, tiled, self.array, self.supply, beside),),
        )

    def _tile_events(self, op: MatMul, tiling: Tiling, size: int = 1) -> dict[str, float]:
        """What the array does in all tiles of a product; along each axis they have one size, and maybe another at the end.

        An array that can be divided is asked for as many of the op's products as share a step, others for all in a row.
        """
        events: dict[str, float] = {}
        together = size if isinstance(self.array, Divisible) else op.count
        for (m, rows), (n, columns), (k, deep) in itertools.product(
            sizes(op.M, tiling.m), sizes(op.N, tiling.n), sizes(op.K, tiling.k)
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
            bound=bound_of(compute=0, dram=dram, vector=vector),
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
                size = DTYPE_BYTES[demand.number] * demand.packed
                count_array(events, self.array.cost(op).events, (size, size, size), demand.number, demand.packed)
        compute, vector, dram = sum(cycles_of), sum(vectors), self._transfer(traffic.total)
        return DeviceCost(
            cycles=max(1, compute, vector, dram),
            compute_cycles=compute,
            bytes=traffic.bytes,
            share=shares([cycles + vector for cycles, vector in zip(cycles_of, vectors, strict=True)]),
            events=events,
            bound=bound_of(compute=compute, dram=dram, vector=vector),
        )
