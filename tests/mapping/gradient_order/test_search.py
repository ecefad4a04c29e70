"""The search over orders, tiles and partitions finds the best of all its candidates, and its bounds are bounds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard.arrays import Spatial, Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.scratchpad import POLICIES, Pair, cost, kernel_traffic
from trainyard.mapping.gradient_order.search import (
    _bursts,
    _compute,
    _least_bytes,
    _prepared,
    best,
    candidates,
    doublings,
    granule,
)
from trainyard.mapping.gradient_order.tile_streams import ALL_ORDERS, FUSED_ORDERS, ORDERS, Partition
from trainyard.mapping.tile_descent import CountedTiles
from trainyard.mapping.tiling import Problem, Supply, evaluate, search

ARRAY = Systolic(rows=4, columns=4)
REAL = (*FUSED_ORDERS, "sequential")
sizes = st.integers(1, 9) | st.integers(1, 40)
partitions = st.none() | st.builds(Partition, axis=st.sampled_from("mnk"), parts=st.integers(2, 3), cores=st.booleans())


def pairs(op):
    """Of a matrix product, or of a convolution of so many weights a channel and rows of dX a row of dY."""
    return st.builds(
        lambda **fields: replace(Pair.dense(op, 4), **fields),
        dw_transposed=st.booleans(), windows=st.sampled_from([1, 1, 9]), spread=st.sampled_from([1, 1, 4]),
    )  # fmt: skip


@st.composite
def layers(draw):
    """A pair, a partition, and room for at least one tile of 4 x 4 x 4 on each core."""
    op = MatMul(draw(sizes), draw(sizes), draw(sizes), draw(st.sampled_from([1, 1, 3])))
    pair, partition = draw(pairs(op)), draw(partitions)
    sums = draw(st.sampled_from([1, 2]))  # unfinished sums may be wider than results
    pair = replace(
        pair, resident=(*pair.resident[:3], *(sums * size for size in pair.sums)), sums=tuple(sums * size for size in pair.sums)
    )
    least = pair.needed((4, 4, 4), partition.parts if partition is not None and partition.cores else 1)
    supply = Supply(
        resident_bytes=least * draw(st.floats(1.0, 30.0)),
        bytes_per_cycle=draw(st.sampled_from([0.5, 2.0, 8.0, 64.0])),
        latency_cycles=draw(st.sampled_from([0, 5, 50])),
    )
    return pair, supply, partition


def everything(pair, room, partition, array=ARRAY):
    """Every doubling of every side that finds room."""
    cores = partition.parts if partition is not None and partition.cores else 1
    menus = [doublings(side, unit) for side, unit in zip((pair.op.M, pair.op.N, pair.op.K), granule(pair, array), strict=True)]
    return [tile for tile in itertools.product(*menus) if pair.needed(tile, cores) <= room]


@settings(max_examples=40)
@given(layers(), st.sampled_from(POLICIES))
def test_the_best_of_all_coarse_candidates_is_found(layer, policy):
    pair, supply, partition = layer
    tiles = everything(pair, supply.resident_bytes, partition)
    assert sorted(candidates(pair, granule(pair, ARRAY), supply.resident_bytes, partition)) == sorted(tiles)
    found = best(pair, ARRAY, supply, orders=REAL, partitions=(partition,), policy=policy, tolerance=0, effort=0)
    given = {"array": ARRAY, "supply": supply, "policy": policy, "partition": partition}
    assert found.cycles == min(cost(pair, tile=tile, order=order, **given).cycles for tile in tiles for order in REAL)
    assert found == cost(pair, tile=found.tile, order=found.order, **given)


short = st.integers(1, 5)
one_core = st.none() | st.builds(Partition, axis=st.sampled_from("mnk"), parts=st.integers(2, 3))


@st.composite
def small_layers(draw):
    """A pair of short sides, with room for some of its elements: every size of tile can be tried."""
    op = MatMul(draw(short), draw(short), draw(short), draw(st.sampled_from([1, 1, 3])))
    pair, partition = draw(pairs(op)), draw(one_core)
    supply = Supply(
        resident_bytes=pair.needed((1, 1, 1)) * draw(st.floats(1.0, 20.0)),
        bytes_per_cycle=draw(st.sampled_from([0.5, 2.0, 8.0])),
        latency_cycles=draw(st.sampled_from([0, 5, 50])),
    )
    return pair, supply, partition


@pytest.mark.oracle
@settings(max_examples=25, deadline=None)
@given(small_layers())
def test_the_best_of_all_integer_sizes_is_found(layer):
    """Brute force over every tile and order; the tolerance trades time for bytes, and is kept."""
    pair, supply, partition = layer
    sides = itertools.product(*(range(1, side + 1) for side in (pair.op.M, pair.op.N, pair.op.K)))
    tried = [
        cost(pair, tile=tile, order=order, array=ARRAY, supply=supply, partition=partition)
        for tile in sides
        if pair.needed(tile) <= supply.resident_bytes
        for order in REAL
    ]
    least = min(one.cycles for one in tried)
    exact = best(pair, ARRAY, supply, orders=REAL, partitions=(partition,), tolerance=0)
    assert exact.proven
    assert exact.cycles == least
    for tolerance in (0.01, 0.2):
        lean = best(pair, ARRAY, supply, orders=REAL, partitions=(partition,), tolerance=tolerance)
        assert lean.proven
        assert lean.cycles <= least * (1 + tolerance)
        slower = least * (1 + tolerance) / (1 + tolerance / 2)
        assert 0.99 * lean.traffic.total_bytes <= min(one.traffic.total_bytes for one in tried if one.cycles <= slower) + 1
    for tolerance in (0.0, 0.2):
        frugal = best(pair, ARRAY, supply, orders=REAL, partitions=(partition,), tolerance=tolerance, objective="traffic")
        fewest = min(one.traffic.total_bytes for one in tried)
        assert frugal.proven
        assert frugal.traffic.total_bytes <= fewest * (1 + tolerance) + 1
        near = [one.cycles for one in tried if one.traffic.total_bytes <= fewest * (1 + tolerance) / (1 + tolerance / 2)]
        assert frugal.cycles <= min(near) * (1 + tolerance / 2)


@st.composite
def tiled_layers(draw):
    """A pair with a tile of any size, and room for it."""
    pair, supply, _ = draw(layers())
    tile = tuple(draw(st.integers(1, side)) for side in (pair.op.M, pair.op.N, pair.op.K))
    return pair, replace(supply, resident_bytes=pair.needed(tile) * draw(st.floats(1.0, 10.0))), draw(one_core), tile


@settings(max_examples=150, deadline=None)
@given(tiled_layers(), st.sampled_from(ORDERS))
def test_compiled_bounds_are_the_plain_ones_and_lie_below_what_is_counted(layer, order):
    from trainyard.kernels.mapping.gradient_order import menus as kernel_menus
    from trainyard.kernels.mapping.gradient_order import search as kernel

    pair, supply, partition, tile = layer
    number = ORDERS.index(order)
    prepared = _prepared(pair, tuple(form.row for form in ARRAY.folds), granule(pair, ARRAY), (order,), (partition,), tile)
    task, menus = prepared.task(supply)
    table, rows, moved = np.zeros((2, 3, 3, 3), np.int64), menus.rows[0, :, 0].copy(), np.zeros((5, 4))
    compute = kernel_menus.compute_table(task, rows, table)
    least = kernel_menus.least_bytes(task, menus, 0, *tile, number)
    plain = _least_bytes(pair, tile, order, supply.resident_bytes, "lru", partition)
    assert least * pair.op.count == pytest.approx(plain, rel=1e-9)
    counted = cost(pair, tile=tile, order=order, array=ARRAY, supply=supply, partition=partition)
    assert kernel_menus.least_cycles(task, rows, number, compute, least, table) <= counted.cycles
    assert np.prod([menus.folds[0, axis, 0] for axis in range(3)], axis=0).sum() <= compute
    assert compute * pair.op.count == counted.compute_cycles
    given = (task, 0, number, rows, table, compute, least)
    assert kernel.simulated(*given, np.inf, moved) == counted.cycles
    assert kernel_traffic(moved * pair.op.count) == counted.traffic
    assert kernel.simulated(*given, float(counted.cycles), moved) == counted.cycles
    assert kernel.simulated(*given, counted.cycles - 1.0, moved) == kernel.EXCEEDED


@settings(max_examples=200)
@given(layers(), st.sampled_from(ALL_ORDERS), st.sampled_from(POLICIES), st.data())
def test_bounds_lie_below_what_is_counted(layer, order, policy, data):
    pair, supply, partition = layer
    tile = data.draw(st.sampled_from(everything(pair, supply.resident_bytes, partition)))
    counted = cost(pair, tile=tile, order=order, array=ARRAY, supply=supply, policy=policy, partition=partition)
    moved = _least_bytes(pair, tile, order, supply.resident_bytes, policy, partition)
    assert moved <= counted.traffic.total_bytes + 0.5 * len(counted.traffic.bytes) * pair.op.count
    assert _compute(pair, tile, CountedTiles.of(ARRAY), supply, partition) <= counted.cycles
    assert moved / supply.bytes_per_cycle + _bursts(pair, tile, partition, policy) * supply.latency_cycles <= counted.cycles


@pytest.mark.probe
def test_a_loop_brings_in_again_what_just_has_no_room():
    """Rows of tiles over all of W: with room for W, two rows of dY and one tile of dX it comes once; with W alone too
    large, the least recent leaves first, so that all of it comes for each of 8 rows, and the bound says so."""
    pair = Pair.single(Problem.dense(MatMul(32, 16, 16), 4))
    tile, whole = (4, 4, 4), 4 * 16 * 16
    given = {"tile": tile, "order": "sequential", "array": ARRAY}
    for room, times in ((whole + 4 * (2 * 4 * 16 + 4 * 4), 1), (whole - 4, 8)):
        supply = Supply(resident_bytes=room, bytes_per_cycle=1.0)
        assert cost(pair, supply=supply, **given).traffic.bytes["W", "read"] == times * whole
    bounds = [_least_bytes(pair, tile, "sequential", room, "lru", None) for room in (whole, whole - 4)]
    assert bounds[1] - bounds[0] == 7 * whole
    ahead = _least_bytes(pair, tile, "sequential", whole - 4, "farthest", None)
    assert ahead - bounds[0] == 7 * 4


@pytest.mark.probe
@pytest.mark.parametrize(("order", "sizes"), [("dx_major", (5, 12, 11)), ("dw_major", (12, 5, 11))])
def test_sums_that_end_make_room_in_the_last_turn(order, sizes):
    """The second of two turns frees the sums that end in it, so that not all comes again."""
    pair = Pair.dense(MatMul(*sizes), 2)
    sums = (2 * pair.sums[0], 2 * pair.sums[1])
    pair, room = replace(pair, resident=(*pair.resident[:3], *sums), sums=sums), 512
    counted = cost(pair, tile=(4, 4, 4), order=order, array=ARRAY, supply=Supply(resident_bytes=room, bytes_per_cycle=1.0))
    weights, inputs = pair.moved[1] + 2 * sums[1], pair.moved[2] + 2 * sums[0]
    assert counted.traffic.total_bytes < pair.compulsory_bytes + (weights if order == "dx_major" else inputs)
    assert _least_bytes(pair, (4, 4, 4), order, room, "lru", None) <= counted.traffic.total_bytes


@settings(max_examples=40)
@given(layers(), st.floats(1.0, 8.0))
def test_more_bandwidth_less_latency_and_more_ways_never_cost_time(layer, more):
    pair, supply, partition = layer
    given = {"orders": REAL, "partitions": (partition,), "tolerance": 0, "effort": 0}
    before = best(pair, ARRAY, supply, **given).cycles
    assert best(pair, ARRAY, replace(supply, bytes_per_cycle=supply.bytes_per_cycle * more), **given).cycles <= before
    assert best(pair, ARRAY, replace(supply, latency_cycles=0), **given).cycles <= before
    assert best(pair, ARRAY, supply, **given | {"partitions": (partition, Partition(axis="k", parts=2))}).cycles <= before
    assert before <= best(pair, ARRAY, supply, **given | {"orders": ("interleaved",)}).cycles


def test_a_given_tile_is_kept():
    pair, supply = Pair.dense(MatMul(32, 16, 24), 4), Supply(resident_bytes=2000, bytes_per_cycle=4.0)
    found = best(pair, ARRAY, supply, orders=REAL, tile=(4, 8, 4))
    assert found.tile == (4, 8, 4)
    assert found.cycles >= best(pair, ARRAY, supply, orders=REAL).cycles


def test_below_the_granule_sides_are_halved():
    """128 x 128 tiles of 4 bytes would take 192 KiB."""
    pair, big = Pair.dense(MatMul(256, 256, 256), 4), Systolic(rows=128, columns=128)
    found = best(pair, big, Supply(resident_bytes=65536, bytes_per_cycle=64.0))
    assert found.tile == (64, 64, 64)
    with pytest.raises(BadInput, match="one element of each tensor needs 12 bytes, half of the scratchpad holds 11"):
        best(pair, big, Supply(resident_bytes=11, bytes_per_cycle=64.0))


@settings(max_examples=30)
@given(sizes, sizes, sizes, st.sampled_from([300, 1000, 10_000]), st.sampled_from([0.5, 4.0, 64.0]))
def test_one_product_is_searched_in_one_order(M, N, K, room, speed):
    """Its sums stay until they are done. A scratchpad that keeps what fits is no slower than one that keeps the tiles of a
    step, on the same tiles in the same order."""
    problem, supply = Problem.dense(MatMul(M, N, K), 4), Supply(resident_bytes=room, bytes_per_cycle=speed)
    found = best(Pair.single(problem), ARRAY, supply, orders=REAL)
    assert found.traffic.spill_bytes == 0
    (plain,) = search([problem], ARRAY, supply)
    assume(plain.tiling.order == "mnk")
    m, k, n = found.tile
    same = evaluate(problem, replace(plain.tiling, m=m, n=n, k=k, keep=()), ARRAY, supply)
    assert found.traffic.total_bytes <= same.dram_bytes


@dataclass
class Counted:
    """An array that says how often it was asked."""

    array: Spatial
    asked: int = 0

    @property
    def peak_macs_per_cycle(self):
        return self.array.peak_macs_per_cycle

    def granule(self):
        return self.array.granule()

    def cost(self, op, **operands):
        self.asked += 1
        return self.array.cost(op, **operands)

    def concurrent(self, products):
        return self.array.concurrent(products)


def test_an_array_without_a_closed_form_is_asked_once_for_each_size():
    array = Counted(Spatial(elements=4, macs_per_element=4))
    pair, supply = Pair.dense(MatMul(24, 20, 16), 4), Supply(resident_bytes=4000, bytes_per_cycle=4.0)
    found = best(pair, array, supply, orders=REAL)
    tiles = everything(pair, 4000, None, array)
    assert array.asked <= 2 * 8 * len(tiles)
    tried = [cost(pair, tile=tile, order=order, array=array, supply=supply) for tile in tiles for order in REAL]
    assert found.cycles == min(one.cycles for one in tried)
    lean = best(pair, array, supply, orders=REAL, objective="traffic")
    assert (lean.traffic.total_bytes, lean.cycles) == min((one.traffic.total_bytes, one.cycles) for one in tried)
