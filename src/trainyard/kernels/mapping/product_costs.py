"""Costs of a whole step from the tiles of its products, compiled. Plain Python: `devices.accelerator.costs.Costing`.

Bytes are floats here: the caller checks that none exceeds what a float counts exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MOVES = 5
"""Bytes of A, of B and of spilled sums, and all bytes read and written."""
LONGEST_ESTIMATE = 2.0**62
"""Picoseconds that the engine's clock does not reach (`ir.plan.LONGEST_PS`)."""


@njit(cache=True, error_model="numpy")
def step_costs(
    tiles: Ints, products: Real, product_rows: Ints, streams: Real, stream_rows: Ints, count: int, lanes: int, speed: float,
    resident: float, latency: float,
) -> Any:  # fmt: skip
    """All products and streams of a step: by demand (there are `count`) cycles, cycles of the array, and the bound (0 compute,
    1 DRAM, 2 vector unit); by product its MOVES and the wait per byte; by stream the bytes read; the largest count of all.

    `tiles` has the rows of the tile search. A row of `products` has the bytes of A, B, finished sums and all sums, the bytes that
    an epilogue reads and writes, and its vector operations; a row of `streams` bytes read and written, operations, bytes that come
    `again`, and the bytes that must fit on chip if they are not to. The memory has `speed` bytes per cycle, room for `resident`
    bytes on chip, and a `latency` in cycles.
    """
    largest = 0.0
    cycles, compute, bound = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    moves, waiting = np.empty((MOVES, tiles.shape[0])), np.empty(tiles.shape[0])
    reads = np.empty(streams.shape[0])
    for row in range(tiles.shape[0]):
        own, array = product_rows[row], tiles[row, 5]
        a_read, b_read = tiles[row, 7] * products[row, 0], tiles[row, 8] * products[row, 1]
        spilled = (tiles[row, 9] - 1) * products[row, 3]
        total = a_read + b_read + products[row, 2] + 2.0 * spilled
        vector = (int(products[row, 6]) + lanes - 1) // lanes
        dram = np.ceil(total / speed)
        cycles[own], compute[own] = max(tiles[row, 4], vector), array
        bound[own] = 0 if array >= dram and array >= vector else (1 if dram >= vector else 2)
        waiting[row] = max(0, cycles[own] - array) / max(1.0, total)
        moves[0, row], moves[1, row], moves[2, row] = a_read, b_read, 2.0 * spilled
        moves[3, row], moves[4, row] = products[row, 4] + a_read + b_read + spilled, products[row, 5] + spilled
        largest = max(largest, total, dram, float(cycles[own]))
    for row in range(streams.shape[0]):
        own = stream_rows[row]
        reads[row] = streams[row, 0] + (streams[row, 3] if streams[row, 4] > resident else 0.0)
        total = reads[row] + streams[row, 1]
        vector = (int(streams[row, 2]) + lanes - 1) // lanes
        dram = latency + np.ceil(total / speed) if total > 0.0 else 0.0
        largest = max(largest, total, dram)
        cycles[own], compute[own] = max(1, vector, int(min(dram, 2.0**53))), vector
        bound[own] = 0 if dram <= 0.0 and vector == 0 else (1 if dram >= vector else 2)
    return cycles, compute, bound, moves, waiting, reads, largest


@njit(cache=True, error_model="numpy")
def durations(cycles: Ints, compute: Ints, demand: Ints, multiplies: Flags, clock: float, numerator: int, denominator: int) -> Any:
    """Picoseconds of so many cycles, rounded up (`ir.plan.picoseconds`), and sums over the Works of a step, whose `demand` is the
    number of a row: of these times, of `cycles`, and of `compute` over the Works that multiply. The first sum is -1 where 64 bits
    do not hold what is needed. The clock is `numerator / denominator`.

    The quotient is estimated in floats. The remainder of the estimate is small, so arithmetic modulo 2**64 has it exactly.
    """
    times, together = np.empty(cycles.shape[0], np.int64), 0.0
    for row in range(cycles.shape[0]):
        estimate = cycles[row] * 1e12 / clock
        if not estimate < LONGEST_ESTIMATE or not (1.0 + estimate * 2.0**-50) * numerator < 2.0**62:
            return times, -1, 0, 0
        quotient = np.int64(estimate)
        exact = np.uint64(cycles[row]) * np.uint64(10**12) * np.uint64(denominator)
        left = np.int64(exact - np.uint64(quotient) * np.uint64(numerator))
        times[row] = quotient - (-left) // numerator
    total, all_cycles, array_cycles = np.int64(0), np.int64(0), np.int64(0)
    for work in range(demand.shape[0]):
        row = demand[work]
        total += times[row]
        together += float(times[row])
        all_cycles += cycles[row]
        array_cycles += compute[row] if multiplies[work] else 0
    return times, (total if together < LONGEST_ESTIMATE else np.int64(-1)), all_cycles, array_cycles


@njit(cache=True, error_model="numpy")
def joules(counts: Real, event: Ints, component: Ints, each: Real, rows: Ints, energy: Real) -> None:
    """Energy by [component, demand] of the events that the demands `rows` count ([event, row]): term by term `each` joules of an
    event in a component, added in their order (`Accelerator.energy`)."""
    for term in range(event.shape[0]):
        for row in range(rows.shape[0]):
            energy[component[term], rows[row]] += counts[event[term], row] * each[term]


@njit(cache=True, error_model="numpy")
def cell_edges(shares: Real, several: Ints, first_cell: Ints) -> Any:
    """Where the part of each cell begins and ends in the time of its demand, and its share; `several` are the demands with more
    than one cell, `shares` those of their cells. Plain Python: the edges of `results.booking.split`."""
    cells = first_cell[-1]
    begin, end, share = np.zeros(cells), np.ones(cells), np.ones(cells)
    for row in range(several.shape[0]):
        first, last, edge = first_cell[several[row]], first_cell[several[row] + 1] - 1, 0.0
        whole = shares[row, 0] == 1.0
        for cell in range(first, last + 1):
            share[cell] = shares[row, cell - first]
            edge += share[cell]
            if cell < last:
                begin[cell + 1] = end[cell] = 1.0 if whole else edge
    return begin, end, share


@njit(cache=True, error_model="numpy")
def energy_rows(energy: Real, cell: Ints, cell_demand: Ints, share: Real) -> Any:
    """Energy by [component, row]: a row is a copy of its cell, which has a `share` of its demand's; the last row is idle."""
    components, rows = energy.shape[0], cell.shape[0]
    spent = np.zeros((components, rows))
    for row in range(rows - 1):
        own = cell[row]
        demand, part = cell_demand[own], share[own]
        for component in range(components):
            spent[component, row] = energy[component, demand] * part
    return spent


@njit(cache=True, error_model="numpy")
def chain_shares(cycles: Ints, rows: Ints, waiting: Real, chains: Ints, drained: Real, lengths: Ints) -> Any:
    """Time of a product and the ops of its epilogue, as parts of 1 (`devices.accelerator.counting.shares`): theirs by the bytes
    they move. `rows` are the demands of all products, whose `cycles` are known."""
    shares = np.zeros(drained.shape)
    for row in range(chains.shape[0]):
        length, late = lengths[row], 0.0
        for place in range(1, length):
            shares[row, place] = drained[row, place] * waiting[chains[row]]
            late += shares[row, place]
        shares[row, 0] = cycles[rows[chains[row]]] - late
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
def parts_of(moved: Real, demand: Ints, begin: Real, end: Real, last: Flags, first_row: Ints) -> Any:
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
