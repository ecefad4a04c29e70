"""Compiled: the useful sizes of a tile along one axis.

A dimension of D elements in c tiles needs tiles of ceil(D / c), its near-divisors: a larger tile of the same count moves the same
bytes and takes more room. Beside each of them stand the next multiple of what the array takes at once (a fold), and the smallest
size that leaves one fold less to the last tile. Where there are few tiles, a large first and a small last one may overlap better
with the DRAM: sizes in between are tried, too. Short dimensions have all sizes, small products more than others.
Near-divisors that differ by less than 5 % are thinned; the search fills the gaps around its best tiles (`tile_search`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

FEW, FEW_POOLED, UNEVEN = 3, 6, 2
"""Up to so many tiles (on an array without folds along an axis: so many), this many larger sizes of the same count are tried: the
last tile is then smaller."""
ALL_BELOW = 32
"""Dimensions up to this long have every size."""
FINE, FINE_CLOSEST = 8, 1.02
"""Where sizes in between are not tried after the search, and in small products, so many counts of tiles have so many larger sizes,
and near-divisors that differ by less than the second number are thinned."""
SMALL = 2.0**20
"""Multiplications of a small product, which has a short axis (ALL_BELOW) too: the first load and the last store weigh most there,
and a search has little to do."""
DENSE_BELOW = 16
"""Near-divisors up to this size are not thinned."""
CLOSEST = 1.05
"""The least ratio of two larger near-divisors."""


@njit(cache=True, error_model="numpy")
def most_sizes(extent: int, folds: int) -> int:
    """Space that the sizes of a dimension need: all, or near-divisors with two neighbours for each fold."""
    near = DENSE_BELOW + 2.0 + np.log(max(1.0, extent / DENSE_BELOW)) / np.log(FINE_CLOSEST)
    return int(min(extent, near * (1 + 2 * folds))) + ALL_BELOW + 2 * FINE * FINE


@njit(cache=True, error_model="numpy")
def useful_sizes(extent: int, folds: Ints, fine: bool, sizes: Ints) -> int:
    """Writes the useful sizes of a dimension in ascending order; `folds` are multiples that sizes may be aligned to, or 0 where the
    array has none: then elements of two axes share its folds. `fine` leaves more of them (FINE)."""
    count, few, uneven = 0, FEW if folds[0] > 0 else FEW_POOLED, UNEVEN
    if fine:
        few, uneven = FINE, FINE
    if extent <= ALL_BELOW:
        for size in range(1, extent + 1):
            sizes[count] = size
            count += 1
        return count
    near, waiting = 1, np.empty(2 * (1 + uneven) * (folds.shape[0] + 1), np.int64)
    while True:
        tiles = (extent + near - 1) // near
        near = (extent + tiles - 1) // tiles  # the smallest size with this count
        waiting[0], many = near, 1
        edge = extent - (tiles - 1) * near
        follow = (extent + tiles - 2) // (tiles - 1) if tiles > 1 else near
        for which in range(folds.shape[0]):
            fold = folds[which]
            if fold <= 1:
                continue
            aligned = (near + fold - 1) // fold * fold
            if aligned < extent:
                waiting[many] = aligned
                many += 1
            whole = edge // fold * fold
            if tiles > 1 and 0 < whole < edge:
                waiting[many] = (extent - whole + tiles - 2) // (tiles - 1)
                many += 1
        if 1 < tiles <= few:
            for part in range(1, uneven + 1):
                size = near + (follow - near) * part // (uneven + 1)
                below = size // folds[0] * folds[0] if folds[0] > 0 else size
                above = below + folds[0] if below < size else size
                waiting[many] = below if below > near else size
                many += int(near < waiting[many] < follow)
                waiting[many] = above
                many += int(waiting[many - 1] < above < follow)
        for index in range(many):  # each is larger than `near`, few of them: insertion keeps the order
            size, place = waiting[index], count
            while place > 0 and sizes[place - 1] > size:
                place -= 1
            if place > 0 and sizes[place - 1] == size:
                continue
            for later in range(count, place, -1):
                sizes[later] = sizes[later - 1]
            sizes[place] = size
            count += 1
        if near == extent:
            return count
        if near >= DENSE_BELOW:
            follow = max(follow, int(near * (FINE_CLOSEST if fine else CLOSEST)))
        near = min(extent, follow)


def sizes_of(extent: int, folds: Any) -> list[int]:
    """`useful_sizes` as a list.

    >>> sizes_of(100, [32])
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 17, 20, 25, 32, 34, 39, 44, 50, 64, 68, 96, 100]
    """
    aligned = np.asarray(folds, np.int64)
    sizes = np.empty(most_sizes(extent, len(aligned)), np.int64)
    return sizes[: useful_sizes(extent, aligned, False, sizes)].tolist()  # type: ignore[no-any-return]
