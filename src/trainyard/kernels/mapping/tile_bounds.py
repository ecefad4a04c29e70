"""Compiled: what a tiling moves and holds, and lower bounds for ranges of tile sizes.

In an order (outer, middle, inner) the tensor without the inner loop stays by itself. The tensor without the middle loop is read
again in each of its steps, or kept: all of its tiles along the inner loop then lie in the scratchpad. The tensor without the outer
loop is read again in each step of that, or kept whole.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.halos import spread
from trainyard.kernels.mapping.tile_cycles import least_busy
from trainyard.kernels.mapping.tiles import Ints, Real

BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
HALO = 16
"""The place of a halo's kind behind the numbers of its row (`mapping.halo.COLUMNS`)."""
TIME, ENERGY, EDP, TRAFFIC = range(4)
"""Objectives."""
KEPT_MIDDLE = 6
"""`allowed` has a bit for each order with nothing kept, then for each with the second tensor kept, then for each with both."""
EVERYTHING = 2**18 - 1
ORDER_BITS = 1 | 1 << KEPT_MIDDLE | 1 << 2 * KEPT_MIDDLE
"""Of one order, whatever is kept."""


@njit(cache=True, error_model="numpy", inline="always")
def without(axis: int) -> int:
    """The tensor (A, B, sums) that lacks an axis."""
    return 1 if axis == 0 else (0 if axis == 1 else 2)


@njit(cache=True, error_model="numpy", inline="always")
def value_of(objective: int, cycles: float, moved: float, joules: Real) -> float:
    """What is to be small; `joules` are those of a byte of DRAM traffic, and all others."""
    if objective == 0:
        return cycles
    if objective == 3:
        return moved
    spent = joules[0] * moved + joules[1]
    return float(spent if objective == 1 else spent * cycles)


@njit(cache=True, error_model="numpy")
def passes_of(steps: Ints, order: Ints, keep: int, passes: Ints) -> None:
    """How often A, B and the sums are moved: once for each step of the loop that they lack, if there are steps inside that loop."""
    inner, middle = steps[order[2]] > 1, steps[order[1]] > 1
    for place in range(3):
        tensor = without(order[place])
        again = (inner or middle) if place == 0 else (inner if place == 1 else False)
        passes[tensor] = steps[order[place]] if again and not keep >> tensor & 1 else 1


@njit(cache=True, error_model="numpy")
def needed_bytes(tile: Ints, spans: Real, dims: Ints, order: Ints, keep: int, rates: Real) -> float:
    """Bytes of the scratchpad: one tile of each tensor, or all tiles that a kept one has inside the loop that it lacks."""
    total = 0.0
    for place in range(3):
        tensor = without(order[place])
        first, second = (1, 2) if place == 0 else ((0, 2) if place == 1 else (0, 1))
        elements = 1.0
        for within in (first, second):
            axis = order[within]
            side = float(tile[axis, 0])
            if tensor == 0:  # with its halo
                side = spans[0, 0] if axis == 0 else spans[1, 0]
            if keep >> tensor & 1 and place < 2 and (place == 0 or within == 2):
                side = float(dims[axis])
            elements *= side
        total += elements * (rates[4] if tensor == 0 else (rates[5] if tensor == 1 else rates[3]))
    return total


@njit(cache=True, error_model="numpy")
def spans_of(tile: Ints, halo: Real, spans: Real) -> None:
    """Sides of a full and of the edge tile that bytes are counted by: of A along m and k, of finished sums along m.

    Of `halo`, the last number says whose it is: A's along m or along k, or the sums' (1, 2, 3; 0: there is none).
    """
    for which in range(3):
        axis = 2 if which == 1 else 0
        spans[which, 0], spans[which, 1] = tile[axis, 0], tile[axis, 2]
        if halo[HALO] == which + 1:
            more = spread(tile[axis, 0], halo) - tile[axis, 0]
            spans[which, 0] += more
            spans[which, 1] += more


@njit(cache=True, error_model="numpy")
def totals_of(dims: Ints, rates: Real, totals: Real) -> None:
    """Bytes of A, B and finished sums that move in any case, and of moving A, B or unfinished sums once more."""
    many = float(dims[3])
    left, right, out = many * dims[0] * dims[2], many * dims[2] * dims[1], many * dims[0] * dims[1]
    totals[0], totals[1], totals[2] = left * rates[0], right * rates[1], out * rates[2]
    totals[3], totals[4], totals[5] = totals[0], totals[1], 2.0 * out * rates[3]


@njit(cache=True, error_model="numpy")
def moved_bytes(tile: Ints, spans: Real, passes: Ints, totals: Real, halo: Real) -> float:
    """DRAM bytes of a tiling."""
    a, sums = 1.0, 1.0
    if halo[HALO] > 0.0:
        which = int(halo[HALO]) - 1
        axis = 2 if which == 1 else 0
        extent = float((tile[axis, 1] - 1) * tile[axis, 0] + tile[axis, 2])
        more = ((tile[axis, 1] - 1) * spans[which, 0] + spans[which, 1]) / extent
        a, sums = (1.0, more) if which == 2 else (more, 1.0)
    return float(
        (totals[0] + (passes[0] - 1) * totals[3]) * a + totals[1] + (passes[1] - 1) * totals[4] + totals[2] * sums
        + (passes[2] - 1) * totals[5]
    )  # fmt: skip


@njit(cache=True, error_model="numpy", inline="always")
def _least_moved(
    d0: float, d1: float, d2: float, low0: float, low1: float, low2: float, high0: float, high1: float, c0: float, c1: float,
    c2: float, stays: float, again: float, last: float, once: float, twice: float, room: float,
) -> tuple[float, int]:  # fmt: skip
    """The fewest bytes beyond the compulsory ones of an order (outer, middle, inner loop: 0, 1, 2), with the best choice of what is
    kept, and that choice: 0, 1 or 2. `stays`, `again` and `last` are scratchpad bytes per element of the tensors without the inner,
    middle and outer loop, `once` and `twice` bytes of reading the second and the third once more."""
    tile, panel, block = low0 * low1 * stays, low0 * d2 * again, d1 * d2 * last
    if tile + panel + block <= room:
        return 0.0, 2
    best, kept = np.inf, 0
    if tile + panel + low1 * low2 * last <= room:
        longest = min(high0, (room - low1 * low2 * last) / (low1 * stays + d2 * again) / BELOW)
        best, kept = (np.ceil(d0 / longest * BELOW) - 1.0) * twice, 1
    moved = 0.0
    if c2 > 1.0:
        free = room - low0 * low2 * again - low1 * low2 * last
        moved = (c1 - 1.0) * once + (c0 - 1.0) * twice
        if high0 * high1 * stays > free:  # both cannot be that large: the best trade-off between them
            area = free / stays
            long = min(max(np.sqrt(twice * d0 * area / max(once * d1, 1e-300)), area / high1), high0)
            moved = max(moved, (once * (d1 * long / area - 1.0) + twice * (d0 / long - 1.0)) * BELOW)
    elif c1 > 1.0:
        moved = (c0 - 1.0) * twice
    return (moved, 0) if moved < best else (best, kept)


@njit(cache=True, error_model="numpy")
def bound_of(
    lm: float, ln: float, lk: float, hm: float, hn: float, hk: float, dims: Ints, rates: Real, totals: Real, allowed: int,
    forms: Ints, room: float, cycle: float, burst: float, objective: int, joules: Real,
) -> tuple[float, float]:  # fmt: skip
    """Lower bounds of a cell, from its least and its largest sizes: value, and traffic; infinite where nothing in it fits."""
    a, b, c = rates[4], rates[5], rates[3]
    if lm * lk * a + lk * ln * b + lm * ln * c > room:
        return np.inf, np.inf
    # the largest sizes that still fit, with the others at their least
    rest, across = room - lk * ln * b, lk * a + ln * c
    if hm * across > rest:
        hm = rest / across / BELOW
    rest, across = room - lm * lk * a, lk * b + lm * c
    if hn * across > rest:
        hn = rest / across / BELOW
    rest, across = room - lm * ln * c, lm * a + ln * b
    if hk * across > rest:
        hk = rest / across / BELOW
    m, n, k, count = float(dims[0]), float(dims[1]), float(dims[2]), float(dims[3])
    cm, cn, ck = np.ceil(m / hm * BELOW), np.ceil(n / hn * BELOW), np.ceil(k / hk * BELOW)
    more, loads, steps = np.inf, np.inf, cm * cn * ck
    for order in range(6):
        if not allowed >> order & ORDER_BITS:
            continue
        if order == 0:
            moved, kept = _least_moved(m, n, k, lm, ln, lk, hm, hn, cm, cn, ck, c, a, b, totals[3], totals[4], room)
        elif order == 1:
            moved, kept = _least_moved(m, k, n, lm, lk, ln, hm, hk, cm, ck, cn, a, c, b, totals[5], totals[4], room)
        elif order == 2:
            moved, kept = _least_moved(n, m, k, ln, lm, lk, hn, hm, cn, cm, ck, c, b, a, totals[4], totals[3], room)
        elif order == 3:
            moved, kept = _least_moved(n, k, m, ln, lk, lm, hn, hk, cn, ck, cm, b, c, a, totals[5], totals[3], room)
        elif order == 4:
            moved, kept = _least_moved(k, m, n, lk, lm, ln, hk, hm, ck, cm, cn, a, b, c, totals[4], totals[5], room)
        else:
            moved, kept = _least_moved(k, n, m, lk, ln, lm, hk, hn, ck, cn, cm, b, a, c, totals[3], totals[5], room)
        more = min(more, moved)
        if kept == 2:  # every tile of A and of B once, and no order moves fewer bytes
            loads = min(loads, max(cm, cn) * ck, (ck - 1.0) * cm * cn + min(cm, cn))
            break
        if order >= 4:  # unfinished sums come back in all steps of the outer loop but the first
            loads = min(loads, (ck - 1.0) * cm * cn + min(cm, cn))
        else:
            loads = min(loads, steps)
    moved = totals[0] + totals[1] + totals[2] + more
    fill = lk * (lm * rates[0] + ln * rates[1]) * cycle + burst
    cycles = max(least_busy(dims, cm, cn, ck, forms) * count * BELOW + fill, moved * cycle + burst * loads * count)
    if objective == 0:
        return cycles, moved
    return value_of(objective, cycles, moved, joules), moved
