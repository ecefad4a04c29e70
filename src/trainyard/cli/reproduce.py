"""`reproduce`: the ledger of the papers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.cli.options import Html, Json, writable
from trainyard.report.terminal import progress, say, write_json

if TYPE_CHECKING:
    from trainyard.papers.ledger import Row


def reproduce(
    paper: Annotated[str | None, typer.Argument(help="One paper; all by default.", show_default=False)] = None,
    figure: Annotated[str | None, typer.Option(help="One figure or table of it: 12, 12a, 'Table II'.")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Run every experiment, also those whose result is cached.")] = False,
    context: Annotated[bool, typer.Option("--context", help="Show the papers' parameters in the table too.")] = False,
    json_path: Json = None,
    html: Html = None,
    markdown: Annotated[str | None, typer.Option(callback=writable, help="Write the ledger as Markdown.")] = None,
) -> None:
    """Hold the papers' figures against ours.

    What a paper prints, what a simulation here gives, their ratio and a verdict. What the very same program has measured before
    is cached and not run again. Pages are written where --html and --markdown say, nowhere else.
    """
    from trainyard.papers import experiment_cache, pages, tables

    with progress("claims") as on_progress:
        rows = experiment_cache.walk(paper, figure, on_progress, anew=anew)
    for path, write in ((html, pages.write_html), (markdown, pages.write_markdown)):
        if path is not None:
            write(rows, path)
            say(f"wrote {path}")
    if json_path is not None:
        write_json([row.as_dict() for row in rows], json_path)
    if json_path != "-":
        tables.show_rows(rows, context=context)
    _end_if_failed(rows)


def _end_if_failed(rows: Iterable[Row]) -> None:
    if failed := [row.id for row in rows if row.failed]:
        say(f"{len(failed)} experiments failed: {', '.join(failed)}")
        raise typer.Exit(1)
