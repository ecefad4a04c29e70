"""Blocks of a stationary operand on a mesh of processing elements, compiled: the mapping, and the slowest element of each pass.

A block is `high` rows by `deep` k's; blocks are numbered with the rows running first, and a pass takes as many in a row as there
are elements. Where the blocks leave elements unused, they are copied, and each copy takes its share of the other operand's columns.
Plain Python: `EyerissV2.execute`, which processes every queue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import ones

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Word = np.uint64

HIGH, DEEP, COPIES, PASSES, LOADING, WORKING, ADDING, CHAINS = range(8)
"""Columns of a mapping: the block, copies of all blocks, passes; cycles; chains that an output's sums come from."""
HEIGHTS = 4
MOST = 2 * HEIGHTS
"""Mappings to choose from."""


@njit(cache=True)
def _passes(m: int, k: int, n: int, high: int, deep: int, elements: int) -> tuple[int, int]:
    """Copies of all blocks, and passes."""
    blocks = -(-m // high) * -(-k // deep)
    if blocks > elements:
        return 1, -(-blocks // elements)
    share = -(-n // min(n, elements // blocks))
    return -(-n // share), 1


@njit(cache=True)
def _elements_before(slot: int, m: int, k: int, high: int, deep: int) -> int:
    """Matrix elements in the blocks before this one."""
    across = -(-m // high)
    chunk, block = slot // across, slot % across
    return min(chunk * deep, k) * m + min(block * high, m) * max(0, min(deep, k - chunk * deep))


@njit(cache=True)
def _block_work(slot: int, m: int, k: int, high: int, deep: int, simd: int) -> int:
    """Cycles of a block without zeros, per column of the other operand."""
    across = -(-m // high)
    chunk, block = slot // across, slot % across
    return -(-min(high, m - block * high) // simd) * min(deep, k - chunk * deep)


@njit(cache=True)
def cycles_of(mapping: Ints) -> int:
    return int(mapping[LOADING] + mapping[WORKING] + mapping[ADDING])


@njit(cache=True)
def block_choices(
    m: int, k: int, n: int, sizes: tuple[int, int, int, int, int, int, int], limited: bool, mappings: Ints
) -> tuple[int, int]:
    """Candidate blocks for a stationary (m,k) and n columns, a row of `mappings` each: their number, and the fastest without zeros.

    Four heights, from all sums an element can store down to an eighth of them; of each, the depth that fills its memories and the
    one that takes the fewest cycles without zeros. `sizes`: elements, elements of a chain of sums, multipliers of an element, what
    its memories hold (weights, sums, activations), and the bandwidth.
    """
    elements, chain, simd, weights, sums, activations, _ = sizes
    number, before, best = 0, 0, 0
    for halving in range(HEIGHTS):
        high = min(max(sums >> halving, 1), m, weights)
        if high == before:
            continue
        before = high
        deepest = min(activations, weights // high, k)
        least, chosen = -1, deepest
        for deep in range(deepest, 0, -1):
            copies, passes = _passes(m, k, n, high, deep, elements)
            work = passes * (-(-n // copies) * -(-high // simd) * deep + min(chain, -(-k // deep)))
            if least < 0 or work < least:
                least, chosen = work, deep
        for deep in (deepest, chosen):
            mappings[number, HIGH], mappings[number, DEEP] = high, deep
            _without_zeros(m, k, n, sizes, limited, mappings[number])
            if cycles_of(mappings[number]) < cycles_of(mappings[best]):
                best = number
            number += 1
            if chosen == deepest:
                break
    return number, best


@njit(cache=True)
def _without_zeros(m: int, k: int, n: int, sizes: tuple[int, int, int, int, int, int, int], limited: bool, mapping: Ints) -> None:
    """Cycles of a mapping by passes, without zeros."""
    elements, chain, simd, _, _, _, bandwidth = sizes
    high, deep = mapping[HIGH], mapping[DEEP]
    copies, passes = _passes(m, k, n, high, deep, elements)
    across, chunks = -(-m // high), -(-k // deep)
    share, taken = -(-n // copies), elements if copies == 1 else across * chunks
    mapping[COPIES], mapping[PASSES] = copies, passes
    mapping[LOADING] = mapping[WORKING] = mapping[ADDING] = mapping[CHAINS] = 0
    streamed = 0
    for number in range(passes):
        first, end = number * taken, min((number + 1) * taken, across * chunks)
        loaded = _elements_before(end, m, k, high, deep) - _elements_before(first, m, k, high, deep)
        work = _block_work(first, m, k, high, deep, simd)  # of the blocks that follow, none is larger than the next one
        if first + 1 < end:
            work = max(work, _block_work(first + 1, m, k, high, deep, simd))
        work *= share
        if limited:
            reached = min(k, ((end - 1) // across + 1) * deep)
            work = max(work, -(-(reached - streamed) * n // bandwidth))
            streamed = reached
        spanned = (end - 1) // across - first // across + 1
        mapping[LOADING] += -(-loaded // bandwidth)
        mapping[WORKING] += work
        mapping[ADDING] += min(chain, spanned)
        mapping[CHAINS] += -(-spanned // chain)
    mapping[CHAINS] = min(mapping[CHAINS], chunks)


@njit(cache=True, nogil=True)
def range_counts(words: Words, share: int, counts: Ints) -> None:
    """Non-zeros of each row by ranges of `share` columns: counts[range, row]."""
    for row in range(words.shape[0]):
        for word_index in range(words.shape[1]):
            word, bit = words[row, word_index], word_index * 64
            range_number = bit // share
            while word:
                left = (range_number + 1) * share - bit  # bits of this word until the next range
                if left >= 64:
                    counts[range_number, row] += np.int64(ones(word))
                    break
                counts[range_number, row] += np.int64(ones(word & ((Word(1) << Word(left)) - Word(1))))
                word >>= Word(left)
                bit += left
                range_number += 1


@njit(cache=True, nogil=True)
def slowest_elements(
    words: Words, streamed: Ints, block: tuple[int, int], elements: int, simd: int, most: int, loaded: Ints, worst: Ints
) -> bool:
    """For each pass: non-zeros of the stationary operand, cycles of the slowest element. False: more than `most` in total.

    `streamed` has the other operand's non-zeros at each k, by copy. For every one of them an element takes its block's non-zeros at
    that k, `simd` in a cycle. Counts of eight columns share the bytes of a word, so a block has at most 255 rows.
    """
    high, deep = block
    rows, width = words.shape
    copies, depth = streamed.shape
    spread = np.zeros(256, np.uint64)
    for octet in range(256):
        for bit in range(8):
            spread[octet] |= Word((octet >> bit) & 1) << Word(8 * bit)
    in_cycles = (np.arange(256) + simd - 1) // simd
    counts, issues = np.zeros(width * 64, np.int64), np.zeros(width * 64, np.int64)
    sums = np.zeros(8, np.uint64)
    blocks = -(-rows // high)
    total = np.int64(0)
    for number in range(blocks):
        below = min(rows, (number + 1) * high)
        for word_index in range(width):
            sums[:] = 0
            for row in range(number * high, below):
                word = words[row, word_index]
                for octet in range(8):
                    sums[octet] += spread[(word >> Word(8 * octet)) & Word(255)]
            for column in range(64):
                counts[word_index * 64 + column] = np.int64((sums[column >> 3] >> Word(8 * (column & 7))) & Word(255))
                issues[word_index * 64 + column] = in_cycles[counts[word_index * 64 + column]]
        for chunk in range(-(-depth // deep)):
            first, end = chunk * deep, min(depth, (chunk + 1) * deep)
            pass_number = (chunk * blocks + number) // elements
            for k in range(first, end):
                loaded[pass_number] += counts[k]
            for copy in range(copies):
                work = np.int64(0)
                for k in range(first, end):
                    work += issues[k] * streamed[copy, k]
                if work > worst[pass_number]:
                    total += work - worst[pass_number]
                    worst[pass_number] = work
            if total > most:
                return False
    return True
