"""Compiled loops of the tile search. The plain twin is `mapping.walk`: it visits every tile one by one.

Axes are numbered m, n, k = 0, 1, 2. A size is stored with its edge: `size[axis][index] = (full, count, edge)`. Tile cycles come
from rows of `parts.folds.Folds` or `Pooled`, or from a table where an array has no closed form. `rates` are bytes per matrix
element: of A, B, finished and unfinished sums as they cross the DRAM's pins, then of A and B as they lie in the scratchpad
(unfinished sums are the same in both).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], dtype=np.int64)
"""Outer to inner, by axis."""
CHOSEN = 10
"""Columns of a result: m, n, k, order, cycles, compute cycles, number of the candidate, passes of A, of B, of the sums."""
BELOW = 1.0 - 1e-12
"""Keeps a bound made of rounded sums a bound."""
MOST_CYCLES = 2**53
"""More are not counted: sums of cycles stay exact as real numbers, and far from the end of 64 bits."""
NOTHING_FITS, TOO_LONG = -1, -2
"""Cycles of a product that has no tile, and of one that no tile brings below MOST_CYCLES."""


@njit(cache=True)
def transfer(moved: float, bytes_per_cycle: float, latency: int) -> int:
    """Cycles of one DMA burst: nothing for no bytes, else the latency and whole cycles of data."""
    if moved <= 0.0:
        return 0
    return latency + int(np.ceil(moved / bytes_per_cycle))


@njit(cache=True)
def _load(tile: Whole, here: Whole, there: Whole, rates: Real) -> float:
    """Bytes that step `there` needs and step `here` does not hold: new operand tiles, and sums begun earlier."""
    m = tile[0, 2] if there[0] == tile[0, 1] - 1 else tile[0, 0]
    n = tile[1, 2] if there[1] == tile[1, 1] - 1 else tile[1, 0]
    k = tile[2, 2] if there[2] == tile[2, 1] - 1 else tile[2, 0]
    load = 0.0
    if there[0] != here[0] or there[2] != here[2]:
        load += m * k * rates[0]
    if there[2] != here[2] or there[1] != here[1]:
        load += k * n * rates[1]
    if (there[0] != here[0] or there[1] != here[1]) and there[2] > 0:
        load += m * n * rates[3]
    return load


@njit(cache=True)
def _store(tile: Whole, there: Whole, here: Whole, rates: Real) -> float:
    """Bytes of sums that step `there` left behind for step `here` to write: finished or not."""
    if there[0] == here[0] and there[1] == here[1]:
        return 0.0
    m = tile[0, 2] if there[0] == tile[0, 1] - 1 else tile[0, 0]
    n = tile[1, 2] if there[1] == tile[1, 1] - 1 else tile[1, 0]
    rate = rates[2] if there[2] == tile[2, 1] - 1 else rates[3]
    return float(m * n * rate)


@njit(cache=True)
def _neighbour(order: Whole, many: Whole, x: Whole, ahead: bool, there: Whole) -> None:
    """The step after (or before) the one at loop positions x, as places along m, n, k."""
    for position in range(2, -1, -1):
        if ahead and x[position] < many[position] - 1:
            there[order[position]] = x[position] + 1
        elif not ahead and x[position] > 0:
            there[order[position]] = x[position] - 1
        else:
            there[order[position]] = 0 if ahead else many[position] - 1
            continue
        for outer in range(position):
            there[order[outer]] = x[outer]
        return


@njit(cache=True)
def tiled_cycles(tile: Whole, order: Whole, count: int, rates: Real, supply: Real, latency: int, kinds: Whole) -> int:
    """Cycles of all tile steps: each the longer of its compute and of the DRAM's work beside it; first fill and last drain show.

    `tile[axis] = (full, count, edge)`; `kinds[em, en, ek]` are compute cycles of a tile, e = 1 where it is the clipped one;
    `supply[0]` is bytes per cycle. Steps that look alike (the first, the last, the last but one and all others of each loop) are
    evaluated once: at most 64 of them.
    """
    speed = supply[0]
    here, there, x = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    many = np.array([tile[order[0], 1], tile[order[1], 1], tile[order[2], 1]])
    fill = tile[0, 0] * tile[2, 0] * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
    drain = tile[0, 2] * tile[1, 2] * rates[2]
    total = transfer(fill, speed, latency) + transfer(drain, speed, latency)
    for c0 in range(min(many[0], 4)):
        x[0], w0 = _representative(c0, many[0])
        for c1 in range(min(many[1], 4)):
            x[1], w1 = _representative(c1, many[1])
            for c2 in range(min(many[2], 4)):
                x[2], w2 = _representative(c2, many[2])
                here[order[0]], here[order[1]], here[order[2]] = x[0], x[1], x[2]
                compute = kinds[int(here[0] == tile[0, 1] - 1), int(here[1] == tile[1, 1] - 1), int(here[2] == tile[2, 1] - 1)]
                is_last = x[0] == many[0] - 1 and x[1] == many[1] - 1 and x[2] == many[2] - 1
                is_first = x[0] == 0 and x[1] == 0 and x[2] == 0
                load, store = fill, drain  # of the neighbouring product, where count > 1
                if not is_last:
                    _neighbour(order, many, x, True, there)
                    load = _load(tile, here, there, rates)
                if not is_first:
                    _neighbour(order, many, x, False, there)
                    store = _store(tile, there, here, rates)
                both = max(compute, transfer(load + store, speed, latency))
                if is_first and is_last:
                    ends = max(compute, transfer(load, speed, latency)) + max(compute, transfer(store, speed, latency))
                    total += compute if count == 1 else ends + (count - 2) * both
                elif is_first:
                    total += max(compute, transfer(load, speed, latency)) + (count - 1) * both
                elif is_last:
                    total += max(compute, transfer(store, speed, latency)) + (count - 1) * both
                else:
                    total += w0 * w1 * w2 * count * both
    return total


@njit(cache=True)
def _representative(which: int, many: int) -> tuple[int, int]:
    """The index that stands for a class of loop positions, and how many it stands for."""
    if many <= 3:
        return which, 1
    if which == 1:
        return 1, many - 3
    return (0 if which == 0 else many - 4 + which), 1


@njit(cache=True)
def _canonical(steps: Whole, order: Whole) -> bool:
    """Orders that differ only in loops of one step are the same: of those, the one with these loops outside, by axis."""
    for position in range(2):
        single, after = steps[order[position]] == 1, steps[order[position + 1]] == 1
        if after and (not single or order[position] > order[position + 1]):
            return False
    return True


@njit(cache=True)
def _passes(steps: Whole, order: Whole, through: Whole) -> None:
    """By axis: how often a tensor without it goes through, once for each step of that loop if anything moves inside."""
    through[order[2]] = 1
    through[order[1]] = steps[order[1]] if steps[order[2]] > 1 else 1
    through[order[0]] = steps[order[0]] if steps[order[2]] > 1 or steps[order[1]] > 1 else 1


@njit(cache=True)
def _traffic(through: Whole, totals: Real) -> float:
    """DRAM bytes of a product; sums that leave unfinished are written and read again."""
    return float(totals[0] * through[1] + totals[1] * through[0] + totals[2] + 2.0 * (through[2] - 1) * totals[3])


@njit(cache=True)
def _axes(dims: Whole, sizes: Whole, ends: Whole, forms: Whole) -> tuple[Whole, Whole]:
    """For each size of each axis: (full, count, edge), and how often each form folds the full and the edge one."""
    longest = sizes.shape[1]
    parts, over = np.empty((3, longest, 3), np.int64), np.empty((3, longest, 2, forms.shape[0]), np.int64)
    for axis in range(3):
        for index in range(ends[axis, 1]):
            size = sizes[axis, index]
            count = (dims[axis] + size - 1) // size
            edge = dims[axis] - (count - 1) * size
            parts[axis, index, 0], parts[axis, index, 1], parts[axis, index, 2] = size, count, edge
            for form in range(forms.shape[0]):
                extent = max(forms[form, axis], 1)
                over[axis, index, 0, form] = (size + extent - 1) // extent
                over[axis, index, 1, form] = (edge + extent - 1) // extent
    return parts, over


@njit(cache=True)
def _held(across: int, k: int, share: int) -> int:
    """Elements of the stationary operand that are held; `share` counts in units of 1 / 2**20 (`WHOLE_SHARE`)."""
    return (across * k * share + (1 << 20) - 1) >> 20


@njit(cache=True)
def _pooled(m: int, n: int, k: int, form: Whole) -> int:
    """`Pooled.cycles`."""
    chunk, drain, pool, load, share = form[2], form[4], form[7], form[8], form[9]
    across, vectors = (n, m) if form[3] == 0 else (m, n)
    held = _held(across, k, share)
    folds = (held + pool - 1) // pool
    passes = folds
    if chunk > 0:
        passes = k // chunk * ((_held(across, chunk, share) + pool - 1) // pool)
        passes += (_held(across, k % chunk, share) + pool - 1) // pool
    return int((held + load - 1) // load + passes * vectors + drain * (passes if form[5] == 1 else folds))


@njit(cache=True)
def _kinds(tile: Whole, where: Whole, forms: Whole, over: Whole, table: Whole, kinds: Whole) -> float:
    """Compute cycles of the (at most) 8 kinds of tile, and of one product in all: the best form (`Folds.cycles`) or the table.

    The sum is a real number: cycles of a product in the smallest tiles can leave 64 bits.
    """
    total = 0.0
    for em in range(2):
        for en in range(2):
            for ek in range(2):
                best = -1
                for form in range(forms.shape[0]):
                    if forms[form, 7] > 0:
                        cycles = _pooled(tile[0, 2 * em], tile[1, 2 * en], tile[2, 2 * ek], forms[form])
                        best = cycles if best < 0 or cycles < best else best
                        continue
                    m, n, k = over[0, where[0], em, form], over[1, where[1], en, form], over[2, where[2], ek, form]
                    stream, fixed, floor = forms[form, 3], forms[form, 4], forms[form, 5]
                    folds, steps = (n * k, m) if stream == 0 else ((m * k, n) if stream == 1 else (m * n, k))
                    folds = (folds + forms[form, 6] - 1) // forms[form, 6]
                    interval = fixed + steps if floor < 0 else max(steps, floor)
                    cycles = (folds - 1) * interval + fixed + steps
                    best = cycles if best < 0 or cycles < best else best
                if forms.shape[0] == 0:
                    best = table[2 * where[0] + em, 2 * where[1] + en, 2 * where[2] + ek]
                kinds[em, en, ek] = best
                weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                total += weight * best
    return total


@njit(cache=True)
def _place(candidate: int, ends: Whole, parts: Whole, where: Whole, tile: Whole) -> None:
    """Candidates are numbered: all free triples, then the diagonal ones."""
    free = ends[0, 0] * ends[1, 0] * ends[2, 0]
    if candidate < free:
        where[0], rest = divmod(candidate, ends[1, 0] * ends[2, 0])
        where[1], where[2] = divmod(rest, ends[2, 0])
    else:
        for axis in range(3):
            where[axis] = ends[axis, 0] + candidate - free
    for axis in range(3):
        for column in range(3):
            tile[axis, column] = parts[axis, where[axis], column]


@njit(cache=True)
def best_tile(
    dims: Whole, rates: Real, sizes: Whole, ends: Whole, forms: Whole, table: Whole, supply: Real, latency: int, chosen: Whole
) -> None:
    """The fastest tile and order of one product, among all triples of the sizes and the diagonal ones that follow them.

    `dims` is M, N, K, count; `ends[axis]` is how many of `sizes[axis]` combine freely, and how many there are (a diagonal triple
    takes the same index on each axis). `supply` is bytes per cycle and resident bytes. Each candidate has a lower bound (all
    compute, or all DRAM traffic) and only those that could still win are evaluated. `chosen` gets the columns of
    CHOSEN; cycles are NOTHING_FITS or TOO_LONG where there is no answer. Equal cycles: less traffic, then the first.
    """
    parts, over = _axes(dims, sizes, ends, forms)
    candidates = ends[0, 0] * ends[1, 0] * ends[2, 0] + ends[0, 1] - ends[0, 0]
    bound, code = np.empty(candidates * 6), np.empty(candidates * 6, np.int64)
    tile, where, kinds = np.empty((3, 3), np.int64), np.empty(3, np.int64), np.empty((2, 2, 2), np.int64)
    through = np.empty(3, np.int64)
    m, n, k, count = float(dims[0]), float(dims[1]), float(dims[2]), float(dims[3])
    left, right, out = count * m * k, count * k * n, count * m * n
    totals = np.array([left * rates[0], right * rates[1], out * rates[2], out * rates[3]])
    found = 0
    for candidate in range(candidates):
        _place(candidate, ends, parts, where, tile)
        held = float(tile[0, 0]) * tile[2, 0] * rates[4] + float(tile[2, 0]) * tile[1, 0] * rates[5]
        if held + float(tile[0, 0]) * tile[1, 0] * rates[3] > supply[1]:
            continue
        operands = float(tile[0, 0]) * tile[2, 0] * rates[0] + float(tile[2, 0]) * tile[1, 0] * rates[1]
        drain = transfer(tile[0, 2] * tile[1, 2] * rates[2], supply[0], latency)
        busy = _kinds(tile, where, forms, over, table, kinds) * count + transfer(operands, supply[0], latency) + drain
        for order in range(6):
            if _canonical(tile[:, 1], ORDERS[order]):
                _passes(tile[:, 1], ORDERS[order], through)
                bound[found] = max(busy, _traffic(through, totals) / supply[0] * BELOW)
                code[found] = candidate * 6 + order
                found += 1
    chosen[4] = NOTHING_FITS if found == 0 else TOO_LONG
    if found == 0 or bound[:found].min() >= MOST_CYCLES:
        return
    least = 0.0
    likely = np.full(1, np.argmin(bound[:found]))  # the smallest bound first: it prunes most of the others
    for turn in range(2):
        for index in likely:
            if turn == 1 and (bound[index] > chosen[4] or code[index] == chosen[6]):
                continue
            candidate, order = divmod(code[index], 6)
            _place(candidate, ends, parts, where, tile)
            compute = int(_kinds(tile, where, forms, over, table, kinds) * count)
            cycles = tiled_cycles(tile, ORDERS[order], dims[3], rates, supply, latency, kinds)
            _passes(tile[:, 1], ORDERS[order], through)
            moved = _traffic(through, totals)
            better = chosen[4] < 0 or cycles < chosen[4] or (cycles == chosen[4] and moved < least)
            if better or (cycles == chosen[4] and moved == least and code[index] < chosen[6]):
                chosen[0], chosen[1], chosen[2] = tile[0, 0], tile[1, 0], tile[2, 0]
                chosen[3], chosen[4], chosen[5], chosen[6] = order, cycles, compute, code[index]
                chosen[7], chosen[8], chosen[9] = through[1], through[0], through[2]
                least = moved
        if turn == 0:
            likely = np.nonzero(bound[:found] <= chosen[4])[0]
            likely = likely[np.argsort(bound[likely])]


@njit(cache=True)
def best_tiles(dims: Whole, rates: Real, sizes: Whole, ends: Whole, forms: Whole, table: Whole, supply: Real, latency: int) -> Any:
    """`best_tile` of many products at once."""
    chosen = np.empty((dims.shape[0], CHOSEN), np.int64)
    for product in range(dims.shape[0]):
        best_tile(dims[product], rates[product], sizes[product], ends[product], forms, table, supply, latency, chosen[product])
    return chosen
