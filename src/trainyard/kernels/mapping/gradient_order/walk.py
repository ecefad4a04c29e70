"""Compiled: one walk of tiles through the scratchpad on one core, with what every stage moves and takes, for many walks in a row.

The same as `scratchpad.walk` and `stage_cycles` (several cores, all policies), without a list of operations:
the least recent tiles leave first, or all do where a window ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.mapping.gradient_order.scratchpad import (
    ALONE,
    DW_MAJOR,
    DW_MAJOR_NMK,
    DX_MAJOR,
    DX_MAJOR_MNK,
    NO_SECOND_DY,
    SEQUENTIAL,
    Ints,
    Real,
)

DY, W, X, DX, DW = range(5)
READ, WRITE, LEFT, BACK = range(4)
LOADS, SPILLS, FINISHED = range(3)
HELD, MOVED, UNFINISHED = range(3)
SPILLED, DONE = 1 << 30, 1 << 29
"""Added to the operations that are left of a sum while it is spilled; those of a finished sum in a window."""
Links = npt.NDArray[np.int32]


@njit(cache=True, error_model="numpy")
def _loops(order: int) -> Ints:
    """Axes from outer to inner, of dX and of dW."""
    of_dx, of_dw = (0, 2, 1), (2, 1, 0)
    if order == DX_MAJOR:
        of_dw = of_dx
    elif order == DW_MAJOR:
        of_dx = of_dw = (1, 2, 0)
    elif order == DX_MAJOR_MNK:
        of_dx = of_dw = (0, 1, 2)
    elif order == DW_MAJOR_NMK:
        of_dx = of_dw = (1, 0, 2)
    return np.array([of_dx, of_dw])


@njit(cache=True, error_model="numpy", inline="always")
def _remove(older: Links, newer: Links, tile: int) -> None:
    newer[older[tile]] = newer[tile]
    older[newer[tile]] = older[tile]
    older[tile] = -1


@njit(cache=True, error_model="numpy", inline="always")
def _append(older: Links, newer: Links, tile: int, end: int) -> None:
    last = older[end]
    newer[last], older[tile], newer[tile], older[end] = tile, last, end, tile


@njit(cache=True, error_model="numpy")
def _numbers(m_tiles: int, n_tiles: int, k_tiles: int) -> Ints:
    """The number of each tensor's first tile, and of all tiles."""
    starts = np.zeros(6, np.int64)
    for which in range(5):
        high, wide = k_tiles if which in (W, DW) else m_tiles, k_tiles if which in (X, DX) else n_tiles
        starts[which + 1] = starts[which] + high * wide
    return starts


@njit(cache=True, error_model="numpy", inline="always")
def _missing(
    older: Links, newer: Links, total: int, touched: Ints, tensors: Ints, elements: Real, rates: Real, window: bool
) -> tuple[int, float]:
    """Which tiles of an operation are not held, as bits, and their bytes; those that are held become the most recent."""
    missing, needed = 0, 0.0
    for slot in range(3):
        tile = touched[slot]
        if older[tile] < 0:
            missing |= 1 << slot
            needed += elements[slot] * rates[tensors[slot], HELD]
        elif not window:
            _remove(older, newer, tile)
            _append(older, newer, tile, total)
    return missing, needed


@njit(cache=True, error_model="numpy", inline="always")
def _advance(at: Ints, axes: Ints, first: Ints, last: Ints) -> None:
    """Moves to the next operation of a gradient, the innermost axis first."""
    inner, middle, outer = axes[2], axes[1], axes[0]
    at[inner] += 1
    if at[inner] == last[inner]:
        at[inner] = first[inner]
        at[middle] += 1
        if at[middle] == last[middle]:
            at[middle] = first[middle]
            at[outer] += 1


@njit(cache=True, error_model="numpy", inline="always")
def _operands(
    gradient: int, m: int, n: int, k: int, counts: Ints, lengths: Ints, starts: Ints, touched: Ints, tensors: Ints, elements: Real
) -> None:
    """Writes the tiles, tensors and elements of the two operands and of the sum of one operation."""
    n_tiles, k_tiles = counts[1], counts[2]
    rows, columns, deep = lengths[0, m], lengths[1, n], lengths[2, k]
    if gradient == 0:
        touched[0], touched[1], touched[2] = m * n_tiles + n, starts[W] + k * n_tiles + n, starts[DX] + m * k_tiles + k
        tensors[0], tensors[1], tensors[2] = DY, W, DX
        elements[0], elements[1], elements[2] = rows * columns, deep * columns, rows * deep
    else:
        touched[0], touched[1], touched[2] = starts[X] + m * k_tiles + k, m * n_tiles + n, starts[DW] + k * n_tiles + n
        tensors[0], tensors[1], tensors[2] = X, DY, DW
        elements[0], elements[1], elements[2] = rows * deep, rows * columns, deep * columns


@njit(cache=True, error_model="numpy", inline="always")
def _spill(tile: int, held: Real, remaining: Ints, starts: Ints, unfinished: tuple[float, float], moved: Real) -> float:
    """Bytes of an unfinished sum that leaves."""
    which = DX if tile < starts[DW] else DW
    size: float = held[tile] * (unfinished[0] if which == DX else unfinished[1])
    remaining[tile] += SPILLED
    moved[which, LEFT] += size
    return size


@njit(cache=True, error_model="numpy", inline="always")
def _empty(
    older: Links, newer: Links, held: Real, remaining: Ints, starts: Ints, unfinished: tuple[float, float], moved: Real
) -> float:
    """Removes all tiles at the end of a window; bytes of the sums that were not finished."""
    total, spilled = starts[5], 0.0
    tile = newer[total]
    while tile != total:
        if tile >= starts[DX] and remaining[tile] < DONE:
            spilled += _spill(tile, held, remaining, starts, unfinished, moved)
        older[tile] = -1
        tile = newer[tile]
    older[total], newer[total] = total, total
    return spilled


@njit(cache=True, error_model="numpy")
def walk_on_one_core(
    order: int, counts: Ints, lengths: Ints, kinds: Ints, tables: Ints, axis: int, bounds: Ints, rates: Real, room_bytes: float,
    window: bool,
) -> tuple[Real, Real, Ints]:  # fmt: skip
    """Bytes by tensor and kind; bytes that each stage loads, spills and finishes; cycles of the array in it under each table.

    `lengths` and `kinds` are, by axis, the tiles' sizes and their rows in the compute tables; `bounds` the tiles of each part of
    `axis` (-1: one part).
    """
    m_tiles, n_tiles, k_tiles = counts[0], counts[1], counts[2]
    starts = _numbers(m_tiles, n_tiles, k_tiles)
    total = starts[5]
    older, newer = np.full(total + 1, -1, np.int32), np.full(total + 1, -1, np.int32)
    older[total], newer[total] = total, total
    held, remaining = np.zeros(total), np.zeros(total, np.int64)
    remaining[starts[DX] : starts[DW]], remaining[starts[DW] :] = n_tiles, m_tiles
    paired = order not in (SEQUENTIAL, NO_SECOND_DY, ALONE)
    axes, at, first, last = _loops(order), np.empty((2, 3), np.int64), np.zeros(3, np.int64), counts.copy()
    many = (1 if order == ALONE else 2) * m_tiles * n_tiles * k_tiles
    moved, transfers, busy = np.zeros((5, 4)), np.zeros((many, 3)), np.zeros((len(tables), many), np.int64)
    touched, tensors, elements = np.empty(3, np.int64), np.empty(3, np.int64), np.empty(3)
    unfinished = (rates[DX, UNFINISHED] / rates[DX, HELD], rates[DW, UNFINISHED] / max(rates[DW, HELD], 1e-300))
    room, stage = room_bytes, -1
    for part in range(len(bounds)):
        if axis >= 0:
            first[axis], last[axis] = bounds[part, 0], bounds[part, 1]
        operations = (last[0] - first[0]) * (last[1] - first[1]) * (last[2] - first[2])
        at[0], at[1] = first, first
        for number in range(operations if order == ALONE else 2 * operations):
            gradient = number & 1 if paired else int(number >= operations)
            m, n, k = at[gradient, 0], at[gradient, 1], at[gradient, 2]
            _advance(at[gradient], axes[gradient], first, last)
            _operands(gradient, m, n, k, counts, lengths, starts, touched, tensors, elements)
            missing, needed = _missing(older, newer, total, touched, tensors, elements, rates, window)
            if not window or stage < 0:
                stage += 1
            elif needed > room:
                transfers[stage, FINISHED] += _empty(older, newer, held, remaining, starts, unfinished, moved)
                room, stage, missing = room_bytes, stage + 1, 7
            for slot in range(3):
                if not missing >> slot & 1:
                    continue
                tile, tensor = touched[slot], tensors[slot]
                size = elements[slot] * rates[tensor, HELD]
                while room < size:
                    victim = newer[total]
                    _remove(older, newer, victim)
                    room += held[victim]
                    if victim >= starts[DX]:
                        transfers[stage, SPILLS] += _spill(victim, held, remaining, starts, unfinished, moved)
                room -= size
                _append(older, newer, tile, total)
                held[tile] = size
                if tensor < DX:
                    if not (order == NO_SECOND_DY and gradient == 1 and tensor == DY):
                        moved[tensor, READ] += elements[slot] * rates[tensor, MOVED]
                        transfers[stage, LOADS] += elements[slot] * rates[tensor, MOVED]
                elif remaining[tile] >= SPILLED:
                    remaining[tile] -= SPILLED
                    moved[tensor, BACK] += elements[slot] * rates[tensor, UNFINISHED]
                    transfers[stage, SPILLS if window else LOADS] += elements[slot] * rates[tensor, UNFINISHED]
            tile = touched[2]
            remaining[tile] -= 1
            if remaining[tile] == 0:
                moved[tensors[2], WRITE] += elements[2] * rates[tensors[2], MOVED]
                transfers[stage, FINISHED] += elements[2] * rates[tensors[2], MOVED]
                if window:
                    remaining[tile] = DONE
                else:
                    _remove(older, newer, tile)
                    room += held[tile]
            for folds in range(len(tables)):
                busy[folds, stage] += tables[folds, gradient, kinds[0, m], kinds[1, n], kinds[2, k]]
    return moved, transfers[: stage + 1], busy[:, : stage + 1]
