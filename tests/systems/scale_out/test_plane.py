"""Planes of switches and clusters: graphs that can be built, collectives against the generic laws and real data, folding."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from oracles.collective_execution import execute
from oracles.hierarchical_execution import execute_hierarchical
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.collectives import switched
from trainyard.hardware.collectives.fabric import Timing
from trainyard.hardware.collectives.hierarchical import stages
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.collectives.ring_timing import STREAMS
from trainyard.hardware.topology.graph import Topology
from trainyard.hardware.topology.rings import rings
from trainyard.machines.presets.mcdla import DEVICE
from trainyard.systems.node.systems import MemoryCentric
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import ALGORITHMS, Plane, Switched
from trainyard.systems.scale_out.switch_tree import SwitchTree
from trainyard.systems.scale_out.switched_collectives import FLAT, Speeds, SwitchedCollectives

RATE, LATENCY, HOP = 25e9, 500e-9, 250e-9
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def plane(**changed: Any) -> Plane:
    return Plane(**{"device": DEVICE, "devices": 16, **changed})


def carried(found: Timing) -> dict[tuple[int, int], int]:
    """By arc; an arc is in one flow only."""
    by_arc: dict[tuple[int, int], int] = {}
    for path, count in found.flows:
        for arc in path:
            assert arc not in by_arc, f"{arc} is in two flows"
            by_arc[arc] = count
    return by_arc


shapes = st.builds(
    dict,
    devices_per_node=st.integers(1, 4),
    memory_per_node=st.integers(0, 2),
    planes=st.sampled_from((1, 2, 3)),
    wires=st.integers(1, 2),
    radix=st.integers(4, 24),
    oversubscription=st.sampled_from((1.0, 1.0, 2.0, 3.0)),
    nodes=st.integers(1, 7),
)


def built(shape: dict[str, Any]) -> SwitchTree | None:
    """None where the switches are too small for a system node."""
    numbers = dict(shape)
    nodes, wires = numbers.pop("nodes"), numbers.pop("wires")
    try:
        return SwitchTree(devices=nodes * numbers["devices_per_node"], links=wires * numbers["planes"], **numbers)
    except BadInput:
        return None


def topology_of(tree: SwitchTree) -> Topology:
    return tree.topology(bytes_per_s=RATE, latency_s=LATENCY, hop_latency_s=HOP, memory={"memory_bytes_per_s": 256e9})


# ---- the graph
@given(shapes)
@settings(max_examples=60, deadline=None)
def test_switches_have_no_more_ports_than_their_radix_and_wires_their_numbers(shape: dict[str, Any]) -> None:
    tree = built(shape)
    if tree is None:
        return
    graph = topology_of(tree)
    kinds = {place.name: place.kind for place in graph.places}
    ports = Counter(end for wire in graph.wires for end in (wire.a, wire.b))
    assert all(count <= tree.radix for name, count in ports.items() if kinds[name] == "switch")
    assert all(ports[name] == tree.links for name, kind in kinds.items() if kind in ("device", "memory"))
    for device in range(tree.devices):
        assert all(graph.wires[wire].a == f"D{device}" for wire, _ in tree.end_arcs(device, 0))
    numbered = {wire for device in range(tree.devices) for wire, _ in tree.end_arcs(device, 0)}
    for level in range(tree.levels - 1):
        for number in range(tree.trees(level)):
            block = tree.tree_arcs(level, number, 0)
            assert len(block) == tree.planes * tree.wires_up(level)
            assert numbered.isdisjoint(wire for wire, _ in block)
            numbered |= {wire for wire, _ in block}
            for wire, _ in block:  # from the tree's own top to one level higher
                low, high = graph.wires[wire].a.split("."), graph.wires[wire].b.split(".")
                assert (int(low[1]), int(high[1])) == (level, level + 1)
                assert int(low[2]) // tree.switches(level) == number
    memory_wires = tree.nodes * tree.memory_per_node * tree.links
    assert len(numbered) + memory_wires == len(graph.wires)


@given(shapes, st.data())
@settings(max_examples=60, deadline=None)
def test_hops_between_devices_are_those_of_the_level_where_they_meet(shape: dict[str, Any], data: st.DataObject) -> None:
    tree = built(shape)
    if tree is None or tree.devices < 2:
        return
    graph = topology_of(tree)
    one, other = (data.draw(st.integers(0, tree.devices - 1)) for _ in range(2))
    if one == other:
        return
    near, hops, seen = {f"D{one}"}, 0, {f"D{one}"}
    while f"D{other}" not in near:  # breadth first, through switches only
        passing = {name for name in near if name == f"D{one}" or name.startswith("X")}
        near = {end for wire in graph.wires for end in (wire.a, wire.b) if {wire.a, wire.b} & passing} - seen
        seen |= near
        hops += 1
    assert hops == 2 + 2 * tree.meets(one, other)


def test_a_memory_node_is_one_switch_away_and_belongs_to_devices_of_its_system_node() -> None:
    graph = plane(devices=64, radix=32).topology
    (store,) = graph.stores("D37")
    assert store.place == "M37"
    assert [len(lane) for lane in store.lanes] == [2] * 6
    shared = plane(devices=64, memory_per_node=4).topology
    assert [store.sharers for store in shared.stores("D9")] == [2]
    assert shared.place("M5").serves == ("D9", "D13")
    several = plane(devices=16, devices_per_node=2, memory_per_node=4).topology
    assert [store.place for store in several.stores("D3")] == ["M5", "M7"]
    host = plane(devices=16, memory_per_node=0).topology
    assert [store.place for store in host.stores("D13")] == ["S3"]


def test_shapes_that_cannot_be_built_are_refused_with_the_field_to_change() -> None:
    with pytest.raises(BadInput, match="20 devices do not fill system nodes of 8"):
        plane(devices=20)
    with pytest.raises(BadInput, match=r"radix=16 is too small.*8 devices and 8 memory-nodes takes 16 ports.*8 downwards"):
        plane(devices=64, radix=16)
    assert plane(devices=64, radix=33).tree.levels == 2  # what it says to write instead is enough
    with pytest.raises(BadInput, match="6 links of a device do not divide among 4 planes"):
        plane(planes=4)
    with pytest.raises(BadInput, match="oversubscription is at least 1"):
        plane(oversubscription=0.5)
    with pytest.raises(BadInput, match="torus of 3 rows"):
        plane(torus_rows=3)
    with pytest.raises(BadInput, match="write recast='tree'"):
        plane(collectives="tree")
    with pytest.raises(UnknownName, match="hierarchical"):
        plane(recast="hierarchic")
    with pytest.raises(UnknownName, match="all_reduce"):
        plane().collective("all_to_one", 100)
    with pytest.raises(NotModelled, match="all_gather by recast='tree'"):
        plane(recast="tree").collective("all_gather", 100)
    with pytest.raises(BadInput, match="12 devices do not fill nodes of 8"):
        Cluster(device=DEVICE, devices=12)
    with pytest.raises(BadInput, match="8 devices of a node do not divide among 3 network cards"):
        Cluster(device=DEVICE, nics=3)
    with pytest.raises(UnknownName, match="memory-centric"):
        Cluster(device=DEVICE, design="memory-centred")  # type: ignore[arg-type]


# ---- collectives against the generic laws
@pytest.mark.oracle
@given(shapes, st.sampled_from(KINDS), st.sampled_from(FLAT), st.integers(1, 2_000_000), st.sampled_from((1, 512, 4096)))
@settings(max_examples=80, deadline=None)
def test_counting_by_trees_of_switches_gives_what_the_graph_gives(
    shape: dict[str, Any], kind: str, algorithm: str, size: int, message: int
) -> None:
    tree = built(shape)
    if tree is None or tree.devices < 2 or (algorithm != "ring" and kind not in switched.ALGORITHMS[algorithm]):
        return
    graph = topology_of(tree)
    found = SwitchedCollectives(tree, Speeds(RATE, LATENCY, HOP, message)).timing(kind, size, algorithm)
    if algorithm == "ring" and (tree.oversubscription > 1 or tree.devices == 2):
        return  # a search that takes long, or finds other rings
    around = rings(graph) if algorithm == "ring" else ()
    expected = timing(kind, size, graph, around, algorithm=algorithm, message_bytes=message).time_s
    if tree.levels == 1:
        assert found.time_s == pytest.approx(expected, rel=1e-9)
    else:  # ways that are searched one by one may meet where spreading evenly leaves no one in the way
        slack = 4 * tree.levels * 64 * message / RATE
        assert found.time_s <= expected * (1 + 1e-9) + (slack if tree.oversubscription > 1 else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize(("devices", "radix"), [(16, 64), (32, 32), (24, 32)])
def test_leaf_and_spine_equal_the_graph(kind: str, algorithm: str, devices: int, radix: int) -> None:
    if algorithm != "ring" and kind not in switched.ALGORITHMS[algorithm]:
        return
    one = plane(devices=devices, radix=radix)
    graph = one.topology
    for size in (1000, 1_000_000):
        expected = timing(kind, size, graph, rings(graph), algorithm=algorithm).time_s
        idle = (
            2 * (HOP + 4096 / RATE) if algorithm == "ring" and kind in STREAMS else 0.0
        )  # the search may close its rings on another leaf
        assert one.switched_collectives.timing(kind, size, algorithm).time_s == pytest.approx(expected, rel=1e-9, abs=1.001 * idle)


@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize("kind", KINDS)
def test_wires_carry_what_real_data_makes_them_carry(kind: str, algorithm: str) -> None:
    if algorithm != "ring" and kind not in switched.ALGORITHMS[algorithm]:
        return
    one = plane(devices=16, radix=16, devices_per_node=4)
    elements, links = 16 * 6 * 4, one.links
    values = [np.arange(elements if kind != "all_gather" else elements // 16, dtype=np.int8) for _ in range(16)]
    moved = execute(kind, values, one.topology, rings(one.topology), algorithm=algorithm).carried
    ours = carried(one.switched_collectives.timing(kind, elements, algorithm))
    together = algorithm == "ring" and kind in STREAMS  # rings may begin with other devices: then only the sum is the same
    for devices in [range(16)] if together else [[device] for device in range(16)]:
        for way in (0, 1):
            arcs = [arc for device in devices for arc in one.tree.end_arcs(device, way)]
            assert sum(ours.get(arc, 0) for arc in arcs) == pytest.approx(sum(moved.get(arc, 0) for arc in arcs), abs=links)
    assert one.tree.levels == 2
    if together:
        return
    for leaf in range(one.tree.trees(0)):
        for way in (0, 1):
            arcs = one.tree.tree_arcs(0, leaf, way)
            assert sum(ours.get(a, 0) for a in arcs) == pytest.approx(sum(moved.get(a, 0) for a in arcs), abs=len(arcs))


# ---- torus and hierarchy
def row_of(graph: Topology, members: tuple[int, ...]) -> Topology:
    """What is left of a graph when only these devices are there."""
    kept = {f"D{number}" for number in members}
    places = tuple(place for place in graph.places if place.name in kept or place.name.startswith("X"))
    names = {place.name for place in places}
    return Topology(places=places, wires=tuple(wire for wire in graph.wires if {wire.a, wire.b} <= names))


@pytest.mark.parametrize("radix", [64, 16])
def test_a_torus_is_rows_then_columns_then_rows(radix: int) -> None:
    one = plane(devices=24, devices_per_node=4, radix=radix, torus_rows=4, memory_per_node=0)
    assert one.tree.levels == (1 if radix == 64 else 2)
    size, seconds = 6_000_000, 0.0
    for kind, groups, part in (
        ("reduce_scatter", [tuple(range(first, first + 6)) for first in range(0, 24, 6)], size),
        ("all_reduce", [tuple(range(first, 24, 6)) for first in range(6)], size // 6),
        ("all_gather", [tuple(range(first, first + 6)) for first in range(0, 24, 6)], size),
    ):
        alone = [row_of(one.topology, group) for group in groups]
        seconds += max(timing(kind, part, graph, rings(graph)).time_s for graph in alone)
    assert one.switched_collectives.timing("all_reduce", size, "torus").time_s == pytest.approx(seconds, rel=1e-9)


def test_a_torus_of_four_by_hand() -> None:
    """Two rows of two on one switch, one link: 1000 bytes; every round sends half of what is left over two wires."""
    one = Plane(
        device=DEVICE, devices=4, devices_per_node=4, links=1, planes=1, torus_rows=2, recast="torus",
        link_bytes_per_s=1e9, link_latency_s=1e-6, message_bytes=4096,
    )  # fmt: skip
    rounds = [500, 250, 250, 500]  # reduce-scatter in the row, all-reduce in the column (two rounds), all-gather in the row
    by_hand = sum(2 * size / 1e9 + 2e-6 for size in rounds)
    assert one.collective("all_reduce", 1000).time_s == pytest.approx(by_hand)


@pytest.mark.parametrize("algorithm", ["torus", "hierarchical"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_stages_make_the_right_sums_and_carry_what_is_counted(kind: str, algorithm: str) -> None:
    one = plane(devices=12, devices_per_node=4, torus_rows=3, memory_per_node=0, radix=64)
    size = 12 * 6 * 8
    generator = np.random.default_rng(3)
    given = [generator.integers(-9, 9, size if kind != "all_gather" else size // 12, dtype=np.int8) for _ in range(12)]
    moved: dict[tuple[str, int], int] = defaultdict(int)
    groups = iter(
        [group for where, part in stages(kind) for group in ([tuple(range(f, f + 4)) for f in range(0, 12, 4)]
         if where == "inside" else [tuple(range(f, 12, 4)) for f in range(4)])]
    )  # fmt: skip

    def move(part: str, values: Any, root: int) -> Any:
        members = next(groups)
        graph = row_of(one.topology, members)
        done = execute(part, list(values), graph, rings(graph), algorithm="ring", root=root)
        for (wire, way), count in done.carried.items():
            moved[graph.wires[wire].a, way] += count
        return done.values

    ended = execute_hierarchical(kind, given, devices=4, inside=move, across=move)
    if kind == "all_reduce":
        assert all(np.array_equal(value, sum(given)) for value in ended)
    if kind == "all_gather":
        assert all(np.array_equal(value, np.concatenate(given)) for value in ended)
    if algorithm == "torus" and kind not in ("broadcast", "reduce"):  # with a root one device of a row is enough
        ours = carried(one.switched_collectives.timing(kind, size, "torus"))
        for device in range(12):
            for way in (0, 1):
                count = sum(ours.get(arc, 0) for arc in one.tree.end_arcs(device, way))
                assert count == pytest.approx(moved[f"D{device}", way], abs=3 * one.links)


# ---- monotone
@pytest.mark.parametrize("size", [100, 1_000_000, 100_000_000])
def test_auto_is_at_least_as_fast_as_every_algorithm(size: int) -> None:
    one = plane(devices=48, radix=32, devices_per_node=8)
    for kind in KINDS:
        auto = one.switched_collectives.timing(kind, size, "auto").time_s
        for algorithm in ALGORITHMS[:-1]:
            if algorithm != "tree" or kind in switched.ALGORITHMS["tree"]:
                assert auto <= one.switched_collectives.timing(kind, size, algorithm).time_s


@pytest.mark.parametrize("recast", ALGORITHMS)
@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_more_links_planes_or_bandwidth_are_never_slower(recast: str, size: int) -> None:
    def seconds(**changed: Any) -> float:
        numbers = {"devices": 64, "radix": 64, "recast": recast, **changed}
        return plane(**numbers).collective("all_reduce", size).time_s

    def falls(times: list[float]) -> bool:
        return all(later <= before * (1 + 1e-12) for before, later in pairwise(times))

    assert falls([seconds(planes=planes, radix=256) for planes in (1, 2, 3, 6)])
    assert falls([seconds(links=links, planes=links) for links in (1, 2, 4, 6, 12)])
    assert falls(
        [seconds(oversubscription=over, radix=radix) for over, radix in ((3.0, 24), (2.0, 24), (1.0, 32))]
    )  # one node a leaf
    assert falls([seconds(radix=radix) for radix in (32, 64, 128)])
    assert falls([seconds(link_bytes_per_s=rate) for rate in (10e9, 25e9, 50e9)])


def test_too_few_wires_upwards_are_shared() -> None:
    """Eight devices on a leaf, four wires up: where all of them send to another leaf they get half the rate."""
    wide = plane(devices=32, memory_per_node=0, radix=16)
    narrow = replace(wide, radix=12, oversubscription=2.0)
    assert [(one.tree.down, one.tree.up, one.tree.fans) for one in (wide, narrow)] == [(8, 8, (1, 4)), (8, 4, (1, 4))]
    size = 6_000_000_000
    crossing = 2 * (size / 2 + size / 4) / 6 / RATE  # partners 16 and 8 apart are on other leaves, there and back
    even, less = (one.switched_collectives.timing("all_reduce", size, "halving_doubling").time_s for one in (wide, narrow))
    assert less - even == pytest.approx(crossing, rel=1e-3)


# ---- clusters
def test_a_cluster_of_two_by_hand() -> None:
    """Two nodes of two devices, one card each: reduce-scatter inside, all-reduce over the cards, all-gather inside."""
    one = Cluster(
        device=DEVICE, devices=4, devices_per_node=2, design="device-centric", nics=1, across="ring", links=2,
        link_bytes_per_s=10e9, link_latency_s=1e-6, nic_bytes_per_s=1e9, nic_latency_s=5e-6, message_bytes=2**20,
    )  # fmt: skip
    inside = one.inside.collective("reduce_scatter", 8000).time_s + one.inside.collective("all_gather", 8000).time_s
    across = 2 * (2 * 4000 / 1e9 + 5e-6)  # two rounds of half of 8000 bytes, stored once in the network
    assert one.collective("all_reduce", 8000).time_s == pytest.approx(inside + across)


def test_cards_send_and_receive_what_a_broadcast_makes_them() -> None:
    one = Cluster(device=DEVICE, devices=32, devices_per_node=8, nics=1, across="ring", design="device-centric")
    by_arc = carried(one.collective("broadcast", 1_000_000))
    cards = [number for number, wire in enumerate(one.topology.wires) if wire.b == "network"]
    sent, received = ([by_arc.get((card, direction), 0) for card in cards] for direction in (0, 1))
    assert (sum(size == 0 for size in sent), received[0]) == (1, 0)  # the last of the ring sends nothing, the root receives nothing
    assert sum(sent) == sum(received) == 3 * 1_000_000


def test_a_card_gets_what_pcie_gives() -> None:
    def rate(**changed: Any) -> float:
        return Cluster(**{"device": DEVICE, "nic_bytes_per_s": 100e9, "pcie_bytes_per_s": 12e9, **changed}).card_bytes_per_s

    assert rate() == 12e9  # one card beside two devices: the card's own slot
    assert rate(nics=8) == 12e9
    assert rate(staged=True) == 6e9  # up to the host and down again, in both directions
    assert rate(staged=True, nics=8) == 3e9  # two cards on a switch
    assert rate(nics=2) == 12e9  # a card on each socket; half of its data comes over its own switch's uplink
    assert rate(nics=1, pcie_bytes_per_s=1e12) == pytest.approx(19.2e9 * 2)  # half of the data crosses between the sockets
    assert rate(nic_bytes_per_s=1.25e9) == 1.25e9


@pytest.mark.parametrize("design", ["memory-centric", "device-centric"])
@pytest.mark.parametrize("size", [1000, 50_000_000])
def test_more_cards_faster_cards_and_no_staging_are_never_slower(design: Any, size: int) -> None:
    def seconds(**changed: Any) -> float:
        return Cluster(**{"device": DEVICE, "design": design, **changed}).collective("all_reduce", size).time_s

    cards = [seconds(nics=nics) for nics in (1, 2, 4, 8)]
    assert cards == sorted(cards, reverse=True)
    assert seconds(staged=True) >= seconds()
    assert seconds(nic_bytes_per_s=1.25e9) >= seconds() >= seconds(nic_bytes_per_s=25e9, pcie_bytes_per_s=24e9)
    auto = seconds()
    assert all(auto <= seconds(across=algorithm) for algorithm in ("ring", "halving_doubling", "tree"))


@pytest.mark.parametrize("design", ["memory-centric", "device-centric"])
def test_nodes_of_a_cluster_are_their_own_graphs(design: Any) -> None:
    one = Cluster(device=DEVICE, devices=32, design=design)
    graph, inside = one.topology, one.inside.topology
    stores = graph.stores("D19")  # the fourth device of the third node
    assert [(s.sharers, len(s.lanes)) for s in stores] == [(s.sharers, len(s.lanes)) for s in inside.stores("D3")]
    assert one.rings == one.inside.rings
    by_arc = carried(one.collective("all_reduce", 1_000_000))
    assert all(wire < len(graph.wires) for wire, _ in by_arc)
    cards = [number for number, wire in enumerate(graph.wires) if wire.b == "network"]
    assert len(cards) == 4 * 4
    sent = {by_arc[number, 0] for number in cards}
    assert sent == {by_arc[number, 1] for number in cards}
    assert Cluster(device=DEVICE, devices=8, design=design).collective("all_reduce", 10**6) == one.inside.collective(
        "all_reduce", 10**6
    )


# ---- whole steps
@cache
def seconds_of(system: Any, batch: int, model: str = "alexnet") -> float:
    return ty.run(model, on=system, batch=batch).time_s


@pytest.mark.parametrize("overlay", ["off", "all"])
@pytest.mark.parametrize(
    "system",
    [
        plane(devices=32, radix=32),
        plane(devices=32, radix=32, memory_per_node=4, recast="torus"),
        Cluster(device=DEVICE, devices=32),
        Cluster(device=DEVICE, devices=32, design="device-centric", nics=1),
        Switched(device=DEVICE),
        Switched(device=DEVICE, memory_nodes=0, collectives="tree"),
    ],
)
def test_a_folded_plan_equals_the_plan_of_all_devices(system: Any, overlay: Any) -> None:
    folded = replace(system, overlay=overlay)
    batch = 4 * system.devices
    assert seconds_of(folded, batch) == pytest.approx(seconds_of(replace(folded, fold=False), batch), rel=3e-6)


def test_a_thousand_devices_fold() -> None:
    small, large = (seconds_of(plane(devices=devices, overlay="off"), 16 * devices) for devices in (8, 1024))
    assert small <= large < 2 * small


@pytest.mark.parametrize("parallel", ["model", "mixed"])
def test_planes_take_other_parallelism(parallel: Any) -> None:
    assert seconds_of(plane(parallel=parallel, overlay="off"), 64) > 0


def test_sharing_pcie_with_the_copies_is_never_faster() -> None:
    apart = Cluster(device=DEVICE, devices=16, design="device-centric")
    assert seconds_of(replace(apart, contention=True), 64) >= seconds_of(apart, 64)


@pytest.mark.parametrize("nics", [1, 4])
@pytest.mark.parametrize("staged", [False, True])
def test_plans_are_folded_only_where_devices_are_equal(nics: int, staged: bool) -> None:
    shared = Cluster(device=DEVICE, devices=16, design="device-centric", contention=True, nics=nics, staged=staged)
    assert seconds_of(shared, 64) == pytest.approx(seconds_of(replace(shared, fold=False), 64), rel=3e-6)


def test_a_switched_node_uses_its_planes() -> None:
    node = Switched(device=DEVICE)
    assert [store.place for store in node.topology.stores("D11")] == ["M11"]
    auto = node.collective("all_reduce", 10**6).time_s
    for algorithm in ("ring", "tree", "halving_doubling"):
        assert auto <= replace(node, collectives=algorithm).collective("all_reduce", 10**6).time_s
    same = plane(devices=16, devices_per_node=16)
    for algorithm in FLAT:
        expected = replace(node, collectives=algorithm).collective("all_reduce", 10**6).time_s
        assert same.switched_collectives.timing("all_reduce", 10**6, algorithm).time_s == pytest.approx(expected, rel=1e-9)


def test_without_memory_nodes_a_switched_node_crosses_links_at_their_full_rate() -> None:
    assert Switched(device=DEVICE, memory_nodes=0).crossing_ratio == 1.0
    assert Switched(device=DEVICE).crossing_ratio == Switched(device=DEVICE).memory_node.crossing_ratio


def test_wires_that_no_stage_uses_carry_nothing_and_one_device_of_a_row_broadcasts_for_it() -> None:
    collectives = plane(devices=16).switched_collectives
    across = collectives.stage("broadcast", "ring", "across", 4)
    senders = {where[1] for where in across.load if where[0] < 0}
    assert senders == {0, 4, 8, 12}
    assert across.carried((-1, 1, 0), 1000) == 0
    assert across.carried((-1, 0, 0), 1000) > 0


def test_policies_reach_the_inside_of_a_cluster() -> None:
    one = Cluster(device=DEVICE, devices=16, split="balanced", link_bytes_per_s=50e9, overlay="off")
    assert isinstance(one.inside, MemoryCentric)
    assert (one.inside.split, one.inside.link_bytes_per_s, one.inside.devices) == ("balanced", 50e9, 8)
    assert {"nic_latency_s", "staged"} <= replace(one, devices=8).unused_assumptions(ty.zoo.load("alexnet", batch=8))
