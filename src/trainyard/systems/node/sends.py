"""Messages between two devices of a node's graph: every shortest way, in lanes, shared fairly with whatever else crosses it.

The first byte passes each wire's latency, and where it is handed on one message of the node's size, or all of a smaller one; then
the lanes' wires decide, each lane with as much as its slowest wire is fast. Devices forward where no other way avoids the host; the
host is passed where the devices' own wires do not lead there.
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
    """One lane for each wire of the source that begins a shortest way; beyond it, the arcs that fewest lanes took so far."""
    ways = neighbours_of(topology)
    host = ways.keys() - set(channels_of(topology)[0])  # sockets, switches below them, dead ends
    devices = set(topology.devices)
    closed = (host | devices, host, devices, set[str]())
    hops = next(filter(None, (_hops(ways, target, source, places) for places in closed)), {})
    if not hops:
        raise BadInput(f"{topology.name or 'the topology'}: no wires lead from '{source}' to '{target}'")

    def onward(here: str) -> list[tuple[Arc, str]]:
        return [(arc, there) for there, arcs in ways[here].items() if hops.get(there, len(hops)) == hops[here] - 1 for arc in arcs]

    taken: dict[Arc, int] = {}
    found = []
    for first, place in sorted(onward(source)):
        lane, here = [first], place
        while here != target:
            arc, here = min(onward(here), key=lambda way: (taken.get(way[0], 0), way[0]))
            taken[arc] = taken.get(arc, 0) + 1
            lane.append(arc)
        found.append(tuple(lane))
    return tuple(found)


@lru_cache(maxsize=1024)
def shares(topology: Topology, source: str, target: str) -> tuple[float, ...]:
    """Of a message, for each lane: what its slowest wire carries, a wire of several lanes being divided among them."""
    found = lanes(topology, source, target)
    taken = Counter(arc for lane in found for arc in lane)
    rates = [min(topology.wires[arc[0]].bytes_per_s / taken[arc] for arc in lane) for lane in found]
    return tuple(rate / sum(rates) for rate in rates)


def _hops(ways: dict[str, dict[str, list[Arc]]], start: str, goal: str, closed: set[str]) -> dict[str, int]:
    """Hops to `start` from all places on the way to `goal`, not through `closed` ones; empty where there is no way."""
    hops, frontier = {start: 0}, [start]
    while frontier and goal not in hops:
        reached = [there for here in frontier if here == start or here not in closed for there in ways[here] if there not in hops]
        hops.update(dict.fromkeys(reached, hops[frontier[0]] + 1))
        frontier = list(dict.fromkeys(reached))
    return {place: count for place, count in hops.items() if place in (start, goal) or place not in closed} if goal in hops else {}


class Sends:
    """The node's wires in one plan."""

    def __init__(self, node: Node, plan: Plan) -> None:
        self.node, self.plan, self.topology = node, plan, node.topology
        self.links: dict[Arc, int] = {}

    def send(
        self, pairs: Sequence[Pair], size_bytes: int, *, stream: int, after: Iterable[int], tag: int, rounds: int = 1,
    ) -> tuple[int, int]:  # fmt: skip
        """`size_bytes` from the first to the second device of all pairs at once, in the order of `stream`: first and last task.

        `rounds` messages depend on each other, so that their latencies add up.
        """
        kind = TaskClass.SYNCHRONISATION
        ways = [(lane, part) for pair in pairs for lane, part in self._parts(pair, size_bytes) if part]
        delay = max((self._delay_s(lane, -(-part // rounds)) for lane, part in ways), default=0.0) * rounds
        ready = self.plan.task(stream, seconds(delay), after=sorted(set(after)), kind=kind, tag=tag)
        flows: list[Flow] = [([self._link(arc) for arc in lane], part) for lane, part in ways]
        return ready, self.plan.transfer(flows, after=[ready], stream=stream, kind=kind, tag=tag) if flows else ready

    def carried(self, pairs: Sequence[Pair], size_bytes: int) -> int:
        """Bytes over all wires; those of different lanes may have different ways to go."""
        return sum(len(lane) * part for pair in pairs for lane, part in self._parts(pair, size_bytes))

    def _parts(self, pair: Pair, size_bytes: int) -> Iterator[tuple[tuple[Arc, ...], int]]:
        return zip(lanes(self.topology, *pair), split(size_bytes, shares(self.topology, *pair)), strict=True)

    def row(self, name: str, layer: str, phase: str, carried: int) -> int:
        """Books a kind of message: the tag of its tasks."""
        booking = self.plan.booking
        row = booking.row(
            name, layer=layer, phase=phase, resource="exchange", kind="synchronisation", bound="link",
            energy={"link": carried * LINK_JOULES_PER_BYTE}, traffic={("link", name, "write"): carried},
        )  # fmt: skip
        return booking.entry([row])

    def _delay_s(self, lane: tuple[Arc, ...], size_bytes: int) -> float:
        wires, first = self.topology.wires, min(size_bytes, self.node.message_bytes)
        handed_on = sum(first / wires[wire].bytes_per_s for wire, _ in lane[1:])
        return sum(wires[wire].latency_s for wire, _ in lane) + handed_on

    def _link(self, arc: Arc) -> int:
        if arc not in self.links:
            wire = self.topology.wires[arc[0]]
            self.links[arc] = self.plan.link(f"{wire.a}-{wire.b} {arc[0]}{'<>'[arc[1]]}", wire.bytes_per_s)
        return self.links[arc]
