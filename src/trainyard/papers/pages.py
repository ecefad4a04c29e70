"""The ledger for people: Markdown for docs/reproduction.md, and one HTML page that needs nothing beside it."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Sequence

from trainyard._version import VERSION
from trainyard.files import write_text
from trainyard.papers.bench import figures_of
from trainyard.papers.ledger import Row, Value, by_paper, counts

LEGEND = (
    "met: within 5 %, or the bound holds. near: within 15 %. off: farther. open: farther, and readings of the paper were searched "
    "jointly without one that fits; the note has their number, the best count and the nearest defensible reading. undefined: the "
    "paper does not define the quantity; the note has readings that disagree. contradicted: the paper's own figures or physics "
    "exclude it, the proof is in the note. substitute: stands in for data that cannot be had. derived: not judged: "
    "arithmetic on the paper's rows, or calibrated on them. context: a parameter, used and not met. not yet: no experiment. "
    "From printed inputs: the same experiment fed with what the paper prints of its own inputs, where it prints enough."
)
COLUMNS = ("claim", "paper", "ours", "from printed inputs", "ratio", "verdict", "unit", "where", "note")


def number(value: Value | None) -> str:
    """A figure as it is printed, lists with slashes.

    >>> number((245.0, 87.5)), number(0.12345), number(None)
    ('245 / 87.5', '0.1235', '')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " / ".join(map(number, value))
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def paper_figure(row: Row) -> str:
    """The paper's figure with its bound."""
    if row.claim.bound == "range" and isinstance(row.paper, tuple):
        return " to ".join(map(number, row.paper))
    return {"upper": "≤ ", "lower": "≥ "}.get(row.claim.bound or "", "") + number(row.paper)


def summary(rows: Iterable[Row]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(rows).items())


def cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    figures = (paper_figure(row), number(row.ours), number(row.printed))
    return (row.id, *figures, ratio, row.verdict, row.claim.unit, row.claim.where, row.note)


def write_markdown(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    write_text(path, "\n".join(_markdown(rows)) + "\n")


def _markdown(rows: Sequence[Row]) -> Iterator[str]:
    yield "# Reproduction"
    yield ""
    yield f"Written by `trainyard reproduce --markdown`, trainyard {VERSION}: {summary(rows)}."
    yield ""
    yield LEGEND
    for paper, group in by_paper(rows):
        yield ""
        yield f"## {paper}"
        yield ""
        yield f"{summary(group)}."
        yield ""
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|{'---|' * len(COLUMNS)}"
        for row in group:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells(row))} |"


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 88em; padding: 0 1em; color: #1c2430; background: #fff }
table { border-collapse: collapse; width: 100%; margin: 1em 0 2em }
th, td { text-align: left; padding: .3em .6em; vertical-align: top }
th { border-bottom: 2px solid #1c2430 }
td { border-bottom: 1px solid #dde2ea }
td:nth-child(-n+5) { font-variant-numeric: tabular-nums }
td:first-child { overflow-wrap: anywhere; min-width: 16em }
td:nth-child(7) { max-width: 9em } td:nth-child(9) { min-width: 20em }
td.verdict { font-weight: 600; white-space: nowrap }
.met, .derived { color: #0b6b3a } .near { color: #8a5a00 } .off { color: #a3161f } .open, .undefined { color: #1f5f8b }
.contradicted, .substitute { color: #5a2ca0 } .context, .not-yet, small { color: #616b7a }
"""


def write_html(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """The ledger as a page; with its figures where it is of one paper that draws them."""
    drawn = figures_of(rows)
    if drawn:
        from trainyard.papers.illustrated import page

        write_text(path, page(rows, drawn))
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
