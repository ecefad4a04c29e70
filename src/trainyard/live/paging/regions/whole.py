"""Rivals of the plan with compiled blocks: the plan without them, and the model compiled as a whole.

A compiler that sees the whole model fuses across the borders of blocks, and its host calls one function instead of many. Compiled
blocks between others, in turn, can cost the host more than a survey of them shows. So after the plan has been followed for a few
passes, which are timed, the plan without compiled blocks is, and then the model compiled with each share of its activations saved,
the smallest share first. Those close to the fastest run again, in up to three more rounds. The fastest way that fits the budget
stays: `compile=True` is not slower than without it, nor than `torch.compile` alone. The compiler says what it would save before
anything runs: a share is not tried if that does not fit beside what the device holds before forward, or if its backward could
exceed what the device has. One that takes more than the budget all the same is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.live.paging.regions.finding import kind_of
from trainyard.live.paging.regions.variants import CompilerName, Entry, backend_of, own_code
from trainyard.live.paging.signature import Signature

SHARES = (0.2, 0.5, 1.0)
"""Shares of the activations that the model compiled as a whole may save: the smallest needs the least memory."""
PASSES = 4
"""Passes of each rival in the first round, one fewer in the others. The first may compile or make room, and is not timed."""
ROUNDS = (1.3, 1.1, 1.1)
"""In each further round those run again that take no more than this factor of the least time."""
PROMISING = 1.5
"""For another budget, the whole model runs again with the shares that take no more than this factor of the least time."""
Rival = float | Literal["blocks", "eager"]
"""The plan by blocks, the plan without compiled blocks, or the share that the whole model saves."""


def can_be_compiled(model: nn.Module) -> bool:
    """Models that are spread over processes are compiled by blocks alone."""
    plain = all(type(parameter) is nn.Parameter for parameter in model.parameters())
    return plain and not isinstance(model, DistributedDataParallel)


class _TooLarge(Exception):
    """The bytes that the graphs so far save, and one more would, do not fit."""

    def __init__(self, needs: int) -> None:
        super().__init__(f"{needs} bytes")
        self.needs = needs


@dataclass(frozen=True, slots=True)
class Score:
    """Time and peak memory of a pass, measured."""

    seconds: float
    peak_bytes: int


class Contest:
    """The rivals of one signature: which of them is to run next, what they scored, and the fastest that fits.

    Each runs in a first round. All that are close to the fastest run in a second, and the closest in two more; the best of a
    rival's times counts. A host that other programs keep busy makes passes slow for some seconds, and seldom those of all rivals
    alike: with one run of each, beside a busy host, a share of Swin's activations won that is a third slower than another one.
    Times that were measured for another budget only say what is worth running again: a lucky one, kept from a quieter minute, let
    a share of the UNet's win that is slower than another.
    """

    def __init__(self) -> None:
        self.scores: dict[Rival, Score] = {}
        self.needs: dict[float, float] = {}
        """The least memory of shares that were not tried for lack of it; infinite where the compiler refuses the model."""
        self.queue: list[Rival] = []
        self.budget = 0
        self._round = 0
        self._run: set[Rival] = set()
        """Rivals that have a score of this budget."""

    def begin(self, budget: int, *, with_eager: bool) -> None:
        """For another plan by blocks or another budget; scores of the whole model stay, and the promising ones run again."""
        self.scores = {rival: score for rival, score in self.scores.items() if not isinstance(rival, str)}
        self.budget, self._round, self._run = budget, 0, set()
        self.queue = ["blocks", *(["eager"] if with_eager else [])]  # type: ignore[list-item]
        self.queue += self._close(PROMISING)
        self.queue += [share for share in SHARES if share not in self.scores and self.needs.get(share, 0) <= budget]

    @property
    def rival(self) -> Rival:
        """Whose passes are measured now."""
        return self.queue[0]

    @property
    def passes(self) -> int:
        """Of the rival whose passes are measured."""
        return PASSES if self._round == 0 else PASSES - 1

    def score(self, seconds: float, peak_bytes: int) -> None:
        rival = self.queue.pop(0)
        before = self.scores.get(rival)
        if before is not None:
            seconds = min(seconds, before.seconds) if rival in self._run else seconds
            peak_bytes = max(peak_bytes, before.peak_bytes)
        self._run.add(rival)
        self.scores[rival] = Score(seconds, peak_bytes)
        self._begin_round()

    def refuse(self, needs: float) -> None:
        share = self.queue.pop(0)
        assert not isinstance(share, str)
        self.scores.pop(share, None)
        self.needs[share] = needs
        self._begin_round()

    def _begin_round(self) -> None:
        while not self.queue and self._round < len(ROUNDS):
            close = self._close(ROUNDS[self._round])
            self._round += 1
            self.queue = close if len(close) > 1 else []

    def _close(self, factor: float) -> list[Rival]:
        """Rivals that fit and take no more than a factor of the least time, the fastest first."""
        fitting = self._fitting()
        return [rival for rival in fitting if self.scores[rival].seconds <= factor * self.scores[fitting[0]].seconds]

    def _fitting(self) -> list[Rival]:
        fitting = [rival for rival, score in self.scores.items() if score.peak_bytes <= self.budget]
        return sorted(fitting, key=lambda rival: self.scores[rival].seconds)

    @property
    def winner(self) -> Rival:
        """The fastest that fits; where none does, the plan that takes the least memory."""
        plans: list[Rival] = [rival for rival in self.scores if isinstance(rival, str)]
        fitting = self._fitting() or sorted(plans, key=lambda plan: self.scores[plan].peak_bytes)
        return fitting[0] if fitting else "blocks"


class WholeModel:
    """The model's own call, and the compiled ones that run instead of it, from `open` to `close`.

    A model's call is looked up before its hooks run, and one of these decides what runs. So the call is replaced once, by one
    that looks for the decision when it is made. Compiled code stays when the model is closed and opened again.
    """

    def __init__(self, model: nn.Module, compiler: CompilerName) -> None:
        self.entry, self.compiler = Entry(model, kind_of(model)), compiler
        self.compiled: dict[float, Callable[..., Any]] = {}
        self.room_bytes = 0
        self.saved_bytes: dict[tuple[float, Signature], int] = {}
        """What the compiled forward graphs of each share and signature save or return."""
        self._compiling: tuple[float, Signature] = (0.0, ())
        self.active: Callable[..., Any] = self.entry.call

    def open(self) -> None:
        self.rest()
        self.entry.replace(lambda *arguments, **keywords: self.active(*arguments, **keywords))

    def install(self, share: float, signature: Signature, room_bytes: int, refused: Callable[[float], None]) -> None:
        """From the next call on, also if its hooks are running. `refused` is told how many bytes were too many, and then the
        model's own code runs."""
        self.room_bytes, self._compiling = room_bytes, (share, signature)
        if share not in self.compiled:
            key = (share, self.compiler, "whole", *self.entry.kind)
            backend = backend_of(share, self.compiler, self._admit)
            self.compiled[share] = torch.compile(own_code(self.entry.call, key), backend=backend, dynamic=False)
        compiled, own = self.compiled[share], self.entry.call

        def run(*arguments: Any, **keywords: Any) -> Any:
            needs = float(self.saved_bytes.get((share, signature), 0))
            if needs <= room_bytes:
                try:
                    return compiled(*arguments, **keywords)
                except (torch._dynamo.exc.TorchDynamoException, torch.OutOfMemoryError) as error:
                    cause = getattr(error, "inner_exception", None)
                    needs = float(cause.needs) if isinstance(cause, _TooLarge) else float("inf")
            refused(needs)
            return own(*arguments, **keywords)

        self.active = run

    def rest(self) -> None:
        """The model's own code runs again."""
        self.active = self.entry.call

    def close(self) -> None:
        self.entry.restore()

    def _admit(self, saved_bytes: int) -> None:
        total = self.saved_bytes.get(self._compiling, 0) + saved_bytes  # a model may be compiled in several graphs
        if total > self.room_bytes:
            raise _TooLarge(total)
        self.saved_bytes[self._compiling] = total
