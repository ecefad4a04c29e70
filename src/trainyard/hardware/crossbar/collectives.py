"""Exchanges of a crossbar hierarchy as messages and sums.

An exchange is a *pattern* of flows and sums that every piece of the data goes through: message k of a sum leaves when message k
of all contributors has arrived and been summed, so pieces follow each other as in a pipeline. Messages are numbered piece by
piece.

A group is summed by its AGAU, which is attached to the lowest switch that has the whole group below it; without AGAUs by the
group's first unit. Above the groups, every switch with more than one group below it adds one sum: at the AGAU of the first group,
or (`reducer="switch"`) at an AGAU of the switch's own. Results go down in one multicast.
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
    """A reducer that adds `bytes_per_s` of incoming data, after a latency: a unit that sums in software, or an AGAU in two numbers.

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
    """One message of each piece: the result of sum `after` (None: the source's own data) to one endpoint or several."""

    source: int
    destinations: tuple[int, ...]
    phase: int
    feeds: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A sum of incoming flows, after the reducer's own contribution: an earlier sum (`own`), its data (`brings`), or nothing."""

    reducer: int
    flows: tuple[int, ...]
    own: int | None = None
    brings: bool = False

    @property
    def contributions(self) -> int:
        return len(self.flows) + (self.own is not None) + self.brings


@dataclass(slots=True)
class Pattern:
    """Flows and sums of one piece; a sum comes after all that it needs."""

    tree: Tree
    flows: list[Flow] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)

    def send(self, source: int, destinations: Sequence[int], phase: int, **links: int | None) -> int:
        self.flows.append(Flow(source=source, destinations=tuple(destinations), phase=phase, **links))
        return len(self.flows) - 1

    def traffic(self, pieces: Sequence[int], summer: Summer | None) -> Traffic:
        """The messages of all pieces, which are all ready at the start."""
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
        goes_on = {entry.own: number for number, entry in enumerate(sums) if entry.own is not None}
        wave = np.arange(count)[:, None]

        def number(of: Sequence[int | None], many: int) -> np.ndarray:
            row = np.array([-1 if entry is None else entry for entry in of], np.int64)
            return np.where(row >= 0, row + wave * many, -1).reshape(-1)

        def repeat(row: Sequence[int]) -> np.ndarray:
            return np.tile(np.array(row, np.int64), count)

        table = np.zeros((count * len(sums), 5), np.int64)
        if sums:
            table[:, 0] = repeat([entry.reducer for entry in sums])
            for size in set(pieces):
                cost = [sum_ps(summer, entry.contributions, size) for entry in sums]
                table.reshape(count, -1, 5)[np.array(pieces) == size, :, 1] = cost
            table[:, 2] = repeat([len(entry.flows) + (entry.own is not None) for entry in sums])
            table[:, 3] = number([follows.get(entry) for entry in range(len(sums))], len(flows))
            table[:, 4] = number([goes_on.get(entry) for entry in range(len(sums))], len(sums))
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
    """The number of groups of that size; an error where it does not divide the units."""
    require_positive("Crossbar", group=group)
    if crossbar.units % group:
        near = [size for size in range(1, crossbar.units + 1) if crossbar.units % size == 0]
        close = sorted(sorted(near, key=lambda size: abs(math.log(size / group)))[:2])
        raise BadInput(
            f"Crossbar: groups of {group} do not divide {crossbar.units} units: write {' or '.join(str(size) for size in close)}"
        )
    return crossbar.units // group


def lowest_common_switch(crossbar: Crossbar, first: int, last: int) -> tuple[int, int]:
    """The lowest switch, as (level, number), that has all units from first to last below it."""
    for level in range(crossbar.depth):
        first, last = first // crossbar.levels[level].fan_in, last // crossbar.levels[level].fan_in
        if first == last:
            return level, first
    raise AssertionError("the top joins all units")


def agau_switches(crossbar: Crossbar, group: int) -> tuple[tuple[int, int], ...]:
    """The switch that each group's AGAU is attached to."""
    return tuple(lowest_common_switch(crossbar, start, start + group - 1) for start in range(0, crossbar.units, group))


def groups_are_disjoint(crossbar: Crossbar, group: int) -> bool:
    """Whether groups share no links and have equal shapes: each is whole subtrees of one switch, and switches have whole groups."""
    below = 1
    for level in crossbar.levels[: crossbar.depth]:
        if group <= below * level.fan_in:
            return group % below == 0 and (below * level.fan_in) % group == 0
        below *= level.fan_in
    return False


@lru_cache(maxsize=16)
def local(crossbar: Crossbar, group: int, agaus: bool, back: bool = True) -> Pattern:
    """Members send to their AGAU or first unit, and the sum goes back to them, or stays there."""
    groups = require_group(crossbar, group)
    pattern = Pattern(crossbar.tree(agau_switches(crossbar, group) if agaus else ()))
    if group == 1:
        return pattern
    for number in range(groups):
        members = range(number * group, (number + 1) * group)
        reducer = crossbar.units + number if agaus else members[0]
        flows = tuple(pattern.send(unit, [reducer], 0, feeds=number) for unit in members if unit != reducer)
        pattern.sums.append(Sum(reducer=reducer, flows=flows, brings=not agaus))
    for number in range(groups if back else 0):
        reducer = pattern.sums[number].reducer
        pattern.send(reducer, [u for u in range(number * group, (number + 1) * group) if u != reducer], 1, after=number)
    return pattern


@lru_cache(maxsize=16)
def all_reduce(crossbar: Crossbar, group: int, agaus: bool, members: bool) -> Pattern:
    """The data of all groups' AGAUs (or first units) is summed switch by switch, and the result goes to all of them."""
    groups = require_group(crossbar, group)
    own_switch = agaus and crossbar.reducer == "switch"
    at = agau_switches(crossbar, group)
    switches = _switches_with_groups(crossbar, at)
    extra = tuple(switch for switch, below in switches if len(below) > 1) if own_switch else ()
    pattern = Pattern(crossbar.tree((at + extra) if agaus else ()))
    ends = [crossbar.units + number if agaus else number * group for number in range(groups)]
    holders: dict[tuple[int, int] | int, tuple[int, int | None]] = {number: (end, None) for number, end in enumerate(ends)}
    root = holders[0]
    for switch, below in switches:
        first, *others = [holders[node] for node in below]
        root = _sum_at(pattern, switch, first, others, extra, crossbar.units + groups) if others else first
        holders[switch] = root
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
    """Adds the sum of one switch; returns the endpoint that has it, and its number."""
    number = len(pattern.sums)
    reducer = base + extra.index(switch) if switch in extra else first[0]
    senders = others if reducer == first[0] else [first, *others]
    flows = tuple(pattern.send(end, [reducer], switch[0], feeds=number, after=after) for end, after in senders)
    own = first[1] if reducer == first[0] else None
    pattern.sums.append(Sum(reducer=reducer, flows=flows, own=own, brings=reducer == first[0] and own is None))
    return reducer, number


def _switches_with_groups(
    crossbar: Crossbar, at: Sequence[tuple[int, int]]
) -> list[tuple[tuple[int, int], list[tuple[int, int] | int]]]:
    """Switches from the bottom to the top, each with its groups and the switches below it that have groups, by first group."""
    firsts: dict[tuple[int, int], int] = {}
    switches: list[tuple[tuple[int, int], list[tuple[int, int] | int]]] = []
    for level in range(crossbar.depth):
        below: dict[int, list[tuple[int, tuple[int, int] | int]]] = {}
        for number, switch in enumerate(at):
            if switch[0] == level:
                below.setdefault(switch[1], []).append((number, number))
        for (under, number_of), first in firsts.items():
            if under == level - 1:
                below.setdefault(number_of // crossbar.levels[level].fan_in, []).append((first, (under, number_of)))
        for number_of in sorted(below):
            ordered = sorted(below[number_of], key=lambda item: item[0])
            firsts[level, number_of] = ordered[0][0]
            switches.append(((level, number_of), [item for _, item in ordered]))
    return switches


@lru_cache(maxsize=16)
def neighbours(crossbar: Crossbar, group: int, agaus: bool) -> Pattern:
    """Every group sends its data to the group before and the one after it, in one multicast."""
    groups = require_group(crossbar, group)
    pattern = Pattern(crossbar.tree(agau_switches(crossbar, group) if agaus else ()))
    ends = [crossbar.units + number if agaus else number * group for number in range(groups)]
    for number in range(groups):
        near = sorted({(number - 1) % groups, (number + 1) % groups} - {number})
        if near:
            pattern.send(ends[number], [ends[other] for other in near], 0)
    return pattern


@lru_cache(maxsize=16)
def broadcast(crossbar: Crossbar, source: int) -> Pattern:
    """One unit sends its data to all others."""
    pattern = Pattern(crossbar.tree())
    if crossbar.units > 1:
        pattern.send(source, [unit for unit in range(crossbar.units) if unit != source], 0)
    return pattern


def send(crossbar: Crossbar, source: int, destination: int) -> Pattern:
    """One unit sends data to another; to itself it costs nothing."""
    pattern = Pattern(crossbar.tree())
    if source != destination:
        pattern.send(source, [destination], 0)
    return pattern


def require_unit(crossbar: Crossbar, **units: int) -> None:
    for name, unit in units.items():
        if isinstance(unit, bool) or not isinstance(unit, int) or not 0 <= unit < crossbar.units:
            raise BadInput(f"Crossbar: {name} must be a unit from 0 to {crossbar.units - 1}, got {unit!r}")
