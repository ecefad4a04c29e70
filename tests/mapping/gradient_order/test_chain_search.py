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
from trainyard.mapping.gradient_order.chain_search import fastest
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.mapping.gradient_order.search import doublings
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
