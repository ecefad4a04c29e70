"""The density of every tensor that a step reads or writes, so that a DMA engine that compresses zeros moves fewer bytes.

Tensors lie in DRAM zero-compressed (`hardware.formats.zero_compression`) or in a sparse matrix format
(`hardware.formats.matrices`). As a matrix, a convolution's weight is [out, in x kernel], its activations and gradients are [sample
x channel, positions]; of all other tensors the last dimension is the columns. A partial read or write moves its share of the bytes.

Masks are recorded for the operands of products. A tensor that a product reads has the zeros of that product's mask for all its
readers and its writer: a ReLU's output is the A of the next layer, the output of a ReLU's backward pass is a G. An op that writes
a whole tensor makes a new version of it, with zeros of its own. A weight has the same zeros at the end of the step as at its
start. A tensor that no product reads has no mask and is moved uncompressed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.errors import UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.formats.matrices import Format, format_named
from trainyard.hardware.formats.zero_compression import compressed_bytes
from trainyard.ir import Convolution, Direction, Masks, MaskSource, Op, Step, TensorKey
from trainyard.ir.protocols import KnowsDensity
from trainyard.ir.step import letter_of, operand_order
from trainyard.masks.lookup import mask_of
from trainyard.masks.views import shape_of, unpacked


class StoredSize(NamedTuple):
    """The size of a tensor in a format, per element: bits of metadata, and stored values."""

    metadata_bits: float
    values: float


Densities = Mapping[tuple[int, int, Direction], float | StoredSize]
"""(op, base tensor, read or write) -> share of elements that are not zero, or the size in a format."""

Version = tuple[int, int]
"""A base tensor, and how often it has been overwritten."""
Measure = Callable[[MaskSource, TensorKey, Op, str], tuple[float, ...]]
"""(masks, key, product, letter of its operand) -> amounts per element."""
_runs = BoundedCache(4096)
"""Non-zeros and padding of a mask in a format; a sweep over assumptions reads the same masks many times."""


def densities(step: Step, masks: Masks) -> Densities:
    """The share of non-zeros of every read and write whose tensor has a mask."""
    return {access: share for access, (share,) in _measured(step, masks, _share).items()}


def stored_sizes(step: Step, masks: Masks, name: str) -> Densities:
    """The size in a format of `hardware.formats.matrices` of every read and write whose tensor has a mask."""
    measure = partial(_stored_size, format_named(name))
    return {access: StoredSize(*size) for access, size in _measured(step, masks, measure).items()}


def _measured(step: Step, masks: Masks, measure: Measure) -> dict[tuple[int, int, Direction], tuple[float, ...]]:
    written: dict[int, int] = {}
    touched: list[tuple[int, Direction, Version]] = []
    sums_of: dict[Version, list[float]] = {}
    measured: dict[TensorKey, tuple[float, ...]] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            touched.append((index, "read", (base, written.get(base, 0))))
        for tensor, amounts in _measured_operands(step, op, masks, measured, measure):
            base, elements = step.base(tensor), step.tensors[tensor].elements
            sums = sums_of.setdefault((base, written.get(base, 0)), [0.0] * (len(amounts) + 1))
            for i, amount in enumerate((*amounts, 1)):
                sums[i] += amount * elements
        for base, whole in _written(step, op).items():
            written[base] = written.get(base, 0) + whole
            touched.append((index, "write", (base, written[base])))
    for base, times in written.items():
        if step.tensors[base].role.resident and (base, 0) in sums_of:
            sums_of.setdefault((base, times), sums_of[base, 0])
    means = {version: tuple(total / sums[-1] for total in sums[:-1]) for version, sums in sums_of.items() if sums[-1]}
    return {(index, version[0], direction): means[version] for index, direction, version in touched if version in means}


def moved_bytes(size: int, element_bytes: int, zeros: float | StoredSize) -> int:
    """Bytes that cross the DRAM pins for `size` bytes in the scratchpad: never more than `size`.

    >>> moved_bytes(1000, 4, 0.5), moved_bytes(1000, 4, 1.0)
    (532, 1000)
    >>> moved_bytes(1000, 4, StoredSize(metadata_bits=1, values=0.5)), moved_bytes(1000, 4, StoredSize(metadata_bits=9, values=0.9))
    (532, 1000)
    """
    elements = size // element_bytes
    if not isinstance(zeros, StoredSize):
        return compressed_bytes(elements, round(zeros * elements), element_bytes)
    bits = round(zeros.metadata_bits * elements) + round(zeros.values * elements) * element_bytes * 8
    return min(
        elements * element_bytes, max(1, -(-bits // 8))
    )  # assumed: a transfer has at least one byte, even if all its values are zero


def _measured_operands(
    step: Step, op: Op, masks: Masks, measured: dict[TensorKey, tuple[float, ...]], measure: Measure
) -> Iterator[tuple[int, tuple[float, ...]]]:
    """The operands of a product that have a mask, with their amounts; each mask is measured once."""
    for side, position in enumerate(operand_order(step, op) if op.is_product else ()):
        letter = letter_of(step, op, side)
        mask = mask_of(step, op, side, letter, masks) if letter and position < len(op.inputs) else None
        if mask is not None:
            source, key = mask
            if key not in measured:
                measured[key] = measure(source, key, op, letter)
            yield op.inputs[position], measured[key]


def _share(source: MaskSource, key: TensorKey, op: Op, letter: str) -> tuple[float, ...]:
    return (source.density(key) if isinstance(source, KnowsDensity) else float(np.mean(unpacked(source, key))),)


def _stored_size(layout: Format, source: MaskSource, key: TensorKey, op: Op, letter: str) -> tuple[float, ...]:
    """Bits are read only where the format's size depends on positions; a source without bits gives the expected size."""
    rows, columns = matrix_of(shape_of(source, key), letter if isinstance(op.body, Convolution) else "")
    (share,), elements = _share(source, key, op, letter), rows * columns
    size = layout.footprint_of(rows, columns, round(share * elements), 1)
    if layout.size_depends_on_positions:
        try:
            nonzeros, padding = _runs.get(
                (ByIdentity(source), key, layout.name),
                lambda: _nonzeros_and_padding(layout, unpacked(source, key), rows, columns),
            )
            size = layout.footprint_of(rows, columns, int(nonzeros), 1, int(padding))
        except UnknownName:
            size = layout.expected_bits(rows, columns, share, 1)
    return size.metadata / max(1, elements), (size.values + size.padding) / max(1, elements)


def _nonzeros_and_padding(matrix_format: Format, bits: npt.NDArray[np.bool_], rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Non-zeros and padding of a mask as a matrix in a format."""
    bitmap = Bitmap.of(bits.reshape(rows, columns))
    return np.array([bitmap.nonzeros, matrix_format.padding_of(bitmap)])


def matrix_of(shape: tuple[int, ...], letter: str = "") -> tuple[int, int]:
    """Rows and columns of a tensor; `letter` says what it is to a convolution.

    >>> matrix_of((8, 64, 56, 56), "A"), matrix_of((128, 64, 3, 3), "W"), matrix_of((8, 512, 768))
    ((512, 3136), (128, 576), (4096, 768))
    """
    first = {"": max(0, len(shape) - 1), "W": 1}.get(letter, 2)
    return math.prod(shape[:first]), math.prod(shape[first:])


def _written(step: Step, op: Op) -> dict[int, bool]:
    """The base tensors that an op writes, and whether it writes them whole, which starts a new version."""
    written: dict[int, bool] = {}
    for tensor in op.outputs:
        base = step.base(tensor)
        whole = step.tensors[tensor].elements >= step.tensors[base].elements
        written[base] = written.get(base, False) or whole
    return written
