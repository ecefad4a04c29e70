"""Memory overlay: each tensor that the backward pass needs is kept, offloaded to a second memory and fetched back, or recomputed.

Y. Kwon, M. Rhu: Beyond the Memory Wall. MICRO 2018, Sec. II-B and IV (after vDNN, MICRO 2016, and, for recomputation, T. Chen et
al.: Training Deep Nets with Sublinear Memory Cost, 2016). Positions are the works of one device in order, forward then backward.
The decision to offload is written "send".

The rules, which `simulate` and the engine share to the picosecond:

- The compute stream does the positions in order; recomputation runs right before the position `recompute_at`, sources first.
- A position may begin (its *gate*) when the one before it has ended and every copy out that must end by it has ended.
- Copies out run first in, first out, by `last_forward`, each after the work `last_forward`.
- Copies in run in the order of need, each after the gate of its `fetch_at` and its own copy out; its first user waits for it.
- Without `duplex` both share one wire: at a position first the copies in that may start there, then those that leave after it.

Memory is counted by position, so that a budget holds whatever the timing: an offloaded tensor counts until the position before
`leave_by` and from `fetch_at` on, a recomputed one until `last_forward` and from `recompute_at` on. `Schedule.peak_over_time_bytes`
is the peak of one timing, never more.

A weight or an optimizer state, resident otherwise, needs no list of its own: the stretch between two of its uses is a `Saved`. Its
`last_forward` is the use before, `produced` the position after that (from there on it counts; the uses belong to the stretch
before, or to `other_bytes`), `first_backward` and `last_backward` the use after. `clean_after` names the stretch that, if
offloaded, leaves the same version in the second memory, so that this one needs no copy out. Where the use after comes first in the
step, the stretch wraps around the end of the step: it is fetched at the beginning and leaves at the end, as in every step.
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
    """A tensor that backward needs, or, with `first_backward` and `last_backward` -1, that only recomputation needs."""

    name: str
    bytes: int
    produced: int
    last_forward: int
    first_backward: int
    last_backward: int
    recompute_s: float | None = None
    """Seconds to recompute it from `sources` and resident tensors; None: it cannot be recomputed."""
    sources: tuple[int, ...] = ()
    """Indices in `Problem.saved`, all before this one, that must be in memory then."""
    clean: bool = False
    """The second memory has a copy already: it leaves without one."""
    clean_after: int | None = None
    """The same, if that one of `Problem.saved` is offloaded."""
    sendable: bool = True

    @property
    def wraps(self) -> bool:
        """Whether the stretch between its uses wraps around the end of the step."""
        return NEVER < self.first_backward < self.produced


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One device's step as the overlay sees it. `other_bytes` is the memory of all that is not in `saved`, by position."""

    durations_s: tuple[float, ...]
    other_bytes: tuple[int, ...]
    saved: tuple[Saved, ...]
    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_s: float = 0.0
    duplex: bool = True
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.durations_s)
        if not count or len(self.other_bytes) != count or (self.labels and len(self.labels) != count):
            raise BadInput(
                f"an overlay problem needs a duration and held bytes for each position (and a label, or none at all): "
                f"got {count}, {len(self.other_bytes)} and {len(self.labels)}"
            )
        if not (self.out_bytes_per_s > 0 and self.in_bytes_per_s > 0 and self.latency_s >= 0):
            raise BadInput(
                f"an overlay needs a link with bandwidth both ways: out {self.out_bytes_per_s!r} B/s, "
                f"in {self.in_bytes_per_s!r} B/s, latency {self.latency_s!r} s"
            )
        if min(self.durations_s) < 0 or min(self.other_bytes) < 0:
            raise BadInput("an overlay problem has a negative duration or negative held bytes")
        for index, saved in enumerate(self.saved):
            self._check(index, saved, count)

    def _check(self, index: int, saved: Saved, count: int) -> None:
        where = f"saved tensor {index} ({saved.name})"
        if saved.bytes < 0 or not 0 <= saved.produced <= saved.last_forward + 1 <= count:
            raise BadInput(
                f"{where}: {saved.bytes} bytes, made at {saved.produced}, last used forward at {saved.last_forward} of {count}"
            )
        if saved.wraps:
            if saved.produced != saved.last_forward + 1 or not saved.first_backward <= saved.last_backward < saved.produced:
                raise BadInput(
                    f"{where}: a stretch over the end of the step is made right after its last use, its next use earlier"
                )
            if saved.recompute_s is not None:
                raise BadInput(f"{where}: what outlives the step cannot be made again")
        elif saved.first_backward == NEVER:
            if saved.last_backward != NEVER:
                raise BadInput(f"{where}: first_backward is -1 (never needed by itself), so last_backward must be -1 too")
        elif not saved.last_forward < saved.first_backward <= saved.last_backward < count:
            raise BadInput(
                f"{where}: needed from {saved.first_backward} to {saved.last_backward}; "
                f"that must lie after {saved.last_forward} and before {count}"
            )
        if any(not 0 <= source < index or self.saved[source].wraps for source in saved.sources):
            raise BadInput(f"{where}: its sources {saved.sources} must come before it in `saved` and stay within the step")
        if saved.clean_after is not None and not 0 <= saved.clean_after < len(self.saved):
            raise BadInput(f"{where}: clean_after {saved.clean_after} is no number of a saved tensor")
        if saved.recompute_s is not None and saved.recompute_s < 0:
            raise BadInput(f"{where}: recompute_s must be at least 0, got {saved.recompute_s!r}")

    def label(self, position: int) -> str:
        return self.labels[position] if self.labels else f"position {position}"

    def copy_ps(self, size: int, bytes_per_s: float) -> int:
        """One copy alone, as the engine counts it: latency, then whole bytes at whole bytes per second, rounded up."""
        return round(self.latency_s * PICOSECONDS_PER_SECOND) - (-size * PICOSECONDS_PER_SECOND // max(round(bytes_per_s), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision for each saved tensor, with its time and memory.

    `leave_by` and `fetch_at` are positions for offloaded tensors (`len(durations_s)`: by the end of the step), `recompute_at` for
    recomputed ones; None for all others, and for tensors that are never needed.
    """

    decisions: tuple[Decision, ...]
    leave_by: tuple[int | None, ...]
    fetch_at: tuple[int | None, ...]
    recompute_at: tuple[int | None, ...]
    time_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When everything happens, in whole picoseconds, and the memory it takes.

    A copy or recomputation is a pair (start, end) or None, by index in `Problem.saved`. `out_order`, `in_order` and
    `recompute_order` (the last by position) are the indices that the streams run, in order.
    """

    time_ps: int
    gates_ps: tuple[int, ...]
    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]
    out_ps: tuple[tuple[int, int] | None, ...]
    in_ps: tuple[tuple[int, int] | None, ...]
    recompute_ps: tuple[tuple[int, int] | None, ...]
    out_order: tuple[int, ...]
    in_order: tuple[int, ...]
    recompute_order: tuple[int, ...]
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
    """First and last position at which each saved tensor is needed, by itself or as a source (-1: never); where recomputed."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    recompute_at: tuple[int | None, ...]


def needs(problem: Problem, decisions: Sequence[Decision], recompute_at: Sequence[int | None] = ()) -> Needs:
    """Positions at which tensors are needed. Recomputation runs right before the first use, or earlier if `recompute_at` says so.

    >>> source = Saved(name="x", bytes=8, produced=0, last_forward=1, first_backward=5, last_backward=5)
    >>> later = {"first_backward": 3, "last_backward": 4, "recompute_s": 1.0, "sources": (0,)}
    >>> result = Saved(name="y", bytes=8, produced=1, last_forward=2, **later)
    >>> saved = Problem(durations_s=(1.0,) * 6, other_bytes=(0,) * 6, saved=(source, result), out_bytes_per_s=8, in_bytes_per_s=8)
    >>> needs(saved, ("send", "recompute"))
    Needs(first=(3, 3), last=(5, 4), recompute_at=(None, 3))
    """
    first = [saved.first_backward for saved in problem.saved]
    last = [saved.last_backward for saved in problem.saved]
    again: list[int | None] = [None] * len(first)
    for index in reversed(range(len(first))):
        saved = problem.saved[index]
        if decisions[index] != "recompute" or first[index] == NEVER:
            continue
        if saved.recompute_s is None:
            raise BadInput(f"saved tensor {index} ({saved.name}) cannot be made again: keep or send it")
        requested = recompute_at[index] if recompute_at else None
        at = first[index] if requested is None else requested
        if not saved.last_forward < at <= first[index]:
            raise BadInput(
                f"saved tensor {index} ({saved.name}) is made again at {at}: that must lie after {saved.last_forward} "
                f"and not behind its first use at {first[index]}"
            )
        again[index] = at
        for source in saved.sources:
            if at <= problem.saved[source].last_forward:
                raise BadInput(
                    f"saved tensor {index} ({saved.name}) is made again at {at}, before its source {source} was last used"
                )
            first[source] = at if first[source] == NEVER else min(first[source], at)
            last[source] = max(last[source], at)
    return Needs(first=tuple(first), last=tuple(last), recompute_at=tuple(again))


def simulate(problem: Problem, choice: Choice | Sequence[Decision]) -> Schedule:
    """The schedule of a choice. Bare decisions (and None for a position) mean the least memory: out at once, back when needed.

    >>> one = Saved(name="x", bytes=8, produced=0, last_forward=0, first_backward=3, last_backward=3)
    >>> problem = Problem(durations_s=(1.0,) * 4, other_bytes=(2,) * 4, saved=(one,), out_bytes_per_s=4, in_bytes_per_s=8)
    >>> kept, decided_bytes = simulate(problem, ["keep"]), simulate(problem, ["send"])
    >>> (kept.time_s, kept.used_bytes), (decided_bytes.time_s, decided_bytes.used_bytes)
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
        recompute_ps=tuple(clock.again),
        out_order=tuple(clock.out_order),
        in_order=tuple(clock.in_order),
        recompute_order=tuple(clock.recompute_order),
        used_bytes=used,
        peak_over_time_bytes=_peak_over_time(problem, choice, clock),
    )


class _Clock:
    """The three streams, position by position."""

    def __init__(self, problem: Problem, choice: Choice) -> None:
        self.problem, self.choice = problem, choice
        count, saved = len(problem.saved), problem.saved
        self.needed = needs(problem, choice.decisions, choice.recompute_at)
        self.durations = [round(duration * PICOSECONDS_PER_SECOND) for duration in problem.durations_s]
        self.out_order, self.in_order, self.recompute_order = orders(problem, choice)
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
        for index in self.recompute_order:
            self.remade.setdefault(choice.recompute_at[index] or 0, []).append(index)
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
            now = start + round((self.problem.saved[index].recompute_s or 0.0) * PICOSECONDS_PER_SECOND)
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
        """Starts copies in, in the order of need; one that may not start yet blocks those behind it."""
        while self.arriving < len(self.in_order):
            index = self.in_order[self.arriving]
            fetch = self.choice.fetch_at[index] or 0
            if fetch > position:
                return
            saved_tensor, left = self.problem.saved[index], self.out[index]
            start = max(self.gates[fetch], self.in_free_ps, left[1] if left else 0)
            end = start + self.problem.copy_ps(saved_tensor.bytes, self.problem.in_bytes_per_s)
            self.back[index], self.in_free_ps = (start, end), end
            if not self.problem.duplex:
                self.out_free_ps = end
            self.arriving += 1

    @staticmethod
    def _after(now: int, copies: Sequence[tuple[int, int] | None], which: Iterable[int]) -> int:
        return max([now, *(copy[1] for copy in map(copies.__getitem__, which) if copy)])


def clean(problem: Problem, decisions: Sequence[Decision], index: int) -> bool:
    """Whether a tensor leaves without a copy out."""
    saved = problem.saved[index]
    return saved.clean or (saved.clean_after is not None and decisions[saved.clean_after] == "send")


def orders(problem: Problem, choice: Choice) -> tuple[list[int], list[int], list[int]]:
    """Indices in the order of the streams: copies out, copies in, recomputations (`choice` is complete)."""
    saved, needed = problem.saved, needs(problem, choice.decisions, choice.recompute_at)
    moved = [index for index, fetch in enumerate(choice.fetch_at) if fetch is not None]
    again = sorted(
        (index for index, at in enumerate(choice.recompute_at) if at is not None),
        key=lambda index: (choice.recompute_at[index], index),
    )
    user: dict[int, int] = {}  # the first recomputation that reads it, at the position of its first need
    for rank, index in enumerate(again):
        for source in saved[index].sources:
            if choice.recompute_at[index] == needed.first[source]:
                user.setdefault(source, rank)
    copied = (index for index in moved if not clean(problem, choice.decisions, index))
    out = sorted(copied, key=lambda index: (saved[index].last_forward, index))
    back = sorted(moved, key=lambda index: (needed.first[index], user.get(index, len(again)), index))
    return out, back, again


def present(problem: Problem, choice: Choice) -> list[tuple[int, int, int]]:
    """(index, first, last position) of every stretch in which a saved tensor is in memory (`choice` is complete)."""
    needed, end = needs(problem, choice.decisions, choice.recompute_at), len(problem.durations_s)
    stretches = []
    for index, (saved, decision) in enumerate(zip(problem.saved, choice.decisions, strict=True)):
        back: int | None = 0 if saved.wraps else saved.last_forward + 1  # a kept tensor stays
        leave = end if saved.wraps else saved.last_forward + 1
        if decision == "send":
            back, leave = choice.fetch_at[index], choice.leave_by[index] or saved.last_forward + 1
        elif decision == "recompute":
            back = choice.recompute_at[index]
        if needed.first[index] == NEVER or back is None:
            stretches.append((index, saved.produced, saved.last_forward))
        elif not saved.wraps and back <= leave:
            stretches.append((index, saved.produced, needed.last[index]))
        else:
            stretches += [(index, saved.produced, leave - 1), (index, back, needed.last[index])]
    return stretches


def used_bytes(problem: Problem, choice: Choice) -> tuple[int, ...]:
    """By position, the bytes that may be in memory at once between its gate and its end."""
    change = [0] * (len(problem.durations_s) + 1)
    for index, first, last in present(problem, choice):
        change[first] += problem.saved[index].bytes
        change[last + 1] -= problem.saved[index].bytes
    return tuple(map(sum, zip(problem.other_bytes, accumulate(change), strict=False)))


def _peak_over_time(problem: Problem, choice: Choice, clock: _Clock) -> int:
    """The peak memory of one timing: a copy out frees memory when it ends, a copy in takes it when it starts.

    Between two positions only what both have in memory counts.
    """
    events: list[tuple[int, int]] = []

    def hold(start: int, end: int, size: int) -> None:
        if start < end:
            events.extend(((start, size), (end, -size)))

    other_bytes = problem.other_bytes
    for position, (gate, end) in enumerate(zip(clock.gates, clock.ends, strict=True)):
        hold(gate, end, other_bytes[position])
        if position:
            hold(clock.ends[position - 1], gate, min(other_bytes[position - 1], other_bytes[position]))
    for index, (saved, decision) in enumerate(zip(problem.saved, choice.decisions, strict=True)):
        out, back, recomputed = clock.out[index], clock.back[index], clock.again[index]
        end, last = clock.ends[saved.last_forward], clock.ends[clock.needed.last[index]]
        start = (
            clock.starts[saved.produced]
            if saved.produced <= saved.last_forward
            else (*clock.gates, clock.compute_ps)[saved.produced]
        )
        if clock.needed.first[index] == NEVER:
            hold(start, end, saved.bytes)
        elif decision == "keep" and not saved.wraps:
            hold(start, last, saved.bytes)
        else:
            hold(start, clock.ends[-1] if decision == "keep" else out[1] if out else end, saved.bytes)
            hold(back[0] if back else recomputed[0] if recomputed else 0, last, saved.bytes)
    events.sort()
    peak = now = 0
    for _, change in events:
        now += change
        peak = max(peak, now)
    return peak


def completed(problem: Problem, choice: Choice | Sequence[Decision]) -> Choice:
    """The choice with every open position filled in, checked."""
    count, end = len(problem.saved), len(problem.durations_s)
    nothing: tuple[int | None, ...] = (None,) * count
    requested = choice if isinstance(choice, Choice) else Choice(
        decisions=tuple(choice), leave_by=nothing, fetch_at=nothing, recompute_at=nothing
    )  # fmt: skip
    if not len(requested.decisions) == len(requested.leave_by) == len(requested.fetch_at) == len(requested.recompute_at) == count:
        raise BadInput(f"the overlay has {count} saved tensors, the choice {len(requested.decisions)} decisions")
    needed = needs(problem, requested.decisions, requested.recompute_at)
    leave_by, fetch_at = list(nothing), list(nothing)
    for index, (saved, decision) in enumerate(zip(problem.saved, requested.decisions, strict=True)):
        if decision not in ("keep", "send", "recompute"):
            raise BadInput(f"saved tensor {index} ({saved.name}): unknown decision {decision!r} (keep, send or recompute)")
        if decision != "send" or needed.first[index] == NEVER:
            continue
        if not saved.sendable:
            raise BadInput(f"saved tensor {index} ({saved.name}) cannot be sent: keep it or make it again")
        leave, fetch, first = requested.leave_by[index], requested.fetch_at[index], needed.first[index]
        leave = saved.last_forward + 1 if leave is None or clean(problem, requested.decisions, index) else leave
        fetch = first if fetch is None else fetch
        latest, earliest = (end, 0) if saved.wraps else (first, saved.last_forward + 1)
        if not (saved.last_forward < leave <= latest and earliest <= fetch <= first):
            raise BadInput(
                f"saved tensor {index} ({saved.name}) leaves by {leave} and is fetched at {fetch}: "
                f"its last use before is at {saved.last_forward}, its next at {first}"
            )
        leave_by[index], fetch_at[index] = leave, fetch
    return Choice(
        decisions=requested.decisions, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at), recompute_at=needed.recompute_at
    )


def with_cost(problem: Problem, choice: Choice | Sequence[Decision]) -> Choice:
    """The choice, completed, with the time and the guaranteed peak memory of `simulate`."""
    complete = completed(problem, choice)
    schedule = simulate(problem, complete)
    return replace(complete, time_s=schedule.time_s, peak_bytes=schedule.peak_bytes)


def decided_bytes(problem: Problem, choice: Choice, decision: Decision = "send") -> int:
    """Bytes of the tensors that a choice offloads (or keeps, or recomputes)."""
    return sum(saved.bytes for saved, decided in zip(problem.saved, choice.decisions, strict=True) if decided == decision)
