"""Rounds: groups of workers that take local steps and exchange from time to time, simulated as agents on the engine's clock.

A group is a cluster of DPUs, or all workers where they run in lockstep. Its agent takes local steps, requests the token and waits
for the other groups. Which group holds a token at which time, and which group exchanges, is decided during the simulation (as by
DIRECT's DSC). Every decision is written into a Plan: running that plan gives every event the same start time (a test checks it) and
books time, energy and bytes as for any other system.

- *barrier*: all groups take their local steps; each enters the round by token, if there are tokens; the exchange starts when the
  last group has entered, and its end releases all groups. One round is the steady state.
- *in turn* (elastic averaging): a group that has finished its local steps exchanges with the centre, one group at a time.
- *literal* (Algorithm 1 as printed): a group waits for nothing but the token; its holder exchanges alone, and the broadcast resets
  the staleness of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from trainyard.engine import Compute, Get, Put, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import priority_of
from trainyard.ir import DeviceCost, Phase, Step, Work
from trainyard.ir.booking import Traffic
from trainyard.ir.plan import Plan, TaskClass
from trainyard.mapping.algorithms import Algorithm, Direct
from trainyard.systems.work_rows import book_work, traffic_of
from trainyard.units import PICOSECONDS_PER_SECOND

MOST_STEPS = 2_000_000
LITERAL_ROUNDS = 4
"""Exchanges of every group that are simulated where there is no barrier: groups start in lockstep and drift apart later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """Communication with its duration and cost: the `exchange` of all groups, the `reduce` inside a group, or the `token`."""

    name: str
    ps: int
    resource: str
    energy: Mapping[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=dict)
    bound: str = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Workers that step as one: the Works of their device, with the cost, duration and energy of each Work for one worker."""

    name: str
    workers: int
    works: Sequence[Work]
    costs: Sequence[DeviceCost]
    durations_ps: Sequence[int]
    energies: Sequence[Mapping[str, float]]
    template: int = 0
    """Groups with the same template number have equal devices: their costs are booked to the same rows."""

    @property
    def step_ps(self) -> int:
        return sum(self.durations_ps)


@dataclass(frozen=True, slots=True)
class GroupTemplate:
    """What groups with equal devices share: the booking rows of their ops, and (tag, ps) of each task of a local step."""

    rows: Sequence[int]
    tasks: Sequence[tuple[int, int]]


class TokenSource(Protocol):
    """Grants the token to one group at a time: the DSC, or a host."""

    def acquire(self, cluster: int, priority: int = 0) -> Script: ...

    def release(self, cluster: int) -> Script: ...


def _pass_of(phase: Phase) -> str:
    return "backward" if phase.backward else "update" if phase is Phase.UPDATE else "forward"


class Rounds:
    """Builds the plan of one round, or of `LITERAL_ROUNDS` rounds where the algorithm has no barrier.

    `enter_ps` is how long a group holds the token to enter a round, `priorities` how many priorities the token source
    distinguishes. `static_w` is drawn by all workers at all times (local steps book their part of it themselves), `component_w` by
    components other than the workers.
    """

    def __init__(
        self,
        step: Step,
        groups: Sequence[WorkerGroup],
        *,
        algorithm: Algorithm,
        local_steps: Sequence[int],
        reduce: TimedEvent | None,
        exchange: TimedEvent | None,
        token: TimedEvent | None = None,
        token_source: Callable[[Simulation], TokenSource] | None = None,
        enter_ps: int = 0,
        priorities: int = 1,
        static_w: float = 0.0,
        component_w: Mapping[str, float] | None = None,
    ) -> None:
        self.step, self.groups, self.algorithm = step, groups, algorithm
        self.local_steps = local_steps
        self.events = {"reduce": reduce, "exchange": exchange, "token": token}
        self.built = Plan()
        self.simulation = Simulation()
        self.token_source = token_source(self.simulation) if token_source is not None else None
        self.enter_ps, self.priorities = enter_ps, priorities
        self.static_w, self.component_w = static_w, component_w or {}
        self.streams = [self.built.stream(group.name) for group in groups]
        self.shared = self.built.stream(exchange.resource) if exchange is not None else -1
        self.links = self.simulation.stream("links between groups")  # one exchange at a time
        self.tags: dict[str, int] = {}
        self.templates: dict[int, GroupTemplate] = {}
        self.steps_done = [0] * len(groups)
        self.event_counts: dict[str, int] = {}  # over all groups
        self.last: list[list[int]] = [[] for _ in groups]  # the tasks that a group's next task depends on
        self.first_step: list[int] = []  # tasks of the first group's first local step
        self.released: list[tuple[int, int]] = []  # (time, task) of every release of the token
        self.entered: list[int] = []
        self.updated_ps = [0] * len(groups)  # when a group last received a global update
        self.staleness = [0] * len(groups)

    def plan(self) -> Plan:
        self._require_few_steps()
        self._book_rows()
        self.gates = [self.simulation.channel(f"{group.name}'s gate") for group in self.groups]
        script = self._with_barrier if self._barrier else self._in_turn if self.algorithm.between == "centre" else self._literal
        for number, group in enumerate(self.groups):
            self.simulation.spawn(script(number), name=group.name)
        self.simulation.run()
        self._book_totals()
        return self.built

    def _require_few_steps(self) -> None:
        steps = sum(self.local_steps) * (1 if self._barrier else LITERAL_ROUNDS)
        if steps > MOST_STEPS:
            raise BadInput(
                f"{steps:.3g} local steps from one exchange to the next are too many to simulate: "
                "with so large a tau a step takes what a local step does; give a smaller one"
            )

    @property
    def _barrier(self) -> bool:
        """Whether every group waits for all others."""
        literal = isinstance(self.algorithm, Direct) and self.algorithm.update == "literal"
        return not literal and self.algorithm.between != "centre"

    # booking

    def _book_rows(self) -> None:
        """A row for each op of each template and for each event, with the cost of one; `_book_totals` multiplies by the count."""
        booking = self.built.booking
        for group in self.groups:
            if group.template not in self.templates:
                tags = [
                    book_work(booking, self.step, work, cost, energy, traffic_of(cost), group.name)
                    for work, cost, energy in zip(group.works, group.costs, group.energies, strict=True)
                ]
                rows = [row for tag in tags for row in booking.entries[tag][0]]
                self.templates[group.template] = GroupTemplate(rows, self._step_tasks(group, tags))
        for name, event in self.events.items():
            if event is not None:
                row = booking.row(
                    event.name, layer="", phase="update", resource=event.resource, kind="synchronisation", bound=event.bound,
                    energy=event.energy, traffic=event.traffic,
                )  # fmt: skip
                self.tags[name] = booking.entry([row])

    def _step_tasks(self, group: WorkerGroup, tags: Sequence[int]) -> list[tuple[int, int]]:
        """(tag, ps) of the tasks of a local step: one per Work where there is one group, else forward, backward and update.

        All groups have the same division, so that it does not matter which of several equal tasks owns an instant.
        """
        if len(self.groups) == 1:
            return list(zip(tags, group.durations_ps, strict=True))
        booking, tasks = self.built.booking, []
        timed_works = zip(group.works, tags, group.durations_ps, strict=True)
        for _, works in groupby(timed_works, key=lambda timed: _pass_of(self.step.ops[timed[0].ops[0]].phase)):
            entries = [(booking.entries[tag], ps) for _, tag, ps in works]
            duration_ps = sum(ps for _, ps in entries)
            rows = [row for (own, _), _ in entries for row in own]
            shares = [share * ps / max(1, duration_ps) for (_, own), ps in entries for share in own]
            tasks.append((booking.entry(rows, shares), duration_ps))
        return tasks

    def _book_totals(self) -> None:
        booking = self.built.booking
        counts: dict[int, int] = {}
        for group, done in zip(self.groups, self.steps_done, strict=True):
            for row in self.templates[group.template].rows:
                counts[row] = counts.get(row, 0) + group.workers * done
        for name, tag in self.tags.items():
            counts[booking.entries[tag][0][0]] = self.event_counts.get(name, 0)
        for row, count in counts.items():
            booking.macs[row] *= count
            booking.energy[row] = {component: joules * count for component, joules in booking.energy[row].items()}
            booking.traffic[row] = {key: moved * count for key, moved in booking.traffic[row].items()}
        self._book_static_energy()
        booking.steps = max(self.steps_done)
        booking.samples = self.step.batch * sum(g.workers * done for g, done in zip(self.groups, self.steps_done, strict=True))

    def _book_static_energy(self) -> None:
        """Static power over the whole time, less what the local steps have already booked."""
        booking, seconds = self.built.booking, self.simulation.now_ps / PICOSECONDS_PER_SECOND
        booked = sum(energy.get("static", 0.0) for energy in booking.energy)
        static = {
            "static": max(0.0, self.static_w * seconds - booked),
            **{component: watts * seconds for component, watts in self.component_w.items()},
        }
        if any(static.values()):
            booking.row("wait", layer="", phase="idle", resource="DPUs", kind="idle", bound="idle", energy=static)

    # agents: `number` is that of a group

    def _task(self, stream: int, ps: int, after: Sequence[int], tag: int, kind: TaskClass = TaskClass.COMPUTE) -> int:
        return self.built.task(stream, ps, after=sorted(set(after)), kind=kind, tag=tag)

    def _event(self, number: int, name: str, ps: int, after: Sequence[int], stream: int | None = None) -> None:
        """Adds the task of a communication event that a group performs or waits for."""
        self.event_counts[name] = self.event_counts.get(name, 0) + 1
        own_stream = self.streams[number] if stream is None else stream
        self.last[number] = [self._task(own_stream, ps, after, self.tags[name], TaskClass.SYNCHRONISATION)]

    def _local_step(self, number: int) -> Script:
        group = self.groups[number]
        for tag, ps in self.templates[group.template].tasks:
            self.last[number] = [self._task(self.streams[number], ps, self.last[number], tag)]
            if number == 0 and not self.steps_done[number]:
                self.first_step.append(self.last[number][0])
        reduce = self.events["reduce"]
        yield Wait(group.step_ps)
        if reduce is not None:
            self._event(number, "reduce", reduce.ps, self.last[number])
            yield Wait(reduce.ps)
        self.steps_done[number] += 1
        self.staleness[number] += 1

    def _take_token(self, number: int) -> Script:
        """From the request to the grant; the handover between two holders is booked to the second one."""
        assert self.token_source is not None
        requested_ps = self.simulation.now_ps
        yield from self.token_source.acquire(number, self._priority(number))
        releases = [(when, task) for when, task in self.released if requested_ps < when <= self.simulation.now_ps]
        since, release = max(releases, default=(requested_ps, -1))
        self._event(number, "token", self.simulation.now_ps - since, [*self.last[number], *([release] if release >= 0 else [])])

    def _give_token(self, number: int) -> Script:
        assert self.token_source is not None
        started_ps = self.simulation.now_ps
        yield from self.token_source.release(number)
        if self.simulation.now_ps > started_ps:
            self._extend_token(number, self.simulation.now_ps - started_ps)
        self.released.append((self.simulation.now_ps, self.last[number][0]))

    def _extend_token(self, number: int, ps: int) -> None:
        """More time with the same token: it counts once."""
        self.event_counts["token"] -= 1
        self._event(number, "token", ps, self.last[number])

    def _with_barrier(self, number: int) -> Script:
        for _ in range(self.local_steps[number]):
            yield from self._local_step(number)
        if self.token_source is not None:
            yield from self._take_token(number)
            if self.enter_ps:
                self._extend_token(number, self.enter_ps)
                yield Wait(self.enter_ps)
            yield from self._give_token(number)
        self.entered.append(number)
        exchange = self.events["exchange"]
        if exchange is None:
            return
        if len(self.entered) < len(self.groups):
            yield Get(self.gates[number])
            return
        last_tasks = [task for tasks in self.last for task in tasks]
        self._event(number, "exchange", exchange.ps, last_tasks, self.shared)
        yield Compute(self.links, exchange.ps)
        for other, gate in enumerate(self.gates):
            if other != number:
                yield Put(gate)

    def _in_turn(self, number: int) -> Script:
        exchange = self.events["exchange"]
        while self._unfinished:
            for _ in range(self.local_steps[number]):
                yield from self._local_step(number)
            if exchange is not None:
                self._event(number, "exchange", exchange.ps, self.last[number], self.shared)
                yield Compute(self.links, exchange.ps)

    def _literal(self, number: int) -> Script:
        algorithm, exchange = self.algorithm, self.events["exchange"]
        assert isinstance(algorithm, Direct)
        while self._unfinished:
            yield from self._local_step(number)
            if exchange is None or not self._stale(number, algorithm):
                continue
            if self.token_source is not None:
                yield from self._take_token(number)
            if not algorithm.recheck or self._stale(number, algorithm):
                self._event(number, "exchange", exchange.ps, self.last[number], self.shared)
                yield Compute(self.links, exchange.ps)
                yield Wait(0)  # steps that end at this instant end before the update arrives
                self.staleness = [0] * len(self.groups)
                self.updated_ps = [self.simulation.now_ps] * len(self.groups)
            if self.token_source is not None:
                yield from self._give_token(number)

    @property
    def _unfinished(self) -> bool:
        """Whether any group has rounds left; a group that has finished its own goes on until the last one has."""
        return any(done < LITERAL_ROUNDS * steps for done, steps in zip(self.steps_done, self.local_steps, strict=True))

    def _age(self, number: int, algorithm: Direct) -> tuple[int, float]:
        """A group's staleness and tau, both in steps or both in picoseconds."""
        if algorithm.unit == "steps":
            return self.staleness[number], algorithm.tau
        return self.simulation.now_ps - self.updated_ps[number], round(algorithm.tau * PICOSECONDS_PER_SECOND)

    def _priority(self, number: int) -> int:
        """The more stale a group is, the higher its priority."""
        if not isinstance(self.algorithm, Direct):
            return 0
        return priority_of(*self._age(number, self.algorithm), self.priorities)

    def _stale(self, number: int, algorithm: Direct) -> bool:
        age, tau = self._age(number, algorithm)
        return age > tau
