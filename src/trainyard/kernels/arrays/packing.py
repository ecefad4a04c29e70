"""Column combining, compiled: columns of a sparse matrix that share one column of cells.

A column is a row of packed words here, one bit for each row of the filter matrix. Plain Python:
`tests/arrays/rivals/test_packed_systolic.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import ones

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
NONE = -1


@njit(cache=True, nogil=True)
def combine(words: Words, order: Ints, factor: int, conflicts: int, window: int, groups: Ints) -> tuple[int, int]:
    """Puts each column of `order` into a group: returns the number of groups, and the number of elements in conflict.

    A group takes at most `factor` columns and at most `conflicts` elements that share their row with another. Of the groups that a
    column fits, the one with the fewest rows left free takes it, the earliest of those; no more than `window` groups stay open, and
    where one more is needed, the one with the fewest rows left free closes.
    """
    width = words.shape[1]
    union = np.zeros((window, width), np.uint64)
    name, members = np.zeros(window, np.int64), np.zeros(window, np.int64)
    filled, conflicts_of = np.zeros(window, np.int64), np.zeros(window, np.int64)
    opened, number, lost = 0, 0, 0
    for column in order:
        best, best_conflicts = NONE, 0
        for candidate in range(opened):
            if best != NONE and filled[candidate] <= filled[best]:
                continue
            overlap, most = 0, int(conflicts - conflicts_of[candidate])
            for word in range(width):
                overlap += int(ones(union[candidate, word] & words[column, word]))
                if overlap > most:
                    break
            if overlap <= most:
                best, best_conflicts = candidate, overlap
        if best == NONE:
            best = opened
            if opened == window:
                best = int(np.argmax(filled))
            else:
                opened += 1
            name[best], members[best], filled[best], conflicts_of[best] = number, 0, 0, 0
            union[best] = 0
            number += 1
        for word in range(width):
            added = words[column, word] & ~union[best, word]
            union[best, word] |= added
            filled[best] += np.int64(ones(added))
        members[best] += 1
        conflicts_of[best] += best_conflicts
        lost += best_conflicts
        groups[column] = name[best]
        if members[best] == factor:  # full: the last open group takes its place
            opened -= 1
            for word in range(union.shape[1]):
                union[best, word] = union[opened, word]
            name[best], members[best], filled[best], conflicts_of[best] = (
                name[opened],
                members[opened],
                filled[opened],
                conflicts_of[opened],
            )
    return number, lost
