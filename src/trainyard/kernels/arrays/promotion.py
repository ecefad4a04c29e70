"""Zero skipping, compiled: cycles of packed streams under a promotion pattern, from a table of all states of a staging buffer.

Plain Python: `arrays.tensordash.scheduler`. For buffers of at most 20 values the scheduler is a table: state -> state after one
cycle. The first step is always empty then, so a table holds the steps after it. `promotion_words` has wider units.

A stream is a row of 64-bit words: step t, lane l is bit t * lanes + l, little-endian, with a spare word of zeros at the end.
Streams are read eight bytes at a time from any byte, so the host must be little-endian, as all that numba supports are.
A tile's rows store the bits still to do as a mask over the next read.
Groups are independent of each other: several are advanced in one loop, so that one's table reads hide another's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Word = np.uint64
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

MOST_STATE_BITS = 20
"""lanes x depth up to which the scheduler is a table: a million entries of 2 bytes, about a second-level cache."""
SMALL_STATE_BITS = 16
"""Up to this size a table takes only a few milliseconds to fill."""


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), emit


def _read(typing_context: Any, row: Any, byte: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        start = builder.gep(builder.bitcast(data, cgutils.voidptr_t), [arguments[1]])
        word = builder.load(builder.bitcast(start, context.get_value_type(types.uint64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(row, types.uint64), emit


trailing_zeros: Any = intrinsic(_trailing_zeros)
"""Zero bits below the lowest one of a word that is not zero."""
read: Any = intrinsic(_read)
"""The eight bytes of a row of words from any byte on."""


@njit(nogil=True, cache=True)
def fill_table(choices: Words, lanes: int, table: Table) -> None:
    """`table[state]` = the steps after the first, after one cycle. `choices[i]`: the bits that the i-th lane in order can take."""
    for state in range(len(table)):
        left = Word(state)
        for chooser in range(choices.shape[0]):
            for number in range(choices.shape[1]):
                if left & choices[chooser, number]:
                    left ^= choices[chooser, number]
                    break
        table[state] = left >> Word(lanes)


@njit(nogil=True, cache=True)
def fill_drain(table: Table, lanes: int, drain: npt.NDArray[np.uint8]) -> None:
    """`drain[state]` = cycles until a state is empty without new input; an empty one takes one cycle."""
    lane_bits, step = Word(lanes), Word((1 << lanes) - 1)
    for state in range(len(table)):
        left = Word(table[state])
        while left and not left & step:
            left >>= lane_bits
        drain[state] = 1 + (drain[left] if left else 0)


@njit(nogil=True, cache=True)
def empty_bits(lanes: int, depth: int) -> Words:
    """Bits of the empty steps below the lowest bit left, by the position of that bit."""
    bits_by_position = np.empty(64, np.uint64)
    for position in range(64):
        bits_by_position[position] = min(position // lanes, depth - 1) * lanes
    return bits_by_position


@njit(nogil=True, cache=True)
def lockstep_four(words: Words, steps: int, lanes: int, depth: int, table: Table, cycles: Ints) -> None:
    """Tiles of four rows that advance together, two tiles at a time."""
    one, eight, seven, lane_bits, end = Word(1), Word(3), Word(7), Word(lanes), Word(steps * lanes)
    window, guard, skip = (one << Word(lanes * depth)) - one, one << Word(lanes * (depth - 1)), empty_bits(lanes, depth)
    fresh = ~(guard - one)
    groups = len(cycles)
    for group in range(0, groups, 2):
        other = min(group + 1, groups - 1)
        a, b, c, d = words[4 * group], words[4 * group + 1], words[4 * group + 2], words[4 * group + 3]
        e, f, g, h = words[4 * other], words[4 * other + 1], words[4 * other + 2], words[4 * other + 3]
        keep_a = keep_b = keep_c = keep_d = keep_e = keep_f = keep_g = keep_h = ~Word(0)
        here = there = Word(0)
        count = count_other = 0
        while here < end or there < end:
            byte, shift = here >> eight, here & seven
            left_a = Word(table[(read(a, byte) >> shift) & keep_a & window])
            left_b = Word(table[(read(b, byte) >> shift) & keep_b & window])
            left_c = Word(table[(read(c, byte) >> shift) & keep_c & window])
            left_d = Word(table[(read(d, byte) >> shift) & keep_d & window])
            byte, shift = there >> eight, there & seven
            left_e = Word(table[(read(e, byte) >> shift) & keep_e & window])
            left_f = Word(table[(read(f, byte) >> shift) & keep_f & window])
            left_g = Word(table[(read(g, byte) >> shift) & keep_g & window])
            left_h = Word(table[(read(h, byte) >> shift) & keep_h & window])
            jump = skip[trailing_zeros(left_a | left_b | left_c | left_d | guard)]
            leap = skip[trailing_zeros(left_e | left_f | left_g | left_h | guard)]
            count += int(here < end)
            count_other += int(there < end)
            here, there = min(here + jump + lane_bits, end), min(there + leap + lane_bits, end)
            keep_a, keep_b = (left_a | fresh) >> jump, (left_b | fresh) >> jump
            keep_c, keep_d = (left_c | fresh) >> jump, (left_d | fresh) >> jump
            keep_e, keep_f = (left_e | fresh) >> leap, (left_f | fresh) >> leap
            keep_g, keep_h = (left_g | fresh) >> leap, (left_h | fresh) >> leap
        cycles[group], cycles[other] = count, count_other


@njit(nogil=True, cache=True)
def lockstep_two(words: Words, steps: int, lanes: int, depth: int, table: Table, cycles: Ints) -> None:
    """Tiles of two rows that advance together, two tiles at a time."""
    one, eight, seven, lane_bits, end = Word(1), Word(3), Word(7), Word(lanes), Word(steps * lanes)
    window, guard, skip = (one << Word(lanes * depth)) - one, one << Word(lanes * (depth - 1)), empty_bits(lanes, depth)
    fresh = ~(guard - one)
    groups = len(cycles)
    for group in range(0, groups, 2):
        other = min(group + 1, groups - 1)
        a, b, c, d = words[2 * group], words[2 * group + 1], words[2 * other], words[2 * other + 1]
        keep_a = keep_b = keep_c = keep_d = ~Word(0)
        here = there = Word(0)
        count = count_other = 0
        while here < end or there < end:
            byte, shift = here >> eight, here & seven
            left_a = Word(table[(read(a, byte) >> shift) & keep_a & window])
            left_b = Word(table[(read(b, byte) >> shift) & keep_b & window])
            byte, shift = there >> eight, there & seven
            left_c = Word(table[(read(c, byte) >> shift) & keep_c & window])
            left_d = Word(table[(read(d, byte) >> shift) & keep_d & window])
            jump = skip[trailing_zeros(left_a | left_b | guard)]
            leap = skip[trailing_zeros(left_c | left_d | guard)]
            count += int(here < end)
            count_other += int(there < end)
            here, there = min(here + jump + lane_bits, end), min(there + leap + lane_bits, end)
            keep_a, keep_b = (left_a | fresh) >> jump, (left_b | fresh) >> jump
            keep_c, keep_d = (left_c | fresh) >> leap, (left_d | fresh) >> leap
        cycles[group], cycles[other] = count, count_other


@njit(nogil=True, cache=True)
def independent(words: Words, steps: int, lanes: int, depth: int, table: Table, cycles: Ints) -> None:
    """Rows that advance independently, four at a time."""
    one, eight, seven, lane_bits, end = Word(1), Word(3), Word(7), Word(lanes), Word(steps * lanes)
    window, guard, skip = (one << Word(lanes * depth)) - one, one << Word(lanes * (depth - 1)), empty_bits(lanes, depth)
    fresh, last = ~(guard - one), len(cycles) - 1
    for row in range(0, last + 1, 4):
        second, third, fourth = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        a, b, c, d = words[row], words[second], words[third], words[fourth]
        keep_a = keep_b = keep_c = keep_d = ~Word(0)
        at_a = at_b = at_c = at_d = Word(0)
        count_a = count_b = count_c = count_d = 0
        while at_a < end or at_b < end or at_c < end or at_d < end:
            left_a = Word(table[(read(a, at_a >> eight) >> (at_a & seven)) & keep_a & window])
            left_b = Word(table[(read(b, at_b >> eight) >> (at_b & seven)) & keep_b & window])
            left_c = Word(table[(read(c, at_c >> eight) >> (at_c & seven)) & keep_c & window])
            left_d = Word(table[(read(d, at_d >> eight) >> (at_d & seven)) & keep_d & window])
            jump_a, jump_b = skip[trailing_zeros(left_a | guard)], skip[trailing_zeros(left_b | guard)]
            jump_c, jump_d = skip[trailing_zeros(left_c | guard)], skip[trailing_zeros(left_d | guard)]
            count_a += int(at_a < end)
            count_b += int(at_b < end)
            count_c += int(at_c < end)
            count_d += int(at_d < end)
            at_a, at_b = min(at_a + jump_a + lane_bits, end), min(at_b + jump_b + lane_bits, end)
            at_c, at_d = min(at_c + jump_c + lane_bits, end), min(at_d + jump_d + lane_bits, end)
            keep_a, keep_b = (left_a | fresh) >> jump_a, (left_b | fresh) >> jump_b
            keep_c, keep_d = (left_c | fresh) >> jump_c, (left_d | fresh) >> jump_d
        cycles[row], cycles[second], cycles[third], cycles[fourth] = count_a, count_b, count_c, count_d


@njit(nogil=True, cache=True)
def lockstep(words: Words, steps: int, lanes: int, depth: int, banks: int, table: Table, cycles: Ints) -> None:
    """Tiles of any number of rows that advance together, behind any number of banks."""
    one, lane_bits, end = Word(1), Word(lanes), Word(steps * lanes)
    full_window, skip = (one << Word(lanes * depth)) - one, empty_bits(lanes, depth)
    rows = words.shape[0] // len(cycles)
    keep = np.empty(rows, np.uint64)
    for group in range(len(cycles)):
        keep[:] = ~Word(0)
        here, filled, count = Word(0), depth, 0
        while here < end:
            there, window = one << Word(lanes * (filled - 1)), (one << Word(lanes * filled)) - one
            byte, shift, union = here >> Word(3), here & Word(7), Word(0)
            for row in range(rows):
                pending = (read(words[rows * group + row], byte) >> shift) & keep[row] & full_window
                left = Word(table[pending & window])
                union |= left
                keep[row] = left | ((pending & ~window) >> lane_bits) | ~(full_window >> lane_bits)
            jump = skip[trailing_zeros(union | there)]
            for row in range(rows):
                keep[row] >>= jump
            here += jump + lane_bits
            filled = min(depth, filled - int(np.int64(jump)) // lanes - 1 + banks)
            count += 1
        cycles[group] = count


@njit(nogil=True, cache=True)
def blocks(words: Words, steps: int, lanes: int, depth: int, drain: npt.NDArray[np.uint8], cycles: Ints) -> None:
    """Tiles whose rows refill together once all have drained their whole buffer."""
    rows, window = words.shape[0] // len(cycles), (Word(1) << Word(lanes * depth)) - Word(1)
    for group in range(len(cycles)):
        count = 0
        for step in range(0, steps, depth):
            bit = Word(step * lanes)
            longest = 0
            for row in range(rows):
                pending = (read(words[rows * group + row], bit >> Word(3)) >> (bit & Word(7))) & window
                longest = max(longest, int(drain[pending]))
            count += longest
        cycles[group] = count


@njit(nogil=True, cache=True)
def blocks_banked(words: Words, steps: int, lanes: int, depth: int, banks: int, table: Table, cycles: Ints) -> None:
    """The same where a buffer fills by `banks` steps a cycle: rows work on what has arrived."""
    one, rows, skip = Word(1), words.shape[0] // len(cycles), empty_bits(lanes, depth)
    for group in range(len(cycles)):
        count = 0
        for step in range(0, steps, depth):
            bit, length, longest = Word(step * lanes), min(depth, steps - step), 0
            for row in range(rows):
                todo = read(words[rows * group + row], bit >> Word(3)) >> (bit & Word(7))
                position, filled, taken = 0, depth if step == 0 else banks, 0
                while position < length:
                    arrived = min(filled, depth) - position
                    window, there = (one << Word(lanes * arrived)) - one, one << Word(lanes * (arrived - 1))
                    left = Word(table[todo & window])
                    todo = left | ((todo & ~window) >> Word(lanes))
                    jump = skip[trailing_zeros(left | there)]
                    todo >>= jump
                    position += 1 + int(np.int64(jump)) // lanes
                    filled += banks
                    taken += 1
                longest = max(longest, taken)
            count += longest
        cycles[group] = count
