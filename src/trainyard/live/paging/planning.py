"""From a watched pass to the overlay's problem, and from its choice to what is done at each position.

A storage is managed if autograd saved it and nobody else holds it when backward begins. It can be made again if every op that made
or changed it may be called again, and what these read is a parameter, an input, another managed storage, or can be made on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trainyard.errors import BadInput
from trainyard.live.paging.measures import Laps, Link
from trainyard.live.paging.trace import OpRecord, Trace
from trainyard.mapping.overlay.policy import Choice, Decision, Problem, Saved, orders, used_bytes

Policy = Callable[[Problem, int], Choice]
Action = Literal["send", "leave", "fetch"]


@dataclass(frozen=True, slots=True)
class Closure:
    """How a storage is made again: numbers of ops, in order; managed sources; storages made on the way."""

    ops: tuple[int, ...]
    sources: tuple[int, ...]
    passing: tuple[int, ...]
    extra_bytes: int
    """Of what is made on the way, and of other results that come along."""


def managed_blocks(trace: Trace, smallest: int) -> list[int]:
    """Numbers of the storages that may be moved, in the order in which they got their last value."""
    found = [
        number for number, block in enumerate(trace.blocks) if block.dead is not None and block.size >= smallest and block.saves
    ]
    return sorted(found, key=lambda number: (final(trace, number), number))


def final(trace: Trace, number: int) -> int:
    """The position that gave the storage its last value."""
    block = trace.blocks[number]
    return max([block.made, *(trace.ops[op].position for op in block.chain)])


def closure(trace: Trace, wanted: int, managed: set[int], smallest: int) -> Closure | None:
    """The ops that make a storage again, or None."""
    ops: set[int] = set()
    sources: set[int] = set()
    passing: set[int] = set()
    stack = [wanted]
    while stack:
        number = stack.pop()
        chain = trace.blocks[number].chain
        if not chain or all(block != number for _, block in trace.ops[chain[0]].made):
            return None  # nobody saw who made it
        for op in chain:
            record = trace.ops[op]
            if not record.again or any(block != number for block in record.wrote):
                return None
            ops.add(op)
            for source, changes in record.reads:
                if source == number:
                    continue
                if changes != len(trace.blocks[source].chain):
                    return None  # it was changed after this op had read it
                if source in managed:
                    sources.add(source)
                elif source not in passing and not stays(trace, source, smallest):
                    passing.add(source)
                    stack.append(source)
    along = {block for op in ops for _, block in trace.ops[op].made if block in managed} - {wanted}
    extra = sum(trace.blocks[block].size for block in passing | along)
    return Closure(tuple(sorted(ops)), tuple(sorted(sources)), tuple(sorted(passing)), extra)


def stays(trace: Trace, number: int, smallest: int) -> bool:
    """Somebody else holds the storage until backward, or it is too small to matter: a recipe may simply hold it."""
    block = trace.blocks[number]
    return block.dead is None or block.size < smallest


def again_s(trace: Trace, found: Closure, durations: Sequence[float]) -> float:
    return sum(durations[trace.ops[op].position] for op in found.ops)


@dataclass(slots=True)
class Step:
    """What following a plan does at one op: remember how it was called, know its results by number."""

    op: OpRecord
    again: bool


NOTHING_CHOSEN = Choice(decisions=(), leave_by=(), fetch_at=(), again_at=())


def chosen(policy: Policy, problem: Problem, closures: Sequence[Closure | None], budget: int) -> Choice:
    """The policy's choice, without making again what finds no room on the way."""
    while True:
        choice = policy(problem, budget)
        room = [budget - used for used in used_bytes(problem, choice)]
        making = [(at, index) for index, at in enumerate(choice.again_at) if at is not None]
        for at, index in making:
            found = closures[index]
            room[at] -= found.extra_bytes if found else 0
        without = {index for at, index in making if room[at] < 0 and (found := closures[index]) and found.extra_bytes}
        if not without:
            return choice
        saved = (replace(one, again_s=None, sources=()) if index in without else one for index, one in enumerate(problem.saved))
        problem = replace(problem, saved=tuple(saved))


@dataclass(slots=True)
class Plan:
    """A pass that was watched, with the choice for it."""

    trace: Trace
    problem: Problem
    managed: tuple[int, ...]
    closures: tuple[Closure | None, ...]
    link: Link
    strict: bool
    """Nothing but `saved` is counted, so that no room is left for what is made on the way."""
    budget: int = 0
    choice: Choice = NOTHING_CHOSEN
    decisions: dict[int, Decision] = field(default_factory=dict)
    passing: set[int] = field(default_factory=set)
    steps: dict[int, Step] = field(default_factory=dict)
    """By the number of the op."""
    agenda: list[tuple[int, Action, int]] = field(default_factory=list)
    tightened: int = 0
    followed: int = 0
    timed: list[Laps] = field(default_factory=list)

    def retime(self) -> None:
        """Takes the times of the passes that followed the plan, the least of each op, instead of those of the watched pass."""
        durations = tuple(map(min, zip(*(laps.durations(self.trace.positions) for laps in self.timed), strict=True)))
        self.timed.clear()
        saved = tuple(
            one if found is None else replace(one, again_s=again_s(self.trace, found, durations))
            for one, found in zip(self.problem.saved, self.closures, strict=True)
        )
        self.problem = replace(self.problem, durations_s=durations, saved=saved)

    def remeter(self, peaks: dict[int, int]) -> None:
        """Adds what a pass that followed the plan took above what the plan says, position by position."""
        used = used_bytes(self.problem, self.choice)
        held = (size + max(peaks.get(position, 0) - used[position], 0) for position, size in enumerate(self.problem.held_bytes))
        self.problem = replace(self.problem, held_bytes=tuple(held))

    def choose(self, policy: Policy, budget: int) -> None:
        try:
            self.choice = chosen(policy, self.problem, self.closures, budget) if self.strict else policy(self.problem, budget)
        except BadInput as error:
            raise BadInput(f"{error}: give a larger budget or a smaller batch") from None
        self.budget = budget
        self._spread()

    def _spread(self) -> None:
        trace, choice = self.trace, self.choice
        self.decisions = dict(zip(self.managed, choice.decisions, strict=True))
        again: set[int] = set()
        watched: set[int] = set()
        self.passing = set()
        for found, decision in zip(self.closures, choice.decisions, strict=True):
            if decision == "recompute" and found is not None:
                again.update(found.ops)
                self.passing.update(found.passing)
                watched.update(trace.blocks[source].chain[0] for source in found.sources if trace.blocks[source].chain)
        self.steps = {op: Step(trace.ops[op], op in again) for op in again | watched}
        self.agenda = agenda(self.problem, choice, self.managed)

    def expected_chain(self, number: int) -> int:
        return len(self.trace.blocks[number].chain)


def agenda(problem: Problem, choice: Choice, managed: Sequence[int]) -> list[tuple[int, Action, int]]:
    """(position, what, storage): at a position first copies out of what the one before used last, then leaving, then fetches."""
    out, back, _ = orders(problem, choice)
    rows: list[tuple[int, int, int, Action, int]] = []
    for rank, index in enumerate(out):
        rows.append((problem.saved[index].last_forward + 1, 0, rank, "send", managed[index]))
        rows.append((choice.leave_by[index] or 0, 1, rank, "leave", managed[index]))
    for rank, index in enumerate(back):
        rows.append((choice.fetch_at[index] or 0, 2, rank, "fetch", managed[index]))
    return [(position, what, number) for position, _, _, what, number in sorted(rows)]


def problem_of(
    trace: Trace, durations: Sequence[float], peaks: dict[int, int], link: Link, smallest: int
) -> tuple[Problem, tuple[int, ...], tuple[Closure | None, ...]]:
    """The overlay's problem of a watched pass, the storages it speaks of, and how each is made again."""
    managed = managed_blocks(trace, smallest)
    places = {number: place for place, number in enumerate(managed)}
    closures = [closure(trace, number, set(managed), smallest) for number in managed]
    saved: list[Saved] = []
    change = [0] * (trace.positions + 1)
    for place, (number, found) in enumerate(zip(managed, closures, strict=True)):
        block = trace.blocks[number]
        assert block.dead is not None
        uses = block.uses or [trace.positions - 1]
        if found is not None and any(places[source] >= place for source in found.sources):
            found = closures[place] = None
        one = Saved(
            name=block.layer or f"storage {number}",
            bytes=block.size,
            made=block.made,
            last_forward=max(block.dead, block.made, *(trace.saves[save].position for save in block.saves)),
            first_backward=min(uses),
            last_backward=max(uses),
            again_s=None if found is None else again_s(trace, found, durations),
            sources=() if found is None else tuple(places[source] for source in found.sources),
        )
        saved.append(one)
        for first, last in ((one.made, one.last_forward), (one.first_backward, one.last_backward)):
            change[first] += one.bytes
            change[last + 1] -= one.bytes
    held, present = [], 0
    for position in range(trace.positions):
        present += change[position]
        held.append(max(peaks.get(position, 0) - present, 0))
    problem = Problem(
        durations_s=tuple(durations), held_bytes=tuple(held), saved=tuple(saved), out_bytes_per_s=link.out_bytes_per_s,
        in_bytes_per_s=link.in_bytes_per_s, latency_s=link.latency_s, labels=tuple(trace.labels()),
    )  # fmt: skip
    return problem, tuple(managed), tuple(closures)
