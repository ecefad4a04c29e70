"""A sweep as one HTML file: two objectives against each other with the front marked, all points as parallel lines, and a table.

The frame, its style and its script are those of a result's page (`report/page.html`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.errors import BadInput
from trainyard.files import write_text
from trainyard.report.colours import plain, scale, styled
from trainyard.sweep.metrics import shown, unit_of
from trainyard.sweep.records import Record, ranked
from trainyard.sweep.study import Study

if TYPE_CHECKING:
    import plotly.graph_objects as go

FRONT, OTHER = "#D55E00", "#0072B2"
MOST_ROWS = 2000
"""Of the table: the front first, then the best in the first objective."""
MOST_LINES = 600


def write(study: Study, records: Sequence[Record], path: str | os.PathLike[str], *, planned: int = 0) -> None:
    """One page of the points; where fewer than `planned` are there, it says that the sweep is not finished."""
    write_text(path, page(study, records, planned=planned))


def page(study: Study, records: Sequence[Record], *, planned: int = 0) -> str:
    from trainyard.report.page import framed, plot_place
    from trainyard.sweep.running import fronts

    done = [record for record in records if not record.failed]
    if not records:
        raise BadInput("nothing to write: the sweep has no points")
    front = {record.key for record in fronts(ranked(done, any_memory=study.any_memory), study.objectives)}
    figures: dict[str, Any] = {}
    plots = []
    if len(study.objectives) > 1 and done:
        plots.append(plot_place(scatter(study, done, front), "scatter", figures, broad=True))
    if done:
        plots.append(plot_place(parallel(study, done, front), "parallel", figures, broad=True))
    partial = len(records) < planned
    facts = {
        "points": f"{len(records)} of {planned}" if partial else len(records),
        "failed": len(records) - len(done),
        "on the front": len(front),
    }
    if overfull := sum(not record.fits for record in done):
        facts["too large for their memory"] = overfull
    cards = "".join(f"<div><dt>{escape(name)}</dt><dd>{count}</dd></div>" for name, count in facts.items())
    unfinished = f"This sweep is not finished: {len(records)} of {planned} points are here, and the front is theirs."
    warned = f'<p class="warning">{unfinished}</p>' if partial else ""
    body = "\n".join(
        [f'<dl class="cards">{cards}</dl>', warned, '<div class="plots">', *plots, "</div>", _table(study, records, front)]
    )
    subtitle = f"{', '.join(dict.fromkeys(w.model for w in study.workloads))} on {', '.join(study.machines)}"
    return framed(study.name, subtitle, body, escape(f"trainyard {VERSION}"), figures)


def _scaled(name: str, records: Sequence[Record]) -> tuple[list[float | None], str]:
    """A metric's numbers in a unit that suits them, and its title."""
    numbers = [record.metrics.get(name) for record in records]
    unit = unit_of(name)
    size, suffix = scale(max((abs(n) for n in numbers if n is not None), default=0.0), unit) if unit else (1.0, "")
    return [None if n is None else n / size for n in numbers], f"{name} ({suffix})" if suffix else name


def scatter(study: Study, records: Sequence[Record], front: set[str]) -> go.Figure:
    """Every point in the first two objectives."""
    import plotly.graph_objects as go

    first, second = list(study.objectives)[:2]
    (xs, x_title), (ys, y_title) = _scaled(first, records), _scaled(second, records)
    figure = go.Figure()
    for name, colour, chosen in (("other points", OTHER, False), ("Pareto front", FRONT, True)):
        rows = [i for i, record in enumerate(records) if (record.key in front) is chosen]
        figure.add_trace(
            go.Scatter(
                x=[xs[i] for i in rows],
                y=[ys[i] for i in rows],
                text=[plain(_record_text(records[i]), 400) for i in rows],
                name=name,
                mode="markers",
                marker={"color": colour, "size": 9 if chosen else 6, "symbol": "diamond" if chosen else "circle", "opacity": 0.8},
                hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            )
        )
    caption = f"{len(records)} points by {first} and {second}; {len(front)} of them on the Pareto front."
    return styled(figure, f"{first} and {second}", caption, x=x_title, y=y_title, height=460)


def _record_text(record: Record) -> str:
    return ", ".join([record.workload, record.machine, *(f"{path}={value}" for path, value in record.settings.items())])


def parallel(study: Study, records: Sequence[Record], front: set[str]) -> go.Figure:
    """One line a point through what varies and what is sought, the front on top. (Plotly's own needs WebGL, which not all have.)"""
    import plotly.graph_objects as go

    lines = sorted(records, key=lambda record: record.key in front)[-MOST_LINES:]
    heights, ticks, heads = list[list[float | None]](), list[tuple[int, float, str]](), list[str]()
    for name, path, values in _columns(study, lines):
        column, marks = _heights(path, values)
        heights.append(column)
        ticks += [(len(heads), height, text) for height, text in marks]
        heads.append(name)
    figure = go.Figure()
    for name, colour, chosen in (("other points", OTHER, False), ("Pareto front", FRONT, True)):
        xs, ys = list[float | None](), list[float | None]()
        for number, record in enumerate(lines):
            if (record.key in front) is chosen:
                xs += [*range(len(heads)), None]
                ys += [*(column[number] for column in heights), None]
        line = {"color": colour, "width": 2 if chosen else 1}
        figure.add_trace(
            go.Scatter(x=xs, y=ys, name=name, mode="lines", line=line, opacity=0.9 if chosen else 0.35, hoverinfo="skip")
        )
    drawn = "" if len(lines) == len(records) else f" {len(lines)} are drawn."
    caption = f"Each of {len(records)} points as a line through its settings and objectives; those of the front stand out.{drawn}"
    figure = styled(figure, "All points", caption, x="", y="", height=460)
    for position, height, text in ticks:
        figure.add_annotation(
            x=position, y=height, text=plain(text, 24), showarrow=False, xanchor="left", xshift=4, yshift=9, font={"size": 11}
        )
    figure.update_xaxes(
        tickvals=list(range(len(heads))), ticktext=[plain(head, 24) for head in heads], range=[-0.35, len(heads) - 0.4]
    )
    figure.update_yaxes(visible=False)
    return figure


def _columns(study: Study, records: Sequence[Record]) -> list[tuple[str, str, list[Any]]]:
    """What the study calls it, its path, and its values: axes first, then objectives."""
    axes = [
        (axis.name, axis.path, [r.machine if axis.path == "machine" else r.settings.get(axis.path) for r in records])
        for axis in study.axes
    ]
    return axes + [(name, name, [record.metrics.get(name) for record in records]) for name in study.objectives]


def _heights(path: str, values: Sequence[Any]) -> tuple[list[float | None], list[tuple[float, str]]]:
    """Where each value lies on its axis from 0 to 1, and what is written there: the ends of numbers, every word."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and len(numbers) == sum(value is not None for value in values):
        low, high = min(numbers), max(numbers)
        span = (high - low) or 1.0
        marks = [(0.0, shown(path, low)), *([(1.0, shown(path, high))] if high > low else [])]
        return [None if value is None else (value - low) / span for value in values], marks
    words = list(dict.fromkeys(map(str, values)))
    position = {word: number / max(len(words) - 1, 1) for number, word in enumerate(words)}
    return [position[str(value)] for value in values], [(height, word) for word, height in position.items()]


def _table(study: Study, records: Sequence[Record], front: set[str]) -> str:
    first, direction = next(iter(study.objectives.items()))

    def order(record: Record) -> tuple[bool, float]:
        value = record.metrics.get(first, float("inf"))
        return record.key not in front, value if direction == "min" else -value

    rows_shown = sorted(records, key=order)[:MOST_ROWS]
    paths = list(dict.fromkeys(path for record in records for path in record.settings))
    names = list(dict.fromkeys([*study.objectives, *study.metrics]))
    heads = [_head(name, number=False) for name in ("front", "workload", "machine")]
    heads += [_head(path, number=True) for path in (*paths, *names)]
    more = f", {len(rows_shown)} of {len(records)}" if len(rows_shown) < len(records) else ""
    rows = (_row(record, paths, names, record.key in front) for record in rows_shown)
    return "\n".join(
        [
            "<h2>Points</h2>",
            '<div class="scroll" tabindex="0" role="region" aria-label="Table of points"><table class="sortable">',
            f"<caption>The front first, then by {escape(first)}{more}.</caption>",
            f"<thead><tr>{''.join(heads)}{_head('error', number=False)}</tr></thead><tbody>",
            *rows,
            "</tbody></table></div>",
        ]
    )


def _head(name: str, *, number: bool) -> str:
    kind = 'data-kind="number"' if number else 'class="text"'
    return f'<th scope="col" {kind}><button type="button">{escape(name)}</button></th>'


def _row(record: Record, paths: Sequence[str], names: Sequence[str], on_front: bool) -> str:
    words = ("front" if on_front else "", record.workload, record.machine)
    cells = "".join(f'<td class="text">{escape(word)}</td>' for word in words)
    settings: Mapping[str, Any] = record.settings
    for name, value in (*((path, settings.get(path)) for path in paths), *((name, record.metrics.get(name)) for name in names)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        text = escape(shown(name, value))
        cells += f'<td data-value="{value!r}">{text}</td>' if number else f"<td>{text}</td>"
    return f'<tr>{cells}<td class="text">{escape(record.error)}</td></tr>'
