"""Which of several ways to run a model is the fastest, on a host whose speed changes while they are measured.

The rivals are the plan by blocks, the plan without compiled blocks, and the model compiled as a whole with each share of its
activations saved; where calls may be replayed, also a plan whose blocks are, and the fastest of the whole models, replayed. Each
runs a few passes in its turn, in several rounds. A host that other programs slow down for some seconds does
so to most rivals of a round, and less to those of another: so only rivals that ran in the same rounds are compared, by the
geometric mean of their times. (The ratio of two such means is the mean ratio of turns in one round.) Of the passes in a turn, which
take less than a second, the fastest counts: single ones are held up for many reasons. A rival leaves when it takes more than the
budget, when it is slower than the fastest by a factor that falls from round to round, or when it is known that it
would not be faster by more than a percent. The fastest that is left stays.

To compile a whole model takes minutes. A larger share of saved activations means less to compute again: so the largest share is
tried first, and the first that fits is the only new one.

The least of all of a rival's times, which counted before, is of a moment in which the host was quick. Where two rivals ask for a
different amount of the host's time, that moment says little about the others: ConvNeXt's plan by blocks was the faster one in it,
and took 99 ms instead of 83 afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, geometric_mean, stdev
from typing import Final, Literal, get_args

SHARES = (1.0, 0.5, 0.2)
"""Shares of the activations that the model compiled as a whole may save."""
PASSES = 4
"""Passes of each rival in a turn. The first may compile, record or make room, and is not timed."""
ROUNDS = (1.3, 1.2, 1.15, 1.1, 1.1, 1.1)
"""In each further round those run again that take no more than this factor of the least time."""
PROMISING = 1.5
"""For another budget, the whole model runs again with the shares that take no more than this factor of the least time."""
TIE, ERRORS, LEAST_ROUNDS = 0.01, 3, 3
"""A rival leaves if its advantage is less than this share of the time, by this many standard errors, after this many rounds."""
PlanName = Literal["blocks", "eager", "replayed"]
PLANS: tuple[PlanName, ...] = get_args(PlanName)
"""The plan by blocks, the one without compiled blocks, and the one whose blocks are replayed."""
WHOLE_REPLAYED: Final = "whole, replayed"
"""The whole model with the share of activations that was the fastest, replayed."""
REPLAYED: tuple[Rival, ...] = ("replayed", WHOLE_REPLAYED)
Rival = float | PlanName | Literal["whole, replayed"]
"""A plan, the share that the whole model saves, or that model replayed."""


@dataclass(frozen=True, slots=True)
class Score:
    """Time and peak memory of a pass, measured."""

    seconds: float
    peak_bytes: int


class Contest:
    """The rivals of one signature: which of them is to run next, what they scored, and the fastest that fits.

    >>> contest = Contest()
    >>> contest.begin(budget=100, with_eager=False)
    >>> contest.score(2.0, peak_bytes=90)  # the plan by blocks
    >>> contest.refuse(needs=130)  # the whole model, with all of its activations saved
    >>> contest.score(1.6, peak_bytes=60)  # with half of them
    >>> contest.queue  # the second round, without a share of 0.2: those within a factor of 1.3 of the fastest
    [0.5, 'blocks']
    """

    def __init__(self) -> None:
        self.scores: dict[Rival, Score] = {}
        self.needs: dict[float, float] = {}
        """The least memory of shares that were not tried for lack of it; infinite where the compiler refuses the model."""
        self.queue: list[Rival] = []
        self.budget = 0
        self.replayed_share: float | None = None
        """The share of activations that `WHOLE_REPLAYED` saves."""
        self._replays_whole = False
        self._round = 0
        self._seconds: dict[Rival, list[float]] = {}
        """Times of each rival in the rounds of this budget."""

    def begin(
        self, budget: int, *, with_eager: bool, with_replayed: bool = False, replays_whole: bool = False, with_whole: bool = True
    ) -> None:
        """For another plan by blocks or another budget; scores of the whole model only say which shares are worth a new try."""
        self.replayed_share, self._replays_whole = None, replays_whole
        self.scores = {rival: score for rival, score in self.scores.items() if not isinstance(rival, str)}
        self.budget, self._round, self._seconds = budget, 0, {}
        fitting = self._fitting(self.scores)
        asked: dict[PlanName, bool] = {"blocks": True, "eager": with_eager, "replayed": with_replayed}
        self.queue = [plan for plan, is_asked in asked.items() if is_asked]
        if not with_whole:
            self.queue = self.queue if len(self.queue) > 1 else []
            return
        self.queue += [rival for rival in fitting if self._ratio(rival, fitting[0]) <= PROMISING]
        self.queue += [share for share in SHARES if share not in self.scores and self.needs.get(share, 0) <= budget]
        for share in fitting:
            self._leave_out_smaller(share)

    @property
    def rival(self) -> Rival:
        """Whose passes are measured now."""
        return self.queue[0]

    @property
    def passes(self) -> int:
        """Of the rival whose passes are measured."""
        return PASSES + self.untimed - 1

    @property
    def untimed(self) -> int:
        """The first passes of a turn, which are not timed; one that is replayed is rehearsed before it is recorded."""
        return 2 if self.rival in REPLAYED and self._round == 0 else 1

    def score(self, seconds: float, peak_bytes: int) -> None:
        rival = self.queue.pop(0)
        times = self._seconds.setdefault(rival, [])
        times.append(seconds)
        before = self.scores[rival].peak_bytes if rival in self.scores else 0
        self.scores[rival] = Score(geometric_mean(times), max(peak_bytes, before))
        if self.scores[rival].peak_bytes <= self.budget:
            self._leave_out_smaller(rival)
        self._end_turn()

    def _leave_out_smaller(self, rival: Rival) -> None:
        """Smaller shares than one that fits are not tried, unless they have been."""
        if not isinstance(rival, str):
            self.queue = [other for other in self.queue if isinstance(other, str) or other in self.scores or other > rival]

    def refuse(self, needs: float) -> None:
        """The whole model whose turn it is was not run: it needs more memory than there is."""
        rival = self.queue.pop(0)
        self.withdraw(rival)
        if not isinstance(rival, str):
            self.needs[rival] = needs
        self._end_turn()

    def withdraw(self, rival: Rival) -> None:
        """It takes more than the budget."""
        self.scores.pop(rival, None)
        self._seconds.pop(rival, None)

    def _end_turn(self) -> None:
        whole = [rival for rival in self._fitting([*self._seconds]) if not isinstance(rival, str)]
        if not self.queue and self._round == 0 and self._replays_whole and self.replayed_share is None and whole:
            self.replayed_share = whole[0]
            self.queue.append(WHOLE_REPLAYED)
        if self.queue or self._round == len(ROUNDS):
            return
        rivals = self._comparable()
        fast = [rival for rival in rivals if self._ratio(rival, rivals[0]) <= ROUNDS[self._round]]
        left = [*rivals[:1], *(rival for rival in fast[1:] if self._may_be_faster(rival, rivals[0]))]
        self._round += 1
        self.queue = left if len(left) > 1 else []

    def _comparable(self) -> list[Rival]:
        """Rivals that fit and ran in all rounds so far, the fastest first."""
        rounds = max(map(len, self._seconds.values()), default=0)
        return self._fitting([rival for rival, times in self._seconds.items() if len(times) == rounds])

    def _fitting(self, rivals: dict[Rival, Score] | list[Rival]) -> list[Rival]:
        fitting = [rival for rival in rivals if rival in self.scores and self.scores[rival].peak_bytes <= self.budget]
        return sorted(fitting, key=self._handicapped)

    def _handicapped(self, rival: Rival) -> float:
        """Seconds of a rival; one that is replayed must be faster than others by more than a tie."""
        return self.scores[rival].seconds * (1 + TIE * (rival in REPLAYED))

    def _ratio(self, rival: Rival, fastest: Rival) -> float:
        return self.scores[rival].seconds / self.scores[fastest].seconds

    def _may_be_faster(self, rival: Rival, fastest: Rival) -> bool:
        pairs = zip(self._seconds[rival], self._seconds[fastest], strict=True)
        ratios = [log(seconds / least) for seconds, least in pairs]
        return len(ratios) < LEAST_ROUNDS or fmean(ratios) - ERRORS * stdev(ratios) / sqrt(len(ratios)) < -TIE

    @property
    def winner(self) -> Rival:
        """The fastest that fits; where none does, the plan that takes the least memory."""
        return self._best(list(self._seconds))

    @property
    def winner_without_replay(self) -> Rival:
        return self._best([rival for rival in self._seconds if rival not in REPLAYED])

    def _best(self, rivals: list[Rival]) -> Rival:
        plans: list[Rival] = [rival for rival in self.scores if rival in ("blocks", "eager")]
        smallest = sorted(plans, key=lambda plan: self.scores[plan].peak_bytes)
        comparable = [rival for rival in self._comparable() if rival in rivals]
        fitting = self._fitting([rival for rival in self.scores if rival in rivals or rival not in REPLAYED])
        return next(iter(comparable or fitting or smallest), "blocks")
