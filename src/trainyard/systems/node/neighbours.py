"""Exchanges inside clusters of neighbouring devices, all clusters at once, on the wires that are a cluster's own.

A wire belongs to a cluster if it ends at one of its devices: two clusters never share a wire, so that each takes the time it takes
alone. Memory-nodes and switches between its devices forward, as in any ring; sockets and PCIe switches do not. A ring of the node
that is cut into clusters leaves lines, which are no rings: on such a node clusters must have one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.hardware.collectives.groups import own_graph
from trainyard.hardware.collectives.on_graph import Timing, timing
from trainyard.hardware.topology.rings import rings

if TYPE_CHECKING:
    from trainyard.hardware.collectives.fabric import Flow
    from trainyard.hardware.topology.graph import Topology
    from trainyard.systems.node.systems import Node


def inside(node: Node, kind: str, size_bytes: int, cluster: int) -> Timing:
    """The time of the slowest cluster, with the flows of all clusters."""
    flows: list[Flow] = []
    timings: list[Timing] = []
    for graph, numbers in cut(node.topology, cluster):
        try:
            own_rings = rings(graph, directions=node.directions) if node.collectives in ("ring", "auto") else ()
        except BadInput as error:
            raise BadInput(
                f"{type(node).__name__}: clusters of {cluster} devices have no ring of their own ({error}): give cluster_size=1, "
                "or devices joined by switches"
            ) from None
        own = timing(
            kind, size_bytes, graph, own_rings, algorithm=node.collectives, message_bytes=node.message_bytes, split=node.split
        )
        timings.append(own)
        flows += [(tuple((numbers[wire], direction) for wire, direction in path), count) for path, count in own.flows]
    slowest = max(timings, key=lambda own: own.time_s)
    return Timing.of(slowest.time_s, tuple(flows), slowest.time_s - slowest.delay_s)


def cut(topology: Topology, cluster: int) -> tuple[tuple[Topology, tuple[int, ...]], ...]:
    """For each cluster its graph, and the numbers of its wires in the node's graph."""
    return tuple(own_graph(topology, tuple(range(first, first + cluster))) for first in range(0, len(topology.devices), cluster))
