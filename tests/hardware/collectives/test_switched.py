"""Collectives through switches: numpy's results, the bytes of the timing, and times against every message of every send."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.collective_execution import execute
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.collectives.double_tree import edges_of, halves, trees_of
from trainyard.hardware.collectives.fabric import fabric_of
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.collectives.switched import ALGORITHMS, path_length, steps_of
from trainyard.hardware.topology.builders import cube_mesh, switched
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import rings

WAYS = [(algorithm, kind) for algorithm, kinds in ALGORITHMS.items() for kind in kinds]


def planes(devices, links, count, rate=1.0, latency=0.0):
    return switched(devices=devices, links=links, planes=count, link_bytes_per_s=rate, link_latency_s=latency)


def leaves_and_spines(devices, leaves, spines):
    """Devices dealt to leaf switches, each joined to every spine."""
    places = [Place(name=f"d{rank}", kind="device") for rank in range(devices)]
    places += [Place(name=f"l{leaf}", kind="switch") for leaf in range(leaves)]
    places += [Place(name=f"s{spine}", kind="switch") for spine in range(spines)]
    wires = [Wire(a=f"d{rank}", b=f"l{rank % leaves}", bytes_per_s=1.0, latency_s=2.0) for rank in range(devices)]
    wires += [
        Wire(a=f"l{leaf}", b=f"s{spine}", bytes_per_s=1.0, latency_s=1.0) for leaf in range(leaves) for spine in range(spines)
    ]
    return Topology(places=tuple(places), wires=tuple(wires))


NODES = st.one_of(
    st.builds(
        planes, st.integers(2, 9), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1.0, 0.5]), st.sampled_from([0.0, 3.0])
    ),
    st.builds(leaves_and_spines, st.integers(2, 9), st.integers(1, 3), st.integers(1, 3)),
)


def numpy_result(kind, values, root):
    count, total = len(values), sum(values)
    part = -(-len(total) // count)
    match kind:
        case "all_reduce":
            return [total] * count
        case "all_gather":
            return [np.concatenate(values)] * count
        case "reduce_scatter":
            return [total[rank * part : (rank + 1) * part] for rank in range(count)]
        case "broadcast":
            return [values[root]] * count
        case "reduce":
            return [total if rank == root else value for rank, value in enumerate(values)]
    return list(np.stack([value.reshape(count, -1) for value in values], axis=1).reshape(count, -1))


@pytest.mark.oracle
@given(NODES, st.sampled_from(WAYS), st.integers(1, 40), st.integers(1, 40), st.sampled_from(["int16", "int64"]), st.data())
def test_results_equal_numpys_and_bytes_equal_the_timings(topology, way, size, message, dtype, data):
    algorithm, kind = way
    count = len(topology.devices)
    root = data.draw(st.integers(0, count - 1))
    size = size * count if kind == "all_to_all" else size
    values = [np.random.default_rng(rank).integers(-99, 99, size).astype(dtype) for rank in range(count)]
    actual = execute(kind, values, topology, algorithm=algorithm, message_bytes=message, root=root)
    for held, wanted in zip(actual.values, numpy_result(kind, values, root), strict=True):
        np.testing.assert_array_equal(held, wanted)
    whole, item = values[0].nbytes * (count if kind == "all_gather" else 1), values[0].itemsize
    timed = timing(kind, whole, topology, algorithm=algorithm, message_bytes=message, element_bytes=item, root=root)
    assert actual.carried == {arc: count for path, count in timed.flows for arc in path}
    moving = max(count / topology.wires[wire].bytes_per_s for path, count in timed.flows for wire, _ in path)
    assert timed.time_s == timed.delay_s + moving


@pytest.mark.parametrize("kind", ["all_reduce", "reduce"])
@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling"])
def test_a_sum_is_the_same_bits_everywhere(algorithm, kind):
    values = [np.random.default_rng(rank).normal(size=17).astype(np.float32) for rank in range(6)]
    actual = execute(kind, values, planes(6, 2, 2), algorithm=algorithm)
    np.testing.assert_allclose(actual.values[0], np.sum(values, axis=0), rtol=1e-5, atol=1e-6)
    assert kind == "reduce" or len({held.tobytes() for held in actual.values}) == 1


def cut(size, message):
    return [min(message, size - start) for start in range(0, size, message)]


def time_of_steps(clock_of, kind, algorithm, part, topology, message, root):
    """The steps one after the other, all messages of a step at once."""
    fabric, total, shared = fabric_of(topology, ()), 0.0, False
    for step in steps_of(kind, len(fabric.devices), root):
        clock, used = clock_of(topology), defaultdict(int)
        for number, paths in enumerate(fabric.routes([(send.source, send.target) for send in step], algorithm)):
            for lane, path in enumerate(paths):
                for arc in path:
                    used[arc] += 1
                for size in cut(path_length(part * len(step[number].parts), len(paths), lane), message):
                    clock.send(path, size, lambda: None)
        total += clock.run()
        shared = shared or max(used.values()) > 1
    return total, shared


@pytest.mark.oracle
@given(NODES, st.sampled_from([way for way in WAYS if way[0] != "tree"]), st.integers(1, 30), st.integers(1, 9), st.data())
def test_steps_end_when_their_last_message_arrives(message_clock, topology, way, part, message, data):
    algorithm, kind = way
    count = len(topology.devices)
    root = data.draw(st.integers(0, count - 1))
    actual = timing(kind, part * count, topology, algorithm=algorithm, message_bytes=message, root=root)
    end, shared = time_of_steps(message_clock, kind, algorithm, part, topology, message, root)
    if shared:  # the busiest wire alone is counted; messages also wait for one another elsewhere, or need not
        assert actual.time_s == pytest.approx(end, rel=0.1)
    else:
        assert actual.time_s == pytest.approx(end, rel=1e-12)


def schedule_tree(clock, edges, number, lane, sizes):
    """One tree's messages on one lane: up as soon as all children's have come, down as soon as they are there."""
    tree, children, come = edges.trees[number], defaultdict(list), defaultdict(int)
    for child in tree.order:
        children[tree.parent[child]].append(child)

    def down(rank, position):
        for child in children[rank]:
            path = edges.down[number, child][lane]
            clock.send(path, sizes[position], lambda child=child: down(child, position), (number, child, "down"))

    def up(rank, position):
        if rank == tree.top:
            if edges.down:
                down(rank, position)
            return

        def arrived(parent=tree.parent[rank]):
            come[parent, position] += 1
            if come[parent, position] == len(children[parent]):
                up(parent, position)

        clock.send(edges.up[number, rank][lane], sizes[position], arrived, (number, rank, "up"))

    for position in range(len(sizes)):
        if edges.up:
            for leaf in [rank for rank in (tree.top, *tree.order) if not children[rank]]:
                up(leaf, position)
        else:
            down(tree.top, position)


def levels(tree):
    depth = {tree.top: 0}
    for child in tree.order:
        depth[child] = depth[tree.parent[child]] + 1
    return max(depth.values())


@pytest.mark.oracle
@pytest.mark.parametrize("links", [1, 3])
@given(st.integers(2, 17), st.sampled_from(ALGORITHMS["tree"]), st.integers(1, 60), st.integers(1, 9), st.data())
def test_trees_end_within_their_fill_and_two_messages_a_level(message_clock, links, count, kind, part, message, data):
    topology, root = planes(count, links, links, latency=2.0), data.draw(st.integers(0, count - 1))
    actual = timing(kind, part * count, topology, algorithm="tree", message_bytes=message, root=root)
    edges, clock = edges_of(fabric_of(topology, ()), kind, root), message_clock(topology)
    for number, half in enumerate(halves(part)):
        for lane in range(links):
            schedule_tree(clock, edges, number, lane, cut(path_length(half * count, links, lane), message))
    end = clock.run()
    ways = 2 if kind == "all_reduce" else 1
    slack = 2 * min(message, -(-part * count // links)) * ways * (1 + max(map(levels, edges.trees)))
    assert actual.time_s - actual.delay_s <= end <= actual.time_s + slack
    assert clock.carried == {arc: size for path, size in actual.flows for arc in path}


@given(st.integers(1, 40), st.sampled_from(ALGORITHMS["tree"]), st.data())
def test_trees_span_all_devices_and_no_device_is_inside_both(count, kind, data):
    root = data.draw(st.integers(0, count - 1))
    inside = []
    for tree in trees_of(kind, count, root):
        assert {tree.top, *tree.order} == set(range(count))
        children = defaultdict(list)
        for child, parent in tree.parent.items():
            children[parent].append(child)
        assert all(len(below) <= 2 for below in children.values())
        assert 2 ** levels(tree) <= 4 * count
        inside.append(set(children) - {tree.top if kind != "all_reduce" else None})
    assert len(inside[0] & inside[1]) <= 1  # of an odd number, one device stands in the middle of both


@pytest.mark.probe
def test_halving_and_doubling_by_hand():
    """Eight devices, one wire of rate 1 and latency 5 to a switch, parts of 8, messages of 4: sends of 32, 16, 8 and back."""
    actual = timing("all_reduce", 64, planes(8, 1, 1, latency=5.0), algorithm="halving_doubling", message_bytes=4)
    assert actual.time_s == 2 * ((32 + 4 + 10) + (16 + 4 + 10) + (8 + 4 + 10))
    assert {count for _, count in actual.flows} == {2 * 7 * 8}
    one_more = timing("all_reduce", 65, planes(8, 1, 1, latency=5.0), algorithm="halving_doubling", message_bytes=4)
    assert one_more.time_s == actual.time_s + 2 * (4 + 2 + 1)  # every part grows by one


@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling"])
@pytest.mark.parametrize("count", [1, 3])
def test_all_wires_to_switches_are_used(algorithm, count):
    """Three wires to one switch, or to one each of three planes."""
    slow = timing("all_reduce", 2**20 * 24, planes(8, 1, 1, rate=1e9), algorithm=algorithm)
    fast = timing("all_reduce", 2**20 * 24, planes(8, 3, count, rate=1e9), algorithm=algorithm)
    assert fast.time_s == pytest.approx(slow.time_s / 3, rel=2e-3)


def test_sends_spread_over_the_spines():
    """Two leaves of four devices: with as many spines as devices a leaf nothing waits."""
    wide = timing("all_reduce", 8 * 4096, leaves_and_spines(8, 2, 4), algorithm="halving_doubling")
    narrow = timing("all_reduce", 8 * 4096, leaves_and_spines(8, 2, 1), algorithm="halving_doubling")
    assert max(count for _, count in wide.flows) == 2 * 7 * 4096
    assert narrow.time_s > 1.2 * wide.time_s


@given(NODES, st.sampled_from(WAYS), st.integers(0, 400), st.integers(1, 50), st.data())
def test_more_to_send_is_never_faster_and_faster_wires_never_slower(topology, way, size, more, data):
    algorithm, kind = way
    before = timing(kind, size, topology, algorithm=algorithm, message_bytes=8).time_s
    assert timing(kind, size + more, topology, algorithm=algorithm, message_bytes=8).time_s >= before
    number = data.draw(st.integers(0, len(topology.wires) - 1))
    faster = replace(topology.wires[number], bytes_per_s=topology.wires[number].bytes_per_s * 2)
    changed = replace(topology, wires=(*topology.wires[:number], faster, *topology.wires[number + 1 :]))
    assert timing(kind, size, changed, algorithm=algorithm, message_bytes=8).time_s <= before


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("size", [1, 4096, 2**20, 2**26])
def test_auto_is_the_fastest_that_the_graph_allows(kind, size):
    node = planes(8, 6, 6, rate=25e9, latency=1e-7)
    loops = rings(node)
    able = ["ring", *(algorithm for algorithm, name in WAYS if name == kind)]
    times = [timing(kind, size, node, loops, algorithm=algorithm).time_s for algorithm in able]
    assert timing(kind, size, node, loops, algorithm="auto").time_s == min(times)
    direct = cube_mesh(link_bytes_per_s=25e9, pcie_bytes_per_s=12e9)
    loops = rings(direct)
    assert timing(kind, size, direct, loops, algorithm="auto") == timing(kind, size, direct, loops, algorithm="ring")
    values = [np.arange(8) + rank for rank in range(8)]
    assert len(execute(kind, values, node, rings(node), algorithm="auto").values) == 8


def test_a_graph_without_switches_has_no_path_between_other_devices():
    """The PCIe switches of the host do not count."""
    direct = cube_mesh(link_bytes_per_s=25e9, pcie_bytes_per_s=12e9)
    for algorithm in ("tree", "halving_doubling"):
        with pytest.raises(BadInput, match="through switches: use algorithm='ring'"):
            timing("all_reduce", 4096, direct, algorithm=algorithm)
    with pytest.raises(BadInput, match="no algorithm does all_to_all on topology 'cube mesh'"):
        timing("all_to_all", 4096, direct, rings(direct), algorithm="auto")
    with pytest.raises(NotModelled, match="use halving_doubling"):
        timing("all_gather", 4096, planes(4, 1, 1), algorithm="tree")
    with pytest.raises(BadInput, match="multiple of 4"):
        execute("all_to_all", [np.ones(5)] * 4, planes(4, 1, 1), algorithm="pairwise")
