"""The static clock in plain Python: the twin that the compiled one is held against."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from trainyard.engine.network import Network
from trainyard.ir.plan import Plan

Observer = Callable[[int, dict[int, int]], None]


def schedule_reference(plan: Plan, observe: Observer | None = None) -> tuple[list[int], list[int]]:
    """When each task starts and ends, in picoseconds. `observe` is told (time, rate of each flow) when rates may have changed."""
    return _Clock(plan, observe).run()


class _Clock:
    def __init__(self, plan: Plan, observe: Observer | None) -> None:
        columns = plan.columns()
        count = len(plan)
        self._observe = observe
        self._network = Network(plan.links)
        self._duration = columns.duration_ps.tolist()
        self._paths = _rows(columns.path.tolist(), columns.path_ends.tolist())
        self._latency = [sum(plan.links[link].latency_ps for link in path) for path in self._paths]
        self._bytes = columns.flow_bytes.tolist()
        self._owner = columns.flow_task.tolist()
        self._flows: list[list[int]] = [[] for _ in range(count)]
        for flow, task in enumerate(self._owner):
            self._flows[task].append(flow)
        self._followers: list[list[int]] = [[] for _ in range(count)]
        self._waits = [0] * count
        last_on: dict[int, int] = {}
        for task, (stream, after) in enumerate(
            zip(columns.stream.tolist(), _rows(columns.after.tolist(), columns.after_ends.tolist()), strict=True)
        ):
            before = list(after)
            if stream >= 0:
                before += [last_on[stream]] if stream in last_on else []
                last_on[stream] = task
            self._waits[task] = len(before)
            for earlier in before:
                self._followers[earlier].append(task)
        self._open = [len(flows) for flows in self._flows]
        self._starts, self._ends = [-1] * count, [-1] * count
        self._events: list[tuple[int, str, int]] = []

    def run(self) -> tuple[list[int], list[int]]:
        for task in [task for task, waits in enumerate(self._waits) if waits == 0]:
            self._begin(task, 0)
        while (now := self._next()) is not None:
            for flow in self._network.take_ended(now):
                self._flow_done(flow, now)
            while self._events and self._events[0][0] == now:
                _, what, number = heapq.heappop(self._events)
                if what == "task":
                    self._end(number, now)
                elif self._bytes[number]:
                    self._network.start(number, self._paths[number], self._bytes[number], now)
                else:
                    self._flow_done(number, now)
            self._network.settle(now)
            if self._observe:
                self._observe(now, dict(self._network.rates))
        return self._starts, self._ends

    def _next(self) -> int | None:
        times = [self._network.next_end_ps(), self._events[0][0] if self._events else None]
        return min((time for time in times if time is not None), default=None)

    def _begin(self, task: int, now: int) -> None:
        self._starts[task] = now
        if not self._flows[task]:
            heapq.heappush(self._events, (now + self._duration[task], "task", task))
        for flow in self._flows[task]:
            heapq.heappush(self._events, (now + self._latency[flow], "flow", flow))

    def _flow_done(self, flow: int, now: int) -> None:
        task = self._owner[flow]
        self._open[task] -= 1
        if self._open[task] == 0:
            self._end(task, now)

    def _end(self, task: int, now: int) -> None:
        self._ends[task] = now
        for follower in self._followers[task]:
            self._waits[follower] -= 1
            if self._waits[follower] == 0:
                self._begin(follower, now)


def _rows(values: list[int], ends: list[int]) -> list[tuple[int, ...]]:
    return [tuple(values[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
