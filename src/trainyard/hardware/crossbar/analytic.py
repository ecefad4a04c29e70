"""Exchanges of a crossbar hierarchy in closed form: Eq. 2 of DIRECT for pipelines of messages.

    T = T_1 + (K - 1) W

K pieces follow each other; T_1 is the way of the first piece through the pattern, W the time of a piece at the busiest link or
reducer (M / B where B is what all who share it leave). For one message on an idle way T_1 is Eq. 2: latencies plus size over the
narrowest port (cut-through) or over every port (store-and-forward).

On its way a piece meets the others of the same phase. With n of them on a link of service time s, the first there at f, and the
last leaving the link before it at [H, C] (its first and its last byte), latency l:

    H' = max(H + l, f + (n - 1) s),   C' = max(H' + s, C + l)      cut-through, f' = f + l
    H' = max(C + l, f + (n - 1) s),   C' = H' + s                   store-and-forward, f' = f + l + s

A buffer of b messages lets one in every (l + the time until its link on has sent it) / b; where that is more than s, it stands
for s. Cut through, the first b of n messages that are fed slowly fill the buffer until the first of them has all come, a latency
after t: then H' is at least t + l + (n - b - 1) s. Not seen: who waits for whom at one instant, and other phases.
`tests/parts/test_crossbar_analytic.py` bounds what that is worth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.hardware.crossbar.collectives import Flow, Pattern, sum_ps
from trainyard.hardware.crossbar.exchanges import Exchanges, cut, nothing
from trainyard.hardware.crossbar.hierarchy import Exchanged, Integers, Summer, counted
from trainyard.hardware.crossbar.messages import PICOSECONDS_PER_SECOND, Traffic, Tree, service_ps, services_ps


@dataclass(slots=True)
class Way:
    """A flow's links as a tree: (link, the one before, those that follow)."""

    links: list[int]
    before: list[int]
    after: list[list[int]]


def way_of(tree: Tree, flow: Flow) -> Way:
    if len(flow.destinations) == 1:
        links = tree.path(flow.source, flow.destinations[0])
        return Way(links, [at - 1 for at in range(len(links))], [[at + 1] for at in range(len(links) - 1)] + [[]])
    entries = tree.multicast(flow.source, flow.destinations)
    before = [-1] * len(entries)
    after: list[list[int]] = []
    for at, (_, first, many) in enumerate(entries):
        after.append(list(range(first, first + many)))
        for child in after[-1]:
            before[child] = at
    return Way([link for link, _, _ in entries], before, after)


class Wave:
    """One piece through a pattern."""

    def __init__(self, pattern: Pattern, through: bool) -> None:
        self.pattern, self.tree, self.through = pattern, pattern.tree, through
        links = self.tree.tables[0]
        self.kind, self.latency, self.room = (links[:, column].tolist() for column in (0, 1, 3))
        self.service: list[int] = []  # of a message on each kind of port
        self.ways = [way_of(self.tree, flow) for flow in pattern.flows]
        self.load: dict[int, int] = defaultdict(int)
        self.met: dict[tuple[int, int], int] = defaultdict(int)  # by (link, phase)
        for flow, way in zip(pattern.flows, self.ways, strict=True):
            for link in way.links:
                self.load[link] += 1
                self.met[link, flow.phase] += 1

    def carried(self, size_bytes: int) -> npt.NDArray[np.int64]:
        carried = np.zeros(self.tree.link_count, np.int64)
        for link, many in self.load.items():
            carried[link] = many * size_bytes
        return carried

    def _paces(self, size_bytes: int) -> list[list[int]]:
        """Of each flow and link: picoseconds from one message to the next."""
        self.service = service = [service_ps(size_bytes, port.bytes_per_s) for port in self.tree.ports]
        paces = []
        for way in self.ways:
            own = []
            for at, link in enumerate(way.links):
                pace = service[self.kind[link]]
                if way.after[at]:
                    on = max(service[self.kind[way.links[child]]] for child in way.after[at])
                    held = self.latency[link] + (max(pace, on) if self.through else pace + on)
                    pace = max(pace, -(-held // self.room[link]))
                own.append(pace)
            paces.append(own)
        return paces

    def busiest_ps(self, size_bytes: int, summer: Summer | None) -> int:
        """A piece at the busiest link or reducer."""
        busy: dict[Any, int] = defaultdict(int)
        for way, paces in zip(self.ways, self._paces(size_bytes), strict=True):
            for link, pace in zip(way.links, paces, strict=True):
                busy[link] += pace
        for each in self.pattern.sums:
            busy["reducer", each.reducer] += sum_ps(summer, each.contributions, size_bytes)
        return max(busy.values())

    def first_ps(self, size_bytes: int, summer: Summer | None) -> int:
        """From the start until everything of the first piece has arrived."""
        paces, comes, done = self._paces(size_bytes), dict[int, int](), dict[int, int]()

        def sent(numbers: Iterable[int]) -> None:
            for number in numbers:
                after = self.pattern.flows[number].after
                comes[number] = self._way_ps(number, 0 if after is None else done[after], paces[number])

        for number, each in enumerate(self.pattern.sums):
            sent(each.flows)
            begins = max([comes[flow] for flow in each.flows] + ([done[each.own]] if each.own is not None else []))
            done[number] = begins + sum_ps(summer, each.contributions, size_bytes)
        sent(number for number, flow in enumerate(self.pattern.flows) if flow.feeds is None)
        return max([*comes.values(), *done.values()])

    def _way_ps(self, number: int, start: int, paces: list[int]) -> int:
        """When the last end of a flow has all of a piece that was ready at `start`."""
        flow, way = self.pattern.flows[number], self.ways[number]
        first, head, tail, whole = ([0] * len(paces) for _ in range(4))  # whole: all of the first message is through
        end = start
        for at, (link, pace) in enumerate(zip(way.links, paces, strict=True)):
            above, own, many = way.before[at], self.service[self.kind[link]], self.met[link, flow.phase]
            before, latency = (0, 0) if above < 0 else (self.service[self.kind[way.links[above]]], self.latency[way.links[above]])
            if above < 0:
                first[at], head[at], tail[at], whole[at] = start, start, start, start
            elif self.through:
                first[at], head[at], tail[at], whole[at] = (each[above] + latency for each in (first, head, tail, whole))
            else:
                first[at], head[at] = first[above] + latency + before, tail[above] + latency
            head[at] = max(head[at], first[at] + (many - 1) * pace)
            whole[at] = max(first[at] + own, whole[at])
            beyond = many - self.room[link] - 1
            if self.through and way.after[at] and beyond >= 0:
                head[at] = max(head[at], whole[at] + self.latency[link] + beyond * pace)
            tail[at] = max(head[at] + own, tail[at])
            end = max(end, tail[at] + self.latency[link])
        return end


@dataclass(frozen=True, slots=True)
class Analytic(Exchanges):
    """Exchanges in closed form; bytes are exactly those of the simulation."""

    def _through(self, pattern: Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        pieces = self.crossbar.pieces(size_bytes)
        if not pieces or not pattern.flows:
            return nothing(self.crossbar)
        wave = Wave(pattern, self.crossbar.switching == "cut_through")
        time_ps, others = wave.first_ps(pieces[-1], summer), len(pieces) - 1
        if others:  # the last piece, which may be shorter, behind all others; or not yet there when those are done
            pace_ps = wave.busiest_ps(pieces[0], summer)
            end_ps = min(service_ps(pieces[-1], port.bytes_per_s) for port in pattern.tree.ports)
            time_ps = max(time_ps + others * pace_ps, wave.first_ps(pieces[0], summer) + (others - 1) * pace_ps + end_ps)
        return counted(self.crossbar, pattern.tree, wave.carried(size_bytes), time_ps / PICOSECONDS_PER_SECOND)

    def traffic(
        self,
        sources: Integers,
        destinations: Integers,
        sizes_bytes: Integers,
        *,
        ready_s: npt.NDArray[np.float64] | None = None,
        priorities: Integers | None = None,
    ) -> Exchanged:
        """What the busiest link has to carry, or the longest way: at least so long.

        A single message, or equal ones on one way, are exact (Eq. 2); where messages meet, the simulated time is longer.
        """
        tree = self.crossbar.tree()
        traffic = cut(self.crossbar, sources, destinations, sizes_bytes, ready_s, priorities)
        time_ps, carried = least_ps(tree, traffic, self.crossbar.switching == "cut_through")
        return counted(self.crossbar, tree, carried, time_ps / PICOSECONDS_PER_SECOND)


def least_ps(tree: Tree, traffic: Traffic, through: bool) -> tuple[int, npt.NDArray[np.int64]]:
    """A bound that no schedule of messages between units can beat, and the bytes on each link.

    A link is busy for all it carries, not before the first of it can be there, and its last has the rest of its way to go.
    """
    carried = np.zeros(tree.link_count, np.int64)
    if not traffic.messages:
        return 0, carried
    links, _, switches, ancestor, toward, out_links = tree.tables
    sizes, kinds = np.unique(traffic.sizes_bytes, return_inverse=True)
    service = services_ps(sizes, tree.ports)[kinds.reshape(-1)]
    everyone = np.arange(traffic.messages)
    head, widest = traffic.ready_ps.copy(), np.zeros(traffic.messages, np.int64)  # when the first byte is there; the slowest link
    busy, first, rest = np.zeros(tree.link_count, np.int64), np.full(tree.link_count, 2**62), np.full(tree.link_count, 2**62)
    walked: list[tuple[Any, Any, Any]] = []
    moving, at = everyone, out_links[traffic.sources]
    while len(moving):
        own = service[moving, links[at, 0]]
        np.add.at(busy, at, own)
        np.add.at(carried, at, traffic.sizes_bytes[moving])
        np.minimum.at(first, at, head[moving])
        walked.append((moving, at, head[moving] + own))
        widest[moving] = np.maximum(widest[moving], own)
        head[moving] += links[at, 1] + (0 if through else own)
        on = links[at, 2] >= 0
        moving, switch = moving[on], links[at[on], 2]
        level, destination = switches[switch, 1], traffic.destinations[moving]
        at = np.where(ancestor[destination, level] == switch, toward[destination, level], switches[switch, 0])
    ends = head + widest if through else head
    for moving, at, sent in walked:
        after = links[at, 1] if through else ends[moving] - sent
        np.minimum.at(rest, at, after)
    used = busy > 0
    return int(max(ends.max(), (first + busy + rest)[used].max())), carried
