"""Figs. 5, 7, 8 and 9: hop counts, bandwidth of a device to its memory-nodes, and collectives on rings of more and more nodes.

All of it follows from the wires: rings (`hardware.topology.rings`), backing memories (`systems.node.backing`) and times
(`hardware.collectives.on_graph`) are derived from the graph. Fig. 9 leaves open whether the nodes of a ring all take part or half
of them are memory-nodes that forward: both readings are measured.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import rings
from trainyard.machines.presets.mcdla import DESIGNS, MCDLA_B, MCDLA_S
from trainyard.papers.ledger import Experiments, Measured
from trainyard.systems.node.backing import backings
from trainyard.systems.node.systems import MemoryCentric, Node

KINDS = ("all_gather", "broadcast", "all_reduce")
RING_NODES = tuple(range(2, 17))  # Fig. 9's axis
SYNCHRONISED_BYTES = 8_000_000  # Fig. 9: 8 MB
MESSAGE_BYTES = 4096  # Fig. 9: 4 KB
LINK_BYTES_PER_S = 25e9  # Fig. 9: 50 GB/s, both directions together
LATENCY_S = MCDLA_B.link_latency_s

Reading = Literal["all nodes take part", "every second node forwards"]
READINGS: tuple[Reading, ...] = ("all nodes take part", "every second node forwards")

STAR = MemoryCentric(device=MCDLA_B.device, shape="star")  # Fig. 7a; Table II's numbers are the defaults


def hops(node: Node) -> list[int]:
    """Of each ring through all devices."""
    return sorted(ring.hops for ring in rings(node.topology, directions="one"))


def _hops(node: Node, note: str, details: str) -> Measured:
    walk = "-".join(max(rings(node.topology, directions="one"), key=lambda ring: ring.hops).walk)
    return Measured(hops(node), note=note, details=f"The longest ring is {walk}. {details}")


FROM_TEXT = (
    "Derived from the wires that the text describes (Sec. III-B and its footnotes).",
    "Which two rings of the cube mesh stay is not said and changes no hop count; the derivation is what could fail.",
)
CHOSEN = (
    "Derived from wires that were chosen so that the printed hop counts come out.",
    "Of Fig. 7b only the hop counts are printed, so this does not test the wiring; what could fail is the derivation, which has to "
    "find exactly these rings in the wires.",
)


def to_memory(node: Node) -> float:
    """Bytes a second, each way, of one copy of a device while all devices copy; LOCAL pages lie in one memory-node."""
    rates = [store.bytes_per_s for store in next(iter(backings(node.topology).values()))]
    return max(rates) if node.placement == "local" else sum(rates)


def _ring_bandwidth() -> Measured:
    by_design = ", ".join(f"{name} {to_memory(node) / 1e9:g}" for name, node in DESIGNS.items() if node.overlay != "off")
    return Measured(to_memory(MCDLA_B) / 1e9, note=f"Both memory-nodes of a device; GB/s of all designs: {by_design}.")


def _star_bandwidth() -> Measured:
    return Measured(to_memory(STAR) / 1e9, note=f"Of Fig. 7a; folded (Fig. 7b) it is {to_memory(MCDLA_S) / 1e9:g}.")


def _over_star() -> Measured:
    return Measured(to_memory(MCDLA_B) / to_memory(STAR), note="Fig. 7c over Fig. 7a.")


def _of_system() -> Measured:
    return Measured(
        sum(store.bytes_per_s for one in backings(MCDLA_B.topology).values() for store in one) / 1e9, note="Sum over all devices."
    )


# ---- Fig. 9
def ring_of(nodes: int, reading: Reading = "all nodes take part") -> Topology:
    """One ring of full-duplex wires, its nodes all devices, or devices and memory-nodes in turn.

    >>> ring_of(4, "every second node forwards").devices
    ('D0', 'D1')
    """
    forwards = reading == "every second node forwards"
    names = [f"M{number // 2}" if forwards and number % 2 else f"D{number // (1 + forwards)}" for number in range(nodes)]
    places = tuple(Place(name=name, kind="memory" if name[0] == "M" else "device") for name in names)
    wires = tuple(
        Wire(a=name, b=names[(number + 1) % nodes], bytes_per_s=LINK_BYTES_PER_S, latency_s=LATENCY_S)
        for number, name in enumerate(names)
    )
    return Topology(places=places, wires=wires, name=f"ring of {nodes}")


def latency(
    kind: str,
    nodes: int,
    reading: Reading = "all nodes take part",
    size_bytes: int = SYNCHRONISED_BYTES,
    *,
    pipelined: bool = True,
) -> float:
    """Seconds of one collective on a ring, both ways round at once, message by message."""
    topology = ring_of(nodes, reading)
    return timing(
        kind, size_bytes, topology, rings(topology), message_bytes=MESSAGE_BYTES, pipelined=pipelined
    ).time_s  # fmt: skip


def by_nodes(kind: str, reading: Reading) -> dict[int, float]:
    """Latency over that of a ring of two devices. With two nodes of which one forwards there is nothing to exchange."""
    least = latency(kind, 2)
    forwards = reading == "every second node forwards"
    return {nodes: latency(kind, nodes, reading) / least for nodes in RING_NODES if not forwards or (nodes % 2 == 0 and nodes > 2)}


def doubled(kind: str, reading: Reading, size_bytes: int = SYNCHRONISED_BYTES, *, pipelined: bool = True) -> float:
    """Latency on a ring of 16 over that on one of 8 devices: the cost of memory-nodes in the ring."""
    large = latency(kind, 16, reading, size_bytes, pipelined=pipelined)
    return large / latency(kind, 8, size_bytes=size_bytes, pipelined=pipelined)


def _setting() -> Measured:
    ratios = "; ".join(
        f"{reading}: " + ", ".join(f"{kind} {doubled(kind, reading):.3f}" for kind in KINDS) for reading in READINGS
    )  # fmt: skip
    small = ", ".join(f"{size // 1000} KB {doubled('all_reduce', READINGS[1], size):.2f}" for size in (1_000_000, 100_000, 10_000))
    return Measured(
        (2 * LINK_BYTES_PER_S / 1e9, MESSAGE_BYTES / 1024, SYNCHRONISED_BYTES / 1e6),
        note=f"The settings of our experiment, with an assumed latency of {1e9 * LATENCY_S:g} ns a link.",
        details=f"Latency on a ring of 16 over one of 8: {ratios}. All-reduce of less, forwarding: {small}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.hops.star_a":                   partial(_hops, STAR, *FROM_TEXT),
    "mcdla.hops.star_b":                   partial(_hops, MCDLA_S, *CHOSEN),
    "mcdla.link_bandwidth":                _ring_bandwidth,
    "mcdla.link_bandwidth.star":           _star_bandwidth,
    "mcdla.link_bandwidth.ring_over_star": _over_star,
    "mcdla.link_bandwidth.system":         _of_system,
    "mcdla.fig9.setting":                  _setting,
}
# fmt: on
