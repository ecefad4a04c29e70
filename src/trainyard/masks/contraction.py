"""Non-zeros along the reduction of a product: for each k, those of column k of A and of row k of B.

Much of what a sparse array costs follows from these two counts alone: column k times row k has left[k] * right[k] useful
multiplications, and an element is worth keeping stationary only where the other operand has a non-zero at its k. From masks the
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
from trainyard.masks.row_counts import nonzero_counts
from trainyard.masks.views import matrix, ranges, swap_if_transposed

Counts = npt.NDArray[np.int64]
Mask = Operand | Bitmap | npt.ArrayLike
"""An operand's zeros: none (dense), a density, a view of a mask, or the bits themselves."""

Side = Literal["a", "b"]
ROUNDING = 1e-12
"""Relative rounding error of summed expectations, taken off before they are rounded up."""


@dataclass(frozen=True, slots=True, eq=False)
class KCounts:
    """One operand along k: its number of non-zeros at k (`nonzeros`), and the probability that there are any (`occupied`).

    Arrays of K numbers, or one number where all k are alike.
    """

    nonzeros: Any
    occupied: Any


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A and B along the K of their product."""

    depth: int
    left: KCounts
    right: KCounts

    def stationary(self, side: Side) -> int:
        """Non-zeros of one operand that meet at least one non-zero of the other: those worth keeping stationary."""
        return self._rounded(self._stationary(side))

    def stationary_by_chunk(self, side: Side, chunk: int) -> Counts:
        """The same for each run of `chunk` k's; expectations are rounded up, so that none of a chunk's elements vanish."""
        by_k = np.broadcast_to(np.asarray(self._stationary(side), dtype=np.float64), (self.depth,))
        expected = np.add.reduceat(by_k, np.arange(0, self.depth, chunk))
        return np.ceil(expected * (1 - ROUNDING)).astype(np.int64)

    @property
    def useful(self) -> int:
        """Multiplications of two non-zeros."""
        return self._rounded(self.left.nonzeros * self.right.nonzeros)

    def _stationary(self, side: Side) -> Any:
        mine, other = (self.left, self.right) if side == "a" else (self.right, self.left)
        return mine.nonzeros * other.occupied

    def _rounded(self, by_k: Any) -> int:
        """The sum over k: integer counts exactly, expectations rounded up, so that a small one does not vanish."""
        if isinstance(by_k, np.ndarray):
            return int(by_k.sum()) if by_k.dtype.kind in "iu" else math.ceil(float(by_k.sum()) * (1 - ROUNDING))
        return by_k * self.depth if isinstance(by_k, int) else math.ceil(float(by_k) * self.depth * (1 - ROUNDING))


def counts(op: MatMul, a: Mask, b: Mask) -> Contraction:
    """The counts of both operands of a product.

    >>> import numpy as np
    >>> contraction = counts(MatMul(2, 3, 2), np.array([[1, 1], [0, 1]]), np.array([[0, 0, 0], [1, 0, 1]]))
    >>> contraction.stationary("a"), contraction.stationary("b"), contraction.useful  # column 0 of A meets no non-zero
    (2, 2, 4)
    """
    return Contraction(op.K, _along_k(op, a, "a"), _along_k(op, b, "b"))


def _along_k(op: MatMul, operand: Mask, side: Side) -> KCounts:
    across = op.M if side == "a" else op.N
    if isinstance(operand, Dense):
        return KCounts(across, 1)
    if isinstance(operand, Density):
        return _expected_counts(operand, across)
    if op.count != 1:
        raise MaskError(f"{side}: one mask for {op.count} products; give them one by one")
    nonzeros = _view_counts(operand, op, side) if isinstance(operand, MaskView) else _bitmap_counts(operand, op, side)
    return KCounts(nonzeros, nonzeros > 0)


def _expected_counts(operand: Density, across: int) -> KCounts:
    """Expectations for zeros at random, in whole channels (columns of A, rows of B), or in whole rows of A or columns of B."""
    p = operand.nonzero
    occupied = {"none": 1.0 - (1.0 - p) ** across, "channel": p, "row": float(p > 0.0)}[operand.cluster]
    return KCounts(p * across, occupied)


def _bitmap_counts(mask: Any, op: MatMul, side: Side) -> Counts:
    bitmap = as_bitmap(mask, shape_of(op, side), side)
    return bitmap.column_counts() if side == "a" else bitmap.row_counts()


def _view_counts(view: MaskView, op: MatMul, side: Side) -> Counts:
    require_fit(view, shape_of(op, side), side)
    return nonzero_counts(view, 0 if side == "a" else 1)


def shape_of(op: MatMul, side: Side) -> tuple[int, int]:
    return (op.M, op.K) if side == "a" else (op.K, op.N)


def require_fit(view: MaskView, shape: tuple[int, int], name: str) -> None:
    extent = tuple(end - start for start, end in swap_if_transposed(view, ranges(view)))
    if extent != shape:
        raise MaskError(
            f"{name}: a mask of {extent[0]} x {extent[1]} (layer {view.key[0]!r}) for an operand of {shape[0]} x {shape[1]}"
        )


def bitmap_of(operand: Mask, shape: tuple[int, int], name: str) -> Bitmap:
    """The bits of an operand; a dense one has all of them set, a density has none."""
    if isinstance(operand, Density):
        raise BadInput(f"{name}: a density has no bits; give a mask")
    if isinstance(operand, Dense):
        return Bitmap.of(np.ones(shape, dtype=np.bool_))
    if isinstance(operand, MaskView):
        require_fit(operand, shape, name)
        return Bitmap.of(matrix(operand))
    return as_bitmap(operand, shape, name)


def stationary_rows(op: MatMul, a: Mask, b: Mask, side: Side, chunk: int) -> Counts:
    """Elements worth keeping stationary (`Contraction.stationary`), [run of `chunk` k's, row of A or column of B].

    >>> stationary_rows(MatMul(2, 3, 2), np.array([[1, 1], [0, 1]]), np.array([[0, 0, 0], [1, 0, 1]]), "a", 1)
    array([[0, 0],
           [1, 1]])
    """
    contraction = counts(op, a, b)
    mine, other = (a, contraction.right) if side == "a" else (b, contraction.left)
    across = op.M if side == "a" else op.N
    starts = range(0, op.K, chunk)
    if isinstance(mine, Dense | Density):
        share = mine.nonzero if isinstance(mine, Density) else 1.0
        occupied_by_chunk = np.add.reduceat(np.broadcast_to(np.asarray(other.occupied, np.float64), (op.K,)), np.array(starts))
        return np.repeat(np.rint(share * occupied_by_chunk).astype(np.int64)[:, None], across, axis=1)
    if isinstance(mine, MaskView) and chunk >= op.K and np.all(other.occupied):  # every k is occupied: no bits are read
        return nonzero_counts(mine, 1 if side == "a" else 0)[None]
    bitmap = bitmap_of(mine, shape_of(op, side), side)
    bits = bitmap.bits() if side == "a" else bitmap.transposed().bits()
    bits &= np.broadcast_to(np.asarray(other.occupied) > 0, (op.K,))
    return np.stack([np.count_nonzero(bits[:, start : start + chunk], axis=1) for start in starts]).astype(np.int64)
