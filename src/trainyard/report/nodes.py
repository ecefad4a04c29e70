"""What the graph of a node adds to a report: its drawing, its rings in words, the sockets that its devices page to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainyard.errors import BadInput
from trainyard.hardware.topology.graph import Place, Topology
from trainyard.hardware.topology.rings import Ring
from trainyard.report import topology

MOST_PLACES = 200
"""A graph of more is a blot, not a drawing."""


def graph(machine: Any) -> Topology | None:
    """The machine's link graph; None for a device alone and for a system without one."""
    link_graph = getattr(machine, "topology", None)
    return link_graph if isinstance(link_graph, Topology) else None


def sockets(machine: Any) -> list[Place]:
    """The sockets whose memory backs the devices'."""
    link_graph = graph(machine)
    if link_graph is None:
        return []
    backing = {store.place for device in link_graph.devices for store in link_graph.stores(device)}
    return [place for place in link_graph.places if place.kind == "socket" and place.name in backing]


def drawing(machine: Any, name: str) -> tuple[str, str]:
    """The machine's graph as an SVG document, and a sentence about it for those who cannot see it."""
    link_graph = graph(machine)
    if link_graph is None:
        raise BadInput(f"{name} has no link graph to draw: nodes have one, such as mcdla-b or dc-dla")
    if len(link_graph.places) > MOST_PLACES:
        raise BadInput(
            f"{name} has {len(link_graph.places):,} devices, memories and switches, too many to draw (at most {MOST_PLACES}): "
            f"give it fewer devices, as in {name.partition('(')[0]}(devices=16)"
        )
    around = _rings(machine)
    return topology.draw(link_graph, around), f"{len(link_graph.places)} places and {len(link_graph.wires)} wires; {hops(around)}."


def _rings(machine: Any) -> tuple[Ring, ...]:
    """None where the graph has no ring: its collectives then go another way."""
    try:
        rings: tuple[Ring, ...] = machine.rings
    except BadInput:
        return ()
    return rings


def hops(rings: Sequence[Ring]) -> str:
    """How many rings of which length there are; the two directions of a ring are two.

    >>> from trainyard.hardware.topology.rings import rings
    >>> from trainyard.hardware.topology.builders import star
    >>> hops(rings(star(folded=True, link_bytes_per_s=25e9)))
    '6 rings of 8 devices: 2 of 8 hops, 2 of 12 hops, 2 of 20 hops'
    """
    if not rings:
        return "no ring passes all devices"
    counted = sorted(Counter(ring.hops for ring in rings).items())
    counts = ", ".join(f"{count} of {length} hops" for length, count in counted)
    return f"{len(rings)} rings of {len(rings[0].devices)} devices: {counts}"
