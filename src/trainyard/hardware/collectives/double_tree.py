"""Collectives over two binary trees between devices that switches join.

P. Sanders, J. Speck, J. L. Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan. Parallel Computing 2009.
Each tree takes half of the data, and a device that is inside one is a leaf of the other, so that all wires work both ways. Messages
follow one another up (each device adds its children's to its own) and down without waiting for the rest.

The law. The first message takes the longest path up and down; then the rest passes the busiest wire. Compared with trees whose
streams take turns on every wire, that is too long by at most the first message's path, too short by at most two messages a level.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainyard.hardware.collectives.fabric import Fabric, Timing
from trainyard.hardware.collectives.ring_timing import Segment
from trainyard.hardware.collectives.switched import Groups, Key, flows_of, grouped, path_length
from trainyard.hardware.topology.graph import Arc


@dataclass(frozen=True, slots=True)
class Tree:
    """`order` lists every device but the top after its parent."""

    top: int
    order: tuple[int, ...]
    parent: dict[int, int]


def trees_of(kind: str, count: int, root: int = 0) -> tuple[Tree, Tree]:
    """Two trees over all devices; a root is the top of both.

    >>> first, second = trees_of("all_reduce", 6)
    >>> first.parent, second.parent
    ({1: 3, 0: 1, 2: 1, 5: 3, 4: 5}, {4: 2, 5: 4, 3: 4, 0: 2, 1: 0})
    """
    ranks = [rank for rank in range(count) if kind == "all_reduce" or rank != root]
    mirrored = ranks[::-1] if len(ranks) % 2 == 0 else ranks[1:] + ranks[:1]  # leaves have even positions, counted from 0
    above = None if kind == "all_reduce" else root
    return _tree(ranks, above), _tree(mirrored, above)


def _tree(ranks: Sequence[int], above: int | None) -> Tree:
    parent: dict[int, int] = {}

    def grow(start: int, end: int, over: int | None) -> None:
        """An in-order tree over positions start to end: a complete one on the left, the rest on the right."""
        if start < end:
            middle = start + (1 << ((end - start).bit_length() - 1)) - 1
            if over is not None:
                parent[ranks[middle]] = over
            grow(start, middle, ranks[middle])
            grow(middle + 1, end, ranks[middle])

    grow(0, len(ranks), above)
    top = above if above is not None else next(rank for rank in ranks if rank not in parent)
    return Tree(top, tuple(parent), parent)


Paths = tuple[tuple[Arc, ...], ...]
Wires = tuple[tuple[Key, Segment], ...]
"""The different paths of one edge of a tree."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Both trees over wires, by (tree, child): up (child to parent) and down; empty where a collective has no such phase.

    `routes` are, for each tree and direction, the different routes between its top and a device, as edges and how many of each.
    """

    trees: tuple[Tree, Tree]
    up: dict[tuple[int, int], Paths]
    down: dict[tuple[int, int], Paths]
    routes: tuple[tuple[tuple[tuple[tuple[Wires, int], ...], ...], ...], ...]
    groups: Groups


@lru_cache(maxsize=256)
def edges_of(fabric: Fabric, kind: str, root: int) -> Edges:
    """The edges of both trees; cached per fabric."""
    trees = trees_of(kind, len(fabric.devices), root)
    edges = [(number, child) for number, tree in enumerate(trees) for child in tree.order]
    rising = [(child, trees[number].parent[child]) for number, child in edges] if kind != "broadcast" else []
    falling = [(trees[number].parent[child], child) for number, child in edges] if kind != "reduce" else []
    paths = fabric.routes(rising + falling, "tree")
    up = dict(zip(edges, paths[: len(rising)], strict=True)) if rising else {}
    down = dict(zip(edges, paths[len(rising) :], strict=True)) if falling else {}
    load: dict[Arc, Counter[Key]] = defaultdict(Counter)
    for (number, _), parallel in (*up.items(), *down.items()):
        for lane, path in enumerate(parallel):
            for arc in path:
                load[arc][number, len(parallel), lane] += 1
    routes = tuple(tuple(_routes(fabric, tree, number, edge) for edge in (up, down)) for number, tree in enumerate(trees))
    return Edges(trees, up, down, routes, grouped(fabric, load))


def _routes(
    fabric: Fabric, tree: Tree, number: int, paths: dict[tuple[int, int], Paths]
) -> tuple[tuple[tuple[Wires, int], ...], ...]:
    segments: dict[object, Segment] = {}

    def wires(child: int) -> Wires:
        lanes = []
        for lane, path in enumerate(paths[number, child]):
            segment = fabric.segment(path)
            shared = segments.setdefault((segment.seconds_per_byte, segment.latency_s), segment)
            lanes.append(((number, len(paths[number, child]), lane), shared))
        return tuple(lanes)

    passed: dict[int, Counter[Wires]] = {tree.top: Counter()}
    for child in tree.order if paths else ():
        passed[child] = passed[tree.parent[child]] + Counter([wires(child)])
    return tuple({frozenset(route.items()): tuple(route.items()) for route in passed.values()}.values())


def halves(elements: int) -> tuple[int, int]:
    """Elements of each tree."""
    return elements - elements // 2, elements // 2


def by_tree(fabric: Fabric, kind: str, part: int, message: int, element: int, root: int) -> Timing:
    """The time with both trees at once, each with half of every part."""
    edges = edges_of(fabric, kind, root)
    sizes = [half * len(fabric.devices) for half in halves(part // element)]

    def size(key: Key) -> int:
        number, paths, lane = key
        return path_length(sizes[number], paths, lane) * element

    def first_s(wires: Wires) -> float:
        return max(segment.message_s(min(message, size(key))) if size(key) else 0.0 for key, segment in wires)

    fill_s = 0.0
    for directions in edges.routes:
        deepest = [
            max(sum(times * first_s(wires) for wires, times in route) for route in routes_of_direction)
            for routes_of_direction in directions
        ]
        fill_s = max(fill_s, sum(deepest))
    flows, moving_s, rest_s = flows_of(edges.groups, size, message)
    return Timing.of(fill_s + rest_s, flows, moving_s)
