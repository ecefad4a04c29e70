"""A node's links in a plan: exchanges over rings and copies over lanes, as fixed durations or as flows that share bandwidth.

If the plan is folded, one device is simulated for all, and a wire that several devices' copies use has one device's share of its
bandwidth. Without `contention` copies and exchanges do not share wires. A memory serves copies out and back at the same time: where
the wires of both directions exceed its bandwidth, the copies share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.hardware.collectives.on_graph import Timing
from trainyard.ir import Collective
from trainyard.ir.plan import Plan, TaskClass
from trainyard.systems.node.backing import (
    Backing,
    backings,
    both_ways_exceed,
    copy_s,
    crossing,
    devices_are_equal,
    lane_bytes,
    padded_to_lanes,
)
from trainyard.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from trainyard.hardware.topology.graph import Arc
    from trainyard.systems.node.systems import Node

# A. Arunkumar et al.: MCM-GPU. ISCA 2017, Table 2 (board and node level): 10 pJ/bit between the chips of a board
LINK_JOULES_PER_BYTE = 10e-12 * 8


def seconds(duration_s: float) -> int:
    """Seconds in picoseconds of the engine's clock, rounded up so that nothing ends early."""
    return -int(-duration_s * PICOSECONDS_PER_SECOND // 1) if duration_s > 0 else 0


class Wires:
    """The links and memories of a node's graph that a plan uses."""

    resource = "exchange"
    joules_per_byte = LINK_JOULES_PER_BYTE

    def __init__(self, node: Node, plan: Plan) -> None:
        self.node, self.plan = node, plan
        self.topology = node.topology
        self.paged = node.overlay != "off"
        self.stores = backings(self.topology) if self.paged else dict.fromkeys(self.topology.devices, ())
        self.folded = node.fold and (not self.paged or (devices_are_equal(self.topology) and not self._contention_differs()))
        self.apart = self.folded and not (node.contention and self.paged)  # copies and exchanges do not share wires
        self.fixed = self.apart and not any(map(both_ways_exceed, self.stores[self.topology.devices[0]]))
        self.devices = self.topology.devices[:1] if self.folded else self.topology.devices
        self.sharers = crossing(self.topology) if self.folded and self.paged else {}
        self.links: dict[tuple[str, Arc], int] = {}
        self.memories: dict[tuple[str, str], int] = {}

    def _contention_differs(self) -> bool:
        """Whether exchanges share a wire with copies of several devices, or contend with some devices' copies more than others'."""
        if not self.node.contention:
            return False
        ring_arcs = {arc for ring in self.node.rings for arc in ring.arcs}
        if any(count > 1 for arc, count in crossing(self.topology).items() if arc in ring_arcs):
            return True
        shared = {tuple(len(ring_arcs & store.arcs) for store in own) for own in backings(self.topology).values()}
        return len(shared) > 1

    def timing(self, body: Collective, size_bytes: int, *, captured: bool) -> Timing:
        """An exchange on these wires: inside the groups that it names, or inside every cluster of `body.ranks` devices."""
        if captured or body.group != "world":
            from trainyard.systems.node.captured import group_collective

            return group_collective(self.node, body, size_bytes)
        return self.node.cluster_collective(body.kind, size_bytes, body.ranks)

    def exchange(self, sent: Timing, stream: int, after: Sequence[int], tag: int) -> tuple[int, int]:
        """Adds an exchange; returns its first and its last task."""
        kind = TaskClass.SYNCHRONISATION
        if self.apart or not sent.flows:
            task = self.plan.task(stream, seconds(sent.time_s), after=after, kind=kind, tag=tag)
            return task, task
        ready = self.plan.task(stream, seconds(sent.delay_s), after=after, kind=kind, tag=tag)
        lanes = "wire" if self.node.contention else "exchange"
        flows = [([self._link(lanes, arc) for arc in path], count) for path, count in sent.flows]
        return ready, self.plan.transfer(flows, after=[ready], stream=stream, kind=kind, tag=tag)

    def copy(self, device: str, sizes: Sequence[int], *, back: bool, stream: int, after: Sequence[int], tag: int) -> int:
        """Adds a copy of `sizes` bytes to (or `back` from) each of a device's stores; returns its task."""
        stores, kind = self.stores[device], TaskClass.COPY
        if self.fixed:
            return self.plan.task(stream, seconds(copy_s(stores, sizes)), after=after, kind=kind, tag=tag)
        flows: list[tuple[list[int], int]] = []
        for store, size in zip(stores, sizes, strict=True):
            if self.apart and size:  # all lanes of one device are equal
                flows.append(([self._lanes(store, back=back), self._memory(device, store)], padded_to_lanes(store, size)))
                continue
            for lane, part in zip(store.lanes, lane_bytes(self.topology, store, size), strict=True):
                arcs = [(wire, 1 - direction) for wire, direction in reversed(lane)] if back else list(lane)
                if part:
                    flows.append(([*(self._link("wire", arc) for arc in arcs), self._memory(device, store)], part))
        return self.plan.transfer(flows, after=after, stream=stream, kind=kind, tag=tag)

    def _link(self, lanes: str, arc: Arc) -> int:
        key = (lanes, arc)
        if key not in self.links:
            wire = self.topology.wires[arc[0]]
            share = self.sharers.get(arc, 1) if lanes == "wire" else 1
            self.links[key] = self.plan.link(f"{wire.a}-{wire.b} {arc[0]}{'<>'[arc[1]]} {lanes}", wire.bytes_per_s / share)
        return self.links[key]

    def _lanes(self, store: Backing, *, back: bool) -> int:
        """All wires to a store as one link."""
        key = (f"{store.place} {'back' if back else 'out'}", (0, 0))
        if key not in self.links:
            self.links[key] = self.plan.link(key[0], store.wires_bytes_per_s)
        return self.links[key]

    def _memory(self, device: str, store: Backing) -> int:
        """A device's share of a store as a link, with the latency of a copy."""
        key = (device, store.place)
        if key not in self.memories:
            rate = store.memory_bytes_per_s or 2 * sum(self.topology.wires[lane[0][0]].bytes_per_s for lane in store.lanes)
            self.memories[key] = self.plan.link(f"{store.place} for {device}", rate, store.latency_s)
        return self.memories[key]
