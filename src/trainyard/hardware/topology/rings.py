"""Rings of a node, derived from its wires.

Y. Kwon, M. Rhu: Beyond the Memory Wall. MICRO 2018, Sec. II-C and III-B: collectives run on rings, into which libraries cast the
interconnect; a ring of a memory-centric node passes memory-nodes, which only forward, and may pass one of them twice (footnote 1).
So a ring is a closed walk through every device exactly once, and through memory-nodes and switches any number of times. Sockets
are not passed, nor the switches below them, which are the host's (PCIe).

The law. Undirected walks that share no wire: as many as there can be; of those, the hop counts, shortest first, come first in
lexicographic order. Wires are full duplex, so each walk is a ring in either direction. Where that leaves arcs of every device
unused (three links to a switch: one walk, two rings), directed walks that share no arc are sought by the same law, and taken if
they are more. Directed walks in the devices' own order are also taken if no set of rings could be larger or shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.topology.graph import Arc, Topology, host_places, neighbours_of
from trainyard.hardware.topology.ring_search import OutOfSteps, Search, Walks

Directions = Literal["both", "one"]
STEPS = 1_000_000
"""Places that the search may try before it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A directed closed walk: arc i leads from place i of `walk` to the next; `devices` are the devices in its order."""

    walk: tuple[str, ...]
    arcs: tuple[Arc, ...]
    devices: tuple[str, ...]

    @property
    def hops(self) -> int:
        return len(self.arcs)

    @property
    def backwards(self) -> Ring:
        """The same wires the other way round, from the same place."""
        return Ring(
            walk=(self.walk[0], *self.walk[:0:-1]),
            arcs=tuple((wire, 1 - direction) for wire, direction in reversed(self.arcs)),
            devices=(self.devices[0], *self.devices[:0:-1]),
        )


def rings(
    topology: Topology, *, directions: Directions = "both", at_most: int | None = None, steps: int = STEPS
) -> tuple[Ring, ...]:
    """Rings that share no arc, shortest first; of one device alone, none.

    `directions="one"` keeps each undirected walk in one direction only. `at_most` bounds the number of rings that are sought.

    >>> from trainyard.hardware.topology.graph import Place, Topology, Wire
    >>> places = [Place(name=f"D{number}", kind="device") for number in range(3)] + [Place(name="X", kind="switch")]
    >>> wires = [Wire(a=f"D{number}", b="X", bytes_per_s=25e9) for number in range(3)]
    >>> [ring.walk for ring in rings(Topology(places=tuple(places), wires=tuple(wires)))]
    [('D0', 'X', 'D1', 'X', 'D2', 'X')]
    """
    if directions not in get_args(Directions):
        raise UnknownName("directions", str(directions), get_args(Directions))
    if at_most is not None:
        require_positive("rings", at_most=at_most)
    names, channels = channels_of(topology)
    count = len(topology.devices)
    if count == 1:
        return ()
    shape = tuple((a, b, len(wires)) for (a, b), wires in channels.items())
    try:
        directed, walks = _derive(count, len(names), shape, directions, at_most, steps)
    except OutOfSteps:
        raise BadInput(
            f"{topology.label}: the search for rings through {count} devices did not end within {steps:,} steps; "
            f"bound the number of rings (rings(..., at_most=2)) or allow more steps (steps={10 * steps})"
        ) from None
    if not walks:
        raise BadInput(f"{topology.label} has no ring: {_reason(topology, names, channels, directions)}")
    result = _rings(topology, names, channels, walks, directed)
    if directions == "both" and not directed:
        result = [ring for forward in result for ring in (forward, forward.backwards)]
    return tuple(result[:at_most])


Channels = dict[tuple[int, int], list[int]]
"""The wires between two places by their numbers, the fastest first."""


def channels_of(topology: Topology) -> tuple[list[str], Channels]:
    """Names of the places that rings may pass, devices first, and the wires between them; dead ends are left out."""
    neighbours = neighbours_of(topology)
    host = host_places(topology, neighbours)
    devices = topology.devices
    names = [*devices, *(place.name for place in topology.places if place.kind != "device" and place.name not in host)]
    remaining = set(names)
    while dead := {name for name in names[len(devices) :] if name in remaining and len(remaining & neighbours[name].keys()) < 2}:
        remaining -= dead
    numbers = {name: number for number, name in enumerate(name for name in names if name in remaining)}
    channels: Channels = {}
    for number, wire in enumerate(topology.wires):
        if wire.a in remaining and wire.b in remaining:
            a, b = sorted((numbers[wire.a], numbers[wire.b]))
            channels.setdefault((a, b), []).append(number)
    for wires in channels.values():
        wires.sort(key=lambda number: (-topology.wires[number].bytes_per_s, number))
    return list(numbers), dict(sorted(channels.items()))


# ---- derivation
Shape = tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=256)
def _derive(devices: int, places: int, shape: Shape, directions: Directions, at_most: int | None, steps: int) -> tuple[bool, Walks]:
    """Whether the walks are directed, and the walks; directed channel 2 c leads along channel c's pair, 2 c + 1 back."""
    ends, tokens = [(a, b) for a, b, _ in shape], tuple(count for _, _, count in shape)
    undirected = Search(devices, places, ends, tokens, directed=False, steps=steps)
    arcs = [arc for a, b in ends for arc in ((a, b), (b, a))]
    directed = Search(devices, places, arcs, tuple(count for count in tokens for _ in range(2)), directed=True, steps=steps)
    if directions == "one":
        return False, _most_walks(undirected, min(undirected.most(), at_most or undirected.most()))
    most = min(directed.most(), at_most or directed.most())
    limit = min(undirected.most(), -(-most // 2))
    walks = undirected.in_order(limit)
    if not (2 * limit >= most and _is_best(undirected, walks, limit)):
        walks = directed.in_order(most)
        if _is_best(directed, walks, most):
            return True, walks
        walks = _most_walks(undirected, limit)
    more = _most_walks(directed, most, more_than=2 * len(walks))
    return (True, more) if more else (False, walks)


def _most_walks(search: Search, most: int, *, more_than: int = 0) -> Walks:
    """As many walks as possible, at most `most` and more than `more_than`; an empty tuple if there are none."""
    if most <= more_than or search.least_hops(search.tokens) is None:
        return ()
    in_order = search.in_order(most)
    if _is_best(search, in_order, most):
        return in_order
    in_order = tuple(sorted(in_order, key=lambda walk: walk.hops))
    for count in range(most, more_than, -1):
        beat = tuple(walk.hops for walk in in_order) if len(in_order) == count else None
        walks = search.best(search.tokens, count, beat) or (in_order if beat else None)
        if walks:
            return walks
    return ()


def _is_best(search: Search, walks: Walks, most: int) -> bool:
    """As many as the wires allow, and each as short as any walk can be."""
    least = search.least_hops(search.tokens)
    return len(walks) == most > 0 and all(walk.hops == least for walk in walks)


def _rings(topology: Topology, names: Sequence[str], channels: Channels, walks: Walks, directed: bool) -> list[Ring]:
    """Rings from walks: each walk takes the next wire of every channel it passes."""
    wires = [numbers for numbers in channels.values() for _ in range(2 if directed else 1)]
    used = [0] * len(wires)
    devices = frozenset(topology.devices)
    result = []
    for walk in walks:
        arcs: list[Arc] = []
        for place, channel in zip(walk.places, walk.channels, strict=True):
            wire = wires[channel][used[channel]]
            used[channel] += 1
            arcs.append((wire, 0 if topology.wires[wire].a == names[place] else 1))
        passed = tuple(names[place] for place in walk.places)
        result.append(Ring(walk=passed, arcs=tuple(arcs), devices=tuple(name for name in passed if name in devices)))
    return result


def _reason(topology: Topology, names: Sequence[str], channels: Channels, directions: Directions) -> str:
    devices = topology.devices
    links = dict.fromkeys(devices, 0)
    component: dict[str, set[str]] = {name: {name} for name in names}
    for (a, b), wires in channels.items():
        for end in (names[a], names[b]):
            if end in links:
                links[end] += len(wires)
        merged = component[names[a]] | component[names[b]]
        component |= dict.fromkeys(merged, merged)
    excluded = "wires to sockets, to switches below them and to dead ends do not count"
    device, fewest = min(links.items(), key=lambda pair: pair[1])
    if fewest == 0:
        return f"device '{device}' has no link that leads to another device ({excluded}): {_more(device)}"
    if fewest < 2:
        return f"device '{device}' has only 1 link, and a ring needs one to come in and one to go out ({excluded}): {_more(device)}"
    unreachable = next((remedy for remedy in devices if remedy not in component[devices[0]]), None)
    if unreachable is not None:
        return f"no way leads from '{devices[0]}' to '{unreachable}' ({excluded}): add two wires or more between the two sides"
    condition = "" if directions == "both" else ", each wire in one direction only,"
    remedy = "or a switch that joins them all" if directions == "both" else "or write directions='both'"
    count = len(devices)
    return f"no closed walk{condition} passes all {count} devices exactly once ({excluded}): add wires between devices, {remedy}"


def _more(device: str) -> str:
    return f"give '{device}' two wires or more that lead to other devices, or to memory-nodes or switches between them"
