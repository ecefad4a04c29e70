"""Compiled: the best tile, loop order and resident tensors of a product, found by branch and bound.

The space: the useful sizes of each axis (`tile_sizes`), six loop orders, and what stays in the scratchpad (`tile_bounds`).

A *cell* is a range of sizes along each axis. Its lower bound takes the fewest tiles that the largest sizes and the room allow, in
the best order: cycles of the array, bytes over the DRAM, the first fill. Cells are split until they are single tiles, which are
evaluated exactly in all orders (`tiles.tiled_cycles`); a cell is dropped when its bound shows that it holds nothing better by more
than SLACK, and no tiling with less traffic among those within the tolerance, and, of those within the tolerance of the least
traffic, none with less energy (`tile_energy`). So what is chosen is proven to be within the tolerance of the best of the space, and
the search says if it had to stop before (`effort`).

Between two useful sizes lie others of the same count of tiles: the last step moves the best tile's sizes along each axis as long as
that helps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_bounds import (
    BELOW,
    EVERYTHING,
    HALO,
    KEPT_MIDDLE,
    moved_bytes,
    needed_bytes,
    passes_of,
    spans_of,
    totals_of,
    value_of,
    without,
)
from trainyard.kernels.mapping.cell_bounds import bound_of
from trainyard.kernels.mapping.tile_cycles import kinds_of, least_busy
from trainyard.kernels.mapping.tile_energy import MOVED, array_joules, least_joules
from trainyard.kernels.mapping.tile_front import ENTRY, FRONT, offer, pick, standing
from trainyard.kernels.mapping.tile_sizes import ALL_BELOW, CLOSEST, most_sizes, useful_sizes
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, tiled_cycles, transfer

CHOSEN = 12
"""Columns of a result: m, n, k, order, cycles, compute cycles, whether it is proven, passes of A, B and sums, keep, cells split."""
MOST_CYCLES = 2**53
"""The most cycles that are counted: sums stay exact as floats, and far below 2**63."""
NOTHING_FITS, TOO_LONG = -1, -2
"""Cycles of a product that has no tile, and of one that no tile brings below MOST_CYCLES."""
MOST_INTEGER = 2**63 - 1
ABOVE = 1.0 + 1e-9
"""Factor that keeps an estimate from refusing in spite of rounding."""
SLACK = 1.005
"""A cell that cannot beat the best by this factor is not split further: half of the default tolerance."""
CELLS = 2048
"""Cells that wait at most: a split adds one, and ranges are halved."""
NEARLY, SAVING = 1.01, 1.05
"""Bytes, and joules, within these factors are not worth a search."""
MOST_CELLS = 4000
"""Cells that are split at most unless `effort` says otherwise; few products need a tenth of them."""
RETURN = 16
"""After so many splits the search returns to the cell with the least bound."""
KNOWN = 32
"""Dimensions of an axis whose useful sizes are kept while many products are searched."""


@njit(cache=True, error_model="numpy", inline="always")
def _keep_bits(order: Ints, kept: int) -> int:
    bits = 0
    if kept >= 1:
        bits |= 1 << without(order[1])
    if kept == 2:
        bits |= 1 << without(order[0])
    return bits


@njit(cache=True, error_model="numpy", inline="always")
def _cut(tile: Ints, axis: int, extent: int, size: int) -> None:
    count = (extent + size - 1) // size
    tile[axis, 0], tile[axis, 1], tile[axis, 2] = size, count, extent - (count - 1) * size


@njit(cache=True, error_model="numpy")
def _roots(lengths: Ints, whole: Ints, cells: Ints) -> int:
    """Cells that cover the space: along each axis the whole dimension in one tile, or several tiles."""
    count = 0
    for which in range(8):
        exists = True
        for axis in range(3):
            one = which >> axis & 1
            last = lengths[axis] - 1
            cells[count, 2 * axis], cells[count, 2 * axis + 1] = (last, last) if one else (0, last - whole[axis])
            exists = exists and (bool(whole[axis]) if one else last - whole[axis] >= 0)
        count += int(exists)
    return count


@njit(cache=True, error_model="numpy")
def _leaf(
    m: int, n: int, k: int, dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, supply: Real, latency: int,
    objective: int, joules: Real, prices: Real, band: float, tolerance: float, allowed: int, front: Real, entries: int, best: float,
    traffic: float, energy: float, room: Ints, spans: Real, kinds: Ints,
) -> int:  # fmt: skip
    """Evaluates one tile in all orders, with all choices of what is kept."""
    tile, passes, held = room[0:3], room[3], np.empty(3)
    _cut(tile, 0, dims[0], m)
    _cut(tile, 1, dims[1], n)
    _cut(tile, 2, dims[2], k)
    compute, most = kinds_of(tile, forms, kinds) * dims[3], MOST_INTEGER
    if compute >= MOST_CYCLES:
        return entries
    spans_of(tile, halo, spans)
    ends = float(transfer(spans[0, 0] * spans[1, 0] * rates[0] + float(k * n) * rates[1], supply[0], latency))
    ends += transfer(spans[2, 1] * tile[1, 2] * rates[2], supply[0], latency)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    out = max(spans[2, 0] * rates[2], m * rates[3]) * n  # while the last tile is computed, only sums of the one before leave
    late = max(0.0, float(kinds[1, 1, 1] - transfer(out, supply[0], latency)))
    held[0], held[1], held[2] = spans[0, 0] * spans[1, 0] * rates[4], float(k * n) * rates[5], float(m * n) * rates[3]
    passes[0], passes[1], passes[2] = 1, 1, 1
    once = moved_bytes(tile, spans, passes, totals, halo)
    passes[0] = 2
    again_a = moved_bytes(tile, spans, passes, totals, halo) - once  # with its halo
    on_chip = array_joules(tile, dims, rates, forms, prices, compute)
    for kept in range(2, -1, -1):
        for order in range(6):
            if not allowed >> (order + KEPT_MIDDLE * kept) & 1:
                continue
            x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
            outer, middle, inner = tile[x, 1], tile[y, 1], tile[z, 1]
            if kept and allowed == EVERYTHING and (inner == 1 or (outer == 1 and kept == 2)):
                continue  # the same as with less kept
            if allowed == EVERYTHING and ((outer == 1 and middle > 1) or (middle == 1 and inner > 1)) and kept == 0:
                continue  # a loop of one step may stand anywhere: it stands inside
            again, last = without(y), without(x)
            needed = held[0] + held[1] + held[2]
            if kept:
                needed += held[again] * (float(dims[z]) / float(tile[z, 0]) - 1.0)
            if kept == 2:
                whole = float(dims[y]) * dims[z] * (rates[4] if last == 0 else (rates[5] if last == 1 else rates[3]))
                needed += whole - held[last]
            if needed > supply[1] * ABOVE:
                continue
            moved = once
            if kept == 0 and inner > 1:
                moved += (middle - 1) * (again_a if again == 0 else totals[3 + again])
            if kept < 2 and (inner > 1 or middle > 1):
                moved += (outer - 1) * (again_a if last == 0 else totals[3 + last])
            if entries:
                likely, loads = compute + ends, float(outer * middle * inner)
                if kept == 0:
                    likely += _stalls(tile, z, dims[3], rates, supply[0], latency, kinds)
                elif kept == 2:
                    loads = float(max(tile[0, 1], tile[1, 1]) * tile[2, 1])
                elif order >= 4:
                    loads -= float((inner - 1) * middle)
                transfers = moved / supply[0] * BELOW + burst * loads * dims[3] + late
                least = value_of(objective, max(likely, transfers), moved, joules)
                spares = moved <= traffic * (1.0 + tolerance) and on_chip + prices[MOVED] * moved < energy
                if least > best * band or (least * SLACK >= best and moved >= traffic and not spares):
                    continue
                if objective == 0:
                    most = int(best * band)
            keep = _keep_bits(ORDERS[order], kept)
            if (kept or halo[HALO] > 0.0) and needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > supply[1]:
                continue
            passes_of(tile[:, 1], ORDERS[order], keep, passes)
            moved = moved_bytes(tile, spans, passes, totals, halo)
            cycles = tiled_cycles(tile, spans, ORDERS[order], keep, dims[3], rates, supply[0], latency, kinds, most)
            if cycles < MOST_CYCLES and cycles <= most:
                value = value_of(objective, float(cycles), moved, joules)
                spent = on_chip + prices[MOVED] * moved
                entries = offer(front, entries, value, moved, spent, cycles, tile, order, keep, band, tolerance)
                best, traffic, energy = standing(front, entries, band, tolerance)
    return entries


@njit(cache=True, error_model="numpy")
def _stalls(tile: Ints, inner: int, count: int, rates: Real, speed: float, latency: int, kinds: Ints) -> float:
    """A lower bound on the stall cycles of the inner loop: between two full tiles, the loads of the second one."""
    if tile[0, 1] == 1 or tile[1, 1] == 1 or tile[2, 1] == 1:
        return 0.0
    m, n, k = float(tile[0, 0]), float(tile[1, 0]), float(tile[2, 0])
    load = (0.0 if inner == 1 else m * k * rates[0]) + (0.0 if inner == 0 else k * n * rates[1])
    waits = float(transfer(load, speed, latency) - kinds[0, 0, 0])
    if waits <= 0.0:
        return 0.0
    many = float(count)
    for axis in range(3):
        full = tile[axis, 1] if tile[axis, 2] == tile[axis, 0] else tile[axis, 1] - 1
        many *= max(0, full - 1 if axis == inner else full)
    return many * waits


@njit(cache=True, error_model="numpy")
def _polish(
    dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, fixed: Ints, supply: Real, latency: int, objective: int,
    joules: Real, prices: Real, band: float, tolerance: float, front: Real, entries: int, room: Ints, spans: Real, kinds: Ints,
) -> int:  # fmt: skip
    """Moves the sizes of the best tilings along each axis, in steps that shrink, as long as one gets better.

    First the one of least value; then the one with the least traffic within the tolerance, if it is another one; then the choice.
    """
    tile, passes, sizes = room[0:3], room[3], room[4]
    for goal in range(3):
        start = pick(front, entries, band if goal else 1.0, tolerance if goal == 2 else 0.0)
        order, keep, value, traffic = int(front[start, 6]), int(front[start, 7]), front[start, 0], front[start, 1]
        energy = front[start, 8]
        for axis in range(3):
            sizes[axis] = int(front[start, 3 + axis])
        for axis in range(3):
            if fixed[axis] > 0 or dims[axis] <= ALL_BELOW:
                continue
            stride = int(max(1, sizes[axis] * (CLOSEST - 1.0)))
            while stride >= 1:
                better = False
                for sign in (1, -1):
                    size = sizes[axis] + sign * stride
                    if size < 1 or size > dims[axis]:
                        continue
                    for other in range(3):
                        _cut(tile, other, dims[other], size if other == axis else sizes[other])
                    spans_of(tile, halo, spans)
                    if needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > supply[1]:
                        continue
                    passes_of(tile[:, 1], ORDERS[order], keep, passes)
                    moved = moved_bytes(tile, spans, passes, totals, halo)
                    compute = kinds_of(tile, forms, kinds) * dims[3]
                    spent = array_joules(tile, dims, rates, forms, prices, compute) + prices[MOVED] * moved
                    if compute >= MOST_CYCLES or (goal == 1 and moved >= traffic) or (goal == 2 and spent >= energy):
                        continue
                    cycles = tiled_cycles(
                        tile, spans, ORDERS[order], keep, dims[3], rates, supply[0], latency, kinds, MOST_INTEGER
                    )  # fmt: skip
                    now = value_of(objective, float(cycles), moved, joules)
                    better = now < value if goal == 0 else now <= value and (goal == 1 or moved <= traffic)
                    if better:
                        sizes[axis], value, traffic, energy = size, now, moved, spent
                        entries = offer(front, entries, now, moved, spent, cycles, tile, order, keep, band, tolerance)
                        break
                if not better:
                    stride //= 2
    return entries


@njit(cache=True, error_model="numpy", inline="always")
def _swap(cells: Ints, bounds: Real, one: int, other: int) -> None:
    for column in range(6):
        cells[one, column], cells[other, column] = cells[other, column], cells[one, column]
    for column in range(2):
        bounds[one, column], bounds[other, column] = bounds[other, column], bounds[one, column]


@njit(cache=True, error_model="numpy")
def _halve(cells: Ints, sizes: Ints, last: int, into: int) -> bool:
    """Splits a cell along the axis whose sizes differ most, at their geometric mean; false where it is a single tile."""
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
    for column in range(6):
        cells[into, column] = cells[last, column]
    cells[last, 2 * widest + 1], cells[into, 2 * widest] = middle, middle + 1
    return True


@njit(cache=True, error_model="numpy")
def _spares(
    sizes: Ints, cell: Ints, moved: float, dims: Ints, rates: Real, forms: Ints, prices: Real, busy: float, energy: float
) -> bool:  # fmt: skip
    """Whether a cell may hold a tiling with notably less energy."""
    counts = np.empty(3)
    for axis in range(3):
        counts[axis] = np.ceil(dims[axis] / sizes[axis, cell[2 * axis + 1]])
    least = least_joules(
        float(sizes[0, cell[0]]), float(sizes[1, cell[2]]), float(sizes[2, cell[4]]), counts[0], counts[1], counts[2], dims, rates,
        forms, prices, busy,
    )  # fmt: skip
    return bool((least + prices[MOVED] * moved) * SAVING < energy)


@njit(cache=True, error_model="numpy")
def best_tile(
    dims: Ints, rates: Real, halo: Real, fixed: Ints, allowed: int, forms: Ints, supply: Real, latency: int, objective: int,
    joules: Real, prices: Real, tolerance: float, effort: int, sizes: Ints, lengths: Ints, cells: Ints, bounds: Real, front: Real,
    chosen: Ints,
) -> None:  # fmt: skip
    """The best tiling of one product. `dims` is M, N, K, count; `fixed` are sizes that are given (0: free); `allowed` has a bit for
    each order and what is kept in it (KEPT_MIDDLE); `supply` is bytes per cycle and resident bytes; `effort` the most cells that
    are split (0: MOST_CELLS). `sizes` are the `lengths` useful sizes of the axes; `cells` and `bounds` are space for CELLS cells.

    `chosen` gets the columns of CHOSEN; cycles are NOTHING_FITS or TOO_LONG where there is no answer.
    """
    whole, totals = np.empty(3, np.int64), np.empty(6)
    for axis in range(3):
        whole[axis] = int(sizes[axis, lengths[axis] - 1] == dims[axis])
    totals_of(dims, rates, totals)
    band = max(1.0, (1.0 + tolerance) / SLACK)
    busy = least_busy(dims, float(dims[0]), float(dims[1]), float(dims[2]), forms) * dims[3]
    entries = 0
    room, spans, kinds = np.empty((5, 3), np.int64), np.empty((3, 2)), np.empty((2, 2, 2), np.int64)
    cycle, space, known = BELOW / supply[0], supply[1], np.empty((9, 3))
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    waiting, split, proven, fits = _roots(lengths, whole, cells), 0, 1, False
    best, traffic, energy = np.inf, np.inf, np.inf
    floor = least_joules(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, dims, rates, forms, prices, busy) + prices[MOVED] * totals[:3].sum()
    fresh = 0  # cells from here on have no bound yet
    while True:
        for cell in range(fresh, waiting):
            bounds[cell, 0], bounds[cell, 1] = bound_of(
                float(sizes[0, cells[cell, 0]]), float(sizes[1, cells[cell, 2]]), float(sizes[2, cells[cell, 4]]),
                float(sizes[0, cells[cell, 1]]), float(sizes[1, cells[cell, 3]]), float(sizes[2, cells[cell, 5]]), dims, rates,
                totals, allowed, forms, space, cycle, burst, objective, joules, known,
            )  # fmt: skip
            for place in range(cell, fresh, -1):  # the best is taken first
                if bounds[place - 1, 0] >= bounds[place, 0]:
                    break
                _swap(cells, bounds, place - 1, place)
        while waiting > 0:  # cells that hold nothing better are dropped
            least = bounds[waiting - 1, 0]
            fits = fits or least < np.inf
            moved = bounds[waiting - 1, 1]
            if least < best * band and least < np.inf and (least * SLACK < best or moved * NEARLY < traffic):
                break
            looks = least < best * band and floor * SAVING < energy and moved <= traffic * (1.0 + tolerance)
            if looks and _spares(sizes, cells[waiting - 1], moved, dims, rates, forms, prices, busy, energy):
                break
            waiting -= 1
        if waiting == 0 or waiting > CELLS - 2 or (split >= (effort if effort > 0 else MOST_CELLS) and entries > 0):
            proven = int(waiting == 0)
            break
        split, last = split + 1, waiting - 1
        if split % RETURN == 0:  # go on with the most promising of all
            likely = last
            for cell in range(last):
                likely = cell if bounds[cell, 0] < bounds[likely, 0] else likely
            _swap(cells, bounds, likely, last)
        if _halve(cells, sizes, last, waiting):
            fresh, waiting = last, waiting + 1
            continue
        waiting, fresh = last, last
        entries = _leaf(
            sizes[0, cells[last, 0]], sizes[1, cells[last, 2]], sizes[2, cells[last, 4]], dims, rates, totals, halo, forms, supply,
            latency, objective, joules, prices, band, tolerance, allowed, front, entries, best, traffic, energy, room, spans, kinds,
        )  # fmt: skip
        best, traffic, energy = standing(front, entries, band, tolerance)
    chosen[4] = TOO_LONG if fits else NOTHING_FITS
    if entries == 0:
        return
    entries = _polish(
        dims, rates, totals, halo, forms, fixed, supply, latency, objective, joules, prices, band, tolerance, front, entries, room,
        spans, kinds,
    )  # fmt: skip
    choice = pick(front, entries, band, tolerance)
    for axis in range(3):
        chosen[axis] = int(front[choice, 3 + axis])
        _cut(room[0:3], axis, dims[axis], chosen[axis])
    chosen[3], chosen[4] = int(front[choice, 6]), int(front[choice, 2])
    chosen[5] = int(kinds_of(room[0:3], forms, kinds) * dims[3])
    chosen[6] = proven
    passes_of(room[0:3, 1], ORDERS[chosen[3]], int(front[choice, 7]), chosen[7:10])
    chosen[10], chosen[11] = int(front[choice, 7]), split


@njit(cache=True, error_model="numpy")
def best_tiles(
    dims: Ints, rates: Real, halos: Real, folds: Ints, fixed: Ints, allowed: Ints, forms: Ints, supply: Real, latency: int,
    objective: int, joules: Real, prices: Real, tolerance: float, effort: int,
) -> Any:  # fmt: skip
    """`best_tile` of many products at once; they share the useful sizes of equal dimensions."""
    chosen, front = np.zeros((dims.shape[0], CHOSEN), np.int64), np.empty((FRONT, ENTRY))
    cells, bounds = np.empty((CELLS, 6), np.int64), np.empty((CELLS, 2))
    longest = 0
    for product in range(dims.shape[0]):
        for axis in range(3):
            longest = max(longest, dims[product, axis])
    sizes, lengths = np.empty((3, most_sizes(longest, folds.shape[1])), np.int64), np.zeros(3, np.int64)
    known, places = np.zeros((3, KNOWN), np.int64), np.zeros((3, KNOWN), np.int64)
    menus = np.empty((3, KNOWN, sizes.shape[1]), np.int64)
    for product in range(dims.shape[0]):
        for axis in range(3):
            extent = dims[product, axis]
            if fixed[product, axis] > 0:
                sizes[axis, 0], lengths[axis] = min(fixed[product, axis], extent), 1
                continue
            slot = 0
            while slot < KNOWN - 1 and known[axis, slot] != extent and known[axis, slot] != 0:
                slot += 1
            if known[axis, slot] != extent:
                known[axis, slot] = extent
                places[axis, slot] = useful_sizes(extent, folds[axis], menus[axis, slot])
            lengths[axis] = places[axis, slot]
            for index in range(lengths[axis]):
                sizes[axis, index] = menus[axis, slot, index]
        best_tile(
            dims[product], rates[product], halos[product], fixed[product], allowed[product], forms, supply, latency,
            objective, joules[product], prices, tolerance, effort, sizes, lengths, cells, bounds, front,
            chosen[product],
        )  # fmt: skip
    return chosen


@njit(cache=True, error_model="numpy")
def tile_bounds(
    dims: Ints, rates: Real, tiles: Ints, allowed: int, forms: Ints, supply: Real, latency: int, objective: int, joules: Real
) -> Any:  # fmt: skip
    """For each of many tiles a lower bound on its value in any order; infinite where it does not fit."""
    totals, least, known = np.empty(6), np.empty(tiles.shape[0]), np.empty((9, 3))
    totals_of(dims, rates, totals)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    for tile in range(tiles.shape[0]):
        m, n, k = float(tiles[tile, 0]), float(tiles[tile, 1]), float(tiles[tile, 2])
        least[tile], _ = bound_of(
            m, n, k, m, n, k, dims, rates, totals, allowed, forms, supply[1], BELOW / supply[0], burst, objective, joules,
            known,
        )  # fmt: skip
    return least
