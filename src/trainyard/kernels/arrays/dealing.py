"""List scheduling of unequal blocks on equal units: the first free unit takes the next block. Tests compare with `heapq`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def list_schedule(times: Ints, cycles: Ints, units: int) -> int:
    """The cycle in which the last unit ends, if block g is scheduled times[g] times in a row and takes cycles[g] each time.

    Units are counted by the cycle in which they become free, in a ring buffer as long as the longest block; all that are free at
    once and take the same block move together. The sorted loads of the units can only grow with any block's length, so shorter
    blocks never end later.
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
def makespan(cycles: Ints, repeats: int, units: int) -> int:
    """The same where every block is scheduled `repeats` times."""
    return list_schedule(np.full(cycles.size, repeats, np.int64), cycles, units)
