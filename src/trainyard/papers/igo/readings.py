"""Readings of what the paper leaves open, and what each of them gives for the claims.

A reading is a walk and a timing. A walk says which tiles move when: the tile in arrays along m, n and k, bytes of an element and
of an unfinished sum, im2col, what the scratchpad reuses, and the loops of dXmajor and dWmajor. A timing says what that costs:
whether folds of the array overlap, whether transfers are hidden step by step (with or without the DRAM's latency) or over a layer
as a whole, and whether writes take time. One walk through the scratchpad serves all timings and bandwidths.

The model is the machine's own (`mapping.gradient_order.scratchpad`): the reading that the ledger rests on gives the ledger's
numbers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.ordered import dw_is_transposed, pair_of, part_of
from trainyard.ir import MatMul, Phase
from trainyard.ir.folds import AXES, Axis
from trainyard.mapping.demand import Im2col, PairDemand, ProductDemand
from trainyard.mapping.gradient_order.scratchpad import (
    ORDER_NUMBERS,
    Integers,
    Pair,
    Policy,
    additions,
    algorithm_1,
    by_size,
    checked_room,
    compute_table,
    in_a_row,
    walk,
)
from trainyard.mapping.gradient_order.tile_streams import Order, Partition, Size, grid
from trainyard.mapping.profile import demand
from trainyard.mapping.tiling import Supply
from trainyard.papers.igo.baselines import MACHINES, Case
from trainyard.papers.igo.measuring import batch
from trainyard.papers.igo.networks import ABBREVIATIONS, layers_of
from trainyard.papers.igo.networks import step as network_step

Real = npt.NDArray[np.float64]
TILE_SIDES = (1, 2, 4, 8, 16)
WRITTEN_OUT: tuple[Im2col, ...] = ("materialised", "raw")
DY = 0
READ, WRITE, LEFT, BACK = range(4)
LOADS, SPILLS, FINISHED = range(3)
PRECISIONS = {2: "bf16", 4: "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TileWalk:
    """Which tiles move when; `tile` is in arrays along m, n, k of the forward product."""

    tile: Size
    element_bytes: int = 4
    sum_bytes: int = 4
    im2col: Im2col = "materialised"
    reuse: Policy = "lru"
    k_inner: bool = False

    def __str__(self) -> str:
        loops, sizes = "m,n,k" if self.k_inner else "m,k,n", f"{self.element_bytes} bytes (sums {self.sum_bytes})"
        return f"tile {'x'.join(map(str, self.tile))}, {sizes}, im2col {self.im2col}, {self.reuse}, dXmajor {loops}"

    def machine(self, case: Case, **order: Any) -> Accelerator:
        """The machine that walks so; `order` as `Case.machine` takes it."""
        array = MACHINES[case.npu].array
        assert isinstance(array, Systolic)
        m, n, k = self.tile
        changes = {
            "tiling": (m * array.rows, n * array.columns, k * array.rows), "precision": PRECISIONS[self.element_bytes],
            "im2col": self.im2col, "reuse": self.reuse, "accumulator_bytes": self.sum_bytes,
        }  # fmt: skip
        return replace(case, changes=(*case.changes, *changes.items())).machine(**order)


Hidden = Literal["steps", "no_latency", "layer"]
HIDDEN: tuple[Hidden, ...] = get_args(Hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a walk costs. `hidden`: transfers of a step behind the one before (`steps`), without latency, or over a layer."""

    pipelined: bool = False
    hidden: Hidden = "steps"
    writes: bool = True

    def __str__(self) -> str:
        folds, writes = "pipelined" if self.pipelined else "serial", "counted" if self.writes else "free"
        return f"folds {folds}, transfers hidden by {self.hidden}, writes {writes}"


TIMINGS = tuple(
    Timing(pipelined=pipelined, hidden=hidden, writes=writes)
    for pipelined, hidden, writes in itertools.product((False, True), HIDDEN, (True, False))
)  # fmt: skip
DEFAULT_WALK, DEFAULT_TIMING = TileWalk(tile=(16, 1, 1)), Timing()
"""The reading that the ledger rests on."""


def walks(sides: Sequence[int] = TILE_SIDES, reuses: Sequence[Policy] = ("lru", "window")) -> tuple[TileWalk, ...]:
    """Every walk whose tiles leave room for one operation in half of the scratchpad of both NPUs."""
    every = (
        TileWalk(tile=tile, element_bytes=size, sum_bytes=sums, im2col=im2col, reuse=reuse, k_inner=k_inner)
        for tile in itertools.product(sides, sides, sides)
        for size, sums in ((2, 2), (2, 4), (4, 4))
        if all(_has_room(machine, tile, size, sums) for machine in MACHINES.values())
        for im2col, reuse, k_inner in itertools.product(WRITTEN_OUT, reuses, (False, True))
    )  # fmt: skip
    return tuple(every)


def _has_room(npu: Accelerator, tile: Size, element_bytes: int, sum_bytes: int) -> bool:
    assert isinstance(npu.array, Systolic)
    m, n, k = tile[0] * npu.array.rows, tile[1] * npu.array.columns, tile[2] * npu.array.rows
    dx = (m * n + k * n) * element_bytes + m * k * sum_bytes
    dw = (m * k + m * n) * element_bytes + k * n * sum_bytes
    forward = (m * k + k * n) * element_bytes + m * n * sum_bytes
    return max(dx, dw, forward) <= npu.scratchpad_bytes / 2


class Single(NamedTuple):
    """A product without a partner.

    `axes` turn the tile to it, `cut` is the axis that several cores share, `dy` which operand is a layer's dY (-1: none).
    """

    pair: Pair
    axes: tuple[int, int, int]
    cut: Axis
    dy: int


class LayerRow(NamedTuple):
    """A layer with both gradients."""

    network: int
    pair: int
    op: MatMul


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The products of the nine networks: distinct ones, how many of them a network has, and its layers with both gradients."""

    singles: tuple[Single, ...]
    single_counts: Real
    pairs: tuple[Pair, ...]
    rows: tuple[LayerRow, ...]

    @property
    def row_networks(self) -> Integers:
        return np.array([row.network for row in self.rows])

    @property
    def row_pairs(self) -> Integers:
        return np.array([row.pair for row in self.rows])


@lru_cache(maxsize=16)
def workload(case: Case, element_bytes: int, sum_bytes: int, im2col: Im2col) -> Workload:
    plain = TileWalk(tile=(1, 1, 1), element_bytes=element_bytes, sum_bytes=sum_bytes, im2col=im2col)
    machine = plain.machine(case, order="interleaved")
    singles: dict[Single, int] = {}
    pairs: dict[Pair, int] = {}
    counts: list[Counter[int]] = []
    rows: list[LayerRow] = []
    for number, network in enumerate(ABBREVIATIONS):
        step = network_step(network, case.npu, batch(case), case.recommender_batch)
        layers = layers_of(network, case.npu, batch(case), case.recommender_batch)
        weighted = {(layer.path, layer.call) for layer in layers}
        pair_of_layer: dict[tuple[str, int], int] = {}
        counted: Counter[int] = Counter()
        for work in machine.works(step):
            head = step.ops[work.ops[0]]
            if not head.is_product:
                continue
            asked = demand(step, work, machine.policy)
            if isinstance(asked, PairDemand):
                pair_of_layer[head.layer, head.call] = pairs.setdefault(pair_of(asked.dx, asked.dw), len(pairs))
                continue
            assert isinstance(asked, ProductDemand)
            has_weights = (head.layer, head.call) in weighted and head.phase is not Phase.FORWARD
            counted[singles.setdefault(_single(asked, has_weights), len(singles))] += 1
        counts.append(counted)
        rows += [LayerRow(number, pair_of_layer[layer.path, layer.call], layer.op) for layer in layers if layer.paired]
    table = np.array([[counted[place] for place in range(len(singles))] for counted in counts], dtype=np.float64)
    return Workload(tuple(singles), table, tuple(pairs), tuple(rows))


def _single(asked: ProductDemand, has_weights: bool) -> Single:
    """As a device does it (`devices.accelerator.ordered`): the tile is turned to the product's own axes."""
    label = asked.labels[2]
    axes = (0, 1, 2) if label == "dX" else (0, 2, 1)
    if label == "dW":
        axes = (1, 0, 2) if dw_is_transposed(asked) else (2, 0, 1)
    dy = asked.labels.index("dY") if has_weights and "dY" in asked.labels[:2] else -1
    return Single(Pair.single(asked.problem), axes, "n" if label == "dW" else "m", dy)


@lru_cache(maxsize=16)
def _machine(case: Case) -> Accelerator:
    """Array, cores, scratchpad and DRAM, whatever the walk is."""
    return DEFAULT_WALK.machine(case, order="interleaved")


class Timed(NamedTuple):
    """Cycles by timing and bandwidth, and bytes by tensor and kind."""

    cycles: Real
    moved: Real


class Tables(NamedTuple):
    """How a product is cut: tiles along each axis with their sizes and kinds, parts; cycles by kind, serial and pipelined folds."""

    counts: Integers
    lengths: Integers
    kinds: Integers
    cycles: Integers
    axis: int
    bounds: Integers


@lru_cache(maxsize=1 << 13)
def _tables(op: MatMul, alone: bool, transposed: bool, array: Systolic, tile: Size, partition: Partition | None) -> Tables:
    pair, cut = replace(Pair.dense(op, 1), alone=alone, dw_transposed=transposed), grid(op, tile, partition)
    gradients: tuple[Literal["dX", "dW"], ...] = ("dX",) if alone else ("dX", "dW")
    made = [compute_table(cut, gradients, by_size(pair, cut, replace(array, pipelined=folds))) for folds in (False, True)]
    counts = np.array([len(cut.sizes(axis)) for axis in AXES])
    lengths = np.zeros((3, counts.max()), dtype=np.int64)
    for row, axis in enumerate(AXES):
        lengths[row, : counts[row]] = cut.sizes(axis)
    return Tables(
        counts, lengths, made[0][1], np.array([cycles for cycles, _ in made]), -1 if cut.axis is None else AXES.index(cut.axis),
        np.array([(part.start, part.stop) for part in cut.parts] or [(0, 0)]),
    )  # fmt: skip


@lru_cache(maxsize=1 << 15)
def timed(
    pair: Pair, tile: Size, order: Order, policy: Policy, partition: Partition | None, case: Case, speeds: tuple[float, ...]
) -> Timed:
    """One product or pair under every timing; `speeds` are bandwidths as shares of the machine's. Walks share most of them."""
    machine = _machine(case)
    assert isinstance(machine.array, Systolic)
    count, each, cores, supply = pair.op.count, pair.op.count, machine.cores, machine.supply
    if 1 < cores <= count:  # each core does whole products
        each, partition = -(-count // cores), None
        supply = replace(supply, resident_bytes=supply.resident_bytes / cores, bytes_per_cycle=supply.bytes_per_cycle / cores)
    pair = pair if each == count else pair.with_count(each)
    tables = _tables(replace(pair.op, count=1), pair.alone, pair.dw_transposed, machine.array, tile, partition)
    vector = -(-additions(pair, partition) // machine.vector_lanes)
    if partition is None or not partition.cores:
        walked = walked_alone(pair, tile, order, policy, partition, supply.resident_bytes, tables)
    else:
        walked = walked_in_general(pair, tile, order, policy, partition, supply.resident_bytes, tables)
    cycles = timings(walked, each, policy, supply, speeds)
    return Timed(np.maximum(cycles, vector), walked.moved * count)


class Walked(NamedTuple):
    """A walk: bytes by tensor and kind, those that each stage moves, and cycles of the array, with serial and pipelined folds."""

    moved: Real
    transfers: Real
    busy: Integers


def walked_in_general(
    pair: Pair, tile: Size, order: Order, policy: Policy, partition: Partition | None, room: float, tables: Tables
) -> Walked:
    done = walk(pair, tile, room, order, policy, partition)
    return Walked(done.moved, done.transfers, np.array([done.stage_cycles(table, tables.kinds) for table in tables.cycles]))


def walked_alone(
    pair: Pair, tile: Size, order: Order, policy: Policy, partition: Partition | None, room: float, tables: Tables
) -> Walked:
    """The same on one core, faster, for the two policies that are searched."""
    from trainyard.kernels.mapping.gradient_order import walk as kernel
    from trainyard.kernels.mapping.gradient_order.scratchpad import ALONE

    if policy not in ("lru", "window"):
        return walked_in_general(pair, tile, order, policy, partition, room, tables)
    number = ALONE if pair.alone else ORDER_NUMBERS[order]
    done = kernel.walk_on_one_core(
        number, tables.counts, tables.lengths, tables.kinds, tables.cycles, tables.axis, tables.bounds, pair.rates,
        checked_room(pair, tile, 1, room), policy == "window",
    )  # fmt: skip
    return Walked(*done)


def timings(walked: Walked, count: int, policy: Policy, supply: Supply, speeds: Sequence[float]) -> Real:
    """Cycles by timing and bandwidth of `count` equal products."""
    from trainyard.kernels.mapping.gradient_order import timings as kernel

    rates = np.array([supply.bytes_per_cycle * share for share in speeds])
    reads = float(walked.moved[:, [READ, BACK]].sum())
    return kernel.timings(
        walked.transfers, walked.busy[0], walked.busy[1], count, supply.latency_cycles, rates, spills_are_reads(policy),
        float(walked.moved.sum()), reads,
    )  # fmt: skip


def spills_are_reads(policy: Policy) -> bool:
    """Whether what moves while a stage computes is sums that are read back; else sums that make room."""
    return policy in ("window", "operands")


def plain_timings(walked: Walked, count: int, policy: Policy, supply: Supply, share: float) -> list[int]:
    """`timings` at one bandwidth, timing by timing."""
    unwritten = walked.transfers.copy()
    unwritten[:, FINISHED] = 0.0
    if not spills_are_reads(policy):
        unwritten[:, SPILLS] = 0.0
    speed = supply.bytes_per_cycle * share
    cycles = []
    for timing in TIMINGS:
        stages = walked.busy[int(timing.pipelined)]
        if timing.hidden == "layer":
            kinds = slice(None) if timing.writes else [READ, BACK]
            cycles.append(max(count * int(stages.sum()), math.ceil(count * float(walked.moved[:, kinds].sum()) / speed)))
            continue
        latency = supply.latency_cycles if timing.hidden == "steps" else 0
        dram = Supply(resident_bytes=0, bytes_per_cycle=speed, latency_cycles=latency)
        cycles.append(in_a_row(walked.transfers if timing.writes else unwritten, stages, count, dram))
    return cycles


@dataclass(frozen=True, slots=True, eq=False)
class WalkCosts:
    """All products of a workload under one walk: cycles [product, timing, bandwidth], bytes [product, tensor, kind].

    `pair_cycles` and `pair_moved` are by name: an order, or the axis of a partition with the order that Algorithm 1 chooses
    (`none`: the layer is whole).
    """

    work: Workload
    single_cycles: Real
    single_moved: Real
    pair_cycles: Mapping[str, Real]
    pair_moved: Mapping[str, Real]


def _variants(pair: Pair, tile_walk: TileWalk, case: Case) -> dict[str, tuple[Order, Partition | None]]:
    """What is measured of a pair, by name."""
    k_inner = tile_walk.k_inner
    parts, cores = (case.cores, True) if case.cores > 1 else (case.parts, False)
    cuts: dict[str, Partition | None] = {axis: Partition(axis=axis, parts=parts, cores=cores) for axis in AXES}
    if case.cores == 1:
        cuts = {"none": None, **cuts}
    whole = 1 < case.cores <= pair.op.count
    chosen: dict[str, tuple[Order, Partition | None]] = {
        name: (algorithm_1(part_of(pair.op, None if whole else cut), k_inner=k_inner), cut) for name, cut in cuts.items()
    }
    if case.cores > 1:
        return {"sequential": ("sequential", cuts["m"]), **chosen}
    dx: Order = "dx_major_mnk" if k_inner else "dx_major"
    dw: Order = "dw_major_nmk" if k_inner else "dw_major"
    return {
        "sequential": ("sequential", None), "interleaved": ("interleaved", None), "dx_major": (dx, None), "dw_major": (dw, None),
        "no_second_dy": ("no_second_dy", None), **chosen,
    }  # fmt: skip


def walk_costs(tile_walk: TileWalk, case: Case, speeds: tuple[float, ...] = (1.0,)) -> WalkCosts:
    machine = tile_walk.machine(case, order="interleaved")
    work = workload(case, tile_walk.element_bytes, tile_walk.sum_bytes, tile_walk.im2col)
    assert not isinstance(machine.tiling, str)
    tile = machine.tiling
    alone = [
        timed(
            one.pair, (tile[one.axes[0]], tile[one.axes[1]], tile[one.axes[2]]), "sequential", tile_walk.reuse,
            Partition(axis=one.cut, parts=case.cores, cores=True) if case.cores > 1 else None, case, speeds,
        )
        for one in work.singles
    ]  # fmt: skip
    pair_cycles: dict[str, list[Real]] = {}
    pair_moved: dict[str, list[Real]] = {}
    for pair in work.pairs:
        seen: dict[tuple[Order, Partition | None], Timed] = {}
        for name, (order, partition) in _variants(pair, tile_walk, case).items():
            if (order, partition) not in seen:
                seen[order, partition] = timed(pair, tile, order, tile_walk.reuse, partition, case, speeds)
            pair_cycles.setdefault(name, []).append(seen[order, partition].cycles)
            pair_moved.setdefault(name, []).append(seen[order, partition].moved)
    return WalkCosts(
        work, np.array([one.cycles for one in alone]), np.array([one.moved for one in alone]),
        {name: np.array(values) for name, values in pair_cycles.items()},
        {name: np.array(values) for name, values in pair_moved.items()},
    )  # fmt: skip
