"""Loops of SIGMA's controller and multipliers: counters of the streaming operand, the inputs of each Flex-DPE, its products, and
pairs without reuse.

Plain Python: tests/arrays/sigma/test_controller.py, test_execution.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.networks.adder_trees import fan_route, fan_steps, groups_of, sums_of

Reals = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Ports = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]


@njit(cache=True, nogil=True)
def count_streaming(values: Reals, chunk: int, counters: Ports, totals: Ports) -> None:
    """Numbers the non-zeros of every vector [vectors, K] from 0 in each chunk of K; -1 at a zero."""
    vectors, depth = values.shape
    for vector in range(vectors):
        for begin in range(0, depth, chunk):
            count = 0
            for k in range(begin, min(begin + chunk, depth)):
                if values[vector, k] != 0:
                    counters[vector, k] = count
                    count += 1
                else:
                    counters[vector, k] = -1
            totals[vector, begin // chunk] = count


@njit(cache=True, nogil=True)
def connect(
    lanes: Ints, distinct: Ints, counters: Ports, totals: Ports, values: Reals, sources: Ints, inputs: Reals
) -> int:  # fmt: skip
    """The inputs of one Flex-DPE for every vector, and the source port of each multiplier; returns how many have a source.

    `lanes` is the index in `distinct` (the k's of this Flex-DPE in rising order) of each multiplier's k, -1 where it is idle. A
    port is the counter of the streaming value; where a vector has more non-zeros than there are ports, its rank among those that
    this Flex-DPE needs, which are no more than its multipliers.
    """
    vectors, ports = sources.shape
    port = np.empty(len(distinct), np.int32)
    listening = 0
    for vector in range(vectors):
        fits = totals[vector] <= ports
        compacted = 0
        for position in range(len(distinct)):
            k = distinct[position]
            counter = counters[vector, k]
            port[position] = counter
            if counter >= 0:
                if not fits:
                    port[position] = compacted
                    compacted += 1
                inputs[vector, port[position]] = values[vector, k]
        for lane in range(ports):
            source = port[lanes[lane]] if lanes[lane] >= 0 else -1
            sources[vector, lane] = source
            if source >= 0:
                listening += 1
    return listening


@njit(cache=True, nogil=True)
def multiply(delivered: Reals, stationary: Reals, sources: Ints, products: Reals) -> None:
    """Delivered times stationary values, [vectors or 1, multipliers]; 0 where a multiplier has no source."""
    for vector in range(len(delivered)):
        row = min(vector, len(stationary) - 1)
        for lane in range(delivered.shape[1]):
            product = delivered[vector, lane] * stationary[row, lane]
            products[vector, lane] = product if sources[vector, lane] >= 0 else np.float32(0)


@njit(cache=True, nogil=True)
def sum_each(products: Reals, vec_ids: Ints) -> tuple[Ints, Ints, Reals]:
    """FAN configured for every row of products by that row's vecIDs: row, id and sum of every dot product."""
    rows, lanes = products.shape
    count = 0
    for row in range(rows):
        for lane in range(lanes):
            count += vec_ids[row, lane] >= 0 and (lane == 0 or vec_ids[row, lane] != vec_ids[row, lane - 1])
    where, names, totals = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.float32)
    end = 0
    for row in range(rows):
        ids, starts, ends, of_lane = groups_of(vec_ids[row])
        mode, left, right = fan_route(of_lane, starts, ends)
        _, targets, sources, outlets, _ = fan_steps(mode, left, right, of_lane, starts, ends)
        sums = sums_of(products[row : row + 1], targets, sources, outlets, 4 * lanes)
        begin, end = end, end + ids.size
        where[begin:end], names[begin:end], totals[begin:end] = row, ids, sums[0]
    return where, names, totals


@njit(cache=True, nogil=True)
def list_pairs(left: Words, right: Words, out: Ints) -> None:
    """Every product of two non-zeros as (row, column, k), in that order; both operands packed along K."""
    pair = 0
    for row in range(left.shape[0]):
        for column in range(right.shape[0]):
            for word in range(left.shape[1]):
                both = left[row, word] & right[column, word]
                bit = word * 64
                while both:
                    while not both & np.uint64(1):
                        both >>= np.uint64(1)
                        bit += 1
                    out[pair, 0], out[pair, 1], out[pair, 2] = row, column, bit
                    pair += 1
                    both >>= np.uint64(1)
                    bit += 1
