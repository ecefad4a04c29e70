"""Collectives between devices that switches join, in steps: any device sends to any other.

"halving_doubling": in each of log2(n) steps every device exchanges with a partner, half as much each time (reduce-scatter), and
twice as much each time on the way back (all-gather). R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication
Operations in MPICH. IJHPCA 2005. Where n is no power of two, each surplus device first hands its data to one of the others and gets
the result from it in the end. A broadcast scatters and gathers, a reduce reduce-scatters and then gathers at the root.

"pairwise" (all-to-all): in step t every device sends its part to the device t numbers ahead.

The law. A send is divided equally among the wires that its device has to switches. Steps follow one another; a step lasts as long
as its longest send: the time of its messages over its wires (`Segment.chunk_s`) plus, where other sends share the busiest of them,
theirs. That is exact where no two sends of a step share a wire, and within a tenth elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from trainyard.errors import NotModelled
from trainyard.hardware.collectives.fabric import Fabric, Flow, Timing
from trainyard.hardware.collectives.ring_timing import Segment
from trainyard.hardware.topology.graph import Arc

ALGORITHMS = {
    "halving_doubling": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    "tree": ("all_reduce", "broadcast", "reduce"),  # see `double_tree`
    "pairwise": ("all_to_all",),
}
"""The collectives that each algorithm can do."""


@dataclass(frozen=True, slots=True)
class Send:
    """A device sends parts (named by the devices that own them) to another, which adds them to its own or stores them."""

    source: int
    target: int
    parts: tuple[int, ...]
    add: bool = False


Steps = list[list[Send]]


# ---- which parts go where
def steps_of(kind: str, count: int, root: int = 0) -> Steps:
    """The sends of halving and doubling, or of the pairwise exchange, step by step.

    >>> [[(send.source, send.target, send.parts) for send in step] for step in steps_of("all_gather", 2)]
    [[(0, 1, (0,)), (1, 0, (1,))]]
    """
    if kind == "all_to_all":
        return [
            [Send(rank, (rank + shift) % count, ((rank + shift) % count,)) for rank in range(count)] for shift in range(1, count)
        ]
    inner = 1 << (count.bit_length() - 1)
    names = [root, *(rank for rank in range(count) if rank != root)]  # the root is the first, and so never a surplus device
    owned = [(rank, rank + inner) if rank + inner < count else (rank,) for rank in range(inner)]

    def parts_of(ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(names[part] for rank in ranks for part in owned[rank])

    def between(distance: int, *, away: bool, add: bool, rooted: bool) -> list[Send]:
        """Partners `distance` apart: each sends what the other's half of the block owns (`away`), or what its own half does.

        With a root only those take part on whose side of the block it is: they send (`away`), or are sent to.
        """
        sends = []
        for rank in range(inner):
            other = rank ^ distance
            if rooted and ((rank if away else other) % (2 * distance) != 0):
                continue
            owner = other if away else rank
            block = range(owner - owner % distance, owner - owner % distance + distance)
            sends.append(Send(names[rank], names[other], parts_of(block), add))
        return sends

    all_parts = tuple(names)
    surplus = [(names[rank], names[rank + inner]) for rank in range(count - inner)]
    falling = [1 << bit for bit in reversed(range(inner.bit_length() - 1))]
    steps: Steps = []
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        steps.append([Send(extra, partner, all_parts, add=True) for partner, extra in surplus])
        steps += [between(distance, away=True, add=True, rooted=False) for distance in falling]
    if kind == "all_gather":
        steps.append([Send(extra, partner, (extra,)) for partner, extra in surplus])
    if kind == "broadcast":
        steps += [between(distance, away=True, add=False, rooted=True) for distance in falling]
    if kind == "reduce_scatter":
        steps.append([Send(partner, extra, (extra,)) for partner, extra in surplus])
    else:
        steps += [between(distance, away=False, add=False, rooted=kind == "reduce") for distance in reversed(falling)]
    if kind in ("all_reduce", "all_gather", "broadcast"):
        steps.append([Send(partner, extra, all_parts) for partner, extra in surplus])
    return [step for step in steps if step]


# ---- over which wires
Key = tuple[int, int, int]
"""(parts sent, paths, number of the path): these decide the bytes on one path of a send. For trees the first is the tree."""


def path_length(elements: int, paths: int, number: int) -> int:
    """Elements on one of several paths: equal shares, the first paths take the remainder.

    >>> [path_length(10, 4, number) for number in range(4)]
    [3, 3, 2, 2]
    """
    return elements // paths + (number < elements % paths)


@dataclass(frozen=True, slots=True)
class Shape:
    """One path of a send: what it carries, and what other sends put on each of its wires in the same step."""

    key: Key
    segment: Segment
    others: tuple[tuple[tuple[Key, int], ...], ...]


Groups = tuple[tuple[tuple[Arc, ...], tuple[tuple[Key, int], ...], float], ...]
"""Arcs by the total that they carry, with the slowest rate among them."""


def grouped(fabric: Fabric, load: Mapping[Arc, Counter[Key]]) -> Groups:
    groups: dict[tuple[tuple[Key, int], ...], list[Arc]] = defaultdict(list)
    for arc, carried in sorted(load.items()):
        groups[tuple(sorted(carried.items()))].append(arc)
    return tuple((tuple(arcs), carried, min(fabric.rates[wire] for wire, _ in arcs)) for carried, arcs in groups.items())


def flows_of(groups: Groups, size: Callable[[Key], int], message: int = 0) -> tuple[tuple[Flow, ...], float, float]:
    """One flow for all arcs that carry the same bytes; the longest flow's time, and that time without its first message."""
    sums: dict[int, tuple[Arc, ...]] = {}
    moving_s = rest_s = 0.0
    for arcs, carried, rate in groups:
        count = sum(times * size(key) for key, times in carried)
        if count:
            sums[count] = sums.get(count, ()) + arcs
            moving_s, rest_s = max(moving_s, count / rate), max(rest_s, (count - message) / rate)
    return tuple((arcs, count) for count, arcs in sums.items()), moving_s, rest_s


@dataclass(frozen=True, slots=True)
class Routed:
    """Steps over wires: the different shapes of each step, and the total on each arc."""

    steps: tuple[tuple[Shape, ...], ...]
    groups: Groups


@lru_cache(maxsize=256)
def routed(fabric: Fabric, kind: str, algorithm: str, root: int) -> Routed:
    """The steps of a collective over the wires of a fabric, cached; equal paths are stored once."""
    totals: dict[Arc, Counter[Key]] = defaultdict(Counter)
    steps = []
    for step in steps_of(kind, len(fabric.devices), root):
        routes = fabric.routes([(send.source, send.target) for send in step], algorithm)
        load: dict[Arc, Counter[Key]] = defaultdict(Counter)
        for send, paths in zip(step, routes, strict=True):
            for number, path in enumerate(paths):
                for arc in path:
                    load[arc][len(send.parts), len(paths), number] += 1
        others = {arc: carried for arc, carried in load.items() if carried.total() > 1}
        shapes: dict[object, Shape] = {}
        for send, paths in zip(step, routes, strict=True):
            for number, path in enumerate(paths):
                key = (len(send.parts), len(paths), number)
                sharing = tuple(tuple(sorted((others[arc] - Counter([key])).items())) if arc in others else () for arc in path)
                form = (key, tuple((fabric.rates[wire], fabric.latencies[wire]) for wire, _ in path), sharing)
                if form not in shapes:
                    shapes[form] = Shape(key, fabric.segment(path), sharing)
        steps.append(tuple(shapes.values()))
        for arc, carried in load.items():
            totals[arc].update(carried)
    return Routed(tuple(steps), grouped(fabric, totals))


def require_modelled(kind: str, algorithm: str) -> None:
    if kind not in ALGORITHMS[algorithm]:
        able = [name for name, kinds in ALGORITHMS.items() if kind in kinds]
        raise NotModelled(f"{kind} by algorithm='{algorithm}' is not modelled: use {' or '.join(able)}")


def in_steps(fabric: Fabric, kind: str, algorithm: str, part: int, message: int, element: int, root: int) -> Timing:
    """The timing of halving and doubling, or of the pairwise exchange; `part` bytes belong to each device."""
    plan = routed(fabric, kind, algorithm, root)

    def size(key: Key) -> int:
        parts, paths, number = key
        return path_length(parts * part // element, paths, number) * element

    time_s = 0.0
    for shapes in plan.steps:
        longest = 0.0
        for shape in shapes:
            own = size(shape.key)
            if own:
                before = zip(shape.segment.seconds_per_byte, shape.others, strict=True)
                waits = max(wire * sum(times * size(key) for key, times in others) for wire, others in before)
                longest = max(longest, shape.segment.chunk_s(own, message) + waits)
        time_s += longest
    flows, moving_s, _ = flows_of(plan.groups, size)
    return Timing.of(time_s, flows, moving_s)
