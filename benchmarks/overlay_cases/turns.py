"""Steps of several ways to train, measured in turns until it is known which of them is faster.

A host that other programs keep busy makes steps slow for some seconds. So the ways take turns of a few steps, and are compared
round by round: the ratio of two turns that follow each other. What counts is the median of the ratios, and rounds go on until it is
known to `ERROR`, or the time is up.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from overlay_gpu import GIB

from overlay_cases.networks import Network

ERROR = 0.005
"""Standard error of a ratio with which the turns may end."""
IQR_TO_ERROR = 0.93
"""Standard error of a median over the interquartile range by the root of the count, for a normal distribution: 1.2533 / 1.349."""
HOST_ROUNDS = 2
"""The host's time to issue a step is taken in the first rounds only."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rounds there are at least, seconds after which they end, and how many steps of each turn are timed after how many others."""

    rounds: int = 5
    seconds: float = 6.0
    steps: int = 2
    warm: int = 1


@dataclass(slots=True)
class Samples:
    """Milliseconds of steps of one way to train by turns, its host's milliseconds to issue one, and its peak of memory."""

    turns: list[list[float]] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    gib: float = 0.0

    @property
    def ms(self) -> list[float]:
        return [step for turn in self.turns for step in turn]

    def row(self) -> dict[str, Any]:
        ms = self.ms
        spread = {"least_ms": min(ms), "most_ms": max(ms), "count": len(ms)}
        return {"ms": statistics.median(ms), "host_ms": statistics.median(self.host_ms), "gib": self.gib, **spread}

    def add(self, other: Samples) -> None:
        self.turns += other.turns
        self.host_ms += other.host_ms
        self.gib = max(self.gib, other.gib)


class Stopwatch:
    """Times steps by events of the device and reads its peak of memory; on a CPU, by its clock, with a made-up peak."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"

    def time(self, network: Network, samples: Samples, steps: int, warm: int, *, of_host: bool = True, pages: Any = None) -> None:
        """A turn of `steps`, and with `of_host` one more, whose issue alone is timed. Recordings of `pages` count as memory."""
        import torch

        for _ in range(warm):
            network.step()
        self._wait()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        marks = [self._mark()]
        for _ in range(steps):
            network.step()
            marks.append(self._mark())
        self._wait()
        if of_host:
            begun = time.perf_counter()
            network.step()
            samples.host_ms.append(1e3 * (time.perf_counter() - begun))  # the device was idle, so nothing held the host up
            self._wait()
        samples.turns.append([self._ms(start, end) for start, end in pairwise(marks)])
        hidden_bytes = 0 if pages is None else pages.hidden_bytes
        peak_gib = (torch.cuda.max_memory_allocated() + hidden_bytes) / GIB if self.on_gpu else 1.0
        samples.gib = max(samples.gib, peak_gib)

    def _mark(self) -> Any:
        import torch

        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _ms(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) if self.on_gpu else 1e3 * (end - start))

    def _wait(self) -> None:
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()


def compared(one: Samples, other: Samples) -> tuple[float, float]:
    """How many times as fast `other` is as `one`, by rounds, and the standard error of that; infinite for a single round."""
    pairs = zip(one.turns, other.turns, strict=True)
    ratios = [statistics.median(first) / statistics.median(second) for first, second in pairs]
    if len(ratios) == 1:
        return ratios[0], math.inf
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return statistics.median(ratios), IQR_TO_ERROR * (high - low) / math.sqrt(len(ratios))


def take_turns(
    network: Network,
    watch: Stopwatch,
    repeats: Repeats,
    ways: Sequence[tuple[Callable[[], AbstractContextManager[Any]], Samples]],
) -> None:
    """Rounds of all ways to train, until each is compared well enough with the first."""
    from trainyard.live.paging.regions.pages import RegionPages

    (_, first), *others = ways
    deadline = time.monotonic() + repeats.seconds
    for number in range(10**6):
        for context, samples in ways:
            with context() as opened:
                pages = opened if isinstance(opened, RegionPages) else None
                watch.time(network, samples, repeats.steps, repeats.warm, of_host=number < HOST_ROUNDS, pages=pages)
        is_known = all(compared(first, other)[1] <= ERROR for _, other in others)
        if number + 1 >= repeats.rounds and (is_known or time.monotonic() > deadline):
            break
