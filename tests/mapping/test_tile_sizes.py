"""Sizes that searches for tiles look at, and what they say where nothing fits; by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.ir.folds import Folds
from trainyard.mapping.bandwidths import Samples, _folds, _rooms, _rounded_down, search_tiles
from trainyard.mapping.halo import Halo, WindowAxis
from trainyard.mapping.tile_descent import _filling, _neighbours, sizes_of
from trainyard.mapping.tiling import (
    ORDERS,
    Problem,
    ProblemTable,
    Supply,
    Tiling,
    _allowed,
    closed_form,
    nothing_fits,
    passes,
    tiled,
)

MENUS = [[1, 2, 4, 8], [1, 2, 4], [1, 3, 6]]


def room(most: int):  # type: ignore[no-untyped-def]
    return lambda size: size[0] * size[1] * size[2] <= most


def test_sizes_are_equal_parts_and_doublings_of_the_granule() -> None:
    assert sizes_of(1, 4) == [1]
    assert sizes_of(5, 4) == [1, 2, 3, 4, 5]
    assert set(sizes_of(40, 16)) >= {40, 20, 14, 10, 8, 16, 32, 1}
    assert 64 not in sizes_of(40, 16)


def test_the_longest_axis_shrinks_until_the_tile_fits_a_spared_one_last() -> None:
    """8 x 4 x 6: m, then k, then m and n shrink; where m is spared, n and k do first."""
    assert list(_filling((8, 4, 6), MENUS, room(192))) == [(8, 4, 6)] * 4
    assert list(_filling((8, 4, 6), MENUS, room(96))) == [(4, 4, 6), (8, 4, 3), (4, 4, 6), (4, 4, 6)]
    assert list(_filling((8, 4, 6), MENUS, room(24)))[:2] == [(2, 4, 3), (8, 2, 1)]
    assert list(_filling((8, 4, 6), MENUS, room(4)))[1] == (4, 1, 1)
    assert list(_filling((8, 4, 6), MENUS, room(0))) == []


def test_neighbours_are_longer_or_shorter_along_one_axis_and_others_make_room() -> None:
    found = list(_neighbours((2, 2, 3), MENUS, room(10**6)))
    assert {(1, 2, 3), (4, 2, 3), (2, 1, 3), (2, 4, 3), (2, 2, 1), (2, 2, 6)} <= set(found)
    tight = set(_neighbours((2, 2, 3), MENUS, room(12)))
    assert {(4, 1, 3), (4, 2, 1), (1, 4, 3), (2, 4, 1), (1, 2, 6), (2, 1, 6)} <= tight
    assert (4, 2, 3) not in tight


def test_tiles_are_aligned_to_the_granule_and_the_folds_largest_first() -> None:
    forms = tuple(Folds(m=m, n=4, k=1, stream="k") for m in (2, 8, 16, 32))
    assert _folds(forms, (4, 4, 6)).tolist() == [[32, 16, 8], [4, 1, 1], [6, 1, 1]]
    assert _folds((), (4, 8, 2)).tolist() == [[4], [8], [2]]


def test_scratchpads_and_latencies_are_searched_at_round_sizes() -> None:
    assert _rooms(8.0, 8) == (8.0, 8.0)
    assert _rooms(8.5, 8) == (8.0, 9.0)
    assert _rooms(15.9, 8) == (15.0, 16.0)
    assert _rooms(0.5, 8) == (0.5, 0.5)
    assert [_rounded_down(latency) for latency in (-1, 0, 1, 2, 3, 128)] == [0, 0, 1, 2, 2, 128]


@pytest.mark.parametrize("speed", [0.3, 1.0, 7.7, 64.0, 1000.0])
def test_a_bandwidth_lies_between_two_samples_of_its_range(speed: float) -> None:
    """A range is an eighth of an octave at five bandwidths; between two of them five more."""
    samples = Samples.around(speed)
    assert len(samples.range) == len(samples.finer) == 5
    assert samples.range[0] / samples.range[-1] == pytest.approx(2 ** (1 / 8))
    assert samples.range[-1] <= speed * (1 + 1e-12)
    assert speed <= samples.range[0] * (1 + 1e-12)
    assert samples.finer[-1] <= speed * (1 + 1e-12)
    assert speed <= samples.finer[0] * (1 + 1e-12)
    assert samples.finer[0] / samples.finer[-1] == pytest.approx(2 ** (1 / 32))
    assert np.isclose(samples.range, samples.finer[0]).any()


# tilings


def test_a_constraint_leaves_the_orders_that_keep_what_it_says() -> None:
    """Bits: six orders with nothing kept, six with what lacks the middle loop, six with what lacks the outer loop as well."""
    assert _allowed((), ()) == 2**18 - 1
    assert _allowed(("mnk",), ()) == sum(1 << (ORDERS.index("mnk") + 6 * kept) for kept in range(3))
    keeping_sums = {order for order in ORDERS if order[2] == "k"}
    bits = _allowed((), ("out",))
    assert {order for order in ORDERS if bits >> ORDERS.index(order) & 1} == keeping_sums
    assert {order for order in ORDERS if bits >> (6 + ORDERS.index(order)) & 1} == {order for order in ORDERS if order[0] != "k"}
    assert bits >> 12 == 2**6 - 1
    assert _allowed(("mnk",), ("b",)) == 1 << (12 + ORDERS.index("mnk"))


def test_nothing_fits_says_the_least_scratchpad_of_the_tile_that_was_given_or_of_one_element() -> None:
    problem, supply = Problem.dense(MatMul(8, 8, 8), 2), Supply(resident_bytes=7, bytes_per_cycle=1.0)
    message = str(nothing_fits(problem, supply, None))
    assert "tile 1 x 1 x 1 " in message
    assert "needs 8 bytes, half of the scratchpad holds 7: give a larger scratchpad (16 bytes at least)" in message
    assert "smaller tiling" not in message
    message = str(nothing_fits(replace(problem, tile=(0, 0, 99)), supply, (2, 0, 4)))
    assert "tile 2 x 1 x 8 " in message
    assert "needs 56 bytes" in message  # 2 x 8 and 8 x 1 elements of 2 bytes, 2 sums of 4
    assert message.endswith("(112 bytes at least) or a smaller tiling")


def test_bytes_of_a_tiling_are_those_of_its_passes_and_of_halos() -> None:
    problem = Problem(op=MatMul(8, 6, 4), a_bytes=100, b_bytes=200, out_bytes=300, sum_bytes=400)
    tiling = Tiling(m=4, n=3, k=2, order="kmn")
    assert passes(problem.op, tiling) == (1, 2, 2)
    cost = closed_form(problem, tiling, 7, 5, (3, 2, 4))
    assert (cost.a_read, cost.b_read, cost.out_moved, cost.spill_write, cost.spill_read) == (300, 400, 300, 1200, 1200)
    assert (cost.cycles, cost.compute_cycles, cost.dram_bytes, cost.proven) == (7, 5, 3400, True)
    axis = WindowAxis(extent=8, revisits=1.0, gap=1.0, distance=1.0)
    for operand, along, size, extent in (("a", "m", 4, 8), ("a", "k", 2, 4), ("out", "m", 4, 8)):
        halo = Halo(axis=along, operand=operand, positions=8, axes=(axis,))  # type: ignore[arg-type]
        more = 1 + extent // size * (halo.spread(size) - size) / extent
        assert more > 1
        cost = closed_form(replace(problem, halo=halo), tiling, 7, 5, (3, 2, 4))
        assert cost.a_read == round(300 * (more if operand == "a" else 1))
        assert cost.out_moved == round(300 * (more if operand == "out" else 1))


def test_a_row_of_the_search_names_sizes_order_and_what_is_kept() -> None:
    problem = Problem(op=MatMul(8, 6, 4), a_bytes=100, b_bytes=200, out_bytes=300, sum_bytes=400)
    cost = tiled(problem, [4, 3, 2, ORDERS.index("nkm"), 70, 50, 0, 3, 2, 1, 0b101, 0])
    assert cost.tiling == Tiling(m=4, n=3, k=2, order="nkm", keep=("a", "out"))
    assert (cost.cycles, cost.compute_cycles, cost.proven) == (70, 50, False)
    assert (cost.a_read, cost.b_read, cost.spill_write) == (300, 400, 0)
    assert tiled(problem, [4, 3, 2, 0, 70, 50, 1, 3, 2, 1, 0, 0]).proven


def test_rows_of_a_search_are_shared_and_cannot_be_changed() -> None:
    """The same question has the same answer, which a caller that wrote into it would change for all others."""
    array, supply = Systolic(rows=4, columns=4), Supply(resident_bytes=500, bytes_per_cycle=4.0)
    table = ProblemTable.of([Problem.dense(MatMul(8, 8, 8), 2)])
    rows = search_tiles(table, array.folds, array, supply)
    assert search_tiles(table, array.folds, array, supply) is rows
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1
