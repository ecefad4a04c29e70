"""The bits of a MaskView as a matrix: only the tile that is asked for is gathered, whatever the size of its tensor.

A is read as im2col, W as (out, in * kernel), G as (batch * positions, out); the groups of a grouped convolution and the products
of a batched one stand below each other. The dilated form of grad_input reads G as (batch * size, out * kernel) and W as
(out * kernel, in). Where fewer samples were recorded than the step has, they are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.errors import MaskError
from trainyard.ir import Convolution, MaskSource, MaskView, TensorKey
from trainyard.mapping.lowering import backward_table, forward_table

Bits = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
Gather = Callable[[Whole, Whole], Bits]
"""(rows, columns) of the matrix that is not turned -> its bits there."""

T = TypeVar("T")
KEPT = 4
"""Tensors whose bits stay unpacked: two operands of the product at hand, and those of the one before it."""
_kept: dict[tuple[int, TensorKey], tuple[MaskSource, Bits]] = {}


def matrix(view: MaskView) -> Bits:
    """The bits of a view, cut and turned as it says."""
    bits = unpacked(view.source, view.key)
    extents, gather = _flat(view, bits) if view.geometry is None else _unfolded(view, view.geometry, bits)
    cuts = []
    for name, cut, extent in zip(("rows", "columns"), (view.rows, view.columns), _turn(view, extents), strict=True):
        if cut is not None and not 0 <= cut[0] < cut[1] <= extent:
            raise MaskError(f"layer {view.key[0]!r}: {name} {cut} lie outside the mask's {extent} {name}")
        cuts.append(np.arange(*(cut or (0, extent))))
    found = gather(*_turn(view, (cuts[0], cuts[1])))
    return found.T if view.transposed else found


def _turn(view: MaskView, pair: tuple[T, T]) -> tuple[T, T]:
    return (pair[1], pair[0]) if view.transposed else pair


def unpacked(source: MaskSource, key: TensorKey) -> Bits:
    """Tiles of one tensor ask for it thousands of times. A source is kept with its bits, so that its id stays its own."""
    place = (id(source), key)
    if place not in _kept:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[place] = (source, np.asarray(source.bits(key), dtype=np.bool_))
    return _kept[place][1]


def _flat(view: MaskView, bits: Bits) -> tuple[tuple[int, int], Gather]:
    """Without a geometry the last dimension stays, all others are rows."""
    found = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)
    recorded, height = found.shape[0], view.height or found.shape[0]
    if height % recorded:
        raise MaskError(
            f"layer {view.key[0]!r}: mask {view.key[2]!r} of shape {bits.shape} has {recorded} rows, the step {height}: "
            "record it at the batch of the step"
        )
    return (height, found.shape[1]), lambda rows, columns: found[np.ix_(rows % recorded, columns)]


def _unfolded(view: MaskView, body: Convolution, bits: Bits) -> tuple[tuple[int, int], Gather]:
    place = view.place or view.key[2]
    _check(view, body, place, bits)
    rows = body.batch * math.prod(body.out_size)
    inside, outside, taps = body.in_channels // body.groups, body.out_channels // body.groups, math.prod(body.kernel)
    if place == "A":
        return (body.groups * rows, inside * taps), _windows(bits, body, "forward", inside)
    if place == "W" and not view.dilated:
        weight = bits.reshape(body.out_channels, inside * taps)
        return weight.shape, lambda rows, columns: weight[np.ix_(rows, columns)]
    if place == "W":
        parted = bits.reshape(body.out_channels, inside, taps)
        extents = (body.out_channels * taps, inside)
        return extents, lambda rows, columns: parted[(rows // taps)[:, None], columns, (rows % taps)[:, None]]
    if view.dilated:
        return (body.groups * body.batch * math.prod(body.size), outside * taps), _windows(bits, body, "backward", outside)
    flat = bits.reshape(bits.shape[0], body.out_channels, -1)

    def gradients(rows: Whole, columns: Whole) -> Bits:
        group, sample, position = np.unravel_index(rows, (body.groups, body.batch, flat.shape[2]))
        return flat[(sample % len(flat))[:, None], (group * outside)[:, None] + columns, position[:, None]]  # type: ignore[no-any-return]

    return (body.groups * rows, outside), gradients


def _windows(bits: Bits, body: Convolution, direction: Literal["forward", "backward"], channels: int) -> Gather:
    """Rows are places, columns the taps of a window there; a tap in the padding, or on an inserted zero, has none."""
    places = body.out_size if direction == "forward" else body.size
    table = forward_table if direction == "forward" else backward_table
    tables = [table(body, axis) for axis in range(len(body.size))]

    def gather(rows: Whole, columns: Whole) -> Bits:
        group, sample, *at = np.unravel_index(rows, (body.groups, body.batch, *places))
        channel, *tap = np.unravel_index(columns, (channels, *body.kernel))
        seen = [tables[axis][np.ix_(at[axis], tap[axis])] for axis in range(len(tables))]
        found: Bits = bits[((sample % len(bits))[:, None], (group * channels)[:, None] + channel, *seen)]
        for axis in seen:
            found &= axis >= 0
        return found

    return gather


def _check(view: MaskView, body: Convolution, place: str, bits: Bits) -> None:
    shapes = {
        "A": (body.batch, body.in_channels, *body.size),
        "W": (body.out_channels, body.in_channels // body.groups, *body.kernel),
        "G": (body.batch, body.out_channels, *body.out_size),
    }
    wanted = shapes.get(place)
    sampled = wanted is not None and place != "W" and bits.ndim == len(wanted) and 0 < len(bits) <= body.batch
    if wanted is None or bits.shape != ((len(bits), *wanted[1:]) if sampled else wanted):
        raise MaskError(
            f"layer {view.key[0]!r}: mask {view.key[2]!r} of shape {bits.shape} does not fit the convolution "
            f"({wanted if wanted else 'A, W or G'})"
        )
