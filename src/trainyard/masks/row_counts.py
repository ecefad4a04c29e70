"""Non-zeros in each row or each column of a view, without building its matrix (windows of a convolution repeat most bits)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.ir import Convolution, MaskView
from trainyard.ir.ops import backward_table, forward_table
from trainyard.masks.views import Bits, Range, geometry_letter, ranges, unpacked

Counts = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
KEPT_BYTES = 256 * 2**20
"""Counts are cached by content of the masks, so that tiles share them, and so does the same product on the next machine."""
_remembered = BoundedCache(max_bytes=KEPT_BYTES)
_channels_last = BoundedCache(max_bytes=KEPT_BYTES / 2)


def nonzero_counts(view: MaskView, axis: int) -> Counts:
    """Equals `np.count_nonzero(matrix(view), axis)`: axis 0 counts each column, axis 1 each row."""

    def compute() -> Counts:
        counts = _tensor_counts(view, axis if not view.transposed else 1 - axis)
        counts.setflags(write=False)
        return counts

    return _remembered.get((axis, *view.identity), compute)


def _tensor_counts(view: MaskView, axis: int) -> Counts:
    """Counts of the tensor's own matrix, before the view transposes it."""
    rows, columns = ranges(view)
    bits = unpacked(view.source, view.key)
    body, letter = view.geometry, geometry_letter(view)
    if body is None:
        return _matrix_counts(bits.reshape(-1, bits.shape[-1] if bits.ndim else 1), rows, columns, axis)
    taps = math.prod(body.kernel)
    if letter == "W":
        flat = bits.reshape(body.out_channels, -1, taps)
        if not view.dilated:
            return _matrix_counts(flat.reshape(body.out_channels, -1), rows, columns, axis)
        return _matrix_counts(flat.transpose(0, 2, 1).reshape(body.out_channels * taps, -1), rows, columns, axis)
    if letter == "G" and not view.dilated:
        return _window_counts(view, body, "same", body.out_channels // body.groups, rows, columns, axis)
    inside = body.in_channels if letter == "A" else body.out_channels
    return _window_counts(view, body, "forward" if letter == "A" else "backward", inside // body.groups, rows, columns, axis)


def _matrix_counts(bits: Bits, rows: Range, columns: Range, axis: int) -> Counts:
    """Counts of a matrix without windows; a step with more rows than were recorded repeats the recorded ones."""
    height, counts = len(bits), np.zeros(columns[1] - columns[0], dtype=np.int64)
    if axis == 1:
        if rows[1] <= height:
            return _range_counts(bits, rows, columns, 1)
        return _range_counts(bits, (0, height), columns, 1)[np.arange(*rows) % height]
    repeats, start = (rows[1] - rows[0]) // height, rows[0] % height
    if repeats:
        counts += repeats * _range_counts(bits, (0, height), columns, 0)
    end = start + (rows[1] - rows[0]) % height
    for part in ((start, min(end, height)), (0, end - height)):
        if part[1] > part[0]:
            counts += _range_counts(bits, part, columns, 0)
    return counts


def _range_counts(bits: Bits, rows: Range, columns: Range, axis: int) -> Counts:
    from trainyard.kernels.masks.windows import count_range

    counts = np.zeros(rows[1] - rows[0] if axis == 1 else columns[1] - columns[0], dtype=np.int64)
    count_range(np.ascontiguousarray(bits).view(np.uint8), np.array(rows), np.array(columns), axis == 1, counts)
    return counts


def _window_counts(
    view: MaskView, body: Convolution, windows: str, channels: int, rows: Range, columns: Range, axis: int
) -> Counts:
    from trainyard.kernels.masks.windows import count_windows

    counts = np.zeros(rows[1] - rows[0] if axis == 1 else columns[1] - columns[0], dtype=np.int64)
    bits = _channels_last.get((ByIdentity(view.source), view.key), lambda: _positions_by_channel(unpacked(view.source, view.key)))
    count_windows(bits, _positions(body, windows), body.batch, channels, np.array(rows), np.array(columns), axis == 1, counts)
    return counts


def _positions_by_channel(bits: Bits) -> Octets:
    """Bits as [sample, position, channel]."""
    return np.ascontiguousarray(bits.reshape(*bits.shape[:2], -1).transpose(0, 2, 1)).view(np.uint8)


@lru_cache(maxsize=256)
def _positions(body: Convolution, windows: str) -> Counts:
    """[window, tap] -> position in a feature map, over all axes; -1 where a tap lies outside."""
    if windows == "same":
        return np.arange(math.prod(body.out_size), dtype=np.int64)[:, None]
    table, size = (forward_table, body.size) if windows == "forward" else (backward_table, body.out_size)
    positions = np.zeros((1, 1), dtype=np.int64)
    for axis, extent in enumerate(size):
        along = table(body, axis)
        outside = (positions[:, None, :, None] < 0) | (along[None, :, None, :] < 0)
        joined = np.where(outside, -1, positions[:, None, :, None] * extent + along[None, :, None, :])
        positions = joined.reshape(positions.shape[0] * along.shape[0], -1)
    return positions
