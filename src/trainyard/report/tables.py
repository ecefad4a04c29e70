"""Terminal tables: one result by phase and by layer, or several machines side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.ir.plan import TaskClass
from trainyard.report import lines, savings
from trainyard.report.lines import Breakdown, Line
from trainyard.units import show as quantity

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainyard.results.result import Axis, Result

NARROWEST_LABEL, WIDEST_LABEL = 16, 48
COLUMNS = ("time", "share", "busy", "energy", "DRAM", "MACs", "bound by")
LEAST_NEEDED = ("busy", "MACs", "energy", "DRAM", "bound by")
"""Columns that a narrow terminal leaves out, in this order: a number is never cut."""
PIPED_WIDTH = 120
NOTHING = "-"


def show(result: Result, by: Axis = "layer", top: int = 20, console: Console | None = None) -> None:
    """Prints the headline, the step by phase, the `top` groups of `by`, and what all of it rests on."""
    from rich.text import Text

    console = _console(console)
    console.print(Text(lines.title(result), "bold"))
    width = max(len(name) for name, _ in lines.facts(result))
    for name, value in lines.facts(result):
        console.print(Text(f"  {name:<{width}}  ").append(value, "bold"))
    axes: list[Axis] = ["phase", by] if by != "phase" else ["phase"]
    breakdowns = [lines.breakdown(result, axis, None if axis == "phase" else top) for axis in axes]
    energy = bool(result.columns.energy)
    columns = min((fitting(breakdown, console.width, energy=energy) for breakdown in breakdowns), key=len)
    for breakdown in breakdowns:
        console.print(_table(breakdown, console.width, columns, energy=energy))
    if result.without_reuse is not None:
        console.print(savings.table(result, top, WIDEST_LABEL))
    footers = ["time is exposed time and sums to the step"]
    if "busy" in columns:
        footers.append("busy counts every resource and may exceed it")
    if left := [name for name in COLUMNS if name not in columns]:
        footers.append(f"no room for {', '.join(left)}")
    _say(console, "; ".join(footers), style="dim")
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
    columns = compared(results)
    grid = [[column.head for column in columns], *([column.cell(result) for column in columns] for result in results)]
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
        _say(console, f"warning: {warning}", style="yellow")
    for result in results:
        _say(console, f"{result.machine}: {lines.provenance(result)}", style="dim")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a comparison: what it says of a machine, and the number that it is sorted by (None: its text)."""

    head: str
    cell: Callable[[Result], str]
    value: Callable[[Result], float] | None = None


def compared(results: Sequence[Result]) -> list[Column]:
    """The columns of a comparison, without those that say nothing of any of these machines."""
    first = results[0]
    # fmt: off
    columns = [
        Column("machine",        lambda r: r.machine),
        Column("time",           lambda r: r.headline,                                lambda r: r.time_s),
        Column("speedup",        lambda r: f"{lines.speedup(r, first):.2f} x",        lambda r: lines.speedup(r, first)),
        Column("throughput",     lambda r: lines.rate(r.samples_per_s),               lambda r: r.samples_per_s),
        *_classes(results),
        Column("array busy",     lambda r: lines.array_text(r, first),                lambda r: lines.array_s(r) or 0.0),
        Column("energy",         _energy,                                             lambda r: r.energy_j),
        Column("DRAM traffic",   lambda r: quantity(lines.dram_bytes(r), "B"),        lines.dram_bytes),
        Column("paged",          lambda r: _some(lines.paged_bytes(r), "B"),          lines.paged_bytes),
        Column("host memory",    lambda r: _some(lines.host_bytes_per_s(r), "B/s"),   lines.host_bytes_per_s),
        Column("peak",           lambda r: quantity(r.peaks.macs_per_s, "MAC/s"),     lambda r: r.peaks.macs_per_s),
        Column("DRAM bandwidth", lambda r: quantity(r.peaks.dram_bytes_per_s, "B/s"), lambda r: r.peaks.dram_bytes_per_s),
        Column("technology",     lambda r: r.peaks.technology or "not said"),
        Column("bound by",       lines.bound_by),
    ]
    # fmt: on
    return [column for column in columns if any(column.cell(result) != NOTHING for result in results)]


def _classes(results: Sequence[Result]) -> list[Column]:
    """The time that a step waits for each class: how a better part moves the bottleneck. Only where some step has two."""
    by_result = [lines.overlap(result) for result in results]
    if all(len(classes) < 2 for classes in by_result):
        return []
    return [_exposed(str(kind)) for kind in TaskClass if any(str(kind) in classes for classes in by_result)]


def _exposed(name: str) -> Column:
    def seconds(result: Result) -> float:
        return result.by_class[name].time_s if name in result.by_class else 0.0

    def text(result: Result) -> str:
        if name not in result.by_class:
            return NOTHING
        return f"{quantity(seconds(result), 's')} ({lines.percent(seconds(result) / result.time_s)})"

    return Column(f"exposed {name}", text, seconds)


def _energy(result: Result) -> str:
    return quantity(result.energy_j, "J") if result.columns.energy else "not modelled"


def _some(amount: float, unit: str) -> str:
    return quantity(amount, unit) if amount else NOTHING


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


def _widths(breakdown: Breakdown, *, energy: bool) -> dict[str, int]:
    """What each column of numbers takes, its padding included."""
    rows = [cells(line, energy=energy)[1:] for line in (*breakdown.all, breakdown.total)]
    return {column[0]: max(map(len, column)) + 2 for column in zip(COLUMNS, *rows, strict=True)}


def fitting(breakdown: Breakdown, width: int, *, energy: bool = True) -> tuple[str, ...]:
    """The columns that stand beside a readable label, the least needed left out first."""
    taken = _widths(breakdown, energy=energy)
    label = min(NARROWEST_LABEL, max(len(line.label) for line in (*breakdown.all, breakdown.total)))
    for name in LEAST_NEEDED:
        if label + 2 + sum(taken.values()) <= width:
            break
        del taken[name]
    return tuple(taken)


def _table(breakdown: Breakdown, width: int, columns: Sequence[str], *, energy: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    def chosen(line: Line) -> list[str]:
        return [cell for name, cell in zip(COLUMNS, cells(line, energy=energy)[1:], strict=True) if name in columns]

    widths = _widths(breakdown, energy=energy)
    room = min(max(width - 2 - sum(widths[name] for name in columns), NARROWEST_LABEL), WIDEST_LABEL)
    table = Table(box=None, padding=(0, 1), header_style="bold", show_footer=True, footer_style="bold")
    table.add_column(f"by {breakdown.by}", breakdown.total.label, no_wrap=True)
    for name, total in zip(columns, chosen(breakdown.total), strict=True):
        table.add_column(name, total, justify="left" if name == "bound by" else "right", no_wrap=True)
    for line in breakdown.all:
        table.add_row(Text(tail(line.label, room), "dim" if line is breakdown.rest else ""), *map(Text, chosen(line)))
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
    used = [assumption for assumption in result.assumptions if not assumption.unused]
    for assumption in used:
        _say(console, lines.assumption_text(assumption), indent=2)
    if len(used) < len(result.assumptions):
        _say(console, f"{len(result.assumptions) - len(used)} more change nothing in this step", indent=2, style="dim")
    if result.notes:
        console.print(Text("notes", "bold"))
    for note in result.notes:
        _say(console, note, indent=2)
    _say(console, lines.provenance(result), style="dim")


def _say(console: Console, sentence: str, *, indent: int = 0, style: str = "") -> None:
    """A sentence whose further lines stand deeper than its first."""
    from rich.text import Text

    deeper = " " * (indent + 2)
    text = textwrap.fill(sentence, console.width, initial_indent=" " * indent, subsequent_indent=deeper, break_on_hyphens=False)
    console.print(Text(text, style))


def _console(console: Console | None) -> Console:
    if console is not None:
        return console
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPED_WIDTH)  # a file has no width; 80 would cut names
