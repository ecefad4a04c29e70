"""Pictures of nodes: well-formed, complete, nothing on top of another thing."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.topology.builders import cube_mesh, host_centric, memory_ring, one_device, star, switched
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import rings
from trainyard.report.topology import COLOURS, IDLE, SIZE, draw

LINK = 25e9
PRESETS = {
    "cube mesh": cube_mesh(link_bytes_per_s=LINK, pcie_bytes_per_s=12e9, memory_bytes_per_s=80e9),
    "cube mesh of 2": cube_mesh(devices=2, link_bytes_per_s=LINK, pcie_bytes_per_s=12e9),
    "cube mesh of 4": cube_mesh(devices=4, link_bytes_per_s=LINK, pcie_bytes_per_s=12e9),
    "host-centric": host_centric(link_bytes_per_s=LINK),
    "star": star(link_bytes_per_s=LINK),
    "folded star": star(folded=True, link_bytes_per_s=LINK),
    "memory ring": memory_ring(link_bytes_per_s=LINK, memory_bytes_per_s=256e9, capacity_bytes=1_280_000_000_000),
    "memory ring of 1": memory_ring(devices=1, link_bytes_per_s=LINK),
    "memory ring of 2": memory_ring(devices=2, link_bytes_per_s=LINK),
    "memory ring of 64": memory_ring(devices=64, link_bytes_per_s=LINK),
    "switched": switched(memory_nodes=16, link_bytes_per_s=LINK),
    "switched below sockets": switched(pcie_bytes_per_s=12e9, link_bytes_per_s=LINK),
    "one device": one_device(link_bytes_per_s=12e9),
}


def parsed(text):
    root = ElementTree.fromstring(text.replace('xmlns="http://www.w3.org/2000/svg" ', ""))
    return (
        root,
        root.findall("./g[@class='wire']"),
        [group for group in root.findall("./g") if "place" in group.get("class").split()],
    )


def titles(groups):
    return [group.find("title").text for group in groups]


def points(text):
    """Where each place was drawn, by the middle of its label."""
    _, _, places = parsed(text)
    found = {}
    for group in places:
        label = group.find("text")
        size = float(label.get("font-size"))
        found[group.find("title").text.rsplit(": ", 1)[0]] = (float(label.get("x")), float(label.get("y")) - size / 3)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_every_place_and_wire_is_drawn_once_and_named(name):
    node = PRESETS[name]
    text = draw(node, rings(node))
    root, wires, places = parsed(text)
    assert root.tag == "svg"
    assert Counter(title.split(":")[0] for title in titles(places)) == Counter(place.name for place in node.places)
    assert Counter(title.split(",")[0] for title in titles(wires)) == Counter(f"{wire.a} - {wire.b}" for wire in node.wires)
    assert draw(node, rings(node)) == text


@pytest.mark.parametrize("name", PRESETS)
def test_nothing_lies_on_another_place_or_outside(name):
    node = PRESETS[name]
    text = draw(node, rings(node))
    at = points(text)
    assert len(at) == len(node.places)
    for (_, one), (_, other) in itertools.combinations(at.items(), 2):
        assert math.dist(one, other) > 2.2 * SIZE
    x, y, width, height = map(float, parsed(text)[0].get("viewBox").split())
    for right, down in at.values():
        assert x + SIZE < right < x + width - SIZE
        assert y + SIZE < down < y + height - SIZE


@pytest.mark.parametrize("name", PRESETS)
def test_parallel_wires_are_apart(name):
    _, wires, _ = parsed(draw(PRESETS[name], rings(PRESETS[name])))
    paths = [group.find("path").get("d") for group in wires]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("name", ["cube mesh", "star", "folded star", "memory ring", "host-centric"])
def test_wires_wear_the_colour_of_their_ring_and_the_legend_says_which(name):
    node = PRESETS[name]
    found = rings(node, directions="one")
    text = draw(node, rings(node))
    root, wires, _ = parsed(text)
    strokes = Counter(group.find("path").get("stroke") for group in wires)
    assert (
        strokes
        == Counter(
            {COLOURS[number]: ring.hops for number, ring in enumerate(found)}
            | {IDLE: len(node.wires) - sum(ring.hops for ring in found)}
        )
        - Counter()
    )
    legend = [line.text for line in root.findall("./g[@class='legend']//text")]
    rate = "12.5 GB/s" if name == "host-centric" else "25 GB/s"
    for number, ring in enumerate(found):
        assert f"ring {number + 1}: {ring.hops} hops, {rate} each way" in legend
    dashed = [group for group in wires if group.find("path").get("stroke-dasharray")]
    assert len(dashed) == strokes[IDLE]


def test_wires_of_no_ring_can_be_seen():
    """Dark enough on white: 4.5 to 1 and more, as the web's rule for text has it."""
    channel = int(IDLE[1:3], 16) / 255
    assert f"#{IDLE[1:3] * 3}" == IDLE
    assert 1.05 / (((channel + 0.055) / 1.055) ** 2.4 + 0.05) > 4.5


def test_only_eight_devices_are_a_cube_mesh():
    assert "<title>cube mesh: 8 device-nodes" in draw(PRESETS["cube mesh"])
    sixteen = cube_mesh(devices=16, link_bytes_per_s=LINK, pcie_bytes_per_s=12e9)
    assert "<title>rings of devices: 16 device-nodes" in draw(sixteen)


def test_a_ring_in_one_direction_says_so():
    node = switched(devices=5, links=3, planes=1, link_bytes_per_s=LINK)
    assert draw(node, rings(node)).count("10 hops, 25 GB/s one way") == 3


def test_a_wire_of_two_rings_wears_both_colours():
    """Six devices of three links: three directed rings, some wires lie in two of them."""
    places = tuple(Place(name=f"D{number}", kind="device") for number in range(6))
    pairs = [(number, (number + 1) % 6) for number in range(6)] + [(number, number + 3) for number in range(3)]
    node = Topology(places=places, wires=tuple(Wire(a=f"D{a}", b=f"D{b}", bytes_per_s=LINK) for a, b in pairs))
    found = rings(node)
    _, wires, _ = parsed(draw(node, found))
    used = Counter(wire for ring in found for wire in {wire for wire, _ in ring.arcs})
    assert Counter(len(group.findall("path")) for group in wires) == Counter(used.values())
    assert 2 in used.values()


def test_without_rings_all_wires_are_grey():
    _, wires, _ = parsed(draw(PRESETS["star"]))
    assert {group.find("path").get("stroke") for group in wires} == {IDLE}


def test_names_are_escaped_and_long_ones_cut():
    bad = '<b>&"x"'
    places = (Place(name=bad, kind="device"), Place(name="a device of a very long name", kind="device"))
    node = Topology(places=places, wires=(Wire(a=bad, b=places[1].name, bytes_per_s=1e9),) * 2, name="</svg>")
    text = draw(node, rings(node))
    assert "<b>" not in text
    assert text.count("</svg>") == 1
    _, _, drawn = parsed(text)
    assert titles(drawn) == [f"{bad}: device-node", "a device of a very long name: device-node"]
    assert drawn[1].find("text").text == "a devic…"


def test_the_picture_is_complete_in_itself():
    text = draw(PRESETS["folded star"], rings(PRESETS["folded star"]))
    assert not re.search(r"href|url\(|<script|<style|<image", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


@st.composite
def graphs(draw_from):
    kinds = ["device", *draw_from(st.lists(st.sampled_from(["device", "memory", "socket", "switch"]), max_size=7))]
    names = [f"{kind[0]}{number}" for number, kind in enumerate(kinds)]
    pairs = list(itertools.combinations(names, 2))
    ends = draw_from(st.lists(st.sampled_from(pairs), max_size=14)) if pairs else []
    return Topology(
        places=tuple(Place(name=name, kind=kind) for name, kind in zip(names, kinds, strict=True)),
        wires=tuple(Wire(a=a, b=b, bytes_per_s=LINK) for a, b in ends),
    )


@given(graphs())
def test_any_graph_has_a_picture(node):
    try:
        found = rings(node)
    except BadInput:
        found = ()
    text = draw(node, found)
    _, wires, places = parsed(text)
    assert (len(wires), len(places)) == (len(node.wires), len(node.places))
    at = points(text)
    assert len(at) == len(node.places)
    assert all(math.dist(one, other) > SIZE for one, other in itertools.combinations(at.values(), 2))
    assert "nan" not in text
