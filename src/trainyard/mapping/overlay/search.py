"""The least time within a memory budget: each saved tensor kept, offloaded or recomputed, and when copies leave and return.

A copy is free as long as the link hides it behind compute, and hides better the longer its tensor is idle; recomputation costs
compute time. So tensors that are cheap to recompute per byte are recomputed, of those idle for long as many are offloaded as hide,
and the rest is kept.

The search climbs a ladder of budgets from the least that fits (all that can be is offloaded) to the most (all is kept). On each
rung it starts from the best of the rung below and of a family of starts (the cheapest to recompute per byte, up to some share; of
the rest as many offloaded, in one of three orders, as the rung requires), then changes blocks of tensors and pairs while that
helps, a bounded number of times. The ladder depends on the problem alone: a budget only says how high to climb, and a rung is never
slower than the one below it. So a larger budget never gives a longer time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NoReturn

from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import NEVER, Choice, Decision, Problem, Saved, completed, used_bytes, with_cost
from trainyard.units import PICOSECONDS_PER_SECOND, show

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]
    Packed = tuple[Whole, Whole, Whole, Whole, bool]

DECISIONS: tuple[Decision, ...] = ("keep", "send", "recompute")
KEEP, SEND, RECOMPUTE = range(3)
RUNGS = 64
FEW, FINE_RUNGS = 256, 128
"""Rungs where tensors and positions are fewer than FEW."""
FIRST = 8
"""Factor of tries on the lowest rung, on which the others build."""
EFFORT = 80_000_000
"""Tensors and positions visited on the whole ladder, about."""
LEAST_TRIES = 64
"""Tries on one rung, however large the problem."""
STARTS, ENOUGH = 4, 400
"""The number of best starts that are improved, if each has ENOUGH tries."""
SHARES = 8
"""Shares of recomputed bytes in the family of starts."""
REACH = 6
"""Farthest distance of neighbours that are changed together, in the order of production."""
FAR = 1000
"""The same for pairs that promise less recomputation."""


def as_needed(problem: Problem, budget_bytes: int) -> Choice:
    """The least time found within the budget; its memory by position is never more, whatever the timing.

    >>> big = Saved(name="big", bytes=8, produced=0, last_forward=0, first_backward=5, last_backward=5)
    >>> recompute = {"recompute_s": 0.5, "sources": (0,)}
    >>> cheap = Saved(name="cheap", bytes=8, produced=1, last_forward=1, first_backward=4, last_backward=4, **recompute)
    >>> link = {"out_bytes_per_s": 4, "in_bytes_per_s": 4}
    >>> problem = Problem(durations_s=(1.0,) * 6, other_bytes=(0, 0, 4, 4, 0, 0), saved=(big, cheap), **link)
    >>> [(as_needed(problem, size).decisions, as_needed(problem, size).time_s) for size in (20, 16, 15)]
    [(('keep', 'keep'), 6.0), (('keep', 'recompute'), 6.5), (('send', 'keep'), 10.0)]
    """
    return ladder(problem).climb(budget_bytes)


@lru_cache(maxsize=8)
def ladder(problem: Problem) -> Ladder:
    return Ladder(problem)


@dataclass(frozen=True, slots=True, eq=False)
class _Rung:
    """The result of a rung: decisions with their time, placed for the budget `rung` (its own or a lower one)."""

    time_ps: int
    busy_ps: int
    rung: int
    early: bool
    decisions: Whole

    @property
    def key(self) -> tuple[int, int]:
        """Less time is better; at the same time, less work."""
        return self.time_ps, self.busy_ps


class Ladder:
    """One problem's choices by budget, computed from below as far as they are requested.

    `least` is the peak memory with all offloaded or recomputed that can be, `most` with everything kept.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        from trainyard.kernels.mapping import overlay as kernel

        self.kernel, self.problem = kernel, problem
        self.arrays = packed(problem)
        tensors, positions = len(problem.saved), len(problem.durations_s)
        self.room = np.zeros((kernel.ROWS, max(tensors, positions) + 2), np.int64)
        rungs = RUNGS if tensors + positions > FEW else FINE_RUNGS
        self.tries = max(EFFORT // rungs // (tensors + positions), LEAST_TRIES)
        self.compute_ps = int(self.arrays[1][:, kernel.DURATION_PS].sum())
        self.lowest = np.array([_smallest(saved) for saved in problem.saved], np.int64)
        self.most = self._bytes(np.full(tensors, KEEP))
        if not all(saved.sendable for saved in problem.saved):  # else offloading everything takes the least memory
            self._improve(self.lowest, 0, self.tries)
        self.least = self._bytes(self.lowest)
        between = self.most - self.least  # rungs are closer where memory is scarce
        self.rungs = sorted({self.least + between * step**2 // rungs**2 for step in range(rungs + 1)})
        self.climbed: list[_Rung] = []

    def climb(self, budget_bytes: int) -> Choice:
        """The choice of the highest rung within the budget."""
        if budget_bytes < self.least:
            self._refuse(budget_bytes)
        height = bisect_right(self.rungs, budget_bytes)
        while len(self.climbed) < height:
            self.climbed.append(self._rung(self.rungs[len(self.climbed)]))
        return self._choice(self.climbed[height - 1])

    def _rung(self, rung: int) -> _Rung:
        starts = [self.lowest, *self._family(rung), *(below.decisions for below in self.climbed[-1:])]
        starts_by_cost = {
            start.tobytes(): (self._priced(start, rung, early=False).key, number) for number, start in enumerate(starts)
        }
        hidden = bool(self.climbed) and self.climbed[-1].time_ps == self.compute_ps  # only the work can still be reduced
        tries = min(self.tries, ENOUGH) if hidden else self.tries if self.climbed else FIRST * self.tries
        several = max(min(STARTS, tries // ENOUGH), 1)
        tried = []
        for _, number in sorted(starts_by_cost.values())[:several]:
            decisions = starts[number].copy()
            self._improve(decisions, rung, tries // several)
            tried += [self._priced(decisions, rung, early) for early in (True, False)]
        best = min(tried, key=lambda candidate: candidate.key)
        if self.climbed and self.climbed[-1].key <= best.key:
            return self.climbed[-1]
        return best

    def _priced(self, decisions: Whole, rung: int, early: bool) -> _Rung:
        time_ps, _ = self.kernel.price(*self.arrays, decisions, rung, early, self.kernel.NO_WAY, self.room)
        return _Rung(time_ps, self.kernel.busy(self.arrays[0], decisions, self.room), rung, early, decisions)

    def _improve(self, decisions: Whole, rung: int, tries: int) -> None:
        """Improves `decisions` in place: fewer bytes over the rung, then less time, then less work."""
        import numpy as np

        best, count = np.full(3, self.kernel.NO_WAY), len(decisions)
        self.kernel.better(*self.arrays, decisions, rung, self.room, best)
        while tries and count:
            before = best.copy()
            for order in self._orders:
                tries = self.kernel.improve(*self.arrays, decisions, rung, order, max(count // 2, 1), tries, self.room, best)
            tries = self.kernel.swap(*self.arrays, decisions, rung, self._orders[-1], REACH, FAR, tries, self.room, best)
            if (best == before).all():
                break

    def _bytes(self, decisions: Whole) -> int:
        """Peak memory of some decisions."""
        return self.kernel.price(*self.arrays, decisions, -1, False, self.kernel.NO_WAY, self.room)[1] - 1

    def _family(self, rung: int) -> Iterator[Whole]:
        """Starts: the cheapest to recompute per byte up to some share, and of the rest the fewest offloaded that fit the rung."""
        for base, sends in self._starts:
            trial = base.copy()
            if self.kernel.send_fewest(*self.arrays[:4], trial, rung, sends, self.room):
                yield trial

    @cached_property
    def _starts(self) -> list[tuple[Whole, Whole]]:
        import numpy as np

        saved = self.problem.saved
        cheapest = _cheapest(self.problem)
        total, done, shares = sum(saved[index].bytes for index in cheapest), 0, [0]
        for place, index in enumerate(cheapest):
            done += saved[index].bytes
            if done * SHARES >= total * len(shares):
                shares.append(place + 1)
        starts = []
        for share in shares:
            base = np.array(
                [_smallest(saved_tensor) if saved_tensor.first_backward == NEVER else KEEP for saved_tensor in saved], np.int64
            )
            base[cheapest[:share]] = RECOMPUTE
            starts += [
                (base, np.array([index for index in order if base[index] == KEEP], np.int64))
                for order in _offload_orders(self.problem)
            ]
        return starts

    @cached_property
    def _orders(self) -> list[Whole]:
        """Tensors sorted by similarity, and by production without those that only recomputation needs."""
        import numpy as np

        saved = self.problem.saved
        alike = sorted(range(len(saved)), key=lambda i: (saved[i].bytes, saved[i].recompute_s or -1.0, saved[i].produced, i))
        needed = [index for index, saved_tensor in enumerate(saved) if saved_tensor.first_backward != NEVER]
        made = sorted(needed, key=lambda index: (saved[index].produced, index))
        return [np.array(order, np.int64) for order in (alike, made)]

    def _choice(self, rung: _Rung) -> Choice:
        """The choice of a rung, placed as when it was found."""
        kernel, decisions = self.kernel, tuple(DECISIONS[decision] for decision in rung.decisions)
        kernel.price(*self.arrays, rung.decisions, rung.rung, rung.early, kernel.NO_WAY, self.room)
        least = completed(self.problem, decisions)
        moved = [fetch is not None for fetch in least.fetch_at]
        leave_by, fetch_at = (
            tuple(int(at) if moves else None for at, moves in zip(self.room[row], moved, strict=False))
            for row in (kernel.LEAVE_BY, kernel.FETCH_AT)
        )
        return with_cost(
            self.problem, Choice(decisions=decisions, leave_by=leave_by, fetch_at=fetch_at, recompute_at=least.recompute_at)
        )

    def _refuse(self, budget_bytes: int) -> NoReturn:
        lowest = [DECISIONS[decision] for decision in self.lowest]
        used = used_bytes(self.problem, completed(self.problem, lowest))
        position = used.index(max(used))
        budget, other = (show(size, "B", digits=4) for size in (budget_bytes, self.problem.other_bytes[position]))
        needed = enough(used[position])
        if budget == needed:  # the last digits tell them apart
            budget, needed = f"{budget_bytes:,} bytes", f"{used[position]:,} bytes"
        raise BadInput(
            f"nothing fits {budget}: {self.problem.label(position)} alone needs {needed} with all that can be away "
            f"({other} of it is not for the overlay to move)"
        )


def enough(size_bytes: int) -> str:
    """Bytes in four digits, rounded up, so that the printed size is enough.

    >>> enough(102_192_392), enough(512), enough(99_999_999)
    ('102.2 MB', '512 B', '100 MB')
    """
    step = 10 ** max(len(str(size_bytes)) - 4, 0)
    return show(-(-size_bytes // step) * step, "B", digits=4)


def packed(problem: Problem) -> Packed:
    """A problem as arrays for the compiled loops."""
    import numpy as np

    def picoseconds(seconds: float | None) -> int:
        return -1 if seconds is None else round(seconds * PICOSECONDS_PER_SECOND)

    out, back = problem.out_bytes_per_s, problem.in_bytes_per_s
    rows = [
        (
            *(
                saved.bytes,
                saved.produced,
                saved.last_forward,
                saved.first_backward,
                saved.last_backward,
                picoseconds(saved.recompute_s),
            ),
            *(problem.copy_ps(saved.bytes, out), problem.copy_ps(saved.bytes, back), saved.wraps, _clean(saved), saved.sendable),
        )
        for saved in problem.saved
    ]
    line = [(picoseconds(duration), other) for duration, other in zip(problem.durations_s, problem.other_bytes, strict=True)]
    ends = np.cumsum([len(saved.sources) for saved in problem.saved], dtype=np.int64)
    sources = np.array([source for saved in problem.saved for source in saved.sources], np.int64)
    return np.array(rows, np.int64).reshape(-1, 11), np.array(line, np.int64), ends, sources, problem.duplex


def _clean(saved: Saved) -> int:
    return 1 if saved.clean else 0 if saved.clean_after is None else 2 + saved.clean_after


def _smallest(saved: Saved) -> int:
    """The decision that takes the least memory."""
    if saved.first_backward == NEVER and saved.recompute_s is not None:
        return RECOMPUTE
    return SEND if saved.sendable else RECOMPUTE if saved.recompute_s is not None else KEEP


def _cheapest(problem: Problem) -> list[int]:
    """Tensors that can be recomputed, the least seconds per byte first, with the time of tensors that only they need."""
    total_s: list[float] = []
    for tensor in problem.saved:
        between = (total_s[source] for source in tensor.sources if problem.saved[source].first_backward == NEVER)
        total_s.append((tensor.recompute_s or 0.0) + sum(between))
    recomputable = [
        index for index, tensor in enumerate(problem.saved) if tensor.recompute_s is not None and tensor.first_backward != NEVER
    ]
    return sorted(recomputable, key=lambda index: (total_s[index] / max(problem.saved[index].bytes, 1), index))


def _offload_orders(problem: Problem) -> list[list[int]]:
    """Orders of offloading: as produced; the most expensive to recompute first; every other one first, then those between."""
    saved = problem.saved
    produced = sorted((i for i, tensor in enumerate(saved) if tensor.sendable), key=lambda index: (saved[index].produced, index))
    dear = sorted(produced, key=lambda index: -_density(saved[index]))
    bits = max(len(produced) - 1, 1).bit_length()
    spread = sorted(range(len(produced)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [produced, dear, [produced[place] for place in spread]]


def _density(saved: Saved) -> float:
    return float("inf") if saved.recompute_s is None else saved.recompute_s / max(saved.bytes, 1)
