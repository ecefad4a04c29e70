"""`reproduce`: the ledger of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.faults import INTERRUPTED
from trainyard.cli.options import Html, Json, makeable, writable
from trainyard.errors import BadInput
from trainyard.report.terminal import progress, say, write_json


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="One paper, or one claim: igo, igo.small.all; all by default.", show_default=False)
    ] = None,
    figure: Annotated[str | None, typer.Option(help="One figure or table of it: 12, 12a, 'Table II'.")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Run every experiment, also those whose result is cached.")] = False,
    verdict: Annotated[str | None, typer.Option(help="Show these verdicts alone: off, or open,undefined.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Search readings of what a paper leaves open, instead.")] = False,
    store: Annotated[str | None, typer.Option(callback=makeable, help="Folder of that search; PAPER-search by default.")] = None,
    context: Annotated[bool, typer.Option("--context", help="Show the papers' parameters in the table too.")] = False,
    json_path: Json = None,
    html: Html = None,
    markdown: Annotated[str | None, typer.Option(callback=writable, help="Write the ledger as Markdown.")] = None,
) -> None:
    """Hold the papers' figures against ours.

    What a paper prints, what a simulation here gives, their ratio and a verdict. What the very same program has measured before
    is cached and not run again. Pages are written where --html and --markdown say, nowhere else. With --search, readings of what a
    paper leaves open are tried jointly; its folder has the result and a page, and a search that was interrupted goes on.
    """
    from trainyard.papers import experiment_cache, ledger, pages, tables

    ledger.select(paper, figure)
    if search:
        _search(paper, store)
        return
    ledger.with_verdicts((), verdict or "")  # a misspelt name is refused before any experiment runs
    if not anew and (outdated := experiment_cache.outdated(paper)):
        say(outdated)
    with progress("claims") as on_progress:
        rows = experiment_cache.walk(paper, figure, on_progress, anew=anew)
    failed = [row.id for row in rows if row.failed]
    if verdict is not None:
        rows = ledger.with_verdicts(rows, verdict)
    if html is not None or markdown is not None:
        with progress("headlines") as on_progress:
            openings = experiment_cache.openings(rows, on_progress, anew=anew)
        for path, write in ((html, pages.write_html), (markdown, pages.write_markdown)):
            if path is not None:
                write(rows, path, openings)
                say(f"wrote {path}")
    if json_path is not None:
        write_json([row.as_dict() for row in rows], json_path)
    if json_path != "-":
        tables.show_rows(rows, context=context or verdict is not None)
    if failed:
        say(f"{len(failed)} experiments failed: {', '.join(failed)}")
        raise typer.Exit(1)


def _search(paper: str | None, store: str | None) -> None:
    from trainyard.papers import bench

    if paper is None or paper not in bench.PAPERS:
        raise BadInput("--search is of one paper: trainyard reproduce igo --search")
    folder = Path(store or f"{paper}-search")
    try:
        with progress("walks", at_once=True) as on_progress:
            found = bench.search(paper, folder, on_progress)
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is in {folder}: the same command goes on")
        raise typer.Exit(INTERRUPTED) from None
    say(found)
    say(f"wrote {folder}")
