"""IGO's orders at work on a small layer, as text: every tile operation, what it finds in the scratchpad, what it reads and writes.

J. Kim et al.: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for DNN Training. MICRO 2023. Fig. 8: the
operations one after the other; Fig. 9: one tile of dY, `T0`, and when it is read; Fig. 10: how dX and dW go through dY. The
gradients are computed as they are told; `report.walkthroughs.igo.figure` draws the same.
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
from trainyard.mapping.gradient_order.execution import Executed, Step, Tile, Transfer, execute
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS, Gradient, Order, Size

Reals = npt.NDArray[np.float32]
# fmt: off
TOLD: dict[Order, str] = {
    "sequential":   "all of dX, then all of dW (Figs. 8a, 9a)",
    "interleaved":  "an operation of dX and one of dW in turn, each in its usual order (Figs. 8b, 9b, 10a)",
    "dx_major":     "dX and dW on the same tiles, dY by rows (Fig. 10b)",
    "dw_major":     "dX and dW on the same tiles, dY by columns (Fig. 10c)",
    "no_second_dy": "sequential, and what dW reads of dY costs nothing: the bound of Sec. 3.3",
}
# fmt: on
SHOWN: tuple[Order, ...] = ("sequential", *FUSED_ORDERS)
"""Step by step; the bound only has its bytes."""
ROOM = 6
"""Tiles that stay: one operation of each gradient on the same tile of dY takes five."""
SIDE = 2
"""Rows and columns of a tile in elements."""
T0 = Tile("dY", 0, 0)
"""The tile that Fig. 9 follows."""
ACROSS = 12
"""Operations on a line."""
WIDE = 8
MOST = 256
"""Operations that can be told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """A layer, its tiles, and the bytes of them that stay in the scratchpad."""

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
    """A layer of so many square tiles along M, N and K, with room for `room` of them; small whole numbers in it."""
    require_positive("walk-through", **dict(zip("MNK", tiles, strict=True)), room=room)
    if 2 * tiles[0] * tiles[1] * tiles[2] > MOST:
        raise BadInput(f"walk-through: {tiles} tiles make {2 * tiles[0] * tiles[1] * tiles[2]} operations: give at most {MOST}")
    m, n, k = (many * SIDE for many in tiles)
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    return Example(x=x, w=w, dy=dy, tile=(SIDE, SIDE, SIDE), capacity_bytes=room * SIDE * SIDE * x.itemsize)


EXAMPLE = example()
"""3 x 3 tiles of dY, and 2 along K."""


def chosen(given: str) -> Example:
    """An example by name: nothing for the usual one; tiles along M, N and K, and after a colon how many there is room for.

    >>> chosen("4x2x2:5").op, chosen("4x2x2:5").capacity_bytes
    (MatMul(M=8, N=4, K=4, count=1), 80)
    """
    if not given:
        return EXAMPLE
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?::(\d+))?", given)
    if found is None:
        raise BadInput(f"walk-through {given!r}: give tiles along M, N, K and the room in tiles, such as 3x3x2 or 4x2x2:5")
    m, n, k, room = (int(number or ROOM) for number in found.groups())
    return example((m, n, k), room=room)


def done(given: Example, order: Order) -> Executed:
    """The layer's gradients in one order."""
    return execute(given.x, given.w, given.dy, tile=given.tile, capacity_bytes=given.capacity_bytes, order=order)


def touched(step: Step) -> tuple[Tile, Tile, Tile]:
    """By the operation of a step, as it is read: dY, the other operand, the sum."""
    (op,) = step.ops
    if op.gradient == "dX":
        return Tile("dY", op.m, op.n), Tile("W", op.k, op.n), Tile("dX", op.m, op.k)
    return Tile("dY", op.m, op.n), Tile("X", op.m, op.k), Tile("dW", op.k, op.n)


def came(tile: Tile, step: Step) -> Transfer | None:
    """How a tile came into the scratchpad for a step, or None where it was there or is a new sum."""
    return next((moved for moved in step.loaded if moved.tile == tile), None)


def walkthrough(given: Example = EXAMPLE) -> str:
    """Order after order, then the bytes of all side by side.

    >>> print(walkthrough(example((2, 1, 1), room=3)).split("\\n\\n")[1])
    sequential: all of dX, then all of dW (Figs. 8a, 9a)
        step  1       2       3       4
        sum   dX00!   dX10!   dW00    dW00!
        dY    T0*     dY10*   T0*     dY10*
        with  W00*    W00     X00*    X10*
    """
    ran = {order: done(given, order) for order in TOLD}
    parts = [_heading(given), *("\n".join(_order(order, ran[order])) for order in SHOWN), "\n".join(_table(given, ran))]
    return "\n\n".join(parts)


def _heading(given: Example) -> str:
    op, (m, n, k), room = given.op, given.tile, given.capacity_bytes / given.tile_bytes
    return (
        f"Y({op.M},{op.N}) = X({op.M},{op.K}) W({op.K},{op.N}). Backward: dX = dY W^T, dW = X^T dY, in tiles of {m} x {n} x {k}.\n"
        f"{given.capacity_bytes} bytes stay in the scratchpad: {room:g} tiles of {given.tile_bytes}. The least recent makes room.\n"
        "Marks: * read from DRAM, ~ a sum that left unfinished and is read again, ! the sum is done and written; no mark: it was\n"
        "there, or is a new sum. A line `out` names the sums that left unfinished to make room. T0 is dY(0,0)."
    )


def _order(order: Order, ran: Executed) -> Iterator[str]:
    yield f"{order}: {TOLD[order]}"
    for first in range(0, len(ran.steps), ACROSS):
        yield from _strip(ran.steps[first : first + ACROSS], first)
    dx, dw = (_visits(ran, gradient) for gradient in ("dX", "dW"))
    yield "    when dX and when dW first meet each tile of dY"
    for row, other in zip(dx, dw, strict=True):
        yield "    " + "".join(f"{step:>4}" for step in row) + "      " + "".join(f"{step:>4}" for step in other)
    uses = [number for number, step in enumerate(ran.steps, 1) if T0 in touched(step)]
    reads = [number for number in uses if came(T0, ran.steps[number - 1])]
    yield f"    T0 is used in {_listed(uses)} and read in {_listed(reads)}"


def _strip(steps: Sequence[Step], first: int) -> Iterator[str]:
    """Operations side by side: the sum, the tile of dY, the other operand; and what left."""
    rows: dict[str, list[str]] = {"step": [], "sum": [], "dY": [], "with": [], "out": []}
    for number, step in enumerate(steps, first + 1):
        dy, other, sums = touched(step)
        rows["step"].append(str(number))
        rows["sum"].append(f"{_name(sums)}{'~' * bool(came(sums, step))}{'!' * bool(step.finished)}")
        rows["dY"].append(f"{'T0' if dy == T0 else _name(dy)}{'*' * bool(came(dy, step))}")
        rows["with"].append(f"{_name(other)}{'*' * bool(came(other, step))}")
        rows["out"].append(" ".join(_name(moved.tile) for moved in step.spilled))
    wide = max(WIDE, 2 + max(len(cell) for cells in rows.values() for cell in cells))
    for name, cells in rows.items():
        if any(cells):
            yield f"    {name:<6}" + "".join(f"{cell:<{wide}}" for cell in cells).rstrip()
    yield ""


def _name(tile: Tile) -> str:
    """Short: dY01 is row 0, column 1."""
    return f"{tile.tensor}{tile.row}{tile.column}" if max(tile.row, tile.column) < 10 else f"{tile.tensor}{tile.row},{tile.column}"


def _visits(ran: Executed, gradient: Gradient) -> list[list[int]]:
    """For each tile of dY, the first step in which a gradient uses it."""
    found: dict[tuple[int, int], int] = {}
    for number, step in enumerate(ran.steps, 1):
        (op,) = step.ops
        if op.gradient == gradient:
            found.setdefault((op.m, op.n), number)
    rows, columns = (max(place) + 1 for place in zip(*found, strict=True))
    return [[found[row, column] for column in range(columns)] for row in range(rows)]


def _listed(numbers: Sequence[int]) -> str:
    return ("step " if len(numbers) == 1 else "steps ") + ", ".join(map(str, numbers))


def _table(given: Example, ran: dict[Order, Executed]) -> Iterator[str]:
    """Bytes by order; what no order can go below."""
    columns = [("dY", "read"), ("W", "read"), ("X", "read"), ("dX", "write"), ("dW", "write"), ("dX", "spill"), ("dW", "spill")]
    names = [f"{tensor} {way}" for tensor, way in columns]
    yield f"{'bytes':<14}" + "".join(f"{name:>10}" for name in (*names, "all"))
    sizes = {"dY": given.dy.nbytes, "W": given.w.nbytes, "X": given.x.nbytes, "dX": given.x.nbytes, "dW": given.w.nbytes}
    least = {key: 0 if key[1] == "spill" else sizes[key[0]] for key in columns}
    for name, moved in [*((order, one.bytes) for order, one in ran.items()), ("at least", least)]:
        cells = [moved.get(key, 0) for key in columns]
        yield f"{name:<14}" + "".join(f"{cell:>10}" for cell in (*cells, sum(cells)))
    dx, dw = given.dy @ given.w.T, given.x.T @ given.dy
    equal = all(np.array_equal(one.dx, dx) and np.array_equal(one.dw, dw) for one in ran.values())
    yield "all orders give dY W^T and X^T dY" if equal else "the orders do not give dY W^T and X^T dY"
