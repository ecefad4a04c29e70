"""Messages between two devices of a node's graph, over all shortest paths, as flows that share bandwidth fairly.

The first byte takes each wire's latency and, at each forwarding place, the time of one message of the node's size (or of the whole
data if it is smaller); then the bandwidth of the lanes decides, each lane carrying data in proportion to its slowest wire. Devices
forward only if no other path avoids the host; a path through the host is taken only if the devices' own wires do not lead there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.hardware.topology.graph import Arc, Topology, neighbours_of
from trainyard.hardware.topology.rings import channels_of
from trainyard.ir.plan import Flow, Plan, TaskClass
from trainyard.results.booking import split
from trainyard.systems.node.wires import LINK_JOULES_PER_BYTE, seconds

if TYPE_CHECKING:
    from trainyard.systems.node.systems import Node

Lanes = tuple[tuple[Arc, ...], ...]
Pair = tuple[str, str]


@lru_cache(maxsize=1024)
def lanes(topology: Topology, source: str, target: str) -> Lanes:
    """One lane per wire of the source that begins a shortest path; after it, the arcs that fewest lanes have used so far."""
    adjacency = neighbours_of(topology)
    host = adjacency.keys() - set(channels_of(topology)[0])  # sockets, switches below them, dead ends
    devices = set(topology.devices)
    closed = (host | devices, host, devices, set[str]())
    hops = next(filter(None, (_hops(adjacency, target, source, excluded) for excluded in closed)), {})
    if not hops:
        raise BadInput(f"{topology.name or 'the topology'}: no wires lead from '{source}' to '{target}'")

    def onward(here: str) -> list[tuple[Arc, str]]:
        return [
            (arc, there) for there, arcs in adjacency[here].items() if hops.get(there, len(hops)) == hops[here] - 1 for arc in arcs
        ]

    taken: dict[Arc, int] = {}
    paths = []
    for first, place in sorted(onward(source)):
        lane, here = [first], place
        while here != target:
            arc, here = min(onward(here), key=lambda hop: (taken.get(hop[0], 0), hop[0]))
            taken[arc] = taken.get(arc, 0) + 1
            lane.append(arc)
        paths.append(tuple(lane))
    return tuple(paths)


@lru_cache(maxsize=1024)
def shares(topology: Topology, source: str, target: str) -> tuple[float, ...]:
    """The share of a message that each lane carries, by its slowest wire; a wire of several lanes is divided among them."""
    paths = lanes(topology, source, target)
    users = Counter(arc for lane in paths for arc in lane)
    rates = [min(topology.wires[arc[0]].bytes_per_s / users[arc] for arc in lane) for lane in paths]
    return tuple(rate / sum(rates) for rate in rates)


def _hops(adjacency: dict[str, dict[str, list[Arc]]], start: str, goal: str, closed: set[str]) -> dict[str, int]:
    """Hops to `start` from all places on a path to `goal` that avoids `closed` places; empty if there is no path."""
    hops, frontier = {start: 0}, [start]
    while frontier and goal not in hops:
        reached = [
            there for here in frontier if here == start or here not in closed for there in adjacency[here] if there not in hops
        ]
        hops.update(dict.fromkeys(reached, hops[frontier[0]] + 1))
        frontier = list(dict.fromkeys(reached))
    return {place: count for place, count in hops.items() if place in (start, goal) or place not in closed} if goal in hops else {}


class Sends:
    """Messages between devices in one plan."""

    def __init__(self, node: Node, plan: Plan) -> None:
        self.node, self.plan, self.topology = node, plan, node.topology
        self.links: dict[Arc, int] = {}

    def send(
        self, pairs: Sequence[Pair], size_bytes: int, *, stream: int, after: Iterable[int], tag: int, rounds: int = 1,
    ) -> tuple[int, int]:  # fmt: skip
        """Adds messages of `size_bytes` from the first to the second device of all pairs, in the order of `stream`.

        Returns the first and last task. `rounds` messages depend on each other, so that their latencies add.
        """
        kind = TaskClass.SYNCHRONISATION
        parts = [(lane, part) for pair in pairs for lane, part in self._parts(pair, size_bytes) if part]
        delay = max((self._delay_s(lane, -(-part // rounds)) for lane, part in parts), default=0.0) * rounds
        ready = self.plan.task(stream, seconds(delay), after=sorted(set(after)), kind=kind, tag=tag)
        flows: list[Flow] = [([self._link(arc) for arc in lane], part) for lane, part in parts]
        return ready, self.plan.transfer(flows, after=[ready], stream=stream, kind=kind, tag=tag) if flows else ready

    def carried(self, pairs: Sequence[Pair], size_bytes: int) -> int:
        """Bytes summed over all wires of all lanes."""
        return sum(len(lane) * part for pair in pairs for lane, part in self._parts(pair, size_bytes))

    def _parts(self, pair: Pair, size_bytes: int) -> Iterator[tuple[tuple[Arc, ...], int]]:
        return zip(lanes(self.topology, *pair), split(size_bytes, shares(self.topology, *pair)), strict=True)

    def row(self, name: str, layer: str, phase: str, carried: int) -> int:
        """Books a kind of message; returns the tag of its tasks."""
        booking = self.plan.booking
        row = booking.row(
            name, layer=layer, phase=phase, resource="exchange", kind="synchronisation", bound="link",
            energy={"link": carried * LINK_JOULES_PER_BYTE}, traffic={("link", name, "write"): carried},
        )  # fmt: skip
        return booking.entry([row])

    def _delay_s(self, lane: tuple[Arc, ...], size_bytes: int) -> float:
        wires, first = self.topology.wires, min(size_bytes, self.node.message_bytes)
        forwarding_s = sum(first / wires[wire].bytes_per_s for wire, _ in lane[1:])
        return sum(wires[wire].latency_s for wire, _ in lane) + forwarding_s

    def _link(self, arc: Arc) -> int:
        if arc not in self.links:
            wire = self.topology.wires[arc[0]]
            self.links[arc] = self.plan.link(f"{wire.a}-{wire.b} {arc[0]}{'<>'[arc[1]]}", wire.bytes_per_s)
        return self.links[arc]
