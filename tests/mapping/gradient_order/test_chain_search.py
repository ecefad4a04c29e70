"""The search for a chain's tiles finds what trying all of them finds, and nothing slower than it was asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.chain import CHAIN_POLICIES, JOINS, Chain, ChainCost, chain_cost
from trainyard.mapping.gradient_order.chain_search import _candidates, _compute, _operations, _reloaded_bytes, fastest
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.mapping.gradient_order.search import doublings
from trainyard.mapping.tile_descent import CountedTiles
from trainyard.mapping.tiling import Supply

ARRAY = Systolic(rows=4, columns=4)


def every(chain: Chain, supply: Supply, policy) -> list[ChainCost]:  # type: ignore[no-untyped-def]
    upper, lower = chain.upper.op, chain.lower.op
    found = []
    for m, n, k, j in product(*(doublings(extent, 4) for extent in (upper.M, upper.N, upper.K, lower.K))):
        tiles = {"tile_upper": (m, n, k), "tile_lower": (m, k, j)}
        if chain.needed(*tiles.values()) <= supply.resident_bytes:
            found += [chain_cost(chain, array=ARRAY, supply=supply, policy=policy, join=join, **tiles) for join in JOINS]
    return found


extent = st.integers(1, 24)


@pytest.mark.oracle
@settings(max_examples=50, deadline=None)
@given(
    extents=st.tuples(extent, extent, extent, extent),
    room=st.integers(150, 5000),
    speed=st.sampled_from([0.5, 2, 16, 1000]),
    policy=st.sampled_from(CHAIN_POLICIES),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    count=st.sampled_from([1, 3]),
)
def test_no_tiles_are_faster(extents, room, speed, policy, flags, count) -> None:  # type: ignore[no-untyped-def]
    (m, n, k, j), (masked, lower_dx, wide) = extents, flags
    upper, lower = Pair.dense(MatMul(m, n, k, count), 2), Pair.dense(MatMul(m, k, j, count), 2)
    if wide:  # sums of four bytes
        held = [replace(pair, resident=(*pair.resident[:3], 2 * pair.resident[3], 2 * pair.resident[4])) for pair in (upper, lower)]
        upper, lower = (replace(pair, sums=(2 * pair.sums[0], 2 * pair.sums[1])) for pair in held)
    if not lower_dx:
        dy, _, x, _, dw = lower.moved
        lower = replace(lower, moved=(dy, 0, x, 0, dw), resident=(dy, 0, x, 0, lower.resident[4]), sums=(0, lower.sums[1]))
    chain = Chain(upper=upper, lower=lower, masked=masked, lower_dx=lower_dx)
    supply = Supply(resident_bytes=room, bytes_per_cycle=speed, latency_cycles=3)
    tried = every(chain, supply, policy)
    found = fastest(chain, ARRAY, supply, policy=policy)
    if not tried:
        assert found is None
        return
    least = min(one.cycles for one in tried)
    assert found is not None
    assert found.cycles == least
    assert all(one.traffic.total_bytes >= chain.compulsory_bytes for one in tried)
    assert fastest(chain, ARRAY, supply, policy=policy, most_cycles=least) == found
    assert fastest(chain, ARRAY, supply, policy=policy, most_cycles=least - 1) is None


def test_a_given_tile_is_kept_where_both_layers_can_have_it() -> None:
    chain = Chain(upper=Pair.dense(MatMul(32, 16, 16), 2), lower=Pair.dense(MatMul(32, 16, 8), 2))
    supply = Supply(resident_bytes=4000, bytes_per_cycle=4)
    found = fastest(chain, ARRAY, supply, tile=(8, 4, 4))
    assert found is not None
    assert found.tile_upper == found.tile_lower == (8, 4, 4)
    assert fastest(chain, ARRAY, supply, tile=(8, 4, 8)) is None  # the upper's k is cut in 8, the lower's n in 4
    whole = 2 * (4 * 16 * 32 - 16 * 16)  # dY, W, dX and the mask of the upper layer
    assert fastest(chain, ARRAY, replace(supply, resident_bytes=whole - 1), tile=(32, 64, 64)) is None
    assert fastest(chain, ARRAY, replace(supply, resident_bytes=whole), tile=(32, 64, 64)) is not None


SMALL = Chain(upper=Pair.dense(MatMul(12, 8, 6, 2), 1), lower=Pair.dense(MatMul(12, 6, 5, 2), 1))
"""Upper dY 96, W and dW 48, X and dX 72; lower W and dW 30, X and dX 60 bytes, twice. In tiles (4, 4, 2) over (4, 2, 5): three
blocks of rows, three tiles of k, one of j."""
UPPER, LOWER = (4, 4, 2), (4, 2, 5)


def odd_cycles(m: int, n: int, k: int) -> int:
    return 100 * m + 10 * n + k


def test_operations_of_both_layers_are_counted() -> None:
    assert _operations(SMALL, UPPER, LOWER) == 2 * 3 * 2 * 3 + 2 * 3 * 3 * 1
    assert _operations(replace(SMALL, lower_dx=False), UPPER, LOWER) == 2 * 3 * 2 * 3 + 3 * 3 * 1


def test_no_chain_is_faster_than_all_its_tiles_the_first_loads_and_the_last_write() -> None:
    """First dY 4 x 4 and W 2 x 4, last dW of the lower layer 5 x 2, at 2 bytes a cycle, and twice the latency."""
    upper = sum(odd_cycles(4, 2, 4) + odd_cycles(2, 4, 4) for _ in range(3 * 2 * 3))
    lower_dx, lower_dw = 9 * odd_cycles(4, 5, 2), 9 * odd_cycles(5, 2, 4)
    supply, counted = Supply(resident_bytes=999, bytes_per_cycle=2.0, latency_cycles=7), CountedTiles(ARRAY, odd_cycles)
    seen = (16 + 8 + 10) / 2 + 14
    assert _compute(SMALL, UPPER, LOWER, counted, supply) == 2 * (upper + lower_dx + lower_dw) + seen
    assert _compute(replace(SMALL, lower_dx=False), UPPER, LOWER, counted, supply) == 2 * (upper + lower_dw) + seen


# fmt: off
RELOADED = [
    # join     room  policy      lower dX  reloaded
    ("block",  156,  "farthest", True,     0),                           # W, dW of both layers: 48 + 48 + 30 + 30
    ("block",  155,  "farthest", True,     2 * 1),                       # in two of three blocks what has no room
    ("block",  155,  "lru",      True,     2 * (48 + 2 * 48 + 30 + 2 * 30)),  # or all of it, sums written and read
    ("block",  125,  "farthest", False,    2 * 1),                       # without the lower W
    ("block",  125,  "lru",      False,    2 * (48 + 2 * 48 + 2 * 30)),
    ("block",  31,   "farthest", True,     2 * 125 + 3 * 2 * 1),         # and rows of dY, 32 bytes, for two of three k
    ("tile",   39,   "farthest", True,     2 * 117 + 3 * 2 * 1),         # and X and dX of the lower layer's rows, 20 + 20
    ("tile",   39,   "lru",      True,     2 * (48 + 96 + 30 + 60) + 3 * 2 * (20 + 2 * 20)),
    ("tile",   19,   "farthest", False,    2 * 107 + 3 * (2 * 13 + 2 * 1)),
]
# fmt: on


@pytest.mark.parametrize(("join", "room", "policy", "lower_dx", "again"), RELOADED)
def test_what_has_no_room_is_loaded_again_for_every_block(join, room, policy, lower_dx, again) -> None:  # type: ignore[no-untyped-def]
    assert _reloaded_bytes(replace(SMALL, lower_dx=lower_dx), UPPER, LOWER, join, room, policy) == pytest.approx(again)


def test_rows_between_the_layers_come_again_for_every_j() -> None:
    """In tiles of 2 along the lower k there are three turns; the rows between are 4 x 6 bytes."""
    found = _reloaded_bytes(SMALL, UPPER, (4, 2, 2), "block", 23, "farthest")
    assert found == pytest.approx(2 * (156 - 23) + 3 * (2 * (32 - 23) + 2 * (24 - 23)))


def test_candidates_are_doublings_of_the_granules_of_both_layers_that_fit_few_operations_first() -> None:
    found = _candidates(SMALL, ARRAY, 10**6)
    assert found[0] == ((12, 8, 6), (12, 6, 5))
    assert {(m, n, k, j) for (m, n, k), (_, _, j) in found} == set(product((4, 8, 12), (4, 8), (4, 6), (4, 5)))
    assert all(lower[:2] == (upper[0], upper[2]) for upper, lower in found)
    needed = SMALL.needed((12, 8, 6), (12, 6, 5))
    assert ((12, 8, 6), (12, 6, 5)) in _candidates(SMALL, ARRAY, needed)
    assert ((12, 8, 6), (12, 6, 5)) not in _candidates(SMALL, ARRAY, needed - 1)
