"""Fig. 1: the MACs that remain if every pair is skipped whose targeted operand is zero.

Counted exactly, without scheduling a stream: an element of A at position y, x is multiplied once for each window that reads
it, so non-zeros are summed by position and weighted with the number of windows. Positions in the padding, and the zeros that a
strided layer's gradients are spread with (Table II, Eq. 6), are MACs of the dense schedule that never remain.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cache, reduce

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir import Convolution, MaskView
from trainyard.ir.ops import backward_table, forward_table
from trainyard.masks.generated import GeneratedMasks
from trainyard.masks.views import geometry_letter, shape_of, unpacked
from trainyard.papers.tensordash.models import Operation, Subject
from trainyard.papers.tensordash.products import MaskedProduct, masked_products

Counts = npt.NDArray[np.int64]


def visits(body: Convolution, place: str) -> Counts:
    """How many windows read each position: of A forward, of G (spread by the stride) backward.

    >>> visits(Convolution(batch=1, in_channels=1, out_channels=1, size=(4,), kernel=(3,), padding=(1,), stride=(2,)), "A")
    array([1, 2, 1, 1])
    """
    table, size = (forward_table, body.size) if place == "A" else (backward_table, body.out_size)
    by_axis = []
    for axis in range(len(size)):
        positions = table(body, axis)
        by_axis.append(np.bincount(positions[positions >= 0], minlength=size[axis]))
    return reduce(np.multiply.outer, by_axis)


def effectual(operand: MaskView, times: int) -> float:
    """MACs of a whole product that remain: non-zeros of the operand's matrix, times the other operand's extent.

    Generated masks count by their density, so that none has to be drawn.
    """
    source, body, place = operand.source, operand.geometry, geometry_letter(operand)
    shape = shape_of(source, operand.key)
    share = source.density(operand.key) if isinstance(source, GeneratedMasks) else None
    if body is None or place == "W" or (place == "G" and not operand.dilated):
        nonzero = float(unpacked(source, operand.key).sum()) if share is None else share * math.prod(shape)
        rows = math.prod(shape[:-1])
        repeats = 1.0 if place == "W" else (operand.height or rows) / rows if body is None else body.batch / shape[0]
        return nonzero * repeats * times
    windows = visits(body, place)
    if share is None:
        read = float((unpacked(source, operand.key).sum(axis=(0, 1)) * windows).sum())
    else:
        read = share * math.prod(shape[:2]) * float(windows.sum())
    return read * body.batch / shape[0] * times


@cache
def remaining(subject: Subject, gradients_alone: bool = False) -> tuple[tuple[Operation, float, float], ...]:
    """Of each product its operation, all MACs, and those that remain, by its weight."""
    first = ("A*W", "W*G") if gradients_alone else ("A*W",)
    return tuple((one.operation, one.weight * one.macs, one.weight * _left(one, first)) for one in masked_products(subject))


def _sides(product: MaskedProduct, first: tuple[str, ...] = ("A*W",)) -> list[tuple[str, float]]:
    """MACs that remain by each operand that may be looked at, with its letter; groups of a convolution share one tensor."""
    a, b = product.parts[0]
    sides = [(a, product.op.N)] + ([] if product.operation in first else [(b, product.op.M)])
    return [(operand.key[2], effectual(operand, times)) for operand, times in sides if isinstance(operand, MaskView)]


def _left(product: MaskedProduct, first: tuple[str, ...]) -> float:
    """By the operand that is looked at: the first one, or the one that leaves less."""
    return min((left for _, left in _sides(product, first)), default=float(product.macs))


def potential(subject: Subject, wanted: Operation | None = None, *, gradients_alone: bool = False) -> float:
    """All MACs over those that remain; `gradients_alone` leaves W's zeros out of W*G."""
    rows = [row for row in remaining(subject, gradients_alone) if wanted in (None, row[0])]
    return sum(macs for _, macs, _ in rows) / max(1.0, sum(left for _, _, left in rows))


def share_for(subject: Subject, wanted: float, dense: Collection[tuple[str, str]] = ()) -> float:
    """The share of zeros in A and G that makes the potential of a step without zeros `wanted`, found by halving.

    `dense` lists operands that have no zeros, as pairs of a layer ("*" is any) and a letter.
    """

    def takes_zeros(layer: str, letter: str) -> bool:
        return letter in ("A", "G") and not {(layer, letter), ("*", letter)} & set(dense)

    products = [
        (one, [(left, takes_zeros(one.layer, letter)) for letter, left in _sides(one)] or [(float(one.macs), False)])
        for one in masked_products(subject)
    ]

    def left_with(share: float) -> float:
        return sum(one.weight * min(left * (1.0 - share * zeros) for left, zeros in sides) for one, sides in products)

    target = sum(one.weight * one.macs for one, _ in products) / wanted
    if left_with(1.0) > target:
        raise BadInput(f"{subject.name}: no share of zeros makes a potential of {wanted:g}x")
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if left_with(middle) <= target else (middle, high)
    return high if low > 0.0 else 0.0
