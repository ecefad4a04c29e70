"""Compiled: the best loop order of a tile whose cycles are given, and a walk over tiles that each have cycles of their own.

Plain Python: `mapping.tiling.evaluate` of every order, and `mapping.walk.walk`. Arguments are those of `tiles` and `tile_search`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_bounds import (
    BELOW,
    EVERYTHING,
    KEPT_MIDDLE,
    moved_bytes,
    needed_bytes,
    passes_of,
    spans_of,
    totals_of,
    value_of,
    without,
)
from trainyard.kernels.mapping.tiles import KEEP_A, KEEP_B, KEEP_SUMS, ORDERS, Ints, Real, tiled_cycles, transfer

LONGEST = 2.0**53
"""Cycles from which on a tile is not taken: they would not be exact as a float."""
CHOICES = 3 * len(ORDERS)
"""Orders, each with nothing kept, with the tensor without the middle loop, and with that and the one without the outer loop."""


@njit(cache=True, error_model="numpy")
def _is_repeated(steps: Ints, order: Ints, kept: int, seen: Ints) -> bool:
    """Whether an earlier choice has the same steps: a loop of one step may stand anywhere, and nothing has to be kept across it.

    `seen` are the loops of several steps of earlier orders, outer to inner, as digits of a number; 0 where there is none yet.
    """
    outer, middle, inner = steps[order[0]] > 1, steps[order[1]] > 1, steps[order[2]] > 1
    if kept:
        return not (middle and inner and (outer or kept == 1))
    loops = 1
    for place in range(3):
        if steps[order[place]] > 1:
            loops = 4 * loops + order[place] + 1
    for which in range(seen.shape[0]):
        if seen[which] == loops:
            return True
        if seen[which] == 0:
            seen[which] = loops
            break
    return False


@njit(cache=True, error_model="numpy")
def best_order(
    dims: Ints, rates: Real, halo: Real, tile: Ints, allowed: int, kinds: Ints, supply: Real, latency: int, objective: int,
    joules: Real, band: float,
) -> tuple[int, int, int, float, float]:  # fmt: skip
    """Order, keep, cycles, value and DRAM bytes of one tile whose kinds have given cycles; the order is -1 where it does not fit.

    Of all choices within `band` of the least value the one with the fewest bytes, then with the least value, then the first.
    """
    totals, values, moves = np.empty(6), np.full(CHOICES, np.inf), np.empty(CHOICES)
    cycles, keeps = np.zeros(CHOICES, np.int64), np.zeros(CHOICES, np.int64)
    passes, spans, seen = np.empty(3, np.int64), np.empty((3, 2)), np.zeros(len(ORDERS), np.int64)
    totals_of(dims, rates, totals)
    spans_of(tile, halo, spans)
    busy, best = _busy(tile, kinds) * dims[3], np.inf
    for choice in range(CHOICES):
        kept, order = choice // KEPT_MIDDLE, ORDERS[choice % KEPT_MIDDLE]
        if not allowed >> choice & 1 or (allowed == EVERYTHING and _is_repeated(tile[:, 1], order, kept, seen)):
            continue
        keep = 1 << without(order[1]) if kept else 0
        keep |= 1 << without(order[0]) if kept == 2 else 0
        if needed_bytes(tile, spans, dims, order, keep, rates) > supply[1]:
            continue
        passes_of(tile[:, 1], order, keep, passes)
        moved = moved_bytes(tile, spans, passes, totals, halo)
        if best < np.inf:
            least = max(busy * BELOW, moved / supply[0] * BELOW)
            if value_of(objective, least, moved, joules) > best * band:
                continue
        longest = tiled_cycles(tile, spans, order, keep, dims[3], rates, supply[0], latency, kinds)
        if longest >= LONGEST:
            continue
        cycles[choice] = int(longest)
        values[choice], moves[choice], keeps[choice] = value_of(objective, float(cycles[choice]), moved, joules), moved, keep
        best = min(best, values[choice])
    if best == np.inf:
        return -1, 0, 0, np.inf, np.inf
    pick = -1
    for choice in range(CHOICES):
        if values[choice] > best * band:
            continue
        if pick < 0 or moves[choice] < moves[pick] or (moves[choice] == moves[pick] and values[choice] < values[pick]):
            pick = choice
    return pick % KEPT_MIDDLE, int(keeps[pick]), int(cycles[pick]), values[pick], moves[pick]


@njit(cache=True, error_model="numpy")
def _busy(tile: Ints, kinds: Ints) -> float:
    """Cycles of all tiles of one product."""
    total = 0.0
    for em in range(2):
        for en in range(2):
            for ek in range(2):
                weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                total += weight * kinds[em, en, ek] if weight > 0.0 else 0.0
    return total


@njit(cache=True, error_model="numpy")
def walked(
    tile: Ints, more: Real, order: Ints, keep: int, count: int, rates: Real, speed: float, latency: int, busy: Ints
) -> tuple[int, Any]:  # fmt: skip
    """Cycles of `count` products whose tiles take `busy` cycles, in loop order; and the bytes of A, B, finished sums, sums spilled
    and read back. `more` is what a halo adds to the sides of a tile: of A along m and along k, of finished sums along m."""
    moved, at, last = np.zeros(5), np.zeros(3, np.int64), np.zeros(3, np.int64)
    steps = tile[order[0], 1] * tile[order[1], 1] * tile[order[2], 1]
    total, waiting = 0, 0.0
    for step in range(count * steps):
        place = step % steps
        at[order[2]] = place % tile[order[2], 1]
        at[order[1]] = place // tile[order[2], 1] % tile[order[1], 1]
        at[order[0]] = place // tile[order[2], 1] // tile[order[1], 1]
        m, n, k = _side(tile, 0, at[0]), _side(tile, 1, at[1]), _side(tile, 2, at[2])
        load, store = 0.0, 0.0
        if (place == 0 or at[0] != last[0] or at[2] != last[2]) and (at[1] == 0 or not keep & KEEP_A):
            size = (m + more[0]) * (k + more[1]) * rates[0]
            load, moved[0] = size, moved[0] + size
        if (place == 0 or at[2] != last[2] or at[1] != last[1]) and (at[0] == 0 or not keep & KEEP_B):
            size = float(k * n) * rates[1]
            load, moved[1] = load + size, moved[1] + size
        if place == 0 or at[0] != last[0] or at[1] != last[1]:
            if step > 0:
                store = _evicted(tile, last, keep, more[2], rates, moved)
            if at[2] > 0 and not keep & KEEP_SUMS:
                size = float(m * n) * rates[3]
                load, moved[4] = load + size, moved[4] + size
        total += transfer(load, speed, latency) if step == 0 else max(busy[step - 1], transfer(load + waiting, speed, latency))
        waiting = store
        last[0], last[1], last[2] = at[0], at[1], at[2]
    total += max(busy[count * steps - 1], transfer(waiting, speed, latency))
    return total + transfer(_evicted(tile, last, keep, more[2], rates, moved), speed, latency), moved


@njit(cache=True, error_model="numpy")
def _side(tile: Ints, axis: int, index: int) -> int:
    """A tile's extent at an index along an axis: the last one may be clipped."""
    return tile[axis, 2] if index == tile[axis, 1] - 1 else tile[axis, 0]  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy")
def _evicted(tile: Ints, at: Ints, keep: int, more: float, rates: Real, moved: Real) -> float:
    """Bytes written when the sums at a place leave the scratchpad: finished ones are written once, others spill."""
    m, n = _side(tile, 0, at[0]), _side(tile, 1, at[1])
    if at[2] == tile[2, 1] - 1:
        size = (m + more) * n * rates[2]
        moved[2] += size
    elif keep & KEEP_SUMS:
        size = 0.0
    else:
        size = float(m * n) * rates[3]
        moved[3] += size
    return float(size)
