"""Costs of many products from their tiles, compiled. Plain Python: `devices.accelerator.costs.Costing._product` and `_tile_events`.

Bytes are floats here: the caller checks that none exceeds what a float counts exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
MOVES = 5
"""Bytes of A, of B and of spilled sums, and all bytes read and written."""


@njit(cache=True, error_model="numpy")
def product_costs(tiles: Ints, sizes: Real, epilogue: Real, operations: Ints, lanes: int, speed: float) -> Any:
    """For each product: cycles, its bound (0 compute, 1 DRAM, 2 vector unit), its MOVES, and the wait per byte.

    `tiles` has the rows of the tile search, `sizes` the bytes of A, B, finished sums, all sums; `epilogue` the bytes that an
    epilogue reads and writes. Last comes the largest count of all.
    """
    count, largest = tiles.shape[0], 0.0
    cycles, bound = np.empty(count, np.int64), np.empty(count, np.int64)
    moves, waiting = np.empty((MOVES, count)), np.empty(count)
    for row in range(count):
        compute = tiles[row, 5]
        a_read, b_read = tiles[row, 7] * sizes[row, 0], tiles[row, 8] * sizes[row, 1]
        spilled = (tiles[row, 9] - 1) * sizes[row, 3]
        total = a_read + b_read + sizes[row, 2] + 2.0 * spilled
        vector = (operations[row] + lanes - 1) // lanes
        dram = np.ceil(total / speed)
        cycles[row] = max(tiles[row, 4], vector)
        bound[row] = 0 if compute >= dram and compute >= vector else (1 if dram >= vector else 2)
        waiting[row] = max(0, cycles[row] - compute) / max(1.0, total)
        moves[0, row], moves[1, row], moves[2, row] = a_read, b_read, 2.0 * spilled
        moves[3, row], moves[4, row] = epilogue[row, 0] + a_read + b_read + spilled, epilogue[row, 1] + spilled
        largest = max(largest, total, dram, float(cycles[row]))
    return cycles, bound, moves, waiting, largest


@njit(cache=True, error_model="numpy")
def chain_shares(cycles: Ints, waiting: Real, chains: Ints, drained: Real, lengths: Ints) -> Any:
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
def tile_kinds(tiles: Ints, dims: Ints) -> Any:
    """Tiles of each product by kind: full or edge along m and n; along k the first, further full ones, the edge.

    For each kind that occurs: the product, its sides, how many there are, and whether earlier tiles have begun its sums.
    """
    most = 12 * tiles.shape[0]
    product, begun = np.empty(most, np.int64), np.empty(most)
    sides, times = np.empty((3, most)), np.empty(most)
    side, many = np.empty((3, 3), np.int64), np.empty((3, 3), np.int64)
    last = 0
    for row in range(tiles.shape[0]):
        for axis in range(3):
            full, rest = divmod(dims[row, axis], tiles[row, axis])
            side[axis, 0], side[axis, 1], side[axis, 2] = tiles[row, axis], tiles[row, axis], rest
            many[axis, 0], many[axis, 1], many[axis, 2] = full, 0, 1 if rest else 0
        many[2, 0], many[2, 1] = 1, many[2, 0] - 1
        for m in range(0, 3, 2):
            for n in range(0, 3, 2):
                for k in range(3):
                    number = float(many[0, m]) * many[1, n] * many[2, k]
                    if number > 0.0:
                        product[last], begun[last], times[last] = row, 0.0 if k == 0 else 1.0, number
                        sides[0, last], sides[1, last], sides[2, last] = side[0, m], side[1, n], side[2, k]
                        last += 1
    return product[:last], sides[:, :last], times[:last], begun[:last]


@njit(cache=True, error_model="numpy")
def parts_of(moved: Real, demand: Ints, begin: Real, end: Real, last: npt.NDArray[np.bool_], first_row: Ints) -> Any:
    """Ints bytes of each op of each demand by key, as `booking.split` has them; and of each key the first op in a row of a plan.

    The last column is unused.
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
