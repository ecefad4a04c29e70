"""A plain table on the terminal: texts, then numbers. A narrow terminal leaves columns out and cuts no number."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from trainyard.report.terminal import new_console, one_line

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 120
PADDING = 2


def console_of(console: Console | None = None) -> Console:
    """The console of a command; a file has no width of its own, and 80 columns would cut names."""
    if console is not None:
        return console
    own = new_console()
    return own if own.is_terminal else new_console(width=PIPED_WIDTH)


def print_grid(
    console: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    texts: int = 1,
    total: bool = False,
    least_needed: Sequence[str] = (),
) -> list[str]:
    """Prints rows below their heads, the first `texts` columns to the left; the last row may be a total.

    Columns of `least_needed` are left out, in this order, until the others have room; returns those that were.
    """
    from rich.table import Table
    from rich.text import Text

    widths = {head: max(len(head), *(len(row[place]) for row in rows)) + PADDING for place, head in enumerate(heads)}
    left_out: list[str] = []
    for head in least_needed:
        if sum(widths.values()) > console.width:
            del widths[head]
            left_out.append(head)
    table = Table(box=None, padding=(0, 1), header_style="bold", footer_style="bold", show_footer=total)
    shown = [place for place, head in enumerate(heads) if head in widths]
    for place in shown:
        footer = Text(rows[-1][place]) if total else Text("")
        left = place < texts
        table.add_column(
            Text(heads[place]), footer=footer, justify="left" if left else "right", overflow="fold", no_wrap=not left
        )  # fmt: skip
    for row in rows[: len(rows) - total]:
        table.add_row(*(Text(one_line(row[place])) for place in shown))
    console.print(table)
    return left_out


def html_grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a table for a notebook."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
