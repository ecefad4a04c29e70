"""The tornado: how far each assumption and parameter moves a metric, the widest swing on top."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.files import write_text
from trainyard.report.colours import CLASSES, NEUTRAL, empty, plain, styled
from trainyard.report.lines import changed_text, value_text
from trainyard.report.page import framed
from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.runs import Worth
    from trainyard.sensitivity import Weighed

BARS = 20
MOST_IN_ONE_LINE = 40
"""Letters of a cell that is not broken over lines."""
ROW = 26
"""Pixels of a bar."""


def tornado(worths: Iterable[Worth], title: str, metric: str, bars: int = BARS) -> go.Figure:
    """A bar for each thing that moves the metric, from its lowest to its highest value; the line in the middle is as it stands."""
    import plotly.graph_objects as go

    swings: dict[str, list[Worth]] = {}
    for worth in worths:
        if worth.size and not worth.error:
            swings.setdefault(worth.name, []).append(worth)
    if not swings:
        return empty(title, "nothing that was changed moves the metric")
    widest = sorted(swings, key=lambda name: -max(worth.size for worth in swings[name]))[:bars]
    figure = go.Figure()
    for sign, colour, word in ((-1, CLASSES["compute"], "lower"), (1, CLASSES["copy"], "higher")):
        ends = {name: _farthest(swings[name], sign) for name in widest}
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[_label(name) for name in widest],
                x=[100 * worth.change if worth else 0 for worth in ends.values()],
                text=[value_text(worth.name, worth.alternative) if worth else "" for worth in ends.values()],
                customdata=[_told(worth, metric) if worth else "" for worth in ends.values()],
                hovertemplate="%{customdata}<extra></extra>",
                textposition="outside",
                cliponaxis=False,
                marker={"color": colour},
                name=f"metric {word}",
            )
        )
    first = swings[widest[0]][0]
    said = ", ".join(f"{name} {_span(swings[name])}" for name in widest[:3])
    described = f"{metric}, {number_text(first.before, metric)} as it stands; the widest swings: {said}."
    styled(figure, plain(title, 90), described, x=f"change of {plain(metric, 90)} (%)", y="", height=170 + ROW * len(widest))
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.add_vline(x=0, line={"color": NEUTRAL, "width": 1.5})
    reach = 100 * max(worth.size for name in widest for worth in swings[name])
    lowest = min(0.0, *(100 * worth.change for name in widest for worth in swings[name]))
    figure.update_xaxes(range=[lowest - 0.25 * reach, max(100 * w.change for n in widest for w in swings[n]) + 0.25 * reach])
    return figure


def _farthest(worths: Sequence[Worth], sign: int) -> Worth | None:
    return max((worth for worth in worths if sign * worth.change > 0), key=lambda worth: worth.size, default=None)


def _label(name: str) -> str:
    return plain(name, 44)


def _span(worths: Sequence[Worth]) -> str:
    low, high = (min(0.0, *(w.change for w in worths)), max(0.0, *(w.change for w in worths)))
    return f"{100 * low:+.0f} to {100 * high:+.0f} %"


def number_text(value: float, metric: str) -> str:
    """A value of a metric for the eye.

    >>> number_text(0.0025, "time_s"), number_text(2e9, "traffic_bytes.dram"), number_text(3e-6, "energy_by_component.dram")
    ('2.5 ms', '2 GB', '3 µJ')
    >>> number_text(0.0025, "array_cycles")
    '0.0025'
    """
    head = metric.partition(".")[0]
    unit = "J" if head == "energy_by_component" else unit_of_field(head)
    return show(value, unit) if unit else f"{value:.4g}" if abs(value) < 1000 else show(value, "")


def _told(worth: Worth, metric: str) -> str:
    old, new = (value_text(worth.name, given) for given in (worth.value, worth.alternative))
    moved = f"{number_text(worth.before, metric)} → {number_text(worth.after, metric)} ({100 * worth.change:+.1f} %)"
    return f"{plain(worth.name)}: {plain(old)} → {plain(new)}<br>{moved}"


def write(weighed: Weighed, path: str | os.PathLike[str]) -> None:
    """One page: the tornado, all worths, all pairs."""
    import plotly.io

    figure = tornado(weighed, weighed.title, weighed.metric)
    described = escape(figure.layout.meta["description"])
    drawn: dict[str, Any] = {"tornado": json.loads(plotly.io.to_json(figure, engine="json"))}
    body = "\n".join(
        (
            f'<figure class="broad"><div role="img" aria-label="{described}" data-figure="tornado" '
            f'style="height:{figure.layout.height}px"></div><figcaption>{described}</figcaption></figure>',
            "<h2>One at a time</h2>",
            *_table(("change", "kind", "value", "alternative", "before", "after", "worth", "meaning"), _worths(weighed)),
            *(["<h2>Two at a time</h2>"] if weighed.pairs else []),
            *(_table(("first", "second", "first alone", "second alone", "together", "interaction"), _pairs(weighed))),
        )
    )
    subtitle = f"What each assumption and each parameter is worth in {weighed.metric}."
    write_text(path, framed(weighed.title, subtitle, body, escape(f"trainyard {VERSION}"), drawn))


def _worths(weighed: Weighed) -> Iterator[tuple[str, ...]]:
    for worth in weighed:
        value, other = (value_text(worth.name, given) for given in (worth.value, worth.alternative))
        before, after = (number_text(number, weighed.metric) for number in (worth.before, worth.after))
        change = f"{100 * worth.change:+.2f} %"
        ending = ("", "", worth.error) if worth.error else (after, change, worth.meaning)
        yield worth.name, worth.kind, value, other, before, *ending


def _pairs(weighed: Weighed) -> Iterator[tuple[str, ...]]:
    for pair in weighed.pairs:
        alone = (f"{100 * one.change:+.2f} %" for one in (pair.first, pair.second))
        both = ("not possible", "") if pair.error else (f"{100 * pair.change:+.2f} %", f"{100 * pair.interaction:+.2f} %")
        yield changed_text(pair.first), changed_text(pair.second), *alone, *both


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield '<div class="scroll"><table class="sortable"><thead><tr>'
    yield "".join(f'<th scope="col" class="text"><button type="button">{escape(head)}</button></th>' for head in heads)
    yield "</tr></thead><tbody>"
    yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed)
    yield "</tbody></table></div>"


def _cell(text: str) -> str:
    return f'<td class="{"wide" if len(text) > MOST_IN_ONE_LINE else "text"}">{escape(text)}</td>'
