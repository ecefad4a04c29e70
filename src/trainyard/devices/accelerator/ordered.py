"""Products through a scratchpad that keeps as many tiles as fit, and dX with dW of a layer in one of IGO's orders.

`mapping.gradient_order.scratchpad` is the model; here a device's demands become its pairs, and what it counted becomes a cost. A
fixed tile is in the m, n, k of the forward product, for all three products of a layer. Several cores share scratchpad and DRAM:
each does a part of a product, along the batch unless a partition says otherwise, or, of many equal products, its share of them.

Where an array looks at zeros, tiles and partition are those that dense operands would get, and are costed with the zeros that lie
in them; `cost` does so with the best of each order. Of many equal products, a tile takes the mean of what it takes in each.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, get_args

from trainyard.caches import ByIdentity
from trainyard.devices.accelerator.choices import PairChoice
from trainyard.devices.accelerator.counting import Traffic, bound_of, count_array, expanded, shares
from trainyard.devices.accelerator.masked_tiles import SUMS_READ, TileCosts, add_events
from trainyard.errors import UnknownName
from trainyard.ir import Array, DeviceCost, MatMul
from trainyard.ir.folds import AXES, Axis
from trainyard.ir.protocols import HasClosedForm
from trainyard.mapping.demand import Move, ProductDemand
from trainyard.mapping.gradient_order import scratchpad as gradient_order
from trainyard.mapping.gradient_order.scratchpad import SQUARE_BELOW, OrderCost, Pair, Policy, Products, algorithm_1
from trainyard.mapping.gradient_order.search import EFFORT, TOLERANCE, Aim, best, fastest
from trainyard.mapping.gradient_order.tile_streams import (
    ALL_ORDERS,
    FUSED_ORDERS,
    ORDERS,
    Gradient,
    Grid,
    Order,
    Partition,
    Size,
    grid,
)
from trainyard.mapping.tiling import NO_TILE, Supply, Tiling
from trainyard.mapping.walk import Tile

TileReuse = Literal["step", "lru", "farthest", "window", "operands"]
"""Which tiles of a product, or of a gradient pair, the scratchpad keeps."""
Division = Literal["none", "m", "n", "k", "cost"]
DIVISIONS = get_args(Division)
CHOICES = ("paper", "paper_mnk", "cost")
"""Orders that are chosen for each layer: by Algorithm 1 (with k innermost: `paper_mnk`), or the fastest."""
ORDER_NAMES = (*ALL_ORDERS, *CHOICES)
CACHED_PAIRS = 1024
CACHED_EVENTS = 4096


def require_order(order: str) -> None:
    if order not in ORDER_NAMES:
        raise UnknownName("order", str(order), ORDER_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The fields of a device that decide when its tiles are computed and which of them stay."""

    order: str = "sequential"
    reuse: TileReuse = "step"
    cores: int = 1
    partition: Division = "none"
    parts: int = 2
    square_below: float = SQUARE_BELOW

    @property
    def policy(self) -> Policy:
        return "lru" if self.reuse == "step" else self.reuse

    @property
    def paired(self) -> bool:
        """Whether dX and dW of a layer are one Work: not where each stands alone with the tiles of its own steps."""
        return self.order != "sequential" or self.reuse != "step"

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        """What may be tried for the gradients of a layer."""
        parts, cores = (self.cores, True) if self.cores > 1 else (self.parts, False)
        if self.partition == "none":
            return (Partition(axis="m", parts=parts, cores=True),) if cores else (None,)
        axes: tuple[Axis, ...] = AXES if self.partition == "cost" else (self.partition,)
        candidates = tuple(Partition(axis=axis, parts=parts, cores=cores) for axis in axes)
        return (None, *candidates) if self.partition == "cost" and not cores else candidates

    def orders(self, op: MatMul, partition: Partition | None) -> tuple[Order, ...]:
        """Algorithm 1 looks at one part of a partitioned product."""
        if self.order == "cost":
            return (*FUSED_ORDERS, "sequential")
        if self.order in ("paper", "paper_mnk"):
            return (algorithm_1(part_of(op, partition), self.square_below, k_inner=self.order == "paper_mnk"),)
        return (next(order for order in ALL_ORDERS if order == self.order),)


def part_of(op: MatMul, partition: Partition | None) -> MatMul:
    """The largest part.

    >>> part_of(MatMul(10, 4, 4), Partition(axis="m", parts=3))
    MatMul(M=4, N=4, K=4, count=1)
    """
    if partition is None:
        return op
    sides = dict(zip(AXES, (op.M, op.N, op.K), strict=True))
    sides[partition.axis] = -(-sides[partition.axis] // min(partition.parts, sides[partition.axis]))
    return MatMul(sides["m"], sides["n"], sides["k"], op.count)


def dw_is_transposed(dw: ProductDemand) -> bool:
    """Whether dW is computed transposed: dY stands on the left."""
    return dw.labels[0] == "dY"


def pair_of(dx: ProductDemand, dw: ProductDemand) -> Pair:
    """dX(M,K) = dY W^T and dW as two products of one forward product; K are channels where dX multiplies windows of dY."""
    return _pair_of(ByIdentity(dx), ByIdentity(dw))  # a sweep asks for the pairs of one step again and again


@lru_cache(maxsize=CACHED_PAIRS)
def _pair_of(of_input: ByIdentity[ProductDemand], of_weight: ByIdentity[ProductDemand]) -> Pair:
    dx, dw = of_input.value, of_weight.value
    first, second = dx.problem, dw.problem
    op = first.op
    # where no letters tell, shapes do
    turn = dw_is_transposed(dw) if "dY" in dw.labels else (second.op.M, second.op.N) != (op.N, op.K)
    columns = second.op.M if turn else second.op.N
    x_moved, x_held = (second.b_bytes, second.b_sram_bytes) if turn else (second.a_bytes, second.a_sram_bytes)
    return Pair(
        op=MatMul(second.op.K, columns, op.N, op.count),
        moved=(first.a_bytes, first.b_bytes, x_moved, first.out_bytes, second.out_bytes),
        resident=(
            first.a_bytes if first.a_sram_bytes is None else first.a_sram_bytes,
            first.b_bytes if first.b_sram_bytes is None else first.b_sram_bytes,
            x_moved if x_held is None else x_held,
            first.sum_bytes,
            second.sum_bytes,
        ),
        sums=(first.sum_bytes, second.sum_bytes),
        dw_transposed=turn,
        windows=op.K // columns,
        spread=op.M // second.op.K,
    )


def _in_channels(tile: Size | None, pair: Pair) -> Size | None:
    """A tile that is given in the forward product's m, n, k, whole windows at a time."""
    return tile and (tile[0], tile[1], -(-tile[2] // pair.windows))


Costs = tuple[TileCosts, ...]
Looker = Callable[[], Costs]
"""Of each product of a Work, what its tiles cost with their zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orderly:
    """One array behind a scratchpad, with the sizes that costs depend on."""

    array: Array
    supply: Supply
    vector_lanes: int
    tile: Size | None
    schedule: Schedule
    tolerance: float = TOLERANCE
    effort: float = EFFORT
    objective: Aim = "time"

    def product(self, demand: ProductDemand, looked_at: Looker | None = None) -> DeviceCost:
        """One product alone."""
        pair = Pair.single(demand.problem)
        axis: Axis = "n" if demand.labels[2] == "dW" else "m"  # of dW, the batch is what is summed over
        partitions = (Partition(axis=axis, parts=self.schedule.cores, cores=True),) if self.schedule.cores > 1 else (None,)
        m, n, k = demand.problem.tile
        tile = self._own_tile(demand) if demand.problem.tile == NO_TILE else (m, k, n)
        return self._cost((demand,), pair, partitions, tile, looked_at)

    def pair(self, dx: ProductDemand, dw: ProductDemand, looked_at: Looker | None = None) -> DeviceCost:
        """dX and dW of a layer."""
        pair, tile = pair_of(dx, dw), self.tile if dx.problem.tile == NO_TILE else dx.problem.tile
        return self._cost((dx, dw), pair, self.schedule.partitions, _in_channels(tile, pair), looked_at)

    def pair_within(self, dx: ProductDemand, dw: ProductDemand, most_cycles: float) -> DeviceCost | None:
        """dX and dW of a layer where the array and the DRAM take at most so many cycles for both."""
        pair = pair_of(dx, dw)
        return self._cost_within((dx, dw), pair, self.schedule.partitions, _in_channels(self.tile, pair), most_cycles)

    def _own_tile(self, demand: ProductDemand) -> Size | None:
        """The fixed tile in the m, n, k of `Pair.single`."""
        if self.tile is None:
            return None
        m, n, k = self.tile
        if demand.labels[2] == "dX":
            return m, n, k
        if demand.labels[2] == "dW":
            return (n, m, k) if dw_is_transposed(demand) else (k, m, n)
        return m, k, n

    def _share(self, pair: Pair, partitions: Sequence[Partition | None]) -> tuple[Pair, Supply, Sequence[Partition | None]]:
        """Of many equal products, each core does whole ones, with its share of scratchpad and DRAM."""
        cores, count, supply = self.schedule.cores, pair.op.count, self.supply
        if not 1 < cores <= count:
            return pair, supply, partitions
        room, speed = supply.resident_bytes / cores, supply.bytes_per_cycle / cores
        return pair.with_count(-(-count // cores)), replace(supply, resident_bytes=room, bytes_per_cycle=speed), (None,)

    def _cost(
        self,
        demands: tuple[ProductDemand, ...],
        pair: Pair,
        partitions: Sequence[Partition | None],
        tile: Size | None,
        looked_at: Looker | None,
    ) -> DeviceCost:
        if looked_at is None:
            cost = self._cost_within(demands, pair, partitions, tile)
            assert cost is not None  # nothing is too slow
            return cost
        ours, supply, partitions = self._share(pair, partitions)
        measured = []
        by_order = self.objective == "time"  # zeros that the array sees change cycles, and no bytes
        for candidate in self._candidates(ours, supply, partitions, tile, demands[0].gradient_orders, apart=by_order):
            costs = looked_at()
            alike = candidate.partition is None and all(tile_costs.known_by_shares for tile_costs in costs)
            ordered = gradient_order.cost(
                ours, tile=candidate.tile, order=candidate.order, array=self.array, supply=supply, policy=self.schedule.policy,
                partition=candidate.partition, compute=(_seen_by_size if alike else _seen)(pair, candidate, costs),
                by_tile=not alike,
            )  # fmt: skip
            measured.append((ordered, costs))
        ordered, costs = min(measured, key=lambda pair_: self._value(pair_[0]))
        cost = self._assembled(demands, pair, _dealt(ordered, pair, ours), [tile_costs.events for tile_costs in costs])
        uncertainty = math.hypot(*(tile_costs.uncertainty for tile_costs in costs)) * ours.op.count / pair.op.count
        return replace(cost, uncertainty=uncertainty)

    def _cost_within(
        self,
        demands: tuple[ProductDemand, ...],
        pair: Pair,
        partitions: Sequence[Partition | None],
        tile: Size | None,
        most_cycles: float = math.inf,
    ) -> DeviceCost | None:
        """Without a look at zeros; None where every candidate takes more cycles."""
        ours, supply, partitions = self._share(pair, partitions)
        found = self._candidates(ours, supply, partitions, tile, demands[0].gradient_orders, most_cycles=most_cycles)
        if not found:
            return None
        ordered = min(found, key=self._value)
        counted = [grid_events(self.array, pair, gradient, ordered) for gradient in _gradients(pair)]
        return self._assembled(demands, pair, _dealt(ordered, pair, ours), counted)

    def _value(self, ordered: OrderCost) -> tuple[int, int]:
        cycles, moved = ordered.cycles, ordered.traffic.total_bytes
        return (moved, cycles) if self.objective == "traffic" else (cycles, moved)

    def _candidates(
        self,
        pair: Pair,
        supply: Supply,
        partitions: Iterable[Partition | None],
        tile: Size | None,
        allowed: Sequence[str] = (),
        *,
        apart: bool = False,
        most_cycles: float = math.inf,
    ) -> list[OrderCost]:
        """The best of all partitions that have the same orders, searched together; `apart`: the best of each order.

        Orders are those of the schedule, or of dX and dW those that a constraint allows. With `most_cycles` there may be none.
        """
        named = tuple(order for order in ORDERS if order in allowed)
        grouped: dict[tuple[Order, ...], list[Partition | None]] = {}
        for partition in partitions:
            orders = (named or self.schedule.orders(pair.op, partition))[: 1 if pair.alone else None]
            for group in zip(orders) if apart else (orders,):
                grouped.setdefault(group, []).append(partition)
        search = best if math.isinf(most_cycles) else partial(fastest, most_cycles=most_cycles)
        found = (
            search(
                pair, self.array, supply, orders=orders, partitions=group, policy=self.schedule.policy, tile=tile,
                tolerance=self.tolerance, effort=self.effort, objective=self.objective,
            )
            for orders, group in grouped.items()
        )  # fmt: skip
        return [ordered for ordered in found if ordered is not None]

    def _assembled(
        self, demands: tuple[ProductDemand, ...], pair: Pair, ordered: OrderCost, counted: Sequence[Mapping[str, float]]
    ) -> DeviceCost:
        traffic = Traffic()
        for name, label, moved, held in _operands(demands, pair):
            size = ordered.traffic.bytes.get((name, "read"), 0)
            if (stays := _loaded(demands, pair, name)) is not None:
                size, held = moved, stays
            traffic.add(Move(label, "read", size, expanded(size, moved, held)))
        for name, demand in zip(("dX", "dW"), demands, strict=False):
            for move in itertools.chain.from_iterable(demand.drained):
                traffic.add(move)
            spilled = ordered.traffic.bytes.get((name, "spill"), 0)
            traffic.add(Move(demand.labels[2], "spill", spilled, spilled))
        operations = sum(demand.vector_operations for demand in demands) + ordered.additions
        events: dict[str, float] = {"vector_op": operations, **traffic.events}
        for demand, one in zip(demands, counted, strict=True):
            count_array(events, one, demand.element_bytes, demand.number)
        vector = -(-operations // self.vector_lanes)
        cycles = max(ordered.cycles, vector)
        dram = math.ceil(traffic.total / self.supply.bytes_per_cycle)
        return DeviceCost(
            cycles=cycles,
            compute_cycles=ordered.compute_cycles,
            bytes=traffic.bytes,
            share=shares(_weights(demands, cycles, ordered, traffic.total)),
            events=events,
            bound=bound_of(compute=ordered.compute_cycles, dram=dram, vector=vector),
            chosen=(PairChoice(demands, pair, ordered, self.array, self.supply),),
        )


def _dealt(ordered: OrderCost, pair: Pair, ours: Pair) -> OrderCost:
    """What all products of a pair move, where `ordered` is one core's share of them."""
    count, each = pair.op.count, ours.op.count
    if each == count:
        return ordered
    return replace(
        ordered, traffic=gradient_order.Traffic(bytes={key: size * count // each for key, size in ordered.traffic.bytes.items()})
    )


def _gradients(pair: Pair) -> tuple[Gradient, ...]:
    return ("dX",) if pair.alone else ("dX", "dW")


def _operands(demands: tuple[ProductDemand, ...], pair: Pair) -> Iterable[tuple[str, str, int, int]]:
    """Tensor of the model, its label here, its bytes over the pins and on chip."""
    labels = [demands[0].labels[0], demands[0].labels[1]]
    if not pair.alone:
        labels.append(demands[1].labels[1 if pair.dw_transposed else 0])
    return zip(gradient_order.OPERANDS, labels, pair.moved, pair.resident, strict=False)


def _loaded(demands: tuple[ProductDemand, ...], pair: Pair, name: str) -> int | None:
    """Scratchpad bytes of an operand that is read once and stays after the Work; None for any other."""
    if name == "X":
        return demands[1].loaded_bytes[1 if pair.dw_transposed else 0]
    return demands[0].loaded_bytes[1 if name == "W" else 0]


def _weights(demands: tuple[ProductDemand, ...], cycles: int, ordered: OrderCost, moved: int) -> list[float]:
    """Of each op of each chain: its part of the array's time, and of the waiting as its bytes are of all; dY is of both."""
    waiting = max(0, cycles - ordered.compute_cycles) / max(1, moved)
    macs = sum(demand.problem.op.macs for demand in demands)
    size = ordered.traffic.bytes
    weights: list[float] = []
    for demand, operand, result in zip(demands, ("W", "X"), ("dX", "dW"), strict=False):
        own = size.get((operand, "read"), 0) + size.get((result, "spill"), 0) + size.get(("dY", "read"), 0) / len(demands)
        drained = [sum(move.size for move in moves) * waiting for moves in demand.drained]
        head = ordered.compute_cycles * demand.problem.op.macs / macs + own * waiting
        weights += [head + drained[0], *drained[1:]]
    return weights


def _firsts(cut: Grid, gradient: Gradient, partition: Partition | None) -> set[int]:
    """Tiles along the summed axis that begin a sum: one, or one on each core where that axis is cut between them."""
    apart = partition is not None and partition.cores and partition.axis == ("n" if gradient == "dX" else "m")
    return {part.start for part in cut.parts} if apart else {0}


def grid_events(array: Array, pair: Pair, gradient: Gradient, ordered: OrderCost) -> Mapping[str, float]:
    """What the array does in all tiles of one gradient; the tiles that begin a sum read none."""
    if isinstance(array, HasClosedForm) and isinstance(array, Hashable):
        return _cached_events(array, pair.op, gradient, pair.products, ordered.tile, ordered.partition)
    return _grid_events(array, pair.op, gradient, pair.products, ordered.tile, ordered.partition)


def _grid_events(
    array: Array, op: MatMul, gradient: Gradient, products: Products, tile: Size, partition: Partition | None
) -> Mapping[str, float]:
    events: dict[str, float] = {}
    cut = grid(op, tile, partition)
    axis: Axis = "n" if gradient == "dX" else "m"
    firsts = _firsts(cut, gradient, partition)
    kinds = {
        name: Counter((size, name == axis and number in firsts) for number, size in enumerate(cut.sizes(name))) for name in AXES
    }
    for (m, n, k), times in (
        (sizes, math.prod(kinds[name][size] for name, size in zip(AXES, sizes, strict=True)))
        for sizes in itertools.product(*(kinds[name] for name in AXES))
    ):
        product = products.of(gradient, m[0], n[0], k[0])
        begun = not (n if axis == "n" else m)[1]
        add_events(events, array.cost(product).events, product, begun=begun, times=times * op.count)
    return events


_cached_events = lru_cache(maxsize=CACHED_EVENTS)(_grid_events)


def _seen_by_size(pair: Pair, ordered: OrderCost, costs: Costs) -> gradient_order.Compute:
    """Cycles of a tile where zeros are known by shares: tiles of one size have the same, and their events are counted here."""
    op, products, cut = pair.op, pair.products, grid(pair.op, ordered.tile, None)
    for gradient, looked_at in zip(_gradients(pair), costs, strict=True):
        whole, tile = products.of(gradient, op.M, op.N, op.K), products.of(gradient, *ordered.tile)
        looked_at.of_sizes(replace(whole, count=op.count), Tiling(m=tile.M, n=tile.N, k=tile.K))

    def cycles(gradient: Gradient, m: int, n: int, k: int) -> int:
        return costs[0 if gradient == "dX" else 1].of_size(products.of(gradient, cut.m[m], cut.n[n], cut.k[k]))

    return cycles


def _seen(pair: Pair, ordered: OrderCost, costs: Costs) -> gradient_order.Compute:
    """Cycles of each tile with its zeros; ranges are along the axes of each product as the array computes it."""
    cut, count = grid(pair.op, ordered.tile, ordered.partition), pair.op.count
    ends = {axis: [*itertools.accumulate(cut.sizes(axis))] for axis in AXES}
    firsts = {gradient: _firsts(cut, gradient, ordered.partition) for gradient in _gradients(pair)}

    def span(axis: Axis, number: int, times: int = 1) -> tuple[int, int]:
        return (ends[axis][number] - cut.sizes(axis)[number]) * times, ends[axis][number] * times

    def cycles(gradient: Gradient, m: int, n: int, k: int) -> int:
        rows, columns, deep = span("m", m, pair.spread), span("k", k), span("n", n, pair.windows)
        if gradient == "dW":
            rows, columns, deep = span("k", k, pair.windows), span("n", n), span("m", m)
            if pair.dw_transposed:
                rows, columns = columns, rows
        looked_at = costs[0 if gradient == "dX" else 1]
        total = sum(looked_at(Tile(product=one, m=rows, n=columns, k=deep)) for one in range(count))
        if deep[0] > 0 and (n if gradient == "dX" else m) in firsts[gradient] and SUMS_READ in looked_at.events:
            looked_at.events[SUMS_READ] -= count * (rows[1] - rows[0]) * (columns[1] - columns[0])  # a sum of this core's own
        return -(-total // count)

    return cycles
