"""Collectives between some of a node's devices: which groups exchange at the same time, over which wires, for how long.

The ranks of an SPMD program partition into equal groups: while ranks 0 and 4 exchange, so do 1 and 5, 2 and 6, 3 and 7. `siblings`
derives the other groups from the first by shifting it.

Where the wires between a group's own devices (and the memory-nodes and switches between them) make rings, or switches join them,
each group has these to itself, and the laws of `collectives` hold for it. Otherwise a group uses the node's rings: its devices
follow one another in the order of the ring, and each reaches the next along the ring, or on the shortest routes with the least
load, whichever is faster for all; devices on a route forward as memory-nodes do. An arc that several routes share, of one group or
of several, is divided among them: a byte takes as many times longer on it. An all-to-all without switches sends all parts at once
on shortest routes, and the busiest arc decides.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import repeat

from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.collectives.fabric import NOTHING, Flow, Timing
from trainyard.hardware.collectives.on_graph import KINDS, Split, part_bytes, shares, timing
from trainyard.hardware.collectives.ring_timing import Lane, Segment, arc_rounds
from trainyard.hardware.topology.graph import Arc, Topology
from trainyard.hardware.topology.rings import Directions, Ring, channels_of, rings

Group = tuple[int, ...]
Path = tuple[Arc, ...]


def siblings(members: Sequence[int], world: int) -> tuple[Group, ...]:
    """The groups that exchange at the same time as `members`, which include rank 0: `members` shifted.

    >>> siblings((0, 2), 8)
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    first = tuple(sorted(members))
    groups: list[Group] = []
    remaining = dict.fromkeys(range(world))
    while remaining:
        start = next(iter(remaining)) - first[0]
        group = tuple(start + rank for rank in first)
        if any(rank not in remaining for rank in group):
            raise NotModelled(
                f"a group of ranks {','.join(map(str, first))} does not part {world} ranks into groups like it: "
                "only programs are modelled in which all ranks do the same (SPMD)"
            )
        groups.append(group)
        for rank in group:
            del remaining[rank]
    return tuple(groups)


def group_timing(
    kind: str,
    size_bytes: int,
    topology: Topology,
    around: Sequence[Ring],
    members: Sequence[int],
    *,
    algorithm: str = "ring",
    message_bytes: int = 4096,
    split: Split = "equal",
    directions: Directions = "both",
) -> Timing:
    """The timing of a collective between the devices `members` and in all siblings at once; `around` are the node's rings.

    >>> from trainyard.hardware.topology.builders import memory_ring
    >>> node = memory_ring(link_bytes_per_s=25e9)
    >>> pair, all_eight = (group_timing("all_gather", 8_000_000, node, rings(node), range(n)) for n in (2, 8))
    >>> round(1e6 * pair.time_s, 1), round(1e6 * all_eight.time_s, 1)       # half the bytes over 3 wires, 7/8 over 6 rings
    (53.5, 47.8)
    """
    if kind not in KINDS:
        raise NotModelled(f"{kind} between the devices of a node is not modelled (known: {', '.join(KINDS)})")
    if len(members) == 1 or not size_bytes:
        return NOTHING
    groups = siblings(members, len(topology.devices))
    if kind != "all_to_all" or algorithm != "ring":
        try:
            return _on_own_wires(kind, size_bytes, topology, groups, algorithm, message_bytes, split, directions)
        except BadInput:  # no rings or switches of their own
            pass
    node_rings = tuple(around)
    if kind == "all_to_all":
        return _all_pairs(size_bytes, topology, groups, max(1, len(node_rings)), message_bytes)
    timings = [
        _on_shared_rings(kind, size_bytes, topology, node_rings, groups, message_bytes, split, along) for along in (True, False)
    ]
    return min(timings, key=lambda candidate: candidate.time_s)


# ---- wires of the group's own
def _on_own_wires(
    kind: str,
    size_bytes: int,
    topology: Topology,
    groups: tuple[Group, ...],
    algorithm: str,
    message_bytes: int,
    split: Split,
    directions: Directions,
) -> Timing:
    flows: list[Flow] = []
    slowest = NOTHING
    for group in groups:
        graph, numbers = own_graph(topology, group)
        around = rings(graph, directions=directions) if algorithm in ("ring", "auto") else ()
        group_time = timing(kind, size_bytes, graph, around, algorithm=algorithm, message_bytes=message_bytes, split=split)
        flows += [(tuple((numbers[wire], direction) for wire, direction in path), count) for path, count in group_time.flows]
        slowest = max(slowest, group_time, key=lambda candidate: candidate.time_s)
    return Timing.of(slowest.time_s, tuple(flows), slowest.time_s - slowest.delay_s)


@lru_cache(maxsize=256)
def own_graph(topology: Topology, group: Group) -> tuple[Topology, tuple[int, ...]]:
    """The graph of the wires that end at a device of the group and at no other device, and the numbers of these wires."""
    own = {topology.devices[rank] for rank in group}
    passed = set(channels_of(topology)[0]) - (set(topology.devices) - own)  # nor is the host passed
    numbers = tuple(n for n, wire in enumerate(topology.wires) if {wire.a, wire.b} & own and {wire.a, wire.b} <= passed)
    ends = own | {end for n in numbers for end in (topology.wires[n].a, topology.wires[n].b)}
    own_places = [place for place in topology.places if place.name in ends]
    places = tuple(replace(place, serves=tuple(name for name in place.serves if name in own)) for place in own_places)
    return Topology(places=places, wires=tuple(topology.wires[n] for n in numbers), name=f"part of {topology.name}"), numbers


# ---- wires that all groups share
PASSES = 4
"""Times that every route is chosen again with the load of all others; routes no longer change after that on any known node."""


class Router:
    """Shortest routes between devices; of equally short ones, the one whose busiest arc carries least."""

    def __init__(self, topology: Topology) -> None:
        names, channels = channels_of(topology)
        self.topology = topology
        self.carried: Counter[Arc] = Counter()
        self._neighbours: dict[str, dict[str, list[Arc]]] = {name: {} for name in names}
        for (a, b), wires in channels.items():
            for here, there in ((names[a], names[b]), (names[b], names[a])):
                self._neighbours[here][there] = [(wire, 0 if topology.wires[wire].a == here else 1) for wire in wires]

    def routes(self, pairs: Sequence[tuple[str, str]]) -> list[Path]:
        """A route for each pair."""
        routes = [self.route(source, target) for source, target in pairs]
        for _ in range(PASSES):
            before = list(routes)
            for number, (source, target) in enumerate(pairs):
                self.carried.subtract(routes[number])
                routes[number] = self.route(source, target)
            if routes == before:
                break
        return routes

    def route(self, source: str, target: str) -> Path:
        """The route from source to target; its load grows by one."""
        queue: list[tuple[int, int, int, Path, str]] = [(0, 0, 0, (), source)]
        done: set[str] = set()
        while queue:
            hops, busiest, carried, path, here = heapq.heappop(queue)
            if here == target:
                self.carried.update(path)
                return path
            if here in done:
                continue
            done.add(here)
            for there, arcs in self._neighbours.get(here, {}).items():
                if there not in done:
                    arc = min(arcs, key=lambda candidate: (self.carried[candidate], candidate))
                    load = self.carried[arc]
                    heapq.heappush(queue, (hops + 1, max(busiest, load), carried + load, (*path, arc), there))
        raise BadInput(f"no route leads from {source} to {target} except through the host: add wires between devices")

    def segment(self, path: Path) -> Segment:
        """A route as a segment; each arc's rate is divided among the routes that share it."""
        wires = self.topology.wires
        return Segment(
            arcs=path,
            seconds_per_byte=tuple(self.carried[arc] / wires[arc[0]].bytes_per_s for arc in path),
            latency_s=sum(wires[wire].latency_s for wire, _ in path),
        )


@lru_cache(maxsize=256)
def _lanes(topology: Topology, around: tuple[Ring, ...], groups: tuple[Group, ...], along: bool) -> tuple[tuple[Lane, ...], ...]:
    """For each group, a lane for each ring."""
    router = Router(topology)
    rank = {name: number for number, name in enumerate(topology.devices)}
    stops = [[name for name in ring.devices if rank[name] in group] for group in groups for ring in around]
    hops = [(here, there) for names in stops for here, there in zip(names, (*names[1:], names[0]), strict=True)]
    if along:
        paths = [_arcs_between(ring, *hop) for hop, ring in zip(hops, _rings_of_hops(around, groups), strict=True)]
        for path in paths:
            router.carried.update(path)
    else:
        paths = router.routes(hops)
    segments_in_order = map(router.segment, paths)
    forms: dict[object, int] = {}
    lanes = []
    for number, group in enumerate(groups):
        lanes_of_group = []
        for names in stops[number * len(around) : (number + 1) * len(around)]:
            order = tuple(group.index(rank[name]) for name in names)
            segments = [next(segments_in_order) for _ in names]
            form = (order, tuple((segment.seconds_per_byte, segment.latency_s) for segment in segments))
            lanes_of_group.append(Lane(order, segments, forms.setdefault(form, len(forms))))
        lanes.append(tuple(lanes_of_group))
    return tuple(lanes)


def _rings_of_hops(around: Sequence[Ring], groups: Sequence[Group]) -> Iterator[Ring]:
    """The ring of every hop: all hops of a group on one ring, then on the next."""
    for group in groups:
        for ring in around:
            yield from repeat(ring, len(group))


def _arcs_between(ring: Ring, here: str, there: str) -> Path:
    """The arcs of a ring from one of its devices to another."""
    first, last = ring.walk.index(here), ring.walk.index(there)
    return ring.arcs[first:last] if first < last else ring.arcs[first:] + ring.arcs[:last]


def _on_shared_rings(
    kind: str,
    size_bytes: int,
    topology: Topology,
    around: tuple[Ring, ...],
    groups: tuple[Group, ...],
    message_bytes: int,
    split: Split,
    along: bool,
) -> Timing:
    count = len(groups[0])
    part, rounds = part_bytes(size_bytes, count, 1), arc_rounds(kind, count)
    carried: Counter[Arc] = Counter()
    times: dict[tuple[object, int], float] = {}
    time_s = 0.0
    for lanes in _lanes(topology, around, groups, along):

        def seconds(number: int, chunk: int, lanes: tuple[Lane, ...] = lanes) -> float:
            lane = lanes[number]
            key = (lane.form(kind, 0), chunk)
            if key not in times:
                times[key] = lane.time_s(kind, chunk, message_bytes, pipelined=False, root=0)
            return times[key]

        chunks = shares(part, len(lanes), seconds, split, 1)
        time_s = max(time_s, *(seconds(number, chunk) for number, chunk in enumerate(chunks)))
        for lane, chunk in zip(lanes, chunks, strict=True):
            for arc in lane.path(kind, 0)[0]:
                carried[arc] += rounds * chunk
    return _timing_of_load(topology, carried, time_s)


def _all_pairs(size_bytes: int, topology: Topology, groups: tuple[Group, ...], pieces: int, message_bytes: int) -> Timing:
    """An all-to-all with every part cut into `pieces`; after the busiest arc, its last message still has to arrive."""
    part = -(-part_bytes(size_bytes, len(groups[0]), 1) // pieces)
    paths = _pairs(topology, groups, pieces)
    carried: Counter[Arc] = Counter()
    for path in paths:
        for arc in path:
            carried[arc] += part
    first = min(part, message_bytes)
    wires = topology.wires
    busiest_s = max(count / wires[wire].bytes_per_s for (wire, _), count in carried.items())
    passing_s = max(sum(wires[wire].latency_s + first / wires[wire].bytes_per_s for wire, _ in path[1:]) for path in paths)
    return _timing_of_load(topology, carried, busiest_s + passing_s + max(wires[path[0][0]].latency_s for path in paths))


@lru_cache(maxsize=64)
def _pairs(topology: Topology, groups: tuple[Group, ...], pieces: int) -> tuple[Path, ...]:
    devices = topology.devices
    pairs = [
        (devices[group[position]], devices[group[(position + shift) % len(group)]])
        for shift in range(1, len(groups[0]))
        for group in groups
        for position in range(len(group))
        for _ in range(pieces)
    ]
    return tuple(Router(topology).routes(pairs))


def _timing_of_load(topology: Topology, carried: Mapping[Arc, int], time_s: float) -> Timing:
    """The timing of bytes by arc; arcs that carry the same number of bytes are one flow."""
    sums: dict[int, list[Arc]] = defaultdict(list)
    for arc, count in sorted(carried.items()):
        if count:
            sums[count].append(arc)
    moving_s = max((count / topology.wires[arc[0]].bytes_per_s for count, arcs in sums.items() for arc in arcs), default=0.0)
    return Timing.of(time_s, tuple((tuple(arcs), count) for count, arcs in sums.items()), moving_s)
