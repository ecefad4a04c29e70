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

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

KEEP_A, KEEP_B, KEEP_SUMS = 1, 2, 4
"""Bits of `keep`."""
ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], dtype=np.int64)
"""Outer to inner, by axis."""


@njit(cache=True, error_model="numpy")
def transfer(moved: float, bytes_per_cycle: float, latency: int) -> int:
    """Cycles of one DMA burst: nothing for no bytes, else the latency and whole cycles of data."""
    if moved <= 0.0:
        return 0
    return latency + int(np.ceil(moved / bytes_per_cycle))


@njit(cache=True, error_model="numpy", inline="always")
def _side(tile: Ints, axis: int, index: int) -> int:
    """A tile's extent at an index along an axis: the last one may be clipped."""
    return tile[axis, 2] if index == tile[axis, 1] - 1 else tile[axis, 0]  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy", inline="always")
def _at(position: int, outer: int, middle: int, inner: int) -> int:
    """The index of the loop at a position of the nest."""
    return outer if position == 0 else (middle if position == 1 else inner)


@njit(cache=True, error_model="numpy", inline="always")
def _span(spans: Real, which: int, tile: Ints, axis: int, index: int) -> float:
    """The side of a tile that its bytes are counted by."""
    return spans[which, 1] if index == tile[axis, 1] - 1 else spans[which, 0]  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy")
def tiled_cycles(
    tile: Ints, spans: Real, order: Ints, keep: int, count: int, rates: Real, speed: float, latency: int, kinds: Ints, most: int
) -> int:  # fmt: skip
    """Cycles of all tile steps: each the longer of its compute and of the concurrent DRAM work; plus the first fill and last drain.

    `tile[axis] = (full, count, edge)`; `kinds[em, en, ek]` are compute cycles of a tile, e = 1 where it is the clipped one;
    `speed` is bytes per cycle. Steps that look alike (the first, the last, the last but one and all others of each loop) are
    evaluated once: at most 64 of them. What is more than `most` is not counted to its end.
    """
    first, second, third = tile[order[0], 1], tile[order[1], 1], tile[order[2], 1]
    at_m = 0 if order[0] == 0 else (1 if order[1] == 0 else 2)
    at_n = 0 if order[0] == 1 else (1 if order[1] == 1 else 2)
    at_k = 0 if order[0] == 2 else (1 if order[1] == 2 else 2)
    fill = _span(spans, 0, tile, 0, 0) * _span(spans, 1, tile, 2, 0) * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
    drain = spans[2, 1] * tile[1, 2] * rates[2]
    total = transfer(fill, speed, latency) + transfer(drain, speed, latency)
    for c0 in range(min(first, 4)):
        x0, w0 = _representative(c0, first)
        for c1 in range(min(second, 4)):
            x1, w1 = _representative(c1, second)
            for c2 in range(min(third, 4)):
                x2, w2 = _representative(c2, third)
                m, n, k = _at(at_m, x0, x1, x2), _at(at_n, x0, x1, x2), _at(at_k, x0, x1, x2)
                compute = kinds[int(m == tile[0, 1] - 1), int(n == tile[1, 1] - 1), int(k == tile[2, 1] - 1)]
                is_last = x0 == first - 1 and x1 == second - 1 and x2 == third - 1
                is_first = x0 == 0 and x1 == 0 and x2 == 0
                load, store = fill, drain  # of the neighbouring product, where count > 1
                if not is_last:
                    y0, y1, y2 = x0, x1, x2 + 1
                    if y2 == third:
                        y1, y2 = y1 + 1, 0
                        if y1 == second:
                            y0, y1 = y0 + 1, 0
                    load = _load(
                        tile, spans, keep, m, n, k, _at(at_m, y0, y1, y2), _at(at_n, y0, y1, y2), _at(at_k, y0, y1, y2), rates
                    )
                if not is_first:
                    y0, y1, y2 = x0, x1, x2 - 1
                    if y2 < 0:
                        y1, y2 = y1 - 1, third - 1
                        if y1 < 0:
                            y0, y1 = y0 - 1, second - 1
                    store = _store(
                        tile, spans, keep, m, n, _at(at_m, y0, y1, y2), _at(at_n, y0, y1, y2), _at(at_k, y0, y1, y2), rates
                    )
                both = max(compute, transfer(load + store, speed, latency))
                if is_first and is_last:
                    ends = max(compute, transfer(load, speed, latency)) + max(compute, transfer(store, speed, latency))
                    total += compute if count == 1 else ends + (count - 2) * both
                elif is_first:
                    total += max(compute, transfer(load, speed, latency)) + (count - 1) * both
                elif is_last:
                    total += max(compute, transfer(store, speed, latency)) + (count - 1) * both
                else:
                    total += w0 * w1 * w2 * count * both
            if total > most:
                return total
    return total


@njit(cache=True, error_model="numpy", inline="always")
def _load(
    tile: Ints, spans: Real, keep: int, m: int, n: int, k: int, next_m: int, next_n: int, next_k: int, rates: Real
) -> float:  # fmt: skip
    """Bytes that the next step needs and the scratchpad does not hold: new operand tiles, and sums begun earlier."""
    columns, deep = _side(tile, 1, next_n), _side(tile, 2, next_k)
    load = 0.0
    if (next_m != m or next_k != k) and (next_n == 0 or not keep & KEEP_A):
        load += _span(spans, 0, tile, 0, next_m) * _span(spans, 1, tile, 2, next_k) * rates[0]
    if (next_k != k or next_n != n) and (next_m == 0 or not keep & KEEP_B):
        load += deep * columns * rates[1]
    if (next_m != m or next_n != n) and next_k > 0 and not keep & KEEP_SUMS:
        load += _side(tile, 0, next_m) * columns * rates[3]
    return load


@njit(cache=True, error_model="numpy", inline="always")
def _store(
    tile: Ints, spans: Real, keep: int, m: int, n: int, last_m: int, last_n: int, last_k: int, rates: Real
) -> float:  # fmt: skip
    """Bytes of sums that the step before left behind for this one to write: finished or not."""
    if last_m == m and last_n == n:
        return 0.0
    if last_k == tile[2, 1] - 1:
        return float(_span(spans, 2, tile, 0, last_m) * _side(tile, 1, last_n) * rates[2])
    if keep & KEEP_SUMS:
        return 0.0
    return float(_side(tile, 0, last_m) * _side(tile, 1, last_n) * rates[3])


@njit(cache=True, error_model="numpy", inline="always")
def _representative(which: int, many: int) -> tuple[int, int]:
    """The index that stands for a class of loop positions, and how many it stands for."""
    if many <= 3:
        return which, 1
    if which == 1:
        return 1, many - 3
    return (0 if which == 0 else many - 4 + which), 1
