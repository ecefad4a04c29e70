"""The descent over tile sizes: near the best of all sizes, with few questions to the array."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import EyerissV2, OuterSpace, Sigma, Systolic
from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul
from trainyard.mapping.tile_descent import MOST_TILES, CountedTiles, descend, sizes_of
from trainyard.mapping.tiling import Problem, Supply, evaluate, search

ARRAYS = [Systolic(rows=4, columns=8), Sigma(dpes=4, multipliers=4, bandwidth=4), Systolic(rows=2, columns=2, dataflow="os")]


def asked_tile_by_tile(array: Array) -> CountedTiles:
    return CountedTiles(array, lambda m, n, k: array.cost(MatMul(m, n, k)).cycles)


def random_problem(seed: int, longest: int) -> tuple[Problem, Supply]:
    random = np.random.default_rng(seed)
    m, n, k = (int(side) for side in random.integers(1, longest + 1, 3))
    room = float(2 ** random.uniform(4, 9)) * (1 + longest / 16)
    supply = Supply(resident_bytes=room, bytes_per_cycle=float(2 ** random.uniform(-1, 5)), latency_cycles=int(random.integers(30)))
    return Problem.dense(MatMul(m, n, k, int(random.integers(1, 4))), 2), supply


@given(st.integers(0, 10**6), st.sampled_from(ARRAYS), st.lists(st.tuples(*[st.integers(1, 60)] * 3), max_size=2))
def test_tiles_fit_are_sorted_and_cost_what_the_closed_form_says(
    seed: int, array: Array, starts: list[tuple[int, int, int]]
) -> None:
    problem, supply = random_problem(seed, 48)
    counted = asked_tile_by_tile(array)
    tiles = descend(problem, counted, supply, starts)
    a, b, sums = problem.sram_rates
    for tiled in tiles:
        m, n, k = tiled.tiling.m, tiled.tiling.n, tiled.tiling.k
        assert m * k * a + k * n * b + m * n * sums <= supply.resident_bytes
        assert evaluate(problem, tiled.tiling, counted, supply) == tiled
    assert [tiled.cycles for tiled in tiles] == sorted(tiled.cycles for tiled in tiles)
    assert len(counted.known) <= 8 * MOST_TILES
    a_tile_fits = a + b + sums <= supply.resident_bytes
    assert bool(tiles) == a_tile_fits


@pytest.mark.oracle
@pytest.mark.parametrize("array", ARRAYS)
def test_the_descent_is_near_the_best_of_all_sizes(array: Array) -> None:
    ratios = []
    for seed in range(8):
        problem, supply = random_problem(seed, 8)
        op, counted, best = problem.op, asked_tile_by_tile(array), np.inf
        tiles = descend(problem, counted, supply)
        if not tiles:
            continue
        for size in itertools.product(range(1, op.M + 1), range(1, op.N + 1), range(1, op.K + 1)):
            try:
                (tiled,) = search([problem], counted, supply, size)
            except BadInput:
                continue
            best = min(best, tiled.cycles)
        ratios.append(tiles[0].cycles / best)
    assert len(ratios) >= 6
    assert min(ratios) >= 1.0
    assert np.mean(ratios) <= 1.02
    assert max(ratios) <= 1.1


@pytest.mark.parametrize(
    "array", [OuterSpace(elements=16), EyerissV2(rows=2, columns=2), Sigma(dpes=2, multipliers=4, stationary="none")]
)
def test_a_descent_comes_near_the_search_by_bounds(array: Array) -> None:
    problem, supply = random_problem(3, 40)
    (found,) = search([problem], array, supply)
    assert found.cycles <= 1.01 * descend(problem, asked_tile_by_tile(array), supply)[0].cycles


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([(), ("mnk",), ("kmn", "knm")]))
def test_fixed_sizes_and_orders_stay(seed: int, depth: int, orders: tuple[str, ...]) -> None:
    problem, supply = random_problem(seed, 24)
    problem = replace(problem, tile=(0, 0, depth), orders=orders)
    for tiled in descend(problem, asked_tile_by_tile(ARRAYS[1]), supply, [(8, 8, 8)]):
        assert tiled.tiling.k == min(depth, problem.op.K)
        assert not orders or tiled.tiling.order in orders


def test_a_scratchpad_without_room_for_one_element_of_each_tensor_is_refused() -> None:
    supply = Supply(resident_bytes=7.0, bytes_per_cycle=1.0)
    with pytest.raises(BadInput, match=r"tile 1 x 1 x 1 .* needs 8 bytes"):
        search([Problem.dense(MatMul(4, 4, 4), 2)], OuterSpace(elements=16), supply)


@settings(max_examples=30)
@given(st.integers(1, 5000), st.integers(1, 300))
def test_sizes_are_between_one_and_the_dimension(extent: int, granule: int) -> None:
    sizes = sizes_of(extent, granule)
    assert sizes[0] == 1
    assert sizes[-1] == extent
    assert sizes == sorted(set(sizes))
