"""The compiled clock of messages against agents on the engine's clock, to the picosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import crossbar_agents
from trainyard.hardware.crossbar import messages as crossbar_messages
from trainyard.hardware.crossbar.collectives import Adder, all_reduce, broadcast, local, neighbours
from trainyard.hardware.crossbar.exchanges import cut
from trainyard.hardware.crossbar.hierarchy import Crossbar, Level

# prime sizes and rates: nothing falls on one instant by construction; equal ones: nearly everything does
RATES = st.sampled_from([(8, 1e9), (8, 1e9), (16, 1e9), (64, 1e9), (24, 0.7e9)])


@st.composite
def crossbars(draw, most_units=24, levels=3):
    built = tuple(
        Level(
            name=f"level {number}",
            fan_in=draw(st.integers(2, 4)),
            width_bits=(port := draw(RATES))[0],
            clock_hz=port[1],
            latency_s=draw(st.sampled_from([0.0, 1e-9, 10e-9, 37e-9, 1e-6])),
            buffer_messages=draw(st.integers(1, 3)),
        )
        for number in range(draw(st.integers(1, levels)))
    )
    room = int(np.prod([level.fan_in for level in built]))
    return Crossbar(
        levels=built,
        units=draw(st.integers(1, min(room, most_units))),
        message_bytes=draw(st.sampled_from([64, 100, 257])),
        switching=draw(st.sampled_from(["cut_through", "store_and_forward"])),
        arbitration=draw(st.sampled_from(["round_robin", "oldest", "priority"])),
        agau_bytes_per_s=draw(st.sampled_from([1e9, 4e9])),
        reducer=draw(st.sampled_from(["agau", "switch"])),
    )


def both(crossbar, tree, traffic):
    options = (tree, traffic, crossbar.switching, crossbar.arbitration)
    return crossbar_messages.run(*options), crossbar_agents.run(*options)


def assert_equal_runs(compiled, plain):
    assert compiled.delivered_ps.tolist() == plain.delivered_ps.tolist()
    assert compiled.summed_ps.tolist() == plain.summed_ps.tolist()
    assert compiled.carried_bytes.tolist() == plain.carried_bytes.tolist()
    assert compiled.end_ps == plain.end_ps


@pytest.mark.oracle
@given(st.data(), crossbars())  # the agents are slow: as many examples as the profile says, 1000 in `make test-all`
def test_any_traffic_equals_the_agents_to_the_picosecond(data, crossbar):
    count = data.draw(st.integers(0, 40))
    unit, size = st.integers(0, crossbar.units - 1), st.sampled_from([1, 64, 100, 100, 100, 300, 513])
    column = lambda values: np.array(data.draw(st.lists(values, min_size=count, max_size=count)), np.int64)  # noqa: E731
    traffic = cut(crossbar, column(unit), column(unit), column(size), column(st.integers(0, 3)) * 1e-7, column(st.integers(0, 2)))
    compiled, plain = both(crossbar, crossbar.tree(), traffic)
    assert_equal_runs(compiled, plain)


@pytest.mark.oracle
@given(st.data(), crossbars(), st.integers(1, 900), st.booleans(), st.booleans())
@settings(max_examples=120)
def test_collectives_equal_the_agents_to_the_picosecond(data, crossbar, size, agaus, members):
    group = data.draw(st.sampled_from([each for each in range(1, crossbar.units + 1) if crossbar.units % each == 0]))
    patterns = [
        local(crossbar, group, agaus),
        all_reduce(crossbar, group, agaus, members),
        neighbours(crossbar, group, agaus),
        broadcast(crossbar, data.draw(st.integers(0, crossbar.units - 1))),
    ]
    pattern = data.draw(st.sampled_from(patterns))
    adder = Adder(bytes_per_s=data.draw(st.sampled_from([1e8, 8e9])), latency_s=data.draw(st.sampled_from([0.0, 5e-9])))
    assert_equal_runs(*both(crossbar, pattern.tree, pattern.traffic(crossbar.pieces(size), adder)))
