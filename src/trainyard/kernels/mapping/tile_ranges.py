"""Compiled: the best tilings of many products, at one bandwidth or for a whole range of them.

For a range, products are searched once, at a few bandwidths side by side (`tile_search`), and the best tilings of each stay on a
shortlist, with their steps by kind. What is best at a bandwidth between two of these is then chosen among theirs, at the cost of
adding up their steps: nothing is searched again. It is proven: with more bandwidth no tiling takes longer, and none is faster by
more than the bandwidth grows, but for the parts of cycles that transfers wait for their last byte, so both neighbours bound the
least time from below. Where the shortlist has nothing within the
tolerance of that bound, the product says so and is searched by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.cell_bounds import KNOWN_ROWS
from trainyard.kernels.mapping.cell_pruning import PACE
from trainyard.kernels.mapping.tile_bounds import needed_bytes, spans_of
from trainyard.kernels.mapping.tile_cycles import kinds_of
from trainyard.kernels.mapping.tile_energy import MOVED, PRICES, array_joules
from trainyard.kernels.mapping.tile_front import ENTRY, FRONT, pick
from trainyard.kernels.mapping.tile_leaf import slack_of
from trainyard.kernels.mapping.tile_search import (
    CELL,
    CELLS,
    CHOSEN,
    KNOWN,
    NOTHING_FITS,
    TOO_LONG,
    Scratch,
    search_tile,
    write_choice,
)
from trainyard.kernels.mapping.tile_sizes import ALL_BELOW, SMALL, most_sizes, useful_sizes
from trainyard.kernels.mapping.tiles import ORDERS, STEP_KINDS, Ints, Real, cut_sizes, cycles_of_steps, step_kinds

LISTED = ENTRY + 4 + PRICES
"""Columns of a tiling on a shortlist: those of `tile_front`, bits of the bandwidths at which it is good, where its steps are, the
bytes that it needs, and what each of the prices of `tile_energy` is multiplied by."""


@njit(cache=True, error_model="numpy")
def best_at(
    dims: Ints, rates: Real, halos: Real, folds: Ints, fixed: Ints, allowed: Ints, forms: Ints, speeds: Real, space: float,
    latency: int, objective: int, joules: Real, prices: Real, tolerance: float, effort: int, guesses: Ints,
) -> Any:  # fmt: skip
    """`search_tile` of many products, which share the useful sizes of equal dimensions: by product and bandwidth the best tilings,
    how many there are, and the least that any takes, in whole cycles and as if transfers took parts of them; by product the cells
    split, whether all is proven, whether anything fits. `guesses` are by product tile sizes that are tried first."""
    products, many = dims.shape[0], speeds.shape[0]
    fronts, entries = np.empty((products, many, FRONT, ENTRY)), np.zeros((products, many), np.int64)
    stand, floors, found = np.empty((products, many, 3)), np.empty((products, 2 * many)), np.zeros((products, 3), np.int64)
    cells, bounds = np.empty((CELLS, CELL), np.int64), np.empty(CELLS)
    longest, fine = 0, objective == 0 and tolerance <= 0.0
    for product in range(products):
        for axis in range(3):
            longest = max(longest, dims[product, axis])
    sizes, lengths = np.empty((3, most_sizes(longest, folds.shape[1])), np.int64), np.zeros(3, np.int64)
    known, places = np.zeros((3, KNOWN), np.int64), np.zeros((3, KNOWN), np.int64)
    menus = np.empty((3, KNOWN, sizes.shape[1]), np.int64)
    room, spans, kinds = np.empty((5, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
    rows, ends, pace, turns = np.empty((STEP_KINDS, 3)), np.empty((many + 1, 3)), np.empty((many, PACE)), np.empty(many, np.int64)
    cell, whole, totals = np.empty((KNOWN_ROWS, 3)), np.empty(3, np.int64), np.empty(6)
    scratch = Scratch(room, spans, kinds, cell, rows, ends, pace, turns, whole, totals)
    for product in range(products):
        m, n, k = dims[product, 0], dims[product, 1], dims[product, 2]
        small = min(m, n, k) <= ALL_BELOW and float(m) * n * k <= SMALL
        for axis in range(3):
            extent = dims[product, axis]
            if fixed[product, axis] > 0:
                sizes[axis, 0], lengths[axis] = min(fixed[product, axis], extent), 1
                continue
            slot, asked = 0, -extent if small else extent
            while slot < KNOWN - 1 and known[axis, slot] != asked and known[axis, slot] != 0:
                slot += 1
            if known[axis, slot] != asked:
                known[axis, slot] = asked
                places[axis, slot] = useful_sizes(extent, folds[axis], fine or small, menus[axis, slot])
            lengths[axis] = places[axis, slot]
            for index in range(lengths[axis]):
                sizes[axis, index] = menus[axis, slot, index]
        found[product, 0], found[product, 1], found[product, 2] = search_tile(
            dims[product], rates[product], halos[product], fixed[product], allowed[product], forms, speeds, space, latency,
            objective, joules[product], prices, tolerance, effort, sizes, lengths, cells, bounds, fronts[product], entries[product],
            stand[product], floors[product, :many], floors[product, many:], scratch, guesses[product],
        )  # fmt: skip
    return fronts, entries, floors, found


@njit(cache=True, error_model="numpy")
def best_tiles(
    dims: Ints, rates: Real, halos: Real, folds: Ints, fixed: Ints, allowed: Ints, forms: Ints, speed: float, space: float,
    latency: int, objective: int, joules: Real, prices: Real, tolerance: float, effort: int,
) -> Any:  # fmt: skip
    """The best tiling of each of many products: the columns of CHOSEN; cycles are NOTHING_FITS or TOO_LONG without an answer."""
    fronts, entries, _, found = best_at(
        dims, rates, halos, folds, fixed, allowed, forms, np.full(1, speed), space, latency, objective, joules, prices, tolerance,
        effort, np.zeros((dims.shape[0], 0, 3), np.int64),
    )  # fmt: skip
    chosen, band = np.zeros((dims.shape[0], CHOSEN), np.int64), (1.0 + tolerance) / slack_of(tolerance)
    for product in range(dims.shape[0]):
        chosen[product, 4] = TOO_LONG if found[product, 2] else NOTHING_FITS
        if entries[product, 0] > 0:
            front = fronts[product, 0]
            write_choice(front[pick(front, entries[product, 0], band, tolerance)], dims[product], forms, chosen[product])
            chosen[product, 6], chosen[product, 11] = found[product, 1], found[product, 0]
    return chosen


@njit(cache=True, error_model="numpy")
def shortlist(
    dims: Ints, rates: Real, halos: Real, folds: Ints, fixed: Ints, allowed: Ints, forms: Ints, speeds: Real, space: float,
    latency: int, joules: Real, prices: Real, tolerance: float, guesses: Ints,
) -> Any:  # fmt: skip
    """The tilings of many products that are good at any of some bandwidths (LISTED), where those of each product begin, their
    steps by kind, by product and bandwidth the least cycles that any tiling takes, the cells split, and the tilings as CHOSEN."""
    zero = int(np.int64(0))  # no constant: one copy of the search is compiled for all who call it
    fronts, entries, floors, found = best_at(
        dims, rates, halos, folds, fixed, allowed, forms, speeds, space, latency, zero, joules, prices, tolerance, zero, guesses
    )  # fmt: skip
    products, many = dims.shape[0], speeds.shape[0]
    begin = np.zeros(products + 1, np.int64)
    listed, steps = np.empty((entries.sum(), LISTED)), np.empty((entries.sum() * 12 + STEP_KINDS, 3))
    ready, unit, total, taken = np.zeros((entries.sum(), CHOSEN), np.int64), np.zeros(PRICES), 0, 0
    tile, spans, kinds = np.empty((3, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
    for product in range(products):
        begin[product] = total
        for at in range(many):
            if entries[product, at] == 0:
                floors[product, at], floors[product, many + at] = 0.0, 0.0
            for entry in range(entries[product, at]):
                front = fronts[product, at, entry]
                same = begin[product]
                while same < total and not np.array_equal(listed[same, 3:8], front[3:8]):
                    same += 1
                if same < total:
                    listed[same, ENTRY] += 1 << at
                    continue
                listed[total, :ENTRY], listed[total, ENTRY], listed[total, ENTRY + 1] = front, 1 << at, taken
                if steps.shape[0] - taken < STEP_KINDS:
                    steps = np.concatenate((steps, np.empty(steps.shape)))
                for axis in range(3):
                    cut_sizes(tile, axis, dims[product, axis], int(front[3 + axis]))
                compute = kinds_of(tile, forms, kinds) * dims[product, 3]
                spans_of(tile, halos[product], spans)
                kind = step_kinds(
                    tile, spans, ORDERS[int(front[6])], int(front[7]), dims[product, 3], rates[product], kinds, steps[taken:]
                )  # fmt: skip
                order, keep = ORDERS[int(front[6])], int(front[7])
                listed[total, ENTRY + 3] = needed_bytes(tile, spans, dims[product], order, keep, rates[product])
                taken, total = taken + kind, total + 1
                listed[total - 1, ENTRY + 2] = taken
                for price in range(PRICES):
                    unit[:] = 0.0
                    unit[price] = 1.0
                    times = front[1] if price == MOVED else array_joules(tile, dims[product], rates[product], forms, unit, compute)
                    listed[total - 1, ENTRY + 4 + price] = times
                write_choice(front, dims[product], forms, ready[total - 1])
                ready[total - 1, 11] = found[product, 0]
    begin[products] = total
    return listed[:total].copy(), begin, steps[:taken].copy(), floors, ready[:total].copy()


@njit(cache=True, error_model="numpy")
def choose(
    listed: Real, begin: Ints, steps: Real, floors: Real, ready: Ints, speeds: Real, speed: float, space: float, latency: int,
    prices: Real, tolerance: float, least: Real,
) -> Any:  # fmt: skip
    """Of each product's shortlist the best tiling that fits, at a bandwidth between two of those it was searched at: the columns of
    CHOSEN, not proven where nothing on it is within the tolerance of the least cycles that any tiling can take.

    `speeds` are the bandwidths that a product was searched at, falling, or one that is close to it. `least` are such cycles that
    are known from elsewhere; where the list knows more, it writes it there.
    """
    products = begin.shape[0] - 1
    chosen, cycles = np.zeros((products, CHOSEN), np.int64), np.empty(listed.shape[0])
    for product in range(products):
        above = 0
        while above < speeds.shape[1] - 2 and speeds[product, above + 1] > speed:
            above += 1
        below = min(above + 1, speeds.shape[1] - 1)
        bits = 1 << above | 1 << below
        first, last = begin[product], begin[product + 1]
        floor, best = least[product], np.inf
        if speeds[product, above] >= speed:
            floor = max(floor, floors[product, above])
        if speeds[product, below] <= speed:
            floor = max(floor, floors[product, speeds.shape[1] + below] * speeds[product, below] / speed)
        least[product] = floor
        for entry in range(first, last):
            cycles[entry] = np.inf
            if int(listed[entry, ENTRY]) & bits and listed[entry, ENTRY + 3] <= space:
                one, other = int(listed[entry, ENTRY + 1]), int(listed[entry, ENTRY + 2])
                cycles[entry] = cycles_of_steps(steps[one:other], other - one, speed, latency)
                best = min(best, cycles[entry])
        proven = int(best <= floor * (1.0 + tolerance))
        limit, traffic, good, choice = best * (1.0 + tolerance) / slack_of(tolerance), np.inf, 0, -1
        if proven:
            limit = min(limit, floor * (1.0 + tolerance))
        for entry in range(first, last):
            if cycles[entry] <= limit:
                traffic = min(traffic, listed[entry, 1])
        for entry in range(first, last):
            if cycles[entry] <= limit and listed[entry, 1] <= traffic * (1.0 + tolerance):
                good, choice = good + 1, entry
        if good > 1:  # of those that are equal in time and traffic the one with the least energy
            own, choice = (np.inf, np.inf, np.inf), -1
            for entry in range(first, last):
                if cycles[entry] <= limit and listed[entry, 1] <= traffic * (1.0 + tolerance):
                    energy = 0.0
                    for price in range(PRICES):
                        energy += prices[price] * listed[entry, ENTRY + 4 + price]
                    this = energy, listed[entry, 1], cycles[entry]
                    if choice < 0 or this < own:
                        own, choice = this, entry
        if choice >= 0:
            chosen[product] = ready[choice]
            chosen[product, 4], chosen[product, 6] = int(cycles[choice]), proven
    return chosen


@njit(cache=True, error_model="numpy")
def least_in(rows: Ints, column: int) -> int:
    """The least number in a column of CHOSEN; 1 where there are no rows."""
    least = rows[0, column] if rows.shape[0] else 1
    for row in range(rows.shape[0]):
        least = min(least, rows[row, column])
    return least
