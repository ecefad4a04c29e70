"""Non-zeros by row or column of a part of a matrix, or of the windows of a convolution without building them. Plain Python:
`masks.views.matrix`.

Rows of the matrix are (group, sample, window), columns (channel of the group, tap). Channels are contiguous in memory, so that one
tap of one window is a run of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Octets = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@njit(cache=True)
def count_range(bits: Octets, rows: Ints, columns: Ints, by_row: bool, counts: Ints) -> None:
    """Counts the set bits of a range of a matrix, by row or by column."""
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
    bits: Octets, table: Ints, samples: int, channels: int, rows: Ints, columns: Ints, by_row: bool, counts: Ints
) -> None:
    """Counts the set bits that windows read, by row or by column of a range.

    `bits` is [sample, position, channel]; `table[window, tap]` is the position that a tap reads, -1 in the padding or on an
    inserted zero. A step of more `samples` than were recorded repeats them.
    """
    windows, taps = table.shape
    low, high = np.empty(taps, np.int64), np.empty(taps, np.int64)  # channels whose column of this tap is in the cut
    for tap in range(taps):
        low[tap] = max(0, -((tap - columns[0]) // taps))
        high[tap] = -((tap - columns[1]) // taps)
    sums_of_tap = np.zeros((taps, channels), np.int64)
    for row in range(rows[0], rows[1]):
        line, window_number = divmod(row, windows)
        group, sample = divmod(line, samples)
        sample %= bits.shape[0]
        first = group * channels
        total = 0
        for tap in range(taps):
            position = table[window_number, tap]
            if position < 0 or low[tap] >= high[tap]:
                continue
            run = bits[sample, position, first + low[tap] : first + high[tap]]
            if by_row:
                for index in range(run.size):
                    total += run[index]
            else:
                sums = sums_of_tap[tap, low[tap] : high[tap]]
                for index in range(run.size):
                    sums[index] += run[index]
        if by_row:
            counts[row - rows[0]] = total
    if not by_row:
        for column in range(columns[0], columns[1]):
            counts[column - columns[0]] = sums_of_tap[column % taps, column // taps]
