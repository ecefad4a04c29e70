"""Messages in a tree of crossbars: the tree, the messages, and the rules of the clock.

*Tree.* A switch of level l connects `fan_in` nodes of the level below (units at level 0) to one port of level l + 1. Endpoints are
units, and reducers (AGAUs) that have a port of their own at a switch. Every port is two links, one in each direction. A message
goes up to the first switch that has its destination below it, and down.

*Clock* (whole picoseconds). A link serves one message at a time, for bytes / rate; its first byte is at the other end a latency
later.

| rule              | says                                                                                                  |
|-------------------|-------------------------------------------------------------------------------------------------------|
| queue             | messages leave an input buffer in the order in which they came, an endpoint by (time ready, number)     |
| room              | a link starts only when the buffer it leads to has a free slot, which it takes; endpoints take all      |
| copies            | a multicast requests all its outputs and leaves by each as soon as it may                               |
| slot              | free when the last byte of the last copy has left                                                       |
| cut-through       | a message may go on when its first byte has come; its last byte leaves when it has come. The link is    |
|                   | charged bytes / rate: its idle time while a slower link feeds it goes to others (flits interleave)      |
| store-and-forward | a message may go on when its last byte has come                                                         |
| `round_robin`     | an output serves the next input after the one it served last                                            |
| `oldest`          | the message with the least (time ready, number)                                                         |
| `priority`        | the highest priority, then the oldest                                                                   |
| sums              | a reducer does one sum at a time, by (time complete, number); then its result is ready to be sent       |
| ties              | all events of one instant happen first, then outputs choose                                             |

A service, a latency and a sum take at least 1 ps, so nothing that is chosen at an instant has consequences at that instant, and
the order of events within it does not matter.

*No deadlock.* Order the links: up links by level, then down links from the top. A message that holds a slot behind a link waits
only for links later in that order (up, or down; having gone down it never goes up), and so do all copies of a multicast. Links
into endpoints are last and always have room. So some message can always move: the one behind the last link in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

PICOSECONDS_PER_SECOND = 10**12
Integers64 = npt.NDArray[np.int64]


def service_ps(size_bytes: int, bytes_per_s: int) -> int:
    """Whole picoseconds that a link is busy with a message.

    >>> service_ps(65536, 2_400_000_000)
    27306667
    """
    return max(1, -(-size_bytes * PICOSECONDS_PER_SECOND // bytes_per_s))


def in_ps(seconds: float) -> int:
    return max(1, round(seconds * PICOSECONDS_PER_SECOND))


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The rate, latency and buffer that all ports of a level, or of reducers, have."""

    bytes_per_s: int
    latency_ps: int
    room: int


class Tree:
    """Switches, links and endpoints of `units` units; `reducers` are the switches, as (level, number), with a reducer.

    >>> tree = Tree(4, (2, 2), [Port(bytes_per_s=10**9, latency_ps=1000, room=1)] * 3, reducers=[(1, 0)])
    >>> tree.path(0, 3)  # up, up, down, down
    [0, 4, 11, 9]
    >>> tree.path(2, tree.units)  # to the reducer
    [2, 5, 13]
    """

    def __init__(self, units: int, fan_in: Sequence[int], ports: Sequence[Port], reducers: Sequence[tuple[int, int]] = ()) -> None:
        self.units, self.fan_in, self.reducers = units, tuple(fan_in), tuple(reducers)
        self.ports = tuple(ports)  # one for each level, then the reducers'
        self.counts = [units]  # nodes below level 0, 1, ..., and above the last
        for width in self.fan_in:
            self.counts.append(-(-self.counts[-1] // width))
        self.depth = len(self.fan_in)
        below = sum(self.counts[: self.depth])
        self.up_base = np.cumsum([0, *self.counts[: self.depth]])[:-1]
        self.down_base = self.up_base + below
        self.switch_base = np.cumsum([0, *self.counts[1:]])[:-1]
        self.link_count = 2 * below + 2 * len(self.reducers)
        self.endpoints = units + len(self.reducers)
        self._reducer_base = 2 * below

    def switch(self, level: int, number: int) -> int:
        return int(self.switch_base[level]) + number

    @cached_property
    def inputs(self) -> Integers64:
        """Inputs of each switch: from the nodes below, its reducers, and the switch above."""
        inputs = np.repeat(np.array(self.fan_in, np.int64), self.counts[1:]) + 1
        for level, number in self.reducers:
            inputs[self.switch(level, number)] += 1
        return inputs

    @cached_property
    def tables(self) -> tuple[Integers64, Integers64, Integers64, Integers64, Integers64, Integers64]:
        """Arguments of the clock: links, input number of each queue, switches, ancestors, links down, links out."""
        links = np.zeros((self.link_count, 7), np.int64)
        input_numbers = np.zeros(self.link_count + self.endpoints, np.int64)
        switches = np.full((sum(self.counts[1:]), 2), -1, np.int64)
        ancestor = np.full((self.endpoints, self.depth), -1, np.int64)
        toward = np.full((self.endpoints, self.depth), -1, np.int64)
        unit = np.arange(self.units)
        for level, width in enumerate(self.fan_in):
            nodes, port = np.arange(self.counts[level]), self.ports[level]
            own, above = nodes + self.switch_base[level - 1], nodes // width + self.switch_base[level]
            up, down = self.up_base[level] + nodes, self.down_base[level] + nodes
            links[up], links[down] = ((level, port.latency_ps, 0, port.room, 0, 0, 0),) * 2
            links[up, 2], links[up, 4] = above, self.inputs[own] if level else 1
            links[down, 2], links[down, 4] = own if level else -1, self.inputs[above]
            input_numbers[up] = nodes % width
            input_numbers[down] = self.inputs[own] - 1 if level else 0
            switches[self.switch_base[level] : self.switch_base[level] + self.counts[level + 1], 1] = level
            if level:
                switches[own, 0] = up
            toward[: self.units, level] = self.down_base[level] + unit
            unit = unit // width
            ancestor[: self.units, level] = self.switch_base[level] + unit
        reducers_at: dict[int, int] = {}
        for number, (level, at) in enumerate(self.reducers):
            out, into, switch, endpoint = *self.reducer_links(number), self.switch(level, at), self.units + number
            latency, room = self.ports[level].latency_ps, self.ports[level].room
            links[out] = (self.depth, latency, switch, room, 1, 0, 0)
            links[into] = (self.depth, latency, -1, 0, self.inputs[switch], 0, 0)
            input_numbers[out] = self.fan_in[level] + reducers_at.get(switch, 0)
            reducers_at[switch] = reducers_at.get(switch, 0) + 1
            toward[endpoint, level] = into
            node = at
            for over in range(level, self.depth):
                if over > level:
                    toward[endpoint, over] = self.down_base[over] + node
                    node //= self.fan_in[over]
                ancestor[endpoint, over] = self.switch_base[over] + node
        links[links[:, 2] < 0, 3] = 0  # endpoints need no room
        links[:, 5] = np.cumsum(links[:, 4]) - links[:, 4]
        links[:, 6] = np.cumsum(links[:, 3]) - links[:, 3]
        return links, input_numbers, switches, ancestor, toward, self.out_links

    def reducer_links(self, number: int) -> tuple[int, int]:
        """The links from a reducer to its switch, and back."""
        return self._reducer_base + 2 * number, self._reducer_base + 2 * number + 1

    @cached_property
    def out_links(self) -> Integers64:
        return np.concatenate([np.arange(self.units), self._reducer_base + 2 * np.arange(len(self.reducers))]).astype(np.int64)

    def level_of(self, link: int) -> int:
        """The level of a link's port; reducers' ports come after the last level."""
        return int(self.tables[0][link, 0])

    def step(self, link: int, destination: int) -> int:
        """The link after `link` towards an endpoint; -1 at its end."""
        leads_to, switches, ancestor, toward = self._steps
        switch = leads_to[link]
        if switch < 0:
            return -1
        up, level = switches[switch]
        return toward[destination][level] if ancestor[destination][level] == switch else up

    @cached_property
    def _steps(self) -> tuple[list[int], list[list[int]], list[list[int]], list[list[int]]]:
        links, _, switches, ancestor, toward, _ = self.tables
        return links[:, 2].tolist(), switches.tolist(), ancestor.tolist(), toward.tolist()

    def path(self, source: int, destination: int) -> list[int]:
        link, links = int(self.out_links[source]), []
        while link >= 0:
            links.append(link)
            link = self.step(link, destination)
        return links

    def multicast(self, source: int, destinations: Sequence[int], first: int = 0) -> list[tuple[int, int, int]]:
        """The tree of links to several endpoints: entries (link, first entry that follows, how many); `first` numbers the root."""
        entries = [(int(self.out_links[source]), 0, 0)]
        below = [list(destinations)]
        at = 0
        while at < len(entries):
            link = entries[at][0]
            branches: dict[int, list[int]] = {}
            for destination in below[at]:
                next_link = self.step(link, destination)
                if next_link >= 0:
                    branches.setdefault(next_link, []).append(destination)
            entries[at] = (link, first + len(entries), len(branches))
            for next_link in sorted(branches):
                entries.append((next_link, 0, 0))
                below.append(branches[next_link])
            at += 1
        return entries


@dataclass(slots=True)
class Traffic:
    """Columns of messages, sums and multicasts, as the clock takes them."""

    sizes_bytes: Integers64
    sources: Integers64
    destinations: Integers64  # an endpoint, or ~(first entry) of a multicast
    feeds: Integers64  # the sum that it goes into, or -1
    priorities: Integers64
    ready_ps: Integers64  # or -1: when a sum is done
    sums: Integers64 = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    """Reducer, picoseconds, contributions to wait for, message and sum that follow (or -1)."""
    entries: Integers64 = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    @property
    def messages(self) -> int:
        return len(self.sizes_bytes)


@dataclass(frozen=True, slots=True)
class Ran:
    """Times at which each message was delivered (the last of its copies) and each sum done; bytes over each link; end; events."""

    delivered_ps: Integers64
    summed_ps: Integers64
    carried_bytes: Integers64
    end_ps: int
    events: int


ARBITRATIONS = ("round_robin", "oldest", "priority")
SWITCHING = ("cut_through", "store_and_forward")


def services_ps(sizes_bytes: Integers64, ports: Sequence[Port]) -> Integers64:
    """Service times of each size on each kind of port; exact, in Python's integers where 64 bits are too few."""
    most = int(sizes_bytes.max(initial=0))
    sizes: Any = sizes_bytes if most * PICOSECONDS_PER_SECOND < 2**62 else sizes_bytes.astype(object)
    columns = [np.maximum(-(-sizes * PICOSECONDS_PER_SECOND // port.bytes_per_s), 1).astype(np.int64) for port in ports]
    return np.ascontiguousarray(np.stack(columns, axis=1)) if len(sizes_bytes) else np.zeros((0, len(ports)), np.int64)


def prepared(tree: Tree, traffic: Traffic) -> tuple[Any, ...]:
    """Arguments of the compiled clock, except switching and arbitration."""
    sizes, kinds = np.unique(traffic.sizes_bytes, return_inverse=True)
    columns = (kinds, traffic.sources, traffic.destinations, traffic.feeds, traffic.priorities, traffic.ready_ps)
    messages = np.ascontiguousarray(np.stack([np.asarray(column, np.int64).reshape(-1) for column in columns], axis=1))
    own = np.flatnonzero(traffic.ready_ps >= 0)
    initial = own[np.argsort(traffic.ready_ps[own], kind="stable")]
    return (*tree.tables, messages, initial, sizes, services_ps(sizes, tree.ports), traffic.sums, traffic.entries)


def run(tree: Tree, traffic: Traffic, switching: str, arbitration: str) -> Ran:
    """Runs the compiled clock."""
    from trainyard.kernels.networks import crossbar as kernel

    clock: Any = kernel.run  # compiled
    done = clock(*prepared(tree, traffic), switching == "cut_through", ARBITRATIONS.index(arbitration))
    return finished(Ran(*done), traffic)


def finished(ran: Ran, traffic: Traffic) -> Ran:
    """Raises if not everything arrived: then some messages or sums wait for each other."""
    stuck = int((ran.delivered_ps < 0).sum()) + int((ran.summed_ps < 0).sum())
    if stuck:
        raise BadInput(
            f"crossbar: {stuck} messages or sums of {traffic.messages} + {len(traffic.sums)} wait for something never sent"
        )
    return ran
