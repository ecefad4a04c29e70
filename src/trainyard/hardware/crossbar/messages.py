"""Messages in a tree of crossbars: who is joined to whom, what is sent, and the rules of the clock.

*Tree.* A switch of level l joins `fan_in` nodes of the level below (units at level 0) and hangs on one port of level l + 1.
Endpoints are units, and reducers (AGAUs) that hang on a switch by a port of their own. Every port is two links, one each way. A
message goes up to the first switch that has its destination below it, and down.

*Clock* (whole picoseconds). A link serves one message at a time, for bytes / rate; its first byte is at the other end a latency
later.

| rule              | says                                                                                                  |
|-------------------|-------------------------------------------------------------------------------------------------------|
| queue             | messages leave an input buffer in the order in which they came, an endpoint by (time ready, number)     |
| room              | a link starts only when the buffer it leads to has a free slot, which it takes; endpoints take all      |
| copies            | a multicast asks for all its outputs and leaves by each as soon as it may                               |
| slot              | free when the last byte of the last copy has left                                                       |
| cut-through       | a message may go on when its first byte has come; its last byte leaves when it has come. The link is    |
|                   | charged bytes / rate: what it idles while a slower one feeds it goes to others (flits interleave)       |
| store-and-forward | a message may go on when its last byte has come                                                         |
| `round_robin`     | an output serves the next input after the one it served last                                            |
| `oldest`          | the message with the least (time ready, number)                                                         |
| `priority`        | the highest priority, then the oldest                                                                   |
| sums              | a reducer does one sum at a time, by (time complete, number); then its result is ready to be sent       |
| ties              | all that falls on one instant happens first, then outputs choose                                        |

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
Whole = npt.NDArray[np.int64]


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
    """What the ports of a level, or of reducers, have in common."""

    bytes_per_s: int
    latency_ps: int
    room: int


class Tree:
    """Switches, links and endpoints of `units` units; `reducers` are the switches, as (level, number), that reducers hang on.

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
    def inputs(self) -> Whole:
        """Of each switch: its nodes below, its reducers, and the one from above."""
        inputs = np.repeat(np.array(self.fan_in, np.int64), self.counts[1:]) + 1
        for level, number in self.reducers:
            inputs[self.switch(level, number)] += 1
        return inputs

    @cached_property
    def tables(self) -> tuple[Whole, Whole, Whole, Whole, Whole, Whole]:
        """What the clock is told: links, places of queues at their switch, switches, ancestors, ways down, links out."""
        links = np.zeros((self.link_count, 7), np.int64)
        places = np.zeros(self.link_count + self.endpoints, np.int64)
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
            places[up] = nodes % width
            places[down] = self.inputs[own] - 1 if level else 0
            switches[self.switch_base[level] : self.switch_base[level] + self.counts[level + 1], 1] = level
            if level:
                switches[own, 0] = up
            toward[: self.units, level] = self.down_base[level] + unit
            unit = unit // width
            ancestor[: self.units, level] = self.switch_base[level] + unit
        taken: dict[int, int] = {}
        for number, (level, at) in enumerate(self.reducers):
            out, into, switch, endpoint = *self.reducer_links(number), self.switch(level, at), self.units + number
            latency, room = self.ports[level].latency_ps, self.ports[level].room
            links[out] = (self.depth, latency, switch, room, 1, 0, 0)
            links[into] = (self.depth, latency, -1, 0, self.inputs[switch], 0, 0)
            places[out] = self.fan_in[level] + taken.get(switch, 0)
            taken[switch] = taken.get(switch, 0) + 1
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
        return links, places, switches, ancestor, toward, self.out_links

    def reducer_links(self, number: int) -> tuple[int, int]:
        """From a reducer to its switch, and back."""
        return self._reducer_base + 2 * number, self._reducer_base + 2 * number + 1

    @cached_property
    def out_links(self) -> Whole:
        return np.concatenate([np.arange(self.units), self._reducer_base + 2 * np.arange(len(self.reducers))]).astype(np.int64)

    def level_of(self, link: int) -> int:
        """Of a link's port; reducers' ports come after the last level."""
        return int(self.tables[0][link, 0])

    def step(self, link: int, destination: int) -> int:
        """The link after `link` on the way to an endpoint; -1 at its end."""
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
        link, found = int(self.out_links[source]), []
        while link >= 0:
            found.append(link)
            link = self.step(link, destination)
        return found

    def multicast(self, source: int, destinations: Sequence[int], first: int = 0) -> list[tuple[int, int, int]]:
        """The tree of links to several endpoints: entries (link, first entry that follows, how many); `first` numbers the root."""
        entries = [(int(self.out_links[source]), 0, 0)]
        below = [list(destinations)]
        at = 0
        while at < len(entries):
            link = entries[at][0]
            ways: dict[int, list[int]] = {}
            for destination in below[at]:
                way = self.step(link, destination)
                if way >= 0:
                    ways.setdefault(way, []).append(destination)
            entries[at] = (link, first + len(entries), len(ways))
            for way in sorted(ways):
                entries.append((way, 0, 0))
                below.append(ways[way])
            at += 1
        return entries


@dataclass(slots=True)
class Traffic:
    """All that is sent: columns of messages, sums and multicasts, as the clock takes them."""

    sizes_bytes: Whole
    sources: Whole
    destinations: Whole  # an endpoint, or ~(first entry) of a multicast
    feeds: Whole  # the sum that it goes into, or -1
    priorities: Whole
    ready_ps: Whole  # or -1: when a sum is done
    sums: Whole = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    """Reducer, picoseconds, contributions to wait for, message and sum that follow (or -1)."""
    entries: Whole = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    @property
    def messages(self) -> int:
        return len(self.sizes_bytes)


@dataclass(frozen=True, slots=True)
class Ran:
    """When each message was delivered (the last of its copies) and each sum done; bytes over each link; the end; events."""

    delivered_ps: Whole
    summed_ps: Whole
    carried_bytes: Whole
    end_ps: int
    events: int


ARBITRATIONS = ("round_robin", "oldest", "priority")
SWITCHING = ("cut_through", "store_and_forward")


def services_ps(sizes_bytes: Whole, ports: Sequence[Port]) -> Whole:
    """Of each size on each kind of port; exact, in Python's integers where 64 bits are too few."""
    most = int(sizes_bytes.max(initial=0))
    sizes: Any = sizes_bytes if most * PICOSECONDS_PER_SECOND < 2**62 else sizes_bytes.astype(object)
    columns = [np.maximum(-(-sizes * PICOSECONDS_PER_SECOND // port.bytes_per_s), 1).astype(np.int64) for port in ports]
    return np.ascontiguousarray(np.stack(columns, axis=1)) if len(sizes_bytes) else np.zeros((0, len(ports)), np.int64)


def prepared(tree: Tree, traffic: Traffic) -> tuple[Any, ...]:
    """Arguments of the compiled clock, but for switching and arbitration."""
    sizes, kinds = np.unique(traffic.sizes_bytes, return_inverse=True)
    columns = (kinds, traffic.sources, traffic.destinations, traffic.feeds, traffic.priorities, traffic.ready_ps)
    messages = np.ascontiguousarray(np.stack([np.asarray(column, np.int64).reshape(-1) for column in columns], axis=1))
    own = np.flatnonzero(traffic.ready_ps >= 0)
    initial = own[np.argsort(traffic.ready_ps[own], kind="stable")]
    return (*tree.tables, messages, initial, sizes, services_ps(sizes, tree.ports), traffic.sums, traffic.entries)


def run(tree: Tree, traffic: Traffic, switching: str, arbitration: str) -> Ran:
    """The compiled clock."""
    from trainyard.kernels.networks import crossbar as kernel

    clock: Any = kernel.run  # compiled
    done = clock(*prepared(tree, traffic), switching == "cut_through", ARBITRATIONS.index(arbitration))
    return finished(Ran(*done), traffic)


def finished(ran: Ran, traffic: Traffic) -> Ran:
    """Everything arrived, or the traffic waits for itself."""
    stuck = int((ran.delivered_ps < 0).sum()) + int((ran.summed_ps < 0).sum())
    if stuck:
        raise BadInput(
            f"crossbar: {stuck} messages or sums of {traffic.messages} + {len(traffic.sums)} wait for something never sent"
        )
    return ran
