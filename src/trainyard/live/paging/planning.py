"""From a recorded pass to the overlay's problem, and from the policy's choice to the actions at each position.

A storage is managed if autograd saved it and nothing else holds it when backward begins. It can be recomputed if every op that made
or changed it is repeatable, and these ops read only parameters, inputs, managed storages, or storages that can be recomputed too.
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
    """How a storage is recomputed: numbers of ops, in order; managed sources; temporary storages."""

    ops: tuple[int, ...]
    sources: tuple[int, ...]
    temporary: tuple[int, ...]
    extra_bytes: int
    """Of the temporaries, and of other managed results of the same ops."""


def managed_blocks(trace: Trace, smallest: int) -> list[int]:
    """Numbers of the storages that may be moved, in the order in which they got their last value."""
    numbers = [
        number for number, block in enumerate(trace.blocks) if block.freed_at is not None and block.size >= smallest and block.saves
    ]
    return sorted(numbers, key=lambda number: (final(trace, number), number))


def final(trace: Trace, number: int) -> int:
    """The position that gave the storage its last value."""
    block = trace.blocks[number]
    return max([block.created_at, *(trace.ops[op].position for op in block.chain)])


def find_closure(trace: Trace, target: int, managed: set[int], smallest: int) -> Closure | None:
    """The ops that recompute a storage; None where that is not possible."""
    ops: set[int] = set()
    sources: set[int] = set()
    temporary: set[int] = set()
    stack = [target]
    while stack:
        number = stack.pop()
        chain = trace.blocks[number].chain
        if not chain or all(block != number for _, block in trace.ops[chain[0]].created):
            return None  # it was made before the recording began
        for op in chain:
            record = trace.ops[op]
            if not record.repeatable or any(block != number for block in record.wrote):
                return None
            ops.add(op)
            for source, changes in record.reads:
                if source == number:
                    continue
                if changes != len(trace.blocks[source].chain):
                    return None  # it was changed after this op had read it
                if source in managed:
                    sources.add(source)
                elif source not in temporary and not stays(trace, source, smallest):
                    temporary.add(source)
                    stack.append(source)
    along = {block for op in ops for _, block in trace.ops[op].created if block in managed} - {target}
    extra = sum(trace.blocks[block].size for block in temporary | along)
    return Closure(tuple(sorted(ops)), tuple(sorted(sources)), tuple(sorted(temporary)), extra)


def stays(trace: Trace, number: int, smallest: int) -> bool:
    """Whether a recipe may simply keep a storage: something else holds it until backward, or it is too small to matter."""
    block = trace.blocks[number]
    return block.freed_at is None or block.size < smallest


def recompute_s(trace: Trace, closure: Closure, durations: Sequence[float]) -> float:
    return sum(durations[trace.ops[op].position] for op in closure.ops)


@dataclass(slots=True)
class PlannedOp:
    """An op whose results the plan has to identify; `is_recomputed` if its arguments are stored for a second call."""

    op: OpRecord
    is_recomputed: bool


NOTHING_CHOSEN = Choice(decisions=(), leave_by=(), fetch_at=(), recompute_at=())


def chosen(policy: Policy, problem: Problem, closures: Sequence[Closure | None], budget: int) -> Choice:
    """The policy's choice, without recomputations whose temporaries exceed the budget."""
    while True:
        choice = policy(problem, budget)
        room = [budget - used for used in used_bytes(problem, choice)]
        making = [(at, index) for index, at in enumerate(choice.recompute_at) if at is not None]
        for at, index in making:
            closure = closures[index]
            room[at] -= closure.extra_bytes if closure else 0
        without = {index for at, index in making if room[at] < 0 and (closure := closures[index]) and closure.extra_bytes}
        if not without:
            return choice
        saved = (
            replace(saved_tensor, recompute_s=None, sources=()) if index in without else saved_tensor
            for index, saved_tensor in enumerate(problem.saved)
        )
        problem = replace(problem, saved=tuple(saved))


@dataclass(slots=True)
class Plan:
    """A recorded pass, and the choice for it."""

    trace: Trace
    problem: Problem
    managed: tuple[int, ...]
    closures: tuple[Closure | None, ...]
    link: Link
    strict: bool
    """On the CPU only saved tensors are counted, so temporaries have to fit the budget explicitly."""
    budget: int = 0
    choice: Choice = NOTHING_CHOSEN
    decisions: dict[int, Decision] = field(default_factory=dict)
    temporary: set[int] = field(default_factory=set)
    steps: dict[int, PlannedOp] = field(default_factory=dict)
    """By the number of the op."""
    agenda: list[tuple[int, Action, int]] = field(default_factory=list)
    tightened: int = 0
    followed: int = 0
    timed: list[Laps] = field(default_factory=list)

    def retime(self) -> None:
        """Replaces the recorded times by those of the passes that followed the plan, the minimum for each op."""
        durations = tuple(map(min, zip(*(laps.durations(self.trace.positions) for laps in self.timed), strict=True)))
        self.timed.clear()
        saved = tuple(
            saved_tensor if closure is None else replace(saved_tensor, recompute_s=recompute_s(self.trace, closure, durations))
            for saved_tensor, closure in zip(self.problem.saved, self.closures, strict=True)
        )
        self.problem = replace(self.problem, durations_s=durations, saved=saved)

    def remeter(self, peaks: dict[int, int]) -> None:
        """Adds, at each position, the memory that a pass took beyond the prediction."""
        used = used_bytes(self.problem, self.choice)
        other_bytes = (
            size + max(peaks.get(position, 0) - used[position], 0) for position, size in enumerate(self.problem.other_bytes)
        )
        self.problem = replace(self.problem, other_bytes=tuple(other_bytes))

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
        recomputed: set[int] = set()
        watched: set[int] = set()
        self.temporary = set()
        for closure, decision in zip(self.closures, choice.decisions, strict=True):
            if decision == "recompute" and closure is not None:
                recomputed.update(closure.ops)
                self.temporary.update(closure.temporary)
                watched.update(trace.blocks[source].chain[0] for source in closure.sources if trace.blocks[source].chain)
        self.steps = {op: PlannedOp(trace.ops[op], op in recomputed) for op in recomputed | watched}
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
    return [(position, action, number) for position, _, _, action, number in sorted(rows)]


def problem_of(
    trace: Trace, durations: Sequence[float], peaks: dict[int, int], link: Link, smallest: int
) -> tuple[Problem, tuple[int, ...], tuple[Closure | None, ...]]:
    """The overlay's problem of a recorded pass, its storages, and how each is recomputed."""
    managed = managed_blocks(trace, smallest)
    index_of = {number: index for index, number in enumerate(managed)}
    closures = [find_closure(trace, number, set(managed), smallest) for number in managed]
    saved: list[Saved] = []
    change = [0] * (trace.positions + 1)
    for index, (number, closure) in enumerate(zip(managed, closures, strict=True)):
        block = trace.blocks[number]
        assert block.freed_at is not None
        uses = block.uses or [trace.positions - 1]
        if closure is not None and any(index_of[source] >= index for source in closure.sources):
            closure = closures[index] = None
        saved_tensor = Saved(
            name=block.layer or f"storage {number}",
            bytes=block.size,
            produced=block.created_at,
            last_forward=max(block.freed_at, block.created_at, *(trace.saves[save].position for save in block.saves)),
            first_backward=min(uses),
            last_backward=max(uses),
            recompute_s=None if closure is None else recompute_s(trace, closure, durations),
            sources=() if closure is None else tuple(index_of[source] for source in closure.sources),
        )
        saved.append(saved_tensor)
        for first, last in (
            (saved_tensor.produced, saved_tensor.last_forward),
            (saved_tensor.first_backward, saved_tensor.last_backward),
        ):
            change[first] += saved_tensor.bytes
            change[last + 1] -= saved_tensor.bytes
    other_bytes, present = [], 0
    for position in range(trace.positions):
        present += change[position]
        other_bytes.append(max(peaks.get(position, 0) - present, 0))
    problem = Problem(
        durations_s=tuple(durations), other_bytes=tuple(other_bytes), saved=tuple(saved), out_bytes_per_s=link.out_bytes_per_s,
        in_bytes_per_s=link.in_bytes_per_s, latency_s=link.latency_s, labels=tuple(trace.labels()),
    )  # fmt: skip
    return problem, tuple(managed), tuple(closures)
