"""QSGD compiled: stochastic levels of each bucket, and their codes in a stream of bits. Plain Python:
`tests/hardware/formats/test_qsgd.py`.

A stream fills 64-bit words from the highest bit down, so that a code's first bit comes first. Random fractions come from a counter
(splitmix64, see `kernels.masks.bitmaps`), so that an element's draw depends on its index and the seed alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.masks.bitmaps import mixed

Word = np.uint64
Words = npt.NDArray[np.uint64]
Levels = npt.NDArray[np.int16]
Reals = npt.NDArray[np.float32]

STEP = 0x9E3779B97F4A7C15  # Steele et al., OOPSLA 2014: the odd integer nearest 2**64 / golden ratio
LONGEST = 40
"""Bits of the largest number in a code: more than any gap of a vector, so a longer one is an error."""


@njit(nogil=True, cache=True)
def quantize(values: Reals, bucket: int, steps: int, seed: np.uint64, norms: Reals, levels: Levels) -> None:
    """Signed levels of all elements and the norms of all buckets; a norm is rounded up, so that no ratio is above 1."""
    state = mixed(seed + Word(STEP))
    for number in range(norms.shape[0]):
        first, last = number * bucket, min((number + 1) * bucket, values.shape[0])
        total = 0.0
        for element in range(first, last):
            value = np.float64(values[element])  # in compiled code float() keeps the width
            total += value * value
        exact = math.sqrt(total)
        norm = np.float32(exact)
        if norm < exact:
            norm = np.nextafter(norm, np.float32(np.inf))
        norms[number] = norm
        for element in range(first, last):
            value = np.float64(values[element])
            ratio = abs(value) / np.float64(norm) * steps if norm > 0 else 0.0
            level = math.floor(ratio)
            fraction = np.float64(mixed(state + Word(element) * Word(STEP)) >> Word(11)) * 2.0**-53
            if fraction < ratio - level:
                level += 1
            levels[element] = -level if value < 0 else level


@njit(nogil=True, cache=True)
def restore(levels: Levels, norms: Reals, bucket: int, steps: int, values: Reals) -> None:
    for number in range(norms.shape[0]):
        scale = np.float64(norms[number]) / steps
        for element in range(number * bucket, min((number + 1) * bucket, levels.shape[0])):
            values[element] = np.float32(levels[element] * scale)


@njit(nogil=True, cache=True)
def width(number: Any) -> int:
    """Bits of a positive whole number."""
    bits = 0
    while number:
        bits += 1
        number >>= 1
    return bits


@njit(nogil=True, cache=True)
def put(words: Words, position: int, code: np.uint64, length: int) -> int:
    """Appends the low `length` bits of a code; returns the position after them."""
    word, room = position >> 6, 64 - (position & 63)
    if length <= room:
        words[word] |= code << Word(room - length)
    else:
        words[word] |= code >> Word(length - room)
        words[word + 1] |= code << Word(64 - length + room)
    return position + length


@njit(nogil=True, cache=True)
def read_bits(words: Words, position: int, length: int) -> Any:
    """The `length` bits from a position on, 1 to 64."""
    word, room = position >> 6, 64 - (position & 63)
    if length <= room:
        bits = words[word] >> Word(room - length)
    else:
        bits = (words[word] << Word(length - room)) | (words[word + 1] >> Word(64 - length + room))
    return bits & (~Word(0) >> Word(64 - length))


@njit(nogil=True, cache=True)
def omega_bits(number: Any) -> int:
    """Length of Elias's recursive code: a binary number, before it its length less one in the same way, and a 0 behind."""
    bits = 1
    while number > 1:
        digits = width(number)
        bits += digits
        number = digits - 1
    return bits


@njit(nogil=True, cache=True)
def put_omega(words: Words, position: int, number: Any) -> int:
    code, length = Word(0), 1
    while number > 1:
        digits = width(number)
        code |= Word(number) << Word(length)
        length += digits
        number = digits - 1
    return put(words, position, code, length)


@njit(nogil=True, cache=True)
def take_omega(words: Words, position: int, end: int) -> Any:
    """(number, position after its code); (0, 0) where the stream ends before the code does."""
    number: Any = 1
    while position < end:
        if read_bits(words, position, 1) == Word(0):
            return number, position + 1
        if number >= LONGEST or position + number + 1 > end:
            return 0, 0
        digits = number + 1
        number = np.int64(read_bits(words, position, digits))
        position += digits
    return 0, 0


@njit(nogil=True, cache=True)
def sparse_bits(levels: Levels, bucket: int) -> int:
    """Bits of all buckets by their non-zeros, norms not counted."""
    bits = 0
    for first in range(0, levels.shape[0], bucket):
        before, count = first - 1, 0
        for element in range(first, min(first + bucket, levels.shape[0])):
            if levels[element]:
                bits += omega_bits(element - before) + 1 + omega_bits(abs(np.int64(levels[element])))
                before, count = element, count + 1
        bits += omega_bits(count + 1)
    return bits


@njit(nogil=True, cache=True)
def write_packed(levels: Levels, norms: npt.NDArray[np.uint32], bucket: int, bits: int, words: Words, position: int) -> int:
    """For each bucket its norm, then a sign and bits - 1 of level for every element."""
    for number in range(norms.shape[0]):
        position = put(words, position, Word(norms[number]), 32)
        for element in range(number * bucket, min((number + 1) * bucket, levels.shape[0])):
            level = np.int64(levels[element])
            code = Word(-level) | (Word(1) << Word(bits - 1)) if level < 0 else Word(level)
            position = put(words, position, code, bits)
    return position


@njit(nogil=True, cache=True)
def read_packed(
    words: Words, position: int, bucket: int, bits: int, norms: npt.NDArray[np.uint32], levels: Levels
) -> int:  # the caller knows that the stream is long enough
    sign = Word(1) << Word(bits - 1)
    for number in range(norms.shape[0]):
        norms[number] = np.uint32(read_bits(words, position, 32))
        position += 32
        for element in range(number * bucket, min((number + 1) * bucket, levels.shape[0])):
            code = read_bits(words, position, bits)
            position += bits
            level = np.int16(code & (sign - Word(1)))
            levels[element] = -level if code & sign else level
    return position


@njit(nogil=True, cache=True)
def write_sparse(levels: Levels, norms: npt.NDArray[np.uint32], bucket: int, words: Words, position: int) -> int:
    """For each bucket its norm, how many levels are not 0 (plus one), and of each: the gap to it, its sign, its level."""
    for number in range(norms.shape[0]):
        first, last = number * bucket, min((number + 1) * bucket, levels.shape[0])
        position = put(words, position, Word(norms[number]), 32)
        count = 0
        for element in range(first, last):
            count += 1 if levels[element] else 0
        position = put_omega(words, position, count + 1)
        before = first - 1
        for element in range(first, last):
            level = np.int64(levels[element])
            if level:
                position = put_omega(words, position, element - before)
                position = put(words, position, Word(1) if level < 0 else Word(0), 1)
                position = put_omega(words, position, abs(level))
                before = element
    return position


@njit(nogil=True, cache=True)
def read_sparse(
    words: Words, position: int, end: int, bucket: int, steps: int, norms: npt.NDArray[np.uint32], levels: Levels
) -> int:
    """The position after the last code, or -1 where the stream is no such vector. `levels` must be zero at the start."""
    for number in range(norms.shape[0]):
        if position + 32 > end:
            return -1
        norms[number] = np.uint32(read_bits(words, position, 32))
        more, position = take_omega(words, position + 32, end)
        if more == 0:
            return -1
        element, last = number * bucket - 1, min((number + 1) * bucket, levels.shape[0])
        for _ in range(more - 1):
            gap, position = take_omega(words, position, end)
            element += gap
            if gap == 0 or element >= last or position + 1 > end:
                return -1
            negative = read_bits(words, position, 1)
            level, position = take_omega(words, position + 1, end)
            if level == 0 or level > steps:
                return -1
            levels[element] = -level if negative else level
    return position
