"""Terminal tables: one result by phase and by layer, or several machines side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.ir.plan import TaskClass
from trainyard.report import assumptions, lines, savings
from trainyard.report.lines import Breakdown, Line
from trainyard.report.summaries.grid import console_of
from trainyard.report.terminal import one_line
from trainyard.units import show as quantity

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainyard.results.result import Axis, Result

NARROWEST_LABEL, WIDEST_LABEL = 16, 48
COLUMNS = ("time", "share", "busy", "energy", "DRAM", "MACs", "bound by")
LEAST_NEEDED = ("busy", "MACs", "energy", "DRAM", "bound by")
"""Columns that a narrow terminal leaves out, in this order: a number is never cut."""
NOTHING = "-"


def show(result: Result, by: Axis = "layer", top: int = 20, console: Console | None = None) -> None:
    """Prints the headline, the step by phase, the `top` groups of `by`, and what all of it rests on."""
    from rich.text import Text

    console = console_of(console)
    console.print(Text(one_line(lines.title(result)), "bold"))
    if result.about:
        _say(console, result.about, style="dim")
    for shortage in result.shortages:
        _say(console, f"warning: {shortage}", style="bold yellow")
    width = max(len(name) for name, _ in lines.facts(result))
    for name, value in lines.facts(result):
        first, *further = textwrap.wrap(value, max(console.width - width - 4, NARROWEST_LABEL), break_on_hyphens=False)
        console.print(
            Text(f"  {name:<{width}}  ").append("\n".join([first, *(f"{'':{width + 4}}{line}" for line in further)]), "bold")
        )
    if spans := assumptions.range_text(result):
        _say(console, spans, indent=2, style="dim")
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
    from rich.text import Text

    if not results:
        raise BadInput("nothing to compare: no results were given")
    console = console_of(console)
    first = results[0]
    title = f"{first.workload}, batch {first.batch}: speedup is in samples/s over {first.machine}"
    console.print(Text(one_line(title), "bold"))
    columns = compared(results)
    grid = [[column.head for column in columns], *([column.cell(result) for column in columns] for result in results)]
    by_column = [list(column) for column in zip(*grid, strict=True)]
    if sum(map(_width, by_column)) <= console.width:
        _print_grid(console, grid)
    else:  # too wide with a row for each machine: a column for each, as many beside each other as there is room for
        for machines in beside_each_other(grid[0], grid[1:], console.width):
            _print_grid(console, [list(row) for row in zip(grid[0], *machines, strict=True)])
    for reason in lines.slower(results):
        _say(console, f"why: {reason}")
    for warning in lines.differences(results):
        _say(console, f"warning: {warning}", style="yellow")
    for result in results:
        sentences = (result.about, assumptions.range_text(result), lines.provenance(result))
        _say(console, f"{result.machine}: {'; '.join(filter(None, sentences))}", style="dim")


def _width(cells: Sequence[str]) -> int:
    """What a column takes, its padding included."""
    return max(map(len, cells)) + 2


def _longest_word(cells: Sequence[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split())


def beside_each_other(heads: Sequence[str], machines: Sequence[Sequence[str]], width: int) -> list[list[Sequence[str]]]:
    """The machines in groups whose columns fit beside the heads without a broken word; one that is too wide stands alone.

    >>> beside_each_other(["time"], [["1.5 ms"], ["2 ms"], ["3 ms"]], 16)
    [[['1.5 ms'], ['2 ms']], [['3 ms']]]
    """
    room = width - _longest_word(heads) - 2
    taken, groups = room, list[list[Sequence[str]]]()
    for machine in machines:
        if taken + _longest_word(machine) + 2 > room:
            groups.append([])
            taken = 0
        groups[-1].append(machine)
        taken += _longest_word(machine) + 2
    return groups


def shared_room(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column: its longest word, and of what is left an equal part up to what its longest cell needs.

    >>> shared_room([["time", "host memory"], ["1.5 ms (1-2)", "2 GB"]], 24)
    [11, 9]
    """
    needed = [_width(column) - 2 for column in columns]
    widths = [_longest_word(column) for column in columns]
    left = width - 2 * len(columns) - sum(widths)
    while left > 0 and widths != needed:
        for number, need in enumerate(needed):
            if widths[number] < need and left > 0:
                widths[number], left = widths[number] + 1, left - 1
    return widths


def _print_grid(console: Console, grid: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="bold")
    columns = list(zip(*grid, strict=True))
    for number, (column, width) in enumerate(zip(columns, shared_room(columns, console.width), strict=True)):
        table.add_column(Text(column[0]), justify="left" if number == 0 else "right", overflow="fold", width=width)
    for row in grid[1:]:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console.print(table)


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
        Column("energy x delay", _energy_delay,                                       lambda r: r.energy_delay_js),
        Column("DRAM traffic",   lambda r: quantity(lines.dram_bytes(r), "B"),        lines.dram_bytes),
        Column("paged",          lambda r: _some(lines.paged_bytes(r), "B"),          lines.paged_bytes),
        Column("host memory",    lambda r: _some(lines.host_bytes_per_s(r), "B/s"),   lines.host_bytes_per_s),
        Column("memory",         memory_text,                                             _memory_share),
        Column("peak",           lambda r: quantity(r.peaks.macs_per_s, "MAC/s"),     lambda r: r.peaks.macs_per_s),
        Column("DRAM bandwidth", lambda r: quantity(r.peaks.dram_bytes_per_s, "B/s"), lambda r: r.peaks.dram_bytes_per_s),
        Column("technology",     lambda r: r.peaks.technology or "not said"),
        Column("area",           lambda r: _some(r.area_m2 or 0.0, "m2"),             lambda r: r.area_m2 or 0.0),
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


def _energy_delay(result: Result) -> str:
    return quantity(result.energy_delay_js, "J s") if result.columns.energy else NOTHING


def memory_text(result: Result) -> str:
    pool = lines.fullest(result)
    return NOTHING if pool is None else lines.held_text(pool)


def _memory_share(result: Result) -> float:
    return result.memory_share or 0.0


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
    label = one_line(label)
    return label if len(label) <= width else f"…{label[1 - width :]}"


def _closing(result: Result, console: Console) -> None:
    from rich.text import Text

    if result.assumptions:
        console.print(Text("assumptions", "bold"))
    shown, others = assumptions.that_matter(result)
    for assumption in shown:
        _say(console, assumptions.short_text(assumption), indent=2)
    if others:
        _say(console, f"not shown: {others}; trainyard whatif weighs each", indent=2, style="dim")
    notes = [note for note in result.notes if note not in result.shortages]  # those stand in front
    if notes:
        console.print(Text("notes", "bold"))
    for note in notes:
        _say(console, note, indent=2)
    _say(console, lines.provenance(result), style="dim")


def _say(console: Console, sentence: str, *, indent: int = 0, style: str = "") -> None:
    """A sentence whose further lines stand deeper than its first."""
    from rich.text import Text

    deeper = " " * (indent + 2)
    text = textwrap.fill(sentence, console.width, initial_indent=" " * indent, subsequent_indent=deeper, break_on_hyphens=False)
    console.print(Text(text, style))
