"""Tiles: the closed form against a simulation of every tile, the search against every candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Sigma, Spatial, Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.tiling import ORDERS, Problem, Supply, Tiling, candidates, evaluate, search
from trainyard.mapping.walk import steps, walk

ARRAYS = [
    Systolic(rows=4, columns=4, dataflow="ws"),
    Systolic(rows=4, columns=2, dataflow="os"),
    Systolic(rows=2, columns=4, dataflow="is", pipelined=True),
    Spatial(elements=4, macs_per_element=3),
    Sigma(dpes=2, multipliers=4, bandwidth=3),
    Sigma(dpes=3, multipliers=2, bandwidth=2, streaming="limited", drain="pass"),
]


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
)
def test_the_closed_form_equals_the_simulation_tile_by_tile(problem, supply, array, tile, order):
    tiling = Tiling(m=tile[0], n=tile[1], k=tile[2], order=order)
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


def fits(problem, tile, supply):
    op = problem.op
    a_bytes, b_bytes = problem.a_sram_bytes or problem.a_bytes, problem.b_sram_bytes or problem.b_bytes
    left, right, out = (op.count * size for size in (op.M * op.K, op.K * op.N, op.M * op.N))
    rates = a_bytes / left, b_bytes / right, problem.sum_bytes / out
    return tile[0] * tile[2] * rates[0] + tile[2] * tile[1] * rates[1] + tile[0] * tile[1] * rates[2] <= supply.resident_bytes


@pytest.mark.oracle
@given(problem=problems(), supply=supplies, array=arrays)
def test_the_search_finds_the_fastest_of_all_candidates_and_orders(problem, supply, array):
    tiles = [tile for tile in candidates(problem.op, array.granule()) if fits(problem, tile, supply)]
    if not tiles:
        with pytest.raises(BadInput, match=r"needs .* bytes"):
            search([problem], array, supply)
        return
    (best,) = search([problem], array, supply)
    alternatives = [
        evaluate(problem, Tiling(m=tile[0], n=tile[1], k=tile[2], order=order), array, supply) for tile in tiles for order in ORDERS
    ]
    assert best.cycles == min(other.cycles for other in alternatives)
    assert best.dram_bytes == min(other.dram_bytes for other in alternatives if other.cycles == best.cycles)
    assert best == evaluate(problem, best.tiling, array, supply)


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
    for room in rooms:
        assert sorted((cycles[room, speed] for speed in speeds), reverse=True) == [cycles[room, speed] for speed in speeds]
    for speed in speeds:
        assert sorted((cycles[room, speed] for room in rooms), reverse=True) == [cycles[room, speed] for room in rooms]


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
    "op", [MatMul(10**10, 1, 10**10), MatMul(10**7, 10**7, 10**7), MatMul(10**20, 1, 1), MatMul(1, 1, 1, 10**16)]
)
def test_a_product_of_more_than_2_to_the_53_cycles_is_refused(op):
    supply = Supply(resident_bytes=4 * 2**20, bytes_per_cycle=150.0)
    with pytest.raises(BadInput, match=r"more than 2\*\*53 cycles"):
        search([Problem.dense(op, 4)], Systolic(rows=128, columns=128), supply)
