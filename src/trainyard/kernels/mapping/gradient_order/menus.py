"""Compiled: sizes of tiles of a pair of gradients, cycles of the array, and lower bounds on bytes and cycles.

The bounds are those of `mapping.gradient_order.search`, its plain twin. A menu has a row for each size of an axis (`ROW` columns).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainyard.kernels.mapping.gradient_order.scratchpad import ALONE, DW_MAJOR, DX_MAJOR, INTERLEAVED, NO_SECOND_DY, Ints, Real
from trainyard.kernels.mapping.gradient_order.simulation import DW, DX, DY, HELD, MOVED, UNFINISHED, W, X
from trainyard.kernels.mapping.tile_cycles import cycles_of

SLACK = 1 + 1e-9
"""Tolerance of the capacity, as sums of fractions of bytes are rounded."""
BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
SIZE, TILES, FIRST, LAST, KINDS = range(5)
ROW = 10
"""Columns of a size: itself, number of tiles, first and last of them, then distinct sizes and how many tiles have each."""
MENU = 160
"""Most sizes of one axis."""
ALL_SIZES = 16
"""An axis no longer than this is cut into tiles of any size."""
GROWTH = 1.12
"""Step from one number of tiles to the next that is tried where there are many."""


class PairTask(NamedTuple):
    """A pair of gradients on one core, for the compiled search.

    `dims` are M, N, K and count; `rates` bytes per element of each tensor, resident, moved, moved unfinished; `forms` rows of
    `Folds`; `products` whether dW is computed transposed, and the windows and the spread of a convolution; `parts` rows of axis
    (-1: none) and number of parts; `limits` are the capacity, the DRAM's bytes a cycle, and the room of a simulation. Candidates of
    more than `most_steps` tiles are left out where others have fewer, of more than `most_tiles` always.
    """

    dims: Ints
    rates: Real
    forms: Ints
    products: tuple[bool, int, int]
    orders: Ints
    parts: Ints
    limits: Real
    latency: int
    most_steps: float
    most_tiles: float


class Menus(NamedTuple):
    """Sizes for each partition and axis.

    `folds` are, for dX and dW, factors of a lower bound on the array's cycles, `fewest` the least of each axis; `sides` and
    `tensors` describe the smallest part (`_part_bytes`).
    """

    rows: Ints
    folds: Real
    fewest: Real
    coarse: Ints
    lengths: Ints
    sides: Ints
    tensors: Real
    compulsory: float


@njit(cache=True, error_model="numpy")
def axis_menu(extent: int, granule: int, fine: bool, tight: int, sizes: Ints) -> int:
    """Sizes of one axis in ascending order; returns how many.

    Always doublings of the granule, the extent, and `tight` halvings of the granule. `fine` adds for each number of tiles the least
    size that gives it, and the same rounded up to whole granules, thinned where there are many; of a short axis all sizes.
    """
    count, size = 0, granule
    while size < extent:
        sizes[count], count, size = size, count + 1, 2 * size
    size = min(granule, extent)
    for _ in range(tight):
        size = (size + 1) // 2
        sizes[count], count = size, count + 1
    sizes[count], count = extent, count + 1
    if fine:
        tiles = 1
        while tiles <= extent and count < MENU - ALL_SIZES - 3:
            size = (extent + tiles - 1) // tiles
            sizes[count], sizes[count + 1] = size, min(extent, (size + granule - 1) // granule * granule)
            count, tiles = count + 2, max(tiles + 1, int(tiles * GROWTH))
        for value in range(1, extent if extent <= ALL_SIZES else 2):
            sizes[count], count = value, count + 1
    ascending = np.sort(sizes[:count])
    unique = 0
    for value in ascending:
        if unique == 0 or sizes[unique - 1] != value:
            sizes[unique], unique = value, unique + 1
    return unique


@njit(cache=True, error_model="numpy")
def _measured(extent: int, size: int, parts: int, row: Ints) -> None:
    """The row of one size."""
    row[:] = 0
    row[SIZE] = size
    distinct = 0
    for part in range(parts):
        whole = extent * (part + 1) // parts - extent * part // parts
        for rest in range(2):
            length, times = (size, whole // size) if rest == 0 else (whole % size, min(1, whole % size))
            if times == 0:
                continue
            if row[TILES] == 0:
                row[FIRST] = length
            row[LAST] = length
            row[TILES] += times
            kind = 0
            while kind < distinct and row[KINDS + 2 * kind] != length:
                kind += 1
            distinct = max(distinct, kind + 1)
            row[KINDS + 2 * kind] = length
            row[KINDS + 2 * kind + 1] += times


@njit(cache=True, error_model="numpy")
def cut(extent: int, parts: int, rows: Ints, axis: int, lengths: Ints, kinds: Ints, bounds: Ints) -> None:
    """Tiles along an axis, part after part: sizes, and which of the row's distinct sizes each has."""
    count = 0
    for part in range(parts):
        bounds[part, 0] = count
        rest = extent * (part + 1) // parts - extent * part // parts
        while rest > 0:
            length = min(rows[axis, SIZE], rest)
            kind = 0
            while rows[axis, KINDS + 2 * kind] != length:
                kind += 1
            lengths[axis, count], kinds[axis, count] = length, kind
            rest -= length
            count += 1
        bounds[part, 1] = count


@njit(cache=True, error_model="numpy")
def _fold_factor(row: Ints, role: int, times_longer: int, forms: Ints) -> float:
    """One axis's factor of a lower bound on the cycles of all tiles, in the role m, n or k (0, 1, 2) of a product, where tiles are
    so many times longer.

    A tile takes folds times cycles of each; where several forms compete, the least factor of any of them counts. A fabric without
    a fixed shape has no such factors: its bound is 0.
    """
    total = 0.0
    for kind in range(3):
        length, times = row[KINDS + 2 * kind] * times_longer, row[KINDS + 2 * kind + 1]
        least = np.inf
        for form in range(forms.shape[0]):
            fixed, floor, over = forms[form, 4], forms[form, 5], (length + forms[form, role] - 1) // forms[form, role]
            factor = float(over)
            if forms[form, 3] == role:  # streamed
                factor = float(fixed + over if floor < 0 else min(max(over, floor), fixed + over)) / max(1, forms[form, 6])
            least = min(least, factor if forms[form, 7] == 0 else 0.0)
        total += times * least if times else 0.0
    return total


@njit(cache=True, error_model="numpy")
def _part_bytes(task: PairTask, which: int, sides: Ints, tensors: Real) -> None:
    """Sides of the smallest part; of each tensor its resident bytes in that part, and the bytes moved for each resident one."""
    for axis in range(3):
        sides[axis] = task.dims[axis] // (task.parts[which, 1] if task.parts[which, 0] == axis else 1)
    m, n, k = float(sides[0]), float(sides[1]), float(sides[2])
    elements, rates = (m * n, k * n, m * k, m * k, k * n), task.rates
    for tensor in range(5):
        moved = rates[tensor, MOVED] if tensor < DX else 2.0 * rates[tensor, UNFINISHED]  # a spilled sum is written and read back
        tensors[tensor, 0] = rates[tensor, HELD] * elements[tensor]
        tensors[tensor, 1] = moved / rates[tensor, HELD] if rates[tensor, HELD] > 0.0 else 0.0


@njit(cache=True, error_model="numpy")
def make_menus(task: PairTask, granule: Ints, tile: Ints, tight: int) -> Menus:
    """All sizes of each axis; a fixed tile is the only one."""
    many = len(task.parts)
    rows, folds, fewest = np.empty((many, 3, MENU, ROW), np.int64), np.empty((many, 3, MENU, 2)), np.full((many, 3, 2), np.inf)
    coarse, lengths, sides = np.zeros((3, MENU), np.int64), np.ones(3, np.int64), np.empty((many, 3), np.int64)
    tensors, sizes, few = np.empty((many, 5, 2)), np.empty(MENU, np.int64), np.empty(MENU, np.int64)
    alone = task.orders[0] == ALONE
    transposed, windows, spread = task.products
    dw_m, dw_n = (1, 0) if transposed else (0, 1)
    roles = np.array([(0, 2), (2, dw_n), (1, dw_m)])  # of m, n, k in dX = dY W^T and in dW
    longer = np.array([(spread, 1), (windows, 1), (1, windows)])
    for axis in range(3):
        number, sizes[0], few[0] = 1, tile[axis], tile[axis]
        if tile[axis] == 0:
            lengths[axis] = axis_menu(task.dims[axis], granule[axis], True, tight, sizes)
            number = axis_menu(task.dims[axis], granule[axis], False, tight, few)
        at = 0
        for index in range(lengths[axis]):
            coarse[axis, index] = at < number and few[at] == sizes[index]
            at += coarse[axis, index]
            for which in range(many):
                pieces = task.parts[which, 1] if task.parts[which, 0] == axis else 1
                _measured(task.dims[axis], sizes[index], pieces, rows[which, axis, index])
                for product in range(2):
                    factor = 0.0
                    if not (alone and product):
                        factor = _fold_factor(rows[which, axis, index], roles[axis, product], longer[axis, product], task.forms)
                    folds[which, axis, index, product] = factor
                    fewest[which, axis, product] = min(fewest[which, axis, product], factor)
    for which in range(many):
        _part_bytes(task, which, sides[which], tensors[which])
    most = lengths.max()
    return Menus(
        rows[:, :, :most].copy(), folds[:, :, :most].copy(), fewest, coarse[:, :most].copy(), lengths, sides, tensors,
        _compulsory(task.dims, task.rates, alone),
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _compulsory(dims: Ints, rates: Real, alone: bool) -> float:
    """Bytes of one product if every tensor moves once."""
    m, n, k = float(dims[0]), float(dims[1]), float(dims[2])
    total = m * n * rates[DY, MOVED] + k * n * rates[W, MOVED] + m * k * rates[DX, MOVED]
    return float(total if alone else total + m * k * rates[X, MOVED] + k * n * rates[DW, MOVED])


@njit(cache=True, error_model="numpy")
def fits(task: PairTask, m: int, n: int, k: int) -> bool:
    """Whether the tiles of the larger of the two operations fit; one that is left out has no bytes."""
    m, n, k, rates = min(m, task.dims[0]), min(n, task.dims[1]), min(k, task.dims[2]), task.rates
    first, second = m * k * rates[DX, HELD] + k * n * rates[W, HELD], m * k * rates[X, HELD] + k * n * rates[DW, HELD]
    return bool(m * n * rates[DY, HELD] + max(first, second) <= task.limits[0])


@njit(cache=True, error_model="numpy")
def compute_table(task: PairTask, rows: Ints, table: Ints) -> float:
    """The array's cycles for each kind of tile of dX and dW, and for all tiles of one product; `rows` are the three sizes'."""
    total, alone = 0.0, task.orders[0] == ALONE
    transposed, windows, spread = task.products
    for i in range(3):
        m, many_m = rows[0, KINDS + 2 * i], rows[0, KINDS + 2 * i + 1]
        for j in range(3 if many_m else 0):
            n, many_n = rows[1, KINDS + 2 * j], rows[1, KINDS + 2 * j + 1]
            for h in range(3 if many_n else 0):
                k, many_k = rows[2, KINDS + 2 * h], rows[2, KINDS + 2 * h + 1]
                if many_k == 0:
                    break
                cycles = cycles_of(m * spread, k, n * windows, task.forms)
                table[0, i, j, h] = cycles
                if not alone:
                    left, right = (n, k * windows) if transposed else (k * windows, n)
                    table[1, i, j, h] = cycles_of(left, right, m, task.forms)
                    cycles += table[1, i, j, h]
                total += float(many_m * many_n) * many_k * cycles
    return total


@njit(cache=True, error_model="numpy")
def _reloads(needed: float, reloaded: float, least_rate: float, slices: float, turns: float, seeing: float, room: float) -> float:
    """Bytes that a loop of `turns` more turns loads again, at least, of tensors of `needed` bytes that move `reloaded` bytes.

    In `seeing` turns only what does not fit is sure to be reloaded.
    """
    if needed <= room * SLACK:
        return 0.0
    sure = min(turns, seeing)
    return slices * (sure * (needed - room) * least_rate + (turns - sure) * reloaded)


@njit(cache=True, error_model="numpy")
def _reloaded_bytes(sides: Ints, tensors: Real, which: int, m: int, n: int, k: int, order: int, room: float) -> float:
    """A lower bound on the bytes that one part loads more than once, where the least recent tiles leave first."""
    high, wide, deep = sides[which, 0], sides[which, 1], sides[which, 2]
    m, n, k = min(m, high), min(n, wide), min(k, deep)
    turns_m, turns_n, turns_k = float((high + m - 1) // m - 1), float((wide + n - 1) // n - 1), float((deep + k - 1) // k - 1)
    dy, rate = tensors[which, DY, 0], tensors[which, DY, 1]
    if order in (DX_MAJOR, DW_MAJOR):
        first, second, turns = (W, DW, turns_m) if order == DX_MAJOR else (X, DX, turns_n)
        slices, share = (high // m, m / high) if order == DX_MAJOR else (wide // n, n / wide)
        one, one_rate, other, other_rate = tensors[which, first, 0], tensors[which, first, 1], tensors[which, second, 0], 0.0
        other_rate = tensors[which, second, 1]
        total = _reloads(one + other, one * one_rate + other * other_rate, min(one_rate, other_rate), 1.0, turns, 1.0, room)
        return float(total + _reloads(share * dy, share * dy * rate, rate, float(slices), turns_k, 0.0, room))
    slices_m, needed, w, w_rate = float(high // m), m / high * dy, tensors[which, W, 0], tensors[which, W, 1]
    total = _reloads(w, w * w_rate, w_rate, 1.0, turns_m, 0.0, room)
    if order != ALONE:
        part, x_rate = k / deep * tensors[which, X, 0], tensors[which, X, 1]
        total += _reloads(part, part * x_rate, x_rate, float(deep // k), turns_n, 0.0, room)
    seeing = float(deep) if order == INTERLEAVED else 0.0  # both touch dY
    rows = _reloads(needed, needed * rate, rate, slices_m, turns_k, seeing, room)
    if order in (ALONE, NO_SECOND_DY):
        return float(total + rows)
    whole = _reloads(dy, dy * rate, rate, 1.0, turns_k, seeing, room)
    return float(total + (max(rows, whole) if order == INTERLEAVED else rows + whole + max(0.0, dy - room) * rate))


@njit(cache=True, error_model="numpy")
def least_bytes(task: PairTask, menus: Menus, which: int, m: int, n: int, k: int, order: int) -> float:
    """A lower bound on the bytes of one product: every tensor once, and what each part reloads."""
    again = _reloaded_bytes(menus.sides, menus.tensors, which, m, n, k, order, task.limits[0])
    return float(menus.compulsory + task.parts[which, 1] * again)


@njit(cache=True, error_model="numpy")
def least_compute(task: PairTask, menus: Menus) -> float:
    """A lower bound on the array's cycles of every candidate."""
    least = np.inf
    for which in range(len(task.parts)):
        cycles = 0.0
        for product in range(2):
            cycles += menus.fewest[which, 0, product] * menus.fewest[which, 1, product] * menus.fewest[which, 2, product]
        least = min(least, cycles * task.dims[3])
    return least


@njit(cache=True, error_model="numpy")
def least_cycles(task: PairTask, rows: Ints, order: int, compute: float, least: float, table: Ints) -> float:
    """A lower bound on the cycles: all tiles with the first loads and the last write, or all bytes and what nothing hides.

    Beside the last operation only the result of the one before it can move.
    """
    alone, rates, count, speed, latency = order == ALONE, task.rates, float(task.dims[3]), task.limits[1], float(task.latency)
    seen = rows[0, FIRST] * rows[1, FIRST] * rates[DY, MOVED] + rows[2, FIRST] * rows[1, FIRST] * rates[W, MOVED]
    seen += rows[0, LAST] * rows[2, LAST] * rates[DX, MOVED] if alone else rows[2, LAST] * rows[1, LAST] * rates[DW, MOVED]
    busy = compute * count + seen / speed * BELOW + 2.0 * latency
    many_m, many_n, many_k = float(rows[0, TILES]), float(rows[1, TILES]), float(rows[2, TILES])
    operands = many_m * many_n + many_k * many_n + (0.0 if alone else many_m * many_k)
    bursts = count * np.ceil(operands / 2.0) + 1.0  # a step loads no more than two operands; the last result goes by itself
    closing = table[0 if alone else 1, _last_kind(rows, 0), _last_kind(rows, 1), _last_kind(rows, 2)]
    beside = rows[2, SIZE] * max(rows[0, SIZE] * rates[DX, MOVED], rows[1, SIZE] * rates[DW, MOVED])
    alone_at_end = max(0.0, closing - beside / speed - latency - 1.0)
    return float(max(busy, (count * least / speed + alone_at_end) * BELOW + bursts * latency))


@njit(cache=True, error_model="numpy")
def _last_kind(rows: Ints, axis: int) -> int:
    """Which of the distinct sizes of an axis its last tile has."""
    kind = 0
    while rows[axis, KINDS + 2 * kind] != rows[axis, LAST]:
        kind += 1
    return kind
