"""TensorDash's processing elements and their tile, executed: values through staging buffers, multiplexers and adder trees.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III, Fig. 2, 4, 7.

Scratchpad rows are written to the staging buffers of both sides, at most `banks` a cycle. Comparators make the zero vectors Z_A
and Z_B. One-sided, a row of elements has one scheduler that sees Z_B alone: A's zeros are multiplied. Two-sided, each element has
its own, which sees both. The selects MS steer the multiplexers of both sides in tandem; the products of all lanes go through an
adder tree, ((p0 + p1) + (p2 + p3)) for four, into the accumulator. B is the side on the rows of a tile, A the one on its columns.

Numbers: `fp16` and `bf16` operands multiply into FP32 (exact, save where a bf16 product leaves FP32's range) and add in FP32, in
the order of the schedule; `fixed` takes int8 into int32, or int16 into int64, which wrap around. Skipping a zero changes nothing
but the order of sums, with one exception: zero times infinity or NaN is NaN, and a skipped pair cannot say so. The multiplier
never sees it, so the output is what the hardware gives; `hidden` counts the pairs for which the dense schedule gives NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays.execution import require_product_shapes
from trainyard.arrays.tensordash.scheduler import SYNCS, Scheduler, Selects, Trace, Zeros, advance, select
from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from trainyard.arrays.tensordash.array import TensorDash

Number = Literal["fp16", "bf16", "fixed"]
NUMBERS: tuple[str, ...] = get_args(Number)
Skips = Literal["none", "b", "both"]
SKIPS: tuple[str, ...] = get_args(Skips)
"""Whose zeros are skipped: none (the dense schedule), those of the operand on the rows, those of either operand."""
Values = npt.NDArray[Any]


def bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Round to bfloat16, the upper half of a float32, to the nearest, ties to even; the result is held in float32.

    >>> bfloat16([1.0, 1.00390625, 1.01171875, 3.4e38])
    array([1.      , 1.      , 1.015625,      inf], dtype=float32)
    """
    single = np.asarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), single, rounded.view(np.float32)).astype(np.float32)


def operand(values: npt.ArrayLike, number: str) -> Values:
    """Values rounded to the operands' number format, in the type of products and sums."""
    array = np.asarray(values)
    if number not in NUMBERS:
        raise UnknownName("number format", str(number), NUMBERS, where="TensorDash")
    if number == "fixed":
        if array.dtype.kind not in "iu":
            raise BadInput(f"fixed point takes int8 or int16 values, got {array.dtype}: scale and round them first")
        if array.size and (array.min() < -(2**15) or array.max() >= 2**15):
            raise BadInput(f"fixed point takes int8 or int16 values, got {array.min()} to {array.max()}")
        return array.astype(np.int32 if array.dtype == np.int8 else np.int64)
    if array.dtype.kind not in "fiu":
        raise BadInput(f"{number} takes real numbers, got {array.dtype}")
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float16).astype(np.float32) if number == "fp16" else bfloat16(array.astype(np.float32))


class StagingBuffer:
    """The next `depth` steps of one operand: written a row of values at a time, read value by value."""

    def __init__(self, depth: int) -> None:
        self.depth, self.first = depth, 0
        self.rows: list[Values] = []

    def write(self, row: Values) -> None:
        if len(self.rows) == self.depth:
            raise AssertionError("a row was written to a full staging buffer")
        self.rows.append(row)

    def drain(self, first: int) -> None:
        """Drops the rows before step `first`."""
        del self.rows[: first - self.first]
        self.first = first

    def zero(self, step: int) -> list[bool]:
        """A row of the zero vector, from the comparators."""
        return [bool(value == 0) for value in self.rows[step - self.first]]

    def read(self, step: int, lane: int) -> Any:
        return self.rows[step - self.first][lane]


def adder_tree(products: Values) -> Values:
    """Sums of the last axis, neighbours first, ((p0 + p1) + (p2 + p3)); an odd last lane is added in the next stage.

    >>> adder_tree(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    array([15.])
    """
    while products.shape[-1] > 1:
        pairs = products[..., 0 : products.shape[-1] // 2 * 2 : 2] + products[..., 1::2]
        products = np.concatenate([pairs, products[..., -1:]], axis=-1) if products.shape[-1] % 2 else pairs
    return products[..., 0]


class _RowScheduler:
    """One scheduler and the elements that it steers: a row of the tile, or one element where zeros of both operands are skipped."""

    def __init__(self, row: int, columns: Sequence[int], steps: int, scheduler: Scheduler, skips: str) -> None:
        self.row, self.columns, self.steps, self.scheduler, self.skips = row, list(columns), steps, scheduler, skips
        self.position = 0
        self.z: Zeros = []  # of the steps from `position` on

    def cycle(self, a: list[StagingBuffer], b: list[StagingBuffer], fetched: int, sums: Values) -> tuple[Selects, int]:
        """One cycle: selects, multiplies and adds; returns MS and AS."""
        own_buffer = b[self.row]
        for step in range(self.position + len(self.z), min(self.position + self.scheduler.depth, fetched)):
            zero = [step >= self.steps] * self.scheduler.lanes if self.skips == "none" else own_buffer.zero(step)
            if self.skips == "both":
                zero = [left or right for left, right in zip(zero, a[self.columns[0]].zero(step), strict=True)]
            self.z.append(zero)
        ms = select(self.z, self.scheduler.options, self.scheduler.levels)
        products = np.zeros((len(self.columns), self.scheduler.lanes), dtype=sums.dtype)
        for lane, number in enumerate(ms):
            if number is not None:
                ahead, offset = self.scheduler.options[number]
                step, other = self.position + ahead, (lane + offset) % self.scheduler.lanes
                value = own_buffer.read(step, other)
                for index, column in enumerate(self.columns):
                    products[index, lane] = a[column].read(step, other) * value
        sums[self.row, self.columns] += adder_tree(products)
        return ms, advance(self.z)

    def move(self, steps: int) -> None:
        del self.z[:steps]
        self.position += steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileExecution:
    """The product, its cycles, and a trace for each output block (its rows are schedulers)."""

    product: Values
    cycles: int
    traces: tuple[Trace, ...]
    hidden: int
    """Skipped pairs of a zero and an infinity or NaN, whose product in the dense schedule is NaN."""

    @property
    def issued(self) -> int:
        """Lane slots in which a pair was multiplied, counted once for the elements that share a scheduler."""
        return sum(trace.issued for trace in self.traces)


def tile(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    scheduler: Scheduler,
    number: str = "fp16",
    *,
    skips: str = "b",
    sync: str = "lockstep",
    banks: int | None = None,
) -> TileExecution:
    """Outputs [rows, columns] of one tile: `b` [rows, steps, lanes] on its rows, `a` [columns, steps, lanes] on its columns.

    `skips`: "b", each row has one scheduler, for B's zeros; "both", each element has its own, for zeros of either; "none": dense.

    >>> execution = tile([[[1, 2], [3, 4]]], [[[5, 0], [0, 6]]], Scheduler(lanes=2, depth=2), "fixed")
    >>> execution.product, execution.cycles
    (array([[29]]), 1)
    """
    require_choice("tile", sync=(sync, SYNCS), skips=(skips, SKIPS))
    require_positive("tile", **({} if banks is None else {"banks": banks}))
    banks = scheduler.depth if banks is None else min(banks, scheduler.depth)
    left, right = operand(a, number), operand(b, number)
    if left.ndim != 3 or right.ndim != 3 or left.shape[1:] != right.shape[1:] or right.shape[2] != scheduler.lanes:
        raise BadInput(
            f"tile: operands of shape {left.shape} and {right.shape} do not meet on {scheduler.lanes} lanes: "
            f"give a [columns, steps, {scheduler.lanes}] and b [rows, steps, {scheduler.lanes}]"
        )
    high, wide, steps = len(right), len(left), left.shape[1]
    dtype = np.result_type(left, right)
    if skips == "both":
        rows = [_RowScheduler(row, [column], steps, scheduler, skips) for row in range(high) for column in range(wide)]
    else:
        rows = [_RowScheduler(row, range(wide), steps, scheduler, skips) for row in range(high)]
    sums = np.zeros((high, wide), dtype=dtype)
    with np.errstate(all="ignore"):
        parts = [[row] for row in rows] if sync == "output" else [rows]
        runs = [_run(part, left, right, banks, sync == "block", sums) for part in parts]
    return TileExecution(
        product=sums,
        cycles=max(len(run) for run in runs),
        traces=(_trace(runs, steps),),
        hidden=_hidden(left, right, skips),
    )


Cycle = list[tuple[int, Selects, int]]
"""Position, MS and AS of each scheduler."""


def _run(rows: list[_RowScheduler], left: Values, right: Values, banks: int, block: bool, sums: Values) -> list[Cycle]:
    """All cycles of schedulers that share staging buffers, which are refilled as rows advance, or block by block."""
    depth, steps = rows[0].scheduler.depth, left.shape[1]
    a, b = [StagingBuffer(depth) for _ in left], [StagingBuffer(depth) for _ in right]
    nothing = np.zeros(left.shape[2], dtype=sums.dtype)
    first = fetched = 0
    cycles: list[Cycle] = []
    while first < steps:
        limit = first + depth
        arriving = min(limit, fetched + (banks if cycles else depth))
        for step in range(fetched, arriving):
            for buffers, values in ((a, left), (b, right)):
                for buffer, value in zip(buffers, values, strict=True):
                    buffer.write(value[step] if step < steps else nothing)
        fetched = arriving
        last = min(limit, steps)
        cycle: Cycle = []
        for row in rows:
            if block and row.position >= last:
                cycle.append((row.position, [None] * row.scheduler.lanes, 0))
            else:
                ms, drained = row.cycle(a, b, fetched, sums)
                cycle.append((row.position, ms, drained))
        cycles.append(cycle)
        for row, (_, _, drained) in zip(rows, cycle, strict=True):
            row.move(drained if block else min(move[2] for move in cycle))
        if not block:
            first = rows[0].position
        elif all(row.position >= last for row in rows):
            first = limit
            for row in rows:
                row.position, row.z = first, []
        for buffer in (*a, *b):
            buffer.drain(first)
    return cycles


def _trace(runs: list[list[Cycle]], steps: int) -> Trace:
    """The cycles as arrays; a scheduler that is done stays at the end of its stream."""
    count, schedulers = max(len(run) for run in runs), sum(len(run[0]) for run in runs if run)
    lanes = len(runs[0][0][0][1]) if count else 0
    position = np.full((count, schedulers), steps, dtype=np.int64)
    moved, selects = np.zeros((count, schedulers), dtype=np.int64), np.full((count, schedulers, lanes), -1, dtype=np.int64)
    first = 0
    for run in runs:
        for cycle, rows in enumerate(run):
            for row, (here, ms, drained) in enumerate(rows):
                position[cycle, first + row], moved[cycle, first + row] = here, drained
                selects[cycle, first + row] = [-1 if number is None else number for number in ms]
        first += len(run[0]) if run else 0
    return Trace(position=position, advance=moved, select=selects)


def _hidden(left: Values, right: Values, skips: str) -> int:
    """Pairs that were skipped for a zero and whose other value is infinite or NaN."""
    if skips == "none":
        return 0
    strange = [np.count_nonzero(~np.isfinite(side), axis=0) for side in (left, right)]
    zeros = [np.count_nonzero(side == 0, axis=0) for side in (left, right)]
    return int((strange[0] * zeros[1]).sum() + ((strange[1] * zeros[0]).sum() if skips == "both" else 0))


def processing_element(
    a: npt.ArrayLike, b: npt.ArrayLike, scheduler: Scheduler, number: str = "fp16", *, skips: str = "b", banks: int | None = None
) -> TileExecution:
    """One element: the dot product of `a` and `b`, both [steps, lanes]; `product` is a scalar.

    >>> execution = processing_element([[1.5, 2, 3, 4]] * 3, [[2, 0, 0, 0]] * 3, Scheduler())  # lanes 1 and 2 take two of lane 0's
    >>> execution.product, execution.cycles
    (np.float32(9.0), 1)
    """
    execution = tile(np.asarray(a)[None], np.asarray(b)[None], scheduler, number, skips=skips, banks=banks)
    return TileExecution(product=execution.product[0, 0], cycles=execution.cycles, traces=execution.traces, hidden=execution.hidden)


def execute(array: TensorDash, a: npt.ArrayLike, b: npt.ArrayLike, number: str = "fp16") -> TileExecution:
    """The matrix product a [M, K] x b [K, N] on one tile of `array`, output block after output block.

    As in `TensorDash.cost`: the operand whose zeros are skipped is on the rows (`TensorDash.skipped_operands`); the dense schedule
    runs where neither is skipped, and where it needs fewer blocks with the other operand on the rows.
    """
    left, right = np.asarray(a), np.asarray(b)
    require_product_shapes(left, right)
    zeros = float(np.mean(operand(left, number) == 0)), float(np.mean(operand(right, number) == 0))
    side = array.skipped_operands(*zeros)
    skips, is_transposed = {"neither": "none", "both": "both"}.get(side, "b"), side == "b"
    execution = _blocks(array, left, right, number, skips, is_transposed)
    if execution.cycles > replace(array.baseline, tiles=1).tile_cycles(left.shape[0], right.shape[1], left.shape[1]):
        execution = _blocks(array, left, right, number, "none", not is_transposed)
    return execution


def _blocks(array: TensorDash, left: Values, right: Values, number: str, skips: str, is_transposed: bool) -> TileExecution:
    """All output blocks; with `is_transposed` the columns of b are on the rows of the tile."""
    on_rows, on_columns = (right.T, left) if is_transposed else (left, right.T)
    on_rows, on_columns = _stepped(on_rows, array.lanes), _stepped(on_columns, array.lanes)
    parts: list[list[TileExecution]] = []
    for row in range(0, len(on_rows), array.rows):
        parts.append([])
        for column in range(0, len(on_columns), array.columns):
            columns_block, rows_block = on_columns[column : column + array.columns], on_rows[row : row + array.rows]
            execution = tile(columns_block, rows_block, array.scheduler, number, skips=skips, sync=array.sync, banks=array.banks)
            parts[-1].append(execution)
    product = np.block([[execution.product for execution in part] for part in parts])
    executions = [execution for part in parts for execution in part]
    return TileExecution(
        product=product.T if is_transposed else product,
        cycles=sum(execution.cycles for execution in executions),
        traces=tuple(trace for execution in executions for trace in execution.traces),
        hidden=sum(execution.hidden for execution in executions),
    )


def _stepped(matrix: Values, lanes: int) -> Values:
    """[streams, K] as [streams, steps, lanes], the last step padded with zeros."""
    steps = -(-matrix.shape[1] // lanes)
    return np.pad(matrix, ((0, 0), (0, steps * lanes - matrix.shape[1]))).reshape(len(matrix), steps, lanes)
