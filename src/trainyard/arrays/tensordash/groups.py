"""Cycles of row groups: the streams of a tile's rows, scheduled once for all its columns.

From the bits of a tensor (`masks.streams`), from a density, or from pairs of tensors where zeros of both operands are skipped.
Where a product has more groups than are sampled, it is cut into equal strata; in each a run of neighbouring groups is drawn at
random (equal distances could coincide with the lines of an image) and represents its stratum. The spread of the runs' means gives
the interval, by Student's t, as the runs are few.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache
from trainyard.ir import Density, MaskView
from trainyard.masks.streams import Layout, layout, streams

if TYPE_CHECKING:
    from trainyard.arrays.tensordash.scheduler import Scheduler

Side = Literal["a", "b"]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

RUN = 16
"""Neighbouring groups of a run where groups are sampled."""
FEWEST_RUNS = 4
"""Fewest runs (or row groups of a pair) for an interval: from two or three it would be wider than the value."""
NORMAL_95 = 1.96  # two-sided 95 % quantile of the normal distribution
CHUNK_BYTES = 16 * 2**20
"""Packed streams in memory at a time, for each thread."""
DRAWN_GROUPS = 64
"""Random groups for a density, and the longest stream drawn: a longer one is scaled."""
DRAWN_STEPS = 4096
CACHE_BYTES = 64 * 2**20
"""Bytes of cached cycles: tiles that differ in their columns need the same rows, and so do chips that differ only outside of their
schedulers (a range over assumptions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScheduling:
    """All settings that decide the cycles of a group of streams."""

    scheduler: Scheduler
    rows: int
    sync: str
    banks: int
    sample: int | None = None
    seed: int = 0

    def cycles(self, words: Words, steps: int, rows: int | None = None) -> Integers:
        return self.scheduler.cycles(words, steps, rows or self.rows, self.sync, self.banks)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCycles:
    """Cycles of each group in order, the non-zeros they issue in all, and the half-width of the 95 % interval of the mean."""

    cycles: Integers
    issued: float
    half_width: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.cycles.nbytes


_cache = BoundedCache(max_bytes=CACHE_BYTES)
"""Keyed by the identity of a view, not by its mask, which may be large."""


def view_cycles(view: MaskView, side: Side, scheduling: GroupScheduling) -> GroupCycles:
    """Zeros of one operand skipped: its streams in groups of `scheduling.rows`."""
    return _cache.get((view.identity, side, scheduling), lambda: _view_cycles(view, side, scheduling))


def clear_cache() -> None:
    """Empties the cache of views, for measurements of speed."""
    _cache.clear()


def _view_cycles(view: MaskView, side: Side, scheduling: GroupScheduling) -> GroupCycles:
    plan = layout(view, side, scheduling.scheduler.lanes)
    count = -(-plan.rows // scheduling.rows)
    runs = _runs(view, side, scheduling, plan)
    if runs * RUN >= count:
        cycles, issued = _every_group(view, side, scheduling, plan)
        return GroupCycles(cycles=cycles, issued=float(issued.sum()))
    distance = count / runs
    firsts = [min(count - RUN, first) for first in _stratified(runs, distance, scheduling.seed)]
    run_counts = np.stack([_run_cycles(view, side, scheduling, plan, first, first + RUN) for first in firsts], axis=1)
    owner = np.minimum((np.arange(count) / distance).astype(np.int64), runs - 1)
    cycles, issued = run_counts[:, owner, np.arange(count) % RUN]
    half_width = _half_width(run_counts[0].mean(axis=1), runs * RUN / count)
    return GroupCycles(cycles=cycles, issued=float(issued.sum()), half_width=half_width)


def _runs(view: MaskView, side: Side, scheduling: GroupScheduling, plan: Layout) -> int:
    """Runs sampled in a view: its share of `scheduling.sample` groups of the whole product, FEWEST_RUNS at least."""
    if scheduling.sample is None:
        return plan.rows
    full_layout = layout(replace(view, rows=None, columns=None), side, plan.lanes)
    share = plan.rows * sum(plan.steps) / (full_layout.rows * sum(full_layout.steps))
    return max(FEWEST_RUNS, math.ceil(scheduling.sample * share / RUN))


def _stratified(strata: int, length: float, seed: int) -> list[int]:
    """A random position in each of `strata` equal strata."""
    return [int((stratum + at) * length) for stratum, at in enumerate(np.random.default_rng(seed).random(strata).tolist())]


def _half_width(means: npt.NDArray[np.floating], share: float = 0.0) -> float:
    """Half of the 95 % interval of a mean; `share` of the population is in the sample.

    Student's t from the normal quantile: Abramowitz and Stegun 26.7.5, within 1 % from three degrees of freedom on.

    >>> round(_half_width(np.array([-1.0, -1.0, 1.0, 1.0])) * math.sqrt(3), 2)  # Student's t of three: the tables have 3.18
    3.16
    """
    free, z = len(means) - 1, NORMAL_95
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return t * float(means.std(ddof=1)) / math.sqrt(len(means)) * math.sqrt(max(0.0, 1 - share))


def _every_group(view: MaskView, side: Side, scheduling: GroupScheduling, plan: Layout) -> Integers:
    """Cycles and non-zeros of every group; groups that repeat (fewer samples recorded than the step has) are scheduled once."""
    count = -(-plan.rows // scheduling.rows)
    period = math.lcm(plan.distinct_rows, scheduling.rows) // scheduling.rows
    if 2 * period > count:
        return _chunked(view, side, scheduling, plan, count)
    counts = _chunked(view, side, scheduling, plan, period)[:, np.arange(count) % period]
    if plan.rows % scheduling.rows:
        counts[:, -1:] = _run_cycles(view, side, scheduling, plan, count - 1, count)
    return counts


def _chunked(view: MaskView, side: Side, scheduling: GroupScheduling, plan: Layout, count: int) -> Integers:
    size = max(1, CHUNK_BYTES // (8 * plan.distinct_segments * plan.words * scheduling.rows))
    cuts = [(first, min(first + size, count)) for first in range(0, count, size)]
    parts = [_run_cycles(view, side, scheduling, plan, *cuts[0])]
    if len(cuts) > 1:  # compiled loops release the interpreter lock
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            parts.extend(pool.map(lambda cut: _run_cycles(view, side, scheduling, plan, *cut), cuts[1:]))
    return np.concatenate(parts, axis=1)


def _run_cycles(view: MaskView, side: Side, scheduling: GroupScheduling, plan: Layout, first: int, last: int) -> Integers:
    """Cycles and non-zeros of the groups first .. last - 1, over all segments of their streams."""
    words = streams(view, side, scheduling.scheduler.lanes, (first * scheduling.rows, min(last * scheduling.rows, plan.rows)))
    missing = (last - first) * scheduling.rows - words.shape[1]
    if missing:
        words = np.pad(words, ((0, 0), (0, missing), (0, 0)))
    times = np.bincount(np.arange(len(plan.steps)) % plan.distinct_segments, minlength=plan.distinct_segments)
    counts = np.zeros((2, last - first), dtype=np.int64)
    for segment in range(plan.distinct_segments):
        counts[0] += times[segment] * scheduling.cycles(words[segment], plan.steps[segment])
        counts[1] += times[segment] * np.bitwise_count(words[segment]).reshape(last - first, -1).sum(axis=1, dtype=np.int64)
    return counts


def pair_cycles(a: MaskView, b: MaskView, scheduling: GroupScheduling, columns: int) -> GroupCycles:
    """Zeros of both operands skipped, a scheduler for each processing element: cycles of each block, row group by row group.

    Where blocks are sampled, row groups are drawn with all their columns, one in each of equal strata.
    """
    lanes = scheduling.scheduler.lanes
    left, right = layout(a, "a", lanes), layout(b, "b", lanes)
    high, wide = -(-left.rows // scheduling.rows), -(-right.rows // columns)
    sampled = high if scheduling.sample is None else min(high, max(FEWEST_RUNS, scheduling.sample // wide))
    distance = high / sampled
    sampled_groups = range(high) if sampled == high else _stratified(sampled, distance, scheduling.seed)
    column_streams = streams(b, "b", lanes, (0, right.rows))
    column_streams = np.pad(column_streams, ((0, 0), (0, wide * columns - column_streams.shape[1]), (0, 0)))
    cycles, pairs = np.zeros((sampled, wide), dtype=np.int64), 0
    for number, group in enumerate(sampled_groups):
        rows = streams(a, "a", lanes, (group * scheduling.rows, min((group + 1) * scheduling.rows, left.rows)))
        rows = np.pad(rows, ((0, 0), (0, scheduling.rows - rows.shape[1]), (0, 0)))
        for segment, steps in enumerate(left.steps):
            first, second = rows[segment % len(rows)], column_streams[segment % len(column_streams)]
            width = min(first.shape[-1], second.shape[-1])
            blocks = second[:, :width].reshape(wide, 1, columns, width) & first[None, :, None, :width]
            pairs += int(np.bitwise_count(blocks).sum())
            cycles[number] += scheduling.cycles(blocks.reshape(-1, width), steps, scheduling.rows * columns)
    if sampled == high:
        return GroupCycles(cycles=cycles.ravel(), issued=float(pairs))
    half_width = _half_width(cycles.mean(axis=1), sampled / high)
    owner = np.minimum((np.arange(high) / distance).astype(np.int64), sampled - 1)
    return GroupCycles(cycles=cycles[owner].ravel(), issued=pairs * high / sampled, half_width=half_width)


def density_cycles(a: Density, b: Density | None, steps: int, count: int, scheduling: GroupScheduling, columns: int) -> GroupCycles:
    """`count` groups of one density's rows, or `count` blocks of two densities, from groups drawn at random."""
    cycles, half_width = _random_cycles(a, b, steps, scheduling, columns)
    issued = (
        a.nonzero * (b.nonzero if b else 1.0) * count * scheduling.rows * (columns if b else 1) * steps * scheduling.scheduler.lanes
    )
    return GroupCycles(cycles=np.resize(np.array(cycles, dtype=np.int64), count), issued=issued, half_width=half_width)


@lru_cache(maxsize=4096)
def _random_cycles(
    a: Density, b: Density | None, steps: int, scheduling: GroupScheduling, columns: int
) -> tuple[tuple[int, ...], float]:
    from trainyard.arrays.tensordash.scheduler import pack

    lanes, length, columns_drawn = scheduling.scheduler.lanes, min(steps, DRAWN_STEPS), columns if b else 1
    random = np.random.default_rng([scheduling.seed, length, lanes, scheduling.rows])
    left, right = _random_bits(a, random, scheduling.rows, length, lanes), _random_bits(b, random, columns_drawn, length, lanes)
    words = pack((left[:, :, None] & right[:, None]).reshape(-1, length, lanes))
    cycles_drawn = scheduling.cycles(words, length, scheduling.rows * columns_drawn) * (steps / length)
    return tuple(math.ceil(cycles) for cycles in cycles_drawn.tolist()), _half_width(cycles_drawn)


def _random_bits(density: Density | None, random: np.random.Generator, rows: int, steps: int, lanes: int) -> npt.NDArray[np.bool_]:
    """Random bits of DRAWN_GROUPS groups of `rows` streams: zeros anywhere, in whole channels (one for all streams) or rows."""
    full_shape = (DRAWN_GROUPS, rows, steps, lanes)
    if density is None:
        return np.ones(full_shape, dtype=np.bool_)
    shape = {"none": full_shape, "channel": (DRAWN_GROUPS, 1, steps, lanes), "row": (DRAWN_GROUPS, rows, 1, 1)}[density.cluster]
    return np.broadcast_to(random.random(shape, dtype=np.float32) < density.nonzero, full_shape)
