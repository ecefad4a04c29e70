"""How many bits of a view are set in each of its rows, or in each of its columns, without writing its matrix down."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainyard.caches import Kept, Remembered
from trainyard.ir import Convolution, MaskView
from trainyard.ir.windows import backward_table, forward_table
from trainyard.masks.views import Bits, Cut, cuts, place_of, unpacked

Counts = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
KEPT_BYTES = 256 * 2**20
"""Tallies are remembered by content of the masks: the tiles of a product, and those of the same product on the next machine."""
_remembered: Remembered[Counts] = Remembered(KEPT_BYTES)
_channels_last: Kept[Octets] = Kept(most_bytes=KEPT_BYTES / 2)


def tally(view: MaskView, axis: int) -> Counts:
    """What `np.count_nonzero(matrix(view), axis)` says: axis 0 counts each column, axis 1 each row."""

    def made() -> Counts:
        counts = _counted(view, axis if not view.transposed else 1 - axis)
        counts.setflags(write=False)
        return counts

    return _remembered.of((axis, *view.identity), made)


def _counted(view: MaskView, axis: int) -> Counts:
    """Of the tensor's own matrix, which is not turned."""
    rows, columns = cuts(view)
    bits = unpacked(view.source, view.key)
    body, place = view.geometry, place_of(view)
    if body is None:
        return _of_flat(bits.reshape(-1, bits.shape[-1] if bits.ndim else 1), rows, columns, axis)
    taps = math.prod(body.kernel)
    if place == "W":
        flat = bits.reshape(body.out_channels, -1, taps)
        if not view.dilated:
            return _of_flat(flat.reshape(body.out_channels, -1), rows, columns, axis)
        return _of_flat(flat.transpose(0, 2, 1).reshape(body.out_channels * taps, -1), rows, columns, axis)
    if place == "G" and not view.dilated:
        return _of_windows(view, body, "same", body.out_channels // body.groups, rows, columns, axis)
    inside = body.in_channels if place == "A" else body.out_channels
    return _of_windows(view, body, "forward" if place == "A" else "backward", inside // body.groups, rows, columns, axis)


def _of_flat(bits: Bits, rows: Cut, columns: Cut, axis: int) -> Counts:
    """A step of more rows than were recorded sees them again."""
    height, found = len(bits), np.zeros(columns[1] - columns[0], dtype=np.int64)
    if axis == 1:
        if rows[1] <= height:
            return _summed(bits, rows, columns, 1)
        return _summed(bits, (0, height), columns, 1)[np.arange(*rows) % height]
    whole, start = (rows[1] - rows[0]) // height, rows[0] % height
    if whole:
        found += whole * _summed(bits, (0, height), columns, 0)
    end = start + (rows[1] - rows[0]) % height
    for part in ((start, min(end, height)), (0, end - height)):
        if part[1] > part[0]:
            found += _summed(bits, part, columns, 0)
    return found


def _summed(bits: Bits, rows: Cut, columns: Cut, axis: int) -> Counts:
    from trainyard.kernels.masks.windows import summed

    counts = np.zeros(rows[1] - rows[0] if axis == 1 else columns[1] - columns[0], dtype=np.int64)
    summed(np.ascontiguousarray(bits).view(np.uint8), np.array(rows), np.array(columns), axis == 1, counts)
    return counts


def _of_windows(view: MaskView, body: Convolution, windows: str, channels: int, rows: Cut, columns: Cut, axis: int) -> Counts:
    from trainyard.kernels.masks.windows import seen

    counts = np.zeros(rows[1] - rows[0] if axis == 1 else columns[1] - columns[0], dtype=np.int64)
    bits = _channels_last.of(view.source, view.key, lambda: _turned(unpacked(view.source, view.key)))
    seen(bits, _spots(body, windows), body.batch, channels, np.array(rows), np.array(columns), axis == 1, counts)
    return counts


def _turned(bits: Bits) -> Octets:
    """[sample, position, channel]"""
    return np.ascontiguousarray(bits.reshape(*bits.shape[:2], -1).transpose(0, 2, 1)).view(np.uint8)


@lru_cache(maxsize=256)
def _spots(body: Convolution, windows: str) -> Counts:
    """[place, tap] -> position in a map, over all axes; -1 where any of them is outside."""
    if windows == "same":
        return np.arange(math.prod(body.out_size), dtype=np.int64)[:, None]
    table, size = (forward_table, body.size) if windows == "forward" else (backward_table, body.out_size)
    spots = np.zeros((1, 1), dtype=np.int64)
    for axis, extent in enumerate(size):
        along = table(body, axis)
        both = (spots[:, None, :, None] < 0) | (along[None, :, None, :] < 0)
        joined = np.where(both, -1, spots[:, None, :, None] * extent + along[None, :, None, :])
        spots = joined.reshape(spots.shape[0] * along.shape[0], -1)
    return spots
