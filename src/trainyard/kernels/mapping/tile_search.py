"""Compiled: the best tile, loop order and resident tensors of a product, found by branch and bound.

The space: the useful sizes of each axis (`tile_sizes`), six loop orders, and what stays in the scratchpad (`tile_bounds`).

A *cell* is a range of sizes along each axis with lower bounds for all that is in it (`cell_bounds`). Cells are split until they are
single tiles, which are evaluated exactly in all orders (`tiles.step_kinds`); a cell is dropped when its bound shows that it holds
nothing better by more than SLACK, and no tiling with less traffic among those within the tolerance, and, of those within the
tolerance of the least traffic, none with less energy (`tile_energy`). So what is chosen is proven to be within the tolerance of the
best of the space, and the search says if it had to stop before (`effort`).

One search serves several bandwidths at once: a cell is dropped when that holds at each of them, and each has its own best tilings.

Between two useful sizes lie others of the same count of tiles: the last step moves the best tile's sizes along each axis as long as
that helps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainyard.kernels.mapping.cell_bounds import (
    ARRAY,
    BUSY,
    COUNT,
    EXTENT,
    FILLED,
    FOLDS,
    HIGH,
    LOW,
    PRODUCT,
    RATE,
    describe,
    know,
)
from trainyard.kernels.mapping.cell_pruning import CYCLE, LIMIT, begin, examine, has_kinds, latest, strike
from trainyard.kernels.mapping.tile_bounds import (
    BELOW,
    EVERYTHING,
    HALO,
    KEPT_MIDDLE,
    passes_of,
    totals_of,
)
from trainyard.kernels.mapping.tile_cycles import kinds_of, least_busy
from trainyard.kernels.mapping.tile_energy import MOVED, least_joules
from trainyard.kernels.mapping.tile_front import fill_folds, pick, polish, take_over
from trainyard.kernels.mapping.tile_leaf import SLACK, evaluate_leaf, slack_of
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, cut_sizes
from trainyard.kernels.uncounted import inlined, uncounted

CHOSEN = 12
"""Columns of a result: m, n, k, order, cycles, compute cycles, whether it is proven, passes of A, B and sums, keep, cells split."""
NOTHING_FITS, TOO_LONG = -1, -2
"""Cycles of a product that has no tile, and of one that no tile brings below MOST_CYCLES."""
CELLS, CELL = 2048, 9
"""Cells that wait at most: a split adds one, and ranges are halved. Columns of one: the first and the last size along each axis,
the ways that are left, the most promising one, and how often the best had improved when the cell was looked at."""
MOST_CELLS = 4000
"""Cells that are split at most unless `effort` says otherwise; few products need a tenth of them."""
RETURN = 16
"""After so many splits the search returns to the cell with the least bound."""
KNOWN = 32
"""Dimensions of an axis whose useful sizes are kept while many products are searched."""


class Scratch(NamedTuple):
    """Space that a search writes to: sizes, counts and edges of a tile with its passes and sizes to try, spans, compute cycles by
    kind of tile, what is known of a cell, steps by kind, first fills and last drains, `cell_pruning`'s numbers by bandwidth and its
    turns, which axes may be whole, bytes of the tensors."""

    room: Ints
    spans: Real
    kinds: Ints
    known: Real
    rows: Real
    ends: Real
    pace: Real
    turns: Ints
    whole: Ints
    totals: Real


@uncounted
def _ways(allowed: int, one: int) -> int:
    """Orders and what is kept in them (bits of `allowed`) that differ where the axes in the bits of `one` have a single tile."""
    if allowed != EVERYTHING:
        return allowed
    ways = 0
    for order in range(6):
        outer, middle, inner = one >> ORDERS[order, 0] & 1, one >> ORDERS[order, 1] & 1, one >> ORDERS[order, 2] & 1
        # a loop of one step may stand anywhere: it stands inside, and of two such loops the order is that of the axes
        if not (outer and not middle) and not (middle and not inner) and not (middle and ORDERS[order, 1] > ORDERS[order, 2]):
            ways |= 1 << order
        if not inner and not middle:  # else the same as with less kept
            ways |= 1 << order + KEPT_MIDDLE
            if not outer:
                ways |= 1 << order + 2 * KEPT_MIDDLE
    return ways


@uncounted
def _roots(lengths: Ints, whole: Ints, allowed: int, cells: Ints) -> int:
    """Cells that cover the space: along each axis the whole dimension in one tile, or several tiles."""
    count = 0
    for which in range(8):
        exists = True
        for axis in range(3):
            one = which >> axis & 1
            last = lengths[axis] - 1
            cells[count, 2 * axis], cells[count, 2 * axis + 1] = (last, last) if one else (0, last - whole[axis])
            exists = exists and (bool(whole[axis]) if one else last - whole[axis] >= 0)
        cells[count, 6], cells[count, 7] = _ways(allowed, which), 0
        count += int(exists)
    return count


@njit(cache=True, error_model="numpy", inline="always")
def _swap(cells: Ints, bounds: Real, one: int, other: int) -> None:
    for column in range(CELL):
        cells[one, column], cells[other, column] = cells[other, column], cells[one, column]
    bounds[one], bounds[other] = bounds[other], bounds[one]


@inlined
def _between_counts(sizes: Ints, extent: int, first: int, middle: int, last: int) -> int:
    """The place from `first` to `last` that is the closest to `middle` behind which another number of tiles begins; `middle` where
    there is none."""
    count, below, above = (extent - 1) // sizes[middle], middle, middle
    while above < last and (extent - 1) // sizes[above + 1] == count:
        above += 1
    if above == middle:
        return middle
    while below >= first and (extent - 1) // sizes[below] == count:
        below -= 1
    if above < last and (below < first or above - middle <= middle - below):
        return above
    return below if below >= first else middle


@inlined
def _halve(cells: Ints, sizes: Ints, dims: Ints, last: int, into: int) -> bool:
    """Splits a cell along the axis whose sizes differ most, at their geometric mean, but not between sizes that make as many tiles
    (what moves, and the last tile, depend on that number) while there are others; false where it is a single tile."""
    widest, ratio = -1, 1.0
    for axis in range(3):
        wide = float(sizes[axis, cells[last, 2 * axis + 1]]) / sizes[axis, cells[last, 2 * axis]]
        if wide > ratio:
            widest, ratio = axis, wide
    if widest < 0:
        return False
    middle, after = cells[last, 2 * widest], cells[last, 2 * widest + 1]
    between = sizes[widest, after] / np.sqrt(ratio)
    while after - middle > 1:
        place = (middle + after) // 2
        if sizes[widest, place] <= between:
            middle = place
        else:
            after = place
    middle = _between_counts(sizes[widest], dims[widest], cells[last, 2 * widest], middle, cells[last, 2 * widest + 1])
    for column in range(CELL):
        cells[into, column] = cells[last, column]
    cells[last, 2 * widest + 1], cells[into, 2 * widest] = middle, middle + 1
    return True


@uncounted
def _finish(
    dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, fixed: Ints, speeds: Real, space: float, latency: int,
    objective: int, joules: Real, prices: Real, band: float, tolerance: float, fronts: Real, entries: Ints, room: Ints,
    spans: Real, kinds: Ints, rows: Real,
) -> None:  # fmt: skip
    """Makes the best tilings better at the bandwidths where they differ from the one before (on a fabric without folds, at each),
    and tries those of the neighbouring bandwidths."""
    many, before = speeds.shape[0], (0.0, 0.0, 0.0, 0.0, 0.0)
    middle = many // 2
    for at in range(many):
        if entries[at] == 0:
            continue
        best = fronts[at, pick(fronts[at], entries[at], 1.0, 0.0)]
        own = best[3], best[4], best[5], best[6], best[7]
        differs, before = own != before, own
        if differs or forms[0, 7] > 0:
            entries[at] = fill_folds(
                dims, rates, totals, halo, forms, fixed, speeds[at], space, latency, objective, joules, prices, band, tolerance,
                fronts[at], entries[at], room, spans, kinds, rows,
            )  # fmt: skip
            entries[at] = polish(
                dims, rates, totals, halo, forms, fixed, speeds[at], space, latency, objective, joules, prices, band, tolerance,
                fronts[at], entries[at], room, spans, kinds, rows,
            )  # fmt: skip
    for step in range(many):
        at = middle - 1 - step if step < middle else step  # outwards, first to more bandwidth, then to less
        for other in (at - 1, at + 1):
            if 0 <= other < many and entries[other] > 0:
                entries[at] = take_over(
                    fronts[other, pick(fronts[other], entries[other], 1.0, 0.0)], dims, rates, halo, forms, speeds[at], latency,
                    objective, joules, band, tolerance, fronts[at], entries[at], room[0:3], spans, kinds, rows,
                )  # fmt: skip


@inlined
def _narrow(cell: Ints, sizes: Ints, known: Real, cycle: float, limit: float) -> bool:
    """Takes sizes from a cell that cannot be within `limit`: small ones, which make too many tiles, and large ones, which do not
    fit or take too long to load first. False where none is left."""
    ends = (known[FILLED, 0] + known[FILLED, 1] + known[FILLED, 2]) * cycle
    most = (limit - ends) / (known[PRODUCT, 0] * BELOW)
    streams, fixed, busy = int(known[ARRAY, 2]), known[ARRAY, 1], known[BUSY, 0]
    left = (limit - busy - ends) / cycle
    for axis in range(3):
        low, high = cell[2 * axis], cell[2 * axis + 1]
        if low == high:
            continue
        least, largest = 0.0, known[HIGH, axis]
        if known[ARRAY, 0] > 0.0 and limit < np.inf:
            one, two = (1, 2) if axis == 0 else ((0, 2) if axis == 1 else (0, 1))
            if axis == streams:
                tiles = (most / (known[FOLDS, one] * known[FOLDS, two]) - known[FOLDS, axis]) / fixed if fixed > 0.0 else np.inf
            else:
                steps = known[COUNT, streams] * fixed + known[FOLDS, streams]
                tiles = most / (known[FOLDS, one + two - streams] * steps)
            least = known[EXTENT, axis] / tiles * BELOW if tiles < np.inf else 0.0
            load = known[LOW, 0] * known[RATE, 0] + known[LOW, 1] * known[RATE, 1]  # bytes of a first tile longer by one
            if axis < 2:
                load = known[LOW, 2] * known[RATE, axis]
            if load > 0.0:
                largest = min(largest, known[LOW, axis] + left / load / BELOW)
        while low <= high and sizes[axis, low] < least:
            low += 1
        while high >= low and sizes[axis, high] > largest:
            high -= 1
        if low > high:
            return False
        cell[2 * axis], cell[2 * axis + 1] = low, high
    return True


@njit(cache=True, error_model="numpy", inline="always")
def _is_single(cell: Ints) -> bool:
    return bool(cell[0] == cell[1] and cell[2] == cell[3] and cell[4] == cell[5])


@njit(cache=True, error_model="numpy", inline="always")
def _look_at(
    fresh: int, waiting: int, every: bool, improved: int, sizes: Ints, dims: Ints, rates: Real, forms: Ints, burst: float,
    objective: int, joules: Real, prices: Real, band: float, slack: float, tolerance: float, floor: float, limit: float,
    cells: Ints, bounds: Real, stand: Real, turns: Ints, pace: Real, floors: Real, known: Real, tile: Ints, spans: Real,
    kinds: Ints, rows: Real,
) -> int:  # fmt: skip
    """Drops those of the cells from `fresh` on that hold nothing better, and leaves the others so that the best is the last one;
    returns how many cells there are. `improved` says how often the best has improved so far."""
    left, timed = fresh, objective == 0 and stand[0, 0] < np.inf
    for cell in range(fresh, waiting):
        one, single = cells[cell], _is_single(cells[cell])
        if not know(
            float(sizes[0, one[0]]), float(sizes[1, one[2]]), float(sizes[2, one[4]]), float(sizes[0, one[1]]),
            float(sizes[1, one[3]]), float(sizes[2, one[5]]), dims, forms, pace[0, CYCLE], limit, known,
        ):  # fmt: skip
            continue
        ways, likely, bound = examine(
            one[6], one[7], single or every, known, burst, objective, joules, band, slack, tolerance, floor, dims, rates, forms,
            prices, stand, turns, pace, floors,
        )  # fmt: skip
        if ways != 0 and timed and not single and has_kinds(known):
            ways = strike(
                ways, likely, known, burst, band, slack, tolerance, floor, rates, stand, pace, floors, tile, spans, kinds, rows
            )  # fmt: skip
        if ways == 0 or not (single or _narrow(one, sizes, known, pace[0, CYCLE], limit)):
            continue
        for column in range(6):
            cells[left, column] = one[column]
        cells[left, 6], cells[left, 7], cells[left, 8], bounds[left] = ways, likely, improved, bound
        for place in range(left, fresh, -1):
            if bounds[place - 1] * SLACK >= bounds[place]:
                break
            _swap(cells, bounds, place - 1, place)
        left += 1
    return left


@uncounted
def _limits(objective: int, band: float, stand: Real, pace: Real) -> float:
    """Writes the cycles from which on a tiling is out of the tolerance; returns those for all bandwidths together."""
    for at in range(pace.shape[0] if objective == 0 else 0):
        pace[at, LIMIT] = stand[at, 0] * band
    return latest(pace)


@uncounted
def search_tile(
    dims: Ints, rates: Real, halo: Real, fixed: Ints, allowed: int, forms: Ints, speeds: Real, space: float, latency: int,
    objective: int, joules: Real, prices: Real, tolerance: float, effort: int, sizes: Ints, lengths: Ints, cells: Ints,
    bounds: Real, fronts: Real, entries: Ints, stand: Real, floors: Real, smooth: Real, scratch: Scratch, guesses: Ints,
) -> tuple[int, bool, bool]:  # fmt: skip
    """Fills `fronts` with the best tilings of one product at each of `speeds` (bytes per cycle, falling); `entries` says how many,
    `stand` what the best of them has, `floors` what no tiling of useful sizes undercuts, and `smooth` the same if transfers did not
    take whole cycles. Returns the cells split, whether all is proven, and whether anything fits.

    `dims` is M, N, K, count; `fixed` are sizes that are given (0: free); `allowed` has a bit for each order and what is kept in it
    (KEPT_MIDDLE); `space` are resident bytes; `effort` the most cells that are split (0: MOST_CELLS). `sizes` are the `lengths`
    useful sizes of the axes; `cells` and `bounds` are space for CELLS cells. `guesses` are sizes that are tried first (0: none).

    Without a tolerance the answer is the fastest tiling of useful sizes, and sizes in between are not tried: useful sizes depend on
    neither scratchpad nor bandwidth, so more of these never costs a cycle. Only fabrics without folds (`Pooled`) are moved on.
    """
    room, spans, kinds, known, rows, ends, pace, turns, whole, totals = scratch
    for axis in range(3):
        whole[axis] = int(sizes[axis, lengths[axis] - 1] == dims[axis])
    totals_of(dims, rates, totals)
    slack = slack_of(tolerance)
    band = (1.0 + tolerance) / slack
    busy = least_busy(dims, 1.0, 1.0, 1.0, float(dims[0]), float(dims[1]), float(dims[2]), 1.0, forms) * dims[3]
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    begin(speeds, pace, turns)
    describe(dims, rates, totals, halo[HALO] > 0.0, forms, space, known)
    waiting, split, proven, fits = _roots(lengths, whole, allowed, cells), 0, True, False
    entries[:], stand[:], floors[:], smooth[:] = 0, np.inf, np.inf, np.inf
    floor = least_joules(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, dims, rates, forms, prices, busy) + prices[MOVED] * totals[:3].sum()
    fresh, improved, limit = 0, 0, np.inf  # cells from here on have no bound yet; how often the best has improved
    for guess in range(guesses.shape[0]):
        m, n, k = guesses[guess, 0], guesses[guess, 1], guesses[guess, 2]
        one = int(m == dims[0]) + 2 * int(n == dims[1]) + 4 * int(k == dims[2])
        before = guesses[max(0, guess - 1)]
        again = guess > 0 and m == before[0] and n == before[1] and k == before[2]
        if m > 0 and not again and evaluate_leaf(
            m, n, k, dims, rates, totals, halo, forms, speeds, space, latency, objective, joules, prices, band, tolerance,
            _ways(allowed, one), fronts, entries, stand, floors, smooth, room, spans, kinds, rows, ends,
        ):  # fmt: skip
            limit = _limits(objective, band, stand, pace)
    while True:
        waiting = _look_at(
            fresh, waiting, split == 0, improved, sizes, dims, rates, forms, burst, objective, joules, prices, band, slack,
            tolerance, floor, limit, cells, bounds, stand, turns, pace, floors, known, room[0:3], spans, kinds, rows,
        )  # fmt: skip
        fits = fits or waiting > 0
        if waiting == 0 or waiting > CELLS - 2 or (split >= (effort if effort > 0 else MOST_CELLS) and entries[0] > 0):
            proven = waiting == 0
            break
        last = waiting - 1
        if split % RETURN == RETURN - 1:  # go on with the most promising of all
            likely = last
            for cell in range(last):
                likely = cell if bounds[cell] < bounds[likely] else likely
            _swap(cells, bounds, likely, last)
        if cells[last, 8] != improved:  # something better has been found since this cell was looked at
            fresh = last
            continue
        split += 1
        if _halve(cells, sizes, dims, last, waiting):
            fresh, waiting = last, waiting + 1
            continue
        waiting, fresh = last, last
        if evaluate_leaf(
            sizes[0, cells[last, 0]], sizes[1, cells[last, 2]], sizes[2, cells[last, 4]], dims, rates, totals, halo, forms, speeds,
            space, latency, objective, joules, prices, band, tolerance, cells[last, 6], fronts, entries, stand, floors,
            smooth, room, spans, kinds, rows, ends,
        ):  # fmt: skip
            improved, limit = improved + 1, _limits(objective, band, stand, pace)
    if tolerance > 0.0 or objective != 0 or forms[0, 7] > 0:
        _finish(
            dims, rates, totals, halo, forms, fixed, speeds, space, latency, objective, joules, prices, band, tolerance, fronts,
            entries, room, spans, kinds, rows,
        )  # fmt: skip
    for at in range(speeds.shape[0]):
        smooth[at] = min(floors[at], smooth[at]) if proven else 0.0
        floors[at] = min(floors[at], stand[at, 0]) if proven else 0.0
    return split, proven, fits


@njit(cache=True, error_model="numpy")
def write_choice(entry: Real, dims: Ints, forms: Ints, chosen: Ints) -> None:
    """A tiling as the columns of CHOSEN, but for those that say how it was found."""
    tile, kinds = np.empty((3, 3), np.int64), np.empty((2, 2, 2), np.int64)
    for axis in range(3):
        chosen[axis] = int(entry[3 + axis])
        cut_sizes(tile, axis, dims[axis], chosen[axis])
    chosen[3], chosen[4] = int(entry[6]), int(entry[2])
    chosen[5] = int(kinds_of(tile, forms, kinds) * dims[3])
    passes_of(tile[:, 1], ORDERS[chosen[3]], int(entry[7]), chosen[7:10])
    chosen[10] = int(entry[7])
