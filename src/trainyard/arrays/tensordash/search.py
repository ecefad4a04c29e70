"""Which promotion pattern? A study of many on the same streams, and a search for the best one of a multiplexer width.

The paper tried tens of patterns and found that, as long as there are enough lookaside options, they differ by 5 % at most
(Sec. IV-D, Connectivity Pattern). A pattern's score is its speedup over the dense schedule, the geometric mean over the streams.
The search is greedy, then exchanges: options are added one by one, always the one that helps most; then single options are
replaced and pairs change places in the priority while that helps. Nothing proves that what it ends with is the best there is.
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
"""Told after each pattern that was better than all before: patterns tried, its score, the pattern."""


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
class Studied:
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
    """Zeros anywhere, one kind of stream for each share of zeros."""
    require_positive("random_streams", lanes=lanes, steps=steps, rows=rows, groups=groups)
    random = np.random.default_rng(seed)
    return tuple(
        Streams(words=pack(random.random((groups * rows, steps, lanes)) >= sparsity), steps=steps, rows=rows)
        for sparsity in sparsities
    )


def studied(
    options: Options, streams: Sequence[Streams], *, lanes: int, depth: int, grouped: bool = False, sync: str = "lockstep"
) -> Studied:
    """One pattern on the streams; `grouped` lets lanes that cannot meet choose together, else lane 0 chooses first.

    >>> dense = studied(((0, 0),), random_streams(4), lanes=4, depth=1)
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
    return Studied(options=options, levels=len(levels), speedups=tuple(speedups))


def study(
    many: Iterable[Options], streams: Sequence[Streams], *, lanes: int, depth: int, grouped: bool = False, sync: str = "lockstep"
) -> list[Studied]:
    """Many patterns on the same streams, in the order given."""
    return [studied(options, streams, lanes=lanes, depth=depth, grouped=grouped, sync=sync) for options in many]


def spread(results: Sequence[Studied]) -> tuple[float, float]:
    """The lowest and the highest score, relative to the mean of all: the paper's "within 5 %" is (-0.05, 0.05)."""
    scores = np.array([result.score for result in results])
    return float(scores.min() / scores.mean() - 1), float(scores.max() / scores.mean() - 1)


def candidates(lanes: int, depth: int) -> tuple[Option, ...]:
    """Every lookahead and lookaside of a ring of lanes, nearest first. The current step has none: its own lane takes it first."""
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
) -> Studied:
    """The best pattern found for multiplexers of `inputs` inputs, on `streams` (random ones of `seed` by default).

    `most_levels` refuses patterns whose scheduler needs more levels. `restarts` searches more begin at patterns drawn with `seed`.

    >>> search(4, 2, inputs=2, streams=random_streams(4, (0.6,), groups=8)).options
    ((0, 0), (1, -1))
    """
    require_positive("search", lanes=lanes, depth=depth, inputs=inputs, **({"most_levels": most_levels} if most_levels else {}))
    pool = candidates(lanes, depth)
    if inputs > len(pool) + 1:
        raise BadInput(f"search: {depth} steps of {lanes} lanes offer {len(pool) + 1} different inputs, {inputs} were asked for")
    state = _Search(lanes, depth, streams or random_streams(lanes, seed=seed), most_levels, grouped, sync, progress)
    found = state.exchanged(state.greedy(pool, inputs), pool)
    random = np.random.default_rng(seed)
    for _ in range(restarts):
        drawn = ((0, 0), *(pool[number] for number in random.permutation(len(pool))[: inputs - 1]))
        again = state.exchanged(drawn, pool)
        found = again if state.score(again) > state.score(found) else found
    if not state.allowed(found):
        raise BadInput(f"search: found no pattern of {inputs} inputs on {lanes} lanes that schedules in {most_levels} levels")
    return studied(found, state.streams, lanes=lanes, depth=depth, grouped=grouped, sync=sync)


class _Search:
    """What was tried so far; a pattern is tried once."""

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
        self.known: dict[Options, float] = {}
        self.best = 0.0

    def allowed(self, options: Options) -> bool:
        return self.most_levels is None or len(patterns.levels(options, self.lanes)) <= self.most_levels

    def score(self, options: Options) -> float:
        if options not in self.known:
            shape = {"lanes": self.lanes, "depth": self.depth}
            result = studied(options, self.streams, grouped=self.grouped, sync=self.sync, **shape)
            allowed = self.most_levels is None or result.levels <= self.most_levels
            self.known[options] = result.score if allowed else 0.0
            if self.known[options] > self.best:
                self.best = self.known[options]
                if self.progress:
                    self.progress(len(self.known), self.best, options)
        return self.known[options]

    def greedy(self, pool: tuple[Option, ...], inputs: int) -> Options:
        """From the dense schedule on, always the option that helps most as the last in priority; the nearest of equals."""
        options: Options = ((0, 0),)
        while len(options) < inputs:
            options = max(((*options, option) for option in pool if option not in options), key=self.score)
        return options

    def exchanged(self, options: Options, pool: tuple[Option, ...]) -> Options:
        """While it helps: one option for another, or two of them change places."""
        while True:
            others = [option for option in pool if option not in options]
            places = range(1, len(options))
            neighbours = [_put(options, {place: option}) for place in places for option in others]
            neighbours += [_put(options, {i: options[j], j: options[i]}) for i, j in combinations(places, 2)]
            better = max(neighbours, key=self.score, default=options)
            if self.score(better) <= self.score(options):
                return options
            options = better


def _put(options: Options, changes: dict[int, Option]) -> Options:
    return tuple(changes.get(place, option) for place, option in enumerate(options))
