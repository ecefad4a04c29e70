"""Simulation: agents that decide at run time, on the same clock and the same links as a plan.

An agent is a generator that yields commands and waits for them. At equal times agents resume in the order in which they were
spawned, and resources serve the first request first. Rates of flows are computed after all events of an instant.
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
from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput, TooLarge, TrainyardError
from trainyard.ir.plan import LONGEST_PS, Link, TaskClass, checked_flows, checked_integer

_BLOCKED = object()


class Deadlock(TrainyardError):
    """Agents wait, and no pending event can wake them."""


def _waiting_for(agent: Agent) -> str:
    """A description of what an agent waits for."""
    match agent.waiting_for:
        case Wait(ps):
            return f"{ps} ps"
        case Get(channel):
            return f"an item of {channel!r}"
        case Join(other):
            return f"{other!r} to end"
        case Compute(stream):
            return f"its task on {stream!r}"
        case Transfer():
            return "its transfer"
        case other:
            return repr(other)


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
        self._events: list[tuple[int, int, Callable[[], None] | Agent]] = []  # (time, order, an action or the agent to resume)
        self._order = 0
        self._arrivals: list[Callable[[], None]] = []  # by flow: the action at its last byte
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
        self._resources.append(Resource(name, capacity=checked_integer(count, f"semaphore {name!r}: count", least=1)))
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
        """Runs until every agent has ended. A simulation runs once."""
        if self._ran:
            raise BadInput("a simulation runs once: build a new one")
        self._ran = True
        while True:
            self._instant()
            flow_ps = self._network.next_end_ps() if self._arrivals else None
            if self._events:
                event_ps = self._events[0][0]
                self.now_ps = event_ps if flow_ps is None or event_ps < flow_ps else flow_ps
            elif flow_ps is not None:
                self.now_ps = flow_ps
            else:
                break
        waiting = [f"{agent.name} (for {_waiting_for(agent)})" for agent in self._agents if not agent.ended]
        if waiting:
            raise Deadlock(f"deadlock at {self.now_ps} ps: nothing can wake {', '.join(waiting)}")
        return self._timeline()

    def _instant(self) -> None:
        """All events at `now_ps`: flows end, scheduled actions run, agents resume."""
        now_ps, events, ready, agents, push, pop = (
            self.now_ps, self._events, self._ready, self._agents, heapq.heappush, heapq.heappop)  # fmt: skip
        if self._arrivals:
            for flow in self._network.take_ended(now_ps):
                self._arrivals[flow]()
        resume = self._resume
        while True:
            if events and events[0][0] == now_ps:
                _, order, due = pop(events)
                if not isinstance(due, Agent):
                    due()
                elif ready or (events and events[0][0] == now_ps):
                    push(ready, (due.number, order, None))
                else:  # the only event of this instant
                    resume(due, None)
                    continue
                if events and events[0][0] == now_ps:
                    continue
            if not ready:
                if events and events[0][0] == now_ps:
                    continue
                break
            while ready:
                number, _, value = pop(ready)
                resume(agents[number], value)
        if self._arrivals:
            self._network.settle(now_ps)

    def _resume(self, agent: Agent, value: Any) -> None:
        send = agent.script.send
        try:
            while True:
                agent.waiting_for = command = send(value)
                if type(command) is Wait and type(ps := command.ps) is int and ps >= 0 and (due := self.now_ps + ps) < LONGEST_PS:
                    self._order = order = self._order + 1  # as `_at` does, inlined: the most frequent command
                    heapq.heappush(self._events, (due, order, agent))
                    return
                value = self._execute(agent, command)
                if value is _BLOCKED:
                    return
        except StopIteration as stop:
            self._finish(agent, stop.value)
        except Exception as error:
            error.add_note(f"in {agent!r} at {self.now_ps} ps")
            raise

    def _execute(self, agent: Agent, command: Any) -> Any:
        """The value to send back to the agent, or _BLOCKED if it has to wait; the most frequent commands are tested first."""
        kind = type(command)  # several times as fast as patterns
        if kind is Wait:
            ps = command.ps
            self._at(ps if type(ps) is int and ps >= 0 else checked_integer(ps, f"{agent!r}: Wait"), agent)
        elif kind is Put:
            channel = command.channel
            if channel.readers:
                reader = channel.readers.popleft()
                if agent.behind:
                    reader.behind |= agent.behind
                self._wake(reader, command.item)
            else:
                channel.items.append((command.item, dict(agent.behind)))
            return None
        elif kind is Get:
            channel = command.channel
            if channel.items:
                item, giver_behind = channel.items.popleft()
                agent.behind |= giver_behind
                return item
            channel.readers.append(agent)
        elif (kind is Compute or kind is Transfer) and isinstance(command.stream, Resource):
            return self._request(agent, command.stream, command)
        elif kind is Transfer and command.stream is None:
            self._start(agent, command)
        elif kind is Acquire:
            return self._request(agent, command.resource, command)
        elif kind is Release:
            self._release(agent, command.resource)
            return None
        elif kind is Join:
            if command.agent.ended:
                agent.behind |= command.agent.behind
                return command.agent.value
            command.agent.joiners.append(agent)
        else:
            raise BadInput(f"{agent!r} yielded {command!r}: yield Wait, Compute, Transfer, Acquire, Release, Join, Put or Get")
        return _BLOCKED

    def _request(self, agent: Agent, resource: Resource, command: Command) -> Any:
        if not resource.holders and (resource.number >= 0 or type(command) is Acquire):  # free: the queue is empty
            return self._grant(agent, resource, command)
        if not isinstance(command, Acquire) and resource.number < 0:
            raise BadInput(f"{agent!r}: {resource!r} is not a stream: acquire and release it")
        if not isinstance(command, Acquire) and agent in resource.holders:
            self._start(agent, command)
        elif resource.queue or sum(resource.holders.values()) >= resource.capacity:
            agent.waiting_for = resource
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
        """Begins a task of the timeline; a stream that was taken only for it is released at its end."""
        assert isinstance(command, Compute | Transfer)
        task = len(self._tasks)
        stream = -1 if command.stream is None else command.stream.number
        kind = command.kind
        self._tasks.append([self.now_ps, -1, kind if type(kind) is TaskClass else TaskClass(kind), stream, command.tag])
        self._after.append(tuple(agent.behind))

        def end() -> None:
            self._tasks[task][1] = self.now_ps
            agent.behind = {task: None}
            if borrowed:
                self._release(agent, borrowed)
            self._wake(agent)

        if isinstance(command, Compute):
            agent.waiting_for, ps = command, command.ps
            self._at(ps if type(ps) is int and ps >= 0 else checked_integer(ps, f"{agent!r}: Compute"), end)
        else:
            agent.waiting_for = command
            self._transfer(agent, command, end)

    def _transfer(self, agent: Agent, command: Transfer, end: Callable[[], None]) -> None:
        requested: Any = command.flows if command.size is None else [(command.flows, command.size)]
        flows = checked_flows(requested, len(self._links), f"{agent!r}: Transfer")
        remaining = len(flows)

        def arrived() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                end()

        def move(path: tuple[int, ...], size: int) -> None:
            self._network.start(len(self._arrivals), path, size, self.now_ps)
            self._arrivals.append(arrived)

        for path, size in flows:
            latency_ps = sum(self._links[link].latency_ps for link in path)
            self._at(latency_ps, partial(move, path, size) if size else arrived)

    def _finish(self, agent: Agent, value: Any) -> None:
        if agent.held:
            unreleased = [repr(resource) for resource in self._resources if agent in resource.holders]
            raise BadInput(f"{agent!r} ended at {self.now_ps} ps and still holds {', '.join(unreleased)}: release it first")
        agent.ended, agent.value = True, value
        for joiner in agent.joiners:
            joiner.behind |= agent.behind
            self._wake(joiner, value)

    def _wake(self, agent: Agent, value: Any = None) -> None:
        self._order += 1
        heapq.heappush(self._ready, (agent.number, self._order, value))

    def _at(self, delay_ps: int, action: Callable[[], None] | Agent) -> None:
        if self.now_ps + delay_ps >= LONGEST_PS:
            raise TooLarge(f"the clock stops at 2**62 ps (53 days): {delay_ps} ps more at {self.now_ps} ps are too many")
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
