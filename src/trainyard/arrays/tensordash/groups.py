"""Cycles of row groups: the streams of a tile's rows, scheduled once, whatever stands on its columns.

From the very bits of a tensor (`masks.streams`), from a density, or of pairs of tensors where both sides are looked at. Where a
product has more groups than are to be looked at, it is cut into equal stretches; in each a run of neighbouring groups is taken at
random (at equal distances they would fall into step with the lines of an image) and stands for its stretch. The spread of their
means gives the interval, by Student's t: the runs are few.
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
Whole = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

RUN = 16
"""Neighbouring groups looked at together where outputs are sampled."""
FEWEST_RUNS = 4
"""Runs (or row groups of a pair) that an interval is made of at least: of two or three, it would be wider than the value."""
NORMAL_95 = 1.96  # two-sided 95 % quantile of the normal distribution
CHUNK_BYTES = 16 * 2**20
"""Packed streams in memory at a time, for each thread."""
DRAWN_GROUPS = 64
"""Groups drawn for a density, and the longest stream drawn: a longer one is scaled."""
DRAWN_STEPS = 4096
KEPT_BYTES = 64 * 2**20
"""Cycles that are remembered: tiles that differ in their columns ask for the same rows again, and so does a chip that differs in
what its schedulers do not see (a range over assumptions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """All that decides the cycles of a group of streams."""

    scheduler: Scheduler
    rows: int
    sync: str
    banks: int
    sample: int | None = None
    seed: int = 0

    def cycles(self, words: Words, steps: int, rows: int | None = None) -> Whole:
        return self.scheduler.cycles(words, steps, rows or self.rows, self.sync, self.banks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Cycles of each group in order, the half-width of the 95 % interval of their mean, and how many bits they issue in all."""

    cycles: Whole
    issued: float
    half_width: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.cycles.nbytes


_groups = BoundedCache(max_bytes=KEPT_BYTES)
"""By what decides them, not by their masks, which may be large."""


def of_view(view: MaskView, side: Side, rule: Rule) -> Groups:
    """One side looked at: its streams in groups of `rule.rows`."""
    return _groups.get((view.identity, side, rule), lambda: _looked_at(view, side, rule))


def forget() -> None:
    """Empties what is remembered of views (for measurements of speed)."""
    _groups.clear()


def _looked_at(view: MaskView, side: Side, rule: Rule) -> Groups:
    plan = layout(view, side, rule.scheduler.lanes)
    count = -(-plan.rows // rule.rows)
    runs = _runs(view, side, rule, plan)
    if runs * RUN >= count:
        cycles, issued = _all(view, side, rule, plan)
        return Groups(cycles=cycles, issued=float(issued.sum()))
    distance = count / runs
    firsts = [min(count - RUN, first) for first in _one_in_each(runs, distance, rule.seed)]
    seen = np.stack([_span(view, side, rule, plan, first, first + RUN) for first in firsts], axis=1)
    owner = np.minimum((np.arange(count) / distance).astype(np.int64), runs - 1)
    cycles, issued = seen[:, owner, np.arange(count) % RUN]
    half = _half_width(seen[0].mean(axis=1), runs * RUN / count)
    return Groups(cycles=cycles, issued=float(issued.sum()), half_width=half)


def _runs(view: MaskView, side: Side, rule: Rule, plan: Layout) -> int:
    """Runs to look at in a view: its share of `rule.sample` groups of the whole product, FEWEST_RUNS at least."""
    if rule.sample is None:
        return plan.rows
    whole = layout(replace(view, rows=None, columns=None), side, plan.lanes)
    share = plan.rows * sum(plan.steps) / (whole.rows * sum(whole.steps))
    return max(FEWEST_RUNS, math.ceil(rule.sample * share / RUN))


def _one_in_each(stretches: int, length: float, seed: int) -> list[int]:
    """A random place in each of so many equal stretches."""
    return [int((stretch + at) * length) for stretch, at in enumerate(np.random.default_rng(seed).random(stretches).tolist())]


def _half_width(means: npt.NDArray[np.floating], share: float = 0.0) -> float:
    """Half of the 95 % interval of the mean of several; `share` of all there are were looked at.

    Student's t from the normal quantile: Abramowitz and Stegun 26.7.5, within 1 % from three degrees of freedom on.

    >>> round(_half_width(np.array([-1.0, -1.0, 1.0, 1.0])) * math.sqrt(3), 2)  # Student's t of three: the tables have 3.18
    3.16
    """
    free, z = len(means) - 1, NORMAL_95
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return t * float(means.std(ddof=1)) / math.sqrt(len(means)) * math.sqrt(max(0.0, 1 - share))


def _all(view: MaskView, side: Side, rule: Rule, plan: Layout) -> Whole:
    """Cycles and bits of every group; those that repeat (fewer samples recorded than the step has) are scheduled once."""
    count = -(-plan.rows // rule.rows)
    period = math.lcm(plan.distinct_rows, rule.rows) // rule.rows
    if 2 * period > count:
        return _chunked(view, side, rule, plan, count)
    found = _chunked(view, side, rule, plan, period)[:, np.arange(count) % period]
    if plan.rows % rule.rows:
        found[:, -1:] = _span(view, side, rule, plan, count - 1, count)
    return found


def _chunked(view: MaskView, side: Side, rule: Rule, plan: Layout, count: int) -> Whole:
    size = max(1, CHUNK_BYTES // (8 * plan.distinct_segments * plan.words * rule.rows))
    cuts = [(first, min(first + size, count)) for first in range(0, count, size)]
    parts = [_span(view, side, rule, plan, *cuts[0])]
    if len(cuts) > 1:  # compiled loops let go of the interpreter
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            parts.extend(pool.map(lambda cut: _span(view, side, rule, plan, *cut), cuts[1:]))
    return np.concatenate(parts, axis=1)


def _span(view: MaskView, side: Side, rule: Rule, plan: Layout, first: int, last: int) -> Whole:
    """Cycles and bits of the groups first .. last - 1, over all segments of their streams."""
    words = streams(view, side, rule.scheduler.lanes, (first * rule.rows, min(last * rule.rows, plan.rows)))
    missing = (last - first) * rule.rows - words.shape[1]
    if missing:
        words = np.pad(words, ((0, 0), (0, missing), (0, 0)))
    times = np.bincount(np.arange(len(plan.steps)) % plan.distinct_segments, minlength=plan.distinct_segments)
    found = np.zeros((2, last - first), dtype=np.int64)
    for segment in range(plan.distinct_segments):
        found[0] += times[segment] * rule.cycles(words[segment], plan.steps[segment])
        found[1] += times[segment] * np.bitwise_count(words[segment]).reshape(last - first, -1).sum(axis=1, dtype=np.int64)
    return found


def of_pair(a: MaskView, b: MaskView, rule: Rule, columns: int) -> Groups:
    """Both sides looked at: a scheduler for each processing element. Cycles of each block, row group by row group.

    Where blocks are sampled, whole row groups are taken with all their columns, one in each of equal stretches.
    """
    lanes = rule.scheduler.lanes
    left, right = layout(a, "a", lanes), layout(b, "b", lanes)
    high, wide = -(-left.rows // rule.rows), -(-right.rows // columns)
    wanted = high if rule.sample is None else min(high, max(FEWEST_RUNS, rule.sample // wide))
    distance = high / wanted
    chosen = range(high) if wanted == high else _one_in_each(wanted, distance, rule.seed)
    beside = streams(b, "b", lanes, (0, right.rows))
    beside = np.pad(beside, ((0, 0), (0, wide * columns - beside.shape[1]), (0, 0)))
    cycles, pairs = np.zeros((wanted, wide), dtype=np.int64), 0
    for place, group in enumerate(chosen):
        rows = streams(a, "a", lanes, (group * rule.rows, min((group + 1) * rule.rows, left.rows)))
        rows = np.pad(rows, ((0, 0), (0, rule.rows - rows.shape[1]), (0, 0)))
        for segment, steps in enumerate(left.steps):
            first, second = rows[segment % len(rows)], beside[segment % len(beside)]
            width = min(first.shape[-1], second.shape[-1])
            blocks = second[:, :width].reshape(wide, 1, columns, width) & first[None, :, None, :width]
            pairs += int(np.bitwise_count(blocks).sum())
            cycles[place] += rule.cycles(blocks.reshape(-1, width), steps, rule.rows * columns)
    if wanted == high:
        return Groups(cycles=cycles.ravel(), issued=float(pairs))
    half = _half_width(cycles.mean(axis=1), wanted / high)
    owner = np.minimum((np.arange(high) / distance).astype(np.int64), wanted - 1)
    return Groups(cycles=cycles[owner].ravel(), issued=pairs * high / wanted, half_width=half)


def of_density(a: Density, b: Density | None, steps: int, count: int, rule: Rule, columns: int) -> Groups:
    """`count` groups of one density's rows, or `count` blocks of two densities, each like one that was drawn at random."""
    drawn, half = _of_drawn(a, b, steps, rule, columns)
    issued = a.nonzero * (b.nonzero if b else 1.0) * count * rule.rows * (columns if b else 1) * steps * rule.scheduler.lanes
    return Groups(cycles=np.resize(np.array(drawn, dtype=np.int64), count), issued=issued, half_width=half)


@lru_cache(maxsize=4096)
def _of_drawn(a: Density, b: Density | None, steps: int, rule: Rule, columns: int) -> tuple[tuple[int, ...], float]:
    from trainyard.arrays.tensordash.scheduler import pack

    lanes, length, wide = rule.scheduler.lanes, min(steps, DRAWN_STEPS), columns if b else 1
    random = np.random.default_rng([rule.seed, length, lanes, rule.rows])
    left, right = _drawn(a, random, rule.rows, length, lanes), _drawn(b, random, wide, length, lanes)
    words = pack((left[:, :, None] & right[:, None]).reshape(-1, length, lanes))
    found = rule.cycles(words, length, rule.rows * wide) * (steps / length)
    return tuple(math.ceil(cycles) for cycles in found.tolist()), _half_width(found)


def _drawn(density: Density | None, random: np.random.Generator, rows: int, steps: int, lanes: int) -> npt.NDArray[np.bool_]:
    """Bits of DRAWN_GROUPS groups of `rows` streams: zeros anywhere, in whole channels (a place of all streams), in whole rows."""
    whole = (DRAWN_GROUPS, rows, steps, lanes)
    if density is None:
        return np.ones(whole, dtype=np.bool_)
    shape = {"none": whole, "channel": (DRAWN_GROUPS, 1, steps, lanes), "row": (DRAWN_GROUPS, rows, 1, 1)}[density.cluster]
    return np.broadcast_to(random.random(shape, dtype=np.float32) < density.nonzero, whole)
