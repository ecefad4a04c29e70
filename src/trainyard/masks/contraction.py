"""Who meets whom along the reduction: for each k, the non-zeros of column k of A and of row k of B.

Much of what a sparse fabric costs follows from these two counts alone: a product of column k with row k has left[k] * right[k]
useful multiplications, and an element of one operand is worth holding only where the other has anything at its k. From masks the
counts are exact; from densities they are expectations, the same for every k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MaskError
from trainyard.hardware.formats.bitmaps import Bitmap, as_bitmap
from trainyard.ir import Dense, Density, MaskView, MatMul, Operand
from trainyard.masks.row_counts import tally
from trainyard.masks.views import cuts, matrix, turn

Counts = npt.NDArray[np.int64]
Mask = Operand | Bitmap | npt.ArrayLike
"""What is known of an operand's zeros: nothing, a density, a view of recorded bits, or the bits themselves."""

Side = Literal["a", "b"]
ROUNDING = 1e-12
"""Of sums of expectations: what should be a whole number is taken as that."""


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """One operand along k: how many non-zeros there are (`mean`), and whether there are any (`some`, a probability).

    Arrays of K numbers, or one number where all k are alike.
    """

    mean: Any
    some: Any


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A and B along the K of their product."""

    depth: int
    left: Met
    right: Met

    def held(self, side: Side) -> int:
        """Non-zeros of one operand that meet at least one non-zero of the other: what is worth keeping still."""
        return self._rounded(self._held(side))

    def held_in_chunks(self, side: Side, chunk: int) -> Counts:
        """The same for each run of `chunk` k's; of expectations rounded up, so that no chunk that may hold something is empty."""
        each = np.broadcast_to(np.asarray(self._held(side), dtype=np.float64), (self.depth,))
        expected = np.add.reduceat(each, np.arange(0, self.depth, chunk))
        return np.ceil(expected * (1 - ROUNDING)).astype(np.int64)

    @property
    def useful(self) -> int:
        """Multiplications of two non-zeros."""
        return self._rounded(self.left.mean * self.right.mean)

    def _held(self, side: Side) -> Any:
        mine, other = (self.left, self.right) if side == "a" else (self.right, self.left)
        return mine.mean * other.some

    def _rounded(self, each: Any) -> int:
        """Whole counts as they are; expectations rounded up, so that little is not nothing."""
        if isinstance(each, np.ndarray):
            return int(each.sum()) if each.dtype.kind in "iu" else math.ceil(float(each.sum()) * (1 - ROUNDING))
        return each * self.depth if isinstance(each, int) else math.ceil(float(each) * self.depth * (1 - ROUNDING))


def counts(op: MatMul, a: Mask, b: Mask) -> Contraction:
    """Of the two operands of a product.

    >>> import numpy as np
    >>> met = counts(MatMul(2, 3, 2), np.array([[1, 1], [0, 1]]), np.array([[0, 0, 0], [1, 0, 1]]))
    >>> met.held("a"), met.held("b"), met.useful  # column 0 of A meets nothing
    (2, 2, 4)
    """
    return Contraction(op.K, _met(op, a, "a"), _met(op, b, "b"))


def _met(op: MatMul, operand: Mask, side: Side) -> Met:
    across = op.M if side == "a" else op.N
    if isinstance(operand, Dense):
        return Met(across, 1)
    if isinstance(operand, Density):
        return _expected(operand, across)
    if op.count != 1:
        raise MaskError(f"{side}: one mask for {op.count} products; give them one by one")
    found = _of_view(operand, op, side) if isinstance(operand, MaskView) else _of_bits(operand, op, side)
    return Met(found, found > 0)


def _expected(operand: Density, across: int) -> Met:
    """Zeros at random, in whole columns of A or rows of B (a channel lies on one k), or in whole rows of A or columns of B."""
    p = operand.nonzero
    some = {"none": 1.0 - (1.0 - p) ** across, "channel": p, "row": float(p > 0.0)}[operand.cluster]
    return Met(p * across, some)


def _of_bits(mask: Any, op: MatMul, side: Side) -> Counts:
    bitmap = as_bitmap(mask, shape_of(op, side), side)
    return bitmap.column_counts() if side == "a" else bitmap.row_counts()


def _of_view(view: MaskView, op: MatMul, side: Side) -> Counts:
    require_fit(view, shape_of(op, side), side)
    return tally(view, 0 if side == "a" else 1)


def shape_of(op: MatMul, side: Side) -> tuple[int, int]:
    return (op.M, op.K) if side == "a" else (op.K, op.N)


def require_fit(view: MaskView, shape: tuple[int, int], name: str) -> None:
    found = tuple(end - start for start, end in turn(view, cuts(view)))
    if found != shape:
        raise MaskError(
            f"{name}: a mask of {found[0]} x {found[1]} (layer {view.key[0]!r}) for an operand of {shape[0]} x {shape[1]}"
        )


def bitmap_of(operand: Mask, shape: tuple[int, int], name: str) -> Bitmap:
    """The bits of an operand; of a dense one all are set. A density has none."""
    if isinstance(operand, Density):
        raise BadInput(f"{name}: a density has no bits; give a mask")
    if isinstance(operand, Dense):
        return Bitmap.of(np.ones(shape, dtype=np.bool_))
    if isinstance(operand, MaskView):
        require_fit(operand, shape, name)
        return Bitmap.of(matrix(operand))
    return as_bitmap(operand, shape, name)


def held_rows(op: MatMul, a: Mask, b: Mask, side: Side, chunk: int) -> Counts:
    """Elements worth keeping still (`Contraction.held`) by run of `chunk` k's and by dot product: rows of A, or columns of B.

    >>> held_rows(MatMul(2, 3, 2), np.array([[1, 1], [0, 1]]), np.array([[0, 0, 0], [1, 0, 1]]), "a", 1)
    array([[0, 0],
           [1, 1]])
    """
    met = counts(op, a, b)
    mine, other = (a, met.right) if side == "a" else (b, met.left)
    across = op.M if side == "a" else op.N
    starts = range(0, op.K, chunk)
    if isinstance(mine, Dense | Density):
        share = mine.nonzero if isinstance(mine, Density) else 1.0
        met_by_chunk = np.add.reduceat(np.broadcast_to(np.asarray(other.some, np.float64), (op.K,)), np.array(starts))
        return np.repeat(np.rint(share * met_by_chunk).astype(np.int64)[:, None], across, axis=1)
    if isinstance(mine, MaskView) and chunk >= op.K and np.all(other.some):  # all of it is met: counted without a look at bits
        return tally(mine, 1 if side == "a" else 0)[None]
    bitmap = bitmap_of(mine, shape_of(op, side), side)
    bits = bitmap.bits() if side == "a" else bitmap.transposed().bits()
    bits &= np.broadcast_to(np.asarray(other.some) > 0, (op.K,))
    return np.stack([np.count_nonzero(bits[:, start : start + chunk], axis=1) for start in starts]).astype(np.int64)
