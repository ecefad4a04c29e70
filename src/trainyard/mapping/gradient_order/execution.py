"""dX and dW of a layer computed tile by tile, in an order of IGO, out of a scratchpad of limited capacity.

This is the definition of the scratchpad model, for readers and as the oracle of the compiled loops of
`kernels.mapping.gradient_order.scratchpad`: it moves real tiles, so it cannot count a byte that was not moved, nor compute with a
tile that is not resident. The rules of an operation:

1. Of the tiles that it touches (for dX: dY, W, dX; for dW: X, dY, dW), the resident ones become the most recent, in that order.
2. The missing ones are loaded, in that order. Others are evicted for them: the least recent first (`lru`), or the one whose next
   touch is farthest ahead (`farthest`; first operands that are never touched again, then sums that wait for those of other cores).
   An operand is dropped; an unfinished sum is written out: a spill.
3. A loaded operand is read. A new sum is zero and costs nothing; a spilled one is read back.
4. The product is added to its sum. A finished sum is written to the result, once, and freed.

Several cores do the operations of a step together: their tiles are loaded core after core, and all stay until the step is done. A
gradient that is summed over the partitioned axis has a private sum on each core; after the last operation on it, the other cores'
sums are touched, added to the last one's, one after another, and freed.

Under `window` the tiles of as many steps as fit are loaded into one half of the scratchpad and all leave when it is full: operands
are dropped, unfinished sums written. A sum begins at zero in each window; what an earlier one left of it is read back while the
window computes and added at its end. A finished sum keeps its room until then. Under `operands` the least recent operands leave,
and every unfinished sum does so after each step, in the same way. Other cores' sums are then added as they are read.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput
from trainyard.ir import Direction, MatMul
from trainyard.ir.folds import AXES, Axis
from trainyard.mapping.gradient_order.scratchpad import POLICIES, Policy
from trainyard.mapping.gradient_order.tile_streams import Grid, Order, Partition, Size, TileOp, grid, stream

Values = npt.NDArray[Any]
Tensor = Literal["X", "W", "dY", "dX", "dW"]
AXES_OF: dict[str, tuple[Axis, Axis]] = {"X": ("m", "k"), "W": ("k", "n"), "dY": ("m", "n"), "dX": ("m", "k"), "dW": ("k", "n")}
"""Rows and columns of each tensor."""
TOUCHED: dict[str, tuple[Tensor, Tensor, Tensor]] = {"dX": ("dY", "W", "dX"), "dW": ("X", "dY", "dW")}
"""The tiles of an operation, in the order in which they are touched; the last is the sum."""
SUMMED_OVER: dict[str, Axis] = {"dX": "n", "dW": "m"}
WAITS_FOR_OTHERS = 2.0**60
"""Touches until a partial sum is added to those of other cores: later than any known touch, sooner than never."""


class Tile(NamedTuple):
    """A tile by its row and column in its tensor; `core` is that of a private sum, else 0."""

    tensor: Tensor
    row: int
    column: int
    core: int = 0

    def __str__(self) -> str:
        return f"{self.tensor}({self.row},{self.column})"


class Transfer(NamedTuple):
    """A tile transferred to or from the DRAM."""

    tile: Tile
    direction: Direction
    bytes: int


@dataclass(slots=True)
class ExecutionStep:
    """The operations of one step, the tiles loaded for it, the sums spilled for it, and what moved after it: results, and partial
    sums that were read back to be added. `opens`: it is the first of a window; otherwise every step is.
    """

    ops: tuple[TileOp, ...]
    opens: bool = True
    loaded: list[Transfer] = field(default_factory=list)
    spilled: list[Transfer] = field(default_factory=list)
    finished: list[Transfer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientExecution:
    """The gradients, and every transfer."""

    dx: Values
    dw: Values
    steps: tuple[ExecutionStep, ...]

    @property
    def bytes(self) -> dict[tuple[str, str], int]:
        moved: Counter[tuple[str, str]] = Counter()
        for step in self.steps:
            for tile, direction, size in chain(step.loaded, step.spilled, step.finished):
                moved[tile.tensor, direction] += size
        return dict(moved)

    @property
    def loads(self) -> list[int]:
        """Bytes read for each step, spilled sums that are read back included."""
        return [sum(moved.bytes for moved in step.loaded) for step in self.steps]

    @property
    def spilled(self) -> list[int]:
        """Bytes of unfinished sums evicted for each step."""
        return [sum(moved.bytes for moved in step.spilled) for step in self.steps]

    @property
    def finished(self) -> list[int]:
        """Bytes of results written after each step, and of partial sums that were missing then."""
        return [sum(moved.bytes for moved in step.finished) for step in self.steps]


@dataclass(slots=True)
class Scratchpad:
    """Copies of tiles, the least recent first. Refuses tiles that do not fit, and reads of tiles that are not resident."""

    capacity_bytes: int
    element_bytes: int
    tiles: OrderedDict[Tile, Values] = field(default_factory=OrderedDict)
    used_bytes: int = 0

    def __contains__(self, tile: Tile) -> bool:
        return tile in self.tiles

    def __getitem__(self, tile: Tile) -> Values:
        if tile not in self.tiles:
            raise AssertionError(f"{tile} is not in the scratchpad")
        return self.tiles[tile]

    def size(self, values: Values) -> int:
        return values.size * self.element_bytes

    def fits(self, values: Values) -> bool:
        return self.used_bytes + self.size(values) <= self.capacity_bytes

    def touch(self, tile: Tile) -> None:
        self.tiles.move_to_end(tile)

    def put(self, tile: Tile, values: Values) -> None:
        if tile in self.tiles or not self.fits(values):
            raise AssertionError(f"{tile} is already in the scratchpad, or does not fit in")
        self.tiles[tile] = values.copy()
        self.used_bytes += self.size(values)

    def take(self, tile: Tile) -> Values:
        """Removes a tile and returns its values."""
        values = self[tile]
        del self.tiles[tile]
        self.used_bytes -= self.size(values)
        return values


@dataclass(slots=True)
class Dram:
    """The arrays, cut into tiles, and the spilled sums."""

    arrays: dict[Tensor, Values]
    starts: dict[str, list[int]]
    spilled: dict[Tile, Values] = field(default_factory=dict)

    def view(self, tile: Tile) -> Values:
        rows, columns = (self.starts[axis] for axis in AXES_OF[tile.tensor])
        return self.arrays[tile.tensor][rows[tile.row] : rows[tile.row + 1], columns[tile.column] : columns[tile.column + 1]]

    def fetch(self, tile: Tile) -> tuple[Values, bool]:
        """The values of a tile, and whether they have to be read: a new sum is zero and does not."""
        if tile.tensor not in SUMMED_OVER:
            return self.view(tile), True
        if tile in self.spilled:
            return self.spilled.pop(tile), True
        return np.zeros_like(self.view(tile)), False


class Schedule:
    """The steps of an order, the tiles that each operation touches, and the later touches of each tile."""

    def __init__(self, cut: Grid, order: Order, partition: Partition | None) -> None:
        self.steps = list(stream(cut, order, partition))
        self.summed = {tensor: len(cut.sizes(axis)) for tensor, axis in SUMMED_OVER.items()}
        shared = partition.axis if partition is not None and partition.cores else None
        self.private = {tensor for tensor, axis in SUMMED_OVER.items() if axis == shared}
        self.cores = max(op.core for op in self.steps[0]) + 1
        self.touches: dict[Tile, deque[int]] = {}
        for number, tile in enumerate(chain.from_iterable(map(self.tiles, chain.from_iterable(self.steps)))):
            self.touches.setdefault(tile, deque()).append(number)

    def tiles(self, op: TileOp) -> tuple[Tile, Tile, Tile]:
        """The tiles of an operation in the order of touching; the last is its sum."""
        at = {"m": op.m, "n": op.n, "k": op.k}

        def tile(tensor: Tensor) -> Tile:
            rows, columns = AXES_OF[tensor]
            return Tile(tensor, at[rows], at[columns], op.core if tensor in self.private else 0)

        first, second, sums = TOUCHED[op.gradient]
        return tile(first), tile(second), tile(sums)

    def partials(self, sums: Tile) -> list[Tile]:
        """The partial sums of one result on all cores."""
        return [sums._replace(core=core) for core in range(self.cores)] if sums.tensor in self.private else [sums]

    def wait(self, tile: Tile, now: int) -> float:
        """Touches of other tiles before the next touch of this one."""
        touches = self.touches[tile]
        while touches and touches[0] < now:
            touches.popleft()
        return touches[0] - now if touches else WAITS_FOR_OTHERS if tile.tensor in SUMMED_OVER else math.inf


class ScratchpadRun:
    """The scratchpad and the DRAM during the steps."""

    def __init__(self, schedule: Schedule, pad: Scratchpad, dram: Dram, policy: Policy, free_dy: bool) -> None:
        self.schedule, self.pad, self.dram, self.free_dy = schedule, pad, dram, free_dy
        self.policy, self.victim = policy, self.farthest if policy == "farthest" else self.least_recent
        self.products: Counter[Tile] = Counter()
        self.touches = 0
        self.last: ExecutionStep | None = None
        self.earlier: dict[Tile, Values] = {}
        self.written: set[Tile] = set()

    def least_recent(self, keep: Set[Tile]) -> Tile:
        return next(tile for tile in self.pad.tiles if tile not in keep)

    def farthest(self, keep: Set[Tile]) -> Tile:
        """The tile touched farthest ahead; of several, the least recent."""
        return max((tile for tile in self.pad.tiles if tile not in keep), key=lambda tile: self.schedule.wait(tile, self.touches))

    def step(self, ops: tuple[TileOp, ...]) -> ExecutionStep:
        done, keep = ExecutionStep(ops, opens=self.opens(ops)), set[Tile]()
        if self.last is not None and self.policy == "window" and done.opens:
            self.clear([*self.pad.tiles], self.last)
        for op in ops:
            tiles = self.schedule.tiles(op)
            keep |= {*tiles}
            self.touches += len(tiles)
            self.bring(tiles, keep, done.loaded, done.spilled, free_dy=self.free_dy and op.gradient == "dW")
        for op in ops:
            left, right, sums = (self.pad[tile] for tile in self.schedule.tiles(op))
            factors = (left, right.T) if op.gradient == "dX" else (left.T, right)
            sums += np.matmul(*factors, dtype=sums.dtype)
        for op in ops:
            self.finish(self.schedule.tiles(op)[-1], done.finished)
        if self.policy == "operands":
            self.clear([tile for tile in self.pad.tiles if tile.tensor in SUMMED_OVER], done)
        self.last = done
        return done

    def opens(self, ops: tuple[TileOp, ...]) -> bool:
        """Whether a step begins a window: the tiles that it lacks do not fit beside the others."""
        if self.policy != "window" or self.last is None:
            return True
        missing = {tile for op in ops for tile in self.schedule.tiles(op) if tile not in self.pad}
        return self.pad.used_bytes + sum(self.pad.size(self.dram.view(tile)) for tile in missing) > self.pad.capacity_bytes

    def clear(self, tiles: Sequence[Tile], step: ExecutionStep) -> None:
        """Tiles leave after a step, unfinished sums for the DRAM."""
        for tile in tiles:
            content = self.total(tile)
            self.pad.take(tile)
            if tile.tensor in SUMMED_OVER and tile not in self.written:
                self.dram.spilled[tile] = content
                step.finished.append(Transfer(tile, "spill", self.pad.size(content)))

    def total(self, tile: Tile) -> Values:
        """A resident tile with what was read back of it."""
        return self.pad[tile] + self.earlier.pop(tile) if tile in self.earlier else self.pad[tile]

    def bring(
        self, tiles: Sequence[Tile], keep: Set[Tile], loaded: list[Transfer], spilled: list[Transfer], *, free_dy: bool = False
    ) -> None:
        """Makes tiles resident, evicting others as the policy says."""
        for tile in tiles:
            if tile in self.pad:
                self.pad.touch(tile)
        for tile in tiles:
            if tile in self.pad:
                continue
            values, moved = self.dram.fetch(tile)
            if moved and tile.tensor in SUMMED_OVER and self.policy in ("window", "operands"):
                spilled.append(Transfer(tile, "spill", self.pad.size(values)))
                self.earlier[tile], values, moved = values, np.zeros_like(values), False
            while not self.pad.fits(values):
                gone = self.victim(keep)
                content = self.pad.take(gone)
                if gone.tensor in SUMMED_OVER:
                    self.dram.spilled[gone] = content
                    spilled.append(Transfer(gone, "spill", self.pad.size(content)))
            self.pad.put(tile, values)
            if moved:
                size = 0 if free_dy and tile.tensor == "dY" else self.pad.size(values)
                loaded.append(Transfer(tile, "spill" if tile.tensor in SUMMED_OVER else "read", size))

    def finish(self, sums: Tile, finished: list[Transfer]) -> None:
        """After the last product of a sum: adds those of other cores to it, and writes it."""
        result = sums._replace(core=0)
        self.products[result] += 1
        if self.products[result] < self.schedule.summed[sums.tensor]:
            return
        for other in self.schedule.partials(sums):
            if other == sums:
                continue
            if self.policy in ("lru", "farthest"):
                self.bring((other,), {sums, other}, finished, finished)
                self.pad[sums][...] += self.pad.take(other)
                continue
            self.written.add(other)
            if other in self.pad:
                self.pad[sums][...] += self.total(other)
            else:
                self.pad[sums][...] += self.dram.spilled[other]
                finished.append(Transfer(other, "spill", self.pad.size(self.dram.spilled.pop(other))))
        self.written.add(sums)
        content = self.total(sums)
        if self.policy != "window":
            self.pad.take(sums)
        self.dram.view(result)[...] = content
        finished.append(Transfer(result, "write", self.pad.size(content)))


def execute(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    dy: npt.ArrayLike,
    *,
    tile: Size,
    capacity_bytes: int,
    order: Order,
    policy: Policy = "lru",
    partition: Partition | None = None,
    element_bytes: int | None = None,
) -> GradientExecution:
    """dX = dY W^T and dW = X^T dY of Y = X W. Elements count as large as X's, or as `element_bytes`.

    >>> done = execute(np.ones((4, 2)), np.ones((2, 6)), np.ones((4, 6)), tile=(2, 2, 2), capacity_bytes=160, order="interleaved")
    >>> done.dx[0].tolist(), done.dw[0].tolist(), done.bytes["dY", "read"]
    ([6.0, 6.0], [4.0, 4.0, 4.0, 4.0, 4.0, 4.0], 288)
    """
    x, w, dy = (np.asarray(values) for values in (x, w, dy))
    op = _product(x, w, dy)
    require_choice("", policy=(policy, POLICIES))
    element_bytes = x.dtype.itemsize if element_bytes is None else element_bytes
    require_positive("execute", capacity_bytes=capacity_bytes, element_bytes=element_bytes)
    cut = grid(op, tile, partition)
    schedule = Schedule(cut, order, partition)
    kind = np.result_type(x, w, dy, np.float32)  # half-precision products are summed in single precision
    arrays: dict[Tensor, Values] = {
        "X": x, "W": w, "dY": dy, "dX": np.zeros(x.shape, kind), "dW": np.zeros(w.shape, kind),
    }  # fmt: skip
    dram = Dram(arrays, {axis: [0, *accumulate(cut.sizes(axis))] for axis in AXES})
    pad = Scratchpad(capacity_bytes, element_bytes)
    needed = max(sum(pad.size(dram.view(touched)) for touched in {*chain(*map(schedule.tiles, ops))}) for ops in schedule.steps)
    if needed > capacity_bytes:
        raise BadInput(
            f"a step of {order} on tiles {tile} of {op} needs {needed} bytes resident, got {capacity_bytes}: "
            "give more room or a smaller tile"
        )
    run = ScratchpadRun(schedule, pad, dram, policy, free_dy=order == "no_second_dy")
    steps = tuple(run.step(ops) for ops in schedule.steps)
    return GradientExecution(dx=arrays["dX"], dw=arrays["dW"], steps=steps)


def _product(x: Values, w: Values, dy: Values) -> MatMul:
    """The forward product of the three matrices, checked."""
    for name, values in (("x", x), ("w", w), ("dy", dy)):
        if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
            raise BadInput(f"{name} must be a matrix of floating-point numbers, got shape {values.shape} of {values.dtype}")
    (m, k), (_, n) = x.shape, w.shape
    if w.shape[0] != k or dy.shape != (m, n):
        raise BadInput(f"x (M,K), w (K,N) and dy (M,N) do not fit together: {x.shape}, {w.shape}, {dy.shape}")
    return MatMul(m, n, k)
