"""TensorDash's processing elements and their tile, multiplying: values through staging buffers, multiplexers and adder trees.

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

from trainyard.arrays.tensordash.scheduler import SYNCS, Scheduler, Selects, Trace, Zeros, advance, select
from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from trainyard.arrays.tensordash.array import TensorDash

Number = Literal["fp16", "bf16", "fixed"]
NUMBERS: tuple[str, ...] = get_args(Number)
Skips = Literal["none", "b", "both"]
SKIPS: tuple[str, ...] = get_args(Skips)
"""Whose zeros: nobody's (the dense schedule), those of the rows' side, those of either."""
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
    """Values as the multipliers see them, in the type that products and sums have."""
    given = np.asarray(values)
    if number not in NUMBERS:
        raise UnknownName("number format", str(number), NUMBERS, where="TensorDash")
    if number == "fixed":
        if given.dtype.kind not in "iu":
            raise BadInput(f"fixed point takes int8 or int16 values, got {given.dtype}: scale and round them first")
        if given.size and (given.min() < -(2**15) or given.max() >= 2**15):
            raise BadInput(f"fixed point takes int8 or int16 values, got {given.min()} to {given.max()}")
        return given.astype(np.int32 if given.dtype == np.int8 else np.int64)
    if given.dtype.kind not in "fiu":
        raise BadInput(f"{number} takes real numbers, got {given.dtype}")
    with np.errstate(over="ignore", under="ignore"):
        return given.astype(np.float16).astype(np.float32) if number == "fp16" else bfloat16(given.astype(np.float32))


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
        """Rows before step `first` are given up."""
        del self.rows[: first - self.first]
        self.first = first

    def zero(self, step: int) -> list[bool]:
        """A row of the zero vector, from the comparators."""
        return [bool(value == 0) for value in self.rows[step - self.first]]

    def read(self, step: int, lane: int) -> Any:
        return self.rows[step - self.first][lane]


def adder_tree(products: Values) -> Values:
    """Neighbours first, ((p0 + p1) + (p2 + p3)); where lanes are odd, the last waits for the next stage.

    >>> adder_tree(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    array([15.])
    """
    while products.shape[-1] > 1:
        pairs = products[..., 0 : products.shape[-1] // 2 * 2 : 2] + products[..., 1::2]
        products = np.concatenate([pairs, products[..., -1:]], axis=-1) if products.shape[-1] % 2 else pairs
    return products[..., 0]


class _Row:
    """One scheduler, and the elements it steers: a row of the tile, or a single element where both sides are looked at."""

    def __init__(self, row: int, columns: Sequence[int], steps: int, scheduler: Scheduler, skips: str) -> None:
        self.row, self.columns, self.steps, self.scheduler, self.skips = row, list(columns), steps, scheduler, skips
        self.position = 0
        self.z: Zeros = []  # of the steps from `position` on

    def cycle(self, a: list[StagingBuffer], b: list[StagingBuffer], fetched: int, sums: Values) -> tuple[Selects, int]:
        """Choose, multiply, add; MS and AS."""
        mine = b[self.row]
        for step in range(self.position + len(self.z), min(self.position + self.scheduler.depth, fetched)):
            zero = [step >= self.steps] * self.scheduler.lanes if self.skips == "none" else mine.zero(step)
            if self.skips == "both":
                zero = [left or right for left, right in zip(zero, a[self.columns[0]].zero(step), strict=True)]
            self.z.append(zero)
        ms = select(self.z, self.scheduler.options, self.scheduler.levels)
        products = np.zeros((len(self.columns), self.scheduler.lanes), dtype=sums.dtype)
        for lane, number in enumerate(ms):
            if number is not None:
                ahead, offset = self.scheduler.options[number]
                step, other = self.position + ahead, (lane + offset) % self.scheduler.lanes
                value = mine.read(step, other)
                for place, column in enumerate(self.columns):
                    products[place, lane] = a[column].read(step, other) * value
        sums[self.row, self.columns] += adder_tree(products)
        return ms, advance(self.z)

    def move(self, steps: int) -> None:
        del self.z[:steps]
        self.position += steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileExecution:
    """What came out, in how many cycles, and how: a trace for each output block (its rows are schedulers)."""

    product: Values
    cycles: int
    traces: tuple[Trace, ...]
    hidden: int
    """Skipped pairs of a zero and an infinity or NaN, which the dense schedule would have turned into NaN."""

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

    >>> ran = tile([[[1, 2], [3, 4]]], [[[5, 0], [0, 6]]], Scheduler(lanes=2, depth=2), "fixed")
    >>> ran.product, ran.cycles
    (array([[29]]), 1)
    """
    if sync not in SYNCS or skips not in SKIPS:
        what, given, known = ("sync", sync, SYNCS) if sync not in SYNCS else ("skips", skips, SKIPS)
        raise UnknownName(what, str(given), known, where="tile")
    require_positive("tile", **({} if banks is None else {"banks": banks}))
    banks = scheduler.depth if banks is None else min(banks, scheduler.depth)
    left, right = operand(a, number), operand(b, number)
    if left.ndim != 3 or right.ndim != 3 or left.shape[1:] != right.shape[1:] or right.shape[2] != scheduler.lanes:
        raise BadInput(
            f"tile: operands of shape {left.shape} and {right.shape} do not meet on {scheduler.lanes} lanes: "
            f"give a [columns, steps, {scheduler.lanes}] and b [rows, steps, {scheduler.lanes}]"
        )
    high, wide, steps = len(right), len(left), left.shape[1]
    kind = np.result_type(left, right)
    if skips == "both":
        rows = [_Row(row, [column], steps, scheduler, skips) for row in range(high) for column in range(wide)]
    else:
        rows = [_Row(row, range(wide), steps, scheduler, skips) for row in range(high)]
    sums = np.zeros((high, wide), dtype=kind)
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


def _run(rows: list[_Row], left: Values, right: Values, banks: int, block: bool, sums: Values) -> list[Cycle]:
    """All cycles of schedulers that share staging buffers, refilled when the rows moved on, or block by block."""
    depth, steps = rows[0].scheduler.depth, left.shape[1]
    a, b = [StagingBuffer(depth) for _ in left], [StagingBuffer(depth) for _ in right]
    nothing = np.zeros(left.shape[2], dtype=sums.dtype)
    first = fetched = 0
    found: list[Cycle] = []
    while first < steps:
        limit = first + depth
        arriving = min(limit, fetched + (banks if found else depth))
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
        found.append(cycle)
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
    return found


def _trace(runs: list[list[Cycle]], steps: int) -> Trace:
    """The cycles as arrays; a scheduler that is done waits at the end."""
    count, schedulers = max(len(run) for run in runs), sum(len(run[0]) for run in runs if run)
    lanes = len(runs[0][0][0][1]) if count else 0
    position = np.full((count, schedulers), steps, dtype=np.int64)
    moved, selects = np.zeros((count, schedulers), dtype=np.int64), np.full((count, schedulers, lanes), -1, dtype=np.int64)
    place = 0
    for run in runs:
        for cycle, rows in enumerate(run):
            for row, (here, ms, drained) in enumerate(rows):
                position[cycle, place + row], moved[cycle, place + row] = here, drained
                selects[cycle, place + row] = [-1 if number is None else number for number in ms]
        place += len(run[0]) if run else 0
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

    >>> ran = processing_element([[1.5, 2, 3, 4]] * 3, [[2, 0, 0, 0]] * 3, Scheduler())  # lanes 1 and 2 take two of lane 0's
    >>> ran.product, ran.cycles
    (np.float32(9.0), 1)
    """
    ran = tile(np.asarray(a)[None], np.asarray(b)[None], scheduler, number, skips=skips, banks=banks)
    return TileExecution(product=ran.product[0, 0], cycles=ran.cycles, traces=ran.traces, hidden=ran.hidden)


def execute(array: TensorDash, a: npt.ArrayLike, b: npt.ArrayLike, number: str = "fp16") -> TileExecution:
    """The matrix product a [M, K] x b [K, N] on one tile of `array`, output block after output block.

    As its cost has it: the side that is looked at lies on the rows (`TensorDash.looks_at`); the dense schedule runs where neither
    is, and where the other side on the rows leaves it fewer blocks to do.
    """
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not left.size or not right.size:
        raise BadInput(f"execute: shapes {left.shape} and {right.shape} do not multiply")
    zeros = float(np.mean(operand(left, number) == 0)), float(np.mean(operand(right, number) == 0))
    side = array.looks_at(*zeros)
    skips, turned = {"neither": "none", "both": "both"}.get(side, "b"), side == "b"
    ran = _blocks(array, left, right, number, skips, turned)
    if ran.cycles > replace(array.baseline, tiles=1).tile_cycles(left.shape[0], right.shape[1], left.shape[1]):
        ran = _blocks(array, left, right, number, "none", not turned)
    return ran


def _blocks(array: TensorDash, left: Values, right: Values, number: str, skips: str, turned: bool) -> TileExecution:
    """All output blocks; the columns of b lie on the rows of the tile where `turned`."""
    on_rows, on_columns = (right.T, left) if turned else (left, right.T)
    on_rows, on_columns = _stepped(on_rows, array.lanes), _stepped(on_columns, array.lanes)
    parts: list[list[TileExecution]] = []
    for row in range(0, len(on_rows), array.rows):
        parts.append([])
        for column in range(0, len(on_columns), array.columns):
            beside, mine = on_columns[column : column + array.columns], on_rows[row : row + array.rows]
            ran = tile(beside, mine, array.scheduler, number, skips=skips, sync=array.sync, banks=array.banks)
            parts[-1].append(ran)
    product = np.block([[ran.product for ran in part] for part in parts])
    every = [ran for part in parts for ran in part]
    return TileExecution(
        product=product.T if turned else product,
        cycles=sum(ran.cycles for ran in every),
        traces=tuple(trace for ran in every for trace in ran.traces),
        hidden=sum(ran.hidden for ran in every),
    )


def _stepped(matrix: Values, lanes: int) -> Values:
    """[streams, K] as [streams, steps, lanes], the last step filled up with zeros."""
    steps = -(-matrix.shape[1] // lanes)
    return np.pad(matrix, ((0, 0), (0, steps * lanes - matrix.shape[1]))).reshape(len(matrix), steps, lanes)
