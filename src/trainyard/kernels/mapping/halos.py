"""Compiled: how far the tile of an unfolded convolution reaches. Plain Python: `mapping.halo.Halo.spread`, the same numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Real = npt.NDArray[np.float64]

FIRST_AXIS, PER_AXIS = 4, 4
"""A halo is a row of numbers: how many axes (0: no halo), positions, positions in one place, weight; then of each axis, from the
innermost, extent, revisits of an element, mean gap, mean distance from its first to its last window (`mapping.halo.Halo.row`)."""


@njit(cache=True, error_model="numpy")
def _greatest_common_divisor(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@njit(cache=True, error_model="numpy")
def spread(size: int, row: Real) -> float:
    """Rows of the matrix whose share of the image a tile of `size` consecutive rows takes, overlapping windows included.

    The mean over the tiles that start at 0, size, 2 * size, ...: never below `size`, and all of them for the whole dimension.
    """
    axes = int(row[0])
    if axes == 0:
        return float(size)
    positions, unit = int(row[1]), int(row[2])
    step = min(size * unit, positions)
    starts = (positions - 1) // step  # of tiles, without the first
    if starts == 0:
        return float(size)
    chance = np.zeros(3)  # that a tile starts between two neighbours along an axis, by axis
    inside, left, around = 1, starts, positions
    for axis in range(axes):
        extent = int(row[FIRST_AXIS + PER_AXIS * axis])
        inside *= extent
        aligned = starts // (inside // _greatest_common_divisor(step, inside))
        around //= extent
        if extent > 1:
            chance[axis] = float(left - aligned) / float(around * (extent - 1))
        left = aligned
    again = 0.0
    for axis in range(axes):
        at = FIRST_AXIS + PER_AXIS * axis
        steps = row[at + 2]
        cut = steps * chance[axis]
        for inner in range(axis - 1, -1, -1):
            below = FIRST_AXIS + PER_AXIS * inner
            finer = steps * row[below] - row[below + 3]
            cut += (finer - steps) * chance[inner]
            steps = finer
        again += row[at + 1] * (1.0 if steps >= step else min(1.0, cut))
    extra = min(again * positions / float(starts + 1), float(positions - step))
    return float(float(size) + row[3] * extra / float(unit))
