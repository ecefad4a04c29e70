"""Column combining, compiled: columns of a sparse matrix that share one column of cells.

A column is a row of packed words here, one bit for each row of the filter matrix. Twin: `tests/arrays/test_packed_systolic.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import ones

Words = npt.NDArray[np.uint64]
Whole = npt.NDArray[np.int64]
NONE = -1


@njit(cache=True, nogil=True)
def combine(words: Words, order: Whole, factor: int, conflicts: int, window: int, groups: Whole) -> tuple[int, int]:
    """Put each column of `order` into a group: returns how many groups there are, and how many elements are in conflict.

    A group takes at most `factor` columns and at most `conflicts` elements that meet another in their row. Of the groups that a
    column fits, the one with the fewest rows left free takes it, the earliest of those; no more than `window` groups stay open, and
    where one more is needed, the one with the fewest rows left free closes.
    """
    width = words.shape[1]
    union = np.zeros((window, width), np.uint64)
    name, members = np.zeros(window, np.int64), np.zeros(window, np.int64)
    filled, met = np.zeros(window, np.int64), np.zeros(window, np.int64)
    opened, number, lost = 0, 0, 0
    for column in order:
        best, best_met = NONE, 0
        for one in range(opened):
            if best != NONE and filled[one] <= filled[best]:
                continue
            meeting, most = 0, int(conflicts - met[one])
            for place in range(width):
                meeting += int(ones(union[one, place] & words[column, place]))
                if meeting > most:
                    break
            if meeting <= most:
                best, best_met = one, meeting
        if best == NONE:
            best = opened
            if opened == window:
                best = int(np.argmax(filled))
            else:
                opened += 1
            name[best], members[best], filled[best], met[best] = number, 0, 0, 0
            union[best] = 0
            number += 1
        for place in range(width):
            added = words[column, place] & ~union[best, place]
            union[best, place] |= added
            filled[best] += np.int64(ones(added))
        members[best] += 1
        met[best] += best_met
        lost += best_met
        groups[column] = name[best]
        if members[best] == factor:  # full: the last open group takes its place
            opened -= 1
            union[best] = union[opened]
            name[best], members[best], filled[best], met[best] = name[opened], members[opened], filled[opened], met[opened]
    return number, lost
