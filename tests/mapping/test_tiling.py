"""Tiles: the closed form against a simulation of every tile, the search against every candidate."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Sigma, Spatial, Systolic
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, one_after_another
from trainyard.kernels.mapping.tile_leaf import SLACK
from trainyard.mapping.tiling import ORDERS, TENSORS, Goal, Problem, Supply, Tiling, evaluate, needed_bytes, passes, search
from trainyard.mapping.walk import steps, walk

ARRAYS = [
    Systolic(rows=4, columns=4, dataflow="ws"),
    Systolic(rows=4, columns=2, dataflow="os"),
    Systolic(rows=2, columns=4, dataflow="is", pipelined=True),
    Spatial(elements=4, macs_per_element=3),
    Sigma(dpes=2, multipliers=4, bandwidth=3),
    Sigma(dpes=3, multipliers=2, bandwidth=2, streaming="limited", drain="pass"),
]


@dataclass(frozen=True)
class WithoutClosedForm:
    """A systolic array without its closed form: the search calls `cost` tile by tile."""

    inner: Systolic
    peak_macs_per_cycle: int = 16

    def granule(self):
        return self.inner.granule()

    def cost(self, op, *, a=DENSE, b=DENSE):
        return ArrayCost(cycles=self.inner.tile_cycles(op.M, op.N, op.K) * op.count)

    def concurrent(self, products):
        return one_after_another(self, products)


sizes = st.integers(1, 24)


@st.composite
def problems(draw):
    op = MatMul(draw(sizes), draw(sizes), draw(sizes), draw(st.sampled_from([1, 1, 2, 3])))
    if draw(st.booleans()):
        return Problem.dense(op, draw(st.sampled_from([1, 2, 4])))
    size = st.integers(1, 5000)
    problem = Problem(op=op, a_bytes=draw(size), b_bytes=draw(size), out_bytes=draw(size), sum_bytes=draw(size))
    if draw(st.booleans()):  # decompressed by the DMA engine: more bytes in the scratchpad than from DRAM
        more = st.integers(0, 5000)
        problem = replace(problem, a_sram_bytes=problem.a_bytes + draw(more), b_sram_bytes=problem.b_bytes + draw(more))
    return problem


supplies = st.builds(
    Supply,
    resident_bytes=st.sampled_from([64, 200, 1000, 10**6]),
    bytes_per_cycle=st.sampled_from([0.3, 1.0, 7.5, 64.0]),
    latency_cycles=st.sampled_from([0, 5, 100]),
)
arrays = st.sampled_from(ARRAYS)


@pytest.mark.oracle
@given(
    problem=problems(),
    supply=supplies,
    array=arrays,
    tile=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
    order=st.sampled_from(ORDERS),
    keep=st.sets(st.sampled_from(TENSORS)),
)
def test_the_closed_form_equals_the_simulation_tile_by_tile(problem, supply, array, tile, order, keep):
    tiling = Tiling(m=tile[0], n=tile[1], k=tile[2], order=order, keep=tuple(t for t in TENSORS if t in keep))
    walked = walk(problem, tiling, supply, lambda step: array.tile_cycles(step.op.M, step.op.N, step.op.K))
    assert evaluate(problem, tiling, array, supply) == walked


@pytest.mark.oracle
@given(m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), order=st.sampled_from(ORDERS), count=st.integers(1, 2))
def test_tiles_cover_each_mac_of_the_product_once(m, n, k, order, count):
    op = MatMul(m, n, k, count)
    seen = set()
    for step in steps(op, Tiling(m=2, n=3, k=4, order=order)):
        for i in range(*step.m):
            for j in range(*step.n):
                for q in range(*step.k):
                    assert (step.product, i, j, q) not in seen
                    seen.add((step.product, i, j, q))
    assert len(seen) == op.macs


@pytest.mark.oracle
@given(m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), order=st.sampled_from(ORDERS))
def test_products_of_tiles_in_any_order_sum_to_the_product(m, n, k, order):
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.integers(-9, 9, (m, k)), random.integers(-9, 9, (k, n))
    sums = np.zeros((m, n), dtype=int)
    for step in steps(MatMul(m, n, k), Tiling(m=3, n=2, k=4, order=order)):
        sums[slice(*step.m), slice(*step.n)] += a[slice(*step.m), slice(*step.k)] @ b[slice(*step.k), slice(*step.n)]
    assert (sums == a @ b).all()


def kept_choices(order):
    """What may stay: nothing, the tensor without the middle loop, also the one without the outer loop."""
    lacking = {"n": "a", "m": "b", "k": "out"}
    return [(), (lacking[order[1]],), tuple(t for t in TENSORS if t in (lacking[order[1]], lacking[order[0]]))]


def every_tiling(problem, array, supply, sizes):
    """Brute force: all given sizes, orders and kept tensors that fit."""
    for m, n, k in itertools.product(*sizes):
        for order in ORDERS:
            for keep in kept_choices(order):
                tiling = Tiling(m=m, n=n, k=k, order=order, keep=keep)
                if needed_bytes(problem, tiling) <= supply.resident_bytes:
                    yield evaluate(problem, tiling, array, supply)


small = st.integers(1, 5)


@pytest.mark.oracle
@settings(max_examples=60)
@given(
    op=st.builds(MatMul, st.integers(1, 7), small, small, st.sampled_from([1, 1, 2])), size=st.sampled_from([1, 2, 4]),
    supply=supplies, array=arrays, room=st.integers(12, 200),
)  # fmt: skip
def test_the_search_is_within_one_per_cent_of_brute_force_over_all_sizes(op, size, supply, array, room):
    problem, supply = Problem.dense(op, size), replace(supply, resident_bytes=room)
    everything = list(every_tiling(problem, array, supply, [range(1, extent + 1) for extent in (op.M, op.N, op.K)]))
    if not everything:
        with pytest.raises(BadInput, match=r"needs .* bytes"):
            search([problem], array, supply)
        return
    (best,) = search([problem], array, supply)
    assert best == evaluate(problem, best.tiling, array, supply)
    assert best.proven
    fastest = min(other.cycles for other in everything)
    assert fastest <= best.cycles <= fastest * 1.01
    closest = fastest * 1.01 / SLACK
    assert best.dram_bytes <= min(other.dram_bytes for other in everything if other.cycles < closest)


@pytest.mark.oracle
@settings(max_examples=25)
@given(
    op=st.builds(MatMul, small, small, small), supply=supplies, array=arrays, room=st.integers(12, 200),
    objective=st.sampled_from(["time", "traffic", "energy", "edp"]),
)  # fmt: skip
def test_every_objective_is_within_its_tolerance_of_brute_force(op, supply, array, room, objective):
    problem, supply = Problem.dense(op, 2), replace(supply, resident_bytes=room)
    goal = Goal(objective=objective, energy=(3.0, lambda product: 2.0 * product.macs))

    def value(tiled):
        joules = 3.0 * tiled.dram_bytes + 2.0 * op.macs
        return {"time": tiled.cycles, "traffic": tiled.dram_bytes, "energy": joules, "edp": joules * tiled.cycles}[objective]

    everything = list(every_tiling(problem, array, supply, [range(1, extent + 1) for extent in (op.M, op.N, op.K)]))
    if everything:
        (best,) = search([problem], array, supply, goal=goal)
        assert value(best) <= 1.01 * min(map(value, everything))


@pytest.mark.parametrize("seed", range(4))
def test_traffic_is_never_below_the_bounds_and_the_search_is_never_slower_than_doublings_of_the_granule(seed):
    random = np.random.default_rng(seed)
    for _ in range(15):
        op = MatMul(*(int(extent) for extent in np.exp(random.uniform(0, np.log(3000), 3))))
        array = Systolic(
            rows=int(random.integers(4, 65)), columns=int(random.integers(4, 65)), dataflow=random.choice(["ws", "os", "is"])
        )
        problem = Problem.dense(op, 4)
        room = float(np.exp(random.uniform(np.log(256), np.log(4 * problem.sum_bytes + 2000))))
        supply = Supply(
            resident_bytes=room, bytes_per_cycle=float(np.exp(random.uniform(-1, 6))), latency_cycles=int(random.integers(0, 200))
        )
        (best,) = search([problem], array, supply)
        compulsory = problem.a_bytes + problem.b_bytes + problem.out_bytes
        elements = room / 4
        assert best.dram_bytes >= compulsory
        assert best.dram_bytes / 4 >= 2 * op.macs / math.sqrt(elements) - 2 * elements
        assert best.cycles >= max(best.compute_cycles, op.macs / array.peak_macs_per_cycle, compulsory / supply.bytes_per_cycle)
        assert needed_bytes(problem, best.tiling) <= room
        doublings = [
            [size for size in (step << power for power in range(12)) if size < extent] + [extent]
            for step, extent in zip(array.granule(), (op.M, op.N, op.K), strict=True)
        ]
        for tile in itertools.product(*(random.choice(sizes, min(3, len(sizes)), replace=False).tolist() for sizes in doublings)):
            for order in ORDERS:
                tiling = Tiling(m=tile[0], n=tile[1], k=tile[2], order=order)
                if needed_bytes(problem, tiling) <= room:
                    assert best.cycles <= 1.01 * evaluate(problem, tiling, array, supply).cycles


def test_a_tile_that_no_doubling_finds():
    """56 tiles of 23 rows and two of 154 columns, all of the reduction at once: half the time of square tiles."""
    op, array = MatMul(1279, 308, 416), Systolic(rows=64, columns=64)
    supply = Supply(resident_bytes=161631, bytes_per_cycle=4)
    (best,) = search([Problem.dense(op, 2, 4)], array, supply)
    square = evaluate(Problem.dense(op, 2, 4), Tiling(m=64, n=64, k=416), array, supply)
    assert best.cycles < 0.6 * square.cycles


@given(problem=problems(), supply=supplies)
def test_an_array_without_a_closed_form_is_asked_for_the_most_promising_tiles(problem, supply):
    try:
        (expected,) = search([problem], Systolic(rows=4, columns=4), supply)
    except BadInput:
        with pytest.raises(BadInput, match="needs"):
            search([problem], WithoutClosedForm(Systolic(rows=4, columns=4)), supply)
        return
    (asked,) = search([problem], WithoutClosedForm(Systolic(rows=4, columns=4)), supply)
    assert asked == replace(evaluate(problem, asked.tiling, Systolic(rows=4, columns=4), supply), proven=asked.proven)
    assert asked.cycles <= 1.35 * expected.cycles  # it has fewer sizes


def test_a_bounded_search_says_that_it_is_not_proven():
    problem, supply = Problem.dense(MatMul(1279, 308, 416), 2), Supply(resident_bytes=100000, bytes_per_cycle=40)
    (complete,) = search([problem], Systolic(rows=64, columns=64), supply)
    (bounded,) = search([problem], Systolic(rows=64, columns=64), supply, goal=Goal(effort=3))
    assert complete.proven
    assert not bounded.proven
    assert bounded.cycles >= complete.cycles / 1.01


def test_constraints_of_a_problem_hold():
    op, array, supply = MatMul(300, 200, 100), Systolic(rows=16, columns=16), Supply(resident_bytes=50000, bytes_per_cycle=8)
    free = Problem.dense(op, 2)
    (fixed,) = search([replace(free, tile=(0, 48, 0))], array, supply)
    assert fixed.tiling.n == 48
    (ordered,) = search([replace(free, orders=("kmn",))], array, supply)
    assert ordered.tiling.order == "kmn"
    for tensor, axis in (("a", "n"), ("b", "m"), ("out", "k")):
        (kept,) = search([replace(free, keep=(tensor,))], array, supply)
        assert tensor in kept.tiling.keep or kept.tiling.order[2] == axis
        assert passes(op, kept.tiling)[TENSORS.index(tensor)] == 1
    with pytest.raises(BadInput, match=r"tile 300 x 200 x 1 of .* needs .* at least\) or a smaller tiling"):
        search([replace(free, tile=(300, 200, 0))], array, supply)


@settings(max_examples=60)
@given(
    op=st.builds(MatMul, st.integers(1, 900), st.integers(1, 900), st.integers(1, 900)), rows=st.integers(1, 70),
    columns=st.integers(1, 70), more=st.tuples(st.integers(0, 80), st.integers(0, 80)), supply=supplies,
    dataflow=st.sampled_from(["ws", "os", "is"]), pipelined=st.booleans(), room=st.integers(64, 200000),
)  # fmt: skip
def test_a_larger_array_costs_no_more_than_its_own_fill_and_drain(op, rows, columns, more, dataflow, pipelined, supply, room):
    """It may run the smaller one's tiles: as many folds or fewer, each longer by what filling and draining it takes."""
    supply, problem = replace(supply, resident_bytes=room), Problem.dense(op, 2)
    small = Systolic(rows=rows, columns=columns, dataflow=dataflow, pipelined=pipelined)
    large = replace(small, rows=rows + more[0], columns=columns + more[1])
    (before,), (after,) = search([problem], small, supply), search([problem], large, supply)
    tiling = before.tiling
    folds = sum(small.folds[0].count(m, n, k) * times for (m, n, k), times in kinds_of_tiles(op, tiling))
    fixed, floor = large.folds[0].fixed - small.folds[0].fixed, large.folds[0].floor - small.folds[0].floor
    assert after.cycles <= 1.01 * (before.cycles + folds * max(fixed, floor))


def kinds_of_tiles(op, tiling):
    axes = [
        [(size, extent // size)] + ([(extent % size, 1)] if extent % size else [])
        for extent, size in ((op.M, tiling.m), (op.N, tiling.n), (op.K, tiling.k))
    ]
    for (m, a), (n, b), (k, c) in itertools.product(*axes):
        yield (m, n, k), a * b * c


@given(problem=problems(), array=arrays, latency=st.sampled_from([0, 20]))
def test_more_bandwidth_or_a_larger_scratchpad_is_never_slower(problem, array, latency):
    rooms, speeds = (30000, 100000, 10**7), (0.5, 1.0, 3.3, 20.0)
    cycles = {
        (room, speed): search([problem], array, Supply(resident_bytes=room, bytes_per_cycle=speed, latency_cycles=latency))[
            0
        ].cycles
        for room in rooms
        for speed in speeds
    }
    for room, (slower, faster) in itertools.product(rooms, itertools.pairwise(speeds)):
        assert cycles[room, faster] <= 1.01 * cycles[room, slower]
    for speed, (smaller, larger) in itertools.product(speeds, itertools.pairwise(rooms)):
        assert cycles[larger, speed] <= 1.01 * cycles[smaller, speed]


@given(problem=problems(), array=arrays)
def test_a_product_in_one_tile_moves_each_tensor_once(problem, array):
    cost = evaluate(
        problem, Tiling(m=problem.op.M, n=problem.op.N, k=problem.op.K), array, Supply(resident_bytes=10**9, bytes_per_cycle=8.0)
    )
    assert cost.dram_bytes == problem.a_bytes + problem.b_bytes + problem.out_bytes
    assert cost.compute_cycles == problem.op.count * array.tile_cycles(problem.op.M, problem.op.N, problem.op.K)


def test_a_fixed_tile_is_clipped_to_the_product():
    supply = Supply(resident_bytes=10**6, bytes_per_cycle=8.0)
    problem = Problem.dense(MatMul(100, 3, 50), 2)
    (best,) = search([problem], ARRAYS[0], supply, tile=(16, 16, 16))
    assert (best.tiling.m, best.tiling.n, best.tiling.k) == (16, 3, 16)
    assert best.cycles >= search([problem], ARRAYS[0], supply)[0].cycles
    with pytest.raises(BadInput, match="smaller tiling"):
        search([problem], ARRAYS[0], Supply(resident_bytes=100, bytes_per_cycle=8.0), tile=(16, 16, 16))


def test_sums_spill_if_k_is_the_outer_loop():
    problem = Problem.dense(MatMul(8, 8, 8), 2)
    supply = Supply(resident_bytes=1000, bytes_per_cycle=1.0)
    outer = evaluate(problem, Tiling(m=4, n=4, k=4, order="kmn"), ARRAYS[0], supply)
    inner = evaluate(problem, Tiling(m=4, n=4, k=4, order="mnk"), ARRAYS[0], supply)
    assert outer.spill_write == outer.spill_read == 8 * 8 * 4
    assert (inner.spill_write, inner.spill_read) == (0, 0)


def test_compressed_operands_move_fewer_bytes_but_take_their_full_size_on_chip():
    """With half of the DRAM bytes a product is faster on a slow DRAM, in tiles that fit as before."""
    raw = Problem.dense(MatMul(64, 64, 64), 4)
    half = replace(raw, a_bytes=raw.a_bytes // 2, b_bytes=raw.b_bytes // 2, a_sram_bytes=raw.a_bytes, b_sram_bytes=raw.b_bytes)
    array = ARRAYS[0]
    for room in (2000, 10_000, 10**6):
        slow = Supply(resident_bytes=room, bytes_per_cycle=1.0, latency_cycles=5)
        (before,), (after,) = search([raw], array, slow), search([half], array, slow)
        assert after.cycles < before.cycles
        tile = after.tiling
        assert 4 * (tile.m * tile.k + tile.k * tile.n + tile.m * tile.n) <= room
    with pytest.raises(BadInput, match=r"tile 1 x 1 x 1 .* needs 12 bytes"):
        search([half], array, Supply(resident_bytes=11, bytes_per_cycle=1.0))
    assert search([half], array, Supply(resident_bytes=12, bytes_per_cycle=1.0))[0].tiling.k == 1


def test_an_unknown_loop_order_is_refused():
    with pytest.raises(BadInput, match="none of mnk"):
        Tiling(m=1, n=1, k=1, order="mmk")


@pytest.mark.parametrize("op", [MatMul(10**7, 10**6, 10**6), MatMul(10**6, 10**6, 10**6, 7), MatMul(10**7, 10**5, 10**6)])
def test_huge_products_are_as_efficient_as_large_ones(op):
    """In the smallest tiles their cycles exceed 64 bits, and must not wrap around to small numbers."""
    array, supply = Systolic(rows=128, columns=128), Supply(resident_bytes=4 * 2**20, bytes_per_cycle=150.0, latency_cycles=100)
    (large,) = search([Problem.dense(MatMul(10**5, 10**4, 10**4), 4)], array, supply)
    (best,) = search([Problem.dense(op, 4)], array, supply)
    assert best.cycles / op.macs == pytest.approx(large.cycles / 10**13, rel=0.1)
    assert best == evaluate(Problem.dense(op, 4), best.tiling, array, supply)


@pytest.mark.parametrize(
    "op", [MatMul(10**10, 1, 10**10), MatMul(10**7, 10**7, 10**7), MatMul(2**53, 1, 1), MatMul(1, 1, 1, 2**53)]
)
def test_a_product_of_more_than_2_to_the_53_cycles_is_refused(op):
    supply = Supply(resident_bytes=4 * 2**20, bytes_per_cycle=150.0)
    with pytest.raises(BadInput, match=r"more than 2\*\*53 cycles"):
        search([Problem.dense(op, 4)], Systolic(rows=128, columns=128), supply)


def test_sizes_between_near_divisors_are_found_for_a_fabric_without_fixed_folds():
    """k = 37 leaves 12 elements to the last of four tiles: fewer folds in all than any even cut has."""
    array = Sigma(dpes=16, multipliers=64, bandwidth=32)
    problem = Problem.dense(MatMul(699, 51, 123), 2)
    for room, speed, most in ((16384, 101.0, 7820), (17381, 101.0, 7820), (32768, 126.0, 6290)):
        (best,) = search([problem], array, Supply(resident_bytes=room, bytes_per_cycle=speed))
        assert best.cycles <= most
