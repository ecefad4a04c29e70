"""One HTML file that needs nothing else: cards, sortable tables, plots, assumptions, provenance. And a small table for notebooks.

The frame of the page (style, script) is `page.html` beside this file; plotly's script is put in once, whatever the number of plots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from trainyard._version import VERSION
from trainyard.errors import BadInput
from trainyard.files import write_text
from trainyard.report import lines, nodes, plots, savings, tables
from trainyard.report.lines import Breakdown, Line
from trainyard.report.mapping import loop_nests
from trainyard.results.result import Result

MOST_LAYERS = 500
BROAD = ("time_by_layer", "timeline", "memory_over_time")
HEADS = ("time", "share", "busy", "energy", "DRAM", "MACs")
TOTAL_NOTE = "Time is exposed time and sums to the step; busy counts every resource and may exceed it."


def write(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """One page for one result or for several beside each other."""
    write_text(path, page(results))


def page(results: Sequence[Result]) -> str:
    if not results:
        raise BadInput("nothing to write: no results were given")
    first = results[0]
    figures: dict[str, Any] = {}
    if len(results) == 1:
        title, subtitle = lines.title(first), "What one training step costs on this machine."
        body = _result(first, "r0", figures)
    else:
        title = f"{first.workload} on {len(results)} machines"
        subtitle = ", ".join(result.machine for result in results)
        body = _comparison(results, figures)
        for number, result in enumerate(results):
            opened = " open" if number == 0 else ""
            heading = f"<summary><h2>{escape(lines.title(result))}</h2></summary>"
            body += f'<details class="result"{opened}>{heading}\n{_result(result, f"r{number}", figures)}</details>\n'
    footer = "<br>".join(escape(f"{result.machine}: {lines.provenance(result)}") for result in results)
    return framed(title, subtitle, body, footer, figures)


def framed(title: str, subtitle: str, body: str, footer: str, figures: Mapping[str, Any]) -> str:
    """A page of the house that needs nothing beside it; `body` and `footer` are HTML, `figures` plotly's JSON by name."""
    from plotly.offline import get_plotlyjs

    folder = files("trainyard.report")
    template, style, fitting = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "shared.css", "fitting.js")
    )
    return Template(template).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        version=escape(VERSION),
        body=body,
        footer=footer,
        style=style,
        fitting=fitting,
        plotly=get_plotlyjs(),
        figures=_script_json(figures),
    )


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _result(result: Result, name: str, figures: dict[str, Any]) -> str:
    parts = [
        '<dl class="cards">',
        *(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in lines.facts(result)),
        "</dl>",
        *(f'<p class="warning">{escape(note)}</p>' for note in result.notes),
        *_node(result, name, figures),
        "<h3>By phase</h3>",
        _table(lines.breakdown(result, "phase"), bool(result.columns.energy)),
        "<h3>By layer</h3>",
        _table(lines.breakdown(result, "layer", MOST_LAYERS), bool(result.columns.energy)),
        *savings.section(result, MOST_LAYERS),
        *loop_nests.table(result),
        "<h3>Plots</h3>",
        '<div class="plots">',
        *(
            plot_place(plot(result), f"{name}-{plot.__name__}", figures, broad=plot.__name__ in BROAD)
            for plot in plots.informative(result)
        ),
        "</div>",
        "<h3>Assumptions</h3>",
        _assumptions(result),
        "<h3>Provenance</h3>",
        f"<p>{escape(lines.provenance(result))}</p>",
        f"<details><summary>Machine config</summary><pre>{escape(_config(result))}</pre></details>",
    ]
    return "\n".join(parts) + "\n"


def _config(result: Result) -> str:
    return json.dumps(dict(result.config), indent=2, ensure_ascii=False, default=str)


def _node(result: Result, name: str, figures: dict[str, Any]) -> list[str]:
    """The machine's link graph, drawn, and beside it what its streams wait for; nothing for a machine without a graph."""
    if nodes.graph(result.on) is None:
        return []
    plots_html = [plot_place(plot(result), f"{name}-{plot.__name__}", figures, broad=False) for plot in plots.of_node(result)]
    try:
        drawn, caption = nodes.drawing(result.on, result.machine)
    except BadInput as reason:  # too large
        return ["<h3>Node</h3>", f'<p class="quiet">{escape(str(reason))}</p>', '<div class="plots">', *plots_html, "</div>"]
    graph = f'<figure class="graph">{drawn}<figcaption>{escape(caption)}</figcaption></figure>'
    return ["<h3>Node</h3>", '<div class="plots">', graph, *plots_html, "</div>"]


def plot_place(figure: Any, name: str, figures: dict[str, Any], *, broad: bool) -> str:
    """A figure of a page with its description; its data go into `figures`."""
    described = escape(figure.layout.meta["description"])
    broadly = ' class="broad"' if broad else ""
    return f"<figure{broadly}>{place_of(figure, name, figures)}<figcaption>{described}</figcaption></figure>"


def place_of(figure: Any, name: str, figures: dict[str, Any], *, style: str = "") -> str:
    """The element that the page's script draws a figure in."""
    import plotly.io

    figures[name] = json.loads(plotly.io.to_json(figure, engine="json"))
    described = escape(figure.layout.meta["description"])
    size = ";".join(filter(None, (f"height:{figure.layout.height}px", style)))
    return f'<div role="img" aria-label="{described}" data-figure="{escape(name)}" style="{size}"></div>'


def _table(breakdown: Breakdown, energy: bool) -> str:
    more = f", the {len(breakdown.lines)} longest of {breakdown.total.groups}" if breakdown.rest else ""
    heads = "".join(f'<th scope="col" data-kind="number"><button type="button">{escape(head)}</button></th>' for head in HEADS)
    label = f'<th scope="col" class="text"><button type="button">{escape(breakdown.by)}</button></th>'
    bound = '<th scope="col" class="text"><button type="button">bound by</button></th>'
    foot = [*([breakdown.rest] if breakdown.rest else []), breakdown.total]
    return "\n".join(
        [
            f'<div class="scroll" tabindex="0" role="region" aria-label="Table by {escape(breakdown.by)}"><table class="sortable">',
            f"<caption>Cost by {escape(breakdown.by)}{more}. {TOTAL_NOTE}</caption>",
            f"<thead><tr>{label}{heads}{bound}</tr></thead>",
            "<tbody>",
            *(_row(line, energy) for line in breakdown.lines),
            "</tbody><tfoot>",
            *(_row(line, energy) for line in foot),
            "</tfoot></table></div>",
        ]
    )


def _row(line: Line, energy: bool) -> str:
    label, *numbers, bound = tables.cells(line, energy=energy)
    cost = line.cost
    values = (cost.time_s, line.share, cost.busy_s, cost.energy_j, lines.dram_bytes(cost), cost.macs)
    middle = "".join(f'<td data-value="{value!r}">{escape(text)}</td>' for value, text in zip(values, numbers, strict=True))
    return f'<tr><th scope="row">{escape(label)}</th>{middle}<td class="text">{escape(bound)}</td></tr>'


def _assumptions(result: Result) -> str:
    if not result.assumptions:
        return "<p>None: this machine leaves nothing open.</p>"
    rows = ""
    for a in result.assumptions:
        value, others = lines.assumption_values(a)
        cells = (value, a.meaning, ", ".join(others) or "(no other)", a.settles or "-")
        rows += (
            f'<tr><th scope="row">{escape(a.name)}</th>'
            + "".join(f'<td class="wide">{escape(text)}</td>' for text in cells)
            + "</tr>"
        )
    names = ("name", "value", "meaning", "alternatives", "chosen on")
    heads = "".join(f'<th scope="col" class="text">{name}</th>' for name in names)
    caption = "<caption>What is not known for certain, the value that stands in for it, and what else it could be.</caption>"
    box = '<div class="scroll" tabindex="0" role="region" aria-label="Assumptions">'
    return f"{box}<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _comparison(results: Sequence[Result], figures: dict[str, Any]) -> str:
    first = results[0]
    columns = tables.compared(results)
    heads = "".join(
        f'<th scope="col" {"class=" if column.value is None else "data-kind="}'
        f'"{"text" if column.value is None else "number"}"><button type="button">{escape(column.head)}</button></th>'
        for column in columns
    )
    rows = [f"<tr>{''.join(_compared(column, result) for column in columns)}</tr>" for result in results]
    caption = f"<caption>Per training step; speedup is in samples/s over {escape(first.machine)}.</caption>"
    return "\n".join(
        [
            "<h2>Comparison</h2>",
            *(f"<p>{escape(reason)}.</p>" for reason in lines.slower(results)),
            *(f'<p class="warning">{escape(warning)}</p>' for warning in lines.differences(results)),
            '<div class="scroll" tabindex="0" role="region" aria-label="Machines">',
            f'<table class="sortable">{caption}<thead><tr>{heads}</tr></thead><tbody>',
            *rows,
            "</tbody></table></div>",
            '<div class="plots" style="margin-top:1rem">',
            *(plot_place(plot(results), f"machines-{plot.__name__}", figures, broad=False) for plot in plots.side_by_side(results)),
            "</div>\n",
        ]
    )


def _compared(column: tables.Column, result: Result) -> str:
    text = escape(column.cell(result))
    if column.value is not None:
        return f'<td data-value="{column.value(result)!r}">{text}</td>'
    return f'<th scope="row">{text}</th>' if column.head == "machine" else f'<td class="text">{text}</td>'


NUMBER_STYLE, TEXT_STYLE = 'style="text-align:right;padding:2px 10px"', 'style="text-align:left;padding:2px 10px"'


def notebook_comparison(results: Sequence[Result]) -> str:
    """The table of a comparison, with what makes it unfair below it, for Jupyter."""
    if not results:
        return "<p>no results</p>"
    columns, first = tables.compared(results), results[0]

    def cells(tag: str, texts: Sequence[str]) -> str:
        styles = [TEXT_STYLE if column.value is None else NUMBER_STYLE for column in columns]
        return "".join(f"<{tag} {style}>{escape(text)}</{tag}>" for style, text in zip(styles, texts, strict=True))

    rows = "".join(f"<tr>{cells('td', [column.cell(result) for column in columns])}</tr>" for result in results)
    remarks = [f"why: {reason}" for reason in lines.slower(results)] + [f"warning: {text}" for text in lines.differences(results)]
    warnings = "".join(f"<p><small>{escape(remark)}</small></p>" for remark in remarks)
    title = f"{first.workload}, batch {first.batch}: speedup is in samples/s over {first.machine}"
    head = f"<thead><tr>{cells('th', [column.head for column in columns])}</tr></thead>"
    return f"<div><p><b>{escape(title)}</b></p><table>{head}<tbody>{rows}</tbody></table>{warnings}</div>"


def notebook(result: Result, top: int = 10) -> str:
    """A table small enough to be shown at every mention of a result in Jupyter."""
    cell, label = NUMBER_STYLE, TEXT_STYLE
    energy = bool(result.columns.energy)

    def table(breakdown: Breakdown) -> str:
        heads = "".join(f"<th {cell}>{head}</th>" for head in HEADS)
        rows = []
        for line in (*breakdown.all, breakdown.total):
            name, *numbers, bound = tables.cells(line, energy=energy)
            middle = "".join(f"<td {cell}>{escape(number)}</td>" for number in numbers)
            rows.append(f"<tr><th {label}>{escape(name)}</th>{middle}<td {label}>{escape(bound)}</td></tr>")
        top_row = f"<tr><th {label}>{escape(breakdown.by)}</th>{heads}<th {label}>bound by</th></tr>"
        return f"<table><thead>{top_row}</thead><tbody>{''.join(rows)}</tbody></table>"

    facts = "; ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in lines.facts(result))
    return (
        f"<div><p><b>{escape(lines.title(result))}</b><br>{facts}</p>{table(lines.breakdown(result, 'phase'))}"
        f"{table(lines.breakdown(result, 'layer', top))}<p><small>{escape(lines.provenance(result))}</small></p></div>"
    )
