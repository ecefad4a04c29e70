"""Counting the bits of a cut of a matrix, or those that windows see without writing the windows down. The plain twin is
`masks.views.matrix`.

Rows of the matrix are (group, sample, place), columns (channel of the group, tap). Channels lie side by side in memory, so that one
tap of one window is a run of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Octets = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int64]


@njit(cache=True)
def count_range(bits: Octets, rows: Whole, columns: Whole, by_row: bool, counts: Whole) -> None:
    """Adds up, by row or by column of the cut, what is set in a matrix."""
    for row in range(rows[0], rows[1]):
        run = bits[row, columns[0] : columns[1]]
        if by_row:
            total = 0
            for index in range(run.size):
                total += run[index]
            counts[row - rows[0]] = total
        else:
            for index in range(run.size):
                counts[index] += run[index]


@njit(cache=True)
def count_windows(
    bits: Octets, spots: Whole, samples: int, channels: int, rows: Whole, columns: Whole, by_row: bool, counts: Whole
) -> None:
    """Adds up, by row or by column of the cut, what is set.

    `bits` is [sample, position, channel]; `spots[place, tap]` is the position that a tap of a window looks at, -1 where it is in
    the padding or on an inserted zero. A step of more `samples` than were recorded sees them again.
    """
    places, window = spots.shape
    low, high = np.empty(window, np.int64), np.empty(window, np.int64)  # channels whose column of this tap is in the cut
    for tap in range(window):
        low[tap] = max(0, -((tap - columns[0]) // window))
        high[tap] = -((tap - columns[1]) // window)
    found = np.zeros((window, channels), np.int64)
    for row in range(rows[0], rows[1]):
        line, place = divmod(row, places)
        group, sample = divmod(line, samples)
        sample %= bits.shape[0]
        first = group * channels
        total = 0
        for tap in range(window):
            spot = spots[place, tap]
            if spot < 0 or low[tap] >= high[tap]:
                continue
            run = bits[sample, spot, first + low[tap] : first + high[tap]]
            if by_row:
                for index in range(run.size):
                    total += run[index]
            else:
                sums = found[tap, low[tap] : high[tap]]
                for index in range(run.size):
                    sums[index] += run[index]
        if by_row:
            counts[row - rows[0]] = total
    if not by_row:
        for column in range(columns[0], columns[1]):
            counts[column - columns[0]] = found[column % window, column // window]
