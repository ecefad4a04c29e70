"""Compiled: lower bounds for ranges of tile sizes (cells), from their least and their largest sizes.

A step takes the longer of its compute and its transfers, so the sum of all steps takes at least all compute, and at least all
transfers. It takes more where transfers are uneven: the tensor without the inner loop moves in one step of each run of that loop
alone, and what does not fit into that step's compute is waited for. With `share` the part of all compute that falls into such steps
at most, and `other` the part of the other transfers that falls into them at least, the steps take at least

    the rare transfers + other * the other transfers + (1 - share) * all compute.

Tensors that are kept move in some steps alone, too: in one of the middle loop's runs, or of the outer loop's (`_uneven`). The same
holds for the steps of several such sets together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_bounds import BELOW, KEPT_MIDDLE, totals_of, value_of, without
from trainyard.kernels.mapping.tile_cycles import IDEAL, cycles_of, least_busy, least_edge
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real

EXTENT, LOW, HIGH, COUNT, SHARE, IDLE, HELD, FILLED, EDGE, BUSY, LATE, SEPARATE = range(12)
KNOWN_ROWS, WIDE = 12, 30.0
"""Rows of what is known of a cell. By axis: the dimension, least and largest sizes, tiles at least, the share of compute that
falls to one index at most, idle cycles of the DRAM if this is the inner loop. By tensor: bytes of an element in the scratchpad, of
the first fill and the last drain. By axis the size of the last tile at least. Then compute cycles at least: of the product, of its
first and of its last step. By axis the share of compute that falls to its last index at most. Then whether compute is a product of
factors by axis. Where the sizes of a cell differ by more than WIDE, shares and ends are not looked at."""


@njit(cache=True, error_model="numpy")
def _grain(axis: int, lm: float, ln: float, lk: float, forms: Ints) -> float:
    """Compute of a tile of s elements along an axis is at least s / (t + grain) of that of a larger one, of t elements."""
    grain = 0.0
    for index in range(forms.shape[0]):
        form = forms[index]
        if form[7] == IDEAL:
            own = form[8] / (ln * lk if axis == 0 else (lm * lk if axis == 1 else lm * ln)) + 1.0
        elif form[7] > 0:
            across, streamed = (1, 0) if form[3] == 0 else (0, 1)
            if axis == streamed:
                own = 1.0
            else:
                others = lk if axis == across else (ln if across == 1 else lm)
                own = float(form[7] + form[8]) * 1048576.0 / (others * max(form[9], 1)) + 2.0 + (form[2] if axis == 2 else 0)
        elif form[5] > form[4]:
            return np.inf
        else:
            own = float(form[axis]) * (1.0 + form[6] if form[6] > 1 and axis != form[3] else 1.0)
        grain = max(grain, own)
    return grain


@njit(cache=True, error_model="numpy", inline="always")
def _share(extent: float, high: float, count: float, grain: float) -> float:
    """The part of all compute that falls to one index of a loop, at most: each run has count - 1 full tiles."""
    share = min(1.0, (high + grain) / extent)
    return min(share, 1.0 / (count - 1.0)) if count > 2.0 else share


@njit(cache=True, error_model="numpy", inline="always")
def _fold_share(axis: int, extent: float, largest: float, low: float, edge: float, count: float, form: Ints) -> float:
    """The same where an array takes the same time for each of its folds: from whole folds, of an index with `largest` elements at
    most; the others have `low` at least, the last one `edge`."""
    folds, least = np.ceil(np.floor(largest / BELOW) / form[axis]), np.ceil(extent / form[axis])
    if axis == form[3]:
        return float((form[4] + folds) / (least + count * form[4]))
    return float(folds / max(least, (count - 1.0) * np.ceil(low / form[axis]) + np.ceil(edge / form[axis])))


@njit(cache=True, error_model="numpy", inline="always")
def _second(cell: Real, axis: int) -> float:
    """The part of a dimension that falls to the second index of its loop, at least."""
    low, extent = cell[LOW, axis], cell[EXTENT, axis]
    return float((low if cell[COUNT, axis] > 2.0 else max(0.0, min(low, extent - cell[HIGH, axis]))) / extent)


@njit(cache=True, error_model="numpy", inline="always")
def _uneven(
    x: int, y: int, z: int, whole: bool, moves_last: float, many: float, cell: Real, totals: Real, busy: float, cycle: float,
    burst: float,
) -> float:  # fmt: skip
    """Cycles at least of the loops x, y, z (outer to inner) where the tensor without y is kept over y, and the last one, without x,
    moves `moves_last` bytes: in one index of x if it is kept `whole`.

    Each tensor moves in some steps alone. Without z: an operand in the last index of z, for the run that follows; finished sums in
    the first index of the next run. Without y: an operand in the first index of y (and in the last step of the run before), sums in
    the last one (and in the first step of the run after). Without x, if it is kept: in the first or the last index of x. In the
    union of some of these sets of steps all bytes of their tensors move, a part of the others, and outside of it what is left is
    computed. Where compute is a product of factors by axis (SEPARATE), so is the part that is left outside.
    """
    last, again, stays = without(x), without(y), without(z)
    a, b, c, sums = totals[stays], totals[again], moves_last, stays == 2
    apart, fill, drain = cell[SEPARATE, 0] > 0.0, cell[FILLED, 0] + cell[FILLED, 1], cell[FILLED, 2]
    out_z = cell[SHARE, z] if sums else cell[LATE, z]
    out_y = cell[LATE, y] if again == 2 and many == 1.0 and cell[LOW, x] >= cell[EXTENT, x] else cell[SHARE, y]
    # parts of the other tensors: whole tiles are loaded for the first index, and stored after the last but one
    part_z = _second(cell, z) if sums else cell[LOW, z] / cell[EXTENT, z]
    part_y = cell[LOW, y] / cell[EXTENT, y] if again != 2 else 0.0
    full_z = part_z if last != 2 or cell[COUNT, z] > 1.0 else 0.0
    runs = burst * (cell[COUNT, x] * cell[COUNT, y] * many - 1.0) if not sums or totals[2] > 0.0 else 0.0
    ends = fill if sums else drain
    also = b if again != 2 or cell[COUNT, z] > 1.0 else 0.0
    longest = (a + part_z * also + full_z * c + ends) * cycle + runs + (1.0 - out_z) * busy
    if sums and cell[COUNT, z] > 1.0:  # in the last index of z whole tiles are loaded for the first one
        longest = max(longest, (cell[LOW, z] / cell[EXTENT, z] * (b + c) + drain) * cycle + (1.0 - cell[LATE, z]) * busy)
    loads = (0.0 if sums else a) + (0.0 if last == 2 else c)
    longest = max(longest, (b + part_y * loads + (fill if again == 2 else drain)) * cycle + (1.0 - out_y) * busy)
    rest = (1.0 - out_y) * (1.0 - out_z) if apart else 1.0 - out_y - out_z
    part = full_z if last == 2 else part_y + part_z - part_y * part_z
    longest = max(longest, (a + b + part * c + (drain if last == 2 else 0.0)) * cycle + runs + rest * busy)
    if whole:
        out_x = cell[LATE, x] if last == 2 and many == 1.0 else cell[SHARE, x]
        part_x = cell[LOW, x] / cell[EXTENT, x] if last != 2 else 0.0
        loads = (0.0 if sums else a) + (0.0 if again == 2 else b)
        longest = max(longest, (c + part_x * loads + (fill if last == 2 else drain)) * cycle + (1.0 - out_x) * busy)
        rest_z = (1.0 - out_x) * (1.0 - out_z) if apart else 1.0 - out_x - out_z
        part = (part_z if cell[COUNT, z] > 1.0 else 0.0) if again == 2 else part_x + part_z - part_x * part_z
        longest = max(longest, (a + c + part * b + (drain if again == 2 else 0.0)) * cycle + runs + rest_z * busy)
        rest_y = (1.0 - out_x) * (1.0 - out_y) if apart else 1.0 - out_x - out_y
        part = 0.0 if sums else part_x + part_y - part_x * part_y
        longest = max(longest, (b + c + part * a + (drain if sums else 0.0)) * cycle + rest_y * busy)
        rest = (1.0 - out_x) * rest if apart else rest - out_x
        longest = max(longest, (a + b + c) * cycle + runs + rest * busy)
    return float(longest)


@njit(cache=True, error_model="numpy", inline="always")
def _rare(axis: int, rare: float, others: float, runs: float, cell: Real, busy: float, cycle: float, burst: float) -> float:
    """Cycles at least where the innermost loop of several tiles is that of `axis`, and so `rare` bytes move in one step of each of
    its `runs` alone; `others` are the bytes of the two other tensors."""
    if axis == 2:  # finished sums leave in the first step of the next run; the first fill is in no step
        moved, outside = rare + _second(cell, axis) * others + cell[FILLED, 0] + cell[FILLED, 1], 1.0 - cell[SHARE, axis]
        whole = cell[LOW, axis] / cell[EXTENT, axis] * others + cell[FILLED, 2]  # loaded in the last step for the next run
        if whole * cycle + (1.0 - cell[LATE, axis]) * busy > moved * cycle + outside * busy:
            moved, outside = whole, 1.0 - cell[LATE, axis]
    else:
        moved, outside = rare + cell[LOW, axis] / cell[EXTENT, axis] * others + cell[FILLED, 2], 1.0 - cell[LATE, axis]
    return float(moved * cycle + outside * busy + burst * (runs - 1.0))


@njit(cache=True, error_model="numpy")
def _order_bound(
    order: int, choices: int, cell: Real, totals: Real, room: float, cycle: float, burst: float, busy: float, loads_once: float,
    many: float, limit: float,
) -> tuple[float, float, int]:  # fmt: skip
    """The fewest cycles and bytes of an order; `choices` are bits of how many tensors may be kept: none, one, two. The last result
    are those of them that fit and take fewer cycles than `limit`.

    `loads_once` are the bursts at least of moving everything once, `many` the products.
    """
    x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
    last, again, stays = without(x), without(y), without(z)  # read again in all steps of a loop; the last one is not
    d0, d1, d2 = cell[EXTENT, x], cell[EXTENT, y], cell[EXTENT, z]
    low0, low1, low2 = cell[LOW, x], cell[LOW, y], cell[LOW, z]
    c0, c1, c2 = cell[COUNT, x], cell[COUNT, y], cell[COUNT, z]
    tile, held_again, held_last = low0 * low1 * cell[HELD, stays], cell[HELD, again], cell[HELD, last]
    once, twice, everything = totals[3 + again], totals[3 + last], totals[0] + totals[1] + totals[2]
    idle = cell[IDLE, z] if c2 > 1.0 else (cell[IDLE, y] if c1 > 1.0 else cell[IDLE, x])
    alone, best, least = busy + (cell[FILLED, 0] + cell[FILLED, 1] + cell[FILLED, 2]) * cycle + burst, np.inf, np.inf
    panel, left = low0 * d2 * held_again, 0
    if choices & 4 and tile + panel + d1 * d2 * held_last <= room:
        longest = _uneven(x, y, z, c0 > 1.0, totals[last], many, cell, totals, busy, cycle, burst)
        own = max(alone, everything * cycle + burst * loads_once + idle, longest * BELOW)
        if own < limit:
            best, least, left = own, everything, 4
    loads = c0 * c1 * c2 * many  # in each step something moves, if finished sums do
    if order >= 4 and totals[2] == 0.0:
        loads = ((c0 - 1.0) * c1 * c2 + min(c1, c2)) * many  # unfinished sums come back
    if choices & 2 and tile + panel + low1 * low2 * held_last <= room:
        largest = min(cell[HIGH, x], (room - low1 * low2 * held_last) / (low1 * cell[HELD, stays] + d2 * held_again) / BELOW)
        moved = everything + ((np.ceil(d0 / largest * BELOW) - 1.0) * twice if c1 > 1.0 or c2 > 1.0 else 0.0)
        moves_last = moved - totals[stays] - totals[again]
        waits = _uneven(x, y, z, False, moves_last, many, cell, totals, busy, cycle, burst)
        own = max(alone, moved * cycle + burst * loads + idle, waits * BELOW)
        if own < limit:
            best, least, left = min(best, own), min(least, moved), left | 2
    if choices & 1:
        moved, waits = 0.0, 0.0
        if c2 > 1.0:
            free, high0, high1 = room - low0 * low2 * held_again - low1 * low2 * held_last, cell[HIGH, x], cell[HIGH, y]
            moved = (c1 - 1.0) * once + (c0 - 1.0) * twice
            if high0 * high1 * cell[HELD, stays] > free:  # both cannot be that large: the best trade-off between them
                area = free / cell[HELD, stays]
                long = min(max(np.sqrt(twice * d0 * area / max(once * d1, 1e-300)), area / high1), high0)
                moved = max(moved, (once * (d1 * long / area - 1.0) + twice * (d0 / long - 1.0)) * BELOW)
            waits = _rare(z, totals[stays], totals[again] + totals[last] + moved, c0 * c1 * many, cell, busy, cycle, burst)
        elif c1 > 1.0:
            moved = (c0 - 1.0) * twice
            waits = _rare(y, totals[again], totals[stays] + totals[last] + moved, c0 * many, cell, busy, cycle, burst)
        moved += everything
        own = max(alone, moved * cycle + burst * loads + idle, waits * BELOW)
        if own < limit:
            best, least, left = min(best, own), min(least, moved), left | 1
    return best, least, left


@njit(cache=True, error_model="numpy")
def _idle(cell: Real, rates: Real, room: float, cycle: float, burst: float) -> None:
    """Cycles in which the first step computes and nothing is moved, and the same of the last step, by the loop that runs inside
    of all others: the first step only reads what its neighbour needs, and the last one only writes what its neighbour left."""
    hm, hn, hk, first, last = cell[HIGH, 0], cell[HIGH, 1], cell[HIGH, 2], cell[BUSY, 1], cell[BUSY, 2]
    left = min(hm * hk, room / rates[4]) * rates[0] * cycle if rates[4] > 0.0 else hm * hk * rates[0] * cycle
    right = min(hk * hn, room / rates[5]) * rates[1] * cycle if rates[5] > 0.0 else hk * hn * rates[1] * cycle
    out = min(hm * hn, room / rates[3]) * max(rates[2], rates[3]) * cycle if rates[3] > 0.0 else hm * hn * rates[2] * cycle
    burst += 1.0
    stored = max(0.0, last - out - burst)
    cell[IDLE, 0], cell[IDLE, 1] = max(0.0, first - left - burst) + stored, max(0.0, first - right - burst) + stored
    cell[IDLE, 2] = max(0.0, first - left - right - burst) + last


@njit(cache=True, error_model="numpy", inline="always")
def _side(low: float, high: float, own: float, beside: float, across: float, room: float) -> float:
    """The largest volume of a tile with one side in a range, the two others free: tiles of the two tensors with that side take
    `own` and `beside` bytes an element, the third one `across`.

    With the side s, the two others are best where their tensors take the same room u: across * u ** 2 / (own * beside) + 2 s u.
    """
    even = own * beside / across
    side = min(max(np.sqrt(room / (3.0 * even)), low), high)
    room_each = even * (np.sqrt(side * side + room / even) - side)
    return float(side * room_each * room_each / (own * beside))


@njit(cache=True, error_model="numpy")
def _largest(
    lm: float, ln: float, lk: float, hm: float, hn: float, hk: float, a: float, b: float, c: float, room: float
) -> float:  # fmt: skip
    """The most multiplications of a tile whose tensors fit: no side is larger than it may be, and large sides cost room."""
    volume = hm * hn * hk
    if a <= 0.0 or b <= 0.0 or c <= 0.0 or hm * hk * a + hk * hn * b + hm * hn * c <= room:
        return volume
    volume = min(volume, _side(lm, hm, a, c, b, room))
    volume = min(volume, _side(ln, hn, b, c, a, room))
    return float(min(volume, _side(lk, hk, a, b, c, room)))


@njit(cache=True, error_model="numpy")
def know(
    lm: float, ln: float, lk: float, hm: float, hn: float, hk: float, dims: Ints, rates: Real, forms: Ints, room: float,
    limit: float, cell: Real,
) -> bool:  # fmt: skip
    """Writes what is known of a cell whatever the bandwidth, from its least and its largest sizes; false where nothing fits, or
    where compute alone takes `limit` cycles."""
    a, b, c = rates[4], rates[5], rates[3]
    if lm * lk * a + lk * ln * b + lm * ln * c > room:
        return False
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
    tiles = float(dims[0]) * dims[1] * dims[2] / _largest(lm, ln, lk, hm, hn, hk, a, b, c, room)
    cell[BUSY, 0] = least_busy(dims, lm, ln, lk, hm, hn, hk, tiles * BELOW, forms) * dims[3] * BELOW
    if cell[BUSY, 0] >= limit:
        return False
    cell[LOW, 0], cell[LOW, 1], cell[LOW, 2] = lm, ln, lk
    cell[HIGH, 0], cell[HIGH, 1], cell[HIGH, 2] = hm, hn, hk
    for axis in range(3):
        cell[EXTENT, axis] = dims[axis]
        cell[COUNT, axis] = np.ceil(dims[axis] / cell[HIGH, axis] * BELOW)
        cell[EDGE, axis] = least_edge(cell[EXTENT, axis], cell[LOW, axis], cell[HIGH, axis], cell[COUNT, axis])
        cell[SHARE, axis], cell[LATE, axis] = 1.0, 1.0
    cell[HELD, 0], cell[HELD, 1], cell[HELD, 2] = a, b, c
    cell[FILLED, 0], cell[FILLED, 1] = lk * lm * rates[0], lk * ln * rates[1]
    cell[FILLED, 2] = cell[EDGE, 0] * cell[EDGE, 1] * rates[2]
    cell[BUSY, 1], cell[BUSY, 2] = 0.0, 0.0
    alike = forms.shape[0] == 1 and forms[0, 7] == 0 and forms[0, 5] < 0 and forms[0, 6] <= 1
    cell[SEPARATE, 0] = 1.0 if alike else 0.0
    if cell[COUNT, 0] * cell[COUNT, 1] * cell[COUNT, 2] > 1.0 and hm * hn * hk < WIDE * lm * ln * lk:
        for axis in range(3):
            if cell[COUNT, axis] > 1.0:
                grain = _grain(axis, lm, ln, lk, forms)
                cell[SHARE, axis] = _share(dims[axis], cell[HIGH, axis], cell[COUNT, axis], grain)
                cell[LATE, axis] = cell[SHARE, axis]
                if alike:
                    low, high, edge, count = cell[LOW, axis], cell[HIGH, axis], cell[EDGE, axis], cell[COUNT, axis]
                    own = _fold_share(axis, dims[axis], high, low, edge, count, forms[0])
                    largest = min(high, dims[axis] - (count - 1.0) * low) if np.ceil(dims[axis] / low) == count else high
                    late = _fold_share(axis, dims[axis], largest, low, edge, count, forms[0])
                    cell[SHARE, axis] = min(cell[SHARE, axis], own)
                    cell[LATE, axis] = min(cell[LATE, axis], late)
        cell[BUSY, 1] = cycles_of(int(lm), int(ln), int(lk), forms)
        cell[BUSY, 2] = cycles_of(int(cell[EDGE, 0]), int(cell[EDGE, 1]), int(cell[EDGE, 2]), forms)
    return True


@njit(cache=True, error_model="numpy")
def bound_at(
    cycle: float, dims: Ints, rates: Real, totals: Real, ways: int, room: float, burst: float, objective: int, joules: Real,
    limit: float, cell: Real,
) -> tuple[float, float, int]:  # fmt: skip
    """Lower bounds of value and traffic of a cell of which all is known; a byte takes `cycle` cycles, a burst `burst` more.

    `ways` has a bit for each order and what is kept in it (KEPT_MIDDLE). The last result are those that are left: they fit and take
    fewer cycles than `limit`; the bounds are theirs.
    """
    cm, cn, ck, count = cell[COUNT, 0], cell[COUNT, 1], cell[COUNT, 2], float(dims[3])
    _idle(cell, rates, room, cycle, burst)
    once = max(cm * ck, cn * ck, cm * cn if totals[2] > 0.0 else 0.0) * count
    cycles, moved, left = np.inf, np.inf, 0
    for order in range(6):
        choices = ways >> order & 1 | (ways >> order + KEPT_MIDDLE & 1) << 1 | (ways >> order + 2 * KEPT_MIDDLE & 1) << 2
        if choices:
            own, least, kept = _order_bound(order, choices, cell, totals, room, cycle, burst, cell[BUSY, 0], once, count, limit)
            cycles, moved = min(cycles, own), min(moved, least)
            left |= ((kept & 1) | (kept >> 1 & 1) << KEPT_MIDDLE | (kept >> 2) << 2 * KEPT_MIDDLE) << order
    return value_of(objective, cycles, moved, joules) if left else np.inf, moved, left


@njit(cache=True, error_model="numpy")
def tile_bounds(
    dims: Ints, rates: Real, tiles: Ints, allowed: int, forms: Ints, supply: Real, latency: int, objective: int, joules: Real
) -> Any:  # fmt: skip
    """For each of many tiles a lower bound on its value in any order; infinite where it does not fit."""
    totals, least, cell = np.empty(6), np.full(tiles.shape[0], np.inf), np.empty((KNOWN_ROWS, 3))
    totals_of(dims, rates, totals)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    for tile in range(tiles.shape[0]):
        m, n, k = float(tiles[tile, 0]), float(tiles[tile, 1]), float(tiles[tile, 2])
        if know(m, n, k, m, n, k, dims, rates, forms, supply[1], np.inf, cell):
            least[tile], _, _ = bound_at(
                BELOW / supply[0], dims, rates, totals, allowed, supply[1], burst, objective, joules, np.inf, cell
            )  # fmt: skip
    return least
