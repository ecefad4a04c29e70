"""Memory overlay: what a backward pass needs again is kept, sent to a second memory and fetched back, or made again.

Y. Kwon, M. Rhu: Beyond the Memory Wall. MICRO 2018, Sec. II-B and IV (after vDNN, MICRO 2016, and, for what is made again, T. Chen
et al.: Training Deep Nets with Sublinear Memory Cost, 2016). Positions are the works of one device in order, forward then backward.

The rules, which `simulate` and the engine share to the picosecond:

- The compute stream does the positions in order; what is made again runs right before the position `again_at`, sources first.
- A position may begin (its *gate*) when the one before it has ended and every copy out that had to leave by it has ended.
- Copies out run first in, first out, by `last_forward`, each after the work `last_forward`.
- Copies in run in the order of need, each after the gate of its `fetch_at` and its own copy out; its first user waits for it.
- Without `duplex` both share one wire: at a position first the copies in that may start there, then those that leave after it.

Memory is counted by position, so that a budget holds whatever the timing: a sent tensor counts until the position before
`leave_by` and again from `fetch_at` on, one that is made again until `last_forward` and again from `again_at` on.
`Schedule.peak_over_time_bytes` is what one timing really takes, never more.

A weight or an optimizer state, always there otherwise, needs no list of its own: the stretch between two of its uses is a `Saved`.
Its `last_forward` is the use before, `made` the position after that (from there on it counts; the uses are the stretch before's, or
in `held_bytes`), `first_backward` and `last_backward` the use after. `clean_after` names the stretch that, where it is sent, leaves
the same version in the second memory, so that this one leaves without a copy. Where the use after comes first in the step, the
stretch runs over the end of the step: it is fetched in the beginning and leaves in the end, as in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from trainyard.errors import BadInput
from trainyard.units import PICOSECONDS_PER_SECOND

Decision = Literal["keep", "send", "recompute"]
NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor that backward needs again, or, with `first_backward` and `last_backward` -1, only others that are made again."""

    name: str
    bytes: int
    made: int
    last_forward: int
    first_backward: int
    last_backward: int
    again_s: float | None = None
    """Seconds to make it again from `sources` and what is always there; None: it cannot be."""
    sources: tuple[int, ...] = ()
    """Numbers in `Problem.saved`, all before this one, that must be present then."""
    clean: bool = False
    """The second memory holds it already: it leaves without a copy."""
    clean_after: int | None = None
    """The same, where that one of `Problem.saved` is sent."""
    sendable: bool = True

    @property
    def wraps(self) -> bool:
        """The stretch between its uses runs over the end of the step."""
        return NEVER < self.first_backward < self.made


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One device's step as the overlay sees it. `held_bytes` is the memory of all that is not in `saved`, by position."""

    durations_s: tuple[float, ...]
    held_bytes: tuple[int, ...]
    saved: tuple[Saved, ...]
    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_s: float = 0.0
    duplex: bool = True
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.durations_s)
        if not count or len(self.held_bytes) != count or (self.labels and len(self.labels) != count):
            raise BadInput(
                f"an overlay problem needs a duration and held bytes for each position (and a label, or none at all): "
                f"got {count}, {len(self.held_bytes)} and {len(self.labels)}"
            )
        if not (self.out_bytes_per_s > 0 and self.in_bytes_per_s > 0 and self.latency_s >= 0):
            raise BadInput(
                f"an overlay needs a link with bandwidth both ways: out {self.out_bytes_per_s!r} B/s, "
                f"in {self.in_bytes_per_s!r} B/s, latency {self.latency_s!r} s"
            )
        if min(self.durations_s) < 0 or min(self.held_bytes) < 0:
            raise BadInput("an overlay problem has a negative duration or negative held bytes")
        for index, one in enumerate(self.saved):
            self._check(index, one, count)

    def _check(self, index: int, one: Saved, count: int) -> None:
        where = f"saved tensor {index} ({one.name})"
        if one.bytes < 0 or not 0 <= one.made <= one.last_forward + 1 <= count:
            raise BadInput(f"{where}: {one.bytes} bytes, made at {one.made}, last used forward at {one.last_forward} of {count}")
        if one.wraps:
            if one.made != one.last_forward + 1 or not one.first_backward <= one.last_backward < one.made:
                raise BadInput(
                    f"{where}: a stretch over the end of the step is made right after its last use, its next use earlier"
                )
            if one.again_s is not None:
                raise BadInput(f"{where}: what outlives the step cannot be made again")
        elif one.first_backward == NEVER:
            if one.last_backward != NEVER:
                raise BadInput(f"{where}: first_backward is -1 (never needed by itself), so last_backward must be -1 too")
        elif not one.last_forward < one.first_backward <= one.last_backward < count:
            raise BadInput(
                f"{where}: needed from {one.first_backward} to {one.last_backward}; "
                f"that must lie after {one.last_forward} and before {count}"
            )
        if any(not 0 <= source < index or self.saved[source].wraps for source in one.sources):
            raise BadInput(f"{where}: its sources {one.sources} must come before it in `saved` and stay within the step")
        if one.clean_after is not None and not 0 <= one.clean_after < len(self.saved):
            raise BadInput(f"{where}: clean_after {one.clean_after} is no number of a saved tensor")
        if one.again_s is not None and one.again_s < 0:
            raise BadInput(f"{where}: again_s must be at least 0, got {one.again_s!r}")

    def label(self, position: int) -> str:
        return self.labels[position] if self.labels else f"position {position}"

    def copy_ps(self, size: int, bytes_per_s: float) -> int:
        """One copy by itself, as the engine counts it: latency, then whole bytes at whole bytes per second, rounded up."""
        return round(self.latency_s * PICOSECONDS_PER_SECOND) - (-size * PICOSECONDS_PER_SECOND // max(round(bytes_per_s), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes of each saved tensor, with its price.

    `leave_by` and `fetch_at` are numbers for what is sent (`len(durations_s)`: by the end of the step), `again_at` for what is made
    again, None for all else, and for what nobody needs.
    """

    decisions: tuple[Decision, ...]
    leave_by: tuple[int | None, ...]
    fetch_at: tuple[int | None, ...]
    again_at: tuple[int | None, ...]
    time_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When everything happens, in whole picoseconds, and the memory it takes.

    A copy or remaking is a pair (start, end) or None, by number in `Problem.saved`. `out_order`, `in_order` and `again_order` (the
    last by position) name what the streams run, in order.
    """

    time_ps: int
    gates_ps: tuple[int, ...]
    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]
    out_ps: tuple[tuple[int, int] | None, ...]
    in_ps: tuple[tuple[int, int] | None, ...]
    again_ps: tuple[tuple[int, int] | None, ...]
    out_order: tuple[int, ...]
    in_order: tuple[int, ...]
    again_order: tuple[int, ...]
    used_bytes: tuple[int, ...]
    """By position: what may be in memory at once from its gate to its end, whatever the timing."""
    peak_over_time_bytes: int

    @property
    def time_s(self) -> float:
        return self.time_ps / PICOSECONDS_PER_SECOND

    @property
    def peak_bytes(self) -> int:
        return max(self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """First and last position at which each saved tensor must be back, by itself or as a source (-1: never); where made again."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    again_at: tuple[int | None, ...]


def needs(problem: Problem, decisions: Sequence[Decision], again_at: Sequence[int | None] = ()) -> Needs:
    """What is made again is made right before its first use, unless `again_at` says earlier; its sources must be back by then.

    >>> source = Saved(name="x", bytes=8, made=0, last_forward=1, first_backward=5, last_backward=5)
    >>> result = Saved(name="y", bytes=8, made=1, last_forward=2, first_backward=3, last_backward=4, again_s=1.0, sources=(0,))
    >>> one = Problem(durations_s=(1.0,) * 6, held_bytes=(0,) * 6, saved=(source, result), out_bytes_per_s=8, in_bytes_per_s=8)
    >>> needs(one, ("send", "recompute"))
    Needs(first=(3, 3), last=(5, 4), again_at=(None, 3))
    """
    first = [one.first_backward for one in problem.saved]
    last = [one.last_backward for one in problem.saved]
    again: list[int | None] = [None] * len(first)
    for index in reversed(range(len(first))):
        one = problem.saved[index]
        if decisions[index] != "recompute" or first[index] == NEVER:
            continue
        if one.again_s is None:
            raise BadInput(f"saved tensor {index} ({one.name}) cannot be made again: keep or send it")
        given = again_at[index] if again_at else None
        at = first[index] if given is None else given
        if not one.last_forward < at <= first[index]:
            raise BadInput(
                f"saved tensor {index} ({one.name}) is made again at {at}: that must lie after {one.last_forward} "
                f"and not behind its first use at {first[index]}"
            )
        again[index] = at
        for source in one.sources:
            if at <= problem.saved[source].last_forward:
                raise BadInput(f"saved tensor {index} ({one.name}) is made again at {at}, before its source {source} was last used")
            first[source] = at if first[source] == NEVER else min(first[source], at)
            last[source] = max(last[source], at)
    return Needs(first=tuple(first), last=tuple(last), again_at=tuple(again))


def simulate(problem: Problem, choice: Choice | Sequence[Decision]) -> Schedule:
    """The schedule of a choice. Bare decisions (and None for a number) stand for the least memory: out at once, back when needed.

    >>> one = Saved(name="x", bytes=8, made=0, last_forward=0, first_backward=3, last_backward=3)
    >>> problem = Problem(durations_s=(1.0,) * 4, held_bytes=(2,) * 4, saved=(one,), out_bytes_per_s=4, in_bytes_per_s=8)
    >>> kept, sent = simulate(problem, ["keep"]), simulate(problem, ["send"])
    >>> (kept.time_s, kept.used_bytes), (sent.time_s, sent.used_bytes)
    ((4.0, (10, 10, 10, 10)), (7.0, (10, 2, 2, 10)))
    """
    choice = completed(problem, choice)
    clock = _Clock(problem, choice)
    for position in range(len(problem.durations_s)):
        clock.do(position)
    used = used_bytes(problem, choice)
    return Schedule(
        time_ps=max([clock.compute_ps, *(copy[1] for copy in (*clock.out, *clock.back) if copy)]),
        gates_ps=tuple(clock.gates),
        starts_ps=tuple(clock.starts),
        ends_ps=tuple(clock.ends),
        out_ps=tuple(clock.out),
        in_ps=tuple(clock.back),
        again_ps=tuple(clock.again),
        out_order=tuple(clock.out_order),
        in_order=tuple(clock.in_order),
        again_order=tuple(clock.again_order),
        used_bytes=used,
        peak_over_time_bytes=_peak_over_time(problem, choice, clock),
    )


class _Clock:
    """The three streams, position by position."""

    def __init__(self, problem: Problem, choice: Choice) -> None:
        self.problem, self.choice = problem, choice
        count, saved = len(problem.saved), problem.saved
        self.needed = needs(problem, choice.decisions, choice.again_at)
        self.durations = [round(duration * PICOSECONDS_PER_SECOND) for duration in problem.durations_s]
        self.out_order, self.in_order, self.again_order = orders(problem, choice)
        self.gates: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.out: list[tuple[int, int] | None] = [None] * count
        self.back: list[tuple[int, int] | None] = [None] * count
        self.again: list[tuple[int, int] | None] = [None] * count
        self.compute_ps = self.out_free_ps = self.in_free_ps = 0
        self.arriving = 0  # how many of in_order have been started
        self.leaving: dict[int, list[int]] = {}
        self.due: dict[int, list[int]] = {}
        self.remade: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        for index in self.out_order:
            self.leaving.setdefault(saved[index].last_forward, []).append(index)
            self.due.setdefault(choice.leave_by[index] or 0, []).append(index)
        for index in self.again_order:
            self.remade.setdefault(choice.again_at[index] or 0, []).append(index)
        for index in self.in_order:
            if self.needed.first[index] == saved[index].first_backward:
                self.users.setdefault(saved[index].first_backward, []).append(index)

    def do(self, position: int) -> None:
        gate = self._after(self.compute_ps, self.out, self.due.get(position, ()))
        self.gates.append(gate)
        self._fetch(position)
        now = gate
        for index in self.remade.get(position, ()):
            start = self._after(now, self.back, self.problem.saved[index].sources)
            now = start + round((self.problem.saved[index].again_s or 0.0) * PICOSECONDS_PER_SECOND)
            self.again[index] = start, now
        self.starts.append(self._after(now, self.back, self.users.get(position, ())))
        self.compute_ps = self.starts[-1] + self.durations[position]
        self.ends.append(self.compute_ps)
        for index in self.leaving.get(position, ()):
            start = max(self.compute_ps, self.out_free_ps)
            end = start + self.problem.copy_ps(self.problem.saved[index].bytes, self.problem.out_bytes_per_s)
            self.out[index], self.out_free_ps = (start, end), end
            if not self.problem.duplex:
                self.in_free_ps = end

    def _fetch(self, position: int) -> None:
        """Copies in that may start here, in the order of need; one that may not yet holds up those behind it."""
        while self.arriving < len(self.in_order):
            index = self.in_order[self.arriving]
            fetch = self.choice.fetch_at[index] or 0
            if fetch > position:
                return
            one, left = self.problem.saved[index], self.out[index]
            start = max(self.gates[fetch], self.in_free_ps, left[1] if left else 0)
            end = start + self.problem.copy_ps(one.bytes, self.problem.in_bytes_per_s)
            self.back[index], self.in_free_ps = (start, end), end
            if not self.problem.duplex:
                self.out_free_ps = end
            self.arriving += 1

    @staticmethod
    def _after(now: int, copies: Sequence[tuple[int, int] | None], which: Iterable[int]) -> int:
        return max([now, *(copy[1] for copy in map(copies.__getitem__, which) if copy)])


def clean(problem: Problem, decisions: Sequence[Decision], index: int) -> bool:
    """Whether it leaves without a copy."""
    one = problem.saved[index]
    return one.clean or (one.clean_after is not None and decisions[one.clean_after] == "send")


def orders(problem: Problem, choice: Choice) -> tuple[list[int], list[int], list[int]]:
    """What the streams run, by number: copies out, copies in, and what is made again (`choice` is complete)."""
    saved, needed = problem.saved, needs(problem, choice.decisions, choice.again_at)
    moved = [index for index, fetch in enumerate(choice.fetch_at) if fetch is not None]
    again = sorted(
        (index for index, at in enumerate(choice.again_at) if at is not None), key=lambda index: (choice.again_at[index], index)
    )
    user: dict[int, int] = {}  # the first remaking that reads it, at the position of its first need
    for rank, index in enumerate(again):
        for source in saved[index].sources:
            if choice.again_at[index] == needed.first[source]:
                user.setdefault(source, rank)
    copied = (index for index in moved if not clean(problem, choice.decisions, index))
    out = sorted(copied, key=lambda index: (saved[index].last_forward, index))
    back = sorted(moved, key=lambda index: (needed.first[index], user.get(index, len(again)), index))
    return out, back, again


def present(problem: Problem, choice: Choice) -> list[tuple[int, int, int]]:
    """(number, first, last position) of every stretch in which a saved tensor counts in memory (`choice` is complete)."""
    needed, end = needs(problem, choice.decisions, choice.again_at), len(problem.durations_s)
    found = []
    for index, (one, decision) in enumerate(zip(problem.saved, choice.decisions, strict=True)):
        back: int | None = 0 if one.wraps else one.last_forward + 1  # what is kept stays
        leave = end if one.wraps else one.last_forward + 1
        if decision == "send":
            back, leave = choice.fetch_at[index], choice.leave_by[index] or one.last_forward + 1
        elif decision == "recompute":
            back = choice.again_at[index]
        if needed.first[index] == NEVER or back is None:
            found.append((index, one.made, one.last_forward))
        elif not one.wraps and back <= leave:
            found.append((index, one.made, needed.last[index]))
        else:
            found += [(index, one.made, leave - 1), (index, back, needed.last[index])]
    return found


def used_bytes(problem: Problem, choice: Choice) -> tuple[int, ...]:
    """By position, all that may be in memory at once between its gate and its end."""
    change = [0] * (len(problem.durations_s) + 1)
    for index, first, last in present(problem, choice):
        change[first] += problem.saved[index].bytes
        change[last + 1] -= problem.saved[index].bytes
    return tuple(map(sum, zip(problem.held_bytes, accumulate(change), strict=False)))


def _peak_over_time(problem: Problem, choice: Choice, clock: _Clock) -> int:
    """The most that one timing takes: copies free what they took when they end, and take when they start.

    Between two positions only what both hold is held.
    """
    events: list[tuple[int, int]] = []

    def hold(start: int, end: int, size: int) -> None:
        if start < end:
            events.extend(((start, size), (end, -size)))

    held = problem.held_bytes
    for position, (gate, end) in enumerate(zip(clock.gates, clock.ends, strict=True)):
        hold(gate, end, held[position])
        if position:
            hold(clock.ends[position - 1], gate, min(held[position - 1], held[position]))
    for index, (one, decision) in enumerate(zip(problem.saved, choice.decisions, strict=True)):
        out, back, again = clock.out[index], clock.back[index], clock.again[index]
        end, last = clock.ends[one.last_forward], clock.ends[clock.needed.last[index]]
        start = clock.starts[one.made] if one.made <= one.last_forward else (*clock.gates, clock.compute_ps)[one.made]
        if clock.needed.first[index] == NEVER:
            hold(start, end, one.bytes)
        elif decision == "keep" and not one.wraps:
            hold(start, last, one.bytes)
        else:
            hold(start, clock.ends[-1] if decision == "keep" else out[1] if out else end, one.bytes)
            hold(back[0] if back else again[0] if again else 0, last, one.bytes)
    events.sort()
    peak = now = 0
    for _, change in events:
        now += change
        peak = max(peak, now)
    return peak


def completed(problem: Problem, choice: Choice | Sequence[Decision]) -> Choice:
    """The choice with every number that it leaves open, checked."""
    count, end = len(problem.saved), len(problem.durations_s)
    nothing: tuple[int | None, ...] = (None,) * count
    given = choice if isinstance(choice, Choice) else Choice(
        decisions=tuple(choice), leave_by=nothing, fetch_at=nothing, again_at=nothing
    )  # fmt: skip
    if not len(given.decisions) == len(given.leave_by) == len(given.fetch_at) == len(given.again_at) == count:
        raise BadInput(f"the overlay has {count} saved tensors, the choice {len(given.decisions)} decisions")
    needed = needs(problem, given.decisions, given.again_at)
    leave_by, fetch_at = list(nothing), list(nothing)
    for index, (one, decision) in enumerate(zip(problem.saved, given.decisions, strict=True)):
        if decision not in ("keep", "send", "recompute"):
            raise BadInput(f"saved tensor {index} ({one.name}): unknown decision {decision!r} (keep, send or recompute)")
        if decision != "send" or needed.first[index] == NEVER:
            continue
        if not one.sendable:
            raise BadInput(f"saved tensor {index} ({one.name}) cannot be sent: keep it or make it again")
        leave, fetch, first = given.leave_by[index], given.fetch_at[index], needed.first[index]
        leave = one.last_forward + 1 if leave is None or clean(problem, given.decisions, index) else leave
        fetch = first if fetch is None else fetch
        latest, earliest = (end, 0) if one.wraps else (first, one.last_forward + 1)
        if not (one.last_forward < leave <= latest and earliest <= fetch <= first):
            raise BadInput(
                f"saved tensor {index} ({one.name}) leaves by {leave} and is fetched at {fetch}: "
                f"its last use before is at {one.last_forward}, its next at {first}"
            )
        leave_by[index], fetch_at[index] = leave, fetch
    return Choice(decisions=given.decisions, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at), again_at=needed.again_at)


def priced(problem: Problem, choice: Choice | Sequence[Decision]) -> Choice:
    """The same choice, completed, with the time and the guaranteed peak that `simulate` finds."""
    done = completed(problem, choice)
    found = simulate(problem, done)
    return replace(done, time_s=found.time_s, peak_bytes=found.peak_bytes)


def sent(problem: Problem, choice: Choice, decision: Decision = "send") -> int:
    """Bytes of what a choice sends (or keeps, or makes again)."""
    return sum(one.bytes for one, what in zip(problem.saved, choice.decisions, strict=True) if what == decision)


def everything(
    problem: Problem,
    *,
    recompute: Literal["cheap", "none"] = "cheap",
    window: int | None = None,
    behind: int | None = None,
    depth: int | None = 1,
    kept: Iterable[int] = (),
) -> Choice:
    """The paper's stress (Sec. IV): all is sent after its last use in forward, what is cheap is made again (footnote 4).

    `window`: so many tensors may be back before their first use, those under way included: a fetch starts no earlier than the
    first use of the one `window` places before it in the order of need. `behind`: so many copies out may be under way or waiting:
    the work that makes the tensor `behind` places after it waits for a copy out (1 is vDNN's layer by layer). `depth`: so many are
    made again one from another; along a residual or recurrent path without end they would all come back at once. None: no limit.
    `kept` stay.
    """
    if any(limit is not None and limit < 1 for limit in (window, behind, depth)):
        raise BadInput(f"window, behind and depth count tensors: at least 1 or None, got {window!r}, {behind!r} and {depth!r}")
    stay, saved = set(kept), problem.saved
    decisions: list[Decision] = []
    in_a_row: list[int] = []  # so many are made again one from another, this one included
    for index, one in enumerate(saved):
        longest = max((in_a_row[source] for source in one.sources), default=0)
        between = one.first_backward == NEVER
        again = one.again_s is not None and (
            between or not one.sendable or (recompute == "cheap" and (depth is None or longest < depth))
        )
        decisions.append("keep" if index in stay else "recompute" if again else "send" if one.sendable else "keep")
        in_a_row.append(longest + (not between) if decisions[-1] == "recompute" else 0)
    done = completed(problem, decisions)
    first = needs(problem, decisions).first
    out, back, _ = orders(problem, done)
    leave_by, fetch_at = list(done.leave_by), list(done.fetch_at)
    for place, index in enumerate(out):
        latest = len(problem.durations_s) if saved[index].wraps else first[index]
        if behind is not None and place + behind < len(out):
            latest = min(latest, saved[out[place + behind]].made)
        leave_by[index] = max(latest, saved[index].last_forward + 1)
    for place, index in enumerate(back):
        earliest = 0 if saved[index].wraps else saved[index].last_forward + 1
        if window is not None and place >= window:
            earliest = max(earliest, first[back[place - window]])
        fetch_at[index] = earliest
    return priced(problem, replace(done, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at)))
