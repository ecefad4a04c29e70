"""The gain of `reuse="layers"`, layer by layer: what tensors that stay on chip save, as a table for the terminal and the page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trainyard.report.lines import NOBODY, percent
from trainyard.results.result import Result
from trainyard.results.savings import Saving, slices_by_layer, sum_of
from trainyard.units import show

if TYPE_CHECKING:
    from rich.table import Table

HEADS = ("time saved", "of its time", "DRAM saved", "of its DRAM", "energy saved")
SLICED = "slices of"


def summary(result: Result) -> str:
    """One sentence on the whole step; nothing where no tensor stays between layers."""
    if result.without_reuse is None:
        return ""
    total = sum_of(result.saved())
    cuts = [cut for phases in slices_by_layer(result).values() for cut in phases.values()]
    rows = sum("rows" in cut for cut in cuts)
    sliced = f"; {len(cuts)} works run in slices, {rows} of them in bands of rows" if cuts else ""
    return (
        f"kept on chip between layers: {show(total.time_s, 's')} ({percent(total.time_share)}) and "
        f"{show(total.dram_bytes, 'B')} of DRAM traffic ({percent(total.dram_share)}) less than with reuse=step{sliced}"
    )


def cuts_of(result: Result) -> dict[str, str]:
    """What the slices of each layer are cut along, in short."""
    found = {}
    for layer, phases in slices_by_layer(result).items():
        kinds = {"rows" if "rows" in cut else "batch": cut for cut in phases.values()}
        found[layer or NOBODY["layer"]] = ", ".join(sorted(kinds))
    return found


def rows(result: Result, top: int | None = None) -> list[tuple[str, Saving]]:
    """The layers that save or lose anything, the most time first, then what all others do, and the sum."""
    saved = result.saved()
    moving = sorted(
        ((name, one) for name, one in saved.items() if one.time_s or one.dram_bytes),
        key=lambda row: (-row[1].time_s, -row[1].dram_bytes, row[0]),
    )
    listed, rest = moving[:top], dict(moving[top:] if top is not None else ())
    others = [(f"{len(rest)} more", sum_of(rest))] if rest else []
    return [*((name or NOBODY["layer"], one) for name, one in listed), *others, ("step", sum_of(saved))]


def cells(saved: Saving) -> list[str]:
    return [
        show(saved.time_s, "s"),
        percent(saved.time_share),
        show(saved.dram_bytes, "B"),
        percent(saved.dram_share),
        show(saved.energy_j, "J"),
    ]


def table(result: Result, top: int, label_width: int) -> Table:
    """For the terminal."""
    from rich.table import Table
    from rich.text import Text

    from trainyard.report.tables import tail

    *listed, (label, total) = rows(result, top)
    drawn = Table(box=None, padding=(0, 1), header_style="bold", show_footer=True, footer_style="bold")
    cuts = cuts_of(result)
    drawn.add_column("saved by layer", label, no_wrap=True)
    for head, cell in zip(HEADS, cells(total), strict=True):
        drawn.add_column(head, cell, justify="right", no_wrap=True)
    if cuts:
        drawn.add_column(SLICED, no_wrap=True)
    for name, saved in listed:
        drawn.add_row(Text(tail(name, label_width)), *map(Text, (*cells(saved), *([cuts.get(name, "")] if cuts else []))))
    return drawn


def section(result: Result, most: int) -> list[str]:
    """For the page."""
    if result.without_reuse is None:
        return []
    heads = "".join(f'<th scope="col" data-kind="number"><button type="button">{head}</button></th>' for head in HEADS)
    *listed, total = rows(result, most)
    cuts = cuts_of(result)
    sliced = f'<th scope="col" class="text"><button type="button">{SLICED}</button></th>' if cuts else ""
    return [
        "<h3>Kept on chip between layers</h3>",
        f"<p>{escape(summary(result))}.</p>",
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of savings"><table class="sortable">',
        "<caption>What each layer needs less than with all tensors read from and written to DRAM; below zero: it needs more, "
        "because its tiles have less room.</caption>",
        f'<thead><tr><th scope="col" class="text"><button type="button">layer</button></th>{heads}{sliced}</tr></thead>',
        "<tbody>",
        *(_row(name, saved, cuts.get(name, "") if cuts else None) for name, saved in listed),
        "</tbody><tfoot>",
        _row(*total, "" if cuts else None),
        "</tfoot></table></div>",
    ]


def _row(name: str, saved: Saving, cut: str | None) -> str:
    values = (saved.time_s, saved.time_share, saved.dram_bytes, saved.dram_share, saved.energy_j)
    middle = "".join(f'<td data-value="{value!r}">{escape(text)}</td>' for value, text in zip(values, cells(saved), strict=True))
    last = "" if cut is None else f'<td class="text">{escape(cut)}</td>'
    return f'<tr><th scope="row">{escape(name)}</th>{middle}{last}</tr>'
