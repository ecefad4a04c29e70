"""The dense arrays executed with real numbers, every cell and every cycle. Slow; tests compare the closed forms with it.

What moves is a token: a value with the fold it belongs to and its position in the stream. A cell sees only its own registers and
those of its neighbours in the cycle before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.arrays.execution import Execution, require_product_shapes

if TYPE_CHECKING:
    from trainyard.arrays.dense.spatial import Spatial
    from trainyard.arrays.dense.systolic import Systolic
    from trainyard.arrays.dense.systolic_units import SystolicUnits
    from trainyard.arrays.dense.tensorcore import TensorCore

Matrix = npt.NDArray[np.floating[Any]]
Whole = npt.NDArray[np.int64]
NOTHING = -1


@dataclass(slots=True)
class Tokens:
    """A plane of registers that moves by one cell per cycle: value, fold, position in the stream (NOTHING: empty)."""

    value: npt.NDArray[np.float64]
    fold: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, rows: int, columns: int) -> Tokens:
        shape = (rows, columns)
        return cls(np.zeros(shape), np.full(shape, NOTHING), np.full(shape, NOTHING))

    def shift(
        self, axis: int, value: npt.NDArray[np.float64], fold: npt.NDArray[np.int64], position: npt.NDArray[np.int64]
    ) -> None:
        """Moves every token one cell to the right (axis 1) or down (axis 0); new tokens enter at the edge."""
        for plane, edge in ((self.value, value), (self.fold, fold), (self.position, position)):
            moving = plane if axis == 0 else plane.T
            moving[1:] = moving[:-1].copy()
            moving[0] = edge


def _blocks(shape: tuple[int, ...], high: int, wide: int) -> Iterator[tuple[slice, slice]]:
    rows, columns = shape
    for top, left in product(range(0, rows, high), range(0, columns, wide)):
        yield slice(top, min(top + high, rows)), slice(left, min(left + wide, columns))


def _feed(cycle: int, starts: list[int], length: int, skew: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """Fold and position of the token that enters each lane of an edge in this cycle; lane i is `skew[i]` cycles late."""
    fold = np.searchsorted(np.asarray(starts), cycle - skew, side="right") - 1
    position = cycle - skew - np.asarray(starts)[np.maximum(fold, 0)]
    valid = (fold >= 0) & (position >= 0) & (position < length)
    return np.where(valid, fold, NOTHING), np.where(valid, position, NOTHING)


ALL_FOLDS = slice(None)


def execute_systolic(array: Systolic, a: Matrix, b: Matrix, share: slice = ALL_FOLDS) -> Execution:
    """The folds of a product that are this array's `share`, all of them by default; the others add nothing to the result."""
    require_product_shapes(a, b)
    if array.dataflow == "os":
        return _execute_output_stationary(array, a, b, share)
    if array.dataflow == "ws":
        return _execute_weight_stationary(array, a, b, share)
    transposed = _execute_weight_stationary(array, b.T, a.T, share)  # A is stationary: the same array, the product transposed
    return Execution(product=transposed.product.T, cycles=transposed.cycles)


def execute_units(array: SystolicUnits, a: Matrix, b: Matrix) -> Execution:
    """Folds are dealt to the units in turn; their sums meet at the end, when the last unit is done."""
    ran = [execute_systolic(array.unit, a, b, slice(unit, None, array.units)) for unit in range(array.units)]
    return Execution(product=sum((one.product for one in ran), np.zeros((1, 1))), cycles=max(one.cycles for one in ran))


class LeavingSum(NamedTuple):
    """A sum that is complete at the bottom of a column at the end of a cycle; `block` is the part of B that was stationary."""

    cycle: int
    block: tuple[slice, slice]
    position: int
    column: int
    value: float


def weight_stationary_sums(array: Systolic, a: Matrix, b: Matrix, share: slice = ALL_FOLDS) -> Iterator[LeavingSum]:
    """Weights travel down to their row and become active when the first input of their fold passes; partial sums travel down."""
    rows, columns = array.rows, array.columns
    length = a.shape[0]
    folds = list(_blocks(b.shape, rows, columns))[share]
    fold_cycles = 2 * rows + columns + length - 2
    interval = max(length, rows) if array.pipelined else fold_cycles
    starts = [rows + index * interval for index in range(len(folds))]
    loads = [start - rows for start in starts]
    moving, weights, sums = Tokens.empty(rows, columns), Tokens.empty(rows, columns), Tokens.empty(rows, columns)
    waiting, active = np.zeros((rows, columns)), np.zeros((rows, columns))
    row, column = np.arange(rows), np.arange(columns)
    cycle, left = 0, len(folds) * length * columns
    while left:
        # the weight of the bottom row enters first; all of a column arrive in the same cycle
        fold, position = _feed(cycle, loads, rows, column)
        value = [_padded(b, folds[f], rows - 1 - p, c) if f >= 0 else 0.0 for f, p, c in zip(fold, position, column, strict=True)]
        weights.shift(0, np.asarray(value), fold, np.where(position >= 0, rows - 1 - position, NOTHING))

        fold, position = _feed(cycle, starts, length, row)
        value = [
            float(a[p, folds[f][0].start + r]) if f >= 0 and folds[f][0].start + r < a.shape[1] else 0.0
            for f, p, r in zip(fold, position, row, strict=True)
        ]
        moving.shift(1, np.asarray(value), fold, position)
        active = np.where(moving.position == 0, waiting, active)
        waiting = np.where(weights.position == row[:, None], weights.value, waiting)

        above = np.vstack([np.zeros((1, columns)), sums.value[:-1]])
        sums.value, sums.fold, sums.position = above + moving.value * active, moving.fold.copy(), moving.position.copy()
        for c in column.tolist():
            f, p = int(sums.fold[-1, c]), int(sums.position[-1, c])
            if p >= 0:
                left -= 1
                yield LeavingSum(cycle, folds[f], p, c, float(sums.value[-1, c]))
        cycle += 1


def _execute_weight_stationary(array: Systolic, a: Matrix, b: Matrix, share: slice) -> Execution:
    outputs, last = np.zeros((a.shape[0], b.shape[1])), 0
    for leaving in weight_stationary_sums(array, a, b, share):
        last, column = leaving.cycle, leaving.block[1].start + leaving.column
        if column < leaving.block[1].stop:
            outputs[leaving.position, column] += leaving.value
    return Execution(product=outputs, cycles=last + 1)


def _padded(matrix: Matrix, block: tuple[slice, slice], row: int | np.int64, column: int | np.int64) -> float:
    r, c = block[0].start + row, block[1].start + column
    return float(matrix[r, c]) if r < block[0].stop and c < block[1].stop else 0.0


def _execute_output_stationary(array: Systolic, a: Matrix, b: Matrix, share: slice) -> Execution:
    """A travels right, B down, each cell accumulates its output; a column drains one finished output per cycle."""
    rows, columns = array.rows, array.columns
    length, outputs = a.shape[1], np.zeros((a.shape[0], b.shape[1]))
    folds = list(_blocks(outputs.shape, rows, columns))[share]
    interval = max(length, rows) if array.pipelined else rows + columns + length - 2
    starts = [index * interval for index in range(len(folds))]
    right, down = Tokens.empty(rows, columns), Tokens.empty(rows, columns)
    sums = np.zeros((rows, columns))
    row, column = np.arange(rows), np.arange(columns)
    cycle, last, left = 0, 0, len(folds) * rows * columns
    while left:
        fold, position = _feed(cycle, starts, length, row)
        value = [_element(a, folds[f][0].start + r, p) if f >= 0 else 0.0 for f, p, r in zip(fold, position, row, strict=True)]
        right.shift(1, np.asarray(value), fold, position)
        fold, position = _feed(cycle, starts, length, column)
        value = [_element(b, p, folds[f][1].start + c) if f >= 0 else 0.0 for f, p, c in zip(fold, position, column, strict=True)]
        down.shift(0, np.asarray(value), fold, position)

        sums = np.where(right.position == 0, 0.0, sums) + right.value * down.value
        finished = right.position == length - 1
        if (finished.sum(axis=0) > 1).any():
            raise AssertionError("two sums of one column finished in one cycle")
        for r, c in zip(*np.nonzero(finished), strict=True):
            block = folds[right.fold[r, c]]
            left, last = left - 1, cycle
            if block[0].start + r < block[0].stop and block[1].start + c < block[1].stop:
                outputs[block[0].start + r, block[1].start + c] = sums[r, c]
        cycle += 1
    return Execution(product=outputs, cycles=last + 1)


def _element(matrix: Matrix, row: int, column: int) -> float:
    return float(matrix[row, column]) if row < matrix.shape[0] and column < matrix.shape[1] else 0.0


def execute_spatial(array: Spatial, a: Matrix, b: Matrix) -> Execution:
    """Each element computes its own outputs one after the other, `macs_per_element` products per cycle."""
    require_product_shapes(a, b)
    (height, width), depth = array.grid(a.shape[0], b.shape[1]), a.shape[1]
    outputs, busy = np.zeros((a.shape[0], b.shape[1])), np.zeros((height, width), dtype=np.int64)
    for row, column in product(range(height), range(width)):
        own_outputs = product(range(row, a.shape[0], height), range(column, b.shape[1], width))
        for m, n in own_outputs:
            total = 0.0
            for k in range(0, depth, array.macs_per_element):
                chunk = slice(k, min(k + array.macs_per_element, depth))
                total += float(a[m, chunk] @ b[chunk, n])
                busy[row, column] += 1
            outputs[m, n] = total
    return Execution(product=outputs, cycles=int(busy.max()))


def execute_tensorcore(array: TensorCore, a: Matrix, b: Matrix) -> Execution:
    """Blocks go to the first free tile; in a step each element adds `lanes` products to its output."""
    require_product_shapes(a, b)
    outputs, depth = np.zeros((a.shape[0], b.shape[1])), a.shape[1]
    shape = min(((form.m, form.n) for form in array.folds), key=lambda grid: len(list(_blocks(outputs.shape, *grid))))
    busy = [0] * array.tiles
    for rows, columns in _blocks(outputs.shape, *shape):
        tile = busy.index(min(busy))
        for k in range(0, depth, array.lanes):
            step = slice(k, min(k + array.lanes, depth))
            outputs[rows, columns] += a[rows, step] @ b[step, columns]
            busy[tile] += 1
    return Execution(product=outputs, cycles=max(busy))
