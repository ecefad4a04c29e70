"""Simulation: agents that decide at run time, on the same clock and the same links as a plan.

An agent is a generator that yields what it wants to wait for. At equal times agents go on in the order of their spawning, and
resources serve those who asked first. Rates of flows are shared anew once all that happens at an instant has happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trainyard.engine.commands import (
    Acquire,
    Agent,
    Channel,
    Command,
    Compute,
    Get,
    Join,
    Put,
    Release,
    Resource,
    Script,
    Transfer,
    Wait,
)
from trainyard.engine.network import Network
from trainyard.errors import BadInput, TrainyardError
from trainyard.ir.plan import LONGEST_PS, Link, TaskClass, checked_flows, whole
from trainyard.timeline import Timeline

_BLOCKED = object()


class Deadlock(TrainyardError):
    """Agents wait, and nothing is under way that could wake them."""


class Simulation:
    """Streams, links, semaphores, channels, and the agents that use them.

    >>> simulation = Simulation()
    >>> device, bus = simulation.stream("device"), simulation.link("bus", bytes_per_s=1e12)
    >>> def worker(layers):
    ...     for layer in range(layers):
    ...         yield Transfer([bus], 300, tag=layer)
    ...         yield Compute(device, 1000, tag=layer)
    >>> worker_agent = simulation.spawn(worker(2), name="worker")
    >>> simulation.run().end_ps
    2600
    """

    def __init__(self) -> None:
        self.now_ps = 0
        self._streams: list[str] = []
        self._resources: list[Resource] = []
        self._links: list[Link] = []
        self._network = Network(self._links)
        self._agents: list[Agent] = []
        self._ready: list[tuple[int, int, Any]] = []  # (agent, order, value to send); by agent
        self._events: list[tuple[int, int, Callable[[], None]]] = []  # (time, order, what happens)
        self._order = 0
        self._arrivals: list[Callable[[], None]] = []  # by flow: what its last byte sets off
        self._tasks: list[list[int]] = []  # start, end, class, stream, tag
        self._after: list[tuple[int, ...]] = []
        self._ran = False

    def stream(self, name: str) -> Resource:
        """A resource that one agent at a time computes on."""
        self._streams.append(name)
        self._resources.append(Resource(name, number=len(self._streams) - 1))
        return self._resources[-1]

    def semaphore(self, name: str, count: int = 1) -> Resource:
        """`count` units that agents acquire and release."""
        self._resources.append(Resource(name, capacity=whole(count, f"semaphore {name!r}: count", least=1)))
        return self._resources[-1]

    def link(self, name: str, bytes_per_s: float, latency_s: float = 0.0) -> int:
        """A link whose bandwidth the flows that cross it share fairly."""
        self._links.append(Link.of(name, bytes_per_s, latency_s))
        return len(self._links) - 1

    def channel(self, name: str) -> Channel:
        """A mailbox between agents: tokens, gradients, versions."""
        return Channel(name)

    def spawn(self, script: Script, *, name: str = "") -> Agent:
        """Starts an agent now (at time 0 before `run`)."""
        if not hasattr(script, "send"):
            raise BadInput(f"spawn takes a generator, got {script!r}: call the function that yields")
        number = len(self._agents)
        agent = Agent(number, name or f"agent {number}", script)
        self._agents.append(agent)
        self._wake(agent)
        return agent

    def run(self) -> Timeline:
        """Until every agent has ended. A simulation runs once."""
        if self._ran:
            raise BadInput("a simulation runs once: build a new one")
        self._ran = True
        while True:
            self._instant()
            coming = [self._network.next_end_ps(), self._events[0][0] if self._events else None]
            if coming == [None, None]:
                break
            self.now_ps = min(time for time in coming if time is not None)
        waiting = [f"{agent.name} (for {agent.waiting_for})" for agent in self._agents if not agent.ended]
        if waiting:
            raise Deadlock(f"deadlock at {self.now_ps} ps: nothing can wake {', '.join(waiting)}")
        return self._timeline()

    def _instant(self) -> None:
        """All that happens at `now_ps`: flows end, what was due falls due, agents go on."""
        for flow in self._network.take_ended(self.now_ps):
            self._arrivals[flow]()
        while self._ready or (self._events and self._events[0][0] == self.now_ps):
            while self._events and self._events[0][0] == self.now_ps:
                heapq.heappop(self._events)[2]()
            while self._ready:
                number, _, value = heapq.heappop(self._ready)
                self._resume(self._agents[number], value)
        self._network.settle(self.now_ps)

    def _resume(self, agent: Agent, value: Any) -> None:
        agent.waiting_for = ""
        while value is not _BLOCKED:
            try:
                command = agent.script.send(value)
                value = self._obey(agent, command)
            except StopIteration as stop:
                self._finish(agent, stop.value)
                return
            except Exception as error:
                error.add_note(f"in {agent!r} at {self.now_ps} ps")
                raise

    def _obey(self, agent: Agent, command: Command) -> Any:
        """What the agent is sent back, or _BLOCKED when it has to wait."""
        match command:
            case Wait(ps):
                agent.waiting_for = f"{ps} ps"
                self._at(whole(ps, f"{agent!r}: Wait"), lambda: self._wake(agent))
            case Compute(stream=Resource() as stream):
                return self._request(agent, stream, command)
            case Transfer(stream=None):
                self._start(agent, command)
            case Transfer(stream=Resource() as stream):
                return self._request(agent, stream, command)
            case Acquire(resource):
                return self._request(agent, resource, command)
            case Release(resource):
                self._release(agent, resource)
                return None
            case Join(other):
                if other.ended:
                    agent.behind |= other.behind
                    return other.value
                agent.waiting_for = f"{other!r} to end"
                other.joiners.append(agent)
            case Put(channel, item):
                self._put(agent, channel, item)
                return None
            case Get(channel):
                if channel.items:
                    item, giver_behind = channel.items.popleft()
                    agent.behind |= giver_behind
                    return item
                agent.waiting_for = f"an item of {channel!r}"
                channel.readers.append(agent)
            case _:
                raise BadInput(f"{agent!r} yielded {command!r}: yield Wait, Compute, Transfer, Acquire, Release, Join, Put or Get")
        return _BLOCKED

    def _request(self, agent: Agent, resource: Resource, command: Command) -> Any:
        if not isinstance(command, Acquire) and resource.number < 0:
            raise BadInput(f"{agent!r}: {resource!r} is not a stream: acquire and release it")
        if not isinstance(command, Acquire) and agent in resource.holders:
            self._start(agent, command)
        elif resource.queue or sum(resource.holders.values()) >= resource.capacity:
            agent.waiting_for = repr(resource)
            resource.queue.append((agent, command))
        else:
            return self._grant(agent, resource, command)
        return _BLOCKED

    def _grant(self, agent: Agent, resource: Resource, command: Command) -> Any:
        resource.holders[agent] = resource.holders.get(agent, 0) + 1
        agent.held += 1
        agent.behind |= resource.behind
        if isinstance(command, Acquire):
            return None
        self._start(agent, command, borrowed=resource)
        return _BLOCKED

    def _release(self, agent: Agent, resource: Resource) -> None:
        if agent not in resource.holders:
            raise BadInput(f"{agent!r} releases {resource!r}, which it does not hold")
        resource.holders[agent] -= 1
        agent.held -= 1
        if not resource.holders[agent]:
            del resource.holders[agent]
        resource.behind = dict(agent.behind)
        if resource.queue:
            follower, command = resource.queue.popleft()
            if self._grant(follower, resource, command) is not _BLOCKED:
                self._wake(follower)

    def _start(self, agent: Agent, command: Command, borrowed: Resource | None = None) -> None:
        """A task of the timeline begins; a stream that was taken for it alone is let go at its end."""
        assert isinstance(command, Compute | Transfer)
        task = len(self._tasks)
        stream = -1 if command.stream is None else command.stream.number
        self._tasks.append([self.now_ps, -1, TaskClass(command.kind), stream, command.tag])
        self._after.append(tuple(agent.behind))

        def end() -> None:
            self._tasks[task][1] = self.now_ps
            agent.behind = {task: None}
            if borrowed:
                self._release(agent, borrowed)
            self._wake(agent)

        if isinstance(command, Compute):
            agent.waiting_for = f"its task on {command.stream!r}"
            self._at(whole(command.ps, f"{agent!r}: Compute"), end)
        else:
            agent.waiting_for = "its transfer"
            self._transfer(agent, command, end)

    def _transfer(self, agent: Agent, command: Transfer, end: Callable[[], None]) -> None:
        given: Any = command.flows if command.size is None else [(command.flows, command.size)]
        flows = checked_flows(given, len(self._links), f"{agent!r}: Transfer")
        under_way = len(flows)

        def arrived() -> None:
            nonlocal under_way
            under_way -= 1
            if not under_way:
                end()

        def move(path: tuple[int, ...], size: int) -> None:
            self._network.start(len(self._arrivals), path, size, self.now_ps)
            self._arrivals.append(arrived)

        for path, size in flows:
            latency_ps = sum(self._links[link].latency_ps for link in path)
            self._at(latency_ps, partial(move, path, size) if size else arrived)

    def _put(self, agent: Agent, channel: Channel, item: Any) -> None:
        if channel.readers:
            reader = channel.readers.popleft()
            reader.behind |= agent.behind
            self._wake(reader, item)
        else:
            channel.items.append((item, dict(agent.behind)))

    def _finish(self, agent: Agent, value: Any) -> None:
        if agent.held:
            held = [repr(resource) for resource in self._resources if agent in resource.holders]
            raise BadInput(f"{agent!r} ended at {self.now_ps} ps and still holds {', '.join(held)}: release it first")
        agent.ended, agent.value = True, value
        for joiner in agent.joiners:
            joiner.behind |= agent.behind
            self._wake(joiner, value)

    def _wake(self, agent: Agent, value: Any = None) -> None:
        self._order += 1
        heapq.heappush(self._ready, (agent.number, self._order, value))

    def _at(self, delay_ps: int, action: Callable[[], None]) -> None:
        if self.now_ps + delay_ps >= LONGEST_PS:
            raise BadInput(f"the clock stops at 2**62 ps (53 days): {delay_ps} ps more at {self.now_ps} ps are too many")
        self._order += 1
        heapq.heappush(self._events, (self.now_ps + delay_ps, self._order, action))

    def _timeline(self) -> Timeline:
        columns = np.array(self._tasks, np.int64).reshape(-1, 5)
        starts_ps, ends_ps, kinds, streams, tags = np.ascontiguousarray(columns.T)
        return Timeline(
            starts_ps=starts_ps,
            ends_ps=ends_ps,
            kinds=kinds,
            streams=streams,
            tags=tags,
            after_ends=np.cumsum([len(after) for after in self._after], dtype=np.int64),
            after=np.array([task for after in self._after for task in after], np.int64),
            stream_names=tuple(self._streams),
        )
