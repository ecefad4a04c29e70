"""The HTML page of one paper: its figures, below each the claims that miss, then all claims. And the page of several papers.

The frame is the report's (`report/page.html`): the page loads nothing from elsewhere and contains plotly's script once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.papers.headlines import TABLE_HEAD, Opening, headline_sentences, hinge_sentences, hinges_lead, table_rows
from trainyard.papers.ledger import Row, by_paper, names_figure, number, paper_figure
from trainyard.papers.pages import CHANGED, CHANGED_TEXT, COLUMNS, HEADLINES, LEGEND, cells, change_tables, summary
from trainyard.report.page import framed

if TYPE_CHECKING:
    from trainyard.papers.figures import Figures

EXPLAINED = ("near", "off", "open", "undefined", "contradicted", "substitute")
COLOURS = """<style>
.figures { columns: 2 540px; column-gap: 1rem } .figures figure { break-inside: avoid; margin-bottom: 1rem }
.miss { margin: .35rem 0; padding: .1rem .7rem; border-left: 4px solid var(--line); overflow-wrap: anywhere; font-size: .9rem }
.miss.near { border-color: var(--warn) } .miss.off { border-color: var(--error) }
.miss.open, .miss.undefined { border-color: var(--accent) }
.miss.contradicted, .miss.substitute { border-color: var(--own) }
.ledger .scroll { max-height: none } .ledger th, .ledger td { text-align: left; vertical-align: top; white-space: normal }
.ledger td { font-size: .88rem; min-width: 3.4rem }
.ledger .claim { overflow-wrap: anywhere; min-width: 13rem } .ledger .paper { overflow-wrap: break-word; max-width: 8rem }
.opening { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.2rem; align-items: start }
.first p { margin: .4rem 0 } .first ol { padding-left: 1.3rem } .first li { margin: .4rem 0 }
.ledger td.verdict, .ledger td.verdict-now { font-weight: 600; white-space: nowrap }
.ledger td.met { color: var(--good) } .ledger td.near { color: var(--warn) } .ledger td.off { color: var(--error) }
.ledger td.open, .ledger td.undefined { color: var(--accent) } .ledger td.contradicted, .ledger td.substitute { color: var(--own) }
.ledger .where { max-width: 11rem } .ledger .unit { max-width: 8rem } .ledger .note { min-width: 17rem }
@media (max-width: 600px) { .ledger .claim { min-width: 9rem } }
</style>"""


def page(rows: Sequence[Row], figures: Figures, openings: Sequence[Opening] = ()) -> str:
    """One self-contained file of one paper, with all its figures."""
    embedded: dict[str, Any] = {}
    drawn = "\n".join(_figures(rows, figures, embedded))
    parts = (COLOURS, *map(_sentences, openings), drawn, "<h2>All claims</h2>", _legend(), *_ledger(rows), *_changes(rows))
    title = f"{rows[0].claim.paper}: what the paper prints, and what comes out here"
    return framed(title, f"{len(rows)} claims: {summary(rows)}.", "\n".join(parts), escape(f"trainyard {VERSION}"), embedded)


def overview(rows: Sequence[Row], openings: Sequence[Opening]) -> str:
    """One self-contained file of several papers: of each its opening with the main figure, then its claims."""
    embedded: dict[str, Any] = {}
    first = {opening.paper: opening for opening in openings}
    parts = [COLOURS, f"<p>{escape(HEADLINES)}</p>", *_table(TABLE_HEAD, map(_unlinked, table_rows(openings))), _legend()]
    for paper, group in by_paper(rows):
        parts.append(f'<h2 id="{escape(paper)}">{escape(paper)}</h2>')
        if paper in first:
            opening = first[paper]
            drawn = _figure(f"{paper}-main", opening.figure, embedded)
            parts += ['<div class="opening">', _sentences(opening), f"<figure>{drawn}</figure>", "</div>"]
        parts += [f'<p class="quiet">{escape(summary(group))}.</p>', *_ledger(group), *_changes(group)]
    title, footer = "What five papers print, and what comes out here", escape(f"trainyard {VERSION}")
    return framed(title, f"{len(rows)} claims: {summary(rows)}.", "\n".join(parts), footer, embedded)


def _sentences(opening: Opening) -> str:
    told = "".join(f"<p>{_marked(sentence)}</p>" for sentence in headline_sentences(opening))
    hinges = "".join(f"<li>{_marked(sentence)}</li>" for sentence in hinge_sentences(opening))
    return f'<div class="first">{told}<p>{_marked(hinges_lead(opening))}</p><ol>{hinges}</ol></div>'


def _marked(text: str) -> str:
    """Markdown's code and links as HTML; a link that leads to a page of the manual is its text alone."""
    without_links = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(without_links))


def _unlinked(line: Sequence[str]) -> list[str]:
    return [text.strip("`") if text.startswith("`") else re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text) for text in line]


def _figures(rows: Sequence[Row], figures: Figures, embedded: dict[str, Any]) -> Iterator[str]:
    import plotly.io

    yield '<div class="figures">'
    for name, draw in figures.items():
        key = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        yield f'<figure id="{key}">{_figure(key, json.loads(plotly.io.to_json(draw(), engine="json")), embedded)}'
        yield from (_miss(row) for row in rows if row.verdict in EXPLAINED and names_figure(row.claim, name))
        yield "</figure>"
    yield "</div>"


def _figure(key: str, figure: Mapping[str, Any], embedded: dict[str, Any]) -> str:
    """The place of a figure in the page, which the page's script fills, and its caption."""
    embedded[key] = figure
    caption = escape(figure["layout"]["meta"]["description"])
    place = f'<div role="img" aria-label="{caption}" data-figure="{key}" style="height:{figure["layout"]["height"]}px"></div>'
    return f"{place}<figcaption>{caption}</figcaption>"


def _miss(row: Row) -> str:
    result = f"{row.id}: {number(row.ours)}, paper {paper_figure(row)} ({row.verdict})"
    return f'<p class="miss {row.verdict}"><b>{escape(result)}</b> {escape(f"{row.note} {row.details}".strip())}</p>'


def _legend() -> str:
    return f'<p class="quiet">{escape(LEGEND)}</p>'


def _ledger(rows: Sequence[Row]) -> Iterator[str]:
    return _table(COLUMNS, map(cells, rows), sortable=True)


def _changes(rows: Sequence[Row]) -> Iterator[str]:
    tables = change_tables(rows[0].claim.paper, rows)
    if tables:
        yield f"<h3>{CHANGED}</h3><p>{escape(CHANGED_TEXT)}</p>"
    for head, lines in tables:
        yield from _table(head, lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], *, sortable: bool = False) -> Iterator[str]:
    frame = ('<table class="sortable">', '<button type="button">', "</button>") if sortable else ("<table>", "", "")
    yield f'<div class="ledger"><div class="scroll" tabindex="0" role="region" aria-label="Ledger">{frame[0]}<thead><tr>'
    yield "".join(f'<th scope="col">{frame[1]}{escape(column)}{frame[2]}</th>' for column in head)
    yield "</tr></thead><tbody>"
    for line in lines:
        yield f"<tr>{''.join(_cell(column, text) for column, text in zip(head, line, strict=True))}</tr>"
    yield "</tbody></table></div></div>"


def _cell(column: str, text: str) -> str:
    kind = text.replace(" ", "-") if column.startswith("verdict") else ""
    return f'<td class="{" ".join(filter(None, (column.replace(" ", "-"), kind)))}">{_marked(text)}</td>'
