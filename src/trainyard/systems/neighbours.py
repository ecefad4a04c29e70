"""Exchanges inside clusters of neighbouring devices, all clusters at once, on the wires that are a cluster's own.

A cluster's own wires end at one of its devices: two clusters never share one, so that each takes what it takes alone. Memory-nodes
and switches between its devices forward, as in any ring. A ring of the node that is cut into clusters leaves lines, and a line is
no ring: there clusters of one device are all there is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.parts.collectives import Timing, timing
from trainyard.parts.rings import rings
from trainyard.parts.topology import Place, Topology, Wire

if TYPE_CHECKING:
    from trainyard.parts.fabric import Flow
    from trainyard.systems.node import Node


def inside(node: Node, kind: str, size_bytes: int, cluster: int) -> Timing:
    """The slowest cluster's time, and what all of them send."""
    flows: list[Flow] = []
    found: list[Timing] = []
    for graph, numbers in cut(node.topology, cluster):
        try:
            around = rings(graph, directions=node.directions) if node.collectives in ("ring", "auto") else ()
        except BadInput as error:
            raise BadInput(
                f"{type(node).__name__}: clusters of {cluster} devices have no ring of their own ({error}): give cluster_size=1, "
                "or devices joined by switches"
            ) from None
        one = timing(
            kind, size_bytes, graph, around, algorithm=node.collectives, message_bytes=node.message_bytes, split=node.split
        )
        found.append(one)
        flows += [(tuple((numbers[wire], way) for wire, way in path), count) for path, count in one.flows]
    slowest = max(found, key=lambda one: one.time_s)
    return Timing.of(slowest.time_s, tuple(flows), slowest.time_s - slowest.delay_s)


@lru_cache(maxsize=64)
def cut(topology: Topology, cluster: int) -> tuple[tuple[Topology, tuple[int, ...]], ...]:
    """For each cluster its graph, and the numbers of its wires in the whole one."""
    devices, found = topology.devices, []
    for first in range(0, len(devices), cluster):
        own = set(devices[first : first + cluster])
        others = set(devices) - own
        numbers = tuple(n for n, wire in enumerate(topology.wires) if {wire.a, wire.b} & own and not {wire.a, wire.b} & others)
        ends = {end for n in numbers for end in (topology.wires[n].a, topology.wires[n].b)} | own
        places = tuple(place for place in topology.places if place.name in ends)
        wires = tuple(topology.wires[n] for n in numbers)
        name = f"cluster of {topology.name}" if topology.name else "a cluster"
        found.append((_graph(places, wires, name, own), numbers))
    return tuple(found)


def _graph(places: tuple[Place, ...], wires: tuple[Wire, ...], name: str, own: set[str]) -> Topology:
    kept = tuple(replace(place, serves=tuple(client for client in place.serves if client in own)) for place in places)
    return Topology(places=kept, wires=wires, name=name)
