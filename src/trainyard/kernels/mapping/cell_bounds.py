"""Compiled: lower bounds for ranges of tile sizes (cells), from their least and their largest sizes.

A step takes the longer of its compute and its transfers, so the sum of all steps takes at least all compute, and at least all
transfers. It takes more where transfers are uneven: the tensor without the inner loop moves in one step of each run of that loop
alone, and what does not fit into that step's compute is waited for. With `share` the part of all compute that falls into such steps
at most, and `other` the part of the other transfers that falls into them at least, the steps take at least

    the rare transfers + other * the other transfers + (1 - share) * all compute.

Tensors that are kept move in some steps alone, too: in one of the middle loop's runs, or of the outer loop's (`_uneven`). The same
holds for the steps of several such sets together.

A search writes what holds for all of a product once (`describe`), then what is known of a cell (`know`), and asks for each loop
order and what is kept in it: bytes and bursts (`way_traffic`), and cycles at a bandwidth (`way_cycles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_bounds import BELOW, KEPT_MIDDLE, totals_of, value_of, without
from trainyard.kernels.mapping.tile_cycles import IDEAL, cycles_of, least_busy
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real
from trainyard.kernels.uncounted import inlined, uncounted

EXTENT, HELD, RATE, ONCE, AGAIN, FOLD, ARRAY, PRODUCT, PER_EXTENT, PER_FOLD, ALL_FOLDS = range(11)
"""Rows of what is known of a product. By axis: the dimension. By tensor: bytes of an element in the scratchpad and over the DRAM's
pins, bytes of moving it once, and of moving it once more. By axis the extent of the array. Then whether the array takes the same
time for each of its folds (`alike`), the cycles of a fold without those of its stream, and the axis that it streams. Then how many
products there are, the bytes of moving all tensors once, and the room in the scratchpad. By axis one over the dimension, one over
the extent of the array, and the folds of the dimension in a single tile."""
LOW, HIGH, COUNT, MOST, EDGE, PART, SECOND, SHARE, LATE, FOLDS, LOW_FOLDS, EDGE_FOLDS, FILLED, BUSY, ENDS = range(11, 26)
"""Rows of what is known of a cell. By axis: least and largest sizes, tiles at least and at most, the size of the last tile at
least, the part of the dimension that falls to one index of its loop and to the second one at least, the share of compute that falls
to one index and to the last one at most; the folds at least of all tiles, of one, and of the last one. By tensor the bytes of the
first fill and the last drain. Then compute cycles at least of the product, whether shares are known (`narrow`), and whether windows
overlap; and those of its first and of its last step."""
OVER = 1.0 / BELOW
"""Factor that keeps an upper bound valid in spite of rounding."""
KNOWN_ROWS, WIDE = 26, 30.0
"""Where the sizes of a cell differ by more than WIDE, shares and ends are not looked at."""


@uncounted
def describe(dims: Ints, rates: Real, totals: Real, overlap: bool, forms: Ints, room: float, cell: Real) -> None:
    """Writes what holds for every cell of a product; `overlap` says whether windows of a convolution are counted apart."""
    alike = forms.shape[0] == 1 and forms[0, 7] == 0 and forms[0, 5] < 0 and forms[0, 6] <= 1
    for axis in range(3):
        cell[EXTENT, axis], cell[ONCE, axis], cell[AGAIN, axis] = dims[axis], totals[axis], totals[3 + axis]
        cell[RATE, axis], cell[FOLD, axis] = rates[axis], forms[0, axis]
        cell[PER_EXTENT, axis], cell[PER_FOLD, axis] = 1.0 / dims[axis], BELOW / max(forms[0, axis], 1)
        cell[ALL_FOLDS, axis] = np.ceil(float(dims[axis]) / max(forms[0, axis], 1))
    cell[HELD, 0], cell[HELD, 1], cell[HELD, 2] = rates[4], rates[5], rates[3]
    cell[ARRAY, 0], cell[ARRAY, 1], cell[ARRAY, 2] = 1.0 if alike else 0.0, forms[0, 4], forms[0, 3]
    cell[PRODUCT, 0], cell[PRODUCT, 1], cell[PRODUCT, 2] = dims[3], totals[0] + totals[1] + totals[2], room
    cell[BUSY, 2] = 1.0 if overlap else 0.0


@uncounted
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
def _share(part: float, high: float, count: float, grain: float) -> float:
    """The part of all compute that falls to one index of a loop, at most: each run has count - 1 full tiles. One element is `part`
    of the dimension."""
    share = min(1.0, (high + grain) * part)
    return min(share, 1.0 / (count - 1.0)) if count > 2.0 else share


@inlined
def _fold_shares(axis: int, cell: Real) -> None:
    """The same where an array takes the same time for each of its folds: from whole folds, of any index and of the last one."""
    extent, low, high, count, side = cell[EXTENT, axis], cell[LOW, axis], cell[HIGH, axis], cell[COUNT, axis], cell[PER_FOLD, axis]
    fixed, streams = cell[ARRAY, 1], axis == int(cell[ARRAY, 2])
    first, total = (fixed, cell[ALL_FOLDS, axis] + count * fixed) if streams else (0.0, cell[FOLDS, axis])
    own = (first + np.ceil(np.floor(high * OVER) * side)) / total
    cell[SHARE, axis] = min(cell[SHARE, axis], own)
    if cell[MOST, axis] == count and extent - (count - 1.0) * low < high:
        own = (first + np.ceil((extent - (count - 1.0) * low) * side)) / total
    cell[LATE, axis] = min(cell[LATE, axis], own)


@inlined
def _uneven(x: int, y: int, z: int, whole: bool, moves_last: float, cell: Real, cycle: float, burst: float) -> float:
    """Cycles at least of the loops x, y, z (outer to inner) where the tensor without y is kept over y, and the last one, without x,
    moves `moves_last` bytes: in one index of x if it is kept `whole`.

    Each tensor moves in some steps alone. Without z: an operand in the last index of z, for the run that follows; finished sums in
    the first index of the next run. Without y: an operand in the first index of y (and in the last step of the run before), sums in
    the last one (and in the first step of the run after). Without x, if it is kept: in the first or the last index of x. In the
    union of some of these sets of steps all bytes of their tensors move, a part of the others, and outside of it what is left is
    computed. Where an array takes the same time for each fold, compute is a product of factors by axis, and so is what is left.
    """
    last, again, stays, busy, many = without(x), without(y), without(z), cell[BUSY, 0], cell[PRODUCT, 0]
    a, b, c, sums = cell[ONCE, stays], cell[ONCE, again], moves_last, stays == 2
    apart, fill, drain = cell[ARRAY, 0] > 0.0, cell[FILLED, 0] + cell[FILLED, 1], cell[FILLED, 2]
    out_z = cell[SHARE, z] if sums else cell[LATE, z]
    out_y = cell[LATE, y] if again == 2 and many == 1.0 and cell[LOW, x] >= cell[EXTENT, x] else cell[SHARE, y]
    # parts of the other tensors: whole tiles are loaded for the first index, and stored after the last but one
    part_z = cell[SECOND, z] if sums else cell[PART, z]
    part_y = cell[PART, y] if again != 2 else 0.0
    full_z = part_z if last != 2 or cell[COUNT, z] > 1.0 else 0.0
    runs = burst * (cell[COUNT, x] * cell[COUNT, y] * many - 1.0) if not sums or cell[ONCE, 2] > 0.0 else 0.0
    ends = fill if sums else drain
    also = b if again != 2 or cell[COUNT, z] > 1.0 else 0.0
    longest = (a + part_z * also + full_z * c + ends) * cycle + runs + (1.0 - out_z) * busy
    if sums and cell[COUNT, z] > 1.0:  # in the last index of z whole tiles are loaded for the first one
        longest = max(longest, (cell[PART, z] * (b + c) + drain) * cycle + (1.0 - cell[LATE, z]) * busy)
    loads = (0.0 if sums else a) + (0.0 if last == 2 else c)
    longest = max(longest, (b + part_y * loads + (fill if again == 2 else drain)) * cycle + (1.0 - out_y) * busy)
    rest = (1.0 - out_y) * (1.0 - out_z) if apart else 1.0 - out_y - out_z
    part = full_z if last == 2 else part_y + part_z - part_y * part_z
    longest = max(longest, (a + b + part * c + (drain if last == 2 else 0.0)) * cycle + runs + rest * busy)
    if whole:
        out_x = cell[LATE, x] if last == 2 and many == 1.0 else cell[SHARE, x]
        part_x = cell[PART, x] if last != 2 else 0.0
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


@inlined
def _rare(axis: int, rare: float, others: float, runs: float, cell: Real, cycle: float, burst: float) -> float:
    """Cycles at least where the innermost loop of several tiles is that of `axis`, and so `rare` bytes move in one step of each of
    its `runs` alone; `others` are the bytes of the two other tensors."""
    busy = cell[BUSY, 0]
    if axis == 2:  # finished sums leave in the first step of the next run; the first fill is in no step
        moved, outside = rare + cell[SECOND, axis] * others + cell[FILLED, 0] + cell[FILLED, 1], 1.0 - cell[SHARE, axis]
        whole = cell[PART, axis] * others + cell[FILLED, 2]  # loaded in the last step for the next run
        if whole * cycle + (1.0 - cell[LATE, axis]) * busy > moved * cycle + outside * busy:
            moved, outside = whole, 1.0 - cell[LATE, axis]
    else:
        moved, outside = rare + cell[PART, axis] * others + cell[FILLED, 2], 1.0 - cell[LATE, axis]
    return float(moved * cycle + outside * busy + burst * (runs - 1.0))


@inlined
def way_traffic(order: int, kept: int, cell: Real) -> tuple[float, float]:
    """The fewest bytes of an order with `kept` of its tensors kept (infinite where they do not fit), and the fewest bursts."""
    x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
    last, again, stays = without(x), without(y), without(z)  # read again in all steps of a loop; the last one is not
    low0, low1, low2 = cell[LOW, x], cell[LOW, y], cell[LOW, z]
    c0, c1, c2 = cell[COUNT, x], cell[COUNT, y], cell[COUNT, z]
    held_stays, held_again, held_last = cell[HELD, stays], cell[HELD, again], cell[HELD, last]
    many, everything, room = cell[PRODUCT, 0], cell[PRODUCT, 1], cell[PRODUCT, 2]
    if kept == 2:
        d1, d2 = cell[EXTENT, y], cell[EXTENT, z]
        if low0 * low1 * held_stays + low0 * d2 * held_again + d1 * d2 * held_last > room:
            return np.inf, 0.0
        cm, cn, ck = cell[COUNT, 0], cell[COUNT, 1], cell[COUNT, 2]
        return everything, max(cm * ck, cn * ck, cm * cn if cell[ONCE, 2] > 0.0 else 0.0) * many
    loads = c0 * c1 * c2 * many  # in each step something moves, if finished sums do
    if order >= 4 and cell[ONCE, 2] == 0.0:
        loads = ((c0 - 1.0) * c1 * c2 + min(c1, c2)) * many  # unfinished sums come back
    once, twice, d0, moved = cell[AGAIN, again], cell[AGAIN, last], cell[EXTENT, x], everything
    if kept == 1:
        d2 = cell[EXTENT, z]
        free = room - low1 * low2 * held_last
        if low0 * low1 * held_stays + low0 * d2 * held_again > free:
            return np.inf, 0.0
        if c1 > 1.0 or c2 > 1.0:
            largest = min(cell[HIGH, x], free / (low1 * held_stays + d2 * held_again) / BELOW)
            moved += (np.ceil(d0 / largest * BELOW) - 1.0) * twice
    elif c2 > 1.0:
        free, high0, high1 = room - low0 * low2 * held_again - low1 * low2 * held_last, cell[HIGH, x], cell[HIGH, y]
        more = (c1 - 1.0) * once + (c0 - 1.0) * twice
        if high0 * high1 * held_stays > free:  # both cannot be that large: the best trade-off between them
            area, d1 = free / held_stays, cell[EXTENT, y]
            long = min(max(np.sqrt(twice * d0 * area / max(once * d1, 1e-300)), area / high1), high0)
            more = max(more, (once * (d1 * long / area - 1.0) + twice * (d0 / long - 1.0)) * BELOW)
        moved += more
    elif c1 > 1.0:
        moved += (c0 - 1.0) * twice
    return moved, loads


@inlined
def way_cycles(order: int, kept: int, moved: float, cell: Real, cycle: float, burst: float) -> float:
    """Cycles at least of an order where transfers are uneven; 0 where the sizes of a cell differ too much to say."""
    if cell[BUSY, 1] == 0.0:
        return 0.0
    x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
    last, again, stays, many = without(x), without(y), without(z), cell[PRODUCT, 0]
    if kept == 2:
        return _uneven(x, y, z, cell[COUNT, x] > 1.0, cell[ONCE, last], cell, cycle, burst) * BELOW
    if kept == 1:
        return _uneven(x, y, z, False, moved - cell[ONCE, stays] - cell[ONCE, again], cell, cycle, burst) * BELOW
    if cell[COUNT, z] > 1.0:
        runs = cell[COUNT, x] * cell[COUNT, y] * many
        return _rare(z, cell[ONCE, stays], moved - cell[ONCE, stays], runs, cell, cycle, burst) * BELOW
    if cell[COUNT, y] > 1.0:
        return _rare(y, cell[ONCE, again], moved - cell[ONCE, again], cell[COUNT, x] * many, cell, cycle, burst) * BELOW
    return 0.0


@inlined
def idle_cycles(axis: int, cell: Real, cycle: float, burst: float) -> float:
    """Cycles in which the first step computes and nothing is moved, and the same of the last step, where the innermost loop of
    several tiles is that of `axis`: the first step only reads what its neighbour needs, and the last one only writes what its
    neighbour left."""
    if cell[BUSY, 1] == 0.0:
        return 0.0
    hm, hn, hk, first, last, room = cell[HIGH, 0], cell[HIGH, 1], cell[HIGH, 2], cell[ENDS, 0], cell[ENDS, 1], cell[PRODUCT, 2]
    late, left, right = burst + 1.0, 0.0, 0.0
    if axis != 1:
        left = (min(hm * hk, room / cell[HELD, 0]) if cell[HELD, 0] > 0.0 else hm * hk) * cell[RATE, 0] * cycle
    if axis != 0:
        right = (min(hk * hn, room / cell[HELD, 1]) if cell[HELD, 1] > 0.0 else hk * hn) * cell[RATE, 1] * cycle
    if axis == 2:
        return float(max(0.0, first - left - right - late) + last)
    out = hm * hn * cell[RATE, 2]
    if cell[HELD, 2] > 0.0:
        out = min(hm * hn, room / cell[HELD, 2]) * max(cell[RATE, 2], cell[HELD, 2])
    return float(max(0.0, first - (left if axis == 0 else right) - late) + max(0.0, last - out * cycle - late))


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


@uncounted
def _least_tiles(cell: Real) -> float:
    """The fewest tiles of a product whose tensors fit: no side is larger than it may be, and large sides cost room."""
    a, b, c, room = cell[HELD, 0], cell[HELD, 1], cell[HELD, 2], cell[PRODUCT, 2]
    hm, hn, hk = cell[HIGH, 0], cell[HIGH, 1], cell[HIGH, 2]
    volume = hm * hn * hk
    if a > 0.0 and b > 0.0 and c > 0.0 and hm * hk * a + hk * hn * b + hm * hn * c > room:
        volume = min(volume, _side(cell[LOW, 0], hm, a, c, b, room))
        volume = min(volume, _side(cell[LOW, 1], hn, b, c, a, room))
        volume = min(volume, _side(cell[LOW, 2], hk, a, b, c, room))
    return float(cell[EXTENT, 0] * cell[EXTENT, 1] * cell[EXTENT, 2] / volume * BELOW)


@njit(cache=True, error_model="numpy", inline="always")
def _least_folds(cell: Real) -> float:
    """The folds of all tiles at least, on an array that takes the same time for each of them."""
    streams = int(cell[ARRAY, 2])
    one, other = (1, 2) if streams == 0 else ((0, 2) if streams == 1 else (0, 1))
    return float(cell[FOLDS, one] * cell[FOLDS, other] * cell[COUNT, streams])


@inlined
def _fold_cycles(cell: Real, tiles: float) -> float:
    """Compute cycles at least on such an array; at least so many tiles."""
    streams, fixed = int(cell[ARRAY, 2]), cell[ARRAY, 1]
    one, other = (1, 2) if streams == 0 else ((0, 2) if streams == 1 else (0, 1))
    folds, steps = cell[FOLDS, one] * cell[FOLDS, other], cell[FOLDS, streams]
    return float(max(folds * (cell[COUNT, streams] * fixed + steps), tiles * fixed + folds * steps))


@njit(cache=True, error_model="numpy", inline="always")
def _step_cycles(cell: Real, row: int) -> float:
    """Compute cycles of one tile with the folds in a row, on such an array."""
    streams = int(cell[ARRAY, 2])
    one, other = (1, 2) if streams == 0 else ((0, 2) if streams == 1 else (0, 1))
    return float(cell[row, one] * cell[row, other] * (cell[ARRAY, 1] + cell[row, streams]))


@inlined
def _write_shares(dims: Ints, forms: Ints, cell: Real) -> None:
    """Shares of compute that fall to one index of a loop, and the compute of the first and of the last step."""
    for axis in range(3):
        cell[SHARE, axis], cell[LATE, axis] = 1.0, 1.0
    volume, least = cell[HIGH, 0] * cell[HIGH, 1] * cell[HIGH, 2], cell[LOW, 0] * cell[LOW, 1] * cell[LOW, 2]
    cell[BUSY, 1] = 1.0 if cell[COUNT, 0] * cell[COUNT, 1] * cell[COUNT, 2] > 1.0 and volume < WIDE * least else 0.0
    if cell[BUSY, 1] == 0.0:
        return
    alike, lm, ln, lk = cell[ARRAY, 0] > 0.0, cell[LOW, 0], cell[LOW, 1], cell[LOW, 2]
    for axis in range(3):
        extent, count = cell[EXTENT, axis], cell[COUNT, axis]
        part = cell[PER_EXTENT, axis]
        cell[PART, axis] = cell[LOW, axis] * part
        cell[SECOND, axis] = cell[PART, axis] if count > 2.0 else max(0.0, min(cell[LOW, axis], extent - cell[HIGH, axis])) * part
        if count > 1.0:
            grain = cell[FOLD, axis] if alike else _grain(axis, lm, ln, lk, forms)
            cell[SHARE, axis] = cell[LATE, axis] = _share(part, cell[HIGH, axis], count, grain)
            if alike:
                _fold_shares(axis, cell)
    if alike:
        cell[ENDS, 0], cell[ENDS, 1] = _step_cycles(cell, LOW_FOLDS), _step_cycles(cell, EDGE_FOLDS)
    else:
        cell[ENDS, 0] = cycles_of(int(lm), int(ln), int(lk), forms)
        cell[ENDS, 1] = cycles_of(int(cell[EDGE, 0]), int(cell[EDGE, 1]), int(cell[EDGE, 2]), forms)


@inlined
def know(
    lm: float, ln: float, lk: float, hm: float, hn: float, hk: float, dims: Ints, forms: Ints, cycle: float, limit: float,
    cell: Real,
) -> bool:  # fmt: skip
    """Writes what is known of a cell of a described product, from its least and its largest sizes; false where nothing fits, or
    where compute with the first fill and the last drain takes `limit` cycles, `cycle` for a byte."""
    a, b, c, room, alike = cell[HELD, 0], cell[HELD, 1], cell[HELD, 2], cell[PRODUCT, 2], cell[ARRAY, 0] > 0.0
    if lm * lk * a + lk * ln * b + lm * ln * c > room:
        return False
    # the largest sizes that still fit, with the others at their least
    rest, across = room - lk * ln * b, lk * a + ln * c
    cell[HIGH, 0] = rest / across * OVER if hm * across > rest else hm
    rest, across = room - lm * lk * a, lk * b + lm * c
    cell[HIGH, 1] = rest / across * OVER if hn * across > rest else hn
    rest, across = room - lm * ln * c, lm * a + ln * b
    cell[HIGH, 2] = rest / across * OVER if hk * across > rest else hk
    cell[LOW, 0], cell[LOW, 1], cell[LOW, 2] = lm, ln, lk
    for axis in range(3):
        extent, low, high, side = cell[EXTENT, axis], cell[LOW, axis], cell[HIGH, axis], cell[PER_FOLD, axis]
        most = np.ceil(extent / low)
        count = most if high == low else np.ceil(extent / high * BELOW)
        edge = 1.0 if most > count else max(1.0, extent - (count - 1.0) * np.floor(high))
        cell[COUNT, axis], cell[MOST, axis], cell[EDGE, axis] = count, most, edge
        if alike:
            full, rest = np.ceil(low * side), np.ceil(edge * side)
            cell[LOW_FOLDS, axis], cell[EDGE_FOLDS, axis] = full, rest
            cell[FOLDS, axis] = max(cell[ALL_FOLDS, axis], (count - 1.0) * full + rest)
    cell[FILLED, 0], cell[FILLED, 1] = lk * lm * cell[RATE, 0], lk * ln * cell[RATE, 1]
    cell[FILLED, 2] = cell[EDGE, 0] * cell[EDGE, 1] * cell[RATE, 2]
    ends = (cell[FILLED, 0] + cell[FILLED, 1] + cell[FILLED, 2]) * cycle
    if alike and _fold_cycles(cell, 0.0) * cell[PRODUCT, 0] * BELOW + ends >= limit:
        return False
    if not alike:
        tiles = _least_tiles(cell)
        cell[BUSY, 0] = least_busy(dims, lm, ln, lk, cell[HIGH, 0], cell[HIGH, 1], cell[HIGH, 2], tiles, forms)
    elif cell[MOST, 0] * cell[MOST, 1] * cell[MOST, 2] <= _least_folds(cell):
        cell[BUSY, 0] = _fold_cycles(cell, 0.0)  # each tile has a fold, at least
    else:
        cell[BUSY, 0] = _fold_cycles(cell, _least_tiles(cell))
    cell[BUSY, 0] *= cell[PRODUCT, 0] * BELOW
    if cell[BUSY, 0] + ends >= limit:
        return False
    _write_shares(dims, forms, cell)
    return True


@inlined
def inner_axis(order: int, cell: Real) -> int:
    """The innermost loop of an order that has several tiles."""
    if cell[COUNT, ORDERS[order, 2]] > 1.0:
        return int(ORDERS[order, 2])
    return int(ORDERS[order, 1] if cell[COUNT, ORDERS[order, 1]] > 1.0 else ORDERS[order, 0])


@uncounted
def bound_at(cycle: float, ways: int, burst: float, objective: int, joules: Real, cell: Real) -> tuple[float, float]:
    """Lower bounds of value and traffic of a cell of which all is known; a byte takes `cycle` cycles, a burst `burst` more.

    `ways` has a bit for each order and what is kept in it (KEPT_MIDDLE); the bounds are infinite where none of them fits.
    """
    value, fewest = np.inf, np.inf
    alone = cell[BUSY, 0] + (cell[FILLED, 0] + cell[FILLED, 1] + cell[FILLED, 2]) * cycle + burst
    for way in range(3 * KEPT_MIDDLE):
        if ways >> way & 1:
            order, kept = way % KEPT_MIDDLE, way // KEPT_MIDDLE
            moved, loads = way_traffic(order, kept, cell)
            if moved < np.inf:
                idle = idle_cycles(inner_axis(order, cell), cell, cycle, burst)
                own = max(alone, moved * cycle + burst * loads + idle, way_cycles(order, kept, moved, cell, cycle, burst))
                value, fewest = min(value, value_of(objective, own, moved, joules)), min(fewest, moved)
    return value, fewest


@njit(cache=True, error_model="numpy")
def tile_bounds(
    dims: Ints, rates: Real, tiles: Ints, allowed: int, forms: Ints, supply: Real, latency: int, objective: int, joules: Real
) -> Any:  # fmt: skip
    """For each of many tiles a lower bound on its value in any order; infinite where it does not fit."""
    totals, least, cell = np.empty(6), np.full(tiles.shape[0], np.inf), np.empty((KNOWN_ROWS, 3))
    totals_of(dims, rates, totals)
    describe(dims, rates, totals, True, forms, supply[1], cell)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    for tile in range(tiles.shape[0]):
        m, n, k = float(tiles[tile, 0]), float(tiles[tile, 1]), float(tiles[tile, 2])
        if know(m, n, k, m, n, k, dims, forms, 0.0, np.inf, cell):
            least[tile], _ = bound_at(BELOW / supply[0], allowed, burst, objective, joules, cell)
    return least
