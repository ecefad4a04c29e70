"""IGO's orders, drawn: for each a strip of tile operations over time, and below every operation the tile of dY that it uses.

An operation has the colour of its gradient. A tile of dY that comes from the DRAM is filled, one that was still in the scratchpad
is open; T0, the tile that Fig. 9 follows, is round. What is drawn is what `mapping.gradient_order.walkthrough` tells as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainyard.mapping.gradient_order.execution import ExecutionStep, GradientExecution, Tile
from trainyard.mapping.gradient_order.tile_streams import Order
from trainyard.mapping.gradient_order.walkthrough import (
    EXAMPLE,
    ORDER_DESCRIPTIONS,
    SHOWN,
    T0,
    Example,
    execute_order,
    touched,
    transfer_of,
)
from trainyard.report.colours import DIRECTIONS, PHASES
from trainyard.report.walkthroughs.canvas import WIDEST, Sheet

if TYPE_CHECKING:
    import plotly.graph_objects as go

GRADIENTS: Mapping[str, str] = {"dX": PHASES["grad_input"], "dW": PHASES["grad_weight"]}
ROWS = ("sum", "dY", "operand", "out, back")
MARGIN = 2.4
"""Left of the strips, for the names of the rows."""
MOST_ACROSS = int(WIDEST - MARGIN)
GAP = 1.0
NAMED = 1.2
"""Above a strip, for its order."""
LEGEND = (
    "Sum: the tile of dX (orange) or dW (green) that the operation adds to, with a ! when it is done and written.",
    "dY: filled, read from the DRAM; open, still in the scratchpad; round, T0. Operand: W for dX, X for dW, filled where read.",
    "Out, back: sums that left unfinished to make room for the operation (↑), and one that it needed again (↓).",
)


def figure(example: Example = EXAMPLE) -> go.Figure:
    """Every order on one layer, one below the other."""
    sheet, ran = Sheet(), {order: execute_order(example, order) for order in SHOWN}
    y = 0.0
    longest = min(MOST_ACROSS, max(len(run.steps) for run in ran.values()))
    for order, run in ran.items():
        sheet.legend([f"{order}: {ORDER_DESCRIPTIONS[order]}. {_summary(run)}"], y - 0.6)
        rows = ROWS if any(_spills(step) for step in run.steps) else ROWS[:-1]
        for first in range(0, len(run.steps), MOST_ACROSS):
            for row, name in enumerate(rows):
                sheet.text(0.6, y + row + 0.5, name)
            for column, step in enumerate(run.steps[first : first + MOST_ACROSS]):
                _operation(sheet, step, first + column + 1, MARGIN + column, y)
            y += len(rows) + GAP
        y += NAMED
    sheet.legend(LEGEND, y)
    room = example.capacity_bytes // example.tile_bytes
    op, side = example.op, example.tile[0]
    title = f"Orders of dX and dW: M, N, K = {op.M}, {op.N}, {op.K} in tiles of {side} x {side}, room for {room} of them"
    return sheet.figure(title, _sentence(ran), MARGIN + longest, y + 0.5 * len(LEGEND))


def _operation(sheet: Sheet, step: ExecutionStep, number: int, x: float, y: float) -> None:
    (op,) = step.ops
    dy, other, sums = touched(step)
    finished = "!" if step.finished else ""
    hover = f"step {number}: {sums} += " + (f"{dy} {other}^T" if op.gradient == "dX" else f"{other}^T {dy}")
    sheet.cell(x, y, GRADIENTS[op.gradient], f"{_place(sums)}{finished}", hover + (", done and written" if finished else ""))
    for row, tile in enumerate((dy, other), 1):
        moved = transfer_of(tile, step)
        words = f"{tile}: " + (f"{moved.bytes} bytes read" if moved else "still there")
        sheet.cell(x, y + row, DIRECTIONS["read"] if moved else None, _place(tile), words, round_cell=tile == T0)
    back = transfer_of(sums, step)
    if not _spills(step):
        return
    out = [str(moved.tile) for moved in step.spilled]
    words = "; ".join((["out unfinished: " + ", ".join(out)] if out else []) + ([f"read again: {sums}"] if back else []))
    sheet.cell(x, y + 3, DIRECTIONS["spill"], f"{'↑' * len(out)}{'↓' * bool(back)}", words)


def _spills(step: ExecutionStep) -> bool:
    return bool(step.spilled) or any(moved.direction == "spill" for moved in step.loaded)


def _place(tile: Tile) -> str:
    return f"{tile.row},{tile.column}"


def _reads(ran: GradientExecution) -> int:
    return sum(moved.tile.tensor == "dY" for step in ran.steps for moved in step.loaded)


def _summary(ran: GradientExecution) -> str:
    spills = sum(len(step.spilled) for step in ran.steps)
    left = f", {spills} sums out and back" if spills else ""
    return f"{_reads(ran)} tiles of dY read for {len(ran.steps)} operations{left}, {sum(ran.bytes.values())} bytes in all"


def _sentence(ran: Mapping[Order, GradientExecution]) -> str:
    """For who cannot see it."""
    return "; ".join(f"{order}: {_summary(run)}" for order, run in ran.items()) + "."
