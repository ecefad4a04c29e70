"""Gradients of two layers in one go (`mapping.gradient_order.chain`) on a device: dX of the upper layer never leaves the chip.

A chain is used where it takes fewer cycles, or as many and fewer bytes, than the two layers one after the other in the device's
order, tiles of either searched over the same sizes. The lower layer's bias gradient is summed from the tiles between the layers as
they go by; apart it reads dY once more.

Layers stay apart on several cores, with a partition, and where an array looks at zeros: then each is costed by itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from trainyard.devices.accelerator.choices import ChainChoice
from trainyard.devices.accelerator.counting import Traffic, bound_of, count_array, expanded, shares
from trainyard.devices.accelerator.ordered import Orderly, Schedule, dw_is_transposed, grid_events, pair_of
from trainyard.devices.accelerator.side_by_side import merged
from trainyard.ir import DeviceCost, MatMul, Step
from trainyard.mapping.demand import ChainDemand, Demand, Move, PairDemand, Policy, ProductDemand, StreamDemand
from trainyard.mapping.gradient_order.chain import CHAIN_POLICIES, Chain, ChainCost
from trainyard.mapping.gradient_order.chain_search import fastest
from trainyard.mapping.gradient_order.links import best_disjoint_links
from trainyard.mapping.gradient_order.scratchpad import OrderCost, Pair
from trainyard.mapping.gradient_order.tile_streams import Gradient
from trainyard.mapping.gradient_order.works import joinable_links, joined_work
from trainyard.mapping.profile import demand as demand_of
from trainyard.mapping.profile import works

Product = tuple[Gradient, ProductDemand, tuple[tuple[Move, ...], ...]]
"""A gradient, what it asks for, and what moves with its finished sums, op by op."""

Across = Literal["none", "relu"]
ACROSS = get_args(Across)
Costs = dict[Demand, DeviceCost]
MANY = 1 << 80
"""More than any number of bytes: cycles count first."""


def stays_apart(schedule: Schedule) -> bool:
    return schedule.cores > 1 or schedule.partition != "none" or schedule.policy not in CHAIN_POLICIES


def chosen(
    step: Step, policy: Policy, costs: Callable[[Sequence[Demand]], Sequence[DeviceCost]], orderly: Orderly
) -> tuple[tuple[int, ...], Costs]:
    """The products dX that go on into the layer below, no layer twice, so that most cycles are saved; and what was costed."""
    members_of_link = joinable_links(step, works(step, policy))
    parts = {link: tuple(demand_of(step, member, policy) for member in members) for link, members in members_of_link.items()}
    distinct = tuple(dict.fromkeys(part for some in parts.values() for part in some))
    cost_of: Costs = dict(zip(distinct, costs(distinct), strict=True))
    saved = {}
    for link, members in members_of_link.items():
        apart, chain = in_turn([cost_of[part] for part in parts[link]]), demand_of(step, joined_work(members), policy)
        assert isinstance(chain, ChainDemand)
        cost = cost_of.get(chain) or chained(orderly, chain, apart)
        cost_of[chain] = cost
        saving = (apart.cycles - cost.cycles) * MANY + sum(apart.bytes.values()) - sum(cost.bytes.values())
        if saving > 0:
            saved[link] = saving
    links = tuple(saved)
    return tuple(links[place].head for place in best_disjoint_links(links, tuple(saved.values()))), cost_of


def chain_of(demand: ChainDemand) -> Chain:
    lower = demand.lower
    return Chain(
        upper=pair_of(demand.upper.dx, demand.upper.dw),
        lower=pair_of(lower.dx, lower.dw) if isinstance(lower, PairDemand) else _weights_alone(lower),
        masked=demand.masked,
        lower_dx=isinstance(lower, PairDemand),
        passing_bytes=sum(move.size for moves in demand.between for move in moves),
    )


def _weights_alone(dw: ProductDemand) -> Pair:
    """The pair of a first layer: no dX, and W is not read."""
    problem, op = dw.problem, dw.problem.op
    moved = problem.a_bytes, problem.b_bytes
    held = problem.a_sram_bytes or moved[0], problem.b_sram_bytes or moved[1]
    x, dy = (1, 0) if dw_is_transposed(dw) else (0, 1)
    return Pair(
        op=MatMul(op.K, op.M, op.N, op.count) if dw_is_transposed(dw) else MatMul(op.K, op.N, op.M, op.count),
        moved=(moved[dy], 0, moved[x], 0, problem.out_bytes),
        resident=(held[dy], 0, held[x], 0, problem.sum_bytes),
        sums=(0, problem.sum_bytes),
        dw_transposed=dw_is_transposed(dw),
    )


def in_turn(costs: Sequence[DeviceCost]) -> DeviceCost:
    """Two layers and bias gradients one after the other; the latter keep the vector unit busy, not the array."""
    upper, lower, *beside = costs
    return merged([upper, lower, *(replace(cost, compute_cycles=0) for cost in beside)], beside=False)


def chained(orderly: Orderly, demand: ChainDemand, apart: DeviceCost) -> DeviceCost:
    """The chain, or `apart`, what the layers cost one after the other, where that is not slower."""
    lower = demand.lower if isinstance(demand.lower, PairDemand) else demand.lower.problem
    if stays_apart(orderly.schedule) or demand.upper.is_constrained or lower.is_constrained:
        return apart
    chain, supply = chain_of(demand), orderly.supply
    if chain.upper.windows > 1 or chain.lower.windows > 1:  # what goes on are positions, not windows
        return apart
    last = sum(move.size for stream in demand.left for move in stream.moves)  # seen in full
    last_cycles = supply.latency_cycles + math.ceil(last / supply.bytes_per_cycle) if last else 0
    best = fastest(
        chain, orderly.array, supply, policy=orderly.schedule.policy, most_cycles=apart.cycles - last_cycles, tile=orderly.tile
    )
    if best is None:
        return apart
    cost = _assembled(orderly, demand, chain, best, last_cycles)
    return min(apart, cost, key=lambda one: (one.cycles, sum(one.bytes.values())))


def _assembled(orderly: Orderly, demand: ChainDemand, chain: Chain, best: ChainCost, last_cycles: int) -> DeviceCost:
    upper, lower = _products(demand)
    traffic = Traffic()
    for pair, layer, side in ((chain.upper, upper, best.traffic.upper), (chain.lower, lower, best.traffic.lower)):
        for (name, label), moved, held in zip(_operands(layer).items(), pair.moved, pair.resident, strict=False):
            size = side.bytes.get((name, "read"), 0)
            traffic.add(Move(label, "read", size, expanded(size, moved, held)))
        for gradient, product, drained in layer:
            for move in itertools.chain.from_iterable(drained):
                traffic.add(move)
            spilled = side.bytes.get((gradient, "spill"), 0)
            traffic.add(Move(product.labels[2], "spill", spilled, spilled))
    for move in itertools.chain.from_iterable(stream.moves for stream in demand.left):
        traffic.add(move)
    operations = sum(product.vector_operations for _, product, _ in (*upper, *lower))
    operations += sum(stream.vector_operations for stream in demand.left)
    events: dict[str, float] = {"vector_op": operations, **traffic.events}
    for pair, tile, layer, side in (
        (chain.upper, best.tile_upper, upper, best.traffic.upper),
        (chain.lower, best.tile_lower, lower, best.traffic.lower),
    ):
        ordered = OrderCost(
            order="dx_major", tile=tile, partition=None, traffic=side, cycles=best.cycles, compute_cycles=best.compute_cycles
        )
        for gradient, product, _ in layer:
            count_array(events, grid_events(orderly.array, pair, gradient, ordered), product.element_bytes, product.number)
    vector = -(-operations // orderly.vector_lanes)
    cycles = max(best.cycles + last_cycles, vector)
    dram = math.ceil(traffic.total / orderly.supply.bytes_per_cycle)
    return DeviceCost(
        cycles=cycles,
        compute_cycles=best.compute_cycles,
        bytes=traffic.bytes,
        share=shares(_weights(upper, lower, demand.left, best, cycles, traffic.total)),
        events=events,
        bound=bound_of(compute=best.compute_cycles, dram=dram, vector=vector),
        chosen=(ChainChoice(demand, chain, best, orderly.array, orderly.supply),),
    )


def _products(demand: ChainDemand) -> tuple[list[Product], list[Product]]:
    upper, lower = demand.upper, demand.lower
    above: list[Product] = [("dX", upper.dx, demand.between), ("dW", upper.dw, upper.dw.drained)]
    if isinstance(lower, PairDemand):
        return above, [("dX", lower.dx, lower.dx.drained), ("dW", lower.dw, lower.dw.drained)]
    return above, [("dW", lower, lower.drained)]


def _operands(layer: Sequence[Product]) -> dict[str, str]:
    """Labels of a layer's operands by their names in the model; of the lower layer, dY comes from no DRAM."""
    labels = {"dY": "dY", "W": "W", "X": "X"}
    for gradient, product, _ in layer:
        if gradient == "dX":
            labels |= {"dY": product.labels[0], "W": product.labels[1]}
        else:
            labels["X"] = product.labels[1 if dw_is_transposed(product) else 0]
    return labels


def _weights(
    upper: Sequence[Product], lower: Sequence[Product], left: Sequence[StreamDemand], best: ChainCost, cycles: int, moved: int
) -> list[float]:
    """Of each op: its part of the array's time, and of the waiting as its bytes are of all bytes."""
    waiting = max(0, cycles - best.compute_cycles) / max(1, moved)
    macs = sum(product.problem.op.macs for _, product, _ in (*upper, *lower))
    weights: list[float] = []
    for layer, side in ((upper, best.traffic.upper), (lower, best.traffic.lower)):
        for _, product, drained in layer:
            leaves = [sum(move.size for move in moves) * waiting for moves in drained]
            operands = (side.read_bytes + side.spill_bytes) / len(layer) * waiting
            weights += [best.compute_cycles * product.problem.op.macs / macs + operands + leaves[0], *leaves[1:]]
    return [*weights, *(sum(move.size for move in stream.moves) * waiting for stream in left)]
