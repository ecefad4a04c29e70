"""One step of the heat equation on one unit's block; the order of operations is fixed, so that any cut gives the same bits.

Twin: numpy on the whole grid in the tests. `scaled` is alpha (5 points) or alpha / 4 (9 points) in fp32; whole numbers shift right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Reals = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def heat_five(old: Reals, new: Reals, top: int, bottom: int, left: int, right: int, scaled: np.float32) -> None:
    """Rows top to bottom - 1, columns left to right - 1: c + alpha (((n + s) + w) + e - 4 c)."""
    for y in range(top, bottom):
        for x in range(left, right):
            c = old[y, x]
            near = old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
            twice = c + c
            new[y, x] = c + scaled * (near - (twice + twice))


@njit(cache=True, nogil=True)
def heat_nine(old: Reals, new: Reals, top: int, bottom: int, left: int, right: int, scaled: np.float32) -> None:
    """The same with 2 for the four neighbours, 1 for the four corners and -12 for the middle, over 4."""
    for y in range(top, bottom):
        for x in range(left, right):
            c = old[y, x]
            near = old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
            corners = old[y - 1, x - 1] + old[y - 1, x + 1] + old[y + 1, x - 1] + old[y + 1, x + 1]
            twice = c + c
            four = twice + twice
            new[y, x] = c + scaled * (((near + near) + corners) - ((four + four) + four))


@njit(cache=True, nogil=True)
def heat_five_words(old: Words, new: Words, top: int, bottom: int, left: int, right: int, shift: int) -> None:
    """alpha is 2^-shift; the shift rounds down, towards minus infinity."""
    for y in range(top, bottom):
        for x in range(left, right):
            c = np.int64(old[y, x])
            near = np.int64(old[y - 1, x]) + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
            new[y, x] = c + ((near - 4 * c) >> shift)


@njit(cache=True, nogil=True)
def heat_nine_words(old: Words, new: Words, top: int, bottom: int, left: int, right: int, shift: int) -> None:
    for y in range(top, bottom):
        for x in range(left, right):
            c = np.int64(old[y, x])
            near = np.int64(old[y - 1, x]) + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
            corners = np.int64(old[y - 1, x - 1]) + old[y - 1, x + 1] + old[y + 1, x - 1] + old[y + 1, x + 1]
            new[y, x] = c + ((2 * near + corners - 12 * c) >> (shift + 2))
