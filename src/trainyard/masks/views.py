"""The bits of a MaskView as a matrix: only the tile that is asked for is gathered, whatever the size of its tensor.

A is read as im2col, W as (out, in * kernel), G as (batch * positions, out); the groups of a grouped convolution and the products
of a batched one stand below each other. The dilated form of grad_input reads G as (batch * size, out * kernel) and W as
(out * kernel, in). Where fewer samples were recorded than the step has, they are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.caches import Kept as Kept
from trainyard.errors import MaskError
from trainyard.ir import Convolution, MaskSource, MaskView, TensorKey
from trainyard.ir.protocols import KnowsShapes
from trainyard.ir.windows import backward_table, forward_table

Bits = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
Cut = tuple[int, int]
Gather = Callable[[Whole, Whole], Bits]
"""(rows, columns) of the matrix that is not turned -> its bits there."""

T = TypeVar("T")
KEPT_BYTES = 256 * 2**20
"""Of tensors whose bits stay unpacked, a byte an element: a step's tensors are read by three products, on every machine."""
_kept: Kept[Bits] = Kept(most_bytes=KEPT_BYTES)


def matrix(view: MaskView) -> Bits:
    """The bits of a view, cut and turned as it says."""
    rows, columns = cuts(view)
    bits = unpacked(view.source, view.key)
    gather = _flat(bits) if view.geometry is None else _unfolded(view, view.geometry, bits)
    found = gather(np.arange(*rows), np.arange(*columns))
    return found.T if view.transposed else found


def turn(view: MaskView, pair: tuple[T, T]) -> tuple[T, T]:
    """From the rows and columns of a view to those of its tensor's own matrix, or back."""
    return (pair[1], pair[0]) if view.transposed else pair


def cuts(view: MaskView) -> tuple[Cut, Cut]:
    """What a view takes of its tensor's own matrix, before it is turned: rows, columns. Reads no bits."""
    found: list[Cut] = []
    for name, cut, extent in zip(("rows", "columns"), (view.rows, view.columns), turn(view, extents(view)), strict=True):
        if cut is not None and not 0 <= cut[0] < cut[1] <= extent:
            raise MaskError(f"layer {view.key[0]!r}: {name} {cut} lie outside the mask's {extent} {name}")
        found.append(cut or (0, extent))
    return turn(view, (found[0], found[1]))


def extents(view: MaskView) -> tuple[int, int]:
    """Rows and columns of a tensor's own matrix, neither cut nor turned; an error where the mask does not fit the geometry."""
    shape, body = shape_of(view.source, view.key), view.geometry
    if body is None:
        recorded = math.prod(shape[:-1])
        height = view.height or recorded
        if not recorded or height % recorded:
            raise MaskError(
                f"layer {view.key[0]!r}: mask {view.key[2]!r} of shape {shape} has {recorded} rows, the step {height}: "
                "record it at the batch of the step"
            )
        return height, shape[-1] if shape else 1
    wanted, found = _geometry(body, place_of(view), view.dilated)
    sampled = place_of(view) != "W" and len(shape) == len(wanted) and wanted and 0 < shape[0] <= wanted[0]
    if not wanted or shape != ((shape[0], *wanted[1:]) if sampled else wanted):
        raise MaskError(
            f"layer {view.key[0]!r}: mask {view.key[2]!r} of shape {shape} does not fit the convolution "
            f"({wanted if wanted else 'A, W or G'})"
        )
    return found


@lru_cache(maxsize=1024)
def _geometry(body: Convolution, place: str, dilated: bool) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The shape of a tensor at its place, and the rows and columns of its matrix."""
    inside, outside, taps = body.in_channels // body.groups, body.out_channels // body.groups, math.prod(body.kernel)
    items = body.groups * body.batch
    if place == "A":
        return (body.batch, body.in_channels, *body.size), (items * math.prod(body.out_size), inside * taps)
    if place == "G":
        matrix = (items * math.prod(body.size), outside * taps) if dilated else (items * math.prod(body.out_size), outside)
        return (body.batch, body.out_channels, *body.out_size), matrix
    matrix = (body.out_channels * taps, inside) if dilated else (body.out_channels, inside * taps)
    return ((body.out_channels, inside, *body.kernel) if place == "W" else ()), matrix


def place_of(view: MaskView) -> str:
    """What the tensor is to the geometry: A, W or G."""
    return view.place or view.key[2]


def shape_of(source: MaskSource, key: TensorKey) -> tuple[int, ...]:
    """A tensor's shape, without its bits where the source can say it (`spec(key).shape`)."""
    return tuple(source.spec(key).shape) if isinstance(source, KnowsShapes) else unpacked(source, key).shape


def unpacked(source: MaskSource, key: TensorKey) -> Bits:
    """Tiles of one tensor ask for it thousands of times."""
    return _kept.of(source, key, lambda: np.asarray(source.bits(key), dtype=np.bool_))


def _flat(bits: Bits) -> Gather:
    """Without a geometry the last dimension stays, all others are rows."""
    found = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)

    def gather(rows: Whole, columns: Whole) -> Bits:
        """Rows and columns are runs; a run that does not go round is a plain cut."""
        if rows[-1] < len(found):
            return found[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
        return found[np.ix_(rows % len(found), columns)]

    return gather


def _unfolded(view: MaskView, body: Convolution, bits: Bits) -> Gather:
    place = place_of(view)
    inside, outside, taps = body.in_channels // body.groups, body.out_channels // body.groups, math.prod(body.kernel)
    if place == "A":
        return _windows(bits, body, "forward", inside)
    if place == "W" and not view.dilated:
        return _flat(bits.reshape(body.out_channels, inside * taps))
    if place == "W":
        parted = bits.reshape(body.out_channels, inside, taps)
        return lambda rows, columns: parted[(rows // taps)[:, None], columns, (rows % taps)[:, None]]
    if view.dilated:
        return _windows(bits, body, "backward", outside)
    flat = bits.reshape(bits.shape[0], body.out_channels, -1)

    def gradients(rows: Whole, columns: Whole) -> Bits:
        group, sample, position = np.unravel_index(rows, (body.groups, body.batch, flat.shape[2]))
        return flat[(sample % len(flat))[:, None], (group * outside)[:, None] + columns, position[:, None]]  # type: ignore[no-any-return]

    return gradients


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
