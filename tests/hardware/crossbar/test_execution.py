"""Sums of real arrays by the messages of the simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.crossbar_execution import execute_all_reduce, execute_local, plain_sum
from trainyard.errors import BadInput
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar import messages as crossbar_messages
from trainyard.hardware.crossbar.collectives import Adder, all_reduce, local
from trainyard.hardware.crossbar.hierarchy import Crossbar, Level

LEVELS = tuple(
    Level(name=name, fan_in=fan_in, width_bits=16, clock_hz=1e9, latency_s=1e-8)
    for name, fan_in in (("chip", 3), ("rank", 2), ("top", 4))
)
SUMMERS = (None, Adder(bytes_per_s=1e9), Agau(inputs=4, buffer_bytes=64))


def crossbars():
    return st.builds(
        Crossbar,
        levels=st.just(LEVELS),
        units=st.integers(1, 24),
        message_bytes=st.sampled_from([16, 64]),
        switching=st.sampled_from(["cut_through", "store_and_forward"]),
        reducer=st.sampled_from(["agau", "switch"]),
    )


def summer_arguments(summer):
    return {"sum_bytes_per_s": 1e8} if summer is None else {"agau": summer}


def groups_of(units):
    return st.sampled_from([size for size in range(1, units + 1) if units % size == 0])


@given(st.data(), crossbars(), st.integers(1, 50), st.sampled_from(SUMMERS))
def test_a_group_gets_numpys_sum_and_exactly_that_of_the_stated_order(data, crossbar, elements, summer):
    group = data.draw(groups_of(crossbar.units))
    arrays = np.random.default_rng(elements).standard_normal((crossbar.units, elements)).astype(np.float32)
    done = execute_local(crossbar, arrays, group, **summer_arguments(summer))
    plain = plain_sum(local(crossbar, group, summer is not None), dict(enumerate(arrays)), summer)
    for unit in range(crossbar.units):
        expected = arrays[unit // group * group :][:group].astype(np.float64).sum(0)
        np.testing.assert_allclose(done.values[unit], expected, rtol=1e-5, atol=1e-5)
        if group > 1:
            assert done.values[unit].tobytes() == plain[unit // group].tobytes()
    same_bytes(crossbar, local(crossbar, group, summer is not None), elements, summer, done)
    assert done.exchanged == crossbar.simulate.local(elements * 4, group, fold=False, **summer_arguments(summer))


@given(st.data(), crossbars(), st.integers(1, 50), st.sampled_from(SUMMERS), st.booleans())
def test_all_groups_get_numpys_sum_and_exactly_that_of_the_stated_order(data, crossbar, elements, summer, members):
    group = data.draw(groups_of(crossbar.units))
    groups = crossbar.units // group
    arrays = np.random.default_rng(elements).standard_normal((groups, elements)).astype(np.float32)
    done = execute_all_reduce(crossbar, arrays, group, members=members, **summer_arguments(summer))
    ends = [number * group if summer is None else crossbar.units + number for number in range(groups)]
    pattern = all_reduce(crossbar, group, summer is not None, members)
    plain = plain_sum(pattern, dict(zip(ends, arrays, strict=True)), summer)
    for end in [*ends, *(range(crossbar.units) if members else ())]:
        np.testing.assert_allclose(done.values[end], arrays.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
        if plain:
            assert done.values[end].tobytes() == plain[len(plain) - 1].tobytes()
    same_bytes(crossbar, pattern, elements, summer, done)
    assert done.exchanged == crossbar.simulate.all_reduce(elements * 4, group, members=members, **summer_arguments(summer))


def same_bytes(crossbar, pattern, elements, summer, done):
    """On every link: counted where data went by, message by message, and counted by the clock."""
    if pattern.flows:
        traffic = pattern.traffic(crossbar.pieces(elements * 4), summer or Adder(bytes_per_s=1e8))
        ran = crossbar_messages.run(pattern.tree, traffic, crossbar.switching, crossbar.arbitration)
        assert done.carried_bytes.tolist() == ran.carried_bytes.tolist()
        assert done.exchanged.time_s == ran.end_ps / 1e12


def test_arguments_of_a_wrong_shape_raise():
    crossbar = Crossbar(levels=LEVELS, units=6, message_bytes=10)
    with pytest.raises(BadInput, match="cut elements of 4 bytes"):
        execute_local(crossbar, np.zeros((6, 3), np.float32), 3, sum_bytes_per_s=1e9)
    with pytest.raises(BadInput, match="each of 6 units"):
        execute_local(crossbar, np.zeros((5, 3), np.float32), 3, sum_bytes_per_s=1e9)
