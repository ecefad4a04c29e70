"""Which of a few tilings is taken, on an array whose events are made up; and lower bounds of tiles that count every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from trainyard.arrays import Systolic
from trainyard.hardware.tables.energy import Prices
from trainyard.ir import ArrayCost, MatMul
from trainyard.mapping.tile_choice import best_of, on_chip_joules
from trainyard.mapping.tile_costs import _least_totals, candidate_sizes
from trainyard.mapping.tiling import Problem, Tiled, Tiling


class Counting(Systolic):
    """Reads every operand once, writes every sum once, and takes a cycle for each row."""

    def cost(self, op: MatMul, **operands: object) -> ArrayCost:
        events = {
            "scratchpad_read_a": op.M * op.K, "scratchpad_read_b": op.K * op.N, "scratchpad_write_out": op.M * op.N,
            "local_read_a": op.M,
        }  # fmt: skip
        return ArrayCost(cycles=op.M, events=events)


ARRAY = Counting(rows=4, columns=4)
PRICES = Prices(dram=100.0, read=2.0, write=3.0, local=5.0, cycle=7.0)


def problem(count: int = 1) -> Problem:
    return Problem.dense(MatMul(5, 4, 6, count), element_bytes=2)


def tiled(cycles: int, dram: int, m: int = 5, n: int = 4, k: int = 6) -> Tiled:
    tiling = Tiling(m=m, n=n, k=k)
    return Tiled(
        tiling=tiling, cycles=cycles, compute_cycles=cycles, a_read=dram, b_read=0, out_moved=0, spill_write=0, spill_read=0
    )


def test_joules_on_chip_are_those_of_every_tile_and_of_sums_that_are_added_to() -> None:
    """Tiles of 3 rows and 4 deep: two along m (3, 2), two along k (4, 2). B is read for each tile of m, a sum added to once."""
    reads_a, reads_b, sums = 5 * 6, 2 * 6 * 4, 2 * 5 * 4
    expected = 2 * 2.0 * (reads_a + reads_b) + 4 * 3.0 * sums + 2 * 5.0 * (2 * 5) + 7.0 * (2 * 5) + 4 * 2.0 * 5 * 4
    assert on_chip_joules(problem(), Tiling(m=3, n=4, k=4), ARRAY, PRICES) == pytest.approx(expected)
    assert on_chip_joules(problem(3), Tiling(m=3, n=4, k=4), ARRAY, PRICES) == pytest.approx(3 * expected)


def test_a_tile_larger_than_the_product_is_the_product() -> None:
    whole = on_chip_joules(problem(), Tiling(m=5, n=4, k=6), ARRAY, PRICES)
    assert on_chip_joules(problem(), Tiling(m=8, n=8, k=8), ARRAY, PRICES) == whole
    assert whole == pytest.approx(2 * 2.0 * (30 + 24) + 4 * 3.0 * 20 + 2 * 5.0 * 5 + 7.0 * 5)


def test_operands_that_differ_at_the_array_count_as_they_are_there() -> None:
    wide = replace(problem(), element_bytes=(1.0, 3.0))
    joules = on_chip_joules(wide, Tiling(m=5, n=4, k=6), ARRAY, PRICES)
    assert joules == pytest.approx(2.0 * (1 * 30 + 3 * 24) + 4 * 3.0 * 20 + 1 * 5.0 * 5 + 7.0 * 5)
    assert on_chip_joules(replace(wide, element_bytes=None), Tiling(m=5, n=4, k=6), ARRAY, PRICES) == pytest.approx(
        on_chip_joules(problem(), Tiling(m=5, n=4, k=6), ARRAY, PRICES)
    )


def test_time_counts_first_then_traffic_then_energy() -> None:
    fast, lean, frugal = tiled(100, 900), tiled(101, 500), tiled(101, 505, m=5)
    small = tiled(101, 504, m=1)  # B is read five times
    assert best_of([fast, lean], problem(), ARRAY, 0.0, PRICES) is fast
    assert best_of([fast, lean], problem(), ARRAY, 0.01, PRICES) is lean
    cheap = Prices(dram=0.0, read=2.0, write=3.0)
    assert best_of([small, frugal], problem(), ARRAY, 0.01, cheap) is frugal
    assert best_of([small, frugal], problem(), ARRAY, 0.001, cheap) is small, "more than the tolerance apart"


def test_of_equal_joules_the_least_traffic_then_the_fewest_cycles_then_the_first() -> None:
    free = Prices(dram=0.0, read=0.0, write=0.0)
    one, leaner, faster = tiled(101, 505), tiled(101, 504), tiled(100, 504)
    assert best_of([one, leaner], problem(), ARRAY, 0.1, free) is leaner
    assert best_of([leaner, faster], problem(), ARRAY, 0.1, free) is faster
    assert best_of([twin := tiled(100, 504), faster], problem(), ARRAY, 0.1, free) is twin


def test_dram_bytes_cost_their_pins_and_half_a_read_and_a_write() -> None:
    """20 bytes more, of 2 + 2.5 joules, against B read once more for 96."""
    many, few = tiled(100, 1000, m=3), tiled(100, 1020)
    assert on_chip_joules(problem(), many.tiling, ARRAY, Prices(0.0, 2.0, 3.0)) == 96 + on_chip_joules(
        problem(), few.tiling, ARRAY, Prices(0.0, 2.0, 3.0)
    )
    assert best_of([many, few], problem(), ARRAY, 0.1, Prices(2.2, 2.0, 3.0)) is few  # 94 against 96
    assert best_of([many, few], problem(), ARRAY, 0.1, Prices(2.4, 2.0, 3.0)) is many  # 98


def test_only_the_eight_tilings_with_the_fewest_tiles_are_asked_for_their_events() -> None:
    asked: list[MatMul] = []

    class Asked(Counting):
        def cost(self, op: MatMul, **operands: object) -> ArrayCost:
            asked.append(op)
            return super().cost(op)

    large = Problem.dense(MatMul(64, 4, 6), element_bytes=2)
    sizes = [5, 6, 7, 8, 10, 11, 13, 16, 22, 32, 64]  # 13, 11, 10 tiles; then 8, 7, ... 1
    best_of([tiled(100, 500, m=size) for size in sizes], large, Asked(rows=4, columns=4), 0.0, PRICES)
    assert set(sizes) & {op.M for op in asked} == set(sizes[3:])


# bounds and candidates


@dataclass(frozen=True)
class Least:
    """Tiles take their elements of A, and three cycles more."""

    def least_cycles(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.asarray(sizes[:, 0] * sizes[:, 2] + 3, np.float64)


@pytest.mark.parametrize("tile", [(5, 4, 6), (2, 4, 6), (2, 3, 4), (1, 1, 1), (5, 3, 6)])
def test_least_cycles_of_a_product_are_those_of_its_tiles_one_by_one(tile: tuple[int, int, int]) -> None:
    op = problem(3).op
    one_by_one = [
        min(tile[0], op.M - m) * min(tile[2], op.K - k) + 3
        for m in range(0, op.M, tile[0])
        for _ in range(0, op.N, tile[1])
        for k in range(0, op.K, tile[2])
    ]
    assert _least_totals(problem(3), Least(), np.array([tile])).tolist() == [3 * sum(one_by_one)]


def test_small_dimensions_have_every_size_and_larger_ones_parts_doublings_and_halvings() -> None:
    assert candidate_sizes(12, 4) == list(range(1, 13))
    assert candidate_sizes(13, 4) == [1, 2, 3, 4, 5, 7, 8, 13]
    assert candidate_sizes(64, 16) == [1, 2, 4, 8, 11, 13, 16, 22, 32, 64]
    assert candidate_sizes(13, 100) == [1, 3, 4, 5, 6, 7, 12, 13]
