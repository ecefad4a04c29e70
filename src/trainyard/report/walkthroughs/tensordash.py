"""TensorDash at work, drawn: the dense schedule, the scheduled one, and between them the staging buffer in every cycle.

A pair has the colour of the cycle that multiplies it, in all three. Lines are the multiplexers that move it: straight down is the
pair's own lane, slanted is lookaside. The cycles are those of `arrays.tensordash.walkthrough`, which tells the same as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash.walkthrough import DONE, PAST, WAITING, Cycle, cycles, option_name
from trainyard.report.colours import CLASSES, PHASES
from trainyard.report.walkthroughs.canvas import WAITS, WIDEST, Sheet

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.arrays.tensordash.scheduler import Scheduler

COLOURS = (
    CLASSES["compute"], CLASSES["synchronisation"], PHASES["grad_weight"], PHASES["loss"], PHASES["update"], CLASSES["copy"],
)  # fmt: skip
MOST_CYCLES = 12
LEGEND = (
    "A pair has the colour of the cycle that multiplies it. In a buffer: the multiplier that takes it. In a circle: its MS.",
    "Grey waits for a later cycle, ✓ was multiplied before, empty is zero. A dotted line goes round the ring of lanes.",
)


def figure(nonzero: npt.ArrayLike, scheduler: Scheduler, *, most: int = MOST_CYCLES) -> go.Figure:
    """A stream [steps, lanes] on one processing element; the buffers of the first `most` cycles are drawn."""
    trace = cycles(nonzero, scheduler)
    bits = np.asarray(nonzero) != 0
    steps, lanes = bits.shape
    sheet = Sheet()
    _dense(sheet, bits, trace)
    _scheduled(sheet, trace, lanes, lanes + 3)
    shown, panel, tall = trace[:most], lanes + 2.5, scheduler.depth + 5.0
    right = 2 * lanes + 7.0
    left, top = (right, 0.0) if right + panel <= WIDEST else (0.0, steps + 3.5)
    across = max(1, int((WIDEST - left + 1) // panel))
    across = -(-len(shown) // -(-len(shown) // across))  # as few lines as that takes, filled evenly
    for number, cycle in enumerate(shown):
        _buffer(sheet, cycle, steps, scheduler, left + number % across * panel, top + number // across * tall)
    wide = max(right - 2, left + across * panel - 1.5)
    high = max(steps, top + -(-len(shown) // across) * tall - 2)
    sheet.legend(LEGEND, high + 1.2)
    title = f"TensorDash, {lanes} lanes, {scheduler.depth} deep: {steps} steps in {len(trace)} cycles"
    if len(shown) < len(trace):
        title += f", the first {len(shown)} in detail"
    return sheet.figure(title, _sentence(bits, trace), wide, high + 1.0 + 0.7 * len(LEGEND))


def _colour(cycle: int) -> str:
    return COLOURS[cycle % len(COLOURS)]


def _dense(sheet: Sheet, bits: npt.NDArray[np.bool_], trace: tuple[Cycle, ...]) -> None:
    """Every step is a cycle."""
    steps, lanes = bits.shape
    issued = {(choice.step, choice.source): (cycle, choice) for cycle in trace for choice in cycle.choices if choice.ms is not None}
    sheet.text(lanes / 2, -1.6, f"dense: {steps} cycles", size=13)
    _lane_names(sheet, lanes, 0)
    for step in range(steps):
        sheet.text(-0.6, step + 0.5, str(step))
        for lane in range(lanes):
            if (step, lane) not in issued:
                sheet.cell(lane, step, None, hover=f"step {step}, lane {lane}: zero")
                continue
            cycle, choice = issued[step, lane]
            hover = f"step {step}, lane {lane}: multiplied in cycle {cycle.number + 1} by lane {choice.lane} (MS {choice.ms})"
            sheet.cell(lane, step, _colour(cycle.number), str(cycle.number + 1), hover)


def _scheduled(sheet: Sheet, trace: tuple[Cycle, ...], lanes: int, start: float) -> None:
    sheet.text(start + lanes / 2, -1.6, f"scheduled: {len(trace)} cycles", size=13)
    _lane_names(sheet, lanes, start)
    sheet.text(start + lanes + 0.6, -0.5, "AS")
    for cycle in trace:
        sheet.text(start - 0.6, cycle.number + 0.5, str(cycle.number + 1))
        sheet.text(start + lanes + 0.6, cycle.number + 0.5, str(cycle.advance))
        for choice in cycle.choices:
            if choice.ms is None:
                sheet.cell(start + choice.lane, cycle.number, None, hover=f"cycle {cycle.number + 1}, lane {choice.lane}: idle")
            else:
                hover = f"cycle {cycle.number + 1}, lane {choice.lane}: step {choice.step}, lane {choice.source} (MS {choice.ms})"
                text = f"{choice.step}.{choice.source}"
                sheet.cell(start + choice.lane, cycle.number, _colour(cycle.number), text, hover)


def _buffer(sheet: Sheet, cycle: Cycle, steps: int, scheduler: Scheduler, x: float, y: float) -> None:
    """A staging buffer, its multiplexers and the multipliers below."""
    lanes, depth, colour = scheduler.lanes, scheduler.depth, _colour(cycle.number)
    sheet.text(x + lanes / 2, y - 0.6, f"cycle {cycle.number + 1}, AS {cycle.advance}", colour, 13)
    bottom = y + depth + 1.2
    for choice in cycle.choices:
        if choice.ms is not None:
            place = x + choice.source + 0.5, y + choice.step - cycle.position + 0.5
            offset = scheduler.options[choice.ms][1]
            around = choice.lane + offset != choice.source  # the ring is cut where the drawing ends
            sheet.line(place, (x + choice.lane + 0.5, bottom + 0.5), colour, "dot" if around else "solid")
    for ahead, row in enumerate(cycle.buffer):
        if cycle.position + ahead < steps:
            sheet.text(x - 0.5, y + ahead + 0.5, f"+{ahead}")
        for lane, state in enumerate(row):
            where = f"step {cycle.position + ahead}, lane {lane}"
            if state >= 0:
                sheet.cell(x + lane, y + ahead, colour, str(state), f"{where}: to multiplier {state}")
            elif state == WAITING:
                sheet.cell(x + lane, y + ahead, WAITS, hover=f"{where}: waits")
            elif state != PAST:
                hover = f"{where}: {'multiplied before' if state == DONE else 'zero'}"
                sheet.cell(x + lane, y + ahead, None, "✓" if state == DONE else "", hover)
    for choice in cycle.choices:
        had = ", ".join(f"{ms} {option_name(scheduler.options[ms])}" for ms in choice.had) or "none"
        text = "" if choice.ms is None else str(choice.ms)
        fill = None if choice.ms is None else colour
        hover = f"multiplier {choice.lane}: MS {text or 'none, idle'}<br>options it had: {had}"
        sheet.cell(x + choice.lane, bottom, fill, text, hover, round_cell=True)
    sheet.text(x - 0.5, bottom + 0.5, "MS")


def _lane_names(sheet: Sheet, lanes: int, start: float) -> None:
    for lane in range(lanes):
        sheet.text(start + lane + 0.5, -0.5, str(lane))


def _sentence(bits: npt.NDArray[np.bool_], trace: tuple[Cycle, ...]) -> str:
    idle = sum(choice.ms is None for cycle in trace for choice in cycle.choices)
    return (
        f"{int(bits.sum())} of {bits.size} pairs are effectual. "
        f"Densely they take {len(bits)} cycles, with TensorDash {len(trace)}: "
        f"{len(bits) / len(trace):.2f} times as fast, idle multiplier slots: {idle}. "
        + " ".join(f"Cycle {cycle.number + 1} drains {cycle.advance}." for cycle in trace[:MOST_CYCLES])
    )
