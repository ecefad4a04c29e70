"""The demands of a whole step costed at once, as columns: one row for each distinct demand. The plain twin is
`devices.accelerator.costs`.

What a step and a policy decide (`StepShape`) is put together once; what a machine's numbers decide is then a few sums over columns,
so that a step on a changed machine takes little more than the search of its tiles. Demands of other kinds than products and streams
are costed one by one. Counts are real numbers, exact below 2**53: a step with more of anything is left to the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.caches import per_step
from trainyard.devices.accelerator.costs import Costing
from trainyard.devices.accelerator.counting import count_array
from trainyard.devices.accelerator.masked_tiles import SUMS_READ
from trainyard.errors import TrainyardError
from trainyard.ir import Array, DeviceCost, Step
from trainyard.ir.folds import Tiles
from trainyard.ir.protocols import Divisible, HasClosedForm, HasTileEvents
from trainyard.mapping.demand import Demand, Move, Policy, ProductDemand, StreamDemand
from trainyard.mapping.profile import profile
from trainyard.mapping.tiling import ProblemTable, search_tiles

Real = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Key = tuple[str, str, str]
Which = Literal["all", "single", "none"]
"""Products that are costed at once: those with a closed form; of an array that can be divided, not the many of a batched op."""
EXACT = 2.0**53
BOUNDS = ("compute", "dram", "vector")
ON_CHIP: tuple[Key, ...] = tuple((level, "all", way) for level in ("scratchpad", "local") for way in ("read", "write"))
LAST = 1 << 20
"""Rank of what no move of a demand names."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Products:
    """The products among the demands: rows of `StepShape`, shapes for the search, and what each column of a cost is made from."""

    rows: Whole
    shapes: ProblemTable
    sizes: Real
    """[product] Bytes of A, B, what leaves with finished sums, all sums."""
    settled: Real
    """[product] Bytes that an epilogue reads and writes."""
    operations: Whole
    element_bytes: Whole
    keys: Whole
    """Columns of the traffic: A read, B read, sums spilled."""
    numbers: Mapping[tuple[str, int], Whole | slice]
    """Format, and how many a multiplier takes at once -> which products are in it."""
    chains: Whole
    """Products with an epilogue."""
    drained: Real
    """[chain, op] Bytes that the ops of an epilogue move; the product's own place, and those past the end, are 0."""
    lengths: Whole


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Streams:
    """The streams among the demands; `again` bytes come once more where a `row` does not fit on chip."""

    rows: Whole
    again: Real
    again_key: Whole
    row_bytes: Real


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepShape:
    """What a step asks of any device of one policy."""

    policy: Policy
    demands: tuple[Demand, ...]
    keys: tuple[Key, ...]
    moved: Real
    """[demand, key] Bytes that move whatever the tiles are."""
    rank: Whole
    """[demand, key] The order in which a demand's traffic names its keys."""
    read: Real
    write: Real
    operations: Whole
    products: Products
    streams: Streams
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchCosts:
    """The costs of all demands of a step on one machine; `apart` has those that were costed one by one.

    `several` are the demands of several ops and `shares` what each op gets, row by row, zeros at the end; `moved` is [demand, key],
    `energy` [demand] by component.
    """

    shape: StepShape
    cycles: Whole
    compute_cycles: Whole
    bounds: list[str]
    several: Whole
    shares: Real
    moved: Real
    energy: Mapping[str, Real]
    apart: Mapping[int, DeviceCost]


def step_shape(step: Step, policy: Policy, costing: Costing) -> StepShape | None:
    """None where a step has more of something than is counted exactly here."""
    array = costing.array
    closed = isinstance(array, HasClosedForm) and bool(array.folds) and isinstance(array, HasTileEvents)
    if not closed or costing.schedule.reuse != "step":
        return _step_shape(step, policy, "none")
    return _step_shape(step, policy, "single" if isinstance(array, Divisible) else "all")


@per_step
def _step_shape(step: Step, policy: Policy, which: Which) -> StepShape | None:
    demands = profile(step, policy).demands
    plain = [_plain(demand, which) for demand in demands]
    wanted: dict[Key, int] = {}
    for demand, own in zip(demands, plain, strict=True):
        for move in _moves(demand) if own else ():
            wanted.setdefault(("dram", move.label, str(move.direction)), len(wanted))
    keys = (*wanted, *ON_CHIP)
    moved, rank = np.zeros((len(demands), len(keys))), np.full((len(demands), len(keys)), LAST)
    rank[:, -len(ON_CHIP) :] += np.arange(1, len(ON_CHIP) + 1)
    read, write, operations = np.zeros(len(demands)), np.zeros(len(demands)), [0] * len(demands)
    for row, (demand, own) in enumerate(zip(demands, plain, strict=True)):
        if not own:
            continue
        assert isinstance(demand, ProductDemand | StreamDemand)
        operations[row] = demand.vector_operations
        for place, move in enumerate(_moves(demand)):
            column = wanted["dram", move.label, str(move.direction)]
            rank[row, column] = min(rank[row, column], place)
        for move in _settled(demand):
            moved[row, wanted["dram", move.label, str(move.direction)]] += move.size
            (read if move.direction == "read" else write)[row] += move.size
    if max(float(moved.sum()), float(sum(operations))) >= EXACT:
        return None
    return StepShape(
        policy=policy, demands=demands, keys=keys, moved=moved, rank=rank, read=read, write=write,
        operations=np.array(operations, np.int64), products=_products(demands, plain, wanted, np.stack([read, write], axis=1)),
        streams=_streams(demands, plain, wanted), others=tuple(row for row, own in enumerate(plain) if not own),
    )  # fmt: skip


def _plain(demand: Demand, which: Which) -> bool:
    if isinstance(demand, ProductDemand):
        return which == "all" or (which == "single" and demand.problem.op.count == 1)
    return isinstance(demand, StreamDemand)


def _moves(demand: Demand) -> list[Move]:
    """In the order in which `Costing` books them; of what depends on tiles, one byte stands for all."""
    if isinstance(demand, StreamDemand):
        return [move for move in demand.moves if move.size]
    assert isinstance(demand, ProductDemand)
    a, b, out = demand.labels
    operands = [(a, demand.problem.a_bytes), (b, demand.problem.b_bytes)]
    return [*(Move(label, "read", 1, 1) for label, size in operands if size), *_settled(demand), Move(out, "spill", 1, 1)]


def _settled(demand: ProductDemand | StreamDemand) -> list[Move]:
    """What moves whatever the tiles are."""
    if isinstance(demand, StreamDemand):
        return _moves(demand)
    return [move for moves in demand.drained for move in moves if move.size]


def _products(demands: Sequence[Demand], plain: Sequence[bool], keys: Mapping[Key, int], settled: Real) -> Products:
    products = [(row, demand) for row, demand in enumerate(demands) if plain[row] and isinstance(demand, ProductDemand)]
    problems = [demand.problem for _, demand in products]
    chains = [
        (which, [sum(move.size for move in moves) for moves in demand.drained[1:]])
        for which, (_, demand) in enumerate(products)
        if len(demand.drained) > 1
    ]
    most = max((len(sizes) for _, sizes in chains), default=0)
    numbers = dict.fromkeys((demand.number, demand.packed) for _, demand in products)
    named = [(("dram", d.labels[0], "read"), ("dram", d.labels[1], "read"), ("dram", d.labels[2], "spill")) for _, d in products]
    return Products(
        rows=np.array([row for row, _ in products], np.int64),
        shapes=ProblemTable.of(problems),
        sizes=np.array([(one.a_bytes, one.b_bytes, one.out_bytes, one.sum_bytes) for one in problems], np.float64).reshape(-1, 4),
        settled=np.array([settled[row] for row, _ in products], np.float64).reshape(-1, 2),
        operations=np.array([demand.vector_operations for _, demand in products], np.int64),
        element_bytes=np.array([demand.element_bytes for _, demand in products], np.int64).reshape(-1, 3).T,
        keys=np.array([[keys.get(key, 0) for key in three] for three in named], np.int64).reshape(-1, 3).T,
        numbers={
            n: np.array([which for which, (_, d) in enumerate(products) if (d.number, d.packed) == n], np.int64) for n in numbers
        },
        chains=np.array([which for which, _ in chains], np.int64),
        drained=np.array([[0, *sizes, *[0] * (most - len(sizes))] for _, sizes in chains], np.float64).reshape(-1, most + 1),
        lengths=np.array([len(sizes) + 1 for _, sizes in chains], np.int64),
    )


def _streams(demands: Sequence[Demand], plain: Sequence[bool], keys: Mapping[Key, int]) -> Streams:
    streams = [(row, demand) for row, demand in enumerate(demands) if plain[row] and isinstance(demand, StreamDemand)]
    again = [demand.again or Move("", "read", 0, 0) for _, demand in streams]
    return Streams(
        rows=np.array([row for row, _ in streams], np.int64),
        again=np.array([move.size for move in again], np.float64),
        again_key=np.array([keys.get(("dram", move.label, "read"), 0) for move in again], np.int64),
        row_bytes=np.array([demand.row_bytes if demand.again else -1 for _, demand in streams], np.float64),
    )


NO_SHARES: Real = np.zeros((0, 1))
Energy = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Joules by component of events, each a number or a column."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some rows of a sheet."""

    rows: Whole
    cycles: Whole
    compute_cycles: Whole
    bound: npt.NDArray[np.intp]
    shares: Real
    largest: float
    """Of all that was counted."""
    energy: list[tuple[Whole, Mapping[str, Any]]]


def batch_costs(shape: StepShape, costing: Costing, energy: Energy, known_costs: Mapping[Demand, DeviceCost]) -> BatchCosts | None:
    """All demands on one machine, but for the costs that are `known_costs`.

    None where something is too large to be counted exactly, or is refused: the twin says why.
    """
    count, moved, parts = len(shape.demands), shape.moved.copy(), list[_Part]()
    try:
        if len(shape.products.rows):
            parts.append(_products_costed(shape, costing, energy, moved))
        if len(shape.streams.rows):
            parts.append(_streams_costed(shape, costing, energy, moved))
        others = {row: known_costs.get(shape.demands[row]) for row in shape.others}
        missing = [row for row, cost in others.items() if cost is None]
        costed = dict(zip(missing, costing.costs([shape.demands[row] for row in missing]), strict=True)) if missing else {}
    except TrainyardError:
        return None
    if max(float(moved.max(initial=0.0)), *(part.largest for part in parts), 0.0) >= EXACT:
        return None
    cycles, compute, bound = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.intp)
    joules: dict[str, Real] = {}
    for part in parts:
        cycles[part.rows], compute[part.rows], bound[part.rows] = part.cycles, part.compute_cycles, part.bound
    apart = {row: cost or costed[row] for row, cost in others.items()}
    for row, cost in apart.items():
        cycles[row], compute[row] = cost.cycles, cost.compute_cycles
    spent = [one for part in parts for one in part.energy]
    spent += [(np.array([row]), energy(cost.events)) for row, cost in apart.items()]
    for rows, columns in spent:
        for component, values in columns.items():
            joules.setdefault(component, np.zeros(count))[rows] = values
    bounds = [BOUNDS[code] for code in bound.tolist()]
    for row, cost in apart.items():
        bounds[row] = cost.bound
    several, parts_of = _several(shape, next((part.shares for part in parts if len(part.shares)), NO_SHARES), apart)
    return BatchCosts(
        shape=shape, cycles=cycles, compute_cycles=compute, bounds=bounds, several=several, shares=parts_of, moved=moved,
        energy=joules, apart=apart,
    )  # fmt: skip


def _several(shape: StepShape, chained: Real, apart: Mapping[int, DeviceCost]) -> tuple[Whole, Real]:
    """Demands of several ops, and their shares."""
    rows = shape.products.rows[shape.products.chains]
    others = {row: cost.share for row, cost in apart.items() if len(cost.share) > 1}
    if not others:
        return rows, chained
    most = max(chained.shape[1], *map(len, others.values()))
    shares = np.zeros((len(rows) + len(others), most))
    shares[: len(rows), : chained.shape[1]] = chained
    for place, parts in enumerate(others.values(), start=len(rows)):
        shares[place, : len(parts)] = parts
    return np.concatenate([rows, np.array([*others], np.int64)]), shares


def _products_costed(shape: StepShape, costing: Costing, energy: Energy, moved: Real) -> _Part:
    """`Costing._product` of all of them."""
    from trainyard.kernels.mapping import product_costs as kernel

    own, array, supply = shape.products, costing.array, costing.supply
    tiles = search_tiles(own.shapes, array.folds, array, supply, costing.tile)  # type: ignore[attr-defined]  # only with a closed form
    cycles, bound, moves, waiting, largest = kernel.product_costs(
        tiles, own.sizes, own.settled, own.operations, costing.vector_lanes, float(supply.bytes_per_cycle)
    )
    for key, size in zip(own.keys, moves[:3], strict=True):
        moved[own.rows, key] += size
    counted = _tile_events(array, tiles, own.shapes.dims)
    spent = []
    for (number, packed), which in own.numbers.items():
        comes, goes, rows = moves[3, which], moves[4, which], own.rows[which]
        events: dict[str, Any] = {
            "vector_op": own.operations[which], "dram_read": comes, "dram_write": goes,
            "scratchpad_write": comes, "scratchpad_read": goes,
        }  # fmt: skip
        a, b, out = own.element_bytes[:, which]
        count_array(events, {name: values[which] for name, values in counted.items()}, (a, b, out), number, packed)
        for column, (level, _, way) in enumerate(ON_CHIP, start=-len(ON_CHIP)):
            if f"{level}_{way}" in events:
                moved[rows, column] = np.rint(events[f"{level}_{way}"])
        spent.append((rows, energy(events)))
    shares = kernel.chain_shares(cycles, waiting, own.chains, own.drained, own.lengths)
    largest = max(largest, float(np.concatenate([*counted.values()]).max()))
    return _Part(own.rows, cycles, tiles[:, 5], bound, shares, largest, spent)


def _tile_events(array: Array, chosen: Whole, dims: Whole) -> dict[str, Any]:
    """`Costing._tile_events` of all products: what the array does in all of their tiles, kind by kind."""
    from trainyard.kernels.mapping.product_costs import tile_kinds

    product, (high, wide, deep), times, begun = tile_kinds(chosen, dims)
    count = dims[product, 3]
    if isinstance(array, Divisible):  # asked for one product at a time, as often as there are
        count, times = np.ones_like(count), times * count
    tiles = Tiles(high, wide, deep, count)
    events: dict[str, Any] = {}
    for name, values in array.tile_events(tiles).items():  # type: ignore[attr-defined]  # only with a closed form
        done = values * times
        if name == SUMS_READ:  # sums that an earlier tile has begun are read first
            done = done + high * wide * tiles.count * begun * times
        events[name] = np.bincount(product, done, len(dims))
    return events


def _streams_costed(shape: StepShape, costing: Costing, energy: Energy, moved: Real) -> _Part:
    """`Costing._stream` of all of them."""
    own, supply = shape.streams, costing.supply
    again = np.where(own.row_bytes > supply.resident_bytes, own.again, 0.0)
    moved[own.rows, own.again_key] += again
    comes, goes, operations = shape.read[own.rows] + again, shape.write[own.rows], shape.operations[own.rows]
    total, vector = comes + goes, -(-operations // costing.vector_lanes)
    dram = np.where(total > 0, supply.latency_cycles + np.ceil(total / supply.bytes_per_cycle), 0.0)
    largest = max(float(total.max()), float(dram.max()))
    moved[own.rows, -len(ON_CHIP)], moved[own.rows, 1 - len(ON_CHIP)] = goes, comes
    events = {
        "vector_op": operations, "dram_read": comes, "dram_write": goes, "scratchpad_write": comes, "scratchpad_read": goes,
    }  # fmt: skip
    cycles = np.maximum(np.clip(dram, 1.0, EXACT).astype(np.int64), vector)
    bound = np.argmax([np.zeros_like(dram), dram, vector], axis=0)
    return _Part(own.rows, cycles, vector, bound, NO_SHARES, largest, [(own.rows, energy(events))])
