"""The builders: degrees, groups and shares as printed in MC-DLA, and rings as the derivation finds them."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter

import pytest

from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.topology.builders import cube_mesh, host_centric, memory_ring, one_device, star, switched
from trainyard.hardware.topology.graph import Topology
from trainyard.hardware.topology.rings import rings

LINK = 25e9  # Table II
PCIE = 12e9
MEMORY = {"memory_bytes_per_s": 256e9, "capacity_bytes": 1_280_000_000_000}  # Table II; ten DIMMs of 128 GB, Table IV

# DGX-1V's links between devices, as `nvidia-smi topo -m` prints them
DGX1V = """
    -  1  1  2  2  .  .  .
    1  -  2  1  .  2  .  .
    1  2  -  2  .  .  1  .
    2  1  2  -  .  .  .  1
    2  .  .  .  -  1  1  2
    .  2  .  .  1  -  2  1
    .  .  1  .  1  2  -  2
    .  .  .  1  2  1  2  -
"""
TABLE = [[int(cell) if cell.isdigit() else 0 for cell in line.split()] for line in DGX1V.split("\n") if line.strip()]

PRESETS = {
    "cube mesh": cube_mesh(link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE),
    "host-centric": host_centric(link_bytes_per_s=LINK),
    "star": star(link_bytes_per_s=LINK, **MEMORY),
    "folded star": star(folded=True, link_bytes_per_s=LINK, **MEMORY),
    "memory ring": memory_ring(link_bytes_per_s=LINK, **MEMORY),
    "switched": switched(memory_nodes=16, link_bytes_per_s=LINK, **MEMORY),
    "one device": one_device(link_bytes_per_s=PCIE),
}


def between(node, a, b):
    """How many wires join places of two kinds."""
    return sum(sorted((wire.a[0], wire.b[0])) == sorted((a, b)) for wire in node.wires)


def links(node, name, to="DMX"):
    ends = [(node.wires[number].a, node.wires[number].b) for number in node.wires_at(name)]
    return sum((b if a == name else a)[0] in to for a, b in ends)


def hops(node):
    return [ring.hops for ring in rings(node, directions="one")]


def store_rate(node, device):
    """Bytes/s to its backing memories by the wires at the device."""
    return sum(node.wires[lane[0][0]].bytes_per_s for store in node.stores(device) for lane in store.lanes)


@pytest.mark.paper
def test_the_cube_mesh_is_dgx_1v():
    node = PRESETS["cube mesh"]
    pairs = Counter(frozenset((wire.a, wire.b)) for wire in node.wires if (wire.a + wire.b).count("D") == 2)
    for a, b in itertools.combinations(range(8), 2):
        assert pairs[frozenset((f"D{a}", f"D{b}"))] == TABLE[a][b] == TABLE[b][a]
    assert [sum(row) for row in TABLE] == [6] * 8
    assert hops(node) == [8, 8, 8]
    assert [ring.hops for ring in rings(node)] == [8] * 6


def test_devices_of_a_cube_mesh_share_pcie_uplinks():
    node = cube_mesh(link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE, devices_per_switch=4, memory_bytes_per_s=80e9)
    assert [place.name for place in node.places if place.kind == "switch"] == ["P0", "P1"]
    lanes = {device: node.stores(device)[0].lanes for device in node.devices}
    assert all(len(lane) == 1 and len(lane[0]) == 2 for lane in lanes.values())
    uplinks = [lanes[device][0][1] for device in node.devices]
    assert uplinks == [uplinks[0]] * 4 + [uplinks[4]] * 4
    assert uplinks[0] != uplinks[4]
    (store,) = node.stores("D6")
    assert (store.place, store.sharers, store.bytes_per_s) == ("S1", 4, 20e9)


@pytest.mark.parametrize("devices", [2, 3, 4, 5, 16])
def test_other_sizes_of_a_cube_mesh_are_rings_of_all_links(devices):
    node = cube_mesh(devices=devices, link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE)
    assert [links(node, device, "D") for device in node.devices] == [6] * devices
    assert hops(node) == [devices] * 3


def test_one_device_of_a_cube_mesh_has_its_socket_to_itself():
    node = cube_mesh(devices=1, link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE)
    assert rings(node) == ()
    assert [(store.place, store.sharers) for store in node.stores("D0")] == [("S0", 1)]


@pytest.mark.paper
@pytest.mark.parametrize("host_links", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", [2, 4, 6, 8, 16])
def test_links_left_for_devices_carry_as_many_rings(devices, host_links):
    node = host_centric(devices=devices, host_links=host_links, link_bytes_per_s=LINK)
    actual = rings(node)
    assert {ring.hops for ring in actual} == {devices}
    slowest = [min(node.wires[wire].bytes_per_s for wire, _ in ring.arcs) for ring in actual]
    assert sum(slowest) == (6 - host_links) * LINK
    rates = Counter()
    for wire in node.wires:
        rates.update({wire.a: wire.bytes_per_s, wire.b: wire.bytes_per_s})
    assert all(rates[device] == 6 * LINK for device in node.devices)
    assert [store_rate(node, device) for device in node.devices] == [host_links * LINK] * devices


@pytest.mark.paper
def test_four_devices_share_a_socket_that_can_serve_them_all():
    node = host_centric(link_bytes_per_s=LINK, memory_bytes_per_s=300e9)  # Sec. IV: 4 x 3 x 25 GB/s
    assert [node.stores(device)[0].place for device in node.devices] == ["S0"] * 4 + ["S1"] * 4
    assert node.stores("D0")[0].bytes_per_s == store_rate(node, "D0") == 75e9


@pytest.mark.parametrize(("host_links", "reason"), [(5, "device 'D0' has only 1 link"), (6, "device 'D0' has no link")])
def test_too_many_host_links_leave_no_ring(host_links, reason):
    with pytest.raises(BadInput, match=f"topology 'host-centric' has no ring: {reason}"):
        rings(host_centric(host_links=host_links, link_bytes_per_s=LINK))
    with pytest.raises(BadInput, match="7 of 6 links cannot go to the host"):
        host_centric(host_links=7, link_bytes_per_s=LINK)


@pytest.mark.paper
def test_the_star_has_rings_of_8_8_and_24_hops():
    node = PRESETS["star"]
    assert (between(node, "D", "D"), between(node, "D", "M"), between(node, "M", "M")) == (16, 16, 16)
    assert [links(node, place.name) for place in node.places] == [6] * 16
    assert hops(node) == [8, 8, 24]
    last = rings(node, directions="one")[-1]
    assert Counter(last.walk) == {f"D{n}": 1 for n in range(8)} | {f"M{n}": 2 for n in range(8)}  # footnote 1
    used = {wire for ring in rings(node) for wire, _ in ring.arcs}
    idle = [wire for number, wire in enumerate(node.wires) if number not in used]
    assert len(idle) == 8
    assert all(wire.a[0] == wire.b[0] == "M" for wire in idle)  # footnote 2
    for number in range(8):
        (store,) = node.stores(f"D{number}")
        assert (store.place, len(store.lanes), store.sharers) == (f"M{number}", 2, 1)
        assert store_rate(node, f"D{number}") == 50e9


@pytest.mark.paper
def test_the_folded_star_has_rings_of_8_12_and_20_hops():
    node = PRESETS["folded star"]
    assert (between(node, "D", "D"), between(node, "D", "M"), between(node, "M", "M")) == (16, 16, 16)
    assert [links(node, place.name) for place in node.places] == [6] * 16
    assert hops(node) == [8, 12, 20]
    short, middle, long = rings(node, directions="one")
    assert not any(name[0] == "M" for name in short.walk)
    assert Counter(name[0] for name in middle.walk) == {"D": 8, "M": 4}
    assert sorted(Counter(name for name in long.walk if name[0] == "M").values()) == [1] * 4 + [2] * 4
    used = {wire for ring in rings(node) for wire, _ in ring.arcs}
    idle = [wire for number, wire in enumerate(node.wires) if number not in used]
    assert len(idle) == 8
    assert all(wire.a[0] == wire.b[0] == "M" for wire in idle)
    for device in node.devices:
        assert [(len(store.lanes), store.sharers, store.bytes_per_s) for store in node.stores(device)] == [(1, 2, 128e9)] * 2
        assert store_rate(node, device) == 50e9


def test_the_folded_star_keeps_wires_of_the_cube_mesh_but_no_second_ring_of_them():
    pairs = Counter(frozenset((w.a, w.b)) for w in PRESETS["folded star"].wires if w.b[0] == "D")
    mesh = Counter(frozenset((w.a, w.b)) for w in PRESETS["cube mesh"].wires if w.b[0] == "D")
    assert pairs <= mesh
    actual = 0
    for order in itertools.permutations(range(1, 8)):
        names = [f"D{number}" for number in (0, *order)]
        ring = Counter(frozenset(pair) for pair in zip(names, [*names[1:], "D0"], strict=True))
        if order[0] < order[-1] and ring <= pairs:
            actual += 1
            left = pairs - ring
            reached, waiting = {"D0"}, ["D0"]
            while waiting:
                here = waiting.pop()
                more = {name for pair in left if here in pair for name in pair} - reached
                reached |= more
                waiting += more
            assert len(reached) < 8 or any(count > 1 for count in left.values())  # what is left is no ring
    assert actual


@pytest.mark.paper
def test_the_ring_design_has_three_rings_of_16_and_all_links_to_memory():
    node = PRESETS["memory ring"]
    assert [links(node, place.name) for place in node.places] == [6] * 16
    assert between(node, "D", "M") == 48
    assert hops(node) == [16, 16, 16]
    for number in range(8):
        stores = node.stores(f"D{number}")
        assert {store.place for store in stores} == {f"M{number}", f"M{(number - 1) % 8}"}
        assert [(len(store.lanes), store.sharers, store.bytes_per_s) for store in stores] == [(3, 2, 128e9)] * 2
        assert sum(store.capacity_bytes for store in stores) == MEMORY["capacity_bytes"]
        assert store_rate(node, f"D{number}") == 150e9  # Sec. III-B
    assert sum(store_rate(node, device) for device in node.devices) == 1200e9  # Sec. III-B


@pytest.mark.parametrize("devices", [1, 2, 4, 16, 64])
def test_the_ring_design_at_other_sizes(devices):
    node = memory_ring(devices=devices, link_bytes_per_s=LINK)
    assert [store_rate(node, device) for device in node.devices] == [6 * LINK] * devices
    assert ([2 * devices] * 3 if devices > 1 else []) == hops(node)


def test_a_star_of_other_sizes():
    assert hops(star(devices=16, link_bytes_per_s=LINK)) == [16, 16, 48]
    assert hops(star(devices=4, links=4, link_bytes_per_s=LINK)) == [4, 12]
    with pytest.raises(NotModelled, match="known for 8 devices of 6 links"):
        star(devices=4, folded=True, link_bytes_per_s=LINK)
    with pytest.raises(BadInput, match="two links to its device and two to its neighbours, got links=3"):
        star(links=3, link_bytes_per_s=LINK)


def test_a_switched_node_gives_each_device_its_memory_node():
    node = PRESETS["switched"]
    assert [ring.hops for ring in rings(node)] == [32] * 6
    for number, device in enumerate(node.devices):
        (store,) = node.stores(device)
        assert (store.place, store.sharers, len(store.lanes)) == (f"M{number}", 1, 6)
        assert all(len(lane) == 2 for lane in store.lanes)
        assert len({arc for lane in store.lanes for arc in lane}) == 12


def test_memory_nodes_are_assigned_round_robin():
    few = switched(devices=4, memory_nodes=2, link_bytes_per_s=LINK)
    assert [[store.place for store in few.stores(device)] for device in few.devices] == [["M0"], ["M1"], ["M0"], ["M1"]]
    many = switched(devices=2, memory_nodes=5, link_bytes_per_s=LINK)
    assert [[store.place for store in many.stores(device)] for device in many.devices] == [["M0", "M2", "M4"], ["M1", "M3"]]
    assert {store.sharers for store in many.stores("D0")} == {1}


def test_a_switched_node_below_sockets():
    node = switched(devices=16, link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE)
    assert [ring.hops for ring in rings(node)] == [32] * 6
    assert [node.stores(device)[0].place for device in node.devices] == ["S0"] * 8 + ["S1"] * 8
    assert {name[0] for ring in rings(node) for name in ring.walk} == {"D", "X"}


def test_a_thousand_devices_are_built_fast():
    started = time.perf_counter()
    node = switched(devices=1024, memory_nodes=1024, link_bytes_per_s=LINK)
    assert [ring.hops for ring in rings(node)] == [2048] * 6
    assert [node.stores(device)[0].place for device in node.devices] == [f"M{number}" for number in range(1024)]
    assert time.perf_counter() - started < 10  # some 0.6 s


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_through_its_table(name):
    node = PRESETS[name]
    assert node.name == name
    assert Topology.from_table(json.loads(json.dumps(node.to_table()))) == node


def test_one_device_has_one_link_and_no_ring():
    node = PRESETS["one device"]
    assert rings(node) == ()
    assert node.stores("D0")[0].lanes == (((0, 0),),)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cube_mesh(devices=0, link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE), "cube_mesh: devices must be a positive whole"),
        (lambda: cube_mesh(link_bytes_per_s=0, pcie_bytes_per_s=PCIE), "wire D0 - D1: bytes_per_s must be above 0"),
        (lambda: cube_mesh(link_bytes_per_s=LINK, pcie_bytes_per_s=0), "wire D0 - P0: bytes_per_s must be above 0"),
        (lambda: cube_mesh(link_bytes_per_s=LINK, pcie_bytes_per_s=PCIE, sockets=0), "PCIe: sockets must be a positive whole"),
        (lambda: switched(planes=0, link_bytes_per_s=LINK), "switched: planes must be a positive whole number"),
        (lambda: switched(memory_nodes=-1, link_bytes_per_s=LINK), "switched: memory_nodes must be a positive whole number"),
        (lambda: memory_ring(link_bytes_per_s=LINK, memory_bytes_per_s=0), "place 'M0': memory_bytes_per_s must be above 0"),
    ],
)
def test_invalid_numbers_raise(build, message):
    with pytest.raises(BadInput, match=message):
        build()
