"""Message passing: nodes of several devices, connected by network cards (Ethernet, InfiniBand) and a network of full bisection.

The baseline that MC-DLA assumes between nodes (Sec. II-C, VI). Inside a node the devices have their own links (`design`); a network
card is connected to a PCIe switch (DGX-1: four cards, each shared by two devices). A collective runs inside every node first, then
across nodes, then inside again (`hardware.collectives.hierarchical`): the devices' parts are divided among the node's cards, and
each card communicates with the cards of the same number in all other nodes. The path between a device and its card (a PCIe switch;
its uplink and the sockets, if they are not on the same switch or data is staged in host memory) bounds the rate of a card; with
`contention` copies share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.hardware.collectives.fabric import Flow, Timing
from trainyard.hardware.collectives.hierarchical import Stage, hierarchical, network
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.topology.graph import Arc, Place, Topology, Wire
from trainyard.hardware.topology.rings import Ring, rings
from trainyard.ir import Masks, Step, assumed
from trainyard.ir.plan import Plan
from trainyard.systems.node.backing import crossing
from trainyard.systems.node.systems import DeviceCentric, MemoryCentric, Node
from trainyard.systems.scale_out.plane import hosts

NETWORK = "network"
QPI_BYTES_PER_S = 19.2e9  # Intel, Xeon E5 v4 (DGX-1): QPI of 9.6 GT/s, 2 bytes each way


@part
class Cluster(Node):
    """Nodes of `devices_per_node` devices, each a MemoryCentric or DeviceCentric node, with `nics` network cards.

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> cluster = Cluster(device=DEVICE, devices=64)
    >>> cluster.card_bytes_per_s        # PCIe gives a card of 12.5 GB/s less
    12000000000.0
    """

    devices: int = 64
    devices_per_node: int = 8
    design: Literal["memory-centric", "device-centric"] = "memory-centric"
    nics: int = 4
    nic_bytes_per_s: float = 12.5e9
    across: Literal["ring", "halving_doubling", "tree", "auto"] = "auto"
    memory_node: MemoryNode = field(default_factory=MemoryNode)
    socket_bytes_per_s: float = 80e9
    # fmt: off
    nic_latency_s: float = assumed(2e-6, "of one message from device to device over the network, MPI's included", 1e-6, 10e-6)
    staged: bool = assumed(False, "what goes to a card is first copied to host memory, or goes from the device to the card", True)
    bucket_bytes: NonNegativeInt = assumed(25_000_000, "gradients are reduced in buckets of this size (DDP's default)", 0)
    pcie_bytes_per_s: float = assumed(12e9, "what copies get of PCIe gen3 x16, each way", 10.6e9, 16e9)
    devices_per_switch: int = assumed(2, "devices that share a PCIe switch's uplink (DGX-1: two)", 1, 4)
    # fmt: on

    def __post_init__(self) -> None:
        Node.__post_init__(self)
        if self.devices % self.devices_per_node:
            raise BadInput(
                f"Cluster: {self.devices} devices do not fill nodes of {self.devices_per_node}: "
                f"give a multiple of {self.devices_per_node}, or another devices_per_node"
            )
        if self.devices_per_node % self.nics:
            raise BadInput(
                f"Cluster: {self.devices_per_node} devices of a node do not divide among {self.nics} network cards (nics)"
            )

    @property
    def nodes(self) -> int:
        return self.devices // self.devices_per_node

    @property
    def inside(self) -> Node:
        """One node, with the same policies."""
        return self._cache.get("inside", self._inside)

    def _inside(self) -> Node:
        kind: type[Node] = MemoryCentric if self.design == "memory-centric" else DeviceCentric
        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name, field in kind.__dataclass_fields__.items()
            if field.init and name in self.__dataclass_fields__
        }
        return kind(**shared | {"devices": self.devices_per_node})

    @property
    def node_topology(self) -> Topology:
        """The graph of one node with its host and cards; all nodes number their wires in this order."""
        return _node(self.inside.topology, self.pcie_bytes_per_s, self.socket_bytes_per_s, self.devices_per_switch, self.nics)

    @property
    def topology(self) -> Topology:
        return _joined(self.node_topology, self.nodes, self.nic_bytes_per_s, self.nic_latency_s)

    @property
    def default_cluster_size(self) -> int:
        return min(self.devices, self.devices_per_node)

    @property
    def crossing_ratio(self) -> float:
        return self.inside.crossing_ratio

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Rings inside one node; all nodes have the same."""
        return self.inside.rings

    @property
    def card_paths(self) -> Mapping[Arc, float]:
        """Load of each arc between the devices and cards of a node, in units of what one card sends or receives."""
        return _card_paths(self.node_topology, self.devices_per_node, self.nics, self.devices_per_switch, self.staged)

    @property
    def card_bytes_per_s(self) -> float:
        """Rate at which a card can send and receive at the same time, bounded by PCIe on the path to it."""
        wires = self.node_topology.wires
        return min(self.nic_bytes_per_s, *(wires[wire].bytes_per_s / times for (wire, _), times in self.card_paths.items()))

    def collective(self, kind: str, size_bytes: int) -> Timing:
        if self.nodes == 1 or not size_bytes:
            return self.inside.collective(kind, size_bytes)
        return self._cache.get((kind, size_bytes), lambda: self._hierarchical(kind, size_bytes))

    def _hierarchical(self, kind: str, size_bytes: int) -> Timing:
        inside = self.inside.collective
        return self.combined(hierarchical(kind, size_bytes, devices=self.devices_per_node, inside=inside, across=self.between))

    def _cluster_collective(self, kind: str, size_bytes: int, cluster: int) -> Timing:
        if self.devices_per_node % cluster:
            raise BadInput(
                f"Cluster: a cluster of {cluster} devices does not lie within nodes of {self.devices_per_node}: give cluster_size="
                f"{self.devices_per_node} or a part of it"
            )
        return self.combined((Stage("inside", kind, self.inside.cluster_collective(kind, size_bytes, cluster)),))

    def between(self, kind: str, size_bytes: int, nodes: int | None = None, groups: int = 1) -> Timing:
        """A collective between the cards of the same number in all nodes (or in `nodes` of them), each card with its part.

        Several `groups` of a node's devices, each with as many bytes, share the cards.
        """
        graph, network_rings = _network(nodes or self.nodes, self.card_bytes_per_s, self.nic_latency_s)
        alone = kind in ("broadcast", "reduce")  # one device of each node sends, over its own card
        part = -(-groups // self.nics) * size_bytes if alone else -(-groups * size_bytes // self.nics)
        used_rings = network_rings if self.across in ("ring", "auto") else ()
        algorithm: str = self.across if kind == "all_reduce" or self.across != "tree" else "auto"
        if kind == "all_to_all":
            algorithm = "pairwise"  # the network is a switch: any card sends to any other
        return timing(kind, part, graph, used_rings, algorithm=algorithm, message_bytes=self.message_bytes)

    def combined(self, all_stages: tuple[Stage, ...], nodes: int | None = None) -> Timing:
        """The timing of consecutive stages, with flows on the arcs of all nodes; groups of `nodes` nodes run at the same time."""
        inside: dict[tuple[Arc, ...], int] = defaultdict(int)
        cards: dict[Arc, int] = defaultdict(int)
        for stage in all_stages:
            for path, count in stage.timing.flows:
                if stage.where == "inside":
                    inside[path] += count
                else:
                    for arc in path:
                        cards[arc] += count
        flows: list[Flow] = [(self._everywhere(path), count) for path, count in inside.items()]
        flows += self._across(cards, nodes or self.nodes)
        wires = self.topology.wires
        moving_s = max((count / min(wires[wire].bytes_per_s for wire, _ in path) for path, count in flows), default=0.0)
        return Timing.of(sum(stage.timing.time_s for stage in all_stages), tuple(flows), moving_s)

    def _everywhere(self, path: tuple[Arc, ...]) -> tuple[Arc, ...]:
        count = len(self.node_topology.wires)
        return self._cache.get(
            ("everywhere", path),
            lambda: tuple((node * count + wire, direction) for node in range(self.nodes) for wire, direction in path),
        )

    def _across(self, cards: Mapping[Arc, int], nodes: int) -> list[Flow]:
        """Flows of all cards and of PCIe in their nodes, from the load of the cards of one number; equal loads are one flow."""
        sums: dict[int, list[Arc]] = defaultdict(list)
        count, first = len(self.node_topology.wires), self.nodes * len(self.node_topology.wires)
        for node in range(self.nodes):
            sent, received = cards.get((node % nodes, 0), 0), cards.get((node % nodes, 1), 0)
            for card in range(self.nics):
                sums[sent].append((first + node * self.nics + card, 0))
                sums[received].append((first + node * self.nics + card, 1))
            for (wire, direction), times in self.card_paths.items():
                sums[round(times * max(sent, received))].append((node * count + wire, direction))
        return [(tuple(arcs), size) for size, arcs in sums.items() if size]

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        """Unfolded where exchanges share a wire with copies of several devices: these are not equal then."""
        contended = self.fold and self.contention and self.overlay != "off"
        if contended and any(crossing(self.topology).get(arc, 1) > 1 for arc in self.card_paths):
            return Node.plan(replace(self, fold=False), step, masks)
        return Node.plan(self, step, masks)

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        unused = Node.unused_assumptions(self, step)
        if self.nodes == 1:
            unused |= {"nic_latency_s", "staged"}
        return unused


@lru_cache(maxsize=64)
def _node(inside: Topology, pcie_bytes_per_s: float, socket_bytes_per_s: float, devices_per_switch: int, nics: int) -> Topology:
    """The graph of a node, with a host if it has none, a link between its sockets, and cards on the PCIe switches round-robin."""
    devices = len(inside.devices)
    added: tuple[list[Place], list[Wire]] = ([], [])
    if not any(place.kind == "socket" for place in inside.places):
        added = hosts(1, devices, pcie_bytes_per_s, socket_bytes_per_s, devices_per_switch)
    serves: dict[str, list[str]] = defaultdict(list)
    for device in inside.devices:
        for store in inside.stores(device):
            serves[store.place].append(device)
    places = [replace(place, serves=tuple(serves[place.name])) if place.name in serves else place for place in inside.places]
    places += added[0]
    switches = sum(place.name.startswith("P") for place in places)
    wires = [*inside.wires, *added[1]]
    if sum(place.kind == "socket" for place in places) > 1:
        wires.append(Wire(a="S0", b="S1", bytes_per_s=QPI_BYTES_PER_S))
    for card in range(nics):
        places.append(Place(name=f"C{card}", kind="switch"))
        wires.append(Wire(a=f"P{card * switches // nics}", b=f"C{card}", bytes_per_s=pcie_bytes_per_s))
    return Topology(places=tuple(places), wires=tuple(wires), name="node of a cluster")


@lru_cache(maxsize=64)
def _joined(template: Topology, nodes: int, nic_bytes_per_s: float, nic_latency_s: float) -> Topology:
    """Copies of a node, and a wire from each card to the network."""
    counts: dict[str, int] = defaultdict(int)
    for place in template.places:
        counts[place.name[0]] += 1

    def name(old: str, node: int) -> str:
        return f"{old[0]}{node * counts[old[0]] + int(old[1:])}"

    places = [
        replace(place, name=name(place.name, node), serves=tuple(name(client, node) for client in place.serves))
        for node in range(nodes)
        for place in template.places
    ]
    wires = [replace(wire, a=name(wire.a, node), b=name(wire.b, node)) for node in range(nodes) for wire in template.wires]
    wires += [
        Wire(a=f"C{card}", b=NETWORK, bytes_per_s=nic_bytes_per_s, latency_s=nic_latency_s / 2)
        for card in range(nodes * counts["C"])
    ]
    return Topology(places=(*places, Place(name=NETWORK, kind="switch")), wires=tuple(wires), name="cluster")


@lru_cache(maxsize=64)
def _network(nodes: int, bytes_per_s: float, latency_s: float) -> tuple[Topology, tuple[Ring, ...]]:
    graph = network(nodes, bytes_per_s, latency_s)
    return graph, rings(graph)


@lru_cache(maxsize=64)
def _card_paths(template: Topology, devices: int, nics: int, devices_per_switch: int, staged: bool) -> dict[Arc, float]:
    """A device's data reaches its card through their common PCIe switch, or through the host."""
    arcs = {(wire.a, wire.b): (number, 0) for number, wire in enumerate(template.wires)}
    arcs |= {(wire.b, wire.a): (number, 1) for number, wire in enumerate(template.wires)}
    above = {wire.a: wire.b for wire in template.wires if wire.a.startswith("P") and wire.b.startswith("S")}
    switch_of = {wire.b: wire.a for wire in template.wires if wire.b.startswith("C")}
    load: dict[Arc, float] = defaultdict(float)
    for device in range(devices):
        card, switch = f"C{device * nics // devices}", f"P{device // devices_per_switch}"
        other = switch_of[card]
        walk = [f"D{device}", switch]
        if staged or other != switch:
            walk += [above[switch], *([above[other]] if above[other] != above[switch] else []), other]
        walk.append(card)
        for here, there in pairwise(walk):
            load[arcs[here, there]] += nics / devices
            load[arcs[there, here]] += nics / devices
    return dict(load)
