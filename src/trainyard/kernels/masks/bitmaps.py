"""Packed bits of a matrix, compiled: counts, transposes, random bits, runs of zeros. Plain Python on unpacked bits:
`tests/hardware/formats/test_bitmaps.py`.

A row is 64-bit words, column c is bit c % 64 of word c // 64, bits past the end are 0. Columns are counted without unpacking:
counters of 64 columns lie in the bit planes of eight words, and a row is added to all of them in carry-save form. Random words come
from a counter (splitmix64: G. Steele, D. Lea, C. Flood, OOPSLA 2014), so that a word depends on its position and the seed alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic

from trainyard.kernels.arrays.promotion import trailing_zeros

Word = np.uint64
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

PLANES = 8
"""Bits of a column's counter: a block of 255 rows before it overflows."""
STRIP = 256
"""Words whose counters fit a first-level cache: 8 planes of 2 KiB."""


def _ones(typing_context: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), emit


ones: Any = intrinsic(_ones)
"""The number of bits set in a word."""


@njit(nogil=True, cache=True)
def row_counts(words: Words, counts: Ints) -> None:
    for row in range(words.shape[0]):
        total = Word(0)
        for word in range(words.shape[1]):
            total += ones(words[row, word])
        counts[row] = total


@njit(nogil=True, cache=True)
def column_counts(words: Words, counts: Ints) -> None:
    """`counts` has 64 entries for each word of a row."""
    rows, width = words.shape
    planes = np.zeros((PLANES, STRIP), np.uint64)
    for left in range(0, width, STRIP):
        strip = min(STRIP, width - left)
        for top in range(0, rows, (1 << PLANES) - 1):
            below = min(rows, top + (1 << PLANES) - 1)
            planes[:] = 0
            for row in range(top, below):
                for word in range(strip):
                    carry = words[row, left + word]
                    for plane in range(PLANES):
                        sum_bits = planes[plane, word]
                        planes[plane, word] = sum_bits ^ carry
                        carry &= sum_bits
            for word in range(strip):
                first = (left + word) * 64
                for plane in range(PLANES):
                    bits = planes[plane, word]
                    for column in range(64):
                        counts[first + column] += np.int64((bits >> Word(column)) & Word(1)) << plane


@njit(nogil=True, cache=True)
def transpose(words: Words, transposed: Words) -> None:
    """`transposed` is [columns, ceil(rows / 64)]: 64 x 64 bits at a time, halves swapped six times."""
    rows, columns = words.shape[0], transposed.shape[0]
    block = np.empty(64, np.uint64)
    for left in range(words.shape[1]):
        for top in range(transposed.shape[1]):
            for row in range(64):
                block[row] = words[top * 64 + row, left] if top * 64 + row < rows else Word(0)
            distance, mask = Word(32), Word(0x00000000FFFFFFFF)
            while distance:
                low = Word(0)
                while low < Word(64):
                    high = low + distance
                    swapped = ((block[low] >> distance) ^ block[high]) & mask
                    block[low] ^= swapped << distance
                    block[high] ^= swapped
                    low = (high + Word(1)) & ~distance
                distance >>= Word(1)
                mask ^= mask << distance
            for row in range(min(64, columns - left * 64)):
                transposed[left * 64 + row, top] = block[row]


@njit(nogil=True, cache=True)
def mixed(word: Any) -> Any:
    """Splitmix64's output function: a bijection of 64-bit words whose bits all depend on all."""
    word = (word ^ (word >> Word(30))) * Word(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> Word(27))) * Word(0x94D049BB133111EB)
    return word ^ (word >> Word(31))


@njit(nogil=True, cache=True)
def random_words(probability: np.uint64, seed: np.uint64, words: Words) -> None:
    """Each bit is set with probability `probability` / 2^64.

    Bit by bit this compares a random binary fraction with the probability, from the highest digit on: where the two first differ
    decides. A word needs another 64 random bits until all of its bits are decided, eight times on average.
    """
    step = Word(0x9E3779B97F4A7C15)
    start = mixed(seed + step)
    for row in range(words.shape[0]):
        for word in range(words.shape[1]):
            state = start + Word(row * words.shape[1] + word) * (step << Word(6))
            bits, undecided, digit = Word(0), ~Word(0), Word(1) << Word(63)
            while undecided and digit:
                state += step
                fraction = mixed(state)
                if probability & digit:
                    bits |= undecided & ~fraction
                    undecided &= fraction
                else:
                    undecided &= ~fraction
                digit >>= Word(1)
            words[row, word] = bits


@njit(nogil=True, cache=True)
def padding_entries(words: Words, columns: int, run_bits: int) -> Any:
    """Zeros that stand in a run-length code because a run was too long for its field, rows one after the other as one stream.

    A field of `run_bits` counts up to 2^run_bits - 1 zeros; with a zero behind them as its value an entry stands for 2^run_bits of
    them, so a run of r zeros before a non-zero takes r >> run_bits such entries. What comes after the last non-zero takes none.
    """
    entries, start = np.int64(0), np.int64(0)
    for row in range(words.shape[0]):
        for word in range(words.shape[1]):
            bits = words[row, word]
            first = row * columns + word * 64
            while bits:
                position = first + np.int64(trailing_zeros(bits))
                entries += (position - start) >> run_bits
                start = position + 1
                bits &= bits - Word(1)
    return entries
