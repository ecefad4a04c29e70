"""A node's links in a plan: exchanges over rings, copies over lanes, as known durations or as flows that share what they cross.

Folded, one device stands for all, and a wire that several devices' copies cross is as wide as one device's share of it. Without
`contention` copies and exchanges have wires of their own, as if each were alone on them. A memory serves copies out and back
together: where both ways' wires are wider than it, they share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.hardware.collectives.on_graph import Timing
from trainyard.ir import Collective
from trainyard.ir.plan import Plan, TaskClass
from trainyard.systems.node.backing import Backing, alike, backings, both_ways_exceed, copy_s, crossing, dealt, whole_lanes
from trainyard.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from trainyard.hardware.topology.graph import Arc
    from trainyard.systems.node.systems import Node

# A. Arunkumar et al.: MCM-GPU. ISCA 2017, Table 2 (board and node level): 10 pJ/bit between the chips of a board
LINK_JOULES_PER_BYTE = 10e-12 * 8


def seconds(duration_s: float) -> int:
    """On the engine's clock, rounded up so that nothing ends early; what a division leaves is no picosecond."""
    return -int(-duration_s * PICOSECONDS_PER_SECOND // 1) if duration_s > 0 else 0


class Wires:
    """What of the node's graph a plan needs."""

    resource = "exchange"
    joules_per_byte = LINK_JOULES_PER_BYTE

    def __init__(self, node: Node, plan: Plan) -> None:
        self.node, self.plan = node, plan
        self.topology = node.topology
        self.paged = node.overlay != "off"
        self.stores = backings(self.topology) if self.paged else dict.fromkeys(self.topology.devices, ())
        self.folded = node.fold and (not self.paged or (alike(self.topology) and not self._meet_several()))
        self.apart = self.folded and not (node.contention and self.paged)  # copies and exchanges never meet
        self.known = self.apart and not any(map(both_ways_exceed, self.stores[self.topology.devices[0]]))
        self.devices = self.topology.devices[:1] if self.folded else self.topology.devices
        self.sharers = crossing(self.topology) if self.folded and self.paged else {}
        self.links: dict[tuple[str, Arc], int] = {}
        self.memories: dict[tuple[str, str], int] = {}

    def _meet_several(self) -> bool:
        """Under contention, a ring that passes a wire of several devices' copies meets all of them there, not one.

        Nor does one device stand for others whose lanes the rings pass more often, or less.
        """
        shared = {arc for arc, count in crossing(self.topology).items() if count > 1} if self.node.contention else set()
        if shared and any(arc in shared for ring in self.node.rings for arc in ring.arcs):
            return True
        if not self.node.contention:
            return False
        passed = {arc for ring in self.node.rings for arc in ring.arcs}
        met = {tuple(sum(arc in passed for arc in store.arcs) for store in own) for own in backings(self.topology).values()}
        return len(met) > 1

    def timing(self, body: Collective, size_bytes: int, *, captured: bool) -> Timing:
        """An exchange on these wires: inside the groups of a captured step, or inside every cluster of `body.ranks` devices."""
        if captured:
            from trainyard.systems.node.captured import among

            return among(self.node, body, size_bytes)
        return self.node.among(body.kind, size_bytes, body.ranks)

    def exchange(self, sent: Timing, stream: int, after: Sequence[int], tag: int) -> tuple[int, int]:
        """Its first and its last task."""
        kind = TaskClass.SYNCHRONISATION
        if self.apart or not sent.flows:
            task = self.plan.task(stream, seconds(sent.time_s), after=after, kind=kind, tag=tag)
            return task, task
        ready = self.plan.task(stream, seconds(sent.delay_s), after=after, kind=kind, tag=tag)
        lanes = "wire" if self.node.contention else "exchange"
        flows = [([self._link(lanes, arc) for arc in path], count) for path, count in sent.flows]
        return ready, self.plan.transfer(flows, after=[ready], stream=stream, kind=kind, tag=tag)

    def copy(self, device: str, sizes: Sequence[int], *, back: bool, stream: int, after: Sequence[int], tag: int) -> int:
        """`sizes` bytes to (or `back` from) each of a device's stores."""
        stores, kind = self.stores[device], TaskClass.COPY
        if self.known:
            return self.plan.task(stream, seconds(copy_s(stores, sizes)), after=after, kind=kind, tag=tag)
        flows: list[tuple[list[int], int]] = []
        for store, size in zip(stores, sizes, strict=True):
            if self.apart and size:  # all lanes of one device are alike
                flows.append(([self._lanes(store, back=back), self._memory(device, store)], whole_lanes(store, size)))
                continue
            for lane, part in zip(store.lanes, dealt(self.topology, store, size), strict=True):
                arcs = [(wire, 1 - way) for wire, way in reversed(lane)] if back else list(lane)
                if part:
                    flows.append(([*(self._link("wire", arc) for arc in arcs), self._memory(device, store)], part))
        return self.plan.transfer(flows, after=after, stream=stream, kind=kind, tag=tag)

    def _link(self, lanes: str, arc: Arc) -> int:
        found = self.links.get((lanes, arc))
        if found is None:
            wire = self.topology.wires[arc[0]]
            share = self.sharers.get(arc, 1) if lanes == "wire" else 1
            found = self.plan.link(f"{wire.a}-{wire.b} {arc[0]}{'<>'[arc[1]]} {lanes}", wire.bytes_per_s / share)
            self.links[lanes, arc] = found
        return found

    def _lanes(self, store: Backing, *, back: bool) -> int:
        """The wires to a store as one link."""
        key = (f"{store.place} {'back' if back else 'out'}", (0, 0))
        if key not in self.links:
            self.links[key] = self.plan.link(key[0], store.wires_bytes_per_s)
        return self.links[key]

    def _memory(self, device: str, store: Backing) -> int:
        """A device's share of a store; the latency of a copy passes here."""
        found = self.memories.get((device, store.place))
        if found is None:
            rate = store.memory_bytes_per_s or 2 * sum(self.topology.wires[lane[0][0]].bytes_per_s for lane in store.lanes)
            found = self.memories[device, store.place] = self.plan.link(f"{store.place} for {device}", rate, store.latency_s)
        return found
