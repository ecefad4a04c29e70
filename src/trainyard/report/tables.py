"""Terminal tables: one result by phase and by layer, or several machines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.report import lines
from trainyard.report.lines import Breakdown, Line
from trainyard.units import show as quantity

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainyard.results import Axis, Result

NARROWEST_LABEL, WIDEST_LABEL = 16, 48
PIPED_WIDTH = 120
COMPARED = ("machine", "time", "speedup", "throughput", "energy", "DRAM traffic", "peak", "DRAM bandwidth", "technology")


def show(result: Result, by: Axis = "layer", top: int = 20, console: Console | None = None) -> None:
    """Prints the headline, the step by phase, the `top` groups of `by`, and what all of it rests on."""
    from rich.text import Text

    console = _console(console)
    console.print(Text(lines.title(result), "bold"))
    width = max(len(name) for name, _ in lines.facts(result))
    for name, value in lines.facts(result):
        console.print(Text(f"  {name:<{width}}  ").append(value, "bold"))
    axes: list[Axis] = ["phase", by] if by != "phase" else ["phase"]
    for axis in axes:
        found = lines.breakdown(result, axis, None if axis == "phase" else top)
        console.print(_table(found, console.width, energy=bool(result.columns.energy)))
    console.print(
        Text("time is exposed time and sums to the step; busy counts every resource and may exceed it", "dim"),
    )
    _closing(result, console)


def compare(results: Sequence[Result], console: Console | None = None) -> None:
    """Prints machines side by side, the first being what the others are measured against."""
    from rich.table import Table
    from rich.text import Text

    if not results:
        raise BadInput("nothing to compare: no results were given")
    console = _console(console)
    first = results[0]
    console.print(Text(f"{first.workload}, batch {first.batch}: speedup is in samples/s over {first.machine}", "bold"))
    grid = [list(COMPARED), *(comparison_cells(result, first) for result in results)]
    width = sum(max(map(len, column)) + 2 for column in zip(*grid, strict=True))
    if width > console.width:  # too wide with a row for each machine: a column for each
        grid = [list(column) for column in zip(*grid, strict=True)]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for number, name in enumerate(grid[0]):
        table.add_column(Text(name), justify="left" if number == 0 else "right", overflow="fold")
    for row in grid[1:]:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for warning in lines.differences(results):
        console.print(Text(f"warning: {warning}", "yellow"))
    for result in results:
        console.print(Text(f"{result.machine}: {lines.provenance(result)}", "dim"))


def comparison_cells(result: Result, first: Result) -> list[str]:
    """The cells of one machine, in the order of `compare`'s columns."""
    return [
        result.machine,
        result.headline,
        f"{lines.speedup(result, first):.2f} x",
        lines.rate(result.samples_per_s),
        quantity(result.energy_j, "J") if result.columns.energy else "not modelled",
        quantity(lines.dram_bytes(result), "B"),
        quantity(result.peaks.macs_per_s, "MAC/s"),
        quantity(result.peaks.dram_bytes_per_s, "B/s"),
        result.peaks.technology or "not said",
    ]


def cells(line: Line, *, energy: bool = True) -> list[str]:
    """The cells of one line: label, time, share, busy, energy, DRAM bytes, MACs, bound by."""
    cost = line.cost
    return [
        line.label,
        quantity(cost.time_s, "s"),
        lines.percent(line.share),
        quantity(cost.busy_s, "s"),
        quantity(cost.energy_j, "J") if energy else "-",
        quantity(lines.dram_bytes(cost), "B"),
        quantity(cost.macs, "MAC"),
        line.bound,
    ]


def _table(found: Breakdown, width: int, *, energy: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    footer = cells(found.total, energy=energy)
    rows = [cells(line, energy=energy) for line in found.all]
    names = (f"by {found.by}", "time", "share", "busy", "energy", "DRAM", "MACs", "bound by")
    taken = sum(max(map(len, column)) + 2 for column in list(zip(names, footer, *rows, strict=True))[1:])
    room = min(max(width - taken - 2, NARROWEST_LABEL), WIDEST_LABEL)
    table = Table(box=None, padding=(0, 1), header_style="bold", show_footer=True, footer_style="bold")
    for number, (name, total) in enumerate(zip(names, footer, strict=True)):
        table.add_column(name, total, justify="left" if number in (0, len(names) - 1) else "right", no_wrap=True)
    for line, (label, *rest) in zip(found.all, rows, strict=True):
        table.add_row(Text(tail(label, room), "dim" if line is found.rest else ""), *(Text(cell) for cell in rest))
    return table


def tail(label: str, width: int) -> str:
    """The end of a long layer path: that is where layers differ.

    >>> tail("model.encoder.layer.11.attention", 16)
    '…er.11.attention'
    """
    return label if len(label) <= width else f"…{label[1 - width :]}"


def _closing(result: Result, console: Console) -> None:
    from rich.text import Text

    if result.assumptions:
        console.print(Text("assumptions", "bold"))
    for assumption in result.assumptions:
        console.print(Text(f"  {lines.assumption_text(assumption)}"))
    if result.notes:
        console.print(Text("notes", "bold"))
    for note in result.notes:
        console.print(Text(f"  {note}"))
    console.print(Text(lines.provenance(result), "dim"))


def _console(console: Console | None) -> Console:
    if console is not None:
        return console
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPED_WIDTH)  # a file has no width; 80 would cut names
