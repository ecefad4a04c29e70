"""Compiled: the cycles of a stream of tile operations on one core whose least recent tiles leave first.

`scratchpad.run` is the general form (several cores, other policies). This one has no list of operations, gives the same
cycles and bytes, and gives up as soon as it cannot end within a limit: for a search of tiles. Recency is a log of touches: a tile
is resident where `last` has its last place in the log; the least recent tile is the first in the log with no later place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.mapping.gradient_order.scratchpad import ALONE, DW_MAJOR, DX_MAJOR, NO_SECOND_DY, SEQUENTIAL, Ints, Real
from trainyard.kernels.mapping.tiles import transfer

DY, W, X, DX, DW = range(5)
READ, WRITE, LEFT, BACK = range(4)
EXCEEDED = -1
HELD, MOVED, UNFINISHED = range(3)
SPILLED = 1 << 40
"""Added to the operations that are left of a sum while it is spilled."""
Short = npt.NDArray[np.int32]


@njit(cache=True, error_model="numpy", inline="always")
def _evict(
    needed: float, room: float, tail: int, log: Short, last: Short, sizes: Real, remaining: Ints, sums: int, sums_of_dw: int,
    moved: Real,
) -> tuple[float, int, float]:  # fmt: skip
    """The least recent tiles leave until there is room; returns it, the log's new beginning, and bytes of spilled sums."""
    spills = 0.0
    while room < needed:
        victim = log[tail]
        if last[victim] == tail:
            last[victim] = -1
            room += sizes[victim, 0]
            if victim >= sums:
                remaining[victim] += SPILLED
                spills += sizes[victim, 1]
                moved[DX if victim < sums_of_dw else DW, LEFT] += sizes[victim, 1]
        tail += 1
    return room, tail, spills


@njit(cache=True, error_model="numpy")
def _advance(at: Ints, gradient: int, first: Ints, last: Ints, axes: Ints) -> None:
    """The next position of a gradient's loop nest."""
    inner = axes[gradient, 2]
    at[gradient, inner] += 1
    if at[gradient, inner] == last[inner]:
        at[gradient, inner] = first[inner]
        middle = axes[gradient, 1]
        at[gradient, middle] += 1
        if at[gradient, middle] == last[middle]:
            at[gradient, middle] = first[middle]
            at[gradient, axes[gradient, 0]] += 1


@njit(cache=True, error_model="numpy")
def _nests(order: int) -> Ints:
    """Axes of the loop nests of dX and dW, outer to inner."""
    axes = np.empty((2, 3), np.int64)
    axes[0, 0], axes[0, 1], axes[0, 2] = (1, 2, 0) if order == DW_MAJOR else (0, 2, 1)
    axes[1, 0], axes[1, 1], axes[1, 2] = (1, 2, 0) if order == DW_MAJOR else ((0, 2, 1) if order == DX_MAJOR else (2, 1, 0))
    return axes


@njit(cache=True, error_model="numpy")
def _clear(last: Short, remaining: Ints, sums: int, sums_of_dw: int, counts: Ints, moved: Real) -> None:
    """Nothing is resident, no sum has begun, nothing has moved."""
    last[:] = -1
    remaining[sums:sums_of_dw] = counts[1]
    remaining[sums_of_dw:] = counts[0]
    moved[:] = 0.0


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
    speed, paired, gradients = limits[1], order not in (SEQUENTIAL, NO_SECOND_DY, ALONE), 1 if order == ALONE else 2
    high, wide, deep = counts[0], counts[1], counts[2]
    weights, inputs, sums = high * wide, (high + deep) * wide, (high + deep) * wide + high * deep
    sums_of_dw, total = sums + high * deep, sums + high * deep + deep * wide
    log, last = np.empty(3 * gradients * high * wide * deep, np.int32), np.empty(total, np.int32)
    sizes, remaining, touched, elements = np.empty((total, 2)), np.empty(total, np.int64), np.empty(3, np.int64), np.empty(3)
    axes, begin, until, at = _nests(order), np.zeros(3, np.int64), counts.copy(), np.empty((2, 3), np.int64)
    clock, busy, done, end, before_last, stores, before, all_moved = 0, 0, 0, 0, 0, 0.0, 0.0, 0.0
    for _ in range(passes):
        _clear(last, remaining, sums, sums_of_dw, counts, moved)
        room, head, tail, all_moved = limits[0], 0, 0, 0.0
        for part in range(len(bounds)):
            if axis >= 0:
                begin[axis], until[axis] = bounds[part, 0], bounds[part, 1]
            operations = (until[0] - begin[0]) * (until[1] - begin[1]) * (until[2] - begin[2])
            for side in range(3):
                at[0, side], at[1, side] = begin[side], begin[side]
            for number in range(gradients * operations):
                gradient = number & 1 if paired else int(number >= operations)
                m, n, k = at[gradient, 0], at[gradient, 1], at[gradient, 2]
                _advance(at, gradient, begin, until, axes)
                area = lengths[0, m] * lengths[1, n], lengths[2, k] * lengths[1, n], lengths[0, m] * lengths[2, k]  # of dY, W, X
                place = m * wide + n, weights + k * wide + n, inputs + m * deep + k
                # touched in this order: dY, W, dX or X, dY, dW
                result = place[2] + sums - inputs if gradient == 0 else place[1] + sums_of_dw - weights
                touched[gradient], touched[1 - gradient], touched[2] = place[0], place[1 + gradient], result
                elements[gradient], elements[1 - gradient], elements[2] = area[0], area[1 + gradient], area[2 - gradient]
                loads, spills, finished, missing = 0.0, 0.0, 0.0, False
                for slot in range(3):
                    if last[touched[slot]] >= 0:
                        log[head], last[touched[slot]], head = touched[slot], head, head + 1
                    else:
                        missing = True
                for slot in range(3 if missing else 0):
                    tile, tensor = touched[slot], DX + gradient if slot == 2 else (DY if slot == gradient else W + gradient)
                    if last[tile] >= 0:
                        continue
                    held = elements[slot] * rates[tensor, HELD]
                    if room < held:
                        room, tail, spilled = _evict(held, room, tail, log, last, sizes, remaining, sums, sums_of_dw, moved)
                        spills += spilled
                    log[head], last[tile], head, room, sizes[tile, 0] = tile, head, head + 1, room - held, held
                    if slot == 2:
                        sizes[tile, 1] = elements[2] * rates[tensor, UNFINISHED]
                        if remaining[tile] >= SPILLED:
                            remaining[tile] -= SPILLED
                            loads, moved[tensor, BACK] = loads + sizes[tile, 1], moved[tensor, BACK] + sizes[tile, 1]
                    elif order != NO_SECOND_DY or gradient == 0 or tensor != DY:
                        loads += elements[slot] * rates[tensor, MOVED]
                        moved[tensor, READ] += elements[slot] * rates[tensor, MOVED]
                remaining[result] -= 1
                if remaining[result] == 0:
                    last[result], room, finished = -1, room + sizes[result, 0], elements[2] * rates[DX + gradient, MOVED]
                    moved[DX + gradient, WRITE] += finished
                clock += max(busy, transfer(loads + stores, speed, latency))
                busy = table[gradient, kinds[0, m], kinds[1, n], kinds[2, k]]
                done, all_moved = done + busy, all_moved + loads + spills + finished
                stores, before = spills + before, finished
                if number & 7 == 7:
                    left = float(passes * compute - done)
                    left = max(left, (limits[2] - all_moved) / speed) if passes == 1 else left
                    if clock + left > most:
                        return EXCEEDED, 0
        before_last = end
        end = clock + max(busy, transfer(stores, speed, latency)) + transfer(before, speed, latency)
    return end, before_last
