"""Exchanges of a crossbar hierarchy in closed form: Eq. 2 of DIRECT for pipelines of messages.

    T = T_1 + (K - 1) W

K pieces follow each other; T_1 is the time of the first piece through the pattern, W the time of a piece at the busiest link or
reducer (M / B, with B a piece's share of the bandwidth). For one message on an idle path T_1 is Eq. 2: latencies plus size over the
narrowest port (cut-through) or over every port (store-and-forward).

A piece shares links with the others of its phase. With n of them on a link of service time s, the first there at f, and the last
leaving the link before it at [H, C] (its first and its last byte), latency l:

    H' = max(H + l, f + (n - 1) s),   C' = max(H' + s, C + l)      cut-through, f' = f + l
    H' = max(C + l, f + (n - 1) s),   C' = H' + s                   store-and-forward, f' = f + l + s

A buffer of b messages accepts one in every (l + the time until its next link has sent it) / b; where that is more than s, it
replaces s. With cut-through, the first b of n messages that arrive slowly fill the buffer until the first of them is complete, a
latency after t: then H' is at least t + l + (n - b - 1) s. Not modelled: the order of arbitration at one instant, and other
phases. `tests/hardware/crossbar/test_analytic.py` bounds the error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.hardware.crossbar.collectives import Flow, Pattern, sum_ps
from trainyard.hardware.crossbar.exchanges import Exchanges, no_exchange
from trainyard.hardware.crossbar.hierarchy import Exchanged, Summer, counted
from trainyard.hardware.crossbar.messages import PICOSECONDS_PER_SECOND, Traffic, Tree, service_ps, services_ps


@dataclass(slots=True)
class Route:
    """A flow's links as a tree: each link with the one before it and those after it."""

    links: list[int]
    before: list[int]
    after: list[list[int]]


def route_of(tree: Tree, flow: Flow) -> Route:
    if len(flow.destinations) == 1:
        links = tree.path(flow.source, flow.destinations[0])
        return Route(links, [at - 1 for at in range(len(links))], [[at + 1] for at in range(len(links) - 1)] + [[]])
    entries = tree.multicast(flow.source, flow.destinations)
    before = [-1] * len(entries)
    after: list[list[int]] = []
    for at, (_, first, many) in enumerate(entries):
        after.append(list(range(first, first + many)))
        for child in after[-1]:
            before[child] = at
    return Route([link for link, _, _ in entries], before, after)


class Wave:
    """The time of one piece through a pattern."""

    def __init__(self, pattern: Pattern, through: bool) -> None:
        self.pattern, self.tree, self.through = pattern, pattern.tree, through
        links = self.tree.tables[0]
        self.kind, self.latency, self.room = (links[:, column].tolist() for column in (0, 1, 3))
        self.service: list[int] = []  # of a message on each kind of port
        self.routes = [route_of(self.tree, flow) for flow in pattern.flows]
        self.load: dict[int, int] = defaultdict(int)
        self.flows_by_link: dict[tuple[int, int], int] = defaultdict(int)  # by (link, phase)
        for flow, route in zip(pattern.flows, self.routes, strict=True):
            for link in route.links:
                self.load[link] += 1
                self.flows_by_link[link, flow.phase] += 1

    def carried(self, size_bytes: int) -> npt.NDArray[np.int64]:
        carried = np.zeros(self.tree.link_count, np.int64)
        for link, many in self.load.items():
            carried[link] = many * size_bytes
        return carried

    def _paces(self, size_bytes: int) -> list[list[int]]:
        """For each flow and link, the picoseconds from one message to the next."""
        self.service = service = [service_ps(size_bytes, port.bytes_per_s) for port in self.tree.ports]
        paces = []
        for route in self.routes:
            own = []
            for at, link in enumerate(route.links):
                pace = service[self.kind[link]]
                if route.after[at]:
                    on = max(service[self.kind[route.links[child]]] for child in route.after[at])
                    occupied = self.latency[link] + (max(pace, on) if self.through else pace + on)
                    pace = max(pace, -(-occupied // self.room[link]))
                own.append(pace)
            paces.append(own)
        return paces

    def busiest_ps(self, size_bytes: int, summer: Summer | None) -> int:
        """The time of a piece at the busiest link or reducer."""
        busy: dict[Any, int] = defaultdict(int)
        for route, paces in zip(self.routes, self._paces(size_bytes), strict=True):
            for link, pace in zip(route.links, paces, strict=True):
                busy[link] += pace
        for reduction in self.pattern.sums:
            busy["reducer", reduction.reducer] += sum_ps(summer, reduction.contributions, size_bytes)
        return max(busy.values())

    def first_ps(self, size_bytes: int, summer: Summer | None) -> int:
        """The time until all of the first piece has arrived."""
        paces, arrival, done = self._paces(size_bytes), dict[int, int](), dict[int, int]()

        def send_flows(numbers: Iterable[int]) -> None:
            for number in numbers:
                after = self.pattern.flows[number].after
                arrival[number] = self._route_ps(number, 0 if after is None else done[after], paces[number])

        for number, reduction in enumerate(self.pattern.sums):
            send_flows(reduction.flows)
            begins = max([arrival[flow] for flow in reduction.flows] + ([done[reduction.own]] if reduction.own is not None else []))
            done[number] = begins + sum_ps(summer, reduction.contributions, size_bytes)
        send_flows(number for number, flow in enumerate(self.pattern.flows) if flow.feeds is None)
        return max([*arrival.values(), *done.values()])

    def _route_ps(self, number: int, start: int, paces: list[int]) -> int:
        """When the last destination of a flow has all of a piece that was ready at `start`."""
        flow, route = self.pattern.flows[number], self.routes[number]
        first, head, tail, complete = ([0] * len(paces) for _ in range(4))  # complete: all of the first message has passed
        end = start
        for at, (link, pace) in enumerate(zip(route.links, paces, strict=True)):
            above, own, many = route.before[at], self.service[self.kind[link]], self.flows_by_link[link, flow.phase]
            before, latency = (
                (0, 0) if above < 0 else (self.service[self.kind[route.links[above]]], self.latency[route.links[above]])
            )
            if above < 0:
                first[at], head[at], tail[at], complete[at] = start, start, start, start
            elif self.through:
                first[at], head[at], tail[at], complete[at] = (
                    reduction[above] + latency for reduction in (first, head, tail, complete)
                )
            else:
                first[at], head[at] = first[above] + latency + before, tail[above] + latency
            head[at] = max(head[at], first[at] + (many - 1) * pace)
            complete[at] = max(first[at] + own, complete[at])
            beyond = many - self.room[link] - 1
            if self.through and route.after[at] and beyond >= 0:
                head[at] = max(head[at], complete[at] + self.latency[link] + beyond * pace)
            tail[at] = max(head[at] + own, tail[at])
            end = max(end, tail[at] + self.latency[link])
        return end


@dataclass(frozen=True, slots=True)
class Analytic(Exchanges):
    """Exchanges in closed form; bytes are exactly those of the simulation."""

    def _through(self, pattern: Pattern, size_bytes: int, summer: Summer | None) -> Exchanged:
        pieces = self.crossbar.pieces(size_bytes)
        if not pieces or not pattern.flows:
            return no_exchange(self.crossbar)
        wave = Wave(pattern, self.crossbar.switching == "cut_through")
        time_ps, others = wave.first_ps(pieces[-1], summer), len(pieces) - 1
        if others:  # the last piece, which may be shorter, behind all others; or not yet there when those are done
            pace_ps = wave.busiest_ps(pieces[0], summer)
            end_ps = min(service_ps(pieces[-1], port.bytes_per_s) for port in pattern.tree.ports)
            time_ps = max(time_ps + others * pace_ps, wave.first_ps(pieces[0], summer) + (others - 1) * pace_ps + end_ps)
        return counted(self.crossbar, pattern.tree, wave.carried(size_bytes), time_ps / PICOSECONDS_PER_SECOND)

    def _sent(self, tree: Tree, traffic: Traffic) -> Exchanged:
        """A lower bound on the time: that of the busiest link, or of the longest path.

        It is exact for a single message, or equal ones on one path (Eq. 2); where messages share links, the simulation is slower.
        """
        time_ps, carried = least_ps(tree, traffic, self.crossbar.switching == "cut_through")
        return counted(self.crossbar, tree, carried, time_ps / PICOSECONDS_PER_SECOND)


def least_ps(tree: Tree, traffic: Traffic, through: bool) -> tuple[int, npt.NDArray[np.int64]]:
    """A lower bound on the time of any schedule of messages between units, and the bytes on each link.

    A link is busy for all its bytes, not before the first can arrive, and the last has the rest of its path to go.
    """
    carried = np.zeros(tree.link_count, np.int64)
    if not traffic.messages:
        return 0, carried
    links, _, switches, ancestor, toward, out_links = tree.tables
    sizes, kinds = np.unique(traffic.sizes_bytes, return_inverse=True)
    service = services_ps(sizes, tree.ports)[kinds.reshape(-1)]
    all_messages = np.arange(traffic.messages)
    head, widest = traffic.ready_ps.copy(), np.zeros(traffic.messages, np.int64)  # when the first byte is there; the slowest link
    busy, first, rest = np.zeros(tree.link_count, np.int64), np.full(tree.link_count, 2**62), np.full(tree.link_count, 2**62)
    visited: list[tuple[Any, Any, Any]] = []
    moving, at = all_messages, out_links[traffic.sources]
    while len(moving):
        own = service[moving, links[at, 0]]
        np.add.at(busy, at, own)
        np.add.at(carried, at, traffic.sizes_bytes[moving])
        np.minimum.at(first, at, head[moving])
        visited.append((moving, at, head[moving] + own))
        widest[moving] = np.maximum(widest[moving], own)
        head[moving] += links[at, 1] + (0 if through else own)
        on = links[at, 2] >= 0
        moving, switch = moving[on], links[at[on], 2]
        level, destination = switches[switch, 1], traffic.destinations[moving]
        at = np.where(ancestor[destination, level] == switch, toward[destination, level], switches[switch, 0])
    ends = head + widest if through else head
    for moving, at, sent in visited:
        after = links[at, 1] if through else ends[moving] - sent
        np.minimum.at(rest, at, after)
    used = busy > 0
    return int(max(ends.max(), (first + busy + rest)[used].max())), carried
