"""Collectives on planes of switches, recast into a ring, a torus, a hierarchy, halving and doubling, or trees.

A plane joins any end to any other, so that software chooses who talks to whom (Fig. 15 of MC-DLA). The laws are those of
`hardware.collectives.ring_timing` and `hardware.collectives.switched`, counted by trees of switches and not wire by wire, so that a
thousand devices need no search for ways. A send uses all wires of its device. Above the leaves, what goes out of a tree of switches
is spread evenly over the wires that lead out of it (adaptive routing; a folded Clos network without oversubscription carries every
permutation of its ends: C. Clos, BSTJ 1953); where they are too few, a send gets its part of them.

`torus` makes rows and columns (both rings): reduce-scatter along the rows, all-reduce along the columns, all-gather along the rows.
`hierarchical` is the same with system nodes as rows, and the fastest algorithm for each stage. `auto` is the fastest of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, get_args

from trainyard.errors import NotModelled, UnknownName
from trainyard.hardware.collectives import double_tree, switched
from trainyard.hardware.collectives.fabric import NOTHING, Flow, Timing
from trainyard.hardware.collectives.hierarchical import STAGES, stages
from trainyard.hardware.collectives.on_graph import part_bytes
from trainyard.hardware.collectives.ring_timing import STREAMS, Lane, Segment, arc_rounds
from trainyard.hardware.topology.graph import Arc
from trainyard.systems.scale_out.switch_tree import SwitchTree

Algorithm = Literal["ring", "halving_doubling", "tree", "torus", "hierarchical", "auto"]
FLAT = ("ring", "halving_doubling", "tree")
Groups = tuple[tuple[int, ...], ...]
"""Devices that work together; all groups at once."""
Where = tuple[int, int, int]
"""(level, tree, 0 up or 1 down); level -1 are the wires of a device itself, `tree` being its number."""
Weights = tuple[int, int]
"""How often each of two sizes crosses; rings and steps have only the first."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of the planes' wires, and the messages in which data goes."""

    bytes_per_s: float
    latency_s: float
    hop_latency_s: float
    message_bytes: int


Send = tuple[int, int, int]
"""(from, to, parts)"""


def _crossed(tree: SwitchTree, source: int, target: int) -> list[Where]:
    """Between the switches: up from the source's leaf, down to the target's."""
    level = tree.meets(source, target)
    up = [(below, tree.tree_of(source, below), 0) for below in range(level)]
    return up + [(below, tree.tree_of(target, below), 1) for below in reversed(range(level))]


def ways(tree: SwitchTree, sends: Sequence[Send], crossed: Sequence[Sequence[Where]]) -> list[tuple[float, ...]]:
    """Of sends at the same time: how many times slower than its own wires each wire between switches is for a send.

    It gets its part of all that leaves its tree, over all wires that do.
    """
    load: dict[Where, int] = defaultdict(int)
    for (_, _, parts), passed in zip(sends, crossed, strict=True):
        for where in passed:
            load[where] += parts
    share = {where: parts * tree.wires / tree.wires_up(where[0]) for where, parts in load.items()}
    return [tuple(max(1.0, share[where] / parts) for where in passed) for (_, _, parts), passed in zip(sends, crossed, strict=True)]


def segment(slow: tuple[float, ...], speeds: Speeds) -> Segment:
    """From a device to another, with the wires between switches so many times slower."""
    factors = (1.0, *slow, 1.0)
    return Segment(
        arcs=tuple((wire, 0) for wire in range(len(factors))),
        seconds_per_byte=tuple(factor / speeds.bytes_per_s for factor in factors),
        latency_s=2 * speeds.latency_s + len(slow) * speeds.hop_latency_s,
    )


# ---- one stage: the same collective in all groups
class Stage:
    """A collective inside every group, by one algorithm; `alike` where every send is one of the two sizes."""

    alike = True

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        self.tree, self.speeds, self.kind, self.groups = tree, speeds, kind, groups
        self.members = len(groups[0])
        self.load: dict[Where, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, sends: Iterable[Send], crossed: Iterable[Sequence[Where]], times: int = 1, which: int = 0) -> None:
        """What crosses which wires: `times` the parts of each send."""
        for (source, target, parts), passed in zip(sends, crossed, strict=True):
            self.load[-1, source, 0][which] += times * parts
            self.load[-1, target, 1][which] += times * parts
            for where in passed:
                self.load[where][which] += times * parts

    def sizes(self, part: int) -> Weights:
        """The two sizes that `load` counts."""
        return part, 0

    def seconds(self, part: int) -> float:
        """`part` bytes belong to each member of a group."""
        raise NotImplementedError

    def wires(self, where: Where) -> int:
        return self.tree.links if where[0] < 0 else self.tree.planes * self.tree.wires_up(where[0])

    def carried(self, where: Where, part: int) -> int:
        """By each wire; a device divides every send of a ring or a tree among its wires, in whole bytes."""
        wires, counts = self.wires(where), self.load.get(where, (0, 0))
        if where[0] < 0 and self.alike:
            return sum(count * -(-size // wires) for count, size in zip(counts, self.sizes(part), strict=True))
        return -(-sum(count * size for count, size in zip(counts, self.sizes(part), strict=True)) // wires)


class RingStage(Stage):
    """As many rings as a device has links."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        count = self.members
        sends = [(group[number], group[(number + 1) % count], 1) for group in groups for number in range(count)]
        crossed = [_crossed(tree, source, target) for source, target, _ in sends]
        idle = {"broadcast": count - 1, "reduce": 0}.get(kind, count)  # into the root, out of it
        used = [number for number in range(len(sends)) if number % count != idle]
        self.add([sends[number] for number in used], [crossed[number] for number in used], arc_rounds(kind, count))
        taken = ways(tree, sends, crossed)
        alike = {tuple(taken[first : first + count]) for first in range(0, len(taken), count)}
        known = {way: segment(way, speeds) for way in set(taken)}
        self.lanes = [Lane(range(count), [known[way] for way in lane]) for lane in sorted(alike)]

    def seconds(self, part: int) -> float:
        chunk = -(-part // self.tree.links)
        message = self.speeds.message_bytes
        return max(lane.time_s(self.kind, chunk, message, pipelined=False, root=0) for lane in self.lanes)


class StepStage(Stage):
    """Halving and doubling, step by step: more or fewer parts at once."""

    alike = False

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        self.steps: list[list[tuple[int, Segment]]] = []
        for step in switched.steps_of(kind, self.members):
            sends = [(group[send.source], group[send.target], len(send.parts)) for group in groups for send in step]
            crossed = [_crossed(tree, source, target) for source, target, _ in sends]
            self.add(sends, crossed)
            shapes = {(send[2], way) for send, way in zip(sends, ways(tree, sends, crossed), strict=True)}
            self.steps.append([(parts, segment(way, speeds)) for parts, way in sorted(shapes)])

    def seconds(self, part: int) -> float:
        links, message = self.tree.links, self.speeds.message_bytes
        return sum(max(passed.chunk_s(-(-parts * part // links), message) for parts, passed in step) for step in self.steps)


class TreeStage(Stage):
    """Two trees, each with half of the data; the first message goes up and down, the rest follows over the busiest wire."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        hop = [segment((1.0,) * 2 * level, speeds) for level in range(tree.levels)]
        self.fills: list[tuple[int, list[Segment]]] = []
        for which, trunk in enumerate(double_tree.trees_of(kind, self.members)):
            edges = [(group[child], group[trunk.parent[child]], 1) for group in groups for child in trunk.order]
            back = [(parent, child, 1) for child, parent, _ in edges]
            for sends in (edges if kind != "broadcast" else [], back if kind != "reduce" else []):
                self.add(sends, [_crossed(tree, source, target) for source, target, _ in sends], which=which)
            seen: set[tuple[int, ...]] = set()
            for group in groups:
                passed: dict[int, tuple[int, ...]] = {trunk.top: ()}
                for child in trunk.order:
                    parent = trunk.parent[child]
                    passed[child] = tuple(sorted((*passed[parent], tree.meets(group[child], group[parent]))))
                seen.update(passed.values())
            self.fills += [(which, [hop[level] for level in way]) for way in sorted(seen)]

    def sizes(self, part: int) -> Weights:
        first, second = double_tree.halves(part)
        return first * self.members, second * self.members

    def seconds(self, part: int) -> float:
        sizes, message = self.sizes(part), self.speeds.message_bytes
        there_and_back = 2 if self.kind == "all_reduce" else 1
        firsts = [min(message, -(-size // self.tree.links)) for size in sizes]
        fill = max(sum(passed.message_s(firsts[which]) for passed in way) for which, way in self.fills if sizes[which])
        busiest = max(self.carried(where, part) for where in self._distinct)
        return there_and_back * fill + max(0, busiest - message) / self.speeds.bytes_per_s

    @cached_property
    def _distinct(self) -> list[Where]:
        """One place for each different load."""
        return list({(tuple(counts), self.wires(where)): where for where, counts in self.load.items()}.values())


STAGE = {"ring": RingStage, "halving_doubling": StepStage, "tree": TreeStage}


# ---- a collective: stages one after the other
@dataclass(slots=True)
class Collective:
    """Stages, and what one of them gets of the whole: all of it, or one part in `rows`."""

    stages: list[tuple[Stage, int]]
    arcs: list[tuple[tuple[Arc, ...], list[tuple[Stage, int, Where]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Arcs that carry the same are one flow."""
        loads: dict[Where, list[tuple[Stage, int, Where]]] = defaultdict(list)
        for stage, among in self.stages:
            for where in stage.load:
                loads[where].append((stage, among, where))
        groups: dict[object, list[Where]] = defaultdict(list)
        for where, carried in loads.items():
            alike = tuple((id(stage), among, *stage.load[at], stage.wires(at)) for stage, among, at in carried)
            groups[alike].append(where)
        tree = self.stages[0][0].tree
        for wheres in groups.values():
            arcs = [
                arc
                for level, number, way in sorted(wheres)
                for arc in (tree.end_arcs(number, way) if level < 0 else tree.tree_arcs(level, number, way))
            ]
            self.arcs.append((tuple(arcs), loads[wheres[0]]))

    def seconds(self, size_bytes: int) -> float:
        return sum(stage.seconds(_part(size_bytes, among, stage)) for stage, among in self.stages)

    def timing(self, size_bytes: int) -> Timing:
        flows: list[Flow] = []
        for arcs, carried in self.arcs:
            count = sum(stage.carried(where, _part(size_bytes, among, stage)) for stage, among, where in carried)
            if count:
                flows.append((arcs, count))
        rate = self.stages[0][0].speeds.bytes_per_s
        return Timing.of(self.seconds(size_bytes), tuple(flows), max(count for _, count in flows) / rate)


def _part(size_bytes: int, among: int, stage: Stage) -> int:
    return part_bytes(-(-size_bytes // among), stage.members, 1)


class Recast:
    """All collectives of the planes; what does not depend on sizes is found once."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, rows: int | None = None) -> None:
        self.tree, self.speeds = tree, speeds
        self.row = tree.devices // (rows or _rows(tree.devices))
        self._stages: dict[tuple[object, ...], Stage] = {}
        self._found: dict[tuple[tuple[int, int], ...], Collective] = {}

    def timing(self, kind: str, size_bytes: int, algorithm: str) -> Timing:
        if kind not in STAGES:
            raise UnknownName("collective", kind, STAGES, where="planes")
        if algorithm not in get_args(Algorithm):
            raise UnknownName("recast", algorithm, get_args(Algorithm), where="planes")
        if self.tree.devices == 1 or not size_bytes:
            return NOTHING
        return self.collective(kind, self.fastest(kind, size_bytes, algorithm), size_bytes).timing(size_bytes)

    def inside(self, kind: str, size_bytes: int, row: int) -> Timing:
        """In every group of `row` neighbours at once, by the fastest way."""
        able = [name for name in FLAT if name == "ring" or kind in switched.ALGORITHMS[name]]
        found = (self._kept([(self.stage(kind, name, "inside", row), 1)]) for name in able)
        return min(found, key=lambda one: one.seconds(size_bytes)).timing(size_bytes)

    def between(self, kind: str, size_bytes: int, groups: Groups) -> Timing:
        """In all of these groups at once, by the fastest way."""
        able = [name for name in FLAT if kind != "all_to_all" and (name == "ring" or kind in switched.ALGORITHMS[name])]
        found = []
        for name in able or ["halving_doubling"]:
            key = (kind, name, groups)
            if key not in self._stages:
                self._stages[key] = STAGE[name](self.tree, self.speeds, kind, groups)
            found.append(self._kept([(self._stages[key], 1)]))
        return min(found, key=lambda one: one.seconds(size_bytes)).timing(size_bytes)

    def fastest(self, kind: str, size_bytes: int, algorithm: str = "auto") -> str:
        """The algorithm that `auto` stands for at this size; any other stands for itself."""
        if algorithm != "auto":
            return algorithm
        able = [name for name in (*FLAT, "torus", "hierarchical") if name != "tree" or kind in switched.ALGORITHMS["tree"]]
        return min(able, key=lambda name: self.collective(kind, name, size_bytes).seconds(size_bytes))

    def collective(self, kind: str, algorithm: str, size_bytes: int) -> Collective:
        if algorithm in FLAT:
            return self._kept([(self.stage(kind, algorithm, "all", self.tree.devices), 1)])
        row = self.row if algorithm == "torus" else self.tree.devices_per_node
        found: list[tuple[Stage, int]] = []
        for where, part in stages(kind):
            if (row if where == "inside" else self.tree.devices // row) == 1:
                continue
            among = row if where == "across" and kind not in STREAMS else 1
            if algorithm == "torus":
                found.append((self.stage(part, "ring", where, row), among))
            else:
                able = [self.stage(part, name, where, row) for name in FLAT if name == "ring" or part in switched.ALGORITHMS[name]]
                found.append((min(able, key=lambda stage: stage.seconds(_part(size_bytes, among, stage))), among))
        return self._kept(found)

    def stage(self, kind: str, algorithm: str, where: str, row: int) -> Stage:
        if algorithm != "ring" and kind not in switched.ALGORITHMS[algorithm]:
            raise NotModelled(f"{kind} by recast='{algorithm}' is not modelled: use 'ring', 'halving_doubling' or 'auto'")
        key = (kind, algorithm, where, row)
        if key not in self._stages:
            self._stages[key] = STAGE[algorithm](self.tree, self.speeds, kind, self._groups(kind, where, row))
        return self._stages[key]

    def _groups(self, kind: str, where: str, row: int) -> Groups:
        count = self.tree.devices
        if where == "across":  # one of each row talks for the others where there is a root
            return tuple(tuple(range(first, count, row)) for first in range(1 if kind in STREAMS else row))
        return tuple(tuple(range(first, first + row)) for first in range(0, count, row))

    def _kept(self, found: list[tuple[Stage, int]]) -> Collective:
        key = tuple((id(stage), among) for stage, among in found)
        if key not in self._found:
            self._found[key] = Collective(found)
        return self._found[key]


@lru_cache(maxsize=64)
def recast_of(tree: SwitchTree, speeds: Speeds, rows: int | None) -> Recast:
    """Found again for the same planes."""
    return Recast(tree, speeds, rows)


def _rows(devices: int) -> int:
    """Of the torus that is most nearly square.

    >>> _rows(1024), _rows(128), _rows(24)
    (32, 8, 4)
    """
    return next(rows for rows in range(math.isqrt(devices), 0, -1) if devices % rows == 0)
