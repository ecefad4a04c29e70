"""The clock that collectives are measured with: every message of every chunk over every wire."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque

import pytest


class MessageClock:
    """Each wire sends one message at a time: first come, first served, or its streams in turn where messages name one.

    A message that has been sent is at the other end after the wire's latency, and goes on from there; `run` says when the last
    one was.
    """

    def __init__(self, topology):
        self.topology, self.events, self.now, self.order = topology, [], 0.0, 0
        self.waiting, self.busy, self.carried = defaultdict(dict), set(), defaultdict(int)

    def at(self, time_s, call):
        self.order += 1
        heapq.heappush(self.events, (time_s, self.order, call))

    def send(self, arcs, size, arrived, stream=None):
        self.waiting[arcs[0]].setdefault(stream, deque()).append((arcs, size, arrived))
        self.start(arcs[0])

    def start(self, arc):
        streams = self.waiting[arc]
        stream = next((name for name, queue in streams.items() if queue), self)
        if arc in self.busy or stream is self:
            return
        arcs, size, arrived = streams[stream].popleft()
        streams[stream] = streams.pop(stream)  # to the end of the line
        wire = self.topology.wires[arc[0]]
        self.busy.add(arc)
        self.carried[arc] += size
        sent = self.now + size / wire.bytes_per_s
        self.at(sent, lambda: (self.busy.discard(arc), self.start(arc)))
        onward = arrived if len(arcs) == 1 else lambda: self.send(arcs[1:], size, arrived, stream)
        self.at(sent + wire.latency_s, onward)

    def run(self):
        last = 0.0
        while self.events:
            self.now, _, call = heapq.heappop(self.events)
            call()
            last = self.now
        return last


@pytest.fixture(scope="session")
def message_clock():
    return MessageClock
