"""Planes of switches over system nodes: every device and memory-node has a wire to each plane, each plane is a tree of switches.

Y. Kwon, M. Rhu: Beyond the Memory Wall. MICRO 2018, Sec. VI and Fig. 15: a device-side switch in a system node joins its device-
and memory-nodes, and switches join the system nodes. A plane that fits one switch is one; else it is a folded Clos network (leaf
and spine, or more levels: C. Leiserson: Fat-Trees. IEEE TC 1985; F. Petrini, M. Vanneschi: k-ary n-trees. IPPS 1997): a switch has
`down` ports towards the devices and `up` ports away from them. A system node is connected to one leaf, so that a device reaches
its memory-node over one switch.

Wires are numbered in closed form, so that collectives of a thousand devices need no search: first the wires of each device and
memory-node, then level by level, plane by plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput
from trainyard.hardware.topology.graph import Arc, Place, Topology, Wire

OWNER = "planes"


@dataclass(frozen=True, kw_only=True)
class SwitchTree:
    """The shape of the planes. A system node has `devices_per_node` devices and `memory_per_node` memory-nodes.

    >>> small = SwitchTree(devices=64, devices_per_node=8, memory_per_node=8, links=6, planes=6, radix=64)
    >>> small.fans, small.down, small.up, small.bundle      # four leaves of two system nodes; 16 wires from a leaf to a spine
    ((2, 4), 32, 32, 16)
    """

    devices: int
    devices_per_node: int
    memory_per_node: int
    links: int
    planes: int
    radix: int
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        require_positive(OWNER, devices=self.devices, devices_per_node=self.devices_per_node, links=self.links, planes=self.planes)
        require_positive(OWNER, radix=self.radix)
        require_quantity(OWNER, zero=True, memory_per_node=self.memory_per_node)
        require_quantity(OWNER, oversubscription=self.oversubscription)
        if self.devices % self.devices_per_node:
            raise BadInput(
                f"{OWNER}: {self.devices} devices do not fill system nodes of {self.devices_per_node}: "
                f"give a multiple of {self.devices_per_node}, or another devices_per_node"
            )
        if self.links % self.planes:
            raise BadInput(f"{OWNER}: {self.links} links of a device do not divide among {self.planes} planes")
        if self.oversubscription < 1:
            raise BadInput(f"{OWNER}: oversubscription is at least 1 (as many ports up as down), got {self.oversubscription!r}")
        self.fans  # noqa: B018  # a radix that is too small is refused here

    @property
    def nodes(self) -> int:
        return self.devices // self.devices_per_node

    @property
    def wires(self) -> int:
        """Wires of one device to one plane."""
        return self.links // self.planes

    @property
    def ports(self) -> int:
        """Ports of one plane that a system node takes."""
        return (self.devices_per_node + self.memory_per_node) * self.wires

    @property
    def up(self) -> int:
        return int(self.radix / (1 + self.oversubscription))

    @property
    def down(self) -> int:
        return min(self.radix - self.up, int(self.up * self.oversubscription))

    @cached_property
    def fans(self) -> tuple[int, ...]:
        """System nodes per leaf, leaves per tree of two levels, and so on; the top switches use all their ports downwards."""
        if self.nodes * self.ports <= self.radix:
            return (self.nodes,)
        nodes_per_leaf = self.down // self.ports
        if not nodes_per_leaf:
            raise BadInput(
                f"{OWNER}: radix={self.radix} is too small: a system node of {self.devices_per_node} devices and "
                f"{self.memory_per_node} memory-nodes takes {self.ports} ports of a switch that has {self.down} downwards; "
                f"give radix={self.radix * self.ports // max(1, self.down) + 1} or more, or more planes"
            )
        fans, switches = [nodes_per_leaf], -(-self.nodes // nodes_per_leaf)
        while switches > self.radix:
            if self.down < 2:
                raise BadInput(f"{OWNER}: radix={self.radix} is too small to join {switches} switches: give radix=4 or more")
            fans.append(self.down)
            switches = -(-switches // self.down)
        return (*fans, switches)

    @property
    def levels(self) -> int:
        return len(self.fans)

    @cached_property
    def bundle(self) -> int:
        """Parallel wires from a switch below the top to the same top switch, so that there are few top switches."""
        fitting = (count for count in range(self.up, 0, -1) if self.up % count == 0 and count * self.fans[-1] <= self.radix)
        return next(fitting, 1) if self.levels > 1 else 1

    @cached_property
    def _spans(self) -> tuple[int, ...]:
        """Devices per tree of 1, 2, ... levels."""
        spans = [self.fans[0] * self.devices_per_node]
        for fan in self.fans[1:]:
            spans.append(spans[-1] * fan)
        return tuple(spans)

    def tree_of(self, device: int, level: int) -> int:
        """The number of the tree with its top at `level` that contains a device; level 0 are the leaves."""
        return device // self._spans[level]

    def trees(self, level: int) -> int:
        return -(-self.devices // self._spans[level])

    def meets(self, first: int, second: int) -> int:
        """The lowest level at which one tree contains both devices: 0 on the same leaf."""
        return next(level for level, span in enumerate(self._spans) if first // span == second // span)

    def wires_up(self, level: int) -> int:
        """Uplinks of a tree whose top is at `level`, in one plane."""
        return int(self.up ** (level + 1))

    # ---- numbering of wires
    @property
    def ends(self) -> int:
        return self.devices + self.nodes * self.memory_per_node

    def end_arcs(self, device: int, direction: int) -> tuple[Arc, ...]:
        """A device's own wires, away from it (0) or towards it (1)."""
        return tuple((device * self.links + link, direction) for link in range(self.links))

    @cached_property
    def _bases(self) -> tuple[int, ...]:
        """The number of the first uplink of each level."""
        bases = [self.ends * self.links]
        for level in range(self.levels - 1):
            bases.append(bases[-1] + self.planes * self.trees(level) * self.wires_up(level))
        return tuple(bases)

    def tree_arcs(self, level: int, tree: int, direction: int) -> tuple[Arc, ...]:
        """All uplinks of a tree in all planes, upwards (0) or downwards (1)."""
        count, base = self.wires_up(level), self._bases[level]
        firsts = (base + (plane * self.trees(level) + tree) * count for plane in range(self.planes))
        return tuple((first + number, direction) for first in firsts for number in range(count))

    # ---- the graph
    def switches(self, level: int) -> int:
        """Switches at the top of one tree of this level."""
        return int(self.up**level) // (self.bundle if level and level == self.levels - 1 else 1)

    def switch(self, plane: int, level: int, tree: int, position: int) -> str:
        return f"X{plane}" if self.levels == 1 else f"X{plane}.{level}.{tree * self.switches(level) + position}"

    def graph(self, *, bytes_per_s: float, latency_s: float, hop_latency_s: float) -> tuple[list[Place], list[Wire]]:
        """Switches and wires; `hop_latency_s` is that of a switch and the wire to the next one."""
        places = [
            Place(name=self.switch(plane, level, tree, position), kind="switch")
            for plane in range(self.planes)
            for level in range(self.levels)
            for tree in range(self.trees(level))
            for position in range(self.switches(level))
        ]
        names = [(f"D{number}", number // self.devices_per_node) for number in range(self.devices)]
        names += [(f"M{number}", number // self.memory_per_node) for number in range(self.nodes * self.memory_per_node)]
        wires = [
            Wire(
                a=name, b=self.switch(link % self.planes, 0, node // self.fans[0], 0), bytes_per_s=bytes_per_s, latency_s=latency_s
            )
            for name, node in names
            for link in range(self.links)
        ]
        for level in range(self.levels - 1):
            bundle = self.bundle if level == self.levels - 2 else 1
            wires += [
                Wire(
                    a=self.switch(plane, level, tree, position),
                    b=self.switch(plane, level + 1, tree // self.fans[level + 1], (position * self.up + port) // bundle),
                    bytes_per_s=bytes_per_s,
                    latency_s=hop_latency_s,
                )
                for plane in range(self.planes)
                for tree in range(self.trees(level))
                for position in range(self.switches(level))
                for port in range(self.up)
            ]
        return places, wires

    def topology(
        self,
        *,
        bytes_per_s: float,
        latency_s: float,
        hop_latency_s: float,
        memory: dict[str, float | int | None],
        host: tuple[list[Place], list[Wire]] = ([], []),
    ) -> Topology:
        """The complete graph; `memory` are the fields of each memory-node, dealt round-robin to the devices of its system node."""
        switches, wires = self.graph(bytes_per_s=bytes_per_s, latency_s=latency_s, hop_latency_s=hop_latency_s)
        served: list[list[str]] = [[] for _ in range(self.nodes * self.memory_per_node)]
        for node in range(self.nodes if self.memory_per_node else 0):
            for turn in range(max(self.devices_per_node, self.memory_per_node)):
                device = node * self.devices_per_node + turn % self.devices_per_node
                served[node * self.memory_per_node + turn % self.memory_per_node].append(f"D{device}")
        places = [Place(name=f"D{number}", kind="device") for number in range(self.devices)]
        places += [
            Place(name=f"M{number}", kind="memory", serves=tuple(clients), **memory)  # type: ignore[arg-type]  # its own fields
            for number, clients in enumerate(served)
        ]
        return Topology(places=(*places, *switches, *host[0]), wires=(*wires, *host[1]), name="planes")
