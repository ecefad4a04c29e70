"""Collectives between nodes: inside every node first, then across nodes, then inside again.

An all-reduce reduce-scatters inside each node, so that each of its d devices holds the node's sum of one part in d; the devices of
the same number in all nodes all-reduce their part; then each node gathers. Across nodes goes as much as one device of each node
would have to send (`shared`: the d devices of a node share its one network card, as over Ethernet or InfiniBand), or one part in d
of it on each of d cards. An all-to-all first hands each device of a node what its node has for the devices of the same number in
all nodes; then these exchange, and each device sends as much across nodes as it has, so that a shared card carries d times that.
MC-DLA assumes message passing of this kind between nodes and studies what is inside one (Sec. VI).

Devices are numbered through: node by node, d in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import UnknownName
from trainyard.hardware.collectives.fabric import Timing
from trainyard.hardware.topology.graph import Place, Topology, Wire

Where = Literal["inside", "across"]
Array = npt.NDArray[Any]
Timer = Callable[[str, int], Timing]
"""(kind, bytes of the whole tensor) -> its timing, in one node or between the network cards of all nodes."""
Mover = Callable[[str, Sequence[Array], int], Sequence[Array]]
"""(kind, arrays, root) -> arrays."""

# fmt: off
STAGES: dict[str, tuple[tuple[Where, str], ...]] = {
    "all_reduce":     (("inside", "reduce_scatter"), ("across", "all_reduce"),     ("inside", "all_gather")),
    "reduce_scatter": (("inside", "reduce_scatter"), ("across", "reduce_scatter")),
    "all_gather":     (("across", "all_gather"),     ("inside", "all_gather")),
    "broadcast":      (("across", "broadcast"),      ("inside", "broadcast")),
    "reduce":         (("inside", "reduce"),         ("across", "reduce")),
    "all_to_all":     (("inside", "all_to_all"),     ("across", "all_to_all")),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; its flows are on the wires of a node, or on those of the network between nodes."""

    where: Where
    kind: str
    timing: Timing


def hierarchical(
    kind: str, size_bytes: int, *, devices: int, inside: Timer, across: Timer, shared: bool = True
) -> tuple[Stage, ...]:
    """The stages of a collective over nodes of `devices` each; its time is the sum of theirs.

    >>> one = lambda kind, size: Timing(0.0, (), float(size))
    >>> plan = hierarchical("all_gather", 8, devices=4, inside=one, across=one)
    >>> [(stage.where, stage.kind, stage.timing.time_s) for stage in plan]
    [('across', 'all_gather', 8.0), ('inside', 'all_gather', 8.0)]
    """
    require_positive("hierarchical", devices=devices)
    rooted = kind in ("broadcast", "reduce")  # one device of a node talks to the others, over one card
    outside = size_bytes if shared or rooted else -(-size_bytes // devices)
    if kind == "all_to_all":
        outside = size_bytes * devices if shared else size_bytes
    result = []
    for where, part in stages(kind):
        result.append(Stage(where, part, inside(part, size_bytes) if where == "inside" else across(part, outside)))
    return tuple(result)


def stages(kind: str) -> tuple[tuple[Where, str], ...]:
    if kind not in STAGES:
        raise UnknownName("collective between nodes", kind, STAGES)
    return STAGES[kind]


def network(nodes: int, bytes_per_s: float, latency_s: float = 0.0) -> Topology:
    """The network between nodes, one card a node, all on one switch. `latency_s` is that from card to card.

    >>> len(network(4, 12.5e9, 2e-6).wires)
    4
    """
    require_positive("network", nodes=nodes)
    places = [Place(name=f"N{node}", kind="device") for node in range(nodes)]
    wires = [Wire(a=place.name, b="network", bytes_per_s=bytes_per_s, latency_s=latency_s / 2) for place in places]
    return Topology(places=(*places, Place(name="network", kind="switch")), wires=tuple(wires), name="network")
