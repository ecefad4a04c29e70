"""Outer products and their merge, compiled: the steps of a merge, and the merge itself.

Plain Python on unpacked bits and lists: `tests/arrays/rivals/test_outerspace.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import ones

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Word = np.uint64


@njit(cache=True, nogil=True)
def levels(lists: int) -> int:
    """Comparisons of one insertion among the heads of `lists` lists: a binary search, at least one comparison.

    >>> [levels(lists) for lists in (1, 2, 3, 4, 5, 1024)]
    [1, 1, 2, 2, 3, 10]
    """
    comparisons = 0
    while (1 << comparisons) < lists:
        comparisons += 1
    return max(comparisons, 1)


@njit(cache=True, nogil=True)
def merge_steps(words: Words, lengths: Ints, counts: Ints) -> None:
    """For each row of A: partial products, comparisons to merge them, lists. `lengths` has an entry for every bit of a row."""
    width = words.shape[1]
    filled = np.zeros(width, np.uint64)
    for word_index in range(width):
        for bit in range(64):
            if lengths[word_index * 64 + bit] > 0:
                filled[word_index] |= Word(1) << Word(bit)
    for row in range(words.shape[0]):
        products, lists = np.int64(0), np.int64(0)
        for word_index in range(width):
            word = words[row, word_index] & filled[word_index]
            if word == Word(0):
                continue
            lists += np.int64(ones(word))
            first = word_index * 64
            for bit in range(64):
                products += lengths[first + bit] & -np.int64((word >> Word(bit)) & Word(1))
        counts[row, 0] = products
        counts[row, 1] = products * levels(int(lists))
        counts[row, 2] = lists


@njit(cache=True)
def merge_lists(columns: Ints, values: Real, starts: Ints, merged: Real) -> int:
    """Merges sorted lists of (column, partial product) into one row; list l is columns[starts[l]:starts[l + 1]]. Returns its steps.

    The heads of all lists stay sorted by column. The smallest is removed and added to its column, its successor in the list is
    inserted by binary search.
    """
    lists = starts.size - 1
    depth = levels(lists)
    heads = np.empty(lists, np.int64)  # lists by the column of their heads, the first `active` of them
    next_entry = starts[:-1].copy()
    active, entered, steps = 0, 0, 0
    while True:
        if entered < lists:
            arriving = entered
            entered += 1
        else:
            if active == 0:
                return steps
            arriving = heads[0]
            active -= 1
            for slot in range(active):
                heads[slot] = heads[slot + 1]
            merged[columns[next_entry[arriving]]] += values[next_entry[arriving]]
            next_entry[arriving] += 1
            if next_entry[arriving] == starts[arriving + 1]:
                continue  # this list has ended
        column = columns[next_entry[arriving]]
        low, high = 0, active
        for _ in range(depth):
            steps += 1
            if low < high:
                middle = (low + high) // 2
                if columns[next_entry[heads[middle]]] <= column:
                    low = middle + 1
                else:
                    high = middle
        for slot in range(active, low, -1):
            heads[slot] = heads[slot - 1]
        heads[low] = arriving
        active += 1
