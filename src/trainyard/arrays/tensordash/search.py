"""Promotion patterns compared on the same streams, and a search for the best one of a multiplexer width.

The paper tried tens of patterns and found that, as long as there are enough lookaside options, they differ by 5 % at most
(Sec. IV-D, Connectivity Pattern). A pattern's score is its speedup over the dense schedule, the geometric mean over the streams.
The search is greedy, then exchanges: options are added one by one, always the one that helps most; then single options are
replaced and pairs exchange their priorities while that helps. The result is not proved to be optimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.patterns import Option, Options
from trainyard.arrays.tensordash.scheduler import Scheduler, pack
from trainyard.checks import require_positive
from trainyard.errors import BadInput

Progress = Callable[[int, float, Options], None]
"""Called after each pattern that is better than all before: patterns tried, its score, the pattern."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Streams:
    """Packed streams of one kind: `words` [groups * rows, ..] of `steps` steps, `rows` to a tile."""

    words: npt.NDArray[np.uint64]
    steps: int
    rows: int

    @property
    def groups(self) -> int:
        return -(-len(self.words) // self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternScore:
    """A pattern, the levels its scheduler needs, its speedup on each kind of stream, and their geometric mean."""

    options: Options
    levels: int
    speedups: tuple[float, ...]

    @property
    def score(self) -> float:
        return float(np.exp(np.mean(np.log(self.speedups))))


def random_streams(
    lanes: int,
    sparsities: Sequence[float] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    *,
    steps: int = 256,
    rows: int = 4,
    groups: int = 32,
    seed: int = 0,
) -> tuple[Streams, ...]:
    """Streams with independent zeros, one kind for each share of zeros."""
    require_positive("random_streams", lanes=lanes, steps=steps, rows=rows, groups=groups)
    random = np.random.default_rng(seed)
    return tuple(
        Streams(words=pack(random.random((groups * rows, steps, lanes)) >= sparsity), steps=steps, rows=rows)
        for sparsity in sparsities
    )


def score_pattern(
    options: Options, streams: Sequence[Streams], *, lanes: int, depth: int, grouped: bool = False, sync: str = "lockstep"
) -> PatternScore:
    """The score of one pattern; with `grouped` lanes that cannot conflict choose at once, else one after the other.

    >>> dense = score_pattern(((0, 0),), random_streams(4), lanes=4, depth=1)
    >>> dense.score, dense.levels
    (1.0, 1)
    """
    if not streams:
        raise BadInput("a study of patterns needs streams: `random_streams(lanes)` makes some")
    options = patterns.checked(options, lanes, depth)
    levels = patterns.levels(options, lanes)
    scheduler = Scheduler(lanes=lanes, depth=depth, options=options, levels=levels if grouped else ())
    speedups = []
    for stream in streams:
        cycles = int(scheduler.cycles(stream.words, stream.steps, stream.rows, sync).sum())
        speedups.append(stream.groups * stream.steps / cycles)
    return PatternScore(options=options, levels=len(levels), speedups=tuple(speedups))


def score_patterns(
    candidate_patterns: Iterable[Options],
    streams: Sequence[Streams],
    *,
    lanes: int,
    depth: int,
    grouped: bool = False,
    sync: str = "lockstep",
) -> list[PatternScore]:
    """The scores of several patterns on the same streams."""
    return [score_pattern(options, streams, lanes=lanes, depth=depth, grouped=grouped, sync=sync) for options in candidate_patterns]


def spread(results: Sequence[PatternScore]) -> tuple[float, float]:
    """The lowest and the highest score, relative to the mean of all: the paper's "within 5 %" is (-0.05, 0.05)."""
    scores = np.array([result.score for result in results])
    return float(scores.min() / scores.mean() - 1), float(scores.max() / scores.mean() - 1)


def candidates(lanes: int, depth: int) -> tuple[Option, ...]:
    """Every lookahead and lookaside option on a ring of lanes, nearest first; the current step is always taken by its own lane."""
    offsets = sorted(range(-((lanes - 1) // 2), lanes // 2 + 1), key=lambda offset: (abs(offset), -offset))
    return tuple((step, offset) for step in range(1, depth) for offset in offsets)


def search(
    lanes: int,
    depth: int,
    inputs: int,
    streams: Sequence[Streams] | None = None,
    *,
    seed: int = 0,
    restarts: int = 0,
    most_levels: int | None = None,
    grouped: bool = False,
    sync: str = "lockstep",
    progress: Progress | None = None,
) -> PatternScore:
    """The best pattern found for multiplexers of `inputs` inputs, on `streams` (random ones of `seed` by default).

    `most_levels` excludes patterns whose scheduler needs more levels. `restarts` further searches begin at random patterns.

    >>> search(4, 2, inputs=2, streams=random_streams(4, (0.6,), groups=8)).options
    ((0, 0), (1, -1))
    """
    require_positive("search", lanes=lanes, depth=depth, inputs=inputs, **({"most_levels": most_levels} if most_levels else {}))
    pool = candidates(lanes, depth)
    if inputs > len(pool) + 1:
        raise BadInput(f"search: {depth} steps of {lanes} lanes offer {len(pool) + 1} different inputs, {inputs} were asked for")
    state = _Search(lanes, depth, streams or random_streams(lanes, seed=seed), most_levels, grouped, sync, progress)
    best = state.improved(state.greedy(pool, inputs), pool)
    random = np.random.default_rng(seed)
    for _ in range(restarts):
        start = ((0, 0), *(pool[number] for number in random.permutation(len(pool))[: inputs - 1]))
        improved_again = state.improved(start, pool)
        best = improved_again if state.score(improved_again) > state.score(best) else best
    if not state.allowed(best):
        raise BadInput(f"search: found no pattern of {inputs} inputs on {lanes} lanes that schedules in {most_levels} levels")
    return score_pattern(best, state.streams, lanes=lanes, depth=depth, grouped=grouped, sync=sync)


class _Search:
    """The scores of all patterns tried so far; a pattern is scored once."""

    def __init__(
        self,
        lanes: int,
        depth: int,
        streams: Sequence[Streams],
        most_levels: int | None,
        grouped: bool,
        sync: str,
        progress: Progress | None,
    ) -> None:
        self.lanes, self.depth, self.streams, self.most_levels = lanes, depth, streams, most_levels
        self.grouped, self.sync, self.progress = grouped, sync, progress
        self.scores: dict[Options, float] = {}
        self.best = 0.0

    def allowed(self, options: Options) -> bool:
        return self.most_levels is None or len(patterns.levels(options, self.lanes)) <= self.most_levels

    def score(self, options: Options) -> float:
        if options not in self.scores:
            shape = {"lanes": self.lanes, "depth": self.depth}
            result = score_pattern(options, self.streams, grouped=self.grouped, sync=self.sync, **shape)
            allowed = self.most_levels is None or result.levels <= self.most_levels
            self.scores[options] = result.score if allowed else 0.0
            if self.scores[options] > self.best:
                self.best = self.scores[options]
                if self.progress:
                    self.progress(len(self.scores), self.best, options)
        return self.scores[options]

    def greedy(self, pool: tuple[Option, ...], inputs: int) -> Options:
        """Options added one by one, each time the one that helps most with the lowest priority; of equals the nearest."""
        options: Options = ((0, 0),)
        while len(options) < inputs:
            options = max(((*options, option) for option in pool if option not in options), key=self.score)
        return options

    def improved(self, options: Options, pool: tuple[Option, ...]) -> Options:
        """Replaces one option or exchanges the priorities of two, as long as the score improves."""
        while True:
            others = [option for option in pool if option not in options]
            positions = range(1, len(options))
            neighbours = [_replaced(options, {place: option}) for place in positions for option in others]
            neighbours += [_replaced(options, {i: options[j], j: options[i]}) for i, j in combinations(positions, 2)]
            better = max(neighbours, key=self.score, default=options)
            if self.score(better) <= self.score(options):
                return options
            options = better


def _replaced(options: Options, changes: dict[int, Option]) -> Options:
    return tuple(changes.get(position, option) for position, option in enumerate(options))
