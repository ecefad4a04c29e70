"""How full the tensors of a step are, so that a DMA engine that compresses zeros moves less of them.

Tensors may lie in DRAM zero-compressed (`hardware.formats.zero_compression`) or in a format of sparse matrices
(`hardware.formats.matrices`). As a matrix, a convolution's weight is [out, in x kernel], its activations and gradients are [sample
x channel, positions]; of all other tensors the last dimension is the columns. Of a tensor that is read or written in part, that
part's share crosses.

Masks are recorded for the operands of products. A tensor that one op writes and a product reads later has its zeros from that
product's mask, whoever else reads it: a ReLU's output is the A of the layer behind it, what leaves a ReLU's backward pass is a G.
An op that writes over a whole tensor makes a new version of it, with zeros of its own. A weight ends the step as it began. What no
product reads has no mask, and crosses as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.formats.matrices import Format, format_named
from trainyard.hardware.formats.zero_compression import compressed_bytes
from trainyard.ir import Convolution, Direction, Masks, MaskSource, Op, Step, TensorKey
from trainyard.ir.letters import letter_of, operand_order
from trainyard.ir.protocols import KnowsDensity
from trainyard.masks.lookup import mask_of
from trainyard.masks.views import Kept, shape_of, unpacked


class Footing(NamedTuple):
    """A tensor in a format, per element: bits of metadata, values that are stored."""

    metadata_bits: float
    values: float


Densities = Mapping[tuple[int, int, Direction], float | Footing]
"""(op, memory, read or write) -> share of elements that are not zero, or what a format makes of them."""

Version = tuple[int, int]
"""A memory, and how often it has been written over."""
Measure = Callable[[MaskSource, TensorKey, Op, str], tuple[float, ...]]
"""(masks, name, product, letter of its operand) -> amounts per element."""
_runs: Kept[npt.NDArray[np.int64]] = Kept(4096)
"""A range over assumptions asks for the runs of the same masks again and again."""


def densities(step: Step, masks: Masks) -> Densities:
    """Of every read and write whose tensor some product's mask tells of."""
    return {place: share for place, (share,) in _told(step, masks, _share).items()}


def footings(step: Step, masks: Masks, name: str) -> Densities:
    """The same in a format of `hardware.formats.matrices`, from where the non-zeros are."""
    return {place: Footing(*told) for place, told in _told(step, masks, partial(_footing, format_named(name))).items()}


def _told(step: Step, masks: Masks, measure: Measure) -> dict[tuple[int, int, Direction], tuple[float, ...]]:
    written: dict[int, int] = {}
    touched: list[tuple[int, Direction, Version]] = []
    known: dict[Version, list[float]] = {}
    measured: dict[TensorKey, tuple[float, ...]] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            touched.append((index, "read", (base, written.get(base, 0))))
        for tensor, amounts in _recorded(step, op, masks, measured, measure):
            base, elements = step.base(tensor), step.tensors[tensor].elements
            sums = known.setdefault((base, written.get(base, 0)), [0.0] * (len(amounts) + 1))
            for place, amount in enumerate((*amounts, 1)):
                sums[place] += amount * elements
        for base, whole in _written(step, op).items():
            written[base] = written.get(base, 0) + whole
            touched.append((index, "write", (base, written[base])))
    for base, times in written.items():
        if step.tensors[base].role.resident and (base, 0) in known:
            known.setdefault((base, times), known[base, 0])
    found = {version: tuple(total / sums[-1] for total in sums[:-1]) for version, sums in known.items() if sums[-1]}
    return {(index, version[0], way): found[version] for index, way, version in touched if version in found}


def moved_bytes(size: int, element_bytes: int, zeros: float | Footing) -> int:
    """What crosses the pins of `size` bytes in the scratchpad: never more than that.

    >>> moved_bytes(1000, 4, 0.5), moved_bytes(1000, 4, 1.0)
    (532, 1000)
    >>> moved_bytes(1000, 4, Footing(metadata_bits=1, values=0.5)), moved_bytes(1000, 4, Footing(metadata_bits=9, values=0.9))
    (532, 1000)
    """
    elements = size // element_bytes
    if not isinstance(zeros, Footing):
        return compressed_bytes(elements, round(zeros * elements), element_bytes)
    bits = round(zeros.metadata_bits * elements) + round(zeros.values * elements) * element_bytes * 8
    return min(elements * element_bytes, max(1, -(-bits // 8)))  # assumed: a transfer has a byte, and be all its values zero


def _recorded(
    step: Step, op: Op, masks: Masks, measured: dict[TensorKey, tuple[float, ...]], measure: Measure
) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Operands of a product that have a mask, with how full they are; each mask is measured once."""
    for side, position in enumerate(operand_order(step, op) if op.is_product else ()):
        letter = letter_of(step, op, side)
        found = mask_of(step, op, side, letter, masks) if letter and position < len(op.inputs) else None
        if found is not None:
            source, key = found
            if key not in measured:
                measured[key] = measure(source, key, op, letter)
            yield op.inputs[position], measured[key]


def _share(source: MaskSource, key: TensorKey, op: Op, letter: str) -> tuple[float, ...]:
    return (source.density(key) if isinstance(source, KnowsDensity) else float(np.mean(unpacked(source, key))),)


def _footing(form: Format, source: MaskSource, key: TensorKey, op: Op, letter: str) -> tuple[float, ...]:
    """Only where places matter are a mask's bits looked at; where it has none but a share, their expectation stands for them."""
    rows, columns = matrix_of(shape_of(source, key), letter if isinstance(op.body, Convolution) else "")
    (share,), elements = _share(source, key, op, letter), rows * columns
    size = form.footprint_of(rows, columns, round(share * elements), 1)
    if form.places_matter:
        try:
            nonzeros, padding = _runs.of(source, (key, form.name), lambda: _counted(form, unpacked(source, key), rows, columns))
            size = form.footprint_of(rows, columns, int(nonzeros), 1, int(padding))
        except UnknownName:
            size = form.expected_bits(rows, columns, share, 1)
    return size.metadata / max(1, elements), (size.values + size.padding) / max(1, elements)


def _counted(form: Format, bits: npt.NDArray[np.bool_], rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Non-zeros and padding."""
    bitmap = Bitmap.of(bits.reshape(rows, columns))
    return np.array([bitmap.nonzeros, form.padding_of(bitmap)])


def matrix_of(shape: tuple[int, ...], letter: str = "") -> tuple[int, int]:
    """Rows and columns of a tensor; `letter` says what it is to a convolution.

    >>> matrix_of((8, 64, 56, 56), "A"), matrix_of((128, 64, 3, 3), "W"), matrix_of((8, 512, 768))
    ((512, 3136), (128, 576), (4096, 768))
    """
    first = {"": max(0, len(shape) - 1), "W": 1}.get(letter, 2)
    return math.prod(shape[:first]), math.prod(shape[first:])


def _written(step: Step, op: Op) -> dict[int, bool]:
    """Memories that an op writes, and whether it writes over all of them: a part belongs to the version that is being made."""
    found: dict[int, bool] = {}
    for tensor in op.outputs:
        base = step.base(tensor)
        whole = step.tensors[tensor].elements >= step.tensors[base].elements
        found[base] = found.get(base, False) or whole
    return found
