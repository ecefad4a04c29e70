"""From tensors to packed streams, at the speed of memory: each tensor's bits are put in order once, and runs of them copied.

Reductions over channels read [sample, position, channel]: what a row sees under one tap is one run. Reductions over positions read
[sample, channel, position] with the phases of the last axis' stride apart: what one line of outputs sees is one run.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution, MaskView
from trainyard.ir.windows import backward_table, forward_table
from trainyard.masks.stream_geometry import Layout, Reading, Whole
from trainyard.masks.views import Bits, Cut, Kept, place_of, unpacked

Words = npt.NDArray[np.uint64]
KEPT = 6
"""Tensors whose bits stay packed, an eighth of a byte an element: three products read A and G in two orders each."""
_kept: Kept[Words] = Kept(KEPT)
_ONE = np.zeros((1, 1), dtype=np.int64)


def gathered(view: MaskView, found: Reading, shape: Layout, rows: Cut) -> Words:
    """[distinct segments, rows, words] of a view whose reading and layout are known."""
    body, first = view.geometry, found.along[0] + rows[0]
    out = np.zeros((shape.distinct_segments, rows[1] - rows[0], shape.words), dtype=np.uint64)
    if body is None:
        _of_matrix(view, found, first, out[0])
    elif place_of(view) == "W":
        _of_weight(view, body, found, shape.lanes, first, out[0])
    elif found.by_rows:
        _of_places(view, body, found, shape.lanes, first, out[0])
    else:
        _of_samples(view, body, found, first, out)
    return out


def _of_matrix(view: MaskView, found: Reading, first: int, out: Words) -> None:
    """A matrix without geometry; its recorded rows are repeated over the height of the step."""
    from trainyard.kernels.masks.streams import windows

    *above, wide = found.shape or (1,)
    recorded, (low, high) = math.prod(above), found.deep
    if found.by_rows:
        taps, height = _whole(low, high - low, 0)[None], view.height or recorded
        windows(_packed(view, (recorded, wide), 1), 0, first, _whole(height, recorded, 1, 1, wide, 0), _ONE, _ONE, taps, out)
        return
    ends = [low, *range((low // recorded + 1) * recorded, high, recorded), high]
    taps = np.array([(start % recorded, end - start, start - low) for start, end in itertools.pairwise(ends)], dtype=np.int64)
    same = np.zeros((1, len(taps)), dtype=np.int64)
    windows(_packed(view, (recorded, wide), 0), 0, first, _whole(wide, wide, 1, 1, recorded, 0), _ONE, same, taps, out)


def _of_weight(view: MaskView, body: Convolution, found: Reading, lanes: int, first: int, out: Words) -> None:
    """Rows are filters, or input channels; with each tap where the reduction has no taps of its own."""
    from trainyard.kernels.masks.streams import windows

    inside, taps = body.in_channels // body.groups, math.prod(body.kernel)
    axis, channels, items = (1, inside, body.out_channels) if found.by_rows else (0, body.out_channels, inside)
    source, over = _packed(view, (body.out_channels, inside, taps), axis), np.arange(found.taps, dtype=np.int64)[None]
    items *= taps // found.taps
    shape = _whole(items, items, found.taps, found.taps, channels, 0)
    windows(source, 0, first, shape, _ONE, over, _taps(found, lanes), out)


def _of_places(view: MaskView, body: Convolution, found: Reading, lanes: int, first: int, out: Words) -> None:
    """Rows are (group, sample, place); a window of taps there, or the place alone."""
    from trainyard.kernels.masks.streams import windows

    forward = place_of(view) == "A"
    recorded, channels, *size = found.shape
    positions = math.prod(size)
    source = _packed(view, (recorded, channels, positions), 1)
    if forward or view.dilated:
        lead, last = _tables(body, "forward" if forward else "backward")
        extent = size[-1]
    else:
        lead, last, extent = _ONE, np.arange(positions, dtype=np.int64)[:, None], positions
    shape = _whole(body.batch, recorded, positions, extent, channels, channels // body.groups)
    windows(source, 0, first, shape, lead, last, _taps(found, lanes), out)


def _of_samples(view: MaskView, body: Convolution, found: Reading, first: int, out: Words) -> None:
    """Rows are (channel, tap) of A or channels of G; each segment holds the output positions of one sample."""
    from trainyard.kernels.masks.streams import images

    recorded, channels, *size = found.shape
    of_group, outputs = channels // body.groups, math.prod(body.out_size)
    if place_of(view) == "A":
        lead, _ = _tables(body, "forward")
        stride, line = body.stride[-1], body.out_size[-1]
        last, of_phase = _phases(body), -(-size[-1] // stride)
        source = _packed(view, (recorded * channels, math.prod(size[:-1]), size[-1]), 2, stride)
        shape = _whole(math.prod(size[:-1]), stride, of_phase, line)
    else:
        lead, last = _ONE, np.array([(0, 0, 0, outputs)])
        source, shape = _packed(view, (recorded, channels, outputs), 2), _whole(1, 1, outputs, outputs)
    bits_of_channel = int(np.prod(shape[:3]))
    for segment, (run,) in enumerate(found.runs()[: len(out)]):
        item, position = divmod(found.deep[0] + run.start, outputs)
        group, sample = divmod(item, body.batch)
        base = (sample % recorded * channels + group * of_group) * bits_of_channel
        images(source, base, first, shape, lead, last, _whole(position, position + run.length), out[segment])


def _taps(found: Reading, lanes: int) -> Whole:
    """(first channel, channels, bit in the stream) of each tap; no channels where the cut leaves none."""
    taps, at = np.zeros((found.taps, 3), dtype=np.int64), 0
    for run in found.runs()[0]:
        channel, tap = divmod(found.deep[0] + run.start, found.taps)
        taps[tap] = channel, run.length, at
        at += -(-run.length // lanes) * lanes
    return taps


def _whole(*numbers: int) -> Whole:
    return np.array(numbers, dtype=np.int64)


def _packed(view: MaskView, shape: tuple[int, ...], axis: int, phases: int = 1) -> Words:
    """A tensor's bits with one axis innermost, and that axis by its phases; packed without gaps, one spare word behind."""

    def make() -> Words:
        bits = np.moveaxis(unpacked(view.source, view.key).reshape(shape), axis, -1)
        if phases > 1:
            bits = _apart(bits, phases)
        packed = np.packbits(np.ascontiguousarray(bits).reshape(-1), bitorder="little")
        words = np.zeros(-(-packed.size // 8) + 1, dtype=np.uint64)
        words.view(np.uint8)[: packed.size] = packed
        return words

    return _kept.of(view.source, (view.key, shape, axis, phases), make)


def _apart(bits: Bits, phases: int) -> Bits:
    """[..., position] -> [..., phase, position of that phase]."""
    size = bits.shape[-1]
    padded = np.zeros((*bits.shape[:-1], -(-size // phases) * phases), dtype=np.bool_)
    padded[..., :size] = bits
    return padded.reshape(*bits.shape[:-1], -1, phases).swapaxes(-1, -2)


@lru_cache(maxsize=256)
def _tables(body: Convolution, direction: Literal["forward", "backward"]) -> tuple[Whole, Whole]:
    """[place, tap] -> position: of all leading axes as one, and of the last."""
    table = forward_table if direction == "forward" else backward_table
    extents = body.size if direction == "forward" else body.out_size
    *leading, last = (table(body, axis) for axis in range(len(body.size)))
    lead = _ONE
    for axis, extent in zip(leading, extents, strict=False):
        both = np.where((lead[:, None, :, None] < 0) | (axis[:, None] < 0), -1, lead[:, None, :, None] * extent + axis[:, None])
        lead = both.reshape(lead.shape[0] * axis.shape[0], -1)
    return np.ascontiguousarray(lead), np.ascontiguousarray(last)


@lru_cache(maxsize=256)
def _phases(body: Convolution) -> Whole:
    """Of each tap along the last axis: its phase, the position that output 0 sees, and the outputs that see no padding."""
    stride, line = body.stride[-1], body.out_size[-1]
    found = []
    for tap in range(body.kernel[-1]):
        offset, phase = divmod(tap * body.dilation[-1] - body.padding[-1], stride)
        seen = forward_table(body, len(body.size) - 1)[:, tap] >= 0
        begin = int(seen.argmax()) if seen.any() else line
        found.append((phase, offset, begin, begin + int(seen.sum())))
    return np.array(found, dtype=np.int64)
