"""The HTML page of one paper: its figures, below each the claims that miss, then all claims.

The frame is the report's (`report/page.html`): the page loads nothing from elsewhere and contains plotly's script once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.papers.ledger import Row, names_figure
from trainyard.papers.pages import COLUMNS, LEGEND, cells, number, paper_figure, summary
from trainyard.report.page import framed

if TYPE_CHECKING:
    from trainyard.papers.figures import Figures

EXPLAINED = ("near", "off", "open", "undefined", "contradicted", "substitute")
COLOURS = """<style>
.figures { columns: 2 540px; column-gap: 1rem } .figures figure { break-inside: avoid; margin-bottom: 1rem }
.miss { margin: .35rem 0; padding: .1rem .7rem; border-left: 4px solid var(--line); overflow-wrap: anywhere; font-size: .9rem }
.miss.near { border-color: #c98a00 } .miss.off { border-color: #c8323c }
.miss.open, .miss.undefined { border-color: #2f7fb5 }
.miss.contradicted, .miss.substitute { border-color: #8360c3 }
.ledger .scroll { max-height: none } .ledger th, .ledger td { text-align: left; vertical-align: top; white-space: normal }
.ledger td { font-size: .88rem } .ledger .claim, .ledger .paper { overflow-wrap: anywhere }
.ledger .claim { min-width: 10rem } .ledger .paper { max-width: 8rem }
.ledger .where { max-width: 11rem } .ledger .unit { max-width: 8rem } .ledger .note { min-width: 17rem }
</style>"""


def page(rows: Sequence[Row], figures: Figures) -> str:
    """One self-contained file."""
    embedded: dict[str, Any] = {}
    body = "\n".join((COLOURS, *_figures(rows, figures, embedded), *_ledger(rows)))
    title = f"{rows[0].claim.paper}: what the paper prints, and what comes out here"
    return framed(title, f"{len(rows)} claims: {summary(rows)}.", body, escape(f"trainyard {VERSION}"), embedded)


def _figures(rows: Sequence[Row], figures: Figures, embedded: dict[str, Any]) -> Iterator[str]:
    import plotly.io

    yield '<div class="figures">'
    for name, draw in figures.items():
        figure = draw()
        key = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        embedded[key] = json.loads(plotly.io.to_json(figure, engine="json"))
        caption = escape(figure.layout.meta["description"])
        yield f'<figure id="{key}"><div role="img" aria-label="{caption}" data-figure="{key}" '
        yield f'style="height:{figure.layout.height}px"></div><figcaption>{caption}</figcaption>'
        yield from (_miss(row) for row in rows if row.verdict in EXPLAINED and names_figure(row.claim, name))
        yield "</figure>"
    yield "</div>"


def _miss(row: Row) -> str:
    result = f"{row.id}: {number(row.ours)}, paper {paper_figure(row)} ({row.verdict})"
    return f'<p class="miss {row.verdict}"><b>{escape(result)}</b> {escape(f"{row.note} {row.details}".strip())}</p>'


def _ledger(rows: Sequence[Row]) -> Iterator[str]:
    yield f'<h2>All claims</h2><p class="quiet">{escape(LEGEND)}</p>'
    yield '<div class="ledger"><div class="scroll"><table class="sortable"><thead><tr>'
    yield "".join(f'<th scope="col"><button type="button">{escape(column)}</button></th>' for column in COLUMNS)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(_cell(column, text) for column, text in zip(COLUMNS, cells(row), strict=True))}</tr>"
    yield "</tbody></table></div></div>"


def _cell(column: str, text: str) -> str:
    return f'<td class="{column.replace(" ", "-")}">{escape(text)}</td>'
