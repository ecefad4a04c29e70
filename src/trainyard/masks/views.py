"""The bits of a MaskView as a matrix: only the view's tile is gathered, whatever the size of its tensor.

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

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.errors import MaskError
from trainyard.ir import Convolution, MaskSource, MaskView, TensorKey
from trainyard.ir.ops import backward_table, forward_table
from trainyard.ir.protocols import KnowsShapes

Bits = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Range = tuple[int, int]
Gather = Callable[[Integers, Integers], Bits]
"""(rows, columns) of the tensor's own matrix, not transposed -> the bits there."""

T = TypeVar("T")
KEPT_BYTES = 256 * 2**20
"""Bound on cached unpacked tensors, at a byte an element: three products read each tensor of a step, on every machine."""
_kept = BoundedCache(max_bytes=KEPT_BYTES)


def matrix(view: MaskView) -> Bits:
    """The bits of a view, cut and transposed."""
    rows, columns = ranges(view)
    bits = unpacked(view.source, view.key)
    gather = _matrix_gather(bits) if view.geometry is None else _convolution_gather(view, view.geometry, bits)
    bits_of_view = gather(np.arange(*rows), np.arange(*columns))
    return bits_of_view.T if view.transposed else bits_of_view


def swap_if_transposed(view: MaskView, pair: tuple[T, T]) -> tuple[T, T]:
    """From the rows and columns of a view to those of its tensor's own matrix, or back."""
    return (pair[1], pair[0]) if view.transposed else pair


def ranges(view: MaskView) -> tuple[Range, Range]:
    """The rows and columns of the tensor's own matrix, before it is transposed, that a view covers."""
    pair: list[Range] = []
    for name, cut, extent in zip(
        ("rows", "columns"), (view.rows, view.columns), swap_if_transposed(view, extents(view)), strict=True
    ):
        if cut is not None and not 0 <= cut[0] < cut[1] <= extent:
            raise MaskError(f"layer {view.key[0]!r}: {name} {cut} lie outside the mask's {extent} {name}")
        pair.append(cut or (0, extent))
    return swap_if_transposed(view, (pair[0], pair[1]))


def extents(view: MaskView) -> tuple[int, int]:
    """The size of a tensor's own matrix, neither cut nor transposed; an error where the mask does not fit the convolution."""
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
    expected, size = _geometry(body, geometry_letter(view), view.dilated)
    sampled = geometry_letter(view) != "W" and len(shape) == len(expected) and expected and 0 < shape[0] <= expected[0]
    if not expected or shape != ((shape[0], *expected[1:]) if sampled else expected):
        raise MaskError(
            f"layer {view.key[0]!r}: mask {view.key[2]!r} of shape {shape} does not fit the convolution "
            f"({expected if expected else 'A, W or G'})"
        )
    return size


@lru_cache(maxsize=1024)
def _geometry(body: Convolution, letter: str, dilated: bool) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The shape of a convolution's tensor A, W or G, and the rows and columns of its matrix."""
    inside, outside, taps = body.in_channels // body.groups, body.out_channels // body.groups, math.prod(body.kernel)
    items = body.groups * body.batch
    if letter == "A":
        return (body.batch, body.in_channels, *body.size), (items * math.prod(body.out_size), inside * taps)
    if letter == "G":
        matrix = (items * math.prod(body.size), outside * taps) if dilated else (items * math.prod(body.out_size), outside)
        return (body.batch, body.out_channels, *body.out_size), matrix
    matrix = (body.out_channels * taps, inside) if dilated else (body.out_channels, inside * taps)
    return ((body.out_channels, inside, *body.kernel) if letter == "W" else ()), matrix


def geometry_letter(view: MaskView) -> str:
    """The role of the view's tensor in the convolution: A, W or G."""
    return view.place or view.key[2]


def shape_of(source: MaskSource, key: TensorKey) -> tuple[int, ...]:
    """A tensor's shape, without reading its bits where the source knows it."""
    return tuple(source.spec(key).shape) if isinstance(source, KnowsShapes) else unpacked(source, key).shape


def unpacked(source: MaskSource, key: TensorKey) -> Bits:
    """The bits of a tensor, cached: the tiles of a product read them thousands of times."""
    return _kept.get((ByIdentity(source), key), lambda: np.asarray(source.bits(key), dtype=np.bool_))


def _matrix_gather(bits: Bits) -> Gather:
    """The last dimension is the columns, all others are the rows."""
    flat = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)

    def gather(rows: Integers, columns: Integers) -> Bits:
        """Rows and columns are consecutive; rows beyond those recorded repeat them."""
        if rows[-1] < len(flat):
            return flat[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
        return flat[np.ix_(rows % len(flat), columns)]

    return gather


def _convolution_gather(view: MaskView, body: Convolution, bits: Bits) -> Gather:
    letter = geometry_letter(view)
    inside, outside, taps = body.in_channels // body.groups, body.out_channels // body.groups, math.prod(body.kernel)
    if letter == "A":
        return _window_gather(bits, body, "forward", inside)
    if letter == "W" and not view.dilated:
        return _matrix_gather(bits.reshape(body.out_channels, inside * taps))
    if letter == "W":
        parted = bits.reshape(body.out_channels, inside, taps)
        return lambda rows, columns: parted[(rows // taps)[:, None], columns, (rows % taps)[:, None]]
    if view.dilated:
        return _window_gather(bits, body, "backward", outside)
    flat = bits.reshape(bits.shape[0], body.out_channels, -1)

    def gradients(rows: Integers, columns: Integers) -> Bits:
        group, sample, position = np.unravel_index(rows, (body.groups, body.batch, flat.shape[2]))
        return flat[(sample % len(flat))[:, None], (group * outside)[:, None] + columns, position[:, None]]  # type: ignore[no-any-return]

    return gradients


def _window_gather(bits: Bits, body: Convolution, direction: Literal["forward", "backward"], channels: int) -> Gather:
    """Rows are windows, columns their taps; a tap in the padding or on an inserted zero reads a zero."""
    window_grid = body.out_size if direction == "forward" else body.size
    table = forward_table if direction == "forward" else backward_table
    tables = [table(body, axis) for axis in range(len(body.size))]

    def gather(rows: Integers, columns: Integers) -> Bits:
        group, sample, *at = np.unravel_index(rows, (body.groups, body.batch, *window_grid))
        channel, *tap = np.unravel_index(columns, (channels, *body.kernel))
        positions = [tables[axis][np.ix_(at[axis], tap[axis])] for axis in range(len(tables))]
        gathered: Bits = bits[((sample % len(bits))[:, None], (group * channels)[:, None] + channel, *positions)]
        for axis in positions:
            gathered &= axis >= 0
        return gathered

    return gather
