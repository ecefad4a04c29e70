"""IGO's orders on a small layer, as text: every tile operation, its resident tiles, reads and writes.

J. Kim et al.: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for DNN Training. MICRO 2023. Fig. 8: the
operations one after the other; Fig. 9: one tile of dY, `T0`, and when it is read; Fig. 10: how dX and dW go through dY. The
gradients are really computed; `report.walkthroughs.igo.figure` draws the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.execution import ExecutionStep, GradientExecution, Tile, Transfer, execute
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS, Gradient, Order, Size

Reals = npt.NDArray[np.float32]
# fmt: off
ORDER_DESCRIPTIONS: dict[Order, str] = {
    "sequential":   "all of dX, then all of dW (Figs. 8a, 9a)",
    "interleaved":  "an operation of dX and one of dW in turn, each in its usual order (Figs. 8b, 9b, 10a)",
    "dx_major":     "dX and dW on the same tiles, dY by rows (Fig. 10b)",
    "dw_major":     "dX and dW on the same tiles, dY by columns (Fig. 10c)",
    "no_second_dy": "sequential, and what dW reads of dY costs nothing: the bound of Sec. 3.3",
}
# fmt: on
SHOWN: tuple[Order, ...] = ("sequential", *FUSED_ORDERS)
"""Orders printed step by step; of the bound only the bytes are."""
ROOM = 6
"""Resident tiles: one operation of each gradient on the same tile of dY needs five."""
SIDE = 2
"""Rows and columns of a tile in elements."""
T0 = Tile("dY", 0, 0)
"""The tile that Fig. 9 follows."""
ACROSS = 12
"""Operations on a line."""
WIDE = 8
MOST = 256
"""Most operations of an example."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """A layer, its tile size, and the capacity of the scratchpad."""

    x: Reals
    w: Reals
    dy: Reals
    tile: Size
    capacity_bytes: int

    @property
    def op(self) -> MatMul:
        return MatMul(self.x.shape[0], self.w.shape[1], self.x.shape[1])

    @property
    def tile_bytes(self) -> int:
        """Of a whole tile; all are squares of one size."""
        return self.tile[0] * self.tile[1] * self.x.itemsize


def example(tiles: Size = (3, 3, 2), *, room: int = ROOM, seed: int = 0) -> Example:
    """A layer of small whole numbers with `tiles` square tiles along M, N and K, and room for `room` of them."""
    require_positive("walk-through", **dict(zip("MNK", tiles, strict=True)), room=room)
    if 2 * tiles[0] * tiles[1] * tiles[2] > MOST:
        raise BadInput(f"walk-through: {tiles} tiles make {2 * tiles[0] * tiles[1] * tiles[2]} operations: give at most {MOST}")
    m, n, k = (many * SIDE for many in tiles)
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    return Example(x=x, w=w, dy=dy, tile=(SIDE, SIDE, SIDE), capacity_bytes=room * SIDE * SIDE * x.itemsize)


EXAMPLE = example()
"""3 x 3 tiles of dY, and 2 along K."""


def parse_example(text: str) -> Example:
    """An example from its name: tiles along M, N and K, and after a colon the tiles that fit; an empty name is the default.

    >>> parse_example("4x2x2:5").op, parse_example("4x2x2:5").capacity_bytes
    (MatMul(M=8, N=4, K=4, count=1), 80)
    """
    if not text:
        return EXAMPLE
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?::(\d+))?", text)
    if match is None:
        raise BadInput(f"walk-through {text!r}: give tiles along M, N, K and the room in tiles, such as 3x3x2 or 4x2x2:5")
    m, n, k, room = (int(number or ROOM) for number in match.groups())
    return example((m, n, k), room=room)


def execute_order(case: Example, order: Order) -> GradientExecution:
    """The layer's gradients in one order."""
    return execute(case.x, case.w, case.dy, tile=case.tile, capacity_bytes=case.capacity_bytes, order=order)


def touched(step: ExecutionStep) -> tuple[Tile, Tile, Tile]:
    """The tiles of a step's operation: dY, the other operand, the sum."""
    (op,) = step.ops
    if op.gradient == "dX":
        return Tile("dY", op.m, op.n), Tile("W", op.k, op.n), Tile("dX", op.m, op.k)
    return Tile("dY", op.m, op.n), Tile("X", op.m, op.k), Tile("dW", op.k, op.n)


def transfer_of(tile: Tile, step: ExecutionStep) -> Transfer | None:
    """The transfer that loaded a tile for a step, or None where it was resident or is a new sum."""
    return next((moved for moved in step.loaded if moved.tile == tile), None)


def walkthrough(case: Example = EXAMPLE) -> str:
    """Every order step by step, then a table of their bytes.

    >>> print(walkthrough(example((2, 1, 1), room=3)).split("\\n\\n")[1])
    sequential: all of dX, then all of dW (Figs. 8a, 9a)
        step  1       2       3       4
        sum   dX00!   dX10!   dW00    dW00!
        dY    T0*     dY10*   T0*     dY10*
        with  W00*    W00     X00*    X10*
    """
    executions = {order: execute_order(case, order) for order in ORDER_DESCRIPTIONS}
    parts = [_heading(case), *("\n".join(_order(order, executions[order])) for order in SHOWN), "\n".join(_table(case, executions))]
    return "\n\n".join(parts)


def _heading(case: Example) -> str:
    op, (m, n, k), room = case.op, case.tile, case.capacity_bytes / case.tile_bytes
    return (
        f"Y({op.M},{op.N}) = X({op.M},{op.K}) W({op.K},{op.N}). Backward: dX = dY W^T, dW = X^T dY, in tiles of {m} x {n} x {k}.\n"
        f"{case.capacity_bytes} bytes stay in the scratchpad: {room:g} tiles of {case.tile_bytes}. The least recent makes room.\n"
        "Marks: * read from DRAM, ~ a sum that left unfinished and is read again, ! the sum is done and written; no mark: it was\n"
        "there, or is a new sum. A line `out` names the sums that left unfinished to make room. T0 is dY(0,0)."
    )


def _order(order: Order, execution: GradientExecution) -> Iterator[str]:
    yield f"{order}: {ORDER_DESCRIPTIONS[order]}"
    for first in range(0, len(execution.steps), ACROSS):
        yield from _strip(execution.steps[first : first + ACROSS], first)
    dx, dw = (_visits(execution, gradient) for gradient in ("dX", "dW"))
    yield "    when dX and when dW first meet each tile of dY"
    for row, other in zip(dx, dw, strict=True):
        yield "    " + "".join(f"{step:>4}" for step in row) + "      " + "".join(f"{step:>4}" for step in other)
    uses = [number for number, step in enumerate(execution.steps, 1) if T0 in touched(step)]
    reads = [number for number in uses if transfer_of(T0, execution.steps[number - 1])]
    yield f"    T0 is used in {_listed(uses)} and read in {_listed(reads)}"


def _strip(steps: Sequence[ExecutionStep], first: int) -> Iterator[str]:
    """Operations side by side: the sum, the tile of dY, the other operand, and the spilled sums."""
    rows: dict[str, list[str]] = {"step": [], "sum": [], "dY": [], "with": [], "out": []}
    for number, step in enumerate(steps, first + 1):
        dy, other, sums = touched(step)
        rows["step"].append(str(number))
        rows["sum"].append(f"{_name(sums)}{'~' * bool(transfer_of(sums, step))}{'!' * bool(step.finished)}")
        rows["dY"].append(f"{'T0' if dy == T0 else _name(dy)}{'*' * bool(transfer_of(dy, step))}")
        rows["with"].append(f"{_name(other)}{'*' * bool(transfer_of(other, step))}")
        rows["out"].append(" ".join(_name(moved.tile) for moved in step.spilled))
    wide = max(WIDE, 2 + max(len(cell) for cells in rows.values() for cell in cells))
    for name, cells in rows.items():
        if any(cells):
            yield f"    {name:<6}" + "".join(f"{cell:<{wide}}" for cell in cells).rstrip()
    yield ""


def _name(tile: Tile) -> str:
    """Short: dY01 is row 0, column 1."""
    return f"{tile.tensor}{tile.row}{tile.column}" if max(tile.row, tile.column) < 10 else f"{tile.tensor}{tile.row},{tile.column}"


def _visits(execution: GradientExecution, gradient: Gradient) -> list[list[int]]:
    """For each tile of dY, the first step in which a gradient uses it."""
    first_steps: dict[tuple[int, int], int] = {}
    for number, step in enumerate(execution.steps, 1):
        (op,) = step.ops
        if op.gradient == gradient:
            first_steps.setdefault((op.m, op.n), number)
    rows, columns = (max(index) + 1 for index in zip(*first_steps, strict=True))
    return [[first_steps[row, column] for column in range(columns)] for row in range(rows)]


def _listed(numbers: Sequence[int]) -> str:
    return ("step " if len(numbers) == 1 else "steps ") + ", ".join(map(str, numbers))


def _table(case: Example, executions: dict[Order, GradientExecution]) -> Iterator[str]:
    """Bytes by order, and the compulsory bytes."""
    columns = [("dY", "read"), ("W", "read"), ("X", "read"), ("dX", "write"), ("dW", "write"), ("dX", "spill"), ("dW", "spill")]
    names = [f"{tensor} {way}" for tensor, way in columns]
    yield f"{'bytes':<14}" + "".join(f"{name:>10}" for name in (*names, "all"))
    sizes = {"dY": case.dy.nbytes, "W": case.w.nbytes, "X": case.x.nbytes, "dX": case.x.nbytes, "dW": case.w.nbytes}
    least = {key: 0 if key[1] == "spill" else sizes[key[0]] for key in columns}
    for name, moved in [*((order, execution.bytes) for order, execution in executions.items()), ("at least", least)]:
        cells = [moved.get(key, 0) for key in columns]
        yield f"{name:<14}" + "".join(f"{cell:>10}" for cell in (*cells, sum(cells)))
    dx, dw = case.dy @ case.w.T, case.x.T @ case.dy
    equal = all(np.array_equal(execution.dx, dx) and np.array_equal(execution.dw, dw) for execution in executions.values())
    yield "all orders give dY W^T and X^T dY" if equal else "the orders do not give dY W^T and X^T dY"
