"""The least time within a memory budget: each saved tensor kept, sent or made again, and when copies leave and come.

A copy is free as long as the link hides it behind compute, and hides better the longer its tensor lies idle; making a tensor again
costs compute. So what is cheap to make again per byte is made again, of what is idle long as much is sent as hides, the rest stays.

The search climbs a ladder of budgets from the least that fits (all that can be is sent) to the most (all is kept). On each rung it
starts from the best of the rung below and of a family (the cheapest to make again per byte, up to some share; of the rest so many
sent, in one of three orders, that the rung holds), then changes blocks of tensors and pairs as long as that helps, a bounded number
of times. The ladder is the problem's own: a budget only says how high to climb, and a rung never takes a slower choice than the one
below it. So a larger budget never gives a longer time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NoReturn

from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import NEVER, Choice, Decision, Problem, Saved, completed, priced, used_bytes
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
"""So many times the tries on the lowest rung, which the others build on."""
EFFORT = 80_000_000
"""Tensors and positions looked at on the whole ladder, about."""
LEAST_TRIES = 64
"""On one rung, however large the problem."""
STARTS, ENOUGH = 4, 400
"""So many of the best starts are improved, if each has so many tries."""
SHARES = 8
"""So many steps of what is made again in the family of starts."""
REACH = 6
"""Pairs of neighbours that change together are at most so far apart, as tensors are made."""
FAR = 1000
"""And pairs that promise to make less again."""


def as_needed(problem: Problem, budget_bytes: int) -> Choice:
    """The least time found within the budget; its memory by position is never more, whatever the timing.

    >>> big = Saved(name="big", bytes=8, made=0, last_forward=0, first_backward=5, last_backward=5)
    >>> cheap = Saved(name="cheap", bytes=8, made=1, last_forward=1, first_backward=4, last_backward=4, again_s=0.5, sources=(0,))
    >>> link = {"out_bytes_per_s": 4, "in_bytes_per_s": 4}
    >>> problem = Problem(durations_s=(1.0,) * 6, held_bytes=(0, 0, 4, 4, 0, 0), saved=(big, cheap), **link)
    >>> [(as_needed(problem, size).decisions, as_needed(problem, size).time_s) for size in (20, 16, 15)]
    [(('keep', 'keep'), 6.0), (('keep', 'recompute'), 6.5), (('send', 'keep'), 10.0)]
    """
    return ladder(problem).climb(budget_bytes)


@lru_cache(maxsize=8)
def ladder(problem: Problem) -> Ladder:
    return Ladder(problem)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a rung holds: decisions with their price, placed for the budget `rung` (its own or a lower one)."""

    time_ps: int
    busy_ps: int
    rung: int
    early: bool
    decisions: Whole

    @property
    def key(self) -> tuple[int, int]:
        """Less time is better; in the same time, less to do."""
        return self.time_ps, self.busy_ps


class Ladder:
    """One problem's choices by budget, found from below as far as they are asked for.

    `least` bytes are needed at the fullest position with all that can be sent or made again, `most` with everything kept.
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
        self.lowest = np.array([_smallest(one) for one in problem.saved], np.int64)
        self.most = self._bytes(np.full(tensors, KEEP))
        if not all(one.sendable for one in problem.saved):  # else nothing takes less than to send everything
            self._improve(self.lowest, 0, self.tries)
        self.least = self._bytes(self.lowest)
        between = self.most - self.least  # rungs stand closer where memory is scarce
        self.rungs = sorted({self.least + between * step**2 // rungs**2 for step in range(rungs + 1)})
        self.found: list[_Found] = []

    def climb(self, budget_bytes: int) -> Choice:
        """The choice of the highest rung that the budget holds."""
        if budget_bytes < self.least:
            self._refuse(budget_bytes)
        height = bisect_right(self.rungs, budget_bytes)
        while len(self.found) < height:
            self.found.append(self._rung(self.rungs[len(self.found)]))
        return self._choice(self.found[height - 1])

    def _rung(self, rung: int) -> _Found:
        starts = [self.lowest, *self._family(rung), *(below.decisions for below in self.found[-1:])]
        ways = {start.tobytes(): (self._priced(start, rung, early=False).key, number) for number, start in enumerate(starts)}
        hidden = bool(self.found) and self.found[-1].time_ps == self.compute_ps  # only less to do is left to be found
        tries = min(self.tries, ENOUGH) if hidden else self.tries if self.found else FIRST * self.tries
        several = max(min(STARTS, tries // ENOUGH), 1)
        tried = []
        for _, number in sorted(ways.values())[:several]:
            decisions = starts[number].copy()
            self._improve(decisions, rung, tries // several)
            tried += [self._priced(decisions, rung, early) for early in (True, False)]
        found = min(tried, key=lambda one: one.key)
        if self.found and self.found[-1].key <= found.key:
            return self.found[-1]
        return found

    def _priced(self, decisions: Whole, rung: int, early: bool) -> _Found:
        time_ps, _ = self.kernel.price(*self.arrays, decisions, rung, early, self.kernel.NO_WAY, self.room)
        return _Found(time_ps, self.kernel.busy(self.arrays[0], decisions, self.room), rung, early, decisions)

    def _improve(self, decisions: Whole, rung: int, tries: int) -> None:
        """Changes `decisions` for the better: fewer bytes over the rung, then less time, then less to do."""
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
        """At the fullest position."""
        return self.kernel.price(*self.arrays, decisions, -1, False, self.kernel.NO_WAY, self.room)[1] - 1

    def _family(self, rung: int) -> Iterator[Whole]:
        """The cheapest to make again per byte, up to a share of their bytes; of the rest the fewest sent, in order, that fit."""
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
        found = []
        for share in shares:
            base = np.array([_smallest(one) if one.first_backward == NEVER else KEEP for one in saved], np.int64)
            base[cheapest[:share]] = RECOMPUTE
            found += [
                (base, np.array([index for index in order if base[index] == KEEP], np.int64)) for order in _sent(self.problem)
            ]
        return found

    @cached_property
    def _orders(self) -> list[Whole]:
        """Alike tensors side by side, and tensors as they are made, but for those that only stand between others."""
        import numpy as np

        saved = self.problem.saved
        alike = sorted(range(len(saved)), key=lambda i: (saved[i].bytes, saved[i].again_s or -1.0, saved[i].made, i))
        needed = [index for index, one in enumerate(saved) if one.first_backward != NEVER]
        made = sorted(needed, key=lambda index: (saved[index].made, index))
        return [np.array(order, np.int64) for order in (alike, made)]

    def _choice(self, found: _Found) -> Choice:
        """As it was placed on its rung."""
        kernel, decisions = self.kernel, tuple(DECISIONS[decision] for decision in found.decisions)
        kernel.price(*self.arrays, found.decisions, found.rung, found.early, kernel.NO_WAY, self.room)
        least = completed(self.problem, decisions)
        moved = [fetch is not None for fetch in least.fetch_at]
        leave_by, fetch_at = (
            tuple(int(at) if sent else None for at, sent in zip(self.room[row], moved, strict=False))
            for row in (kernel.LEAVE_BY, kernel.FETCH_AT)
        )
        return priced(self.problem, Choice(decisions=decisions, leave_by=leave_by, fetch_at=fetch_at, again_at=least.again_at))

    def _refuse(self, budget_bytes: int) -> NoReturn:
        lowest = [DECISIONS[decision] for decision in self.lowest]
        used = used_bytes(self.problem, completed(self.problem, lowest))
        position = used.index(max(used))
        budget, held = (show(size, "B", digits=4) for size in (budget_bytes, self.problem.held_bytes[position]))
        needed = enough(used[position])
        if budget == needed:  # the last digits tell them apart
            budget, needed = f"{budget_bytes:,} bytes", f"{used[position]:,} bytes"
        raise BadInput(
            f"nothing fits {budget}: {self.problem.label(position)} alone needs {needed} with all that can be away "
            f"({held} of it is not for the overlay to move)"
        )


def enough(size_bytes: int) -> str:
    """Bytes in four digits, rounded up: what is written so is not too little.

    >>> enough(102_192_392), enough(512), enough(99_999_999)
    ('102.2 MB', '512 B', '100 MB')
    """
    step = 10 ** max(len(str(size_bytes)) - 4, 0)
    return show(-(-size_bytes // step) * step, "B", digits=4)


def packed(problem: Problem) -> Packed:
    """A problem as the compiled loops want it."""
    import numpy as np

    def picoseconds(seconds: float | None) -> int:
        return -1 if seconds is None else round(seconds * PICOSECONDS_PER_SECOND)

    out, back = problem.out_bytes_per_s, problem.in_bytes_per_s
    rows = [
        (
            *(one.bytes, one.made, one.last_forward, one.first_backward, one.last_backward, picoseconds(one.again_s)),
            *(problem.copy_ps(one.bytes, out), problem.copy_ps(one.bytes, back), one.wraps, _clean(one), one.sendable),
        )
        for one in problem.saved
    ]
    line = [(picoseconds(duration), held) for duration, held in zip(problem.durations_s, problem.held_bytes, strict=True)]
    ends = np.cumsum([len(one.sources) for one in problem.saved], dtype=np.int64)
    sources = np.array([source for one in problem.saved for source in one.sources], np.int64)
    return np.array(rows, np.int64).reshape(-1, 11), np.array(line, np.int64), ends, sources, problem.duplex


def _clean(one: Saved) -> int:
    return 1 if one.clean else 0 if one.clean_after is None else 2 + one.clean_after


def _smallest(one: Saved) -> int:
    """The decision that takes the least memory: away, where it can be."""
    if one.first_backward == NEVER and one.again_s is not None:
        return RECOMPUTE
    return SEND if one.sendable else RECOMPUTE if one.again_s is not None else KEEP


def _cheapest(problem: Problem) -> list[int]:
    """What can be made again, the least seconds per byte first; what only stands between it and its sources is made with it."""
    whole: list[float] = []
    for one in problem.saved:
        between = (whole[source] for source in one.sources if problem.saved[source].first_backward == NEVER)
        whole.append((one.again_s or 0.0) + sum(between))
    found = [index for index, one in enumerate(problem.saved) if one.again_s is not None and one.first_backward != NEVER]
    return sorted(found, key=lambda index: (whole[index] / max(problem.saved[index].bytes, 1), index))


def _sent(problem: Problem) -> list[list[int]]:
    """Orders of sending: as they are made; the dearest to make again first; every other one first, then those between."""
    saved = problem.saved
    made = sorted((i for i, one in enumerate(saved) if one.sendable), key=lambda index: (saved[index].made, index))
    dear = sorted(made, key=lambda index: -_density(saved[index]))
    bits = max(len(made) - 1, 1).bit_length()
    spread = sorted(range(len(made)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [made, dear, [made[place] for place in spread]]


def _density(one: Saved) -> float:
    return float("inf") if one.again_s is None else one.again_s / max(one.bytes, 1)
