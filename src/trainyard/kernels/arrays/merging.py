"""Outer products and their merge, compiled: how many steps a merge takes, and the merge itself.

Twins on unpacked bits and Python lists: `tests/arrays/test_outerspace.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import ones

Words = npt.NDArray[np.uint64]
Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Word = np.uint64


@njit(cache=True, nogil=True)
def levels(lists: int) -> int:
    """Comparisons of one insertion among the heads of `lists` lists: halvings until one place is left, and at least the one look.

    >>> [levels(lists) for lists in (1, 2, 3, 4, 5, 1024)]
    [1, 1, 2, 2, 3, 10]
    """
    found = 0
    while (1 << found) < lists:
        found += 1
    return max(found, 1)


@njit(cache=True, nogil=True)
def merge_steps(words: Words, lengths: Whole, found: Whole) -> None:
    """For each row of A: partial products, comparisons to merge them, lists. `lengths` has a place for every bit of a row."""
    width = words.shape[1]
    filled = np.zeros(width, np.uint64)
    for place in range(width):
        for bit in range(64):
            if lengths[place * 64 + bit] > 0:
                filled[place] |= Word(1) << Word(bit)
    for row in range(words.shape[0]):
        products, lists = np.int64(0), np.int64(0)
        for place in range(width):
            word = words[row, place] & filled[place]
            if word == Word(0):
                continue
            lists += np.int64(ones(word))
            first = place * 64
            for bit in range(64):
                products += lengths[first + bit] & -np.int64((word >> Word(bit)) & Word(1))
        found[row, 0] = products
        found[row, 1] = products * levels(int(lists))
        found[row, 2] = lists


@njit(cache=True)
def merge_lists(columns: Whole, values: Real, starts: Whole, merged: Real) -> int:
    """Merge sorted lists of (column, partial product) into one row; list l is columns[starts[l]:starts[l + 1]]. Returns its steps.

    The heads of all lists are kept sorted by column. The smallest leaves (and is added where its column has been seen), its
    successor is inserted: a search that halves the places left until one remains. Ends of lists stand behind everything.
    """
    lists = starts.size - 1
    depth = levels(lists)
    heads = np.empty(lists, np.int64)  # lists by the column of their heads, the first `kept` of them
    place = starts[:-1].copy()
    kept, entered, steps = 0, 0, 0
    while True:
        if entered < lists:
            arriving = entered
            entered += 1
        else:
            if kept == 0:
                return steps
            arriving = heads[0]
            kept -= 1
            for slot in range(kept):
                heads[slot] = heads[slot + 1]
            merged[columns[place[arriving]]] += values[place[arriving]]
            place[arriving] += 1
            if place[arriving] == starts[arriving + 1]:
                continue  # this list has ended
        column = columns[place[arriving]]
        low, high = 0, kept
        for _ in range(depth):
            steps += 1
            if low < high:
                middle = (low + high) // 2
                if columns[place[heads[middle]]] <= column:
                    low = middle + 1
                else:
                    high = middle
        for slot in range(kept, low, -1):
            heads[slot] = heads[slot - 1]
        heads[low] = arriving
        kept += 1
