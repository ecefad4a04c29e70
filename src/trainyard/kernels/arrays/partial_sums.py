"""Compiled: the add latency of all folds where partial sums of a row meet in a chain of Flex-DPEs or in the output buffer.

Plain Python: `arrays.sigma.partial_sums.add_cycles` of its `crossings`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]


@njit(cache=True, error_model="numpy")
def add_cycles(
    counts: Ints, multipliers: int, dpes: int, bandwidth: int, vectors: int, inside: int, chain: bool, by_pass: bool
) -> int:
    """`counts` [chunk of K, row] are values; `inside` the levels of the adders of a Flex-DPE; `chain` or the output buffer;
    `by_pass`: the adders drain after every pass, not once a fold."""
    pool, value, total, slowest, fold = multipliers * dpes, 0, 0, 0, -1
    for chunk in range(counts.shape[0]):
        begin = value  # of the pass
        spanned, partials = 0, 0
        for row in range(counts.shape[1]):
            left = counts[chunk, row]
            while left > 0:
                piece = min(left, begin + pool - value)
                over = (value + piece - 1) // multipliers - value // multipliers + 1
                spanned, partials = max(spanned, over), partials + over - 1
                value, left = value + piece, left - piece
                if value == begin + pool:
                    cycles = _latency(spanned, partials, vectors, bandwidth, inside, chain)
                    if by_pass or (value - 1) // pool != fold:
                        total, slowest, fold = total + slowest, 0, (value - 1) // pool
                    slowest = max(slowest, cycles)
                    begin, spanned, partials = value, 0, 0
        if value > begin:  # what a chunk leaves
            cycles = _latency(spanned, partials, vectors, bandwidth, inside, chain)
            if by_pass or (value - 1) // pool != fold:
                total, slowest, fold = total + slowest, 0, (value - 1) // pool
            slowest = max(slowest, cycles)
    return total + slowest


@njit(cache=True, error_model="numpy")
def _latency(spanned: int, partials: int, vectors: int, bandwidth: int, inside: int, chain: bool) -> int:
    """Of one pass: the longest chain, or what waits for the buffer when the last vector's sums arrive."""
    if chain:
        return inside + max(spanned, 1) - 1
    waiting = partials + max(vectors - 1, 0) * max(partials - bandwidth, 0)
    return inside + (waiting + bandwidth - 1) // bandwidth
