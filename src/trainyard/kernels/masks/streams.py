"""Compiled loops that write mask bits into packed streams. Plain Python: `masks.streams.plain`.

A source is a tensor's bits in some order of its axes, packed without gaps (64 to a word, lowest first, one spare word at the end),
so that any run along the last axis is copied by shifts, whatever its offset. `out` is zero on entry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@njit(cache=True, nogil=True, inline="always")
def _copy(source: Words, start: int, out: Words, row: int, at: int, count: int) -> None:
    """`count` bits of a source to bit `at` of a row, one word of the row at a time."""
    while count > 0:
        bit = at & 63
        size = min(64 - bit, count)
        shift = start & 63
        word = start >> 6
        value = source[word] >> np.uint64(shift)
        if shift + size > 64:
            value |= source[word + 1] << np.uint64(64 - shift)
        if size < 64:
            value &= (np.uint64(1) << np.uint64(size)) - np.uint64(1)
        out[row, at >> 6] |= value << np.uint64(bit)
        start += size
        at += size
        count -= size


@njit(cache=True, nogil=True)
def windows(source: Words, base: int, first: int, shape: Ints, lead: Ints, last: Ints, runs: Ints, out: Words) -> None:
    """Rows are windows, their streams the channels of each tap.

    Row number (group, sample, window along the leading axes, window along the last) reads position lead[window, tap] * extent +
    last[window, tap] of its sample, nothing where one of them is -1. The source is [sample, position, channel] from bit `base`;
    `shape` is (samples, recorded samples, positions of one, extent of the last axis, channels, channels of a group);
    `runs[tap]` is (first channel, channels, bit in the stream).
    """
    samples, recorded, positions, extent, channels, of_group = shape
    leads, lasts = lead.shape[0], last.shape[0]
    taps_lead, taps_last = lead.shape[1], last.shape[1]
    for row in range(out.shape[0]):
        rest, at_last = divmod(first + row, lasts)
        rest, at_lead = divmod(rest, leads)
        group, sample = divmod(rest, samples)
        origin = base + (sample % recorded) * positions * channels + group * of_group
        for tap_lead in range(taps_lead):
            far = lead[at_lead, tap_lead]
            if far < 0:
                continue
            for tap_last in range(taps_last):
                near = last[at_last, tap_last]
                tap = tap_lead * taps_last + tap_last
                if near >= 0 and runs[tap, 1] > 0:
                    start = origin + (far * extent + near) * channels + runs[tap, 0]
                    _copy(source, start, out, row, runs[tap, 2], runs[tap, 1])


@njit(cache=True, nogil=True)
def images(source: Words, base: int, first: int, shape: Ints, lead: Ints, last: Ints, cut: Ints, out: Words) -> None:
    """Rows are (channel, tap), their streams the tap's inputs at the output positions of one sample, in raster order.

    The source is [channel, position along the leading axes, phase of the stride, position of that phase] from bit `base`, so that
    the outputs of one line are one run; `shape` is (leading positions, phases, positions of a phase, outputs of a line);
    `last[tap]` is (phase, position read by output 0, first and last + 1 of the outputs that read no padding); `cut` is the range of
    outputs.
    """
    positions, phases, of_phase, line = shape
    taps_lead, taps_last = lead.shape[1], last.shape[0]
    low, high = cut
    for row in range(out.shape[0]):
        rest, tap_last = divmod(first + row, taps_last)
        channel, tap_lead = divmod(rest, taps_lead)
        phase, offset, begin, end = last[tap_last]
        for line_number in range(low // line, (high - 1) // line + 1):
            far = lead[line_number, tap_lead]
            start, stop = max(begin, low - line_number * line), min(end, high - line_number * line)
            if far >= 0 and stop > start:
                origin = base + ((channel * positions + far) * phases + phase) * of_phase + offset
                _copy(source, origin + start, out, row, line_number * line + start - low, stop - start)
