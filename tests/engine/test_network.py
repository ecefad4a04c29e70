"""Fair rates by their definition, and 64-bit counting against Python's integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.engine.network import fair_rates
from trainyard.ir.plan import FASTEST_LINK
from trainyard.units import PICOSECONDS_PER_SECOND

PATHS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=12)
CAPACITIES = st.lists(st.integers(100, 10**12), min_size=6, max_size=6)


@given(PATHS, CAPACITIES)
def test_every_flow_has_a_full_link_on_which_no_flow_is_faster(paths, capacity):
    """What makes rates max-min fair (Bertsekas and Gallager, proposition 6.2), up to the bytes that rounding down leaves."""
    rates = fair_rates(dict(enumerate(paths)), capacity)
    users = {link: [flow for flow, path in enumerate(paths) if link in path] for link in range(6)}
    for link, flows in users.items():
        assert sum(rates[flow] for flow in flows) <= capacity[link]
    for flow, path in enumerate(paths):
        assert any(
            capacity[link] - sum(rates[other] for other in users[link]) < len(users[link])
            and rates[flow] == max(rates[other] for other in users[link])
            for link in path
        )


@given(PATHS, CAPACITIES, st.randoms(use_true_random=False))
def test_rates_do_not_depend_on_the_order_of_flows(paths, capacity, random):
    flows = dict(enumerate(paths))
    shuffled = list(flows.items())
    random.shuffle(shuffled)
    assert fair_rates(dict(shuffled), capacity) == fair_rates(flows, capacity)


@pytest.mark.oracle
@given(st.integers(1, FASTEST_LINK), st.integers(0, 2**62 - 1))
def test_moved_bytes_are_exact(rate, elapsed):
    from trainyard.kernels.schedule import bytes_moved

    elapsed = min(elapsed, 2**62 * PICOSECONDS_PER_SECOND // rate)  # no flow has more than 2**62 bytes
    assert bytes_moved(rate, elapsed) == divmod(rate * elapsed, PICOSECONDS_PER_SECOND)


@pytest.mark.oracle
@given(st.integers(0, 2**62 - 1), st.integers(0, PICOSECONDS_PER_SECOND - 1), st.integers(1, FASTEST_LINK))
def test_the_time_to_move_is_rounded_up(size, fraction, rate):
    from trainyard.kernels.schedule import LONGEST_S, time_to_move

    exact = -(-(size * PICOSECONDS_PER_SECOND + fraction) // rate)
    assert time_to_move(size, fraction, rate) == (exact if size // rate < LONGEST_S else -1)
