"""Compiled: the fastest tile and loop order of a product, among the sizes of a menu (`mapping.tiling.candidates`).

Tile cycles come from rows of `ir.folds.Folds` or `Pooled`, or from a table where an array has no closed form. Every candidate
gets a lower bound; the one of the least bound is evaluated first (`kernels.mapping.tiles`), and then only those that could still
win.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, tiled_cycles, transfer

CHOSEN = 10
"""Columns of a result: m, n, k, order, cycles, compute cycles, number of the candidate, passes of A, of B, of the sums."""
BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
MOST_CYCLES = 2**53
"""The most cycles that are counted: sums stay exact as floats, and far below 2**63."""
NOTHING_FITS, TOO_LONG = -1, -2
"""Cycles of a product that has no tile, and of one that no tile brings below MOST_CYCLES."""
MOST_INTEGER = 2**63 - 1
LONGEST_MENU = 160
"""Sizes of an axis: at most 54 doublings and 63 halvings."""


@njit(cache=True, error_model="numpy")
def _canonical(steps: Ints, order: Ints) -> bool:
    """Whether an order is the representative of those that differ only in loops of one step: these loops outside, by axis."""
    for position in range(2):
        single, after = steps[order[position]] == 1, steps[order[position + 1]] == 1
        if after and (not single or order[position] > order[position + 1]):
            return False
    return True


@njit(cache=True, error_model="numpy")
def _passes(steps: Ints, order: Ints, through: Ints) -> None:
    """By axis, how often a tensor without that axis is read: once for each step of its loop if anything moves inside."""
    through[order[2]] = 1
    through[order[1]] = steps[order[1]] if steps[order[2]] > 1 else 1
    through[order[0]] = steps[order[0]] if steps[order[2]] > 1 or steps[order[1]] > 1 else 1


@njit(cache=True, error_model="numpy")
def _traffic(through: Ints, totals: Real) -> float:
    """DRAM bytes of a product; spilled sums are written and read again."""
    return float(totals[0] * through[1] + totals[1] * through[0] + totals[2] + 2.0 * (through[2] - 1) * totals[3])


@njit(cache=True, error_model="numpy")
def _axes(dims: Ints, sizes: Ints, ends: Ints, forms: Ints) -> tuple[Ints, Ints]:
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


@njit(cache=True, error_model="numpy")
def _stationary(across: int, k: int, share: int) -> int:
    """Elements of the stationary operand that are stored; `share` is in units of 1 / 2**20 (`SHARE_ONE`)."""
    return (across * k * share + (1 << 20) - 1) >> 20


@njit(cache=True, error_model="numpy")
def _pooled(m: int, n: int, k: int, form: Ints) -> int:
    """`Pooled.cycles`."""
    chunk, drain, pool, load, share = form[2], form[4], form[7], form[8], form[9]
    across, vectors = (n, m) if form[3] == 0 else (m, n)
    stationary = _stationary(across, k, share)
    folds = (stationary + pool - 1) // pool
    passes = folds
    if chunk > 0:
        passes = k // chunk * ((_stationary(across, chunk, share) + pool - 1) // pool)
        passes += (_stationary(across, k % chunk, share) + pool - 1) // pool
    return int((stationary + load - 1) // load + passes * vectors + drain * (passes if form[5] == 1 else folds))


@njit(cache=True, error_model="numpy")
def _kinds(tile: Ints, where: Ints, forms: Ints, over: Ints, table: Ints, kinds: Ints) -> float:
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
                    if forms[form, 6] > 1:
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


@njit(cache=True, error_model="numpy")
def _locate(candidate: int, ends: Ints, parts: Ints, where: Ints, tile: Ints) -> None:
    """The sizes of candidate number `candidate`: all free triples come first, then the diagonal ones."""
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


@njit(cache=True, error_model="numpy")
def _same_stream(forms: Ints) -> bool:
    """Whether all forms stream the same axis with the same cycles, so that the one with fewer folds is always faster."""
    if forms.shape[0] == 0:
        return False
    axis = 2 if forms[0, 3] == 2 else forms[0, 3]
    for form in range(forms.shape[0]):
        if forms[form, 7] > 0 or forms[form, 3] != forms[0, 3] or forms[form, axis] != forms[0, axis]:
            return False
        if forms[form, 4] != forms[0, 4] or forms[form, 5] != forms[0, 5]:
            return False
    return True


@njit(cache=True, error_model="numpy")
def _fold_counts(stream: int, ends: Ints, parts: Ints, forms: Ints, over: Ints) -> Real:
    """Folds of all tiles of a product, by the sizes of the two axes on the array, where forms are `_same_stream`."""
    first, second = (1, 2) if stream == 0 else ((0, 2) if stream == 1 else (0, 1))
    folds_by_size = np.zeros((ends[first, 1], ends[second, 1]))
    for i in range(ends[first, 1]):
        for j in range(ends[second, 1]):
            if (i >= ends[first, 0] or j >= ends[second, 0]) and i - ends[first, 0] != j - ends[second, 0]:
                continue  # no such candidate
            for e in range(2):
                for f in range(2):
                    best = -1
                    for form in range(forms.shape[0]):
                        folds = over[first, i, e, form] * over[second, j, f, form]
                        if forms[form, 6] > 1:
                            folds = (folds + forms[form, 6] - 1) // forms[form, 6]
                        best = folds if best < 0 or folds < best else best
                    folds_by_size[i, j] += (
                        float(1 if e else parts[first, i, 1] - 1) * float(1 if f else parts[second, j, 1] - 1) * best
                    )
    return folds_by_size


@njit(cache=True, error_model="numpy")
def _stream_cycles(stream: int, ends: Ints, parts: Ints, forms: Ints, over: Ints) -> Real:
    """By the size of the streamed axis: cycles of one fold of all tiles along it, and extra cycles once in each tile."""
    cycles_by_size = np.zeros((ends[stream, 1], 2))
    fixed, floor = forms[0, 4], forms[0, 5]
    for index in range(ends[stream, 1]):
        for edge in range(2):
            steps = over[stream, index, edge, 0]
            interval = fixed + steps if floor < 0 else max(steps, floor)
            weight = float(1 if edge else parts[stream, index, 1] - 1)
            cycles_by_size[index, 0] += weight * interval
            cycles_by_size[index, 1] += weight * (fixed + steps - interval)
    return cycles_by_size


@njit(cache=True, error_model="numpy")
def _least_traffic(m: float, n: float, k: float, totals: Real) -> float:
    """The least DRAM bytes over all loop orders: the innermost loop of more than one step lets one tensor stay resident."""
    spilled = 2.0 * (k - 1.0) * totals[3]
    least = totals[0] + totals[1] * m + spilled if n > 1.0 else np.inf
    if m > 1.0:
        least = min(least, totals[0] * n + totals[1] + spilled)
    if k > 1.0:
        least = min(least, totals[0] * n + totals[1] * m)
    return float(totals[2] + (totals[0] + totals[1] if least == np.inf else least))


@njit(cache=True, error_model="numpy")
def _bounds(
    dims: Ints, rates: Real, ends: Ints, forms: Ints, table: Ints, supply: Real, latency: int, totals: Real, parts: Ints,
    over: Ints, bound: Real, candidates: Ints,
) -> int:  # fmt: skip
    """A lower bound on the cycles of each candidate that fits, and its number; returns how many fit.

    It takes at least all of its compute between the first fill and the last drain, or the bursts of all of its DRAM traffic: where
    both operands have bytes, every step brings some.
    """
    alike, stream = _same_stream(forms), forms[0, 3] if forms.shape[0] else 0
    first, second = (1, 2) if stream == 0 else ((0, 2) if stream == 1 else (0, 1))
    folded, streamed = np.zeros((1, 1)), np.zeros((1, 1))
    if alike:
        folded, streamed = _fold_counts(stream, ends, parts, forms, over), _stream_cycles(stream, ends, parts, forms, over)
    tile, where, kinds = np.empty((3, 3), np.int64), np.zeros(3, np.int64), np.empty((2, 2, 2), np.int64)
    count, fitting, cycle, free = float(dims[3]), 0, BELOW / supply[0], ends[0, 0] * ends[1, 0] * ends[2, 0]
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    drain = float(latency) if rates[2] > 0.0 else 0.0
    for candidate in range(free + ends[0, 1] - ends[0, 0]):
        if candidate:
            _next(candidate - free, ends, where)
        m, n, k = float(parts[0, where[0], 0]), float(parts[1, where[1], 0]), float(parts[2, where[2], 0])
        left, right = m * k, k * n
        if left * rates[4] + right * rates[5] + m * n * rates[3] > supply[1]:
            continue
        rows, columns, deep = float(parts[0, where[0], 1]), float(parts[1, where[1], 1]), float(parts[2, where[2], 1])
        steps = rows * columns * deep
        moving = _least_traffic(rows, columns, deep, totals) * cycle + burst * steps * count + drain
        if alike:
            other = rows * columns if stream == 2 else (rows * deep if stream == 1 else columns * deep)
            busy = folded[where[first], where[second]] * streamed[where[stream], 0] + other * streamed[where[stream], 1]
        else:
            for axis in range(3):
                for column in range(3):
                    tile[axis, column] = parts[axis, where[axis], column]
            busy = _kinds(tile, where, forms, over, table, kinds)
        ends_seen = left * rates[0] + right * rates[1] + float(parts[0, where[0], 2] * parts[1, where[1], 2]) * rates[2]
        bound[fitting], candidates[fitting] = max(busy * count + ends_seen * cycle + burst + drain, moving), candidate
        fitting += 1
    return fitting


@njit(cache=True, error_model="numpy")
def _next(diagonal: int, ends: Ints, where: Ints) -> None:
    """Advances to the next candidate: free triples with the last axis fastest, then the diagonal ones."""
    if diagonal >= 0:
        for axis in range(3):
            where[axis] = ends[axis, 0] + diagonal
        return
    for axis in range(2, -1, -1):
        where[axis] += 1
        if where[axis] < ends[axis, 0]:
            return
        where[axis] = 0


@njit(cache=True, error_model="numpy")
def best_tile(
    dims: Ints, rates: Real, sizes: Ints, ends: Ints, forms: Ints, table: Ints, supply: Real, latency: int, chosen: Ints
) -> None:
    """The fastest tile and order of one product, among all triples of the sizes and the diagonal ones that follow them.

    `dims` is M, N, K, count; `ends[axis]` is how many of `sizes[axis]` combine freely, and how many there are (a diagonal triple
    takes the same index on each axis). `supply` is bytes per cycle and resident bytes. `chosen` gets the columns of CHOSEN; cycles
    are NOTHING_FITS or TOO_LONG where there is no answer. Equal cycles: less traffic, then the first.
    """
    parts, over = _axes(dims, sizes, ends, forms)
    m, n, k, count = float(dims[0]), float(dims[1]), float(dims[2]), float(dims[3])
    left, right, out = count * m * k, count * k * n, count * m * n
    totals = np.array([left * rates[0], right * rates[1], out * rates[2], out * rates[3]])
    candidate_count = ends[0, 0] * ends[1, 0] * ends[2, 0] + ends[0, 1] - ends[0, 0]
    bound, candidates = np.empty(candidate_count), np.empty(candidate_count, np.int64)
    fitting = _bounds(dims, rates, ends, forms, table, supply, latency, totals, parts, over, bound, candidates)
    likely = 0
    for index in range(1, fitting):
        likely = index if bound[index] < bound[likely] else likely
    chosen[4] = NOTHING_FITS if fitting == 0 else TOO_LONG
    if fitting == 0 or bound[likely] >= MOST_CYCLES:
        return
    room, least = np.empty((10, 3), np.int64), 0.0
    kinds = np.empty((2, 2, 2), np.int64)
    for attempt in range(fitting + 1):  # the least bound first: it rules out most of the others
        index = likely if attempt == 0 else attempt - 1
        if attempt and (index == likely or bound[index] > chosen[4]):
            continue
        tile, where = room[4:7], room[7]
        _locate(candidates[index], ends, parts, where, tile)
        compute = int(_kinds(tile, where, forms, over, table, kinds) * dims[3])
        least = _ordered(candidates[index], compute, dims, rates, supply[0], latency, totals, kinds, room, least, chosen)


@njit(cache=True, error_model="numpy")
def _stalls(tile: Ints, inner: int, count: int, rates: Real, speed: float, latency: int, kinds: Ints) -> float:
    """A lower bound on the stall cycles of the innermost loop: between two full tiles, the loads of the second one."""
    load = 0.0
    if inner != 1:
        load += tile[0, 0] * tile[2, 0] * rates[0]
    if inner != 0:
        load += tile[2, 0] * tile[1, 0] * rates[1]
    waited = float(transfer(load, speed, latency) - kinds[0, 0, 0])
    if waited <= 0.0:
        return 0.0
    many = float(count)
    for axis in range(3):
        full = tile[axis, 1] if tile[axis, 2] == tile[axis, 0] else tile[axis, 1] - 1
        many *= max(0, full - 1 if axis == inner else full)
    return many * waited


@njit(cache=True, error_model="numpy")
def _ordered(
    candidate: int, compute: int, dims: Ints, rates: Real, speed: float, latency: int, totals: Real, kinds: Ints, room: Ints,
    least: float, chosen: Ints,
) -> float:  # fmt: skip
    """Compares the orders of one tile (`room[4:7]`) with the best so far, which moves `least` bytes; returns the best's bytes."""
    tile, through = room[4:7], room[8]
    m, n, k = float(tile[0, 0]), float(tile[1, 0]), float(tile[2, 0])
    busy = compute + transfer(m * k * rates[0] + k * n * rates[1], speed, latency)
    busy += transfer(tile[0, 2] * tile[1, 2] * rates[2], speed, latency)
    for order in range(6):
        if not _canonical(tile[:, 1], ORDERS[order]):
            continue
        _passes(tile[:, 1], ORDERS[order], through)
        moved = _traffic(through, totals)
        if (
            0
            <= chosen[4]
            < max(moved / speed * BELOW, busy + _stalls(tile, ORDERS[order, 2], dims[3], rates, speed, latency, kinds))
        ):
            continue
        most = MOST_INTEGER if chosen[4] < 0 else chosen[4]
        cycles = tiled_cycles(tile, ORDERS[order], dims[3], rates, speed, latency, kinds, most)
        code = candidate * 6 + order
        better = chosen[4] < 0 or cycles < chosen[4] or (cycles == chosen[4] and moved < least)
        if better or (cycles == chosen[4] and moved == least and code < chosen[6]):
            chosen[0], chosen[1], chosen[2] = tile[0, 0], tile[1, 0], tile[2, 0]
            chosen[3], chosen[4], chosen[5], chosen[6] = order, cycles, compute, code
            chosen[7], chosen[8], chosen[9] = through[1], through[0], through[2]
            least = moved
    return least


@njit(cache=True, error_model="numpy")
def menu(dims: Ints, granule: Ints, tile: Ints, sizes: Ints, ends: Ints) -> None:
    """Sizes of each axis: those that combine freely (doublings of the granule, the extent), then the diagonal ones (halvings).

    If `tile` is not 0, it is the only size.
    """
    longest = 0
    for axis in range(3):
        extent, count = dims[axis], 0
        if tile[axis] > 0:
            sizes[axis, 0] = min(tile[axis], extent)
            ends[axis, 0], ends[axis, 1] = 1, 1
            continue
        size = granule[axis]
        while size < extent:
            sizes[axis, count] = size
            size, count = 2 * size, count + 1
        sizes[axis, count] = extent
        ends[axis, 0] = count + 1
        longest = max(longest, min(extent, granule[axis]))
    halvings = 0
    while tile[0] == 0 and longest >> (halvings + 1) > 0:
        halvings += 1
        for axis in range(3):
            base = min(dims[axis], granule[axis])
            sizes[axis, ends[axis, 0] + halvings - 1] = max(1, base >> halvings)
    for axis in range(3):
        ends[axis, 1] = ends[axis, 0] + halvings


@njit(cache=True, error_model="numpy")
def best_tiles(dims: Ints, rates: Real, granule: Ints, tile: Ints, forms: Ints, supply: Real, latency: int) -> Any:
    """`best_tile` of many products at once, each with its own `menu`."""
    chosen = np.empty((dims.shape[0], CHOSEN), np.int64)
    sizes, ends, table = np.empty((3, LONGEST_MENU), np.int64), np.empty((3, 2), np.int64), np.zeros((1, 1, 1), np.int64)
    for product in range(dims.shape[0]):
        menu(dims[product], granule, tile, sizes, ends)
        best_tile(dims[product], rates[product], sizes, ends, forms, table, supply, latency, chosen[product])
    return chosen
