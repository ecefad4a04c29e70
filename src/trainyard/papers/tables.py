"""The ledger on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.papers.ledger import Row, by_paper, number, paper_figure
from trainyard.papers.pages import summary
from trainyard.report.terminal import new_console, table_of

SHORT = 6  # signs of a unit that fits beside its number

# fmt: off
COLOURS = {
    "met": "green", "derived": "green", "near": "yellow", "off": "red", "contradicted": "magenta", "substitute": "magenta",
    "open": "cyan", "undefined": "cyan", "context": "dim", "not yet": "dim",
}
# fmt: on


def short_unit(unit: str) -> str:
    """The unit alone, without what it is of.

    >>> short_unit("x (mean over accelerators)"), short_unit("% of training time"), short_unit("s per epoch (PIM-Opt, DIRECT, GPU)")
    ('x', '%', 's')
    """
    word = unit.partition(" ")[0]
    return word if len(word) <= SHORT else ""


def show_rows(rows: Sequence[Row], *, context: bool = False) -> None:
    """Paper, ours, ratio and verdict of each claim; the papers' parameters only on request."""
    from rich.text import Text

    console = new_console()
    for paper, group in by_paper(rows):
        console.print(Text(f"{paper}: {summary(group)}", "bold"))
        shown = [row for row in group if context or row.verdict != "context"]
        second = any(row.printed is not None for row in shown)
        third = any(row.gates is not None for row in shown)
        more = [*(["from printed inputs"] if second else []), *(["from gates"] if third else [])]
        table = table_of("claim", "paper", "ours", *more, "ratio", "verdict")
        for row in shown:
            ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
            figure = f"{paper_figure(row)} {short_unit(row.claim.unit)}".strip()
            further = [*([number(row.printed)] if second else []), *([number(row.gates)] if third else [])]
            texts = (row.id.partition(".")[2], figure, number(row.ours), *further, ratio)
            table.add_row(*map(Text, texts), Text(row.verdict, COLOURS[row.verdict]))
        console.print(table)
        for row in shown:
            if row.note and row.verdict not in ("not yet", "context"):
                console.print(Text(f"  {row.id.partition('.')[2]}: ").append(row.note, "dim"), soft_wrap=True)
    console.print(Text(f"{len(rows)} claims: {summary(rows)}", "bold"))
