"""The bits of both operands of a product, for a fabric that looks at A and B together.

A mask is itself and a dense operand is all ones. A density has no bits of its own: beside a mask, or where its zeros come in whole
channels or rows, it is drawn, the same for the same seed.
"""

from __future__ import annotations

import numpy as np

from trainyard.errors import MaskError
from trainyard.hardware.formats.bitmaps import Bitmap, Words
from trainyard.ir import Dense, Density, MaskView, MatMul
from trainyard.masks.contraction import Mask, Side, bitmap_of, shape_of
from trainyard.masks.views import Kept

_kept: Kept[Words] = Kept(256)
"""Packed tiles asked for last: those of one product come again and again."""


def only_expected(*operands: Mask) -> bool:
    """Whether expectations say all there is: every operand is dense or a density whose zeros fall at random."""
    return all(isinstance(one, Dense) or (isinstance(one, Density) and one.cluster == "none") for one in operands)


def nonzero_of(operand: Mask) -> float:
    """The density of an operand that `only_expected` lets pass."""
    return operand.nonzero if isinstance(operand, Density) else 1.0


def both_bits(op: MatMul, a: Mask, b: Mask, seed: int) -> tuple[Bitmap, Bitmap]:
    """A as M x K and B as K x N.

    >>> left, right = both_bits(MatMul(2, 3, 4), Density(0.5, "channel"), Dense(), seed=1)
    >>> sorted(set(left.column_counts().tolist())), right.nonzeros  # a channel is a column of A: all or nothing
    ([0, 2], 12)
    """
    return bits_of(op, a, "a", seed), bits_of(op, b, "b", seed)


def bits_of(op: MatMul, operand: Mask, side: Side, seed: int) -> Bitmap:
    """One of the two."""
    rows, columns = shape = shape_of(op, side)
    if isinstance(operand, Dense):
        return Bitmap.random(rows, columns, nonzero=1.0, seed=0)
    if not isinstance(operand, Density):
        if op.count > 1:
            raise MaskError(f"{side}: one mask for {op.count} products; give them one by one, each with its own")
        if isinstance(operand, MaskView):
            name = ("packed", shape, *operand.identity)
            return Bitmap(_kept.of(operand.source, name, lambda: bitmap_of(operand, shape, side).words), columns)
        return bitmap_of(operand, shape, side)
    seed = 2 * seed + (side == "b")
    if operand.cluster == "none":
        return Bitmap.random(rows, columns, nonzero=operand.nonzero, seed=seed)
    along_k = operand.cluster == "channel"  # columns of A, rows of B
    if along_k == (side == "a"):
        return Bitmap.of(np.broadcast_to(Bitmap.random(1, columns, nonzero=operand.nonzero, seed=seed).bits(), shape))
    return Bitmap.of(np.broadcast_to(Bitmap.random(rows, 1, nonzero=operand.nonzero, seed=seed).bits(), shape))
