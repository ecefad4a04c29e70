"""Benes switches: select bits from the middles that `kernels.networks.benes` chooses, and the values that the switches deliver.

The names of the input ports move through the switches, and values are then copied by name. Eight names go through eight switches
at once, a byte of each in a 64-bit word (names of more than a byte in several passes).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

ONE, BYTE, LOWEST = np.uint64(1), np.uint64(0xFF), np.uint64(0x0101_0101_0101_0101)
SWAPPED = np.array(
    [0xFFFF_FFFF_FFFF_FFFF, 0x00FF_00FF_00FF_00FF, 0x0000_FFFF_0000_FFFF, 0x0000_0000_FFFF_FFFF], dtype=np.uint64
)  # fmt: skip
"""Bytes of a word that change places with their neighbours at stride 0 (all stay), 1, 2 and 4."""


@njit(cache=True, nogil=True)
def set_switches(sources: Ints, middles: Ints, ends: Ints, outer: int, bits: int, settings: Bits) -> None:
    """Select bits along every path from a source over its middle to output `ends`; `settings` is zero before. Middle -1: none.

    On the way to the middle level the low bits of the switch become the middle's, one per level; after it the high bits become the
    end's.
    """
    for vector in range(sources.shape[0]):
        for d in range(sources.shape[1]):
            middle = middles[vector, d]
            if middle < 0:
                continue
            source, end = sources[vector, d] << outer, ends[vector, d] << outer
            came = source & 1
            for level in range(2 * bits + 1):
                if level < bits:
                    stay = -1 << level
                    column, goes = ((source >> 1) & stay) | (middle & ~stay), (((source >> 1) ^ middle) >> level) & 1
                else:
                    stay = (1 << (2 * bits - level)) - 1
                    column = (middle & stay) | ((end >> 1) & ~stay)
                    goes = (((middle << 1) ^ end) >> (2 * bits - level)) & 1
                cell = settings[vector, level, column]
                settings[vector, level, column] = (cell & ~np.uint8(1 << goes)) | np.uint8(came << goes)
                came = goes


@njit(cache=True, nogil=True)
def _arrive(cells: Words, outer: int, bits: int, links: Words, names: Small) -> None:
    """Name (port + 1; 0: none) of the input that each output sees: names pushed through every switch, level by level.

    A word holds the select bits of eight switches, or one byte of the names on eight links. `links` is scratch [4, words]: what
    comes straight down and what comes across, before and behind a level.
    """
    words, last = cells.shape[1], 2 * bits
    straight, across, down, slant = links[0], links[1], links[2], links[3]
    names[:] = 0
    for shift in range(0, 64, 8):
        if names.size >> shift == 0:
            break
        first, second = straight.view(np.uint8), across.view(np.uint8)
        for column in range(1 << bits):
            first[column] = ((column if outer else 2 * column) + 1) >> shift
            second[column] = 0 if outer else (2 * column + 2) >> shift
        for level in range(last + 1):
            stride = 0 if level == last else 1 << level if level < bits else 1 << (last - 1 - level)
            far, near = stride >> 3, stride & 7  # to another word, or by bytes of the same
            unswapped, by = SWAPPED[near - (near >> 2)], np.uint64(8 * near)
            for word in range(words):
                chosen, both = cells[level, word], straight[word] ^ across[word]
                goes = straight[word] ^ (both & (((chosen >> ONE) & LOWEST) * BYTE))
                down[word] = straight[word] ^ (both & ((chosen & LOWEST) * BYTE))
                slant[word ^ far] = ((goes & unswapped) << by) | ((goes >> by) & unswapped)
            straight, across, down, slant = down, slant, straight, across
        first, second = straight.view(np.uint8), across.view(np.uint8)
        for d in range(names.size):
            byte = first[d] if outer else (second[d >> 1] if d & 1 else first[d >> 1])
            names[d] |= np.int32(byte) << shift


@njit(cache=True, nogil=True)
def push(settings: Words, outer: int, bits: int, rows: Ints, enable: Flags, values: Floats, results: Floats) -> None:
    """Pushes values of vector rows[p] through the switches of pass p; enabled outputs latch what arrives."""
    links, names = np.zeros((4, settings.shape[2]), dtype=np.uint64), np.empty(enable.shape[1], dtype=np.int32)
    for row in range(rows.size):
        _arrive(settings[row], outer, bits, links, names)
        for d in range(names.size):
            if enable[row, d]:
                results[rows[row], d] = values[rows[row], names[d] - 1] if names[d] else np.float32(0)


@njit(cache=True, nogil=True)
def carry(sources: Ints, middles: Ints, outer: int, bits: int, rows: Ints, values: Floats, results: Floats) -> None:
    """`set_switches` and `push` with one set of switches, reused where sources and middles equal those of the pass before; outputs
    with a middle latch what arrives."""
    ports = sources.shape[1]
    cells = np.zeros((1, 2 * bits + 1, max(1, (1 << bits) >> 3)), dtype=np.uint64)
    settings, ends = cells.view(np.uint8), np.arange(ports).reshape(1, ports)
    links, names = np.zeros((4, cells.shape[2]), dtype=np.uint64), np.empty(ports, dtype=np.int32)
    for row in range(rows.size):
        same = row > 0
        for d in range(ports):
            same &= sources[row, d] == sources[row - 1, d] and middles[row, d] == middles[row - 1, d]
        if not same:
            cells[:] = 0
            set_switches(sources[row : row + 1], middles[row : row + 1], ends, outer, bits, settings)
            _arrive(cells[0], outer, bits, links, names)
        for d in range(ports):
            if middles[row, d] >= 0:
                results[rows[row], d] = values[rows[row], names[d] - 1] if names[d] else np.float32(0)
