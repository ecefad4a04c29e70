"""Blocks of unequal length dealt out to equal units: whoever is free first takes the next block. Twin: `heapq` in the tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Whole = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def dealt(times: Whole, cycles: Whole, units: int) -> int:
    """When the last unit ends, if block g is dealt times[g] times in a row and takes cycles[g] each time.

    Units are kept by the cycle in which they become free, in a ring as long as the longest block; all that are free at once and
    take the same block move together. The sorted loads of the units can only grow with any block's length, so shorter blocks
    never end later.
    """
    size = 1
    longest = cycles.max()
    while size <= longest:
        size *= 2
    free = np.zeros(size, np.int64)  # free[t % size]: units that become free at cycle t
    free[0] = units
    now, last = 0, 0
    for group in range(cycles.size):
        length, left = cycles[group], times[group]
        if length == 0:
            continue
        while left > 0:
            ready = free[now & (size - 1)]
            if ready == 0:
                now += 1
                continue
            taken = min(ready, left)
            free[now & (size - 1)] -= taken
            free[(now + length) & (size - 1)] += taken
            last = max(last, now + length)
            left -= taken
    return last


@njit(cache=True, nogil=True)
def makespan(cycles: Whole, repeats: int, units: int) -> int:
    """The same where every block is dealt `repeats` times."""
    return dealt(np.full(cycles.size, repeats, np.int64), cycles, units)
