"""Candidates of the search over tiles and their lower bounds, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from trainyard.arrays import Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.mapping.gradient_order.search import (
    _bursts,
    _compute,
    _halvings,
    _least_bytes,
    _prepared,
    all_tiles,
    best,
    best_candidate,
    candidates,
    doublings,
    fastest,
    granule,
)
from trainyard.mapping.gradient_order.tile_streams import Order, Partition, Size, grid
from trainyard.mapping.tile_descent import CountedTiles
from trainyard.mapping.tiling import Supply

ARRAY = Systolic(rows=4, columns=4)
PAIR = Pair.dense(MatMul(12, 8, 6, 2), 1)
ALONE = replace(PAIR, alone=True, moved=(192, 96, 0, 144, 0), resident=(192, 96, 0, 144, 0), sums=(144, 0))


def odd_cycles(m: int, n: int, k: int) -> int:
    return 100 * m + 10 * n + k


COUNTED = CountedTiles(ARRAY, odd_cycles)


@dataclass
class Measured:
    cycles: int
    total_bytes: int

    @property
    def traffic(self) -> Measured:
        return self


def listed(*costs: tuple[float, int, int]) -> tuple[list[tuple[float, Callable[[], Measured]]], list[int]]:
    """Candidates (bound, cycles, bytes) that note when they are evaluated."""
    asked: list[int] = []

    def one(number: int, cycles: int, size: int) -> Measured:
        asked.append(number)
        return Measured(cycles, size)

    return [(bound, lambda n=n, c=c, b=b: one(n, c, b)) for n, (bound, c, b) in enumerate(costs)], asked  # type: ignore[misc]


# fmt: off
CHOICES: list[tuple[dict[str, Any], list[tuple[float, int, int]], int | None, list[int]]] = [
    # options                                   bound, cycles, bytes                       taken  evaluated
    ({},                                        [(5, 10, 1), (3, 8, 1), (9, 9, 1)],        1,     [1, 0]),   # 9 is not below 8
    ({},                                        [(3, 8, 7), (4, 8, 6), (8, 8, 5)],         1,     [0, 1]),   # as fast: fewer bytes
    ({},                                        [(3, 8, 7), (4, 8, 7)],                    0,     [0, 1]),   # equal: the first
    ({"most_cycles": 8},                        [(3, 9, 1), (4, 8, 1)],                    1,     [0, 1]),
    ({"most_cycles": 8},                        [(8, 9, 1), (9, 9, 1)],                    None,  [0]),
    ({"objective": "traffic"},                  [(5, 1, 9), (3, 9, 6), (6, 2, 6), (7, 1, 7)], 2,  [1, 0, 2]),  # as lean, and faster
    ({"objective": "traffic", "most_cycles": 5}, [(3, 9, 4), (4, 5, 5)],                   1,     [0, 1]),
]
# fmt: on


@pytest.mark.parametrize(("options", "costs", "taken", "evaluated"), CHOICES)
def test_candidates_are_evaluated_by_their_bounds_until_none_can_be_better(
    options: dict[str, Any], costs: list[tuple[float, int, int]], taken: int | None, evaluated: list[int]
) -> None:
    options_by_bound, asked = listed(*costs)
    found = best_candidate(options_by_bound, **options)
    assert found == (None if taken is None else Measured(*costs[taken][1:]))
    assert asked == evaluated


def test_sizes_are_doublings_below_the_dimension_and_the_dimension() -> None:
    assert doublings(20, 4) == (4, 8, 16, 20)
    assert doublings(16, 4) == (4, 8, 16)
    assert doublings(3, 4) == (3,)
    assert doublings(1, 1) == (1,)


def test_halvings_go_down_to_single_elements_along_every_axis() -> None:
    assert list(_halvings((20, 5, 3), (8, 8, 1))) == [(4, 2, 1), (2, 1, 1), (1, 1, 1)]
    assert list(_halvings((1, 1, 1), (8, 8, 8))) == []


def test_tiles_that_fit_come_with_the_fewest_operations_first() -> None:
    """m n + the larger of (m k + k n) of both gradients, in bytes: 8 x 8 x 6 takes 160, 12 x 8 x 6 takes 216."""
    assert candidates(PAIR, (4, 4, 4), 216)[:2] == [(12, 8, 6), (8, 8, 6)]
    assert candidates(PAIR, (4, 4, 4), 215)[0] == (8, 8, 6)
    assert candidates(PAIR, (4, 4, 4), 48) == [(4, 4, 4)]
    assert candidates(PAIR, (4, 4, 4), 47) == [(2, 2, 2)], "below the granule only where nothing else fits"
    assert candidates(PAIR, (4, 4, 4), 11) == [(1, 1, 1)]
    assert candidates(PAIR, (4, 4, 4), 2) == []


def test_sizes_that_are_given_stay_and_every_core_needs_room() -> None:
    assert {tile[1] for tile in candidates(PAIR, (4, 4, 4), 216, None, (0, 3, 0))} == {3}
    assert {tile[0] for tile in candidates(PAIR, (4, 4, 4), 216, None, (99, 0, 0))} == {12}
    assert candidates(PAIR, (4, 4, 4), 20, None, (0, 0, 6)) == [(1, 1, 6)]
    cores = Partition(axis="m", parts=3, cores=True)
    assert candidates(PAIR, (4, 4, 4), 3 * 48, cores) == [(4, 4, 4)]
    assert candidates(PAIR, (4, 4, 4), 3 * 48 - 1, cores) == [(2, 2, 2)]
    assert candidates(PAIR, (4, 4, 4), 48, replace(cores, cores=False)) == [(4, 4, 4)]


def test_the_granule_of_a_pair_serves_both_roles_of_an_axis() -> None:
    """dX (m x k, summed over n) and dW (k x n, summed over m), on arrays of 16 x 8 (and 2 deep)."""

    class Sized(Systolic):
        def granule(self) -> Size:
            return 16, 8, 2

    array = Sized(rows=4, columns=4)
    assert granule(PAIR, array) == (16, 8, 16)
    assert granule(ALONE, array) == (16, 2, 8)
    assert granule(replace(PAIR, dw_transposed=True), array) == (16, 16, 8)
    assert granule(replace(PAIR, windows=9), array) == (16, 8, 8)
    assert granule(replace(PAIR, spread=4), array) == (4, 8, 16)
    assert granule(replace(PAIR, spread=9), array) == (2, 8, 16)


def test_cycles_of_all_tiles_are_those_of_each_gradient_and_size() -> None:
    """Tiles 8 and 4 along m, 8 along n, 4 and 2 along k; dX of a tile is (m, k, n), dW (k, n, m)."""
    cut = grid(PAIR.op, (8, 8, 4))
    tiles = [(m, 8, k) for m in (8, 4) for k in (4, 2)]
    dx, dw = sum(odd_cycles(m, k, n) for m, n, k in tiles), sum(odd_cycles(k, n, m) for m, n, k in tiles)
    assert all_tiles(PAIR, cut, ("dX",), COUNTED) == dx
    assert all_tiles(PAIR, cut, ("dX", "dW"), COUNTED) == dx + dw


def test_the_first_loads_and_the_last_write_are_added_to_the_cycles_of_the_array() -> None:
    """First dY and W: 8 x 8 and 4 x 8 bytes. Last: dW of 2 x 8 bytes, or dX of 4 x 2."""
    supply = Supply(resident_bytes=1000, bytes_per_cycle=4.0, latency_cycles=7)
    cut = grid(PAIR.op, (8, 8, 4))
    both, one = all_tiles(PAIR, cut, ("dX", "dW"), COUNTED), all_tiles(PAIR, cut, ("dX",), COUNTED)
    assert _compute(PAIR, (8, 8, 4), COUNTED, supply, None) == 2 * both + (64 + 32 + 16) / 4 + 14
    assert _compute(ALONE, (8, 8, 4), COUNTED, supply, None) == 2 * one + (64 + 32 + 8) / 4 + 14
    cores = Partition(axis="n", parts=2, cores=True)
    halves = all_tiles(PAIR, grid(PAIR.op, (8, 8, 4), cores), ("dX", "dW"), COUNTED)
    assert _compute(PAIR, (8, 8, 4), COUNTED, supply, cores) == 2 * halves / 2 + (32 + 16 + 8) / 4 + 14
    in_turn = replace(cores, cores=False)
    assert _compute(PAIR, (8, 8, 4), COUNTED, supply, in_turn) == 2 * halves + (32 + 16 + 8) / 4 + 14


# fmt: off
BURSTS = [
    # pair   tile        partition                              policy    transfers: half of all operand tiles, and the last write
    (PAIR,   (4, 4, 2),  None,                                  "lru",    2 * 11 + 1),   # dY 3 x 2, W 3 x 2, X 3 x 3: 21
    (ALONE,  (4, 4, 2),  None,                                  "lru",    2 * 6 + 1),
    (PAIR,   (4, 4, 2),  Partition(axis="n", parts=2, cores=True), "lru", 2 * 6 + 1),    # by two cores
    (PAIR,   (4, 4, 2),  Partition(axis="n", parts=2),          "lru",    2 * 11 + 1),
    (PAIR,   (4, 4, 2),  None,                                  "window", 2),
]
# fmt: on


@pytest.mark.parametrize(("pair", "tile", "partition", "policy", "expected"), BURSTS)
def test_a_step_loads_at_most_two_operand_tiles(pair: Pair, tile: Size, partition: Any, policy: Any, expected: int) -> None:
    assert _bursts(pair, tile, partition, policy) == expected


ONE = Pair.dense(MatMul(12, 8, 6), 1)
"""dY 96, W and dW 48, X and dX 72 bytes; in tiles of 4 x 4 x 2: three turns of m, two of n, three of k."""
# fmt: off
RELOADED: list[tuple[Order, int, float]] = [
    # order           room  reloaded where the farthest leaves first: in all turns but the first what has no room
    ("sequential",    1000, 0),
    ("sequential",    47,   2 * 1 + 2 * 49 + 49),                    # W over m; dY over k of dW; dY again for dW
    ("sequential",    31,   2 * 17 + 3 * 2 * 1 + 2 * 65 + 65),       # and a row of dY, 32 bytes, over k
    ("sequential",    23,   2 * 25 + 3 * 2 * 9 + 3 * 1 + 2 * 73 + 73),  # and a column of X, 24 bytes, over n
    ("no_second_dy",  31,   2 * 17 + 3 * 2 * 1),
    ("interleaved",   31,   2 * 17 + max(3 * 2 * 1, 2 * 65)),
    ("dx_major",      95,   2 * 1),                                  # W and dW over m
    ("dx_major",      31,   2 * 65 + 3 * 2 * 1),
    ("dw_major",      143,  1 * 1),                                  # X and dX over n
    ("dw_major",      47,   97 + 2 * 2 * 1),                         # and a column of dY, 48 bytes, over k
    ("dx_major_mnk",  47,   2 * 49 + 3 * 1 * 1),                     # and a row of X and dX, 48 bytes, over n
    ("dw_major_nmk",  47,   97 + 2 * 2 * 1),                         # and a column of W and dW, 48 bytes, over m
]
# fmt: on


@pytest.mark.parametrize(("order", "room", "again"), RELOADED)
def test_what_has_no_room_is_loaded_again_in_every_turn_of_its_loop(order: Order, room: int, again: float) -> None:
    moved = _least_bytes(ONE, (4, 4, 2), order, room, "farthest", None)
    assert moved - ONE.compulsory_bytes == pytest.approx(again)


LRU: list[tuple[Order, int, float]] = [
    # in its last turn sums end: only what has no room comes again; in the turns before all of it, sums written and read
    ("dx_major", 95, 1 * 1 + 1 * (48 + 2 * 48)),
    ("dw_major", 143, 1 * 1),
    ("dx_major_mnk", 47, (49 + 48 + 2 * 48) + 3 * 1),
]


@pytest.mark.parametrize(("order", "room", "again"), LRU)
def test_where_the_least_recent_leaves_all_of_a_loop_comes_again_but_for_the_turn_in_which_sums_end(
    order: Order, room: int, again: float
) -> None:
    assert _least_bytes(ONE, (4, 4, 2), order, room, "lru", None) - ONE.compulsory_bytes == pytest.approx(again)


def test_each_part_of_a_layer_reloads_its_own_and_cores_may_help_one_another() -> None:
    """Two parts of 6 rows: two turns of m each, the second of which brings W again."""
    moved = {
        cores: _least_bytes(ONE, (4, 4, 2), "sequential", 47, "lru", Partition(axis="m", parts=2, cores=cores))
        for cores in (False, True)
    }
    assert moved[False] - ONE.compulsory_bytes == 2 * (
        1 * 48 + 2 * 48 + 1
    )  # W over m; dY, 48 bytes of a part, over k of dW; and again
    assert moved[True] - ONE.compulsory_bytes == 1 + 2 * 1 + 1


def test_equal_products_reload_each_their_own() -> None:
    one, two = (_least_bytes(pair, (4, 4, 2), "sequential", 47, "farthest", None) for pair in (ONE, PAIR))
    assert two == 2 * one


def test_where_nothing_fits_the_reason_is_given() -> None:
    tight = Supply(resident_bytes=2, bytes_per_cycle=1.0)
    assert fastest(ONE, ARRAY, tight) is None
    with pytest.raises(BadInput, match="one element of each tensor needs 3 bytes, half of the scratchpad holds 2"):
        best(ONE, ARRAY, tight)
    with pytest.raises(BadInput, match="a step with tiles 4 x 4 x 4"):
        best(ONE, ARRAY, replace(tight, resident_bytes=47), tile=(4, 4, 4))
    with pytest.raises(BadInput, match="more than are walked one by one"):
        best(Pair.dense(MatMul(4096, 4096, 4096), 1), ARRAY, replace(tight, resident_bytes=3))


@pytest.mark.parametrize("fraction", [0, 2])
def test_fractions_of_bytes_in_the_scratchpad_get_some_tolerance(fraction: int) -> None:
    """Three bytes for two elements of dY, or of X; unfinished sums are whole in any case."""
    forms = tuple(form.row for form in ARRAY.folds)
    supply = Supply(resident_bytes=100, bytes_per_cycle=1.0)
    resident = [96, 48, 72, 72, 48]
    for sizes, slack in (
        (tuple(resident), 1.0),
        (tuple(3 * size // 2 if n == fraction else size for n, size in enumerate(resident)), 1 + 1e-9),
    ):
        pair = replace(ONE, resident=sizes)  # type: ignore[arg-type]
        found = _prepared(pair, forms, (4, 4, 4), ("sequential",), (None,), None).task(supply)
        assert found is not None
        assert found[0].limits.tolist() == [100.0, 1.0, 100.0 * slack]
