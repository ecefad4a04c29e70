"""Rivals of the plan with compiled blocks: the plan without them, and the model compiled as a whole.

A compiler that sees the whole model fuses across the borders of blocks, and its host calls one function instead of many. Compiled
blocks between others, in turn, can cost the host more than a survey of them shows. So after the plan has been followed for a few
passes, which are timed, the plan without compiled blocks is, and then the model compiled with each share of its activations saved,
the smallest share first. The fastest way that fits the budget stays: `compile=True` is not slower than without it, nor than
`torch.compile` alone. The compiler says what it would save before anything runs: a share that cannot fit is not tried.
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

SHARES = (0.2, 0.5, 1.0)
"""Shares of the activations that the model compiled as a whole may save: the smallest needs the least memory."""
PASSES = 4
"""Passes of each rival. The first may compile, and is not timed."""
Rival = float | Literal["blocks", "eager"]
"""The plan by blocks, the plan without compiled blocks, or the share that the whole model saves."""


def can_be_compiled(model: nn.Module) -> bool:
    """Models that are spread over processes are compiled by blocks alone."""
    plain = all(type(parameter) is nn.Parameter for parameter in model.parameters())
    return plain and not isinstance(model, DistributedDataParallel)


class _TooLarge(Exception):
    """What a graph would save does not fit."""


@dataclass(frozen=True, slots=True)
class Score:
    """Time and peak memory of a pass, measured."""

    seconds: float
    peak_bytes: int


class Contest:
    """The rivals of one signature: which of them is to run next, what they scored, and the fastest that fits."""

    def __init__(self) -> None:
        self.scores: dict[Rival, Score] = {}
        self.needs: dict[float, float] = {}
        """The least memory of shares that were not tried for lack of it; infinite where the compiler refuses the model."""
        self.queue: list[Rival] = []

    def begin(self, budget: int, *, with_eager: bool) -> None:
        """For another plan by blocks or another budget; scores of the whole model stay."""
        self.scores = {rival: score for rival, score in self.scores.items() if not isinstance(rival, str)}
        self.queue = ["blocks", *(["eager"] if with_eager else [])]  # type: ignore[list-item]
        self.queue += [share for share in SHARES if share not in self.scores and self.needs.get(share, 0) <= budget]

    @property
    def rival(self) -> Rival:
        """Whose passes are measured now."""
        return self.queue[0]

    def score(self, seconds: float, peak_bytes: int) -> None:
        self.scores[self.queue.pop(0)] = Score(seconds, peak_bytes)

    def refuse(self, needs: float) -> None:
        share = self.queue.pop(0)
        assert not isinstance(share, str)
        self.needs[share] = needs

    def winner(self, budget: int) -> Rival:
        """Plans were chosen for the budget; the whole model fits or not."""
        fitting = [rival for rival, score in self.scores.items() if isinstance(rival, str) or score.peak_bytes <= budget]
        return min(fitting, key=lambda rival: self.scores[rival].seconds, default="blocks")


class WholeModel:
    """The model's own call, and the compiled ones that run instead of it.

    A model's call is looked up before its hooks run, and one of these decides what runs. So the call is replaced once, by one
    that looks for the decision when it is made.
    """

    def __init__(self, model: nn.Module, compiler: CompilerName) -> None:
        self.entry, self.compiler = Entry(model, kind_of(model)), compiler
        self.compiled: dict[float, Callable[..., Any]] = {}
        self.room_bytes = 0
        self.saved_bytes = 0
        self.active: Callable[..., Any] = self.entry.call
        self.entry.replace(lambda *arguments, **keywords: self.active(*arguments, **keywords))

    def install(self, share: float, room_bytes: int, refused: Callable[[float], None]) -> None:
        """From the next call on, also if its hooks are running. `refused` is told how many bytes were too many, and then the
        model's own code runs."""
        self.room_bytes, self.saved_bytes = room_bytes, 0
        if share not in self.compiled:
            key = (share, self.compiler, "whole", *self.entry.kind)
            backend = backend_of(share, self.compiler, self._admit)
            self.compiled[share] = torch.compile(own_code(self.entry.call, key), backend=backend, dynamic=False)
        compiled, own = self.compiled[share], self.entry.call

        def run(*arguments: Any, **keywords: Any) -> Any:
            try:
                return compiled(*arguments, **keywords)
            except (torch._dynamo.exc.TorchDynamoException, torch.OutOfMemoryError) as error:
                is_too_large = isinstance(getattr(error, "inner_exception", None), _TooLarge)
                needs = float(self.saved_bytes) if is_too_large else float("inf")
            refused(needs)
            return own(*arguments, **keywords)

        self.active = run

    def rest(self) -> None:
        """The model's own code runs again."""
        self.active = self.entry.call

    def close(self) -> None:
        self.entry.restore()

    def _admit(self, saved_bytes: int) -> None:
        self.saved_bytes += saved_bytes  # a model may be compiled in several graphs
        if self.saved_bytes > self.room_bytes:
            raise _TooLarge
