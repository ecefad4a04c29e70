"""Compiled: what follows from the tiles of many products. The plain twins are `devices.accelerator.costs.Costing._product` and
`_tile_events`.

Counts of bytes are real numbers here: the caller looks whether any leaves what these count exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
MOVES = 5
"""Bytes of A, of B and of sums that spill, and what comes and goes in all."""


@njit(cache=True, error_model="numpy")
def product_costs(found: Whole, sizes: Real, settled: Real, operations: Whole, lanes: int, speed: float) -> Any:
    """Of each product: cycles, what bounds it (0 compute, 1 DRAM, 2 vector unit), its MOVES, and how long a byte is waited for.

    `found` has the rows of the tile search, `sizes` the bytes of A, B, finished sums, all sums; `settled` what an epilogue reads
    and writes. Last comes the largest count of all.
    """
    count, largest = found.shape[0], 0.0
    cycles, bound = np.empty(count, np.int64), np.empty(count, np.int64)
    moves, waiting = np.empty((MOVES, count)), np.empty(count)
    for row in range(count):
        compute = found[row, 5]
        a_read, b_read = found[row, 7] * sizes[row, 0], found[row, 8] * sizes[row, 1]
        spilled = (found[row, 9] - 1) * sizes[row, 3]
        total = a_read + b_read + sizes[row, 2] + 2.0 * spilled
        vector = (operations[row] + lanes - 1) // lanes
        dram = np.ceil(total / speed)
        cycles[row] = max(found[row, 4], vector)
        bound[row] = 0 if compute >= dram and compute >= vector else (1 if dram >= vector else 2)
        waiting[row] = max(0, cycles[row] - compute) / max(1.0, total)
        moves[0, row], moves[1, row], moves[2, row] = a_read, b_read, 2.0 * spilled
        moves[3, row], moves[4, row] = settled[row, 0] + a_read + b_read + spilled, settled[row, 1] + spilled
        largest = max(largest, total, dram, float(cycles[row]))
    return cycles, bound, moves, waiting, largest


@njit(cache=True, error_model="numpy")
def chain_shares(cycles: Whole, waiting: Real, chains: Whole, drained: Real, lengths: Whole) -> Any:
    """Time of a product and the ops of its epilogue, as parts of 1 (`devices.accelerator.counting.shares`): theirs by the bytes
    they move."""
    shares = np.zeros(drained.shape)
    for row in range(chains.shape[0]):
        length, late = lengths[row], 0.0
        for place in range(1, length):
            shares[row, place] = drained[row, place] * waiting[chains[row]]
            late += shares[row, place]
        shares[row, 0] = cycles[chains[row]] - late
        total, before = 0.0, 0.0
        for place in range(length):
            total += shares[row, place]
        for place in range(length):
            if total <= 0.0:
                shares[row, place] = 1.0 if place == 0 else 0.0
            elif place < length - 1:
                shares[row, place] /= total
                before += shares[row, place]
            else:
                shares[row, place] = 1.0 - before
    return shares


@njit(cache=True, error_model="numpy")
def tile_kinds(found: Whole, dims: Whole) -> Any:
    """Tiles of each product by kind: full or edge along m and n; along k the first, further full ones, the edge.

    Of each kind that there is: the product, its sides, how many there are, and whether earlier tiles have begun its sums.
    """
    most = 12 * found.shape[0]
    product, begun = np.empty(most, np.int64), np.empty(most)
    sides, times = np.empty((3, most)), np.empty(most)
    side, many = np.empty((3, 3), np.int64), np.empty((3, 3), np.int64)
    last = 0
    for row in range(found.shape[0]):
        for axis in range(3):
            whole, rest = divmod(dims[row, axis], found[row, axis])
            side[axis, 0], side[axis, 1], side[axis, 2] = found[row, axis], found[row, axis], rest
            many[axis, 0], many[axis, 1], many[axis, 2] = whole, 0, 1 if rest else 0
        many[2, 0], many[2, 1] = 1, many[2, 0] - 1
        for m in range(0, 3, 2):
            for n in range(0, 3, 2):
                for k in range(3):
                    alike = float(many[0, m]) * many[1, n] * many[2, k]
                    if alike > 0.0:
                        product[last], begun[last], times[last] = row, 0.0 if k == 0 else 1.0, alike
                        sides[0, last], sides[1, last], sides[2, last] = side[0, m], side[1, n], side[2, k]
                        last += 1
    return product[:last], sides[:, :last], times[:last], begun[:last]


@njit(cache=True, error_model="numpy")
def parts_of(moved: Real, demand: Whole, begin: Real, end: Real, last: npt.NDArray[np.bool_], first_row: Whole) -> Any:
    """Whole bytes of each op of each demand by key, as `booking.split` has them; and of each key the first op in a row of a plan.

    The last column is nobody's.
    """
    cells, keys = demand.shape[0], moved.shape[1]
    parts, first = np.zeros((keys, cells + 1), np.int64), np.full(keys, cells)
    for cell in range(cells):
        for key in range(keys):
            total = moved[demand[cell], key]
            if total == 0.0:
                continue
            edge = total if last[cell] else np.rint(total * end[cell])
            part = int(edge - np.rint(total * begin[cell]))
            parts[key, cell] = part
            if part != 0 and first_row[cell] < first_row[first[key]]:
                first[key] = cell
    return parts, first
