"""Compiled loops of sparse accelerators: the queues of EIE, the Cartesian products and accumulator banks of SCNN.

Plain Python that steps every cycle with real values: `execute` of each array, and the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Word = np.uint64
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Short = npt.NDArray[np.int32]
Bits = npt.NDArray[np.bool_]

STRIP = 16
"""Words of 64 channels whose counts are worked on together."""


@njit(nogil=True, cache=True)
def column_entries(words: Words, rows: int, elements: int, reach: int, entries: npt.NDArray[np.uint16]) -> None:
    """Entries of each column in each processing element's list, row i on element i % elements: entries[column, element].

    `words` holds a column of the weights in each row. An entry has the number of zeros before it, less than `reach`; where there
    are more, entries of value zero are inserted.
    """
    last = np.empty(elements, np.int64)
    for column in range(words.shape[0]):
        last[:] = -1
        for word_index in range(words.shape[1]):
            left = words[column, word_index]
            row = word_index * 64
            while left:
                if left & Word(1):
                    element, level = row % elements, row // elements
                    entries[column, element] += 1 + (level - last[element] - 1) // reach
                    last[element] = level
                left >>= Word(1)
                row += 1


@njit(nogil=True, cache=True)
def queue_cycles(entries: npt.NDArray[np.uint16], inputs: Words, depth: int, least: int, cycles: Ints) -> None:
    """Cycles of each vector: non-zeros are broadcast one a cycle, unless an element's queue of `depth` is full.

    An element takes as many cycles for an input as it has entries for it, `least` at least, and the input leaves its queue with
    the last of them. So broadcast j waits for the slowest element to finish input j - depth.
    """
    elements = entries.shape[1]
    done = np.zeros(elements, np.int32)
    slowest = np.zeros(depth, np.int32)
    floor = np.int32(least)
    for vector in range(inputs.shape[0]):
        done[:] = 0
        slowest[:] = 0
        now, count = np.int32(-1), 0
        for word_index in range(inputs.shape[1]):
            left = inputs[vector, word_index]
            k = word_index * 64
            while left:
                if left & Word(1):
                    now = max(np.int32(now + 1), slowest[count % depth])
                    last = np.int32(0)
                    for element in range(elements):
                        end = max(done[element], now) + max(np.int32(entries[k, element]), floor)
                        done[element] = end
                        last = max(last, end)
                    slowest[count % depth] = last
                    count += 1
                left >>= Word(1)
                k += 1
        end = now + 1
        for element in range(elements):
            end = max(end, done[element])
        cycles[vector] = end


@njit(nogil=True, cache=True)
def _vectors(words: Words, rows: tuple[int, int], first: int, needed: Short, vectors: Short) -> None:
    """Vectors that the non-zeros of some rows fill, in each column from word `first` on; c non-zeros fill needed[c]."""
    vectors[:] = 0
    for row in range(rows[0], min(rows[1], words.shape[0])):
        for word_index in range(vectors.size // 64):
            word = words[row, first + word_index]
            for bit in range(64):
                vectors[word_index * 64 + bit] += np.int32((word >> Word(bit)) & Word(1))
    for column in range(vectors.size):
        vectors[column] = needed[vectors[column]]  # a division here would take most of the time


@njit(nogil=True, cache=True)
def cartesian_steps(
    weights: Words, inputs: Words, group: int, block: int, wide: int, high: int, steps: Ints, arriving: Ints
) -> None:
    """Steps of each processing element in each group of outputs, steps[group, element], and vectors of each group's weights.

    `weights` holds an output in each row, `inputs` a position; an element has `block` of them. A strip of channels at a time, so
    that its counts stay in a cache; sums of a strip are short (STRIP words times no more steps than there are accumulators).
    """
    groups, elements = steps.shape
    of_weights = ((np.arange(group + 1) + wide - 1) // wide).astype(np.int32)
    of_inputs = ((np.arange(block + 1) + high - 1) // high).astype(np.int32)
    for first in range(0, weights.shape[1], STRIP):
        columns = 64 * min(STRIP, weights.shape[1] - first)
        left, right = np.empty((groups, columns), np.int32), np.empty(columns, np.int32)
        for g in range(groups):
            _vectors(weights, (g * group, (g + 1) * group), first, of_weights, left[g])
            arriving[g] += left[g].sum()
        for element in range(elements):
            _vectors(inputs, (element * block, (element + 1) * block), first, of_inputs, right)
            for g in range(groups):
                total = np.int32(0)
                for column in range(columns):
                    total += left[g, column] * right[column]
                steps[g, element] += total


@njit(nogil=True, cache=True)
def scatter(weights: Bits, inputs: Bits, wide: int, high: int, banks: int, queue: int, totals: Any) -> None:
    """Steps and cycles of one processing element and one group of outputs, into `totals`.

    `weights` is [channels, outputs], `inputs` [channels, positions]. A step multiplies `wide` weights with `high` inputs of one
    channel; product (output, position) goes to bank (high * output + position) % banks. A bank adds one product a cycle and queues
    `queue` more; the multipliers stall until the banks have taken all others of a step.
    """
    outputs, positions = np.empty(weights.shape[1], np.int64), np.empty(inputs.shape[1], np.int64)
    waiting = np.zeros(banks, np.int32)
    steps, cycles = 0, 0
    for channel in range(weights.shape[0]):
        filled, taken = 0, 0
        for output in range(weights.shape[1]):
            if weights[channel, output]:
                outputs[filled] = output * high % banks
                filled += 1
        for position in range(inputs.shape[1]):
            if inputs[channel, position]:
                positions[taken] = position % banks
                taken += 1
        for first in range(0, taken, high):
            for start in range(0, filled, wide):
                for i in range(first, min(first + high, taken)):
                    for j in range(start, min(start + wide, filled)):
                        bank = outputs[j] + positions[i]
                        waiting[bank if bank < banks else bank - banks] += 1
                most = np.int32(queue + 1)
                for bank_number in range(banks):
                    most = max(most, waiting[bank_number])
                time = np.int32(most - queue)
                for bank_number in range(banks):
                    waiting[bank_number] = max(np.int32(0), np.int32(waiting[bank_number] - time))
                steps += 1
                cycles += int(time)
    totals[0] = steps
    totals[1] = cycles + waiting.max()
