"""Collectives on planes of switches, by a logical topology: ring, torus, hierarchy, halving and doubling, or trees.

A plane connects any device to any other, so that software chooses the logical topology (Fig. 15 of MC-DLA). The timing rules are
those of `hardware.collectives.ring_timing` and `hardware.collectives.switched`, applied to trees of switches instead of single
wires, so that a thousand devices need no path search. A send uses all wires of its device. Above the leaf switches, traffic out of
a tree of switches is spread evenly over its uplinks (adaptive routing; a folded Clos network without oversubscription carries every
permutation of its ends: C. Clos, BSTJ 1953); where there are too few uplinks, a send gets its share of them.

`torus` has rows and columns, both rings: reduce-scatter along the rows, all-reduce along the columns, all-gather along the rows.
`hierarchical` is the same with system nodes as rows and the fastest algorithm for each stage. `auto` is the fastest of all.
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
"""Devices of each group; the groups communicate at the same time."""
WireGroup = tuple[int, int, int]
"""Wires out of (0) or into (1) a tree of switches: (level, tree, direction); level -1 are the wires of device number `tree`."""
Weights = tuple[int, int]
"""Counts of two message sizes; only trees use the second."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bandwidth and latencies of the planes' wires, and the message size."""

    bytes_per_s: float
    latency_s: float
    hop_latency_s: float
    message_bytes: int


Send = tuple[int, int, int]
"""(source, target, parts)"""


def _path(tree: SwitchTree, source: int, target: int) -> list[WireGroup]:
    """The path between switches: up from the source's leaf, down to the target's."""
    level = tree.meets(source, target)
    up = [(below, tree.tree_of(source, below), 0) for below in range(level)]
    return up + [(below, tree.tree_of(target, below), 1) for below in reversed(range(level))]


def slowdowns(tree: SwitchTree, sends: Sequence[Send], paths: Sequence[Sequence[WireGroup]]) -> list[tuple[float, ...]]:
    """For simultaneous sends: the slowdown of each wire group on a send's path, relative to the device's own wires.

    A send gets its share of the uplinks in proportion to its part of the traffic.
    """
    load: dict[WireGroup, int] = defaultdict(int)
    for (_, _, parts), path in zip(sends, paths, strict=True):
        for where in path:
            load[where] += parts
    share = {where: parts * tree.wires / tree.wires_up(where[0]) for where, parts in load.items()}
    return [tuple(max(1.0, share[where] / parts) for where in path) for (_, _, parts), path in zip(sends, paths, strict=True)]


def segment(slow: tuple[float, ...], speeds: Speeds) -> Segment:
    """The path from a device to another; `slow` are the slowdowns of the wires between switches."""
    factors = (1.0, *slow, 1.0)
    return Segment(
        arcs=tuple((wire, 0) for wire in range(len(factors))),
        seconds_per_byte=tuple(factor / speeds.bytes_per_s for factor in factors),
        latency_s=2 * speeds.latency_s + len(slow) * speeds.hop_latency_s,
    )


# ---- one stage: the same collective in all groups
class Stage:
    """A collective inside every group, by one algorithm; `equal_sends` if every send has one of the two message sizes."""

    equal_sends = True

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        self.tree, self.speeds, self.kind, self.groups = tree, speeds, kind, groups
        self.members = len(groups[0])
        self.load: dict[WireGroup, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, sends: Iterable[Send], paths: Iterable[Sequence[WireGroup]], times: int = 1, which: int = 0) -> None:
        """Adds `times` the parts of each send to the load of the wires on its path."""
        for (source, target, parts), path in zip(sends, paths, strict=True):
            self.load[-1, source, 0][which] += times * parts
            self.load[-1, target, 1][which] += times * parts
            for where in path:
                self.load[where][which] += times * parts

    def sizes(self, part: int) -> Weights:
        """Bytes of the two message sizes that `load` counts."""
        return part, 0

    def seconds(self, part: int) -> float:
        """Duration; `part` is the bytes of each member of a group."""
        raise NotImplementedError

    def wires(self, where: WireGroup) -> int:
        return self.tree.links if where[0] < 0 else self.tree.planes * self.tree.wires_up(where[0])

    def carried(self, where: WireGroup, part: int) -> int:
        """Bytes over each wire; a device divides every send of a ring or a tree among its wires, in whole bytes."""
        wires, counts = self.wires(where), self.load.get(where, (0, 0))
        if where[0] < 0 and self.equal_sends:
            return sum(count * -(-size // wires) for count, size in zip(counts, self.sizes(part), strict=True))
        return -(-sum(count * size for count, size in zip(counts, self.sizes(part), strict=True)) // wires)


class RingStage(Stage):
    """One ring per link of a device."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        count = self.members
        sends = [(group[number], group[(number + 1) % count], 1) for group in groups for number in range(count)]
        paths = [_path(tree, source, target) for source, target, _ in sends]
        idle = {"broadcast": count - 1, "reduce": 0}.get(kind, count)  # into the root, out of it
        used = [number for number in range(len(sends)) if number % count != idle]
        self.add([sends[number] for number in used], [paths[number] for number in used], arc_rounds(kind, count))
        slow = slowdowns(tree, sends, paths)
        distinct_rings = {tuple(slow[first : first + count]) for first in range(0, len(slow), count)}
        segments = {factors: segment(factors, speeds) for factors in set(slow)}
        self.lanes = [Lane(range(count), [segments[factors] for factors in ring]) for ring in sorted(distinct_rings)]

    def seconds(self, part: int) -> float:
        chunk = -(-part // self.tree.links)
        message = self.speeds.message_bytes
        return max(lane.time_s(self.kind, chunk, message, pipelined=False, root=0) for lane in self.lanes)


class StepStage(Stage):
    """Recursive halving and doubling; the number of parts of a send differs from step to step."""

    equal_sends = False

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        self.steps: list[list[tuple[int, Segment]]] = []
        for step in switched.steps_of(kind, self.members):
            sends = [(group[send.source], group[send.target], len(send.parts)) for group in groups for send in step]
            paths = [_path(tree, source, target) for source, target, _ in sends]
            self.add(sends, paths)
            shapes = {(send[2], slow) for send, slow in zip(sends, slowdowns(tree, sends, paths), strict=True)}
            self.steps.append([(parts, segment(slow, speeds)) for parts, slow in sorted(shapes)])

    def seconds(self, part: int) -> float:
        links, message = self.tree.links, self.speeds.message_bytes
        return sum(max(path.chunk_s(-(-parts * part // links), message) for parts, path in step) for step in self.steps)


class TreeStage(Stage):
    """Two trees, each with half of the data; the first message goes up and down, the rest is bound by the busiest wire."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, kind: str, groups: Groups) -> None:
        super().__init__(tree, speeds, kind, groups)
        hop = [segment((1.0,) * 2 * level, speeds) for level in range(tree.levels)]
        self.fills: list[tuple[int, list[Segment]]] = []
        for which, trunk in enumerate(double_tree.trees_of(kind, self.members)):
            edges = [(group[child], group[trunk.parent[child]], 1) for group in groups for child in trunk.order]
            back = [(parent, child, 1) for child, parent, _ in edges]
            for sends in (edges if kind != "broadcast" else [], back if kind != "reduce" else []):
                self.add(sends, [_path(tree, source, target) for source, target, _ in sends], which=which)
            distinct: set[tuple[int, ...]] = set()
            for group in groups:
                levels: dict[int, tuple[int, ...]] = {trunk.top: ()}  # of the hops from the top to a member
                for child in trunk.order:
                    parent = trunk.parent[child]
                    levels[child] = tuple(sorted((*levels[parent], tree.meets(group[child], group[parent]))))
                distinct.update(levels.values())
            self.fills += [(which, [hop[level] for level in path]) for path in sorted(distinct)]

    def sizes(self, part: int) -> Weights:
        first, second = double_tree.halves(part)
        return first * self.members, second * self.members

    def seconds(self, part: int) -> float:
        sizes, message = self.sizes(part), self.speeds.message_bytes
        there_and_back = 2 if self.kind == "all_reduce" else 1
        firsts = [min(message, -(-size // self.tree.links)) for size in sizes]
        fill = max(sum(hop.message_s(firsts[which]) for hop in path) for which, path in self.fills if sizes[which])
        busiest = max(self.carried(where, part) for where in self._distinct)
        return there_and_back * fill + max(0, busiest - message) / self.speeds.bytes_per_s

    @cached_property
    def _distinct(self) -> list[WireGroup]:
        """One wire group for each distinct load."""
        return list({(tuple(counts), self.wires(where)): where for where, counts in self.load.items()}.values())


STAGE = {"ring": RingStage, "halving_doubling": StepStage, "tree": TreeStage}


# ---- a collective: stages one after the other
@dataclass(slots=True)
class Collective:
    """Stages, each with the number of equal parts into which the data is divided for it."""

    stages: list[tuple[Stage, int]]
    arcs: list[tuple[tuple[Arc, ...], list[tuple[Stage, int, WireGroup]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Arcs with the same load become one flow."""
        loads: dict[WireGroup, list[tuple[Stage, int, WireGroup]]] = defaultdict(list)
        for stage, divisor in self.stages:
            for where in stage.load:
                loads[where].append((stage, divisor, where))
        groups: dict[object, list[WireGroup]] = defaultdict(list)
        for where, carried in loads.items():
            loads_of_stages = tuple((id(stage), divisor, *stage.load[at], stage.wires(at)) for stage, divisor, at in carried)
            groups[loads_of_stages].append(where)
        tree = self.stages[0][0].tree
        for wheres in groups.values():
            arcs = [
                arc
                for level, number, direction in sorted(wheres)
                for arc in (tree.end_arcs(number, direction) if level < 0 else tree.tree_arcs(level, number, direction))
            ]
            self.arcs.append((tuple(arcs), loads[wheres[0]]))

    def seconds(self, size_bytes: int) -> float:
        return sum(stage.seconds(_part(size_bytes, divisor, stage)) for stage, divisor in self.stages)

    def timing(self, size_bytes: int) -> Timing:
        flows: list[Flow] = []
        for arcs, carried in self.arcs:
            count = sum(stage.carried(where, _part(size_bytes, divisor, stage)) for stage, divisor, where in carried)
            if count:
                flows.append((arcs, count))
        rate = self.stages[0][0].speeds.bytes_per_s
        return Timing.of(self.seconds(size_bytes), tuple(flows), max(count for _, count in flows) / rate)


def _part(size_bytes: int, divisor: int, stage: Stage) -> int:
    return part_bytes(-(-size_bytes // divisor), stage.members, 1)


class SwitchedCollectives:
    """All collectives of the planes; what does not depend on sizes is computed once."""

    def __init__(self, tree: SwitchTree, speeds: Speeds, rows: int | None = None) -> None:
        self.tree, self.speeds = tree, speeds
        self.row = tree.devices // (rows or _rows(tree.devices))
        self._stages: dict[tuple[object, ...], Stage] = {}
        self._collectives: dict[tuple[tuple[int, int], ...], Collective] = {}

    def timing(self, kind: str, size_bytes: int, algorithm: str) -> Timing:
        if kind not in STAGES:
            raise UnknownName("collective", kind, STAGES, where="planes")
        if algorithm not in get_args(Algorithm):
            raise UnknownName("recast", algorithm, get_args(Algorithm), where="planes")
        if self.tree.devices == 1 or not size_bytes:
            return NOTHING
        if kind == "all_to_all":
            return self.between(kind, size_bytes, (tuple(range(self.tree.devices)),))
        return self.collective(kind, self.fastest(kind, size_bytes, algorithm), size_bytes).timing(size_bytes)

    def inside(self, kind: str, size_bytes: int, row: int) -> Timing:
        """In every group of `row` neighbours at the same time, by the fastest algorithm."""
        names = [name for name in FLAT if name == "ring" or kind in switched.ALGORITHMS[name]]
        candidates = [self._cached([(self.stage(kind, name, "inside", row), 1)]) for name in names]
        return _fastest(candidates, size_bytes).timing(size_bytes)

    def between(self, kind: str, size_bytes: int, groups: Groups) -> Timing:
        """In all of these groups at the same time, by the fastest algorithm."""
        names = [name for name in FLAT if kind != "all_to_all" and (name == "ring" or kind in switched.ALGORITHMS[name])]
        candidates = []
        for name in names or ["halving_doubling"]:
            key = (kind, name, groups)
            if key not in self._stages:
                self._stages[key] = STAGE[name](self.tree, self.speeds, kind, groups)
            candidates.append(self._cached([(self._stages[key], 1)]))
        return _fastest(candidates, size_bytes).timing(size_bytes)

    def fastest(self, kind: str, size_bytes: int, algorithm: str = "auto") -> str:
        """The algorithm that `auto` selects at this size; any other is returned as it is."""
        if algorithm != "auto":
            return algorithm
        names = [name for name in (*FLAT, "torus", "hierarchical") if name != "tree" or kind in switched.ALGORITHMS["tree"]]
        return min(names, key=lambda name: self.collective(kind, name, size_bytes).seconds(size_bytes))

    def collective(self, kind: str, algorithm: str, size_bytes: int) -> Collective:
        if algorithm in FLAT:
            return self._cached([(self.stage(kind, algorithm, "all", self.tree.devices), 1)])
        row = self.row if algorithm == "torus" else self.tree.devices_per_node
        divided: list[tuple[Stage, int]] = []
        for where, part in stages(kind):
            if (row if where == "inside" else self.tree.devices // row) == 1:
                continue
            divisor = row if where == "across" and kind not in STREAMS else 1
            if algorithm == "torus":
                divided.append((self.stage(part, "ring", where, row), divisor))
            else:
                names = [name for name in FLAT if name == "ring" or part in switched.ALGORITHMS[name]]
                candidates = [self.stage(part, name, where, row) for name in names]
                divided.append((min(candidates, key=lambda stage: stage.seconds(_part(size_bytes, divisor, stage))), divisor))
        return self._cached(divided)

    def stage(self, kind: str, algorithm: str, where: str, row: int) -> Stage:
        if algorithm != "ring" and kind not in switched.ALGORITHMS[algorithm]:
            raise NotModelled(f"{kind} by recast='{algorithm}' is not modelled: use 'ring', 'halving_doubling' or 'auto'")
        key = (kind, algorithm, where, row)
        if key not in self._stages:
            self._stages[key] = STAGE[algorithm](self.tree, self.speeds, kind, self._groups(kind, where, row))
        return self._stages[key]

    def _groups(self, kind: str, where: str, row: int) -> Groups:
        count = self.tree.devices
        if where == "across":  # with a root, one device of each row communicates for the others
            return tuple(tuple(range(first, count, row)) for first in range(1 if kind in STREAMS else row))
        return tuple(tuple(range(first, first + row)) for first in range(0, count, row))

    def _cached(self, divided: list[tuple[Stage, int]]) -> Collective:
        key = tuple((id(stage), divisor) for stage, divisor in divided)
        if key not in self._collectives:
            self._collectives[key] = Collective(divided)
        return self._collectives[key]


def _fastest(candidates: Sequence[Collective], size_bytes: int) -> Collective:
    return min(candidates, key=lambda candidate: candidate.seconds(size_bytes))


@lru_cache(maxsize=64)
def switched_collectives(tree: SwitchTree, speeds: Speeds, rows: int | None) -> SwitchedCollectives:
    """One object for equal planes, so that machines share it."""
    return SwitchedCollectives(tree, speeds, rows)


def _rows(devices: int) -> int:
    """Rows of the torus that is closest to a square.

    >>> _rows(1024), _rows(128), _rows(24)
    (32, 8, 4)
    """
    return next(rows for rows in range(math.isqrt(devices), 0, -1) if devices % rows == 0)
