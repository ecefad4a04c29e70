"""Packing a tensor's bits into streams fast: the bits are reordered once, then contiguous runs of them are copied.

A reduction over channels reads [sample, position, channel]: the channels of one tap are one run. A reduction over positions reads
[sample, channel, position], with the phases of the last axis' stride separated: one tap's inputs of a line of outputs are one run.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.ir import Convolution, MaskView
from trainyard.ir.ops import backward_table, forward_table
from trainyard.masks.stream_geometry import Integers, Layout, StreamAccess
from trainyard.masks.views import Bits, Range, geometry_letter, unpacked

Words = npt.NDArray[np.uint64]
KEPT = 6
"""Tensors that stay packed, at one bit an element: three products read A and G in two orders each."""
_kept = BoundedCache(KEPT)
_ONE = np.zeros((1, 1), dtype=np.int64)


def gather_streams(view: MaskView, access: StreamAccess, layout: Layout, rows: Range) -> Words:
    """The packed streams [distinct segments, rows, words] of some rows of a view."""
    body, first = view.geometry, access.rows[0] + rows[0]
    out = np.zeros((layout.distinct_segments, rows[1] - rows[0], layout.words), dtype=np.uint64)
    if body is None:
        _gather_matrix(view, access, first, out[0])
    elif geometry_letter(view) == "W":
        _gather_weight(view, body, access, layout.lanes, first, out[0])
    elif access.by_rows:
        _gather_positions(view, body, access, layout.lanes, first, out[0])
    else:
        _gather_samples(view, body, access, first, out)
    return out


def _gather_matrix(view: MaskView, access: StreamAccess, first: int, out: Words) -> None:
    """A matrix without geometry; its recorded rows are repeated over the height of the step."""
    from trainyard.kernels.masks.streams import windows

    *above, wide = access.shape or (1,)
    recorded, (low, high) = math.prod(above), access.reduction
    if access.by_rows:
        taps, height = _integers(low, high - low, 0)[None], view.height or recorded
        windows(_packed(view, (recorded, wide), 1), 0, first, _integers(height, recorded, 1, 1, wide, 0), _ONE, _ONE, taps, out)
        return
    ends = [low, *range((low // recorded + 1) * recorded, high, recorded), high]
    taps = np.array([(start % recorded, end - start, start - low) for start, end in itertools.pairwise(ends)], dtype=np.int64)
    line = np.zeros((1, len(taps)), dtype=np.int64)
    windows(_packed(view, (recorded, wide), 0), 0, first, _integers(wide, wide, 1, 1, recorded, 0), _ONE, line, taps, out)


def _gather_weight(view: MaskView, body: Convolution, access: StreamAccess, lanes: int, first: int, out: Words) -> None:
    """Rows are filters or input channels, times taps where the reduction does not run over taps."""
    from trainyard.kernels.masks.streams import windows

    inside, taps = body.in_channels // body.groups, math.prod(body.kernel)
    axis, channels, items = (1, inside, body.out_channels) if access.by_rows else (0, body.out_channels, inside)
    source, over = _packed(view, (body.out_channels, inside, taps), axis), np.arange(access.taps, dtype=np.int64)[None]
    items *= taps // access.taps
    shape = _integers(items, items, access.taps, access.taps, channels, 0)
    windows(source, 0, first, shape, _ONE, over, _taps(access, lanes), out)


def _gather_positions(view: MaskView, body: Convolution, access: StreamAccess, lanes: int, first: int, out: Words) -> None:
    """Rows are (group, sample, position): the window of taps at that position, or the position alone."""
    from trainyard.kernels.masks.streams import windows

    forward = geometry_letter(view) == "A"
    recorded, channels, *size = access.shape
    positions = math.prod(size)
    source = _packed(view, (recorded, channels, positions), 1)
    if forward or view.dilated:
        lead, last = _tables(body, "forward" if forward else "backward")
        extent = size[-1]
    else:
        lead, last, extent = _ONE, np.arange(positions, dtype=np.int64)[:, None], positions
    shape = _integers(body.batch, recorded, positions, extent, channels, channels // body.groups)
    windows(source, 0, first, shape, lead, last, _taps(access, lanes), out)


def _gather_samples(view: MaskView, body: Convolution, access: StreamAccess, first: int, out: Words) -> None:
    """Rows are (channel, tap) of A or channels of G; each segment holds the output positions of one sample."""
    from trainyard.kernels.masks.streams import images

    recorded, channels, *size = access.shape
    of_group, outputs = channels // body.groups, math.prod(body.out_size)
    if geometry_letter(view) == "A":
        lead, _ = _tables(body, "forward")
        stride, line = body.stride[-1], body.out_size[-1]
        last, of_phase = _phases(body), -(-size[-1] // stride)
        source = _packed(view, (recorded * channels, math.prod(size[:-1]), size[-1]), 2, stride)
        shape = _integers(math.prod(size[:-1]), stride, of_phase, line)
    else:
        lead, last = _ONE, np.array([(0, 0, 0, outputs)])
        source, shape = _packed(view, (recorded, channels, outputs), 2), _integers(1, 1, outputs, outputs)
    bits_of_channel = int(np.prod(shape[:3]))
    for segment, (run,) in enumerate(access.runs()[: len(out)]):
        item, position = divmod(access.reduction[0] + run.start, outputs)
        group, sample = divmod(item, body.batch)
        base = (sample % recorded * channels + group * of_group) * bits_of_channel
        images(source, base, first, shape, lead, last, _integers(position, position + run.length), out[segment])


def _taps(access: StreamAccess, lanes: int) -> Integers:
    """(first channel, channels, bit in the stream) of each tap; zero channels where the tile's cut leaves none."""
    taps, at = np.zeros((access.taps, 3), dtype=np.int64), 0
    for run in access.runs()[0]:
        channel, tap = divmod(access.reduction[0] + run.start, access.taps)
        taps[tap] = channel, run.length, at
        at += -(-run.length // lanes) * lanes
    return taps


def _integers(*numbers: int) -> Integers:
    return np.array(numbers, dtype=np.int64)


def _packed(view: MaskView, shape: tuple[int, ...], axis: int, phases: int = 1) -> Words:
    """A tensor's bits with one axis innermost, split into phases; packed without gaps, with one spare word at the end."""

    def make() -> Words:
        bits = np.moveaxis(unpacked(view.source, view.key).reshape(shape), axis, -1)
        if phases > 1:
            bits = _split_phases(bits, phases)
        packed = np.packbits(np.ascontiguousarray(bits).reshape(-1), bitorder="little")
        words = np.zeros(-(-packed.size // 8) + 1, dtype=np.uint64)
        words.view(np.uint8)[: packed.size] = packed
        return words

    return _kept.get((ByIdentity(view.source), view.key, shape, axis, phases), make)


def _split_phases(bits: Bits, phases: int) -> Bits:
    """[..., position] -> [..., phase, position of that phase]."""
    size = bits.shape[-1]
    padded = np.zeros((*bits.shape[:-1], -(-size // phases) * phases), dtype=np.bool_)
    padded[..., :size] = bits
    return padded.reshape(*bits.shape[:-1], -1, phases).swapaxes(-1, -2)


@lru_cache(maxsize=256)
def _tables(body: Convolution, direction: Literal["forward", "backward"]) -> tuple[Integers, Integers]:
    """[window, tap] -> position, for all leading axes together and for the last axis."""
    table = forward_table if direction == "forward" else backward_table
    extents = body.size if direction == "forward" else body.out_size
    *leading, last = (table(body, axis) for axis in range(len(body.size)))
    lead = _ONE
    for axis, extent in zip(leading, extents, strict=False):
        both = np.where((lead[:, None, :, None] < 0) | (axis[:, None] < 0), -1, lead[:, None, :, None] * extent + axis[:, None])
        lead = both.reshape(lead.shape[0] * axis.shape[0], -1)
    return np.ascontiguousarray(lead), np.ascontiguousarray(last)


@lru_cache(maxsize=256)
def _phases(body: Convolution) -> Integers:
    """For each tap along the last axis: its phase, the position that output 0 reads, and the outputs that read no padding."""
    stride, line = body.stride[-1], body.out_size[-1]
    phases = []
    for tap in range(body.kernel[-1]):
        offset, phase = divmod(tap * body.dilation[-1] - body.padding[-1], stride)
        inside = forward_table(body, len(body.size) - 1)[:, tap] >= 0
        begin = int(inside.argmax()) if inside.any() else line
        phases.append((phase, offset, begin, begin + int(inside.sum())))
    return np.array(phases, dtype=np.int64)
