"""Compiled: the cycles of a stream of tile operations on one core whose least recent tiles leave first.

`kernels.mapping.gradient_order.run` is the general form (several cores, other policies). This one has no list of operations, gives
the same cycles and bytes, and gives up as soon as it cannot end within a limit: for a search of tiles.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.gradient_order import ALONE, DW_MAJOR, DX_MAJOR, NO_SECOND_DY, SEQUENTIAL, Ints, Real
from trainyard.kernels.mapping.tiles import transfer

DY, W, X, DX, DW = range(5)
READ, WRITE, LEFT, BACK = range(4)
EXCEEDED = -1
HELD, MOVED, UNFINISHED = range(3)
SPILLED = 1 << 40
"""Added to the operations that are left of a sum while it is spilled."""


@njit(cache=True, error_model="numpy", inline="always")
def _unlink(links: Ints, tile: int) -> None:
    before, after = links[tile, 0], links[tile, 1]
    links[before, 1], links[after, 0] = after, before
    links[tile, 0] = -1


@njit(cache=True, error_model="numpy", inline="always")
def _newest(links: Ints, tile: int) -> None:
    """Puts a tile at the recent end of the list; its ends meet in the last row."""
    end = len(links) - 1
    last = links[end, 0]
    links[last, 1], links[tile, 0], links[tile, 1], links[end, 0] = tile, last, end, tile


@njit(cache=True, error_model="numpy", inline="always")
def _load(
    missing: int, room: float, free: bool, touched: Ints, operand: Ints, elements: Real, starts: Ints, rates: Real, links: Ints,
    sizes: Real, remaining: Ints, moved: Real,
) -> tuple[float, float, float]:  # fmt: skip
    """Loads the missing tiles of an operation; returns the room left, bytes loaded and spilled. `free`: dY costs nothing."""
    loads, spills, end = 0.0, 0.0, len(links) - 1
    for slot in range(3):
        if not missing >> slot & 1:
            continue
        tile, tensor = touched[slot], operand[slot]
        held = elements[slot] * rates[tensor, HELD]
        while room < held:
            victim = links[end, 1]
            _unlink(links, victim)
            room += sizes[victim, 0]
            if victim >= starts[DX]:
                remaining[victim] += SPILLED
                spills += sizes[victim, 1]
                moved[DX if victim < starts[DW] else DW, LEFT] += sizes[victim, 1]
        room -= held
        _newest(links, tile)
        sizes[tile, 0] = held
        if tensor >= DX:
            sizes[tile, 1] = elements[slot] * rates[tensor, UNFINISHED]
            if remaining[tile] >= SPILLED:
                remaining[tile] -= SPILLED
                loads += sizes[tile, 1]
                moved[tensor, BACK] += sizes[tile, 1]
        elif not (free and tensor == DY):
            loads += elements[slot] * rates[tensor, MOVED]
            moved[tensor, READ] += elements[slot] * rates[tensor, MOVED]
    return room, loads, spills


@njit(cache=True, error_model="numpy", inline="always")
def _touch(
    gradient: int, m: int, n: int, k: int, counts: Ints, lengths: Ints, starts: Ints, touched: Ints, operand: Ints, elements: Real
) -> None:
    """The tiles of an operation in the order in which it touches them, dY, W, dX or X, dY, dW; their tensors and elements."""
    rows, columns, deep = lengths[0, m], lengths[1, n], lengths[2, k]
    weights, inputs = k * counts[1] + n, m * counts[2] + k
    other, result = (W, DX) if gradient == 0 else (X, DW)
    touched[gradient], operand[gradient], elements[gradient] = starts[DY] + m * counts[1] + n, DY, rows * columns
    touched[1 - gradient], operand[1 - gradient] = starts[other] + (weights if gradient == 0 else inputs), other
    touched[2], operand[2] = starts[result] + (inputs if gradient == 0 else weights), result
    elements[1 - gradient], elements[2] = (deep * columns, rows * deep) if gradient == 0 else (rows * deep, deep * columns)


@njit(cache=True, error_model="numpy", inline="always")
def _advance(at: Ints, first: Ints, last: Ints, axes: Ints) -> None:
    """The next position of a loop nest over `axes`, outer to inner."""
    outer, middle, inner = axes[0], axes[1], axes[2]
    at[inner] += 1
    if at[inner] == last[inner]:
        at[inner] = first[inner]
        at[middle] += 1
        if at[middle] == last[middle]:
            at[middle] = first[middle]
            at[outer] += 1


@njit(cache=True, error_model="numpy")
def simulate(
    order: int, counts: Ints, lengths: Ints, kinds: Ints, table: Ints, axis: int, bounds: Ints, rates: Real, limits: Real,
    latency: int, passes: int, compute: int, most: float, moved: Real,
) -> tuple[int, int]:  # fmt: skip
    """Cycles of the last of `passes` products in a row and of the one before it; EXCEEDED if cycles exceed `most`.

    `lengths` and `kinds` are, by axis, the tiles' sizes and their rows of the compute table; `bounds` the tiles of each part of
    `axis` (-1: one part). `limits` are the room, the DRAM's bytes a cycle, and a lower bound on the bytes of one product; `compute`
    are the array's cycles for one. `moved` gets the bytes of one product by tensor and kind.
    """
    speed, paired = limits[1], order not in (SEQUENTIAL, NO_SECOND_DY, ALONE)
    starts = np.zeros(6, np.int64)
    for which in range(5):
        high, wide = counts[2] if which in (W, DW) else counts[0], counts[2] if which in (X, DX) else counts[1]
        starts[which + 1] = starts[which] + high * wide
    total = starts[5]
    links, sizes, remaining = np.empty((total + 1, 2), np.int64), np.empty((total, 2)), np.empty(total, np.int64)
    first, last, at = np.zeros(3, np.int64), counts.copy(), np.empty((2, 3), np.int64)
    axes = np.array([(0, 2, 1), (2, 1, 0)])
    if order == DW_MAJOR:
        axes[:] = np.array([1, 2, 0])
    elif order == DX_MAJOR:
        axes[1] = axes[0]
    touched, operand, elements = np.empty(3, np.int64), np.empty(3, np.int64), np.empty(3)
    clock, busy, done, end, before_last, stores, before, all_moved = 0, 0, 0, 0, 0, 0.0, 0.0, 0.0
    for _ in range(passes):
        moved[:] = 0.0
        links[:] = -1
        links[total] = total
        remaining[starts[DX] : starts[DW]] = counts[1]
        remaining[starts[DW] :] = counts[0]
        room, all_moved = limits[0], 0.0
        for part in range(len(bounds)):
            if axis >= 0:
                first[axis], last[axis] = bounds[part, 0], bounds[part, 1]
            operations = (last[0] - first[0]) * (last[1] - first[1]) * (last[2] - first[2])
            at[0], at[1] = first, first
            for number in range(operations if order == ALONE else 2 * operations):
                gradient = number & 1 if paired else int(number >= operations)
                m, n, k = at[gradient, 0], at[gradient, 1], at[gradient, 2]
                _advance(at[gradient], first, last, axes[gradient])
                _touch(gradient, m, n, k, counts, lengths, starts, touched, operand, elements)
                missing = 0
                for slot in range(3):
                    if links[touched[slot], 0] >= 0:
                        _unlink(links, touched[slot])
                        _newest(links, touched[slot])
                    else:
                        missing |= 1 << slot
                loads, spills, finished = 0.0, 0.0, 0.0
                if missing:
                    free = order == NO_SECOND_DY and gradient == 1
                    room, loads, spills = _load(
                        missing, room, free, touched, operand, elements, starts, rates, links, sizes, remaining, moved
                    )
                remaining[touched[2]] -= 1
                if remaining[touched[2]] == 0:
                    _unlink(links, touched[2])
                    room += sizes[touched[2], 0]
                    finished = elements[2] * rates[operand[2], MOVED]
                    moved[operand[2], WRITE] += finished
                clock += max(busy, transfer(loads + stores, speed, latency))
                busy = table[gradient, kinds[0, m], kinds[1, n], kinds[2, k]]
                done += busy
                all_moved += loads + spills + finished
                stores, before = spills + before, finished
                if number & 7 == 7:
                    left = float(passes * compute - done)
                    left = max(left, (limits[2] - all_moved) / speed) if passes == 1 else left
                    if clock + left > most:
                        return EXCEEDED, 0
        before_last = end
        end = clock + max(busy, transfer(stores, speed, latency)) + transfer(before, speed, latency)
    return end, before_last
