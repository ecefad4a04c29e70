"""A node as collectives see it: its devices by number, its rings cut at the devices, and the ways between devices through switches.

A ring becomes a `Lane` (see `ring_timing`). A way between two devices uses all wires that the first has to switches: one path for
each of them, the shortest, and of those the one whose arcs carry least so far; so planes of switches, several wires to one switch
and trees of switches are all used. Switches of the host (those that a socket hangs on) are not.
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
from trainyard.hardware.topology.graph import Arc, Topology, ways_of

if TYPE_CHECKING:
    from trainyard.hardware.topology.rings import Ring

Flow = tuple[tuple[Arc, ...], int]
OWNER = "collective"


@dataclass(frozen=True, slots=True)
class Timing:
    """`time_s` with nobody else on the wires is `delay_s` and then the longest of the flows, which all start together.

    A flow's bytes cross every arc of its path, all at the same pace.
    """

    delay_s: float
    flows: tuple[Flow, ...]
    time_s: float

    @classmethod
    def of(cls, time_s: float, flows: tuple[Flow, ...], moving_s: float) -> Timing:
        """Takes what the longest flow needs by itself (`moving_s`) out of the time; the rest is delay."""
        delay_s = max(0.0, time_s - moving_s)
        return cls(delay_s, flows, delay_s + moving_s)


NOTHING = Timing(0.0, (), 0.0)


class Fabric:
    """A topology and its rings, ready to be timed; `fabric_of` makes it once and finds it again."""

    __slots__ = (
        "_beside",
        "_kinds",
        "_passable",
        "_switched",
        "_ways",
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
        self._ways = ways_of(topology)
        self._kinds = {place.name: place.kind for place in topology.places}
        self._passable = self._switches()
        self._beside = {name: [there for there in self._ways[name] if there in self._passable] for name in self._passable}
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

    @property
    def called(self) -> str:
        return f"topology '{self.topology.name}'" if self.topology.name else "the topology"

    def segment(self, arcs: Sequence[Arc]) -> Segment:
        return Segment(
            arcs=tuple(arcs),
            seconds_per_byte=tuple(1 / self.rates[wire] for wire, _ in arcs),
            latency_s=sum(self.latencies[wire] for wire, _ in arcs),
        )

    def _lane(self, ring: Ring, forms: dict[object, int]) -> Lane:
        """Cuts a ring at its devices, starting with the first of them."""
        stops = [number for number, name in enumerate(ring.walk) if name in self.rank]
        ranks = [self.rank[ring.walk[stop]] for stop in stops]
        if sorted(ranks) != list(range(len(self.devices))):
            missing = sorted(set(self.devices) - set(ring.walk))
            raise BadInput(
                f"{OWNER}: a ring passes every device exactly once, {ring.walk} does not (not on it: {missing or 'none'})"
            )
        turned = ring.arcs[stops[0] :] + ring.arcs[: stops[0]]
        ends = [stop - stops[0] for stop in stops[1:]] + [len(turned)]
        segments = [self.segment(turned[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        form = tuple((segment.seconds_per_byte, segment.latency_s) for segment in segments)
        return Lane(ranks, segments, forms.setdefault(form, len(forms)))

    def routes(self, pairs: Sequence[tuple[int, int]], algorithm: str) -> list[tuple[tuple[Arc, ...], ...]]:
        """For each (from, to) that send at the same time: parallel paths through switches, one for each wire of the sender."""
        passable = self._passable
        load: dict[Arc, int] = {}
        found = []
        for source, target in pairs:
            paths = []
            for there, arcs in self._ways[self.devices[source]].items():
                for arc in arcs if there in passable else ():
                    path = self._onward(arc, there, self.devices[target], passable, load)
                    if path:
                        paths.append(path)
                        for passed in path:
                            load[passed] = load.get(passed, 0) + 1
            if not paths:
                raise BadInput(
                    f"{OWNER}: algorithm='{algorithm}' sends from {self.devices[source]} to {self.devices[target]}, which "
                    f"{self.called} does not join through switches: use algorithm='ring' (or 'auto')"
                )
            found.append(tuple(paths))
        return found

    def _switches(self) -> set[str]:
        """Switches that are not the host's."""
        waiting = [name for name, kind in self._kinds.items() if kind == "socket"]
        host = set(waiting)
        while waiting:
            below = [name for name in self._ways[waiting.pop()] if self._kinds[name] == "switch" and name not in host]
            host.update(below)
            waiting += below
        return {name for name, kind in self._kinds.items() if kind == "switch" and name not in host}

    def _onward(self, first: Arc, here: str, target: str, passable: set[str], load: Mapping[Arc, int]) -> tuple[Arc, ...]:
        """The path that begins with an arc: least (hops, load, arcs); empty if there is none."""
        waiting: list[tuple[int, int, tuple[Arc, ...], str]] = [(1, load.get(first, 0), (first,), here)]
        done: set[str] = set()
        while waiting:
            hops, carried, path, place = heapq.heappop(waiting)
            if place == target:
                return path
            if place in done or place not in passable:
                continue
            done.add(place)
            ways = self._ways[place]
            for there in (target,) if target in ways else self._beside[place]:  # nothing is nearer than the target itself
                arc = min(ways[there], key=lambda way: (load.get(way, 0), way))
                heapq.heappush(waiting, (hops + 1, carried + load.get(arc, 0), (*path, arc), there))
        return ()


@lru_cache(maxsize=256)
def _fabric(topology: ByIdentity[Topology], rings: ByIdentity[Sequence[Ring]]) -> Fabric:
    return Fabric(topology.value, rings.value)


def fabric_of(topology: Topology, rings: Sequence[Ring]) -> Fabric:
    """Found again for the same topology and the same tuple of rings."""
    return _fabric(ByIdentity(topology), ByIdentity(rings)) if isinstance(rings, tuple) else Fabric(topology, rings)
