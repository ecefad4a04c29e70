"""A node prepared for collectives: devices by number, rings cut at the devices, and paths between devices through switches.

A ring becomes a `Lane` (see `ring_timing`). Data between two devices uses all wires of the sender that lead to switches, with one
path for each of them: the shortest, and among those the one whose arcs carry least so far. So planes of switches, several wires to
one switch and trees of switches are all used. Switches of the host (those connected to a socket) are not.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from trainyard.caches import ByIdentity
from trainyard.errors import BadInput
from trainyard.hardware.collectives.ring_timing import Lane, Segment
from trainyard.hardware.topology.graph import Arc, Topology, host_places, neighbours_of

if TYPE_CHECKING:
    from trainyard.hardware.topology.rings import Ring

Flow = tuple[tuple[Arc, ...], int]
OWNER = "collective"


@dataclass(frozen=True, slots=True)
class Timing:
    """Without other traffic, `time_s` is `delay_s` plus the time of the longest flow; all flows start together.

    A flow's bytes cross every arc of its path at the same rate.
    """

    delay_s: float
    flows: tuple[Flow, ...]
    time_s: float

    @classmethod
    def of(cls, time_s: float, flows: tuple[Flow, ...], moving_s: float) -> Timing:
        """A timing whose delay is the time without that of the longest flow (`moving_s`)."""
        delay_s = max(0.0, time_s - moving_s)
        return cls(delay_s, flows, delay_s + moving_s)


NOTHING = Timing(0.0, (), 0.0)


class Fabric:
    """A topology and its rings, ready to be timed; `fabric_of` caches it."""

    __slots__ = (
        "_adjacent_switches",
        "_neighbours",
        "_passable",
        "_switched",
        "devices",
        "lanes",
        "latencies",
        "rank",
        "rates",
        "topology",
    )

    def __init__(self, topology: Topology, rings: Sequence[Ring]) -> None:
        self.topology = topology
        self.devices = topology.devices
        self.rank = {name: number for number, name in enumerate(self.devices)}
        self.rates = [wire.bytes_per_s for wire in topology.wires]
        self.latencies = [wire.latency_s for wire in topology.wires]
        forms: dict[object, int] = {}
        self.lanes = [self._lane(ring, forms) for ring in rings]
        self._neighbours = neighbours_of(topology)
        self._passable = self._switches()
        self._adjacent_switches = {
            name: [there for there in self._neighbours[name] if there in self._passable] for name in self._passable
        }
        self._switched: bool | None = None
        used: set[Arc] = set()
        for arc in (arc for lane in self.lanes for arc in lane.arcs):
            if arc in used:
                wire = topology.wires[arc[0]]
                raise BadInput(
                    f"{OWNER}: rings use the wire {wire.a} - {wire.b} twice in one direction: give rings without common arcs"
                )
            used.add(arc)

    @property
    def switched(self) -> bool:
        """Whether switches join every device to every other."""
        if self._switched is None:
            try:
                others = range(1, len(self.devices))
                self.routes([(0, other) for other in others] + [(other, 0) for other in others], "any")
                self._switched = True
            except BadInput:
                self._switched = False
        return self._switched

    def segment(self, arcs: Sequence[Arc]) -> Segment:
        return Segment(
            arcs=tuple(arcs),
            seconds_per_byte=tuple(1 / self.rates[wire] for wire, _ in arcs),
            latency_s=sum(self.latencies[wire] for wire, _ in arcs),
        )

    def _lane(self, ring: Ring, forms: dict[object, int]) -> Lane:
        """A ring as segments between its devices, from the first of them on."""
        stops = [number for number, name in enumerate(ring.walk) if name in self.rank]
        ranks = [self.rank[ring.walk[stop]] for stop in stops]
        if sorted(ranks) != list(range(len(self.devices))):
            missing = sorted(set(self.devices) - set(ring.walk))
            raise BadInput(
                f"{OWNER}: a ring passes every device exactly once, {ring.walk} does not (not on it: {missing or 'none'})"
            )
        rotated = ring.arcs[stops[0] :] + ring.arcs[: stops[0]]
        ends = [stop - stops[0] for stop in stops[1:]] + [len(rotated)]
        segments = [self.segment(rotated[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        form = tuple((segment.seconds_per_byte, segment.latency_s) for segment in segments)
        return Lane(ranks, segments, forms.setdefault(form, len(forms)))

    def routes(self, pairs: Sequence[tuple[int, int]], algorithm: str) -> list[tuple[tuple[Arc, ...], ...]]:
        """Parallel paths through switches, one for each wire of the sender, of each pair (from, to); all send at the same time."""
        passable = self._passable
        load: dict[Arc, int] = {}
        routes = []
        for source, target in pairs:
            paths = []
            for neighbour, arcs in self._neighbours[self.devices[source]].items():
                for arc in arcs if neighbour in passable else ():
                    path = self._onward(arc, neighbour, self.devices[target], passable, load)
                    if path:
                        paths.append(path)
                        for used in path:
                            load[used] = load.get(used, 0) + 1
            if not paths:
                raise BadInput(
                    f"{OWNER}: algorithm='{algorithm}' sends from {self.devices[source]} to {self.devices[target]}, which "
                    f"{self.topology.label} does not join through switches: use algorithm='ring' (or 'auto')"
                )
            routes.append(tuple(paths))
        return routes

    def _switches(self) -> set[str]:
        """Switches that do not belong to the host."""
        host = host_places(self.topology, self._neighbours)
        return {place.name for place in self.topology.places if place.kind == "switch" and place.name not in host}

    def _onward(self, first: Arc, here: str, target: str, passable: set[str], load: Mapping[Arc, int]) -> tuple[Arc, ...]:
        """The path that begins with an arc and has the least (hops, load, arcs); empty if there is none."""
        queue: list[tuple[int, int, tuple[Arc, ...], str]] = [(1, load.get(first, 0), (first,), here)]
        done: set[str] = set()
        while queue:
            hops, carried, path, place = heapq.heappop(queue)
            if place == target:
                return path
            if place in done or place not in passable:
                continue
            done.add(place)
            neighbours = self._neighbours[place]
            nearest = (target,) if target in neighbours else self._adjacent_switches[place]
            for there in nearest:
                arc = min(neighbours[there], key=lambda arc_to: (load.get(arc_to, 0), arc_to))
                heapq.heappush(queue, (hops + 1, carried + load.get(arc, 0), (*path, arc), there))
        return ()


@lru_cache(maxsize=256)
def _fabric(topology: ByIdentity[Topology], rings: ByIdentity[Sequence[Ring]]) -> Fabric:
    return Fabric(topology.value, rings.value)


def fabric_of(topology: Topology, rings: Sequence[Ring]) -> Fabric:
    """The fabric of a topology and its rings, cached for the same topology and the same tuple of rings."""
    return _fabric(ByIdentity(topology), ByIdentity(rings)) if isinstance(rings, tuple) else Fabric(topology, rings)
