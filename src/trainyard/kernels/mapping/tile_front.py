"""Compiled: the tilings that a search keeps, and which of them it takes: least time, then least traffic, then least energy.

What is to be least is `value` (time, by default). Of the tilings within the tolerance of the least value (`band` is a factor),
those within the `tolerance` of the least traffic of these are equally good, and the one with the least energy is taken.

After a search, `fill_folds` and `polish` move the sizes of the best ones, and `take_over` tries what is best at another bandwidth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_bounds import BELOW, moved_bytes, needed_bytes, passes_of, spans_of, value_of
from trainyard.kernels.mapping.tile_cycles import MOST_CYCLES, kinds_of
from trainyard.kernels.mapping.tile_energy import MOVED, array_joules
from trainyard.kernels.mapping.tile_sizes import ALL_BELOW, CLOSEST
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, cut_sizes, cycles_of_steps, step_kinds, transfer
from trainyard.kernels.uncounted import inlined, uncounted

FRONT, ENTRY = 16, 9
"""Tilings kept while searching: of those within the tolerance, none with less traffic, less energy and less time than another; and
columns of one: value, bytes, cycles, m, n, k, order, keep, joules."""
AROUND = 6
"""Steps along k to each side, a quarter of the size together, in which a fabric's folds are filled."""
FEW_TILES = 6
"""Up to so many tiles along an axis the next multiples of a fold are tried as well: they may leave a much smaller last tile."""
FINEST = 256
"""The last step moves sizes by no less than this part of them."""


@inlined
def pick(front: Real, entries: int, band: float, tolerance: float) -> int:
    """Of the tilings within the tolerance of the best those within the tolerance of the least traffic, and of these the one with
    the least energy, then the least traffic, then the least value, then the first."""
    best, least = np.inf, np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    for entry in range(entries):
        if front[entry, 0] <= best * band:
            least = min(least, front[entry, 1])
    choice = -1
    for entry in range(entries):
        if front[entry, 0] > best * band or front[entry, 1] > least * (1.0 + tolerance):
            continue
        own = front[entry, 8], front[entry, 1], front[entry, 0]
        if choice < 0 or own < (front[choice, 8], front[choice, 1], front[choice, 0]):
            choice = entry
    return choice


@uncounted
def offer(
    front: Real, entries: int, value: float, moved: float, joules: float, cycles: float, tile: Ints, order: int, keep: int,
    band: float, tolerance: float,
) -> int:  # fmt: skip
    """Adds a tiling to those kept; drops what is beaten in all, and what has left the tolerance. Returns how many there are."""
    best = value
    for entry in range(entries):
        best = min(best, front[entry, 0])
        if front[entry, 0] <= value and front[entry, 1] <= moved and front[entry, 8] <= joules:
            return entries
    if value > best * band:
        return entries
    kept = 0
    for entry in range(entries):
        beaten = front[entry, 0] >= value and front[entry, 1] >= moved and front[entry, 8] >= joules
        if not beaten and front[entry, 0] <= best * band:
            for column in range(ENTRY if kept != entry else 0):
                front[kept, column] = front[entry, column]
            kept += 1
    if kept == FRONT:  # full of trade-offs: of those that are neither the fastest nor the choice, the one with most bytes goes
        fastest, choice, worst = pick(front, kept, 1.0, 0.0), pick(front, kept, band, tolerance), -1
        for entry in range(kept):
            if entry != fastest and entry != choice and (worst < 0 or front[entry, 1] > front[worst, 1]):
                worst = entry
        kept -= 1
        for column in range(ENTRY):
            front[worst, column] = front[kept, column]
    front[kept, 0], front[kept, 1], front[kept, 2], front[kept, 8] = value, moved, cycles, joules
    for axis in range(3):
        front[kept, 3 + axis] = tile[axis, 0]
    front[kept, 6], front[kept, 7] = order, keep
    return kept + 1


@uncounted
def standing(front: Real, entries: int, band: float, tolerance: float) -> tuple[float, float, float]:
    """The best value so far, the least traffic within the tolerance of it, and the energy of what would be picked."""
    best, least = np.inf, np.inf
    if entries == 0:
        return best, least, np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    for entry in range(entries):
        if front[entry, 0] <= best * band:
            least = min(least, front[entry, 1])
    return best, least, front[pick(front, entries, band, tolerance), 8]


@inlined
def _cut(
    axis: int, size: int, more: int, sizes: Ints, dims: Ints, fixed: Ints, halo: Real, order: Ints, keep: int, rates: Real,
    space: float, tile: Ints, spans: Real,
) -> bool:  # fmt: skip
    """Writes the tile with another size along an axis; false where it has no room. If need be, or if the axis `more` is to have one
    tile more, free axes are cut evenly: their last tiles get larger, all others smaller."""
    for other in range(3):
        cut_sizes(tile, other, dims[other], size if other == axis else sizes[other])
    spans_of(tile, halo, spans)
    if more < 0 and needed_bytes(tile, spans, dims, order, keep, rates) <= space:
        return True
    for other in range(3):
        if other != axis and fixed[other] == 0:
            count = min(tile[other, 1] + int(other == more), dims[other])
            cut_sizes(tile, other, dims[other], (dims[other] + count - 1) // count)
    spans_of(tile, halo, spans)
    return bool(needed_bytes(tile, spans, dims, order, keep, rates) <= space)


@uncounted
def _needed_keep(tile: Ints, order: Ints, keep: int, passes: Ints) -> int:
    """`keep` without the tensors that are moved no more often if they are not kept: they only take room."""
    for tensor in range(3):
        if keep >> tensor & 1:
            passes_of(tile[:, 1], order, keep & ~(1 << tensor), passes)
            if passes[tensor] == 1:
                keep &= ~(1 << tensor)
    return keep


@njit(cache=True, error_model="numpy", inline="always")
def _least_cycles(tile: Ints, spans: Real, rates: Real, compute: float, moved: float, speed: float, latency: int) -> float:
    """Cycles at least of a tiling: its compute with the first fill and the last drain, and all that it moves."""
    fill = spans[0, int(tile[0, 1] == 1)] * spans[1, int(tile[2, 1] == 1)] * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
    ends = transfer(fill, speed, latency) + transfer(spans[2, 1] * tile[1, 2] * rates[2], speed, latency)
    return float(max(compute + ends, moved / speed * BELOW))


@uncounted
def polish(
    dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, fixed: Ints, speed: float, space: float, latency: int,
    objective: int, joules: Real, prices: Real, band: float, tolerance: float, front: Real, entries: int, room: Ints, spans: Real,
    kinds: Ints, rows: Real,
) -> int:  # fmt: skip
    """Moves the sizes of the best tilings along each axis, in steps that shrink, as long as one gets better. Where a larger one
    finds no room, another axis is cut into one tile more.

    First the one of least value; then the one with the least traffic within the tolerance, unless it moves everything once already;
    then the choice, unless it is the first one, which has stayed where it was, and all sizes around it take longer.
    """
    tile, passes, sizes, first, longer = room[0:3], room[3], room[4], -1, True
    for goal in range(3):
        start = pick(front, entries, band if goal else 1.0, tolerance if goal == 2 else 0.0)
        order, keep, value, traffic = int(front[start, 6]), int(front[start, 7]), front[start, 0], front[start, 1]
        energy, first = front[start, 8], start if goal == 0 else first
        if (goal == 1 and traffic <= totals[0] + totals[1] + totals[2]) or (goal == 2 and longer and start == first):
            continue
        for axis in range(3):
            sizes[axis] = int(front[start, 3 + axis])
            cut_sizes(tile, axis, dims[axis], sizes[axis])
        keep = _needed_keep(tile, ORDERS[order], keep, passes)
        for axis in range(3):
            if fixed[axis] > 0 or dims[axis] <= ALL_BELOW:
                continue
            few = goal == 0 and forms[0, 7] == 0 and sizes[axis] < dims[axis] <= FEW_TILES * sizes[axis]
            stride, fold = int(max(1, sizes[axis] * (CLOSEST - 1.0))), forms[0, axis] if few else 0
            while stride >= max(1, sizes[axis] // FINEST):
                better, crowded = False, False
                for turn in range(4):  # larger, smaller, and larger with one of the two other axes cut into more tiles
                    size = sizes[axis] - stride if turn == 1 else sizes[axis] + stride
                    if fold > 1:  # first to the next multiples of a fold
                        size = (sizes[axis] - 1) // fold * fold if turn == 1 else (sizes[axis] // fold + 1) * fold
                    if size < 1 or size > dims[axis] or (turn > 1 and (goal > 0 or not crowded)):
                        continue
                    more = (axis + turn - 1) % 3 if turn > 1 else -1
                    if not _cut(axis, size, more, sizes, dims, fixed, halo, ORDERS[order], keep, rates, space, tile, spans):
                        crowded = crowded or turn == 0
                        continue
                    passes_of(tile[:, 1], ORDERS[order], keep, passes)
                    moved = moved_bytes(tile, spans, passes, totals, halo)
                    if (goal == 1 and moved >= traffic) or (goal == 2 and moved > traffic):
                        continue
                    if objective == 0 and moved / speed * BELOW > value:
                        continue
                    compute = kinds_of(tile, forms, kinds) * dims[3]
                    if compute >= MOST_CYCLES:
                        continue
                    least = value_of(objective, _least_cycles(tile, spans, rates, compute, moved, speed, latency), moved, joules)
                    if least > value:
                        continue
                    if goal == 0 and least == value:
                        longer = False
                        continue
                    spent = 0.0
                    if goal == 2:
                        spent = array_joules(tile, dims, rates, forms, prices, compute) + prices[MOVED] * moved
                        if spent >= energy:
                            continue
                    many = step_kinds(tile, spans, ORDERS[order], keep, dims[3], rates, kinds, rows)
                    cycles = cycles_of_steps(rows, many, speed, latency)
                    now = value_of(objective, cycles, moved, joules)
                    better, longer = now < value if goal == 0 else now <= value, longer and now > value
                    if better:
                        if goal < 2:
                            spent = array_joules(tile, dims, rates, forms, prices, compute) + prices[MOVED] * moved
                        value, traffic, energy = now, moved, spent
                        for other in range(3):
                            sizes[other] = tile[other, 0]
                        entries = offer(front, entries, now, moved, spent, cycles, tile, order, keep, band, tolerance)
                        break
                if not better:
                    stride, fold = stride // (1 if fold > 1 else 2), 0
    return entries


@uncounted
def fill_folds(
    dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, fixed: Ints, speed: float, space: float, latency: int,
    objective: int, joules: Real, prices: Real, band: float, tolerance: float, front: Real, entries: int, room: Ints, spans: Real,
    kinds: Ints, rows: Real,
) -> int:  # fmt: skip
    """For an array that stores any elements of the stationary operand up to a number of them: moves the size of the best tiling
    along k, and along the other axis of that operand to where its folds are full, or to a tile more or less. Neither alone need be
    better."""
    tile, passes, sizes = room[0:3], room[3], room[4]
    for index in range(forms.shape[0]):
        form = forms[index]
        across = 1 if form[3] == 0 else 0
        if form[7] <= 0 or fixed[2] > 0 or fixed[across] > 0:
            continue
        start = pick(front, entries, 1.0, 0.0)
        order, keep, value = int(front[start, 6]), int(front[start, 7]), front[start, 0]
        for axis in range(3):
            sizes[axis] = int(front[start, 3 + axis])
        k, most = sizes[2], form[7] * 1048576.0 / max(form[9], 1)
        folds, tiles = np.ceil(float(sizes[across]) * k / most), (dims[across] + sizes[across] - 1) // sizes[across]
        for step in range(-AROUND, AROUND + 1):
            sizes[2] = k + step * max(1, k // (AROUND * 4))
            if sizes[2] < 1 or sizes[2] > dims[2]:
                continue
            for which in range(4):
                if which == 0:
                    sizes[across] = min(dims[across], max(1, int(folds * most / sizes[2])))
                else:
                    count = min(max(1, tiles + which - 2), dims[across])
                    sizes[across] = (dims[across] + count - 1) // count
                for axis in range(3):
                    cut_sizes(tile, axis, dims[axis], sizes[axis])
                spans_of(tile, halo, spans)
                if needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > space:
                    continue
                compute = kinds_of(tile, forms, kinds) * dims[3]
                if compute >= MOST_CYCLES or (objective == 0 and compute >= value):
                    continue
                passes_of(tile[:, 1], ORDERS[order], keep, passes)
                moved = moved_bytes(tile, spans, passes, totals, halo)
                many = step_kinds(tile, spans, ORDERS[order], keep, dims[3], rates, kinds, rows)
                cycles = cycles_of_steps(rows, many, speed, latency)
                now = value_of(objective, cycles, moved, joules)
                if now < value:
                    spent = array_joules(tile, dims, rates, forms, prices, compute) + prices[MOVED] * moved
                    value = now
                    entries = offer(front, entries, now, moved, spent, cycles, tile, order, keep, band, tolerance)
    return entries


@njit(cache=True, error_model="numpy", inline="always")
def _is_same(one: Real, other: Real) -> bool:
    """Whether two tilings have the same sizes, order and resident tensors."""
    return bool(one[3] == other[3] and one[4] == other[4] and one[5] == other[5] and one[6] == other[6] and one[7] == other[7])


@uncounted
def take_over(
    entry: Real, dims: Ints, rates: Real, halo: Real, forms: Ints, speed: float, latency: int, objective: int, joules: Real,
    band: float, tolerance: float, front: Real, entries: int, tile: Ints, spans: Real, kinds: Ints, rows: Real,
) -> int:  # fmt: skip
    """Adds the best tiling at another bandwidth to those at this one, if it is good here, too."""
    for own in range(entries):
        if _is_same(front[own], entry):
            return entries
    for axis in range(3):
        cut_sizes(tile, axis, dims[axis], int(entry[3 + axis]))
    spans_of(tile, halo, spans)
    kinds_of(tile, forms, kinds)
    order, keep = int(entry[6]), int(entry[7])
    many = step_kinds(tile, spans, ORDERS[order], keep, dims[3], rates, kinds, rows)
    cycles = cycles_of_steps(rows, many, speed, latency)
    if cycles >= MOST_CYCLES:
        return entries
    value = value_of(objective, cycles, entry[1], joules)
    return int(offer(front, entries, value, entry[1], entry[8], cycles, tile, order, keep, band, tolerance))
