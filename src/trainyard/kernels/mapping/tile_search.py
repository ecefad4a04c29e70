"""Compiled: the best tile, loop order and resident tensors of a product, found by branch and bound.

The space: the useful sizes of each axis (`tile_sizes`), six loop orders, and what stays in the scratchpad. In an order (outer,
middle, inner) the tensor without the inner loop stays by itself. The tensor without the middle loop is read again in each of its
steps, or kept: all of its tiles along the inner loop then lie in the scratchpad. The tensor without the outer loop is read again in
each step of that, or kept whole. A *plan* is an order and these two choices; plans in which only outer and middle loop change
places and nothing is kept move the same bytes and are bounded together.

A *cell* is a plan with a range of sizes along each axis. Its lower bound takes the fewest tiles that the largest sizes and the room
allow: cycles of the array, bytes over the DRAM, the first fill. Cells are split until they are single tiles, which are evaluated
exactly (`tiles.tiled_cycles`); a cell is dropped when its bound shows that it holds nothing better by more than SLACK, and no
tiling with less traffic among those within the tolerance. So what is chosen is proven to be within the tolerance of the best of the
space, and the search says if it had to stop before (`effort`).

Between two useful sizes lie others of the same count of tiles: the last step moves the best tile's sizes along each axis as long as
that helps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.halos import spread
from trainyard.kernels.mapping.tile_cycles import kinds_of, least_busy
from trainyard.kernels.mapping.tile_sizes import LONGEST, useful_sizes
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, tiled_cycles, transfer

CHOSEN = 12
"""Columns of a result: m, n, k, order, cycles, compute cycles, whether it is proven, passes of A, B and sums, keep, cells split."""
BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
MOST_CYCLES = 2**53
"""The most cycles that are counted: sums stay exact as floats, and far below 2**63."""
NOTHING_FITS, TOO_LONG = -1, -2
"""Cycles of a product that has no tile, and of one that no tile brings below MOST_CYCLES."""
MOST_INTEGER = 2**63 - 1
SLACK = 1.004
"""A cell that cannot beat the best by this factor is not split further; the tolerance is of both together."""
HALO = 16
"""The place of a halo's kind behind the numbers of its row (`mapping.halo.COLUMNS`)."""
FRONT = 24
"""Tilings kept while searching: of those within the tolerance, none with both less traffic and less time."""
CELLS = 2048
"""Cells that wait at most: a split adds one, and ranges are halved."""
TIME, ENERGY, EDP, TRAFFIC = range(4)
"""Objectives."""
PLANS = np.array(
    [(order, keep) for keep in (0, 1, 2) for order in range(6) if keep or ORDERS[order][0] < ORDERS[order][1]], dtype=np.int64
)
"""Order, and what is kept: nothing, the tensor without the middle loop, also the one without the outer loop."""
EVERYTHING = 2**18 - 1
KEPT_MIDDLE = 6
"""`allowed` has a bit for each order with nothing kept, then for each with the second tensor kept, then for each with both."""


@njit(cache=True, error_model="numpy", inline="always")
def _lacks(tensor: int) -> int:
    """The axis that a tensor (A, B, sums) lacks."""
    return 1 if tensor == 0 else (0 if tensor == 1 else 2)


@njit(cache=True, error_model="numpy", inline="always")
def _without(axis: int) -> int:
    """The tensor (A, B, sums) that lacks an axis."""
    return 1 if axis == 0 else (0 if axis == 1 else 2)


@njit(cache=True, error_model="numpy")
def passes_of(steps: Ints, order: Ints, keep: int, passes: Ints) -> None:
    """How often A, B and the sums are moved: once for each step of the loop that they lack, if there are steps inside that loop."""
    inner, middle = steps[order[2]] > 1, steps[order[1]] > 1
    for place in range(3):
        tensor = _without(order[place])
        again = (inner or middle) if place == 0 else (inner if place == 1 else False)
        passes[tensor] = steps[order[place]] if again and not keep >> tensor & 1 else 1


@njit(cache=True, error_model="numpy")
def needed_bytes(tile: Ints, spans: Real, dims: Ints, order: Ints, keep: int, rates: Real) -> float:
    """Bytes of the scratchpad: one tile of each tensor, or all tiles that a kept one has inside the loop that it lacks."""
    total = 0.0
    for place in range(3):
        tensor = _without(order[place])
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


@njit(cache=True, error_model="numpy", inline="always")
def _keep_bits(order: Ints, kept: int) -> int:
    bits = 0
    if kept >= 1:
        bits |= 1 << _without(order[1])
    if kept == 2:
        bits |= 1 << _without(order[0])
    return bits


@njit(cache=True, error_model="numpy", inline="always")
def _value(objective: int, cycles: float, moved: float, joules: Real) -> float:
    """What is to be small; `joules` are those of a byte of DRAM traffic, and all others."""
    if objective == 0:
        return cycles
    if objective == 3:
        return moved
    spent = joules[0] * moved + joules[1]
    return float(spent if objective == 1 else spent * cycles)


@njit(cache=True, error_model="numpy")
def _plan_constants(plan: int, dims: Ints, rates: Real, totals: Real, constants: Real) -> None:
    """What all cells of a plan share: extents of the outer, middle and inner loop, scratchpad bytes of an element of the tensor
    that stays, of the one without the middle and without the outer loop, and bytes of reading these two once more."""
    order = ORDERS[PLANS[plan, 0]]
    for place in range(3):
        constants[plan, place] = dims[order[place]]
    tensors = (_without(order[2]), _without(order[1]), _without(order[0]))
    for place in range(3):
        tensor = tensors[place]
        constants[plan, 3 + place] = rates[4] if tensor == 0 else (rates[5] if tensor == 1 else rates[3])
    constants[plan, 6], constants[plan, 7] = totals[3 + tensors[1]], totals[3 + tensors[2]]


@njit(cache=True, error_model="numpy")
def _bound(
    plan: int, low0: float, low1: float, low2: float, high0: float, high1: float, high2: float, constants: Real, dims: Ints,
    compulsory: float, forms: Ints, room: float, cycle: float, burst: float, ends: Real, objective: int, joules: Real,
) -> tuple[float, float]:  # fmt: skip
    """Lower bounds of a cell: its value, and its traffic; infinite where nothing in it fits. Sizes are by place in the order.

    `ends` are bytes per element of A and B in the first fill.
    """
    number, kept = PLANS[plan, 0], PLANS[plan, 1]
    d0, d1, d2 = constants[plan, 0], constants[plan, 1], constants[plan, 2]
    stays, again, last = constants[plan, 3], constants[plan, 4], constants[plan, 5]
    wide = d2 if kept else low2
    whole = (d1 * d2 if kept == 2 else low1 * low2) * last
    panel = low0 * wide * again
    if low0 * low1 * stays + panel + whole > room:
        return np.inf, np.inf
    # the largest sizes that still fit, with the others at their least
    across = low1 * stays + wide * again
    if high0 * across > room - whole:
        high0 = (room - whole) / across / BELOW
    across = low0 * stays + (0.0 if kept == 2 else low2 * last)
    rest = room - panel - (whole if kept == 2 else 0.0)
    if high1 * across > rest:
        high1 = rest / across / BELOW
    across = (0.0 if kept else low0 * again) + (0.0 if kept == 2 else low1 * last)
    rest = room - low0 * low1 * stays - (panel if kept else 0.0) - (whole if kept == 2 else 0.0)
    if high2 * across > rest:
        high2 = rest / across / BELOW
    c0, c1, c2 = np.ceil(d0 / high0 * BELOW), np.ceil(d1 / high1 * BELOW), np.ceil(d2 / high2 * BELOW)
    moved = compulsory
    if kept == 0 and c2 > 1.0:
        moved += (c1 - 1.0) * constants[plan, 6]
    if kept < 2 and (c2 > 1.0 or c1 > 1.0):
        moved += (c0 - 1.0) * constants[plan, 7]
    if number == 0:  # mnk
        m, n, k, lm, ln, lk = c0, c1, c2, low0, low1, low2
    elif number == 1:  # mkn
        m, n, k, lm, ln, lk = c0, c2, c1, low0, low2, low1
    elif number == 2:  # nmk
        m, n, k, lm, ln, lk = c1, c0, c2, low1, low0, low2
    elif number == 3:  # nkm
        m, n, k, lm, ln, lk = c2, c0, c1, low2, low0, low1
    elif number == 4:  # kmn
        m, n, k, lm, ln, lk = c1, c2, c0, low1, low2, low0
    else:  # knm
        m, n, k, lm, ln, lk = c2, c1, c0, low2, low1, low0
    count = float(dims[3])
    loads = c0 * c1 * c2
    if kept == 1 and number >= 4:  # unfinished sums come back in all steps of the outer loop but the first
        loads = (c0 - 1.0) * c1 * c2 + c1
    elif kept == 2:  # every tile of A and of B once
        loads = max(m, n) * k
    fill = lk * (lm * ends[0] + ln * ends[1]) * cycle + burst
    cycles = max(least_busy(dims, m, n, k, forms) * count * BELOW + fill, moved * cycle + burst * loads * count)
    if objective == 0:
        return cycles, moved
    return _value(objective, cycles, moved, joules), moved


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
def _cut(tile: Ints, axis: int, extent: int, size: int) -> None:
    count = (extent + size - 1) // size
    tile[axis, 0], tile[axis, 1], tile[axis, 2] = size, count, extent - (count - 1) * size


@njit(cache=True, error_model="numpy")
def _offer(
    front: Real, entries: int, value: float, moved: float, cycles: int, tile: Ints, order: int, keep: int, band: float
) -> int:
    """Adds a tiling to those kept; drops what is beaten in both, and what has left the tolerance. Returns how many there are."""
    best = value
    for entry in range(entries):
        best = min(best, front[entry, 0])
        if front[entry, 0] <= value and front[entry, 1] <= moved:
            return entries
    if value > best * band:
        return entries
    kept = 0
    for entry in range(entries):
        beaten = front[entry, 0] >= value and front[entry, 1] >= moved
        if not beaten and front[entry, 0] <= best * band:
            if kept != entry:
                front[kept] = front[entry]
            kept += 1
    if kept == FRONT:  # full of trade-offs: the slowest goes
        worst = 0
        for entry in range(1, kept):
            worst = entry if front[entry, 0] > front[worst, 0] else worst
        kept -= 1
        front[worst] = front[kept]
    front[kept, 0], front[kept, 1], front[kept, 2] = value, moved, cycles
    for axis in range(3):
        front[kept, 3 + axis] = tile[axis, 0]
    front[kept, 6], front[kept, 7] = order, keep
    return kept + 1


@njit(cache=True, error_model="numpy")
def _pick(front: Real, entries: int, band: float) -> int:
    """Of the tilings within the tolerance of the best the one with the least traffic, then the least value, then the first."""
    best = np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    pick = -1
    for entry in range(entries):
        if front[entry, 0] > best * band:
            continue
        if pick < 0 or front[entry, 1] < front[pick, 1]:
            pick = entry
    return pick


@njit(cache=True, error_model="numpy")
def _standing(front: Real, entries: int, band: float) -> tuple[float, float]:
    """The best value so far, and the traffic of what would be picked."""
    if entries == 0:
        return np.inf, np.inf
    best = np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    return best, front[_pick(front, entries, band), 1]


@njit(cache=True, error_model="numpy")
def _roots(lengths: Ints, whole: Ints, allowed: int, cells: Ints) -> int:
    """Cells that cover the space: of each plan, the inner loop in one tile, and in several; where nothing is kept, and the inner
    loop is one tile, the middle one likewise."""
    count = 0
    for plan in range(PLANS.shape[0]):
        order, kept = ORDERS[PLANS[plan, 0]], PLANS[plan, 1]
        swapped = PLANS[plan, 0] if kept else _swapped(PLANS[plan, 0])
        if not (allowed >> (PLANS[plan, 0] + KEPT_MIDDLE * kept) & 1 or allowed >> (swapped + KEPT_MIDDLE * kept) & 1):
            continue
        for part in range(2):
            if part == 0 and not whole[order[2]]:
                continue  # sizes are given
            if part == 1 and whole[order[2]] and lengths[order[2]] == 1:
                continue  # there is one size
            if part == 0 and kept == 1 and allowed & EVERYTHING == EVERYTHING:
                continue  # the same as nothing kept
            cell = cells[count]
            cell[0] = plan
            for axis in range(3):
                cell[1 + 2 * axis], cell[2 + 2 * axis] = 0, lengths[axis] - 1
            inner = order[2]
            if part == 0:
                cell[1 + 2 * inner] = lengths[inner] - 1
            elif whole[inner]:
                cell[2 + 2 * inner] = lengths[inner] - 2
            count += 1
    return count


@njit(cache=True, error_model="numpy", inline="always")
def _swapped(order: int) -> int:
    """The order with outer and middle loop exchanged: mnk and nmk, mkn and kmn, nkm and knm."""
    return (2, 4, 0, 5, 1, 3)[order]


@njit(cache=True, error_model="numpy")
def _leaf(
    cell: Ints, dims: Ints, rates: Real, totals: Real, halo: Real, sizes: Ints, forms: Ints, supply: Real, latency: int,
    objective: int, joules: Real, band: float, allowed: int, front: Real, entries: int, best: float, traffic: float, room: Ints,
    spans: Real, kinds: Ints,
) -> int:  # fmt: skip
    """Evaluates a single tile of a plan, in both orders where nothing is kept."""
    tile, passes = room[0:3], room[3]
    for axis in range(3):
        _cut(tile, axis, dims[axis], sizes[axis, cell[1 + 2 * axis]])
    kept, first = PLANS[cell[0], 1], PLANS[cell[0], 0]
    compute = -1.0
    for turn in range(1 if kept else 2):
        order = first if turn == 0 else _swapped(first)
        if not allowed >> (order + KEPT_MIDDLE * kept) & 1:
            continue
        if turn == 1 and allowed >> first & 1 and (tile[ORDERS[order, 0], 1] == 1 or tile[ORDERS[order, 1], 1] == 1):
            continue  # a loop of one step may stand anywhere
        keep = _keep_bits(ORDERS[order], kept)
        if compute < 0.0:
            compute = kinds_of(tile, forms, kinds) * dims[3]
            if compute >= MOST_CYCLES:
                return entries
        passes_of(tile[:, 1], ORDERS[order], keep, passes)
        spans_of(tile, halo, spans)
        if halo[HALO] > 0.0 and needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > supply[1]:
            continue
        moved = moved_bytes(tile, spans, passes, totals, halo)
        if entries:
            likely = _likely(tile, order, keep, dims, rates, supply[0], latency, kinds, compute)
            least = _value(objective, max(likely, moved / supply[0] * BELOW), moved, joules)
            if least > best * band or (least * SLACK >= best and moved >= traffic):
                continue
        cycles = tiled_cycles(
            tile, spans, ORDERS[order], keep, dims[3], rates, supply[0], latency, kinds, MOST_INTEGER
        )  # fmt: skip
        if cycles < MOST_CYCLES:
            entries = _offer(
                front, entries, _value(objective, float(cycles), moved, joules), moved, cycles, tile, order, keep, band
            )
    return entries


@njit(cache=True, error_model="numpy")
def _likely(
    tile: Ints, order: int, keep: int, dims: Ints, rates: Real, speed: float, latency: int, kinds: Ints, compute: float
) -> float:  # fmt: skip
    """A lower bound on the cycles of one tiling: the array, the first fill, and stalls of steps between full tiles.

    In the inner loop both tensors that have it move.
    """
    inner = ORDERS[order, 2]
    m, n, k = float(tile[0, 0]), float(tile[1, 0]), float(tile[2, 0])
    a, b = m * k * rates[0], k * n * rates[1]
    total = compute + transfer(a + b, speed, latency) + transfer(float(tile[0, 2] * tile[1, 2]) * rates[2], speed, latency)
    busy = float(kinds[0, 0, 0] if tile[0, 1] > 1 and tile[1, 1] > 1 and tile[2, 1] > 1 else -1)
    if busy < 0.0 or keep:
        return float(total)
    load = (0.0 if inner == 1 else a) + (0.0 if inner == 0 else b)
    waits = transfer(load, speed, latency) - busy
    if waits > 0.0:
        many = float(dims[3])
        for axis in range(3):
            full = tile[axis, 1] if tile[axis, 2] == tile[axis, 0] else tile[axis, 1] - 1
            many *= max(0, full - 1 if axis == inner else full)
        total += many * waits
    return float(total)


@njit(cache=True, error_model="numpy")
def _polish(
    dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, fixed: Ints, supply: Real, latency: int, objective: int,
    joules: Real, band: float, front: Real, entries: int, room: Ints, spans: Real, kinds: Ints,
) -> int:  # fmt: skip
    """Moves the sizes of the best tilings along each axis, in steps that shrink, as long as one gets better."""
    tile, passes = room[0:3], room[3]
    for which in range(2):  # the fastest, and the one with the least traffic within the tolerance
        start = _pick(front, entries, 1.0 if which == 0 else band)
        order, keep = int(front[start, 6]), int(front[start, 7])
        sizes = room[4]
        for axis in range(3):
            sizes[axis] = int(front[start, 3 + axis])
        value, traffic = front[start, 0], front[start, 1]
        for _ in range(2):
            moved_on = False
            for axis in range(3):
                if fixed[axis] > 0 or dims[axis] == 1:
                    continue
                stride = max(1, sizes[axis] // 8)
                while stride >= 1:
                    tried = False
                    for sign in (-1, 1):
                        size = sizes[axis] + sign * stride
                        if size < 1 or size > dims[axis]:
                            continue
                        for other in range(3):
                            _cut(tile, other, dims[other], size if other == axis else sizes[other])
                        spans_of(tile, halo, spans)
                        if needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > supply[1]:
                            continue
                        compute = kinds_of(tile, forms, kinds) * dims[3]
                        if compute >= MOST_CYCLES:
                            continue
                        passes_of(tile[:, 1], ORDERS[order], keep, passes)
                        moved = moved_bytes(tile, spans, passes, totals, halo)
                        cycles = tiled_cycles(
                            tile, spans, ORDERS[order], keep, dims[3], rates, supply[0], latency, kinds, MOST_INTEGER
                        )  # fmt: skip
                        now = _value(objective, float(cycles), moved, joules)
                        better = now < value if which == 0 else (moved < traffic and now <= value)
                        if better:
                            sizes[axis], value, traffic, tried, moved_on = size, now, moved, True, True
                            entries = _offer(front, entries, now, moved, cycles, tile, order, keep, band)
                            break
                    if not tried:
                        stride //= 2
            if not moved_on:
                break
    return entries


@njit(cache=True, error_model="numpy", inline="always")
def _swap(cells: Ints, bounds: Real, one: int, other: int) -> None:
    for column in range(7):
        cells[one, column], cells[other, column] = cells[other, column], cells[one, column]
    for column in range(2):
        bounds[one, column], bounds[other, column] = bounds[other, column], bounds[one, column]


@njit(cache=True, error_model="numpy")
def best_tile(
    dims: Ints, rates: Real, halo: Real, folds: Ints, fixed: Ints, allowed: int, forms: Ints, supply: Real, latency: int,
    objective: int, joules: Real, tolerance: float, effort: int, sizes: Ints, chosen: Ints,
) -> None:  # fmt: skip
    """The best tiling of one product. `dims` is M, N, K, count; `fixed` are sizes that are given (0: free); `allowed` has a bit for
    each order and what is kept in it (KEPT_MIDDLE); `supply` is bytes per cycle and resident bytes; `effort` the most cells that
    are split (0: no limit). `sizes` is space for the sizes of the axes.

    `chosen` gets the columns of CHOSEN; cycles are NOTHING_FITS or TOO_LONG where there is no answer.
    """
    lengths, whole = np.empty(3, np.int64), np.empty(3, np.int64)
    for axis in range(3):
        if fixed[axis] > 0:
            sizes[axis, 0], lengths[axis] = min(fixed[axis], dims[axis]), 1
        else:
            lengths[axis] = useful_sizes(dims[axis], folds[axis], sizes[axis])
        whole[axis] = int(sizes[axis, lengths[axis] - 1] == dims[axis])
    left, right, out = float(dims[3]) * dims[0] * dims[2], float(dims[3]) * dims[2] * dims[1], float(dims[3]) * dims[0] * dims[1]
    totals = np.array([left * rates[0], right * rates[1], out * rates[2], left * rates[0], right * rates[1], 2.0 * out * rates[3]])
    compulsory = totals[0] + totals[1] + totals[2]
    band = max(1.0, (1.0 + tolerance) / SLACK)
    front, entries = np.empty((FRONT, 8)), 0
    cells, bounds = np.empty((CELLS, 7), np.int64), np.empty((CELLS, 2))
    room, spans, kinds = np.empty((5, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
    constants = np.empty((PLANS.shape[0], 8))
    for plan in range(PLANS.shape[0]):
        _plan_constants(plan, dims, rates, totals, constants)
    cycle, space = BELOW / supply[0], supply[1]
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    waiting, split, proven, fits, best, traffic = _roots(lengths, whole, allowed, cells), 0, 1, False, np.inf, np.inf
    fresh = 0  # cells from here on have no bound yet
    while True:
        for cell in range(fresh, waiting):
            plan = cells[cell, 0]
            x, y, z = ORDERS[PLANS[plan, 0], 0], ORDERS[PLANS[plan, 0], 1], ORDERS[PLANS[plan, 0], 2]
            bounds[cell, 0], bounds[cell, 1] = _bound(
                plan, float(sizes[x, cells[cell, 1 + 2 * x]]), float(sizes[y, cells[cell, 1 + 2 * y]]),
                float(sizes[z, cells[cell, 1 + 2 * z]]), float(sizes[x, cells[cell, 2 + 2 * x]]),
                float(sizes[y, cells[cell, 2 + 2 * y]]), float(sizes[z, cells[cell, 2 + 2 * z]]), constants, dims, compulsory,
                forms, space, cycle, burst, rates, objective, joules,
            )  # fmt: skip
            for place in range(cell, fresh, -1):  # the best is taken first
                if bounds[place - 1, 0] >= bounds[place, 0]:
                    break
                _swap(cells, bounds, place - 1, place)
        while waiting > 0:  # cells that hold nothing better are dropped
            least = bounds[waiting - 1, 0]
            fits = fits or least < np.inf
            if least < best * band and (least * SLACK < best or bounds[waiting - 1, 1] < traffic) and least < np.inf:
                break
            waiting -= 1
        if waiting == 0 or waiting > CELLS - 2 or (effort > 0 and split >= effort and entries > 0):
            proven = int(waiting == 0)
            break
        split += 1
        last, widest, spread = waiting - 1, -1, 0
        for axis in range(3):
            width = cells[last, 2 + 2 * axis] - cells[last, 1 + 2 * axis]
            if width > spread:
                widest, spread = axis, width
        if widest < 0:
            waiting -= 1
            fresh = waiting
            entries = _leaf(
                cells[last], dims, rates, totals, halo, sizes, forms, supply, latency, objective, joules, band, allowed, front,
                entries, best, traffic, room, spans, kinds,
            )  # fmt: skip
            best, traffic = _standing(front, entries, band)
            continue
        middle = (cells[last, 1 + 2 * widest] + cells[last, 2 + 2 * widest]) // 2
        for column in range(7):
            cells[waiting, column] = cells[last, column]
        cells[last, 2 + 2 * widest], cells[waiting, 1 + 2 * widest] = middle, middle + 1
        fresh, waiting = last, waiting + 1
    chosen[4] = TOO_LONG if fits else NOTHING_FITS
    if entries == 0:
        return
    entries = _polish(
        dims, rates, totals, halo, forms, fixed, supply, latency, objective, joules, band, front, entries, room, spans, kinds
    )  # fmt: skip
    pick = _pick(front, entries, band)
    for axis in range(3):
        chosen[axis] = int(front[pick, 3 + axis])
        _cut(room[0:3], axis, dims[axis], chosen[axis])
    chosen[3], chosen[4] = int(front[pick, 6]), int(front[pick, 2])
    chosen[5] = int(kinds_of(room[0:3], forms, kinds) * dims[3])
    chosen[6] = proven
    passes_of(room[0:3, 1], ORDERS[chosen[3]], int(front[pick, 7]), chosen[7:10])
    chosen[10], chosen[11] = int(front[pick, 7]), split


@njit(cache=True, error_model="numpy")
def best_tiles(
    dims: Ints, rates: Real, halos: Real, folds: Ints, fixed: Ints, allowed: Ints, forms: Ints, supply: Real, latency: int,
    objective: int, joules: Real, tolerance: float, effort: int,
) -> Any:  # fmt: skip
    """`best_tile` of many products at once."""
    chosen = np.empty((dims.shape[0], CHOSEN), np.int64)
    sizes = np.empty((3, LONGEST), np.int64)
    for product in range(dims.shape[0]):
        best_tile(
            dims[product], rates[product], halos[product], folds, fixed[product], allowed[product], forms, supply, latency,
            objective, joules[product], tolerance, effort, sizes, chosen[product],
        )  # fmt: skip
    return chosen


@njit(cache=True, error_model="numpy")
def tile_bounds(
    dims: Ints, rates: Real, tiles: Ints, allowed: int, forms: Ints, supply: Real, latency: int, objective: int, joules: Real
) -> Any:  # fmt: skip
    """For each of many tiles a lower bound on its value under any plan; infinite where it does not fit."""
    left, right, out = float(dims[3]) * dims[0] * dims[2], float(dims[3]) * dims[2] * dims[1], float(dims[3]) * dims[0] * dims[1]
    totals = np.array([left * rates[0], right * rates[1], out * rates[2], left * rates[0], right * rates[1], 2.0 * out * rates[3]])
    constants, least = np.empty((PLANS.shape[0], 8)), np.full(tiles.shape[0], np.inf)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    for plan in range(PLANS.shape[0]):
        order, kept = PLANS[plan, 0], PLANS[plan, 1]
        swapped = order if kept else _swapped(order)
        if not (allowed >> (order + KEPT_MIDDLE * kept) & 1 or allowed >> (swapped + KEPT_MIDDLE * kept) & 1):
            continue
        _plan_constants(plan, dims, rates, totals, constants)
        x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
        for tile in range(tiles.shape[0]):
            a, b, c = float(tiles[tile, x]), float(tiles[tile, y]), float(tiles[tile, z])
            value, _ = _bound(
                plan, a, b, c, a, b, c, constants, dims, totals[0] + totals[1] + totals[2], forms, supply[1], BELOW / supply[0],
                burst, rates, objective, joules,
            )  # fmt: skip
            least[tile] = min(least[tile], value)
    return least


@njit(cache=True, error_model="numpy")
def best_plan(
    dims: Ints, rates: Real, halo: Real, tile: Ints, allowed: int, kinds: Ints, supply: Real, latency: int, objective: int,
    joules: Real, band: float,
) -> tuple[int, int, int, float, float]:  # fmt: skip
    """Order, keep, cycles, value and bytes of one tile whose kinds have given cycles; the order is -1 where it does not fit."""
    left, right, out = float(dims[3]) * dims[0] * dims[2], float(dims[3]) * dims[2] * dims[1], float(dims[3]) * dims[0] * dims[1]
    totals = np.array([left * rates[0], right * rates[1], out * rates[2], left * rates[0], right * rates[1], 2.0 * out * rates[3]])
    front, entries, passes, spans = np.empty((FRONT, 8)), 0, np.empty(3, np.int64), np.empty((3, 2))
    spans_of(tile, halo, spans)
    for kept in range(3):
        for order in range(6):
            keep = _keep_bits(ORDERS[order], kept)
            if not allowed >> (order + KEPT_MIDDLE * kept) & 1:
                continue
            if needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > supply[1]:
                continue
            passes_of(tile[:, 1], ORDERS[order], keep, passes)
            moved = moved_bytes(tile, spans, passes, totals, halo)
            cycles = tiled_cycles(tile, spans, ORDERS[order], keep, dims[3], rates, supply[0], latency, kinds, MOST_INTEGER)
            value = _value(objective, float(cycles), moved, joules)
            entries = _offer(front, entries, value, moved, cycles, tile, order, keep, band)
    if entries == 0:
        return -1, 0, 0, np.inf, np.inf
    pick = _pick(front, entries, band)
    return int(front[pick, 6]), int(front[pick, 7]), int(front[pick, 2]), front[pick, 0], front[pick, 1]
