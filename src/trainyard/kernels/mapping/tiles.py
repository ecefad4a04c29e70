"""Compiled: the cycles of a product on given tiles. Plain Python: `mapping.walk`, which visits every tile one by one.

Axes are numbered m, n, k = 0, 1, 2. A size is stored with its edge: `tile[axis] = (full, count, edge)`. `rates` are bytes per
matrix element: of A, B, finished and unfinished sums as they cross the DRAM's pins, then of A and B as they lie in the scratchpad
(unfinished sums are the same in both). `spans` are the sides of a full and of an edge tile that bytes are counted by: of A along m
and along k, of finished sums along m. They are larger than the tile's own where a convolution's windows overlap (`mapping.halo`).
`keep` has a bit for each tensor that stays in the scratchpad while the loop that it lacks runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.uncounted import inlined, uncounted

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

KEEP_A, KEEP_B, KEEP_SUMS = 1, 2, 4
"""Bits of `keep`."""
BYTES = 70
"""Kinds of steps of a tiling at most: 64 places in the loops, the first fill, the last drain, and both ends once more. Behind them
lie bytes of tiles, while steps are looked at (`_write_bytes`)."""
STEP_KINDS = BYTES + 16
"""Rows that steps by kind need."""
ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], dtype=np.int64)
"""Outer to inner, by axis."""


@njit(cache=True, error_model="numpy", inline="always")
def cut_sizes(tile: Ints, axis: int, extent: int, size: int) -> None:
    """Size, count and edge along an axis."""
    count = (extent + size - 1) // size
    tile[axis, 0], tile[axis, 1], tile[axis, 2] = size, count, extent - (count - 1) * size


@inlined
def transfer(moved: float, bytes_per_cycle: float, latency: int) -> int:
    """Cycles of one DMA burst: nothing for no bytes, else the latency and whole cycles of data."""
    if moved <= 0.0:
        return 0
    return latency + int(np.ceil(moved / bytes_per_cycle))


@uncounted
def step_kinds(tile: Ints, spans: Real, order: Ints, keep: int, count: int, rates: Real, kinds: Ints, rows: Real) -> int:
    """All steps of a tiling by kind, in `rows` (STEP_KINDS at most): how many there are, compute cycles and bytes over the DRAM.

    The first fill and the last drain are steps without compute. `tile[axis] = (full, count, edge)`; `kinds[em, en, ek]` are compute
    cycles of a tile, e = 1 where it is the clipped one. Steps that look alike (the first, the last, the last but one and all others
    of each loop) are looked at once: at most 64 of them.
    """
    x, y, z = order[0], order[1], order[2]
    first, second, third = tile[x, 1], tile[y, 1], tile[z, 1]
    _write_bytes(tile, spans, order, keep, rates, rows)
    fill = spans[0, int(tile[0, 1] == 1)] * spans[1, int(tile[2, 1] == 1)] * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
    drain = spans[2, 1] * tile[1, 2] * rates[2]
    rows[0, 0], rows[0, 1], rows[0, 2] = 1.0, 0.0, fill
    rows[1, 0], rows[1, 1], rows[1, 2] = 1.0, 0.0, drain
    many = 2
    stride_x, stride_y, stride_z = 4 >> x, 4 >> y, 4 >> z  # of edges along m, n and k in `kinds`
    for c0 in range(min(first, 4)):
        x0, w0 = _representative(c0, first)
        e0 = int(x0 == first - 1)
        for c1 in range(min(second, 4)):
            x1, w1 = _representative(c1, second)
            e1 = int(x1 == second - 1)
            for c2 in range(min(third, 4)):
                x2, w2 = _representative(c2, third)
                e2 = int(x2 == third - 1)
                edges = e0 * stride_x + e1 * stride_y + e2 * stride_z
                compute = float(kinds[edges >> 2, edges >> 1 & 1, edges & 1])
                is_last, is_first = e0 + e1 + e2 == 3, x0 + x1 + x2 == 0
                load, store = fill, drain  # of the neighbouring product, where count > 1
                if not is_last:
                    load = _load(rows, x0, x1, x2, first, second, third)
                if not is_first:
                    store = _store(rows, x0, x1, x2, first, second, third)
                alike = float(w0) * w1 * w2 * count
                if is_first or is_last:  # nothing before the first step of all, nothing after the last one
                    rows[many, 0], rows[many, 1], rows[many, 2] = 1.0, compute, load if is_first else store
                    alike -= 1.0
                    if is_first and is_last:
                        rows[many, 2] = load if count > 1 else 0.0
                        if count > 1:
                            many += 1
                            rows[many, 0], rows[many, 1], rows[many, 2] = 1.0, compute, store
                            alike -= 1.0
                    many += 1
                if alike > 0.0:
                    rows[many, 0], rows[many, 1], rows[many, 2] = alike, compute, load + store
                    many += 1
    return many


@njit(cache=True, error_model="numpy", inline="always")
def cycles_of_steps(rows: Real, many: int, speed: float, latency: int) -> float:
    """Cycles of steps by kind: each the longer of its compute and of the concurrent DRAM work, at `speed` bytes per cycle."""
    total, late = 0.0, float(latency)
    for row in range(many):
        moved = rows[row, 2]
        busy = late + np.ceil(moved / speed) if moved > 0.0 else 0.0
        total += rows[row, 0] * max(rows[row, 1], busy)
    return total


@njit(cache=True, error_model="numpy")
def tiled_cycles(
    tile: Ints, spans: Real, order: Ints, keep: int, count: int, rates: Real, speed: float, latency: int, kinds: Ints
) -> float:  # fmt: skip
    """Cycles of all tile steps: each the longer of its compute and of the concurrent DRAM work; plus the first fill and last drain.

    They are exact up to 2**53.
    """
    rows = np.empty((STEP_KINDS, 3))
    return cycles_of_steps(rows, step_kinds(tile, spans, order, keep, count, rates, kinds, rows), speed, latency)


@inlined
def _write_bytes(tile: Ints, spans: Real, order: Ints, keep: int, rates: Real, rows: Real) -> None:
    """Bytes of a tile, in the rows from BYTES on: to load in the first turn of the loop that its tensor lacks, to load in later
    turns, to store before the last turn, to store after it, four rows each, by edges along the two other loops; in columns by the
    loop that the tensor lacks (outer 0, middle 1, inner 2)."""
    for place in range(3):
        one, other = order[1 if place == 0 else 0], order[1 if place == 2 else 2]
        for edge in range(2):
            for beside in range(2):
                area = float(tile[one, 2 * edge]) * tile[other, 2 * beside]
                loads, again, stores, finished = 0.0, 0.0, 0.0, 0.0
                if order[place] == 0:
                    loads = area * rates[1]
                    again = 0.0 if keep & KEEP_B else loads
                elif order[place] == 1:
                    loads = (spans[0, edge] * spans[1, beside] if one == 0 else spans[0, beside] * spans[1, edge]) * rates[0]
                    again = 0.0 if keep & KEEP_A else loads
                else:
                    again = stores = 0.0 if keep & KEEP_SUMS else area * rates[3]
                    finished = (spans[2, edge] * tile[1, 2 * beside] if one == 0 else spans[2, beside] * tile[1, 2 * edge]) * rates[
                        2
                    ]
                at = BYTES + 2 * edge + beside
                rows[at, place], rows[at + 4, place], rows[at + 8, place], rows[at + 12, place] = loads, again, stores, finished


@njit(cache=True, error_model="numpy", inline="always")
def _bytes(rows: Real, which: int, place: int, edge: int, beside: int) -> float:
    return float(rows[BYTES + 4 * which + 2 * edge + beside, place])


@njit(cache=True, error_model="numpy", inline="always")
def _load(rows: Real, x0: int, x1: int, x2: int, first: int, second: int, third: int) -> float:
    """Bytes that the next step needs and the scratchpad does not hold: new operand tiles, and sums begun earlier."""
    e0, e1 = int(x0 == first - 1), int(x1 == second - 1)
    if x2 < third - 1:
        e2 = int(x2 == third - 2)
        return float(_bytes(rows, int(x1 > 0), 1, e0, e2) + _bytes(rows, int(x0 > 0), 0, e1, e2))
    alone = int(third == 1)
    if x1 < second - 1:
        e1 = int(x1 == second - 2)
        load = _bytes(rows, 0, 2, e0, e1) + _bytes(rows, int(x0 > 0), 0, e1, alone)
        return float(load if alone else load + _bytes(rows, 1, 1, e0, 0))
    e0, e1 = int(x0 == first - 2), int(second == 1)
    load = _bytes(rows, 0, 2, e0, e1) + _bytes(rows, 0, 1, e0, alone)
    return float(load if alone and e1 else load + _bytes(rows, 1, 0, e1, alone))


@njit(cache=True, error_model="numpy", inline="always")
def _store(rows: Real, x0: int, x1: int, x2: int, first: int, second: int, third: int) -> float:
    """Bytes of sums that the step before left behind for this one to write: finished or not."""
    e0, e1 = int(x0 == first - 1), int(x1 == second - 1)
    if x2 > 0:  # the tensor without the inner loop stays
        return float(_bytes(rows, 2 + e1, 1, e0, 0) + _bytes(rows, 2 + e0, 0, e1, 0))
    alone = int(third == 1)
    if x1 > 0:
        store = _bytes(rows, 3, 2, e0, 0) + _bytes(rows, 2 + e0, 0, 0, 1)
        return float(store if alone else store + _bytes(rows, 2, 1, e0, 1))
    store = _bytes(rows, 3, 2, 0, 1) + _bytes(rows, 3, 1, 0, 1)
    return float(store if alone and second == 1 else store + _bytes(rows, 2, 0, 1, 1))


@njit(cache=True, error_model="numpy", inline="always")
def _representative(which: int, many: int) -> tuple[int, int]:
    """The index that stands for a class of loop positions, and how many it stands for."""
    if many <= 3:
        return which, 1
    if which == 1:
        return 1, many - 3
    return (0 if which == 0 else many - 4 + which), 1
