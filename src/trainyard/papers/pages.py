"""The ledger for people: Markdown for docs/reproduction.md, and one HTML page that needs nothing beside it."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainyard._version import VERSION
from trainyard.files import write_text
from trainyard.papers import bench
from trainyard.papers.bench import figures_of
from trainyard.papers.changes import Change, moved
from trainyard.papers.headlines import (
    TABLE_HEAD,
    Opening,
    figure_sentence,
    headline_sentences,
    hinge_sentences,
    hinges_lead,
    table_rows,
)
from trainyard.papers.ledger import Row, by_paper, counts, number, paper_figure

LEGEND = (
    "met: within 5 %, or the bound holds. near: within 15 %. off: farther. open: farther, and readings of the paper were searched "
    "jointly without one that fits; the note has their number, the best count and the nearest defensible reading. undefined: the "
    "paper does not define the quantity; the note has readings that disagree. contradicted: the paper's own figures or physics "
    "exclude it, the proof is in the note. substitute: stands in for data that cannot be had. derived: not judged: "
    "arithmetic on the paper's rows, or calibrated on them. context: a parameter, used and not met. not yet: no experiment. "
    "From printed inputs: the same experiment fed with what the paper prints of its own inputs, where it prints enough. "
    "From gates: synthesis of our own circuits to an open cell library; a row on which our tables are calibrated is judged by it."
)
HEADLINES = "The headlines of the papers. What each one hinges on stands first in its paper's section."
CHANGED = "Changed after results had been seen"
CHANGED_TEXT = (
    "What was changed when results were known, on which argument, and every claim that it moved; those that moved away from the "
    "paper's figure come first."
)
CHANGE_HEAD = ("what", "was", "is", "argument", "picked how", "what got worse beside the claims")
MOVED_HEAD = ("by the change of", "claim", "paper", "before", "now", "moved", "verdict now")
COLUMNS = ("claim", "paper", "ours", "from printed inputs", "from gates", "ratio", "verdict", "unit", "where", "note")


def summary(rows: Iterable[Row]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(rows).items())


def cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    figures = (paper_figure(row), number(row.ours), number(row.printed), number(row.gates))
    return (row.id, *figures, ratio, row.verdict, row.claim.unit, row.claim.where, row.note)


def write_markdown(rows: Sequence[Row], path: str | os.PathLike[str], openings: Sequence[Opening] = ()) -> None:
    """The ledger as Markdown; the picture of a paper's main figure is linked where its file lies beside the page."""
    write_text(path, "\n".join(_markdown(rows, openings, Path(path).parent)) + "\n")


def _markdown(rows: Sequence[Row], openings: Sequence[Opening], folder: Path) -> Iterator[str]:
    yield "# Reproduction\n"
    yield f"Written by `trainyard reproduce --markdown`, trainyard {VERSION}: {summary(rows)}.\n"
    if openings:
        yield f"{HEADLINES}\n\n{markdown_table(TABLE_HEAD, table_rows(openings))}"
    yield LEGEND
    first = {opening.paper: opening for opening in openings}
    for paper, group in by_paper(rows):
        yield f"\n## {paper}\n"
        if paper in first:
            yield from _opening(first[paper], folder)
        yield f"### All claims\n\n{summary(group)}.\n"
        yield markdown_table(COLUMNS, map(cells, group)).rstrip()
        yield from _changes(paper, group)


def _opening(opening: Opening, folder: Path) -> Iterator[str]:
    """One screen: headlines with their verdicts, what the first of them hinges on, the paper's main figure."""
    headline = opening.headline
    yield "\n\n".join(headline_sentences(opening)) + "\n"
    yield f"{hinges_lead(opening)}\n"
    yield "\n".join(f"{place}. {sentence}" for place, sentence in enumerate(hinge_sentences(opening), 1)) + "\n"
    if (folder / headline.picture).exists():
        yield f"![{headline.figure}: {headline.shows}]({headline.picture})\n"
    yield f"{figure_sentence(opening)}\n"


def _changes(paper: str, rows: Sequence[Row]) -> Iterator[str]:
    tables = change_tables(paper, rows)
    if tables:
        yield f"\n### {CHANGED}\n\n{CHANGED_TEXT}"
    for head, lines in tables:
        yield f"\n{markdown_table(head, lines)}".rstrip()


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and stars are no marks.

    >>> markdown_table(("a", "b"), [("1", "x|y")])
    '| a | b |\\n|---|---|\\n| 1 | x\\\\|y |\\n'
    """
    bodies = (" | ".join(text.replace("|", "\\|").replace("*", "\\*") for text in line) for line in lines)
    return "\n".join((f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {body} |" for body in bodies))) + "\n"


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The head and the lines."""


def change_tables(paper: str, rows: Sequence[Row]) -> list[Table]:
    """What was changed after results had been seen, and every claim among the rows that a change moved; nothing where none was."""
    listed = bench.changes(paper)
    if not listed:
        return []
    tables: list[Table] = [(CHANGE_HEAD, [(one.what, one.was, one.now, one.argument, _picked(one), one.worse) for one in listed])]
    effects: list[tuple[str, ...]] = [
        (one.what, each.row.id + ", from printed inputs" * (one.column == "printed"), paper_figure(each.row),
         number(each.before), number(each.now), "worse" if each.farther else "nearer", each.row.verdict)
        for one in listed
        for each in moved(one, rows)
    ]  # fmt: skip
    return [*tables, (MOVED_HEAD, effects)] if effects else tables


def _picked(change: Change) -> str:
    if change.target_in_sight:
        return f"with the printed figure in sight, out of {change.tried}"
    return "by the argument" if change.tried == 1 else f"by the argument, out of {change.tried}"


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 88em; padding: 0 1em; color: #1c2430; background: #fff }
table { border-collapse: collapse; width: 100%; margin: 1em 0 2em }
th, td { text-align: left; padding: .3em .6em; vertical-align: top }
th { border-bottom: 2px solid #1c2430 }
td { border-bottom: 1px solid #dde2ea }
td:nth-child(-n+6) { font-variant-numeric: tabular-nums }
td:first-child { overflow-wrap: anywhere; min-width: 16em }
td:nth-child(8) { max-width: 9em } td:nth-child(10) { min-width: 20em }
td.verdict { font-weight: 600; white-space: nowrap }
.met, .derived { color: #0b6b3a } .near { color: #8a5a00 } .off { color: #a3161f } .open, .undefined { color: #1f5f8b }
.contradicted, .substitute { color: #5a2ca0 } .context, .not-yet, small { color: #616b7a }
"""


def write_html(rows: Sequence[Row], path: str | os.PathLike[str], openings: Sequence[Opening] = ()) -> None:
    """The ledger as a page: of one paper with its figures, of several with their main figures where there are openings."""
    drawn = figures_of(rows)
    if drawn or openings:
        from trainyard.papers import illustrated

        write_text(path, illustrated.page(rows, drawn, openings) if drawn else illustrated.overview(rows, openings))
    else:
        write_text(path, "\n".join(_html(rows)) + "\n")


def _html(rows: Sequence[Row]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Trainyard: reproduction</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{STYLE}</style></head><body><h1>Reproduction</h1>"
    yield f"<p>{html.escape(summary(rows))}. <small>trainyard {VERSION}</small></p><p><small>{html.escape(LEGEND)}</small></p>"
    for paper, group in by_paper(rows):
        yield f"<h2>{html.escape(paper)}</h2><p>{html.escape(summary(group))}</p>"
        yield f"<table><thead><tr>{''.join(f'<th>{column}</th>' for column in COLUMNS)}</tr></thead><tbody>"
        for row in group:
            yield f"<tr>{''.join(_cell(column, text) for column, text in zip(COLUMNS, cells(row), strict=True))}</tr>"
        yield "</tbody></table>"
    yield "</body></html>"


def _cell(column: str, text: str) -> str:
    kind = f' class="verdict {text.replace(" ", "-")}"' if column == "verdict" else ""
    return f"<td{kind}>{html.escape(text)}</td>"
