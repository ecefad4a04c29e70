"""Rounds: workers in groups that step by themselves and exchange now and then, as agents on the engine's clock.

A group is a cluster of DPUs, or all workers where they go in step. Its agent steps, asks for the token, waits for the others; who
holds a token when, and who exchanges, is decided as the clock runs (DIRECT's DSC). What was decided is written into a Plan as it
happens: the plan's own run gives every act the same start (a test), and books time, energy and bytes like that of any system.

- *together*: all groups do their local steps; each enters the round by token, if there are tokens; the last one's entry starts the
  exchange, whose end sets all going again. One round is the steady state.
- *in turn* (elastic averaging): a group that has done its steps exchanges with the centre, one group at a time, and goes on.
- *literal* (Algorithm 1 as printed): nobody waits for anybody but for the token; its holder exchanges alone, and what it broadcasts
  resets the staleness of all.
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
from trainyard.systems.single import enter, off_chip
from trainyard.units import PICOSECONDS_PER_SECOND

MOST_STEPS = 2_000_000
LITERAL_ROUNDS = 4
"""So many exchanges of every group are simulated where nobody waits for all: the first finds them in step, later ones do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What takes time beside the workers' own steps: once for all of them (`exchange`), or in each group (`reduce`)."""

    name: str
    ps: int
    resource: str
    energy: Mapping[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=dict)
    bound: str = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Workers that step as one: their device's works with what each costs, in time and in joules, for all of them together."""

    name: str
    workers: int
    works: Sequence[Work]
    costs: Sequence[DeviceCost]
    durations_ps: Sequence[int]
    energies: Sequence[Mapping[str, float]]
    kind: int = 0
    """Groups of one kind are alike: their costs go to the same rows."""

    @property
    def step_ps(self) -> int:
        return sum(self.durations_ps)


@dataclass(frozen=True, slots=True)
class Kind:
    """What groups that are alike share: the rows of their ops, and (tag, ps) of what a step is to the plan."""

    rows: Sequence[int]
    segments: Sequence[tuple[int, int]]


class Desk(Protocol):
    """Who hands out tokens: the DSC, or a host."""

    def acquire(self, cluster: int, priority: int = 0) -> Script: ...

    def release(self, cluster: int) -> Script: ...


def _part(phase: Phase) -> str:
    return "backward" if phase.backward else "update" if phase is Phase.UPDATE else "forward"


class Rounds:
    """One plan in the making."""

    def __init__(
        self,
        step: Step,
        groups: Sequence[Group],
        *,
        algorithm: Algorithm,
        local_steps: Sequence[int],
        reduce: Act | None,
        exchange: Act | None,
        token: Act | None = None,
        desk: Callable[[Simulation], Desk] | None = None,
        enter_ps: int = 0,
        priorities: int = 1,
        static_w: float = 0.0,
        beside: Mapping[str, float] | None = None,
    ) -> None:
        self.step, self.groups, self.algorithm = step, groups, algorithm
        self.local_steps = local_steps
        self.acts = {"reduce": reduce, "exchange": exchange, "token": token}
        self.built = Plan()
        self.simulation = Simulation()
        self.desk = desk(self.simulation) if desk is not None else None
        self.enter_ps = enter_ps  # a token is held so long to enter a round
        self.priorities = priorities  # that the desk tells apart; the stalest come first
        self.static_w = static_w  # of all workers, at work or not; what they draw in their steps is in the steps' own energies
        self.beside = beside or {}  # watts by component that are drawn at all times
        self.streams = [self.built.stream(group.name) for group in groups]
        self.shared = self.built.stream(exchange.resource) if exchange is not None else -1
        self.links = self.simulation.stream("links between groups")  # one exchange at a time
        self.tags: dict[str, int] = {}
        self.kinds: dict[int, Kind] = {}
        self.steps_done = [0] * len(groups)
        self.happened: dict[str, int] = {}  # act -> how often, over all groups
        self.last: list[list[int]] = [[] for _ in groups]  # the tasks that a group's next one comes after
        self.first_step: list[int] = []  # tasks of the first group
        self.released: list[tuple[int, int]] = []  # (when, task): tokens given back
        self.entered: list[int] = []
        self.updated_ps = [0] * len(groups)  # when a group last took in a global update
        self.staleness = [0] * len(groups)

    def plan(self) -> Plan:
        self._require_few()
        self._rows()
        self.gates = [self.simulation.channel(f"{group.name}'s gate") for group in self.groups]
        script = self._together if self._barrier else self._in_turn if self.algorithm.between == "centre" else self._literal
        for number, group in enumerate(self.groups):
            self.simulation.spawn(script(number), name=group.name)
        self.simulation.run()
        self._totals()
        return self.built

    def _require_few(self) -> None:
        steps = sum(self.local_steps) * (1 if self._barrier else LITERAL_ROUNDS)
        if steps > MOST_STEPS:
            raise BadInput(
                f"{steps:.3g} local steps from one exchange to the next are too many to simulate: "
                "with so large a tau a step takes what a local step does; give a smaller one"
            )

    @property
    def _barrier(self) -> bool:
        """All wait for all."""
        literal = isinstance(self.algorithm, Direct) and self.algorithm.update == "literal"
        return not literal and self.algorithm.between != "centre"

    # what is booked

    def _rows(self) -> None:
        """A row for each op of each kind of group, and for each act; what they cost is entered when it is known how often."""
        booking = self.built.booking
        for group in self.groups:
            if group.kind not in self.kinds:
                tags = [
                    enter(booking, self.step, work, cost, energy, off_chip(cost), group.name)
                    for work, cost, energy in zip(group.works, group.costs, group.energies, strict=True)
                ]
                rows = [row for tag in tags for row in booking.entries[tag][0]]
                self.kinds[group.kind] = Kind(rows, self._segments(group, tags))
        for name, act in self.acts.items():
            if act is not None:
                row = booking.row(
                    act.name, layer="", phase="update", resource=act.resource, kind="synchronisation", bound=act.bound,
                    energy=act.energy, traffic=act.traffic,
                )  # fmt: skip
                self.tags[name] = booking.entry([row])

    def _segments(self, group: Group, tags: Sequence[int]) -> list[tuple[int, int]]:
        """(tag, ps) of what a step is to the plan: each work of a group alone, else forward, backward and update.

        All groups are cut alike: of equal tasks at an instant one owns it, and then it does not matter which.
        """
        if len(self.groups) == 1:
            return list(zip(tags, group.durations_ps, strict=True))
        booking, found = self.built.booking, []
        timed = zip(group.works, tags, group.durations_ps, strict=True)
        for _, works in groupby(timed, key=lambda one: _part(self.step.ops[one[0].ops[0]].phase)):
            parts = [(booking.entries[tag], ps) for _, tag, ps in works]
            whole = sum(ps for _, ps in parts)
            rows = [row for (own, _), _ in parts for row in own]
            shares = [share * ps / max(1, whole) for (_, own), ps in parts for share in own]
            found.append((booking.entry(rows, shares), whole))
        return found

    def _totals(self) -> None:
        """Every row times how often it was done."""
        booking = self.built.booking
        times: dict[int, int] = {}
        for group, done in zip(self.groups, self.steps_done, strict=True):
            for row in self.kinds[group.kind].rows:
                times[row] = times.get(row, 0) + group.workers * done
        for name, tag in self.tags.items():
            times[booking.entries[tag][0][0]] = self.happened.get(name, 0)
        for row, count in times.items():
            booking.macs[row] *= count
            booking.energy[row] = {part: joules * count for part, joules in booking.energy[row].items()}
            booking.traffic[row] = {key: moved * count for key, moved in booking.traffic[row].items()}
        self._book_waiting()
        booking.steps = max(self.steps_done)
        booking.samples = self.step.batch * sum(g.workers * done for g, done in zip(self.groups, self.steps_done, strict=True))

    def _book_waiting(self) -> None:
        """What is drawn whoever works: all of it over all of the time, less what steps have booked for themselves."""
        booking, seconds = self.built.booking, self.simulation.now_ps / PICOSECONDS_PER_SECOND
        booked = sum(energy.get("static", 0.0) for energy in booking.energy)
        waiting = {"static": max(0.0, self.static_w * seconds - booked), **{part: w * seconds for part, w in self.beside.items()}}
        if any(waiting.values()):
            booking.row("wait", layer="", phase="idle", resource="DPUs", kind="idle", bound="idle", energy=waiting)

    # what happens

    def _task(self, stream: int, ps: int, after: Sequence[int], tag: int, kind: TaskClass = TaskClass.COMPUTE) -> int:
        return self.built.task(stream, ps, after=sorted(set(after)), kind=kind, tag=tag)

    def _act(self, number: int, name: str, ps: int, after: Sequence[int], stream: int | None = None) -> None:
        """Something that `number` does or waits for, from now on or until now."""
        self.happened[name] = self.happened.get(name, 0) + 1
        where = self.streams[number] if stream is None else stream
        self.last[number] = [self._task(where, ps, after, self.tags[name], TaskClass.SYNCHRONISATION)]

    def _local_step(self, number: int) -> Script:
        group = self.groups[number]
        for tag, ps in self.kinds[group.kind].segments:
            self.last[number] = [self._task(self.streams[number], ps, self.last[number], tag)]
            if number == 0 and not self.steps_done[number]:
                self.first_step.append(self.last[number][0])
        reduce = self.acts["reduce"]
        yield Wait(group.step_ps)
        if reduce is not None:
            self._act(number, "reduce", reduce.ps, self.last[number])
            yield Wait(reduce.ps)
        self.steps_done[number] += 1
        self.staleness[number] += 1

    def _take_token(self, number: int) -> Script:
        """From asking to holding; what lies between two holders is booked to the second."""
        assert self.desk is not None
        asked = self.simulation.now_ps
        yield from self.desk.acquire(number, self._priority(number))
        before = [(when, task) for when, task in self.released if asked < when <= self.simulation.now_ps]
        since, behind = max(before, default=(asked, -1))
        self._act(number, "token", self.simulation.now_ps - since, [*self.last[number], *([behind] if behind >= 0 else [])])

    def _give_token(self, number: int) -> Script:
        assert self.desk is not None
        begun = self.simulation.now_ps
        yield from self.desk.release(number)
        if self.simulation.now_ps > begun:
            self._held(number, self.simulation.now_ps - begun)
        self.released.append((self.simulation.now_ps, self.last[number][0]))

    def _held(self, number: int, ps: int) -> None:
        """More of the same token."""
        self.happened["token"] -= 1
        self._act(number, "token", ps, self.last[number])

    def _together(self, number: int) -> Script:
        for _ in range(self.local_steps[number]):
            yield from self._local_step(number)
        if self.desk is not None:
            yield from self._take_token(number)
            if self.enter_ps:
                self._held(number, self.enter_ps)
                yield Wait(self.enter_ps)
            yield from self._give_token(number)
        self.entered.append(number)
        exchange = self.acts["exchange"]
        if exchange is None:
            return
        if len(self.entered) < len(self.groups):
            yield Get(self.gates[number])
            return
        everybody = [task for tasks in self.last for task in tasks]
        self._act(number, "exchange", exchange.ps, everybody, self.shared)
        yield Compute(self.links, exchange.ps)
        for other, gate in enumerate(self.gates):
            if other != number:
                yield Put(gate)

    def _in_turn(self, number: int) -> Script:
        exchange = self.acts["exchange"]
        while self._goes_on:
            for _ in range(self.local_steps[number]):
                yield from self._local_step(number)
            if exchange is not None:
                self._act(number, "exchange", exchange.ps, self.last[number], self.shared)
                yield Compute(self.links, exchange.ps)

    def _literal(self, number: int) -> Script:
        algorithm, exchange = self.algorithm, self.acts["exchange"]
        assert isinstance(algorithm, Direct)
        while self._goes_on:
            yield from self._local_step(number)
            if exchange is None or not self._stale(number, algorithm):
                continue
            if self.desk is not None:
                yield from self._take_token(number)
            if not algorithm.recheck or self._stale(number, algorithm):
                self._act(number, "exchange", exchange.ps, self.last[number], self.shared)
                yield Compute(self.links, exchange.ps)
                yield Wait(0)  # steps that end at this instant have ended before the update lands
                self.staleness = [0] * len(self.groups)
                self.updated_ps = [self.simulation.now_ps] * len(self.groups)
            if self.desk is not None:
                yield from self._give_token(number)

    @property
    def _goes_on(self) -> bool:
        """Until everybody has done its rounds: nobody stands still before the last has."""
        return any(done < LITERAL_ROUNDS * steps for done, steps in zip(self.steps_done, self.local_steps, strict=True))

    def _priority(self, number: int) -> int:
        """The staler, the sooner."""
        if not isinstance(self.algorithm, Direct):
            return 0
        if self.algorithm.unit == "steps":
            return priority_of(self.staleness[number], self.algorithm.tau, self.priorities)
        age_ps = self.simulation.now_ps - self.updated_ps[number]
        return priority_of(age_ps, round(self.algorithm.tau * PICOSECONDS_PER_SECOND), self.priorities)

    def _stale(self, number: int, algorithm: Direct) -> bool:
        if algorithm.unit == "steps":
            return self.staleness[number] > algorithm.tau
        return self.simulation.now_ps - self.updated_ps[number] > round(algorithm.tau * PICOSECONDS_PER_SECOND)
