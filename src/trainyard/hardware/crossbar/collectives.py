"""Exchanges of a crossbar hierarchy as messages and sums.

An exchange is a *pattern* of flows and sums that every piece of the data goes through: message k of a sum leaves when message k
of all that contribute has come and been summed, so pieces follow each other as in a pipeline. Messages are numbered piece by
piece.

A group's sums are done by its AGAU, which hangs on the lowest switch that has the whole group below it; without AGAUs by the
group's first unit. Above the groups, every switch with more than one group below it adds one sum: at the AGAU of the first of
them, or (`reducer="switch"`) at one of the switch's own. Results go down in one multicast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput
from trainyard.hardware.crossbar.hierarchy import ELEMENT_BYTES, Crossbar, Summer
from trainyard.hardware.crossbar.messages import Traffic, Tree, in_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Adder:
    """Who adds `bytes_per_s` of incoming data, after a latency; a unit that sums in software, or an AGAU in two numbers.

    >>> Adder(bytes_per_s=100.0).seconds(3, 50)  # two additions of 200 bytes
    4.0
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        require_quantity("Adder", bytes_per_s=self.bytes_per_s)
        require_quantity("Adder", zero=True, latency_s=self.latency_s)

    def seconds(self, contributions: int, elements: int) -> float:
        return self.latency_s + (contributions - 1) * elements * ELEMENT_BYTES / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One message of each piece: what `after` gave (a sum, or None: what the source brought) to one endpoint or several."""

    source: int
    destinations: tuple[int, ...]
    phase: int
    feeds: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What comes in flows, after what the reducer has itself: an earlier sum (`own`), what it brought (`brings`), or nothing."""

    reducer: int
    flows: tuple[int, ...]
    own: int | None = None
    brings: bool = False

    @property
    def contributions(self) -> int:
        return len(self.flows) + (self.own is not None) + self.brings


@dataclass(slots=True)
class Pattern:
    """Flows and sums of one piece; sums stand after all they need."""

    tree: Tree
    flows: list[Flow] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)

    def send(self, source: int, destinations: Sequence[int], phase: int, **told: int | None) -> int:
        self.flows.append(Flow(source=source, destinations=tuple(destinations), phase=phase, **told))
        return len(self.flows) - 1

    def traffic(self, pieces: Sequence[int], summer: Summer | None) -> Traffic:
        """Every piece through the pattern, all there from the start."""
        count, flows, sums = len(pieces), self.flows, self.sums
        entries: list[tuple[int, int, int]] = []
        destinations = []
        for flow in flows:
            if len(flow.destinations) == 1:
                destinations.append(flow.destinations[0])
            else:
                destinations.append(~len(entries))
                entries += self.tree.multicast(flow.source, flow.destinations, len(entries))
        follows = {flow.after: number for number, flow in enumerate(flows) if flow.after is not None}
        goes_on = {each.own: number for number, each in enumerate(sums) if each.own is not None}
        wave = np.arange(count)[:, None]

        def number(of: Sequence[int | None], many: int) -> np.ndarray:
            row = np.array([-1 if each is None else each for each in of], np.int64)
            return np.where(row >= 0, row + wave * many, -1).reshape(-1)

        def repeat(row: Sequence[int]) -> np.ndarray:
            return np.tile(np.array(row, np.int64), count)

        table = np.zeros((count * len(sums), 5), np.int64)
        if sums:
            table[:, 0] = repeat([each.reducer for each in sums])
            for size in set(pieces):
                cost = [sum_ps(summer, each.contributions, size) for each in sums]
                table.reshape(count, -1, 5)[np.array(pieces) == size, :, 1] = cost
            table[:, 2] = repeat([len(each.flows) + (each.own is not None) for each in sums])
            table[:, 3] = number([follows.get(each) for each in range(len(sums))], len(flows))
            table[:, 4] = number([goes_on.get(each) for each in range(len(sums))], len(sums))
        return Traffic(
            sizes_bytes=np.repeat(np.array(pieces, np.int64), len(flows)),
            sources=repeat([flow.source for flow in flows]),
            destinations=repeat(destinations),
            feeds=number([flow.feeds for flow in flows], len(sums)),
            priorities=repeat([flow.phase for flow in flows]),
            ready_ps=repeat([0 if flow.after is None else -1 for flow in flows]),
            sums=table,
            entries=np.array(entries, np.int64).reshape(-1, 3),
        )


def sum_ps(summer: Summer | None, contributions: int, size_bytes: int) -> int:
    assert summer is not None
    return in_ps(summer.seconds(contributions, -(-size_bytes // ELEMENT_BYTES)))


def summer_of(agau: Summer | None, sum_bytes_per_s: float | None) -> Summer:
    if agau is not None:
        return agau
    if sum_bytes_per_s is None:
        raise BadInput(
            "Crossbar: without an agau the first unit of each group sums: give sum_bytes_per_s, what it adds in a second"
        )
    return Adder(bytes_per_s=sum_bytes_per_s)


def require_group(crossbar: Crossbar, group: int) -> int:
    """Groups of that size, without rest."""
    require_positive("Crossbar", group=group)
    if crossbar.units % group:
        near = [size for size in range(1, crossbar.units + 1) if crossbar.units % size == 0]
        close = sorted(sorted(near, key=lambda size: abs(math.log(size / group)))[:2])
        raise BadInput(
            f"Crossbar: groups of {group} do not divide {crossbar.units} units: write {' or '.join(str(size) for size in close)}"
        )
    return crossbar.units // group


def meeting(crossbar: Crossbar, first: int, last: int) -> tuple[int, int]:
    """The lowest switch, as (level, number), that has all units from first to last below it."""
    for level in range(crossbar.depth):
        first, last = first // crossbar.levels[level].fan_in, last // crossbar.levels[level].fan_in
        if first == last:
            return level, first
    raise AssertionError("the top joins all units")


def homes(crossbar: Crossbar, group: int) -> tuple[tuple[int, int], ...]:
    """The switch that each group's AGAU hangs on."""
    return tuple(meeting(crossbar, start, start + group - 1) for start in range(0, crossbar.units, group))


def nested(crossbar: Crossbar, group: int) -> bool:
    """Groups share no links and look the same: each is made of whole nodes below one switch, and switches of whole groups."""
    below = 1
    for level in crossbar.levels[: crossbar.depth]:
        if group <= below * level.fan_in:
            return group % below == 0 and (below * level.fan_in) % group == 0
        below *= level.fan_in
    return False


@lru_cache(maxsize=16)
def local(crossbar: Crossbar, group: int, agaus: bool, back: bool = True) -> Pattern:
    """Members to their AGAU or first unit, the sum back to them, or left there."""
    groups = require_group(crossbar, group)
    pattern = Pattern(crossbar.tree(homes(crossbar, group) if agaus else ()))
    if group == 1:
        return pattern
    for number in range(groups):
        members = range(number * group, (number + 1) * group)
        reducer = crossbar.units + number if agaus else members[0]
        told = tuple(pattern.send(unit, [reducer], 0, feeds=number) for unit in members if unit != reducer)
        pattern.sums.append(Sum(reducer=reducer, flows=told, brings=not agaus))
    for number in range(groups if back else 0):
        reducer = pattern.sums[number].reducer
        pattern.send(reducer, [u for u in range(number * group, (number + 1) * group) if u != reducer], 1, after=number)
    return pattern


@lru_cache(maxsize=16)
def all_reduce(crossbar: Crossbar, group: int, agaus: bool, members: bool) -> Pattern:
    """What the groups' AGAUs (or first units) have, summed switch by switch, and the result to all of them."""
    groups = require_group(crossbar, group)
    own_switch = agaus and crossbar.reducer == "switch"
    at = homes(crossbar, group)
    joined = _joined(crossbar, at)
    extra = tuple(switch for switch, below in joined if len(below) > 1) if own_switch else ()
    pattern = Pattern(crossbar.tree((at + extra) if agaus else ()))
    ends = [crossbar.units + number if agaus else number * group for number in range(groups)]
    holds: dict[tuple[int, int] | int, tuple[int, int | None]] = {number: (end, None) for number, end in enumerate(ends)}
    root = holds[0]
    for switch, below in joined:
        first, *others = [holds[each] for each in below]
        root = _sum_at(pattern, switch, first, others, extra, crossbar.units + groups) if others else first
        holds[switch] = root
    reached = [end for end in ends if end != root[0]]
    if members:
        reached = [end for end in reached if end >= crossbar.units] + [u for u in range(crossbar.units) if u != root[0]]
    if reached and (groups > 1 or members):
        pattern.send(root[0], reached, crossbar.depth, after=root[1])
    return pattern


def _sum_at(
    pattern: Pattern,
    switch: tuple[int, int],
    first: tuple[int, int | None],
    others: list[tuple[int, int | None]],
    extra: tuple[tuple[int, int], ...],
    base: int,
) -> tuple[int, int]:
    """Adds the sum of one switch; who has it, and its number."""
    number = len(pattern.sums)
    reducer = base + extra.index(switch) if switch in extra else first[0]
    come = others if reducer == first[0] else [first, *others]
    flows = tuple(pattern.send(end, [reducer], switch[0], feeds=number, after=after) for end, after in come)
    own = first[1] if reducer == first[0] else None
    pattern.sums.append(Sum(reducer=reducer, flows=flows, own=own, brings=reducer == first[0] and own is None))
    return reducer, number


def _joined(crossbar: Crossbar, at: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], list[tuple[int, int] | int]]]:
    """Switches from below to the top, each with the groups on it and the switches below that have groups, by first group."""
    firsts: dict[tuple[int, int], int] = {}
    found: list[tuple[tuple[int, int], list[tuple[int, int] | int]]] = []
    for level in range(crossbar.depth):
        below: dict[int, list[tuple[int, tuple[int, int] | int]]] = {}
        for number, switch in enumerate(at):
            if switch[0] == level:
                below.setdefault(switch[1], []).append((number, number))
        for (under, place), first in firsts.items():
            if under == level - 1:
                below.setdefault(place // crossbar.levels[level].fan_in, []).append((first, (under, place)))
        for place in sorted(below):
            ordered = sorted(below[place], key=lambda each: each[0])
            firsts[level, place] = ordered[0][0]
            found.append(((level, place), [each for _, each in ordered]))
    return found


@lru_cache(maxsize=16)
def neighbours(crossbar: Crossbar, group: int, agaus: bool) -> Pattern:
    """Every group's data to the group before and the one after it, in one multicast."""
    groups = require_group(crossbar, group)
    pattern = Pattern(crossbar.tree(homes(crossbar, group) if agaus else ()))
    ends = [crossbar.units + number if agaus else number * group for number in range(groups)]
    for number in range(groups):
        near = sorted({(number - 1) % groups, (number + 1) % groups} - {number})
        if near:
            pattern.send(ends[number], [ends[other] for other in near], 0)
    return pattern


@lru_cache(maxsize=16)
def broadcast(crossbar: Crossbar, source: int) -> Pattern:
    """One unit's data to all others."""
    pattern = Pattern(crossbar.tree())
    if crossbar.units > 1:
        pattern.send(source, [unit for unit in range(crossbar.units) if unit != source], 0)
    return pattern


def send(crossbar: Crossbar, source: int, destination: int) -> Pattern:
    """One unit's data to another; to itself it costs nothing."""
    pattern = Pattern(crossbar.tree())
    if source != destination:
        pattern.send(source, [destination], 0)
    return pattern


def require_unit(crossbar: Crossbar, **units: int) -> None:
    for name, unit in units.items():
        if isinstance(unit, bool) or not isinstance(unit, int) or not 0 <= unit < crossbar.units:
            raise BadInput(f"Crossbar: {name} must be a unit from 0 to {crossbar.units - 1}, got {unit!r}")
