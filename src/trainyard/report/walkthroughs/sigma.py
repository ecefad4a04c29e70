"""SIGMA at work, drawn: bitmaps and counters above; below, every Flex-DPE with its switches, multipliers and adders for one vector.

A dot product has one colour, from its stationary values to its sum. A link of the Benes network that serves several is dark. The
steps are those of `arrays.sigma.walkthrough`, which tells the same as text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from trainyard.arrays.sigma.controller import IDLE
from trainyard.arrays.sigma.execution import Fabric
from trainyard.arrays.sigma.walkthrough import EXAMPLE, Example, Trace, Unit, links, stride, trace_product
from trainyard.errors import BadInput
from trainyard.hardware.reduction.adder_trees import ADD, BYPASS
from trainyard.report.colours import CLASSES, NEUTRAL, PHASES, SPARE
from trainyard.report.walkthroughs.canvas import GREY, WAITS, WIDEST, Sheet

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = (
    CLASSES["compute"], CLASSES["synchronisation"], PHASES["grad_weight"], PHASES["loss"], PHASES["update"], CLASSES["copy"],
    *SPARE,
)  # fmt: skip
SHARED = "#5a5a5a"
"""A link that carries a value to more than one dot product."""
OUTPUTS = ("vertical", "diagonal")
WIRE = 2.0
"""Width of a wire into or out of the networks."""
LINK = 2.5
"""Width of a link that carries something."""
PITCH = 1.5
"""From one lane to the next, in cells; levels are as far apart."""
GAP = 2.0
LEAST = 28.0
"""Cells across that the legend needs."""
MARGIN = 2.6
"""Left of the Flex-DPEs, for the names of what is drawn."""
LEGEND = (
    "A dot product (a row of MK) has one colour, from its values to its sum; dark links serve several. Grey in MK: meets no",
    "streaming value, is not loaded. Dark in KN: the vector in the switches. In a multiplier: stationary · streaming value.",
    "FAN: + adds, an open adder bypasses or rests. A row with * has parts in several Flex-DPEs or folds, added on the way out.",
)


@dataclass(slots=True)
class Wires:
    """Lines by colour and width, below everything: one path for each, however many."""

    drawn: dict[tuple[str, float], list[tuple[float, float, float, float]]] = field(default_factory=dict)

    def add(self, start: tuple[float, float], end: tuple[float, float], colour: str, width: float = LINK) -> None:
        self.drawn.setdefault((colour, width), []).append((*start, *end))

    def shapes(self) -> Iterator[dict[str, object]]:
        for (colour, width), lines in self.drawn.items():
            path = " ".join(f"M {x0:.3f},{y0:.3f} L {x1:.3f},{y1:.3f}" for x0, y0, x1, y1 in lines)
            yield {"type": "path", "layer": "below", "path": path, "line": {"width": width, "color": colour}}


def colour_of(row: int) -> str:
    return COLOURS[row % len(COLOURS)]


def figure(example: Example = EXAMPLE, *, vector: int = 0) -> go.Figure:
    """One product; the Flex-DPEs are drawn while streaming vector `vector` is in them."""
    trace = trace_product(example)
    if not 0 <= vector < example.b.shape[1]:
        raise BadInput(f"figure: vector {vector} of {example.b.shape[1]}: count from 0")
    sheet, wires = Sheet(), Wires()
    right = _matrices(sheet, trace, vector)
    top = max(example.a.shape[0], example.b.shape[0]) + 3.0
    wide, tall = _panel(trace)
    columns = max(1, min(len(trace.units), int((WIDEST - MARGIN + GAP) // (wide + GAP))))
    for number, unit in enumerate(trace.units):
        x, y = MARGIN + number % columns * (wide + GAP), top + number // columns * (tall + GAP)
        _flex_dpe(sheet, wires, trace, unit, vector, x, y)
        if number % columns == 0:
            _names(sheet, trace, y)
    high = top + -(-len(trace.units) // columns) * (tall + GAP)
    sheet.legend(LEGEND, high)
    across = max(right, MARGIN + columns * (wide + GAP) - GAP, LEAST)
    allocation, array = trace.allocation, example.array
    title = (
        f"SIGMA, {array.dpes} Flex-DPEs of {array.multipliers}: {allocation.useful} stationary values, {allocation.folds} "
        f"{'fold' if allocation.folds == 1 else 'folds'}, {trace.execution.cycles} cycles; vector {vector} in the switches"
    )
    sheet.shapes = [*wires.shapes(), *sheet.shapes]
    return sheet.figure(title, _sentence(trace, vector), across, high + 0.5 * len(LEGEND))


def _matrices(sheet: Sheet, trace: Trace, vector: int) -> float:
    """Steps i, ii and v from left to right; where they end."""
    unit, gathered, example = trace.controller, trace.gathered, trace.example
    pruned, bits = trace.pruned.bits(), gathered.stationary.bits()
    colours = [[colour_of(row) if bit else None for bit in line] for row, line in enumerate(pruned)]
    loaded = [
        [fill or (WAITS if bit else None) for fill, bit in zip(*both, strict=True)] for both in zip(colours, bits, strict=True)
    ]
    x = _grid(sheet, 0.0, "MK", example.a, loaded)
    streaming = [
        [SHARED if bit and n == vector else WAITS if bit else None for n, bit in enumerate(line)]
        for line in gathered.streaming.bits()
    ]
    x = _grid(sheet, x, "KN", example.b, streaming)
    x = _grid(sheet, x, "REGOR", trace.regor[:, None], [[WAITS if bit else None] for bit in trace.regor], zeros=True)
    x = _grid(sheet, x, "MK′ counters", unit.stationary_counters(trace.pruned), colours)
    x = _grid(sheet, x, "KN counters", unit.streaming_counters(gathered.streaming), streaming)
    outputs = unit.output_bitmap(gathered).bits()
    fills = [[colour_of(row) if bit else None for bit in line] for row, line in enumerate(outputs)]
    return _grid(sheet, x, "outputs", trace.execution.product, fills) - GAP


def _grid(sheet: Sheet, x: float, name: str, values: np.ndarray, fills: list[list[str | None]], *, zeros: bool = False) -> float:
    """A matrix of cells, numbered at its sides; the next one's left edge."""
    sheet.text(x + len(fills[0]) / 2, -1.6, name, size=13)
    for column in range(len(fills[0])):
        sheet.text(x + column + 0.5, -0.5, str(column))
    for row, line in enumerate(fills):
        sheet.text(x - 0.5, row + 0.5, str(row))
        for column, fill in enumerate(line):
            shown = fill is not None or zeros
            text = f"{float(values[row, column]):g}" if shown else ""
            sheet.cell(x + column, row, fill, text, f"{name}, row {row}, column {column}: {text or 'zero'}")
    return x + len(fills[0]) + GAP


def _panel(trace: Trace) -> tuple[float, float]:
    """How wide and tall a Flex-DPE is: ports, switches, multipliers, adders, sums."""
    fabric = Fabric(trace.example.array)
    return trace.example.array.multipliers * PITCH, (fabric.benes.levels + fabric.fan.levels + 3.5) * PITCH


def _names(sheet: Sheet, trace: Trace, y: float) -> None:
    """Of the rows of a Flex-DPE, at the left."""
    benes, fan = Fabric(trace.example.array).benes.levels, Fabric(trace.example.array).fan.levels
    rows = (
        ("ports", 0.0),
        ("Benes", (benes + 1) / 2),
        ("multipliers", benes + 1.0),
        ("FAN", benes + 1.5 + fan / 2),
        ("sums", benes + fan + 2.0),
    )
    for name, row in rows:
        sheet.text(0.4, y + row * PITCH + 0.5, name)


def _flex_dpe(sheet: Sheet, wires: Wires, trace: Trace, unit: Unit, vector: int, x: float, y: float) -> None:
    fabric = Fabric(trace.example.array)
    lanes, flex = trace.example.array.multipliers, unit.flex_dpe
    fold = f"fold {unit.which.fold}, " if trace.allocation.folds > 1 else ""
    sheet.text(x + lanes * PITCH / 2, y - 0.9, f"{fold}Flex-DPE {flex.number}", size=13)
    _switches(sheet, wires, trace, unit, vector, x, y)
    below = y + (fabric.benes.levels + 1) * PITCH
    for lane in range(lanes):
        row, source = int(flex.row[lane]), int(unit.sources[vector, lane])
        streaming = f"{unit.inputs[vector, source]:g}" if source >= 0 else "0"
        text = f"{unit.values[lane]:g}·{streaming}" if row != IDLE else ""
        hover = f"multiplier {lane}: " + (
            f"MK({row}, {int(flex.k[lane])}), product {unit.products[vector, lane]:g}" if text else "idle"
        )
        sheet.cell(x + lane * PITCH, below, colour_of(row) if row != IDLE else None, text, hover, round_cell=True)
    _adders(sheet, wires, fabric, trace, unit, vector, x, below)


def _switches(sheet: Sheet, wires: Wires, trace: Trace, unit: Unit, vector: int, x: float, y: float) -> None:
    """Ports, the levels of the Benes network, all its links faintly and in colour those that carry something."""
    benes, row = Fabric(trace.example.array).benes, unit.flex_dpe.row

    def place(level: int, switch: int) -> tuple[float, float]:
        return x + switch * PITCH + 0.5, y + (level + 1) * PITCH + 0.5

    def colour(lanes: Iterable[int]) -> str:
        rows = {int(row[lane]) for lane in lanes}
        return colour_of(rows.pop()) if len(rows) == 1 else SHARED

    for level, switch in product(range(benes.levels - 1), range(benes.ports)):
        for end in (switch, switch ^ stride(level, benes.levels)):
            wires.add(place(level, switch), place(level + 1, end), NEUTRAL, 1)
    through: dict[tuple[int, int], set[int]] = defaultdict(set)
    for level, begin, end, lanes in links(unit, vector):
        wires.add(place(level, begin), place(level + 1, end), colour(lanes))
        through[level, begin] |= {*lanes}
    for lane in np.flatnonzero(unit.sources[vector] >= 0).tolist():
        wires.add(place(benes.levels - 1, lane), place(benes.levels, lane), colour([lane]), WIRE)
        through[benes.levels - 1, lane] = {lane}
    for port in range(benes.ports):
        heard = through.get((0, port))
        if heard:
            wires.add(place(-1, port), place(0, port), colour(heard), WIRE)
            hover = f"port {port}: heard by multipliers {', '.join(map(str, sorted(heard)))}"
            sheet.cell(x + port * PITCH, y, colour(heard), f"{unit.inputs[vector, port]:g}", hover)
        else:
            sheet.cell(x + port * PITCH, y, None, "", f"port {port}: not needed here")
    select = unit.settings.bits[unit.settings.row == vector][0]
    for level, switch in product(range(benes.levels), range(benes.ports)):
        used = through.get((level, switch), set())
        bits = int(select[level, switch])
        takes = ", ".join(
            f"{name} output takes its {('vertical', 'diagonal')[bits >> bit & 1]} input" for bit, name in enumerate(OUTPUTS)
        )
        hover = f"level {level}, switch {switch}: " + (takes if used else "carries nothing")
        at = place(level, switch)
        _dot(sheet, at, colour(used) if used else None, hover)


def _dot(sheet: Sheet, at: tuple[float, float], fill: str | None, hover: str) -> None:
    """A switch."""
    sheet.shapes.append(
        {
            "type": "rect", "layer": "below", "x0": at[0] - 0.2, "x1": at[0] + 0.2, "y0": at[1] - 0.2, "y1": at[1] + 0.2,
            "line": {"width": 1, "color": fill or NEUTRAL}, "fillcolor": fill or "rgba(0,0,0,0)",
        }
    )  # fmt: skip
    sheet.hovers.append((*at, hover))


def _adders(sheet: Sheet, wires: Wires, fabric: Fabric, trace: Trace, unit: Unit, vector: int, x: float, y: float) -> None:
    """FAN below its multipliers: adder i between lanes i and i + 1, on its level."""
    fan, ids = fabric.fan, unit.flex_dpe.vec_ids.tolist()
    mode, left, right = (found.tolist() for found in fan.route(unit.flex_dpe.vec_ids))
    levels = fan.adder_levels().tolist()
    colours = [colour_of(vec_id % trace.placement.rows) if vec_id != IDLE else GREY for vec_id in ids]

    def place(adder: int) -> tuple[float, float]:
        return x + (adder + 0.5) * PITCH + 0.5, y + (levels[adder] + 1) * PITCH + 0.5

    def lane(number: int) -> tuple[float, float]:
        return x + number * PITCH + 0.5, y + 0.5

    for adder, does in enumerate(mode):
        at = place(adder)
        starts: list[tuple[float, float]] = []
        if does == BYPASS:
            for number in (adder, adder + 1):
                if ids[number] != IDLE:
                    wires.add(lane(number), at, colours[number])
        elif does == ADD:
            low = levels[adder] == 0
            starts = (
                [lane(adder), lane(adder + 1)]
                if low
                else [place(adder - 2 ** (left[adder] - 1)), place(adder + 2 ** (right[adder] - 1))]
            )
        for start in starts:
            wires.add(start, at, colours[adder])
        hover = f"adder {adder}, level {levels[adder]}: " + (
            "bypasses" if does == BYPASS else f"adds for vecID {ids[adder]}" if starts else "rests"
        )
        sheet.cell(at[0] - 0.5, at[1] - 0.5, colours[adder] if starts else None, "+" if starts else "", hover)
    _sums(sheet, wires, trace, unit, vector, place, y + (fan.levels + 1) * PITCH)


Place = Callable[[int], tuple[float, float]]


def _sums(sheet: Sheet, wires: Wires, trace: Trace, unit: Unit, vector: int, place: Place, y: float) -> None:
    """Each dot product's sum below its lanes, with a line from the adder that finishes it."""
    levels = Fabric(trace.example.array).fan.adder_levels()
    for group, vec_id in enumerate(unit.reduction.ids.tolist()):
        mine = np.flatnonzero(unit.flex_dpe.vec_ids == vec_id)
        first, last = int(mine[0]), int(mine[-1])
        adder = first & ~1 if first == last else max(range(first, last), key=lambda one: int(levels[one]))
        row, middle = vec_id % trace.placement.rows, place(0)[0] + ((first + last - 1) / 2) * PITCH
        wires.add(place(adder), (middle, y + 0.5), colour_of(row), WIRE)
        total, expected = unit.reduction.sums[vector, group], trace.execution.product[row, vector]
        parts = sum(int(other % trace.placement.rows == row) for one in trace.units for other in one.reduction.ids.tolist())
        rest = f", part of {expected:g}" if parts > 1 else ""
        hover = f"row {row}: {total:g} after {int(unit.reduction.finish[group])} cycles{rest}"
        sheet.cell(middle - 0.5, y, colour_of(row), f"{total:g}", hover)
        sheet.text(middle, y + 1.3, f"row {row}{'*' if parts > 1 else ''}", colour_of(row))


def _sentence(trace: Trace, vector: int) -> str:
    allocation, done, gone = trace.allocation, trace.execution, trace.gathered.stationary.nonzeros - trace.pruned.nonzeros
    folds = "1 fold" if allocation.folds == 1 else f"{allocation.folds} folds"
    held = (
        f"{allocation.useful} stationary values on {allocation.flex_dpes} Flex-DPEs in {folds}; {gone} meet nothing and stay out. "
    )
    heard = sum(int((unit.sources[vector] >= 0).sum()) for unit in trace.units)
    return (
        held + f"Loading {done.loading}, streaming {done.streaming}, add {done.add}: {done.cycles} cycles. "
        f"Vector {vector} meets {heard} of them: "
        + ", ".join(f"row {row} gives {value:g}" for row, value in enumerate(done.product[:, vector].tolist()))
        + "."
    )
