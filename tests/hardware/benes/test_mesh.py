"""The mesh between Flex-DPEs: every group gets its own data, on time, over links that have room."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.mesh_execution import EDGE, configure, deliver, timetable
from trainyard.errors import BadInput
from trainyard.hardware.benes.mesh import Mesh


@st.composite
def meshes_with_packets(draw):
    """A mesh, disjoint runs on it in any order, and packets for them in any order."""
    mesh = Mesh(rows=draw(st.integers(1, 5)), columns=draw(st.integers(1, 4)), bandwidth=draw(st.integers(1, 4)))
    marks = sorted(draw(st.sets(st.integers(0, mesh.switches), min_size=2, max_size=8)))
    runs = [range(start, stop) for start, stop in itertools.pairwise(marks)]
    groups = draw(st.permutations([run for run in runs if draw(st.booleans())] or runs[:1]))
    expected = draw(st.lists(st.tuples(st.integers(0, len(groups) - 1), st.integers(1, 9)), min_size=1, max_size=6))
    packets = [(group, [(turn, position) for position in range(count)]) for turn, (group, count) in enumerate(expected)]
    return mesh, groups, packets


def neighbours(mesh, number):
    row, column = mesh.place(number)
    around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    return [mesh.number(r, c) for r, c in around if 0 <= r < mesh.rows and 0 <= c < mesh.columns]


def fewest_hops(mesh, group):
    """Breadth first from the SRAM: switches of others that are passed before the first of the group."""
    waiting = deque((mesh.number(0, column), 0) for column in range(mesh.columns))
    seen = set()
    while waiting:
        number, passed = waiting.popleft()
        if number in group:
            return passed
        if number not in seen:
            seen.add(number)
            waiting.extend((other, passed + 1) for other in neighbours(mesh, number))
    raise AssertionError("a mesh is connected")


@given(st.integers(1, 6), st.integers(1, 6))
def test_numbers_run_through_the_mesh_without_a_jump(rows, columns):
    mesh = Mesh(rows=rows, columns=columns, bandwidth=1)
    assert [mesh.number(*mesh.place(number)) for number in range(mesh.switches)] == list(range(mesh.switches))
    assert all(number + 1 in neighbours(mesh, number) for number in range(mesh.switches - 1))


@given(meshes_with_packets())
def test_settings_use_links_of_the_mesh_and_lead_to_the_group_alone(case):
    mesh, groups, _ = case
    settings = configure(mesh, groups)
    for label, group in enumerate(groups):
        lanes = {number: lanes[label] for number, lanes in enumerate(settings.switches) if label in lanes}
        assert {number for number, lane in lanes.items() if lane.local} == set(group)
        assert settings.hops[label] == mesh.hops(group) == fewest_hops(mesh, group) == len(lanes) - len(group)
        for number, lane in lanes.items():
            assert lane.source in neighbours(mesh, number) or (lane.source == EDGE and mesh.place(number)[0] == 0)
            assert all(other in neighbours(mesh, number) and lanes[other].source == number for other in lane.feeds)


@given(meshes_with_packets())
def test_each_flex_dpe_gets_the_elements_of_its_group_and_no_link_is_overloaded(case):
    mesh, groups, packets = case
    settings = configure(mesh, groups)
    actual = deliver(settings, packets)
    for number in range(mesh.switches):
        mine = next((label for label, group in enumerate(groups) if number in group), None)
        assert list(actual.received[number]) == [element for label, elements in packets if label == mine for element in elements]
    leaves = timetable(settings, packets)
    for (label, _), left, came in zip(packets, leaves, actual.arrivals, strict=True):
        assert list(came) == [cycle + fewest_hops(mesh, groups[label]) for cycle in left]
    order = [cycle for packet in actual.arrivals for cycle in packet]
    assert order == sorted(order)
    assert max(actual.load.values()) <= mesh.bandwidth
    assert actual.cycles == max(order)


@given(meshes_with_packets())
def test_the_timetable_is_tight(case):
    """The SRAM pauses only where the next element would otherwise overtake the one before it."""
    mesh, groups, packets = case
    settings = configure(mesh, groups)
    flat = [(cycle, settings.hops[g]) for (g, _), left in zip(packets, timetable(settings, packets), strict=True) for cycle in left]
    assert flat[0][0] == 1
    for (earlier, before), (later, now) in itertools.pairwise(flat):
        assert earlier <= later <= earlier + max(0, before - now) + 1


@pytest.mark.probe
def test_a_near_group_must_wait_for_a_far_one():
    mesh = Mesh(rows=3, columns=1, bandwidth=2)
    settings = configure(mesh, [range(2, 3), range(2)])
    packets = [(0, "ab"), (1, "cd")]
    assert timetable(settings, packets) == [[1, 1], [4, 4]]
    assert deliver(settings, packets).arrivals == ((3, 3), (4, 4))
    assert deliver(settings, packets, [[1, 1], [3, 3]]).cycles == 3  # the far one is past the bus of the near one: no clash here
    with pytest.raises(BadInput, match="4 elements on the link from 0 to 1 in cycle 2, it carries 2"):
        deliver(settings, packets, [[1, 1], [2, 2]])


@pytest.mark.probe
def test_bandwidth_is_that_of_the_sram_too():
    settings = configure(Mesh(rows=1, columns=2, bandwidth=2), [range(1), range(1, 2)])
    packets = [(0, "ab"), (1, "cd")]
    assert deliver(settings, packets).arrivals == ((1, 1), (2, 2))
    with pytest.raises(BadInput, match="4 elements on the SRAM in cycle 1"):
        deliver(settings, packets, [[1, 1], [1, 1]])


@pytest.mark.unit
def test_inside_a_flex_dpu_the_mesh_is_a_bus():
    mesh = Mesh.of(128, bandwidth=128)
    assert (mesh.rows, mesh.columns) == (8, 16)
    actual = deliver(configure(mesh, [range(128)]), [(0, list(range(256)))])
    assert actual.cycles == 2
    assert all(list(got) == list(range(256)) for got in actual.received)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("groups", "what"),
    [
        ([range(2), range(1, 3)], "share Flex-DPEs"),
        ([range(7)], "no run of Flex-DPEs 0 to 5"),
        ([range(0, 4, 2)], "no run"),
        ([range(2, 2)], "no run"),
    ],
)
def test_groups_must_be_disjoint_runs(groups, what):
    with pytest.raises(BadInput, match=what):
        configure(Mesh(rows=2, columns=3, bandwidth=1), groups)


@pytest.mark.unit
def test_sizes_must_be_positive():
    with pytest.raises(BadInput, match="bandwidth must be a positive whole number, got 0"):
        Mesh(rows=2, columns=2, bandwidth=0)
