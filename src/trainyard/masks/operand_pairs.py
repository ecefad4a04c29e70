"""Bitmaps of both operands of a product, for arrays whose cost depends on where non-zeros of A and B meet.

A dense operand is all ones. A density has no bits of its own: they are drawn at random, the same for the same seed, where the other
operand is a mask or zeros come in whole channels or rows.
"""

from __future__ import annotations

import numpy as np

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.errors import MaskError
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Dense, Density, MaskView, MatMul
from trainyard.masks.contraction import Mask, Side, bitmap_of, shape_of

_kept = BoundedCache(256)
"""Packed tiles in use lately: a product reads each of its tiles many times."""


def zeros_at_random(*operands: Mask) -> bool:
    """Whether every operand is dense or a density whose zeros fall at random, so that expectations are enough."""
    return all(isinstance(o, Dense) or (isinstance(o, Density) and o.cluster == "none") for o in operands)


def density_of(operand: Mask) -> float:
    """The share of non-zeros of an operand without bits."""
    return operand.nonzero if isinstance(operand, Density) else 1.0


def operand_bits(op: MatMul, a: Mask, b: Mask, seed: int) -> tuple[Bitmap, Bitmap]:
    """The bitmaps of A (M x K) and B (K x N).

    >>> left, right = operand_bits(MatMul(2, 3, 4), Density(0.5, "channel"), Dense(), seed=1)
    >>> sorted(set(left.column_counts().tolist())), right.nonzeros  # a channel is a column of A: all or nothing
    ([0, 2], 12)
    """
    return operand_bitmap(op, a, "a", seed), operand_bitmap(op, b, "b", seed)


def operand_bitmap(op: MatMul, operand: Mask, side: Side, seed: int) -> Bitmap:
    """The bitmap of one operand."""
    rows, columns = shape = shape_of(op, side)
    if isinstance(operand, Dense):
        return Bitmap.random(rows, columns, nonzero=1.0, seed=0)
    if not isinstance(operand, Density):
        if op.count > 1:
            raise MaskError(f"{side}: one mask for {op.count} products; give them one by one, each with its own")
        if isinstance(operand, MaskView):
            name = ("packed", shape, *operand.identity)
            return Bitmap(_kept.get((ByIdentity(operand.source), name), lambda: bitmap_of(operand, shape, side).words), columns)
        return bitmap_of(operand, shape, side)
    seed = 2 * seed + (side == "b")
    if operand.cluster == "none":
        return Bitmap.random(rows, columns, nonzero=operand.nonzero, seed=seed)
    along_k = operand.cluster == "channel"  # columns of A, rows of B
    if along_k == (side == "a"):
        return Bitmap.of(np.broadcast_to(Bitmap.random(1, columns, nonzero=operand.nonzero, seed=seed).bits(), shape))
    return Bitmap.of(np.broadcast_to(Bitmap.random(rows, 1, nonzero=operand.nonzero, seed=seed).bits(), shape))
