"""Collectives of groups: who works at the same time, over which wires, how long."""

from __future__ import annotations

from collections import Counter, deque
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import NotModelled
from trainyard.hardware.collectives.groups import Router, _lanes, group_timing, siblings
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.topology.builders import cube_mesh, memory_ring, switched
from trainyard.hardware.topology.graph import Place, Topology, Wire, neighbours_of
from trainyard.hardware.topology.rings import rings

RATE = 25e9


def ring_of(devices: int, wires: int = 1, latency_s: float = 0.0) -> Topology:
    places = tuple(Place(name=f"D{n}", kind="device") for n in range(devices))
    joined = [
        Wire(a=f"D{n}", b=f"D{(n + 1) % devices}", bytes_per_s=RATE, latency_s=latency_s)
        for n in range(devices)
        for _ in range(wires)
    ]
    return Topology(places=places, wires=tuple(joined), name="ring")


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_siblings_are_the_other_groups_of_a_mesh_s_axes(shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    mesh = np.arange(int(np.prod(shape))).reshape(shape)
    fixed = [range(size) if axis not in axes else [slice(None)] for axis, size in enumerate(shape)]
    groups = {tuple(sorted(np.asarray(mesh[at]).ravel().tolist())) for at in product(*fixed)}
    first = next(group for group in groups if 0 in group)
    assert set(siblings(first, mesh.size)) == groups


def test_a_group_that_leaves_others_out_is_refused() -> None:
    with pytest.raises(NotModelled, match="SPMD"):
        siblings((0, 1, 2), 8)
    with pytest.raises(NotModelled, match="send"):
        group_timing("send", 8, ring_of(4), (), (0, 1))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_a_group_of_all_is_the_collective_of_the_node(kind: str) -> None:
    node = memory_ring(link_bytes_per_s=RATE)
    whole = timing(kind, 8_000_000, node, rings(node))
    actual = group_timing(kind, 8_000_000, node, rings(node), range(8))
    assert actual.time_s == pytest.approx(whole.time_s)
    assert sum(count * len(path) for path, count in actual.flows) == sum(count * len(path) for path, count in whole.flows)


@settings(max_examples=30, deadline=None)
@given(
    members=st.sampled_from([(0, 1), (0, 2), (0, 4), (0, 1, 2, 3), (0, 2, 4, 6), (0, 1, 4, 5)]),
    which=st.sampled_from(["ring", "memory", "cube"]),
    wires=st.integers(1, 3),
)
def test_routes_are_shortest_and_arcs_are_divided_among_their_routes(members: tuple[int, ...], which: str, wires: int) -> None:
    node = {
        "ring": ring_of(8, wires),
        "memory": memory_ring(link_bytes_per_s=RATE, links=2 * wires),
        "cube": cube_mesh(link_bytes_per_s=RATE, pcie_bytes_per_s=12e9),
    }[which]
    groups = siblings(members, 8)
    actual = _lanes(node, rings(node), groups, False)
    crossed: Counter[tuple[int, int]] = Counter()
    for group, lanes in zip(groups, actual, strict=True):
        assert len(lanes) == len(rings(node))
        for lane in lanes:
            stops = [node.devices[group[place]] for place in lane.ranks]
            assert sorted(lane.ranks) == list(range(len(group)))
            for here, there, segment in zip(stops, (*stops[1:], stops[0]), lane.segments, strict=True):
                assert _walked(node, here, segment.arcs) == there
                assert len(segment.arcs) == _distance(node, here, there)
                crossed.update(segment.arcs)
    for lanes in actual:
        for lane in lanes:
            for segment in lane.segments:
                expected = [crossed[arc] / node.wires[arc[0]].bytes_per_s for arc in segment.arcs]
                assert list(segment.seconds_per_byte) == pytest.approx(expected, rel=1e-6, abs=0.0)


def _walked(node: Topology, here: str, arcs: tuple[tuple[int, int], ...]) -> str:
    for wire, way in arcs:
        ends = (node.wires[wire].a, node.wires[wire].b)
        assert ends[way] == here
        here = ends[1 - way]
    return here


def _distance(node: Topology, source: str, target: str) -> int:
    """By breadth, not through the host."""
    ways, hosts = neighbours_of(node), {place.name for place in node.places if place.kind in ("socket", "switch")}
    far, waiting = {source: 0}, deque([source])
    while waiting:
        here = waiting.popleft()
        for there in ways[here]:
            if there not in far and there not in hosts:
                far[there] = far[here] + 1
                waiting.append(there)
    return far[target]


@pytest.mark.parametrize(("members", "hops"), [((0, 1), 1), ((0, 2), 2), ((0, 4), 4)])
def test_pairs_on_a_ring_share_its_arcs(members: tuple[int, int], hops: int) -> None:
    """Each of 8 devices sends half of the data `hops` arcs far over 16 arcs; at worst all 4 pairs pass every arc of both rings."""
    size = 64_000_000
    actual = group_timing("all_gather", size, ring_of(8), rings(ring_of(8)), members, message_bytes=64)
    least_s = 8 * (size / 2) * hops / 16 / RATE
    assert actual.time_s >= least_s * 0.999
    assert actual.time_s <= 4 * (size / 2 / 2) / RATE * 1.01
    assert actual.time_s == pytest.approx({1: size / 2 / RATE, 2: size / RATE, 4: size / RATE}[hops], rel=0.01)


def test_switches_give_each_group_its_own_wires() -> None:
    node = switched(
        devices=8, memory_nodes=0, links=2, planes=2, link_bytes_per_s=RATE, memory_bytes_per_s=80e9, pcie_bytes_per_s=12e9
    )
    far = group_timing("all_reduce", 8_000_000, node, rings(node), (0, 4))
    near = group_timing("all_reduce", 8_000_000, node, rings(node), (0, 1))
    assert far.time_s == near.time_s
    assert group_timing("all_reduce", 8_000_000, node, rings(node), (0, 4), algorithm="auto").time_s <= far.time_s


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]),
    members=st.sampled_from([(0, 1, 2, 3), (0, 2, 4, 6), (0, 4)]),
    size=st.integers(1, 10**7),
)
def test_time_grows_with_bytes_and_latency_and_bounds_what_arcs_carry(kind: str, members: tuple[int, ...], size: int) -> None:
    fast, slow = ring_of(8, 2), ring_of(8, 2, latency_s=1e-6)
    one = group_timing(kind, size, fast, rings(fast), members)
    assert one.time_s < group_timing(kind, size, slow, rings(slow), members).time_s
    assert one.time_s <= group_timing(kind, 2 * size, fast, rings(fast), members).time_s
    arcs: Counter[tuple[int, int]] = Counter()
    for path, count in one.flows:
        assert len(set(path)) == len(path)
        arcs.update(dict.fromkeys(path, count))
    assert max(arcs.values()) / RATE <= one.time_s * (1 + 1e-9)
    sent = {"all_reduce": 2, "all_to_all": 1}.get(kind, 1) * (len(members) - 1) / len(members) * size
    assert sum(arcs.values()) >= sent * (8 // len(members)) * (len(members) if kind != "broadcast" else 1) * 0.999


def test_an_all_to_all_reaches_every_device() -> None:
    """On a ring of 4, both ways: each device sends 1/4 to each neighbour and 1/4 two arcs far: 16 quarters of arcs over 8 arcs."""
    size = 4_000_000
    actual = group_timing("all_to_all", size, ring_of(4), rings(ring_of(4)), range(4), message_bytes=64)
    assert actual.time_s == pytest.approx(16 / 8 * size / 4 / RATE, rel=0.01)
    assert Router(ring_of(4)).route("D0", "D1") == ((0, 0),)


def test_the_slowest_group_decides() -> None:
    """Two pairs of devices behind switches of their own, of which the first or the second has slow wires."""

    def seconds(*rates: float) -> float:
        places = [Place(name=f"D{n}", kind="device") for n in range(4)] + [Place(name=f"X{n}", kind="switch") for n in range(2)]
        wires = [Wire(a=f"D{n}", b=f"X{n // 2}", bytes_per_s=rates[n // 2]) for n in range(4)]
        return group_timing("all_gather", 8_000_000, Topology(places=tuple(places), wires=tuple(wires)), (), (0, 1)).time_s

    assert seconds(1e9, 4e9) == seconds(4e9, 1e9) == seconds(1e9, 1e9) > 3 * seconds(4e9, 4e9)
