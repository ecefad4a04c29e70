"""The crossbar hierarchy as agents on the engine's clock: the plain twin of the compiled one, by the same rules.

| agent  | of each                | does                                                                                       |
|--------|------------------------|--------------------------------------------------------------------------------------------|
| wire   | message on a link      | after the latency: a message is at the other end, in a buffer or delivered                 |
| drain  | queue                  | when the last byte of its first message has left: the slot is free, the next one asks       |
| source | traffic                | messages that are there from some time on become ready                                     |
| adder  | endpoint that sums     | one sum at a time                                                                          |
| output | link                   | chooses among the inputs that ask, and sends: a stream of the timeline                      |

Outputs are spawned last and adders before them, so that at one instant all that happens has happened before anyone chooses.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainyard.engine import Compute, Get, Put, Simulation, Wait
from trainyard.engine.commands import Channel, Resource, Script
from trainyard.engine.timeline import Timeline
from trainyard.hardware.crossbar.messages import Ran, Traffic, Tree, finished, service_ps
from trainyard.ir import TaskClass

STOP = (-1, -1, -1)


@dataclass(slots=True, eq=False)
class Queue:
    """A buffer behind a link, or the messages that an endpoint has to send: the first may be on its way out already."""

    place: int
    drain: Channel
    endpoint: bool
    slots: deque[tuple[int, int, int]] = field(default_factory=deque)  # message, entry, when its last byte is here
    waiting: list[tuple[int, int]] = field(default_factory=list)  # an endpoint's: (time ready, message), a heap
    arrived: int = 0
    pending: int = 0  # copies of the first message that have not been sent
    tail_ps: int = 0

    @property
    def message(self) -> int:
        """The first one; of an endpoint's, the one that asks now."""
        return self.waiting[0][1] if self.endpoint else self.slots[0][0]


@dataclass(slots=True, eq=False)
class Output:
    """A link's sending end."""

    number: int
    stream: Resource
    bell: Channel
    wire: Channel
    bytes_per_s: int
    latency_ps: int
    room: int
    inputs: int
    behind: Queue | None  # the buffer it leads to; None: an endpoint
    switch: int
    asking: list[tuple[Queue, int]] = field(default_factory=list)
    last: int = -1
    idle: bool = False
    used: int = 0

    @property
    def willing(self) -> bool:
        return bool(self.asking) and (self.behind is None or self.used < self.room)


class Agents:
    """One run of some traffic; `run` gives what the compiled clock gives, and `timeline` every link's occupation."""

    def __init__(self, tree: Tree, traffic: Traffic, switching: str, arbitration: str) -> None:
        self.tree, self.traffic, self.through, self.arbitration = tree, traffic, switching == "cut_through", arbitration
        self.clock = Simulation()
        self.timeline: Timeline | None = None
        self.ready, self.destinations, self.feeds = (
            column.tolist() for column in (traffic.ready_ps, traffic.destinations, traffic.feeds)
        )
        self.entries, self.sums = traffic.entries.tolist(), traffic.sums.tolist()
        self.urgent = traffic.priorities.tolist() if arbitration == "priority" else [0] * traffic.messages
        self.left = traffic.sums[:, 2].tolist() if len(traffic.sums) else []
        self.delivered, self.summed = [-1] * traffic.messages, [-1] * len(traffic.sums)
        self.carried = [0] * tree.link_count
        self.open = self._copies() + len(traffic.sums)
        self._build()

    def _copies(self) -> int:
        """Deliveries to come: one for each message, of a multicast one for each end of its tree."""
        ends = self.traffic.entries[:, 2] == 0 if len(self.traffic.entries) else np.zeros(0, bool)
        firsts = sorted({int(~code) for code in self.traffic.destinations if code < 0})
        bounds = [*firsts, len(ends)]
        many = {first: int(ends[first:after].sum()) for first, after in zip(firsts, bounds[1:], strict=True)}
        return sum(many[int(~code)] if code < 0 else 1 for code in self.traffic.destinations)

    def _build(self) -> None:
        links, places, self.switches, self.ancestor, self.toward, self.out = (table.tolist() for table in self.tree.tables)
        clock, count = self.clock, len(links)
        self.queues = [
            Queue(places[number], clock.channel(f"drain {number}"), number >= count)
            for number in range(count + self.tree.endpoints)
        ]
        self.outputs = [
            Output(
                number, clock.stream(f"link {number}"), clock.channel(f"bell {number}"), clock.channel(f"wire {number}"),
                self.tree.ports[kind].bytes_per_s, latency, room, inputs, self.queues[number] if switch >= 0 else None, switch,
            )
            for number, (kind, latency, switch, room, inputs, _, _) in enumerate(links)
        ]  # fmt: skip
        self.sizes = self.traffic.sizes_bytes.tolist()
        self.adders = {reducer: clock.channel(f"adder {reducer}") for reducer in sorted(set(self.traffic.sums[:, 0].tolist()))}
        self.complete: dict[int, list[tuple[int, int]]] = {reducer: [] for reducer in self.adders}
        self.resting: set[int] = set()
        for output in self.outputs:
            for _ in range(self._under_way(output)):
                clock.spawn(self._wire(output), name=f"wire {output.number}")
        for number, queue in enumerate(self.queues):
            clock.spawn(self._drain(number, queue), name=f"drain {number}")
        clock.spawn(self._source(), name="source")
        for reducer, bell in self.adders.items():
            clock.spawn(self._adder(reducer, bell), name=f"adder {reducer}")
        for output in self.outputs:
            clock.spawn(self._output(output), name=f"output {output.number}")

    def _under_way(self, output: Output) -> int:
        """How many messages can be on their way into an endpoint in another order than they were sent.

        Into a buffer first bytes come in order, and so do last bytes over the slowest links. Over a faster one a message that is
        fed slowly may be overtaken: one from each input has not left its buffer, and others are less than a latency from their end.
        """
        slowest = min(port.bytes_per_s for port in self.tree.ports)
        if output.behind is not None or output.bytes_per_s == slowest or not self.sizes:
            return 1
        return output.inputs * (output.latency_ps // service_ps(min(self.sizes), max(p.bytes_per_s for p in self.tree.ports)) + 2)

    def run(self) -> Ran:
        self.timeline = self.clock.run()
        delivered, summed, carried = (np.array(column, np.int64) for column in (self.delivered, self.summed, self.carried))
        return finished(Ran(delivered, summed, carried, self.clock.now_ps, 0), self.traffic)

    # what happens; each gives the bells to ring

    def _offer(self, number: int, queue: Queue) -> list[Channel]:
        """The first message of a queue asks for the outputs it has to leave by."""
        if queue.endpoint:
            requested = [(self.out[number - len(self.outputs)], -1)]
        else:
            message, entry, _ = queue.slots[0]
            if entry < 0:
                destination, switch = self.destinations[message], self.outputs[number].switch
                up, level = self.switches[switch]
                requested = [(self.toward[destination][level] if self.ancestor[destination][level] == switch else up, -1)]
            else:
                _, first, many = self.entries[entry]
                requested = [(self.entries[child][0], child) for child in range(first, first + many)]
        queue.pending, queue.tail_ps = len(requested), 0
        bells = []
        for link, entry in requested:
            output = self.outputs[link]
            output.asking.append((queue, entry))
            bells += self._ring(output)
        return bells

    def _ring(self, output: Output) -> list[Channel]:
        if output.idle and output.willing:
            output.idle = False
            return [output.bell]
        return []

    def _inject(self, message: int) -> list[Channel]:
        self.ready[message] = self.clock.now_ps
        number = len(self.outputs) + int(self.traffic.sources[message])
        queue = self.queues[number]
        heapq.heappush(queue.waiting, (self.clock.now_ps, message))
        queue.arrived += 1
        return self._offer(number, queue) if queue.arrived == 1 else []

    def _fed(self, number: int) -> list[Channel]:
        """A sum has one contribution more."""
        self.left[number] -= 1
        if self.left[number]:
            return []
        reducer = self.sums[number][0]
        heapq.heappush(self.complete[reducer], (self.clock.now_ps, number))
        if reducer in self.resting:
            self.resting.discard(reducer)
            return [self.adders[reducer]]
        return []

    def _closed(self) -> list[tuple[Channel, Any]]:
        """One delivery or sum less to come; after the last one everybody may go."""
        self.open -= 1
        if self.open:
            return []
        channels = [output.bell for output in self.outputs]
        channels += [output.wire for output in self.outputs for _ in range(self._under_way(output))]
        return [(channel, STOP) for channel in (*channels, *(queue.drain for queue in self.queues), *self.adders.values())]

    # agents

    def _wire(self, output: Output) -> Script:
        get = Get(output.wire)
        while True:
            at_ps, message, _ = yield get
            if at_ps < 0:
                return
            yield Wait(at_ps - self.clock.now_ps)
            if output.behind is not None:
                output.behind.arrived += 1
                bells = self._offer(output.number, output.behind) if output.behind.arrived == 1 else []
            else:
                self.delivered[message] = self.clock.now_ps
                fed = self.feeds[message]
                bells = self._fed(fed) if fed >= 0 else []
                for channel, item in self._closed():
                    yield Put(channel, item)
            for bell in bells:
                yield Put(bell, (0, 0, 0))

    def _drain(self, number: int, queue: Queue) -> Script:
        get = Get(queue.drain)
        while True:
            at_ps, _, _ = yield get
            if at_ps < 0:
                return
            yield Wait(at_ps - self.clock.now_ps)
            queue.arrived -= 1
            bells = []
            if queue.endpoint:
                heapq.heappop(queue.waiting)
            else:
                queue.slots.popleft()
                self.outputs[number].used -= 1
                bells += self._ring(self.outputs[number])
            if queue.arrived:
                bells += self._offer(number, queue)
            for bell in bells:
                yield Put(bell, (0, 0, 0))

    def _source(self) -> Script:
        own = np.flatnonzero(self.traffic.ready_ps >= 0)
        bells: list[Channel] = []
        for message in own[np.argsort(self.traffic.ready_ps[own], kind="stable")].tolist():
            if self.ready[message] > self.clock.now_ps:
                for bell in bells:
                    yield Put(bell, (0, 0, 0))
                bells = []
                yield Wait(self.ready[message] - self.clock.now_ps)
            bells += self._inject(message)
        for bell in bells:
            yield Put(bell, (0, 0, 0))

    def _adder(self, reducer: int, bell: Channel) -> Script:
        queue = self.complete[reducer]
        while True:
            while not queue:
                self.resting.add(reducer)
                at_ps, _, _ = yield Get(bell)
                if at_ps < 0:
                    return
            _, number = heapq.heappop(queue)
            _, ps, _, message, other = self.sums[number]
            yield Wait(ps)
            self.summed[number] = self.clock.now_ps
            bells = self._inject(message) if message >= 0 else []
            if other >= 0:
                bells += self._fed(other)
            for each in bells:
                yield Put(each, (0, 0, 0))
            for channel, item in self._closed():
                yield Put(channel, item)

    def _output(self, output: Output) -> Script:
        get = Get(output.bell)
        while True:
            while not output.willing:
                output.idle = True
                at_ps, _, _ = yield get
                if at_ps < 0:
                    return
            now_ps = self.clock.now_ps
            queue, entry = output.asking.pop(self._chosen(output))
            output.last = queue.place
            message = queue.message
            if queue.endpoint:
                code = self.destinations[message]
                entry = -1 if code >= 0 else ~code
            size = self.sizes[message]
            self.carried[output.number] += size
            busy_ps = service_ps(size, output.bytes_per_s)
            tail_ps = now_ps + busy_ps if queue.endpoint else max(now_ps + busy_ps, queue.slots[0][2])
            queue.tail_ps = max(queue.tail_ps, tail_ps)
            queue.pending -= 1
            if not queue.pending:
                yield Put(queue.drain, (queue.tail_ps, 0, 0))
            arrives_ps = tail_ps + output.latency_ps
            if output.behind is None:
                yield Put(output.wire, (arrives_ps, message, 0))
            else:
                output.behind.slots.append((message, entry, arrives_ps))
                output.used += 1
                yield Put(output.wire, (now_ps + output.latency_ps if self.through else arrives_ps, message, 0))
            yield Compute(output.stream, busy_ps, TaskClass.COPY, message)

    def _chosen(self, output: Output) -> int:
        """Which of those that ask goes first."""
        asking = range(len(output.asking))
        if len(asking) == 1:
            return 0
        if self.arbitration == "round_robin":
            return min(asking, key=lambda at: (output.asking[at][0].place - output.last - 1) % output.inputs)

        def order(at: int) -> tuple[int, int, int]:
            message = output.asking[at][0].message
            return -self.urgent[message], self.ready[message], message

        return min(asking, key=order)


def run(tree: Tree, traffic: Traffic, switching: str, arbitration: str) -> Ran:
    """As `crossbar_messages.run`, by agents."""
    agents = Agents(tree, traffic, switching, arbitration)
    if not agents.open:
        nothing = np.zeros(0, np.int64)
        return Ran(nothing, nothing, np.zeros(tree.link_count, np.int64), 0, 0)
    return agents.run()
