"""Switched device-side planes: one big node, or hundreds of device- and memory-nodes across system nodes.

Y. Kwon, M. Rhu: Beyond the Memory Wall. MICRO 2018, Sec. VI (future work) and Fig. 15; Sec. V-D's scaled-up node is like DGX-2.
Memory-nodes are connected to the planes like devices; without them (`memory_per_node=0`) feature maps go to the hosts over PCIe.
All devices are identical: one of them is simulated and counted for all, unless `fold=False`.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import Any, Literal, get_args

from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.hardware.collectives.fabric import Timing
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.topology.builders import switched
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Step, assumed
from trainyard.systems.node.systems import Node
from trainyard.systems.scale_out.switch_tree import SwitchTree
from trainyard.systems.scale_out.switched_collectives import Speeds, SwitchedCollectives, switched_collectives

Algorithm = Literal["ring", "torus", "hierarchical", "halving_doubling", "tree", "auto"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@part
class Switched(Node):
    """One node whose devices, and memory-nodes if any, are connected by `planes` of one switch each (DGX-2).

    Without memory-nodes the host is behind PCIe.

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> len(Switched(device=DEVICE).rings), Switched(device=DEVICE, memory_nodes=0).topology.stores("D5")[0].place
    (6, 'S0')
    """

    devices: int = 16
    planes: int = 6
    memory_nodes: NonNegativeInt = 16
    memory_node: MemoryNode = field(default_factory=MemoryNode)
    collectives: Literal["ring", "tree", "halving_doubling", "auto"] = "auto"
    socket_bytes_per_s: float = 80e9
    # fmt: off
    pcie_bytes_per_s: float = assumed(12e9, "what copies get of PCIe gen3 x16, each way", 10.6e9, 16e9)
    devices_per_switch: int = assumed(2, "devices that share a PCIe switch's uplink", 1, 4)
    # fmt: on

    @property
    def topology(self) -> Topology:
        return _switched(
            devices=self.devices,
            memory_nodes=self.memory_nodes,
            links=self.links,
            planes=self.planes,
            link_bytes_per_s=self.link_bytes_per_s,
            link_latency_s=self.link_latency_s,
            **(self.memory_node.as_store() if self.memory_nodes else {"memory_bytes_per_s": self.socket_bytes_per_s}),
            pcie_bytes_per_s=None if self.memory_nodes else self.pcie_bytes_per_s,
            devices_per_switch=self.devices_per_switch,
        )

    @property
    def crossing_ratio(self) -> float:
        return self.memory_node.crossing_ratio if self.memory_nodes else 1.0

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        unused = Node.unused_assumptions(self, step)
        return unused | {"pcie_bytes_per_s", "devices_per_switch"} if self.memory_nodes or self.overlay == "off" else unused


@part
class Plane(Node):
    """Devices of many system nodes on planes of switches, with collectives on any logical topology (`recast`).

    A system node has `devices_per_node` devices and `memory_per_node` memory-nodes (as many as devices by default). `radix` is the
    number of ports of a switch: a plane that needs more is a tree of them.

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> plane = Plane(device=DEVICE, devices=1024)
    >>> plane.tree.levels, plane.tree.fans
    (2, (2, 64))
    >>> 1e6 * plane.collective("all_reduce", 100_000_000).time_s < 1400
    True
    """

    devices: int = 256
    devices_per_node: int = 8
    planes: int = 6
    radix: int = 64
    recast: Algorithm = "auto"
    torus_rows: int | None = None
    memory_per_node: NonNegativeInt | None = None
    memory_node: MemoryNode = field(default_factory=MemoryNode)
    oversubscription: float = 1.0
    socket_bytes_per_s: float = 80e9
    # fmt: off
    hop_latency_s: float = assumed(250e-9, "of a switch and 20 m of cable to the next one", 100e-9, 500e-9)
    bucket_bytes: NonNegativeInt = assumed(25_000_000, "gradients are reduced in buckets of this size (DDP's default)", 0)
    pcie_bytes_per_s: float = assumed(12e9, "what copies get of PCIe gen3 x16, each way", 10.6e9, 16e9)
    devices_per_switch: int = assumed(2, "devices that share a PCIe switch's uplink", 1, 4)
    # fmt: on

    def __post_init__(self) -> None:
        Node.__post_init__(self)
        if self.collectives != "ring":
            raise BadInput(
                f"Plane: what planes are recast into is called recast: write recast={self.collectives!r}, not collectives"
            )
        if self.torus_rows is not None and self.devices % self.torus_rows:
            raise BadInput(f"Plane: {self.devices} devices do not make a torus of {self.torus_rows} rows")
        self.tree  # noqa: B018  # a shape that cannot be built is refused here

    @property
    def tree(self) -> SwitchTree:
        """The shape of the planes."""
        return self._cache.get("tree", self._tree)

    def _tree(self) -> SwitchTree:
        return SwitchTree(
            devices=self.devices,
            devices_per_node=self.devices_per_node,
            memory_per_node=self.devices_per_node if self.memory_per_node is None else self.memory_per_node,
            links=self.links,
            planes=self.planes,
            radix=self.radix,
            oversubscription=self.oversubscription,
        )

    @property
    def topology(self) -> Topology:
        tree = self.tree
        return _planes(
            tree,
            self.link_bytes_per_s,
            self.link_latency_s,
            self.hop_latency_s,
            tuple(self.memory_node.as_store().items()) if tree.memory_per_node else (),
            () if tree.memory_per_node else (self.pcie_bytes_per_s, self.socket_bytes_per_s, self.devices_per_switch),
        )

    @property
    def switched_collectives(self) -> SwitchedCollectives:
        speeds = Speeds(self.link_bytes_per_s, self.link_latency_s, self.hop_latency_s, self.message_bytes)
        return switched_collectives(self.tree, speeds, self.torus_rows)

    def collective(self, kind: str, size_bytes: int) -> Timing:
        return self._cache.get((kind, size_bytes), lambda: self.switched_collectives.timing(kind, size_bytes, self.recast))

    def _cluster_collective(self, kind: str, size_bytes: int, cluster: int) -> Timing:
        return self.switched_collectives.inside(kind, size_bytes, cluster)

    @property
    def default_cluster_size(self) -> int:
        return min(self.devices, self.devices_per_node)

    @property
    def crossing_ratio(self) -> float:
        return self.memory_node.crossing_ratio if self.tree.memory_per_node else 1.0

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        unused = Node.unused_assumptions(self, step) | {"directions", "split"}
        if self.tree.memory_per_node or self.overlay == "off":
            unused |= {"pcie_bytes_per_s", "devices_per_switch"}
        return unused | {"hop_latency_s"} if self.tree.levels == 1 else unused


@lru_cache(maxsize=64)
def _switched(**numbers: Any) -> Topology:
    """One object for equal numbers: results derived from a graph are cached by its identity."""
    return switched(**numbers)


@lru_cache(maxsize=64)
def _planes(
    tree: SwitchTree,
    bytes_per_s: float,
    latency_s: float,
    hop_latency_s: float,
    memory: tuple[tuple[str, Any], ...],
    host: tuple[float, float, int] | tuple[()],
) -> Topology:
    store = {"latency_s" if name == "memory_latency_s" else name: value for name, value in memory}
    return tree.topology(
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        hop_latency_s=hop_latency_s,
        memory=store,
        host=hosts(tree.nodes, tree.devices_per_node, *host) if host else ([], []),
    )


def hosts(
    nodes: int, devices_per_node: int, pcie_bytes_per_s: float, socket_bytes_per_s: float, devices_per_switch: int
) -> tuple[list[Place], list[Wire]]:
    """The host of each system node: devices on PCIe switches, one uplink each, on two sockets.

    >>> places, wires = hosts(2, 8, 12e9, 80e9, 2)
    >>> [place.name for place in places if place.kind == "socket"], len(wires)
    (['S0', 'S1', 'S2', 'S3'], 24)
    """
    switches = -(-devices_per_node // devices_per_switch)
    sockets = min(2, switches)
    places = [Place(name=f"P{number}", kind="switch") for number in range(nodes * switches)]
    places += [Place(name=f"S{n}", kind="socket", memory_bytes_per_s=socket_bytes_per_s) for n in range(nodes * sockets)]
    ends = []
    for node in range(nodes):
        for device in range(devices_per_node):
            ends.append((f"D{node * devices_per_node + device}", f"P{node * switches + device // devices_per_switch}"))
        for switch in range(switches):
            ends.append((f"P{node * switches + switch}", f"S{node * sockets + switch * sockets // switches}"))
    return places, [Wire(a=a, b=b, bytes_per_s=pcie_bytes_per_s) for a, b in ends]
