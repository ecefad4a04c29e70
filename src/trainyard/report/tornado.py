"""The tornado: how far each assumption and parameter moves a metric, the widest swing on top."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.files import write_text
from trainyard.report.colours import CLASSES, NEUTRAL, empty, plain, styled
from trainyard.report.lines import changed_text, value_text
from trainyard.report.page import framed, plot_place
from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.sensitivity import ChangeEffect, SensitivityResult

BARS = 20
MOST_IN_ONE_LINE = 40
"""Letters of a cell that is not broken over lines."""
ROW = 26
"""Pixels of a bar."""


def tornado(effects: Iterable[ChangeEffect], title: str, metric: str, bars: int = BARS) -> go.Figure:
    """A bar for each thing that moves the metric, from its lowest to its highest value; the line in the middle is as it stands."""
    import plotly.graph_objects as go

    swings: dict[str, list[ChangeEffect]] = {}
    for effect in effects:
        if effect.size and not effect.error:
            swings.setdefault(effect.name, []).append(effect)
    if not swings:
        return empty(title, "nothing that was changed moves the metric")
    widest = sorted(swings, key=lambda name: -max(effect.size for effect in swings[name]))[:bars]
    figure = go.Figure()
    for sign, colour, word in ((-1, CLASSES["compute"], "lower"), (1, CLASSES["copy"], "higher")):
        ends = {name: _farthest(swings[name], sign) for name in widest}
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[_label(name) for name in widest],
                x=[100 * effect.change if effect else 0 for effect in ends.values()],
                text=[value_text(effect.name, effect.alternative) if effect else "" for effect in ends.values()],
                customdata=[_hover_text(effect, metric) if effect else "" for effect in ends.values()],
                hovertemplate="%{customdata}<extra></extra>",
                textposition="outside",
                cliponaxis=False,
                marker={"color": colour},
                name=f"metric {word}",
            )
        )
    first = swings[widest[0]][0]
    widest_text = ", ".join(f"{name} {_span(swings[name])}" for name in widest[:3])
    described = f"{metric}, {number_text(first.before, metric)} as it stands; the widest swings: {widest_text}."
    styled(figure, plain(title, 90), described, x=f"change of {plain(metric, 90)} (%)", y="", height=170 + ROW * len(widest))
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.add_vline(x=0, line={"color": NEUTRAL, "width": 1.5})
    reach = 100 * max(effect.size for name in widest for effect in swings[name])
    lowest = min(0.0, *(100 * effect.change for name in widest for effect in swings[name]))
    figure.update_xaxes(range=[lowest - 0.25 * reach, max(100 * w.change for n in widest for w in swings[n]) + 0.25 * reach])
    return figure


def _farthest(effects: Sequence[ChangeEffect], sign: int) -> ChangeEffect | None:
    return max((effect for effect in effects if sign * effect.change > 0), key=lambda effect: effect.size, default=None)


def _label(name: str) -> str:
    return plain(name, 44)


def _span(effects: Sequence[ChangeEffect]) -> str:
    low, high = (min(0.0, *(w.change for w in effects)), max(0.0, *(w.change for w in effects)))
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


def _hover_text(effect: ChangeEffect, metric: str) -> str:
    old, new = (value_text(effect.name, shown) for shown in (effect.value, effect.alternative))
    moved = f"{number_text(effect.before, metric)} → {number_text(effect.after, metric)} ({100 * effect.change:+.1f} %)"
    return f"{plain(effect.name)}: {plain(old)} → {plain(new)}<br>{moved}"


def write(sensitivity: SensitivityResult, path: str | os.PathLike[str]) -> None:
    """One page: the tornado, all effects, all pairs."""
    figure = tornado(sensitivity, sensitivity.title, sensitivity.metric)
    drawn: dict[str, Any] = {}
    body = "\n".join(
        (
            plot_place(figure, "tornado", drawn, broad=True),
            "<h2>One at a time</h2>",
            *_table(("change", "kind", "value", "alternative", "before", "after", "worth", "meaning"), _effect_rows(sensitivity)),
            *(["<h2>Two at a time</h2>"] if sensitivity.pairs else []),
            *(_table(("first", "second", "first alone", "second alone", "together", "interaction"), _pair_rows(sensitivity))),
        )
    )
    subtitle = f"What each assumption and each parameter is worth in {sensitivity.metric}."
    write_text(path, framed(sensitivity.title, subtitle, body, escape(f"trainyard {VERSION}"), drawn))


def _effect_rows(sensitivity: SensitivityResult) -> Iterator[tuple[str, ...]]:
    for effect in sensitivity:
        value, other = (value_text(effect.name, shown) for shown in (effect.value, effect.alternative))
        before, after = (number_text(number, sensitivity.metric) for number in (effect.before, effect.after))
        change = f"{100 * effect.change:+.2f} %"
        ending = ("", "", effect.error) if effect.error else (after, change, effect.meaning)
        yield effect.name, effect.kind, value, other, before, *ending


def _pair_rows(sensitivity: SensitivityResult) -> Iterator[tuple[str, ...]]:
    for pair in sensitivity.pairs:
        alone = (f"{100 * effect.change:+.2f} %" for effect in (pair.first, pair.second))
        both = ("not possible", "") if pair.error else (f"{100 * pair.change:+.2f} %", f"{100 * pair.interaction:+.2f} %")
        yield changed_text(pair.first), changed_text(pair.second), *alone, *both


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Table of changes"><table class="sortable"><thead><tr>'
    yield "".join(f'<th scope="col" class="text"><button type="button">{escape(head)}</button></th>' for head in heads)
    yield "</tr></thead><tbody>"
    yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed)
    yield "</tbody></table></div>"


def _cell(text: str) -> str:
    return f'<td class="{"wide" if len(text) > MOST_IN_ONE_LINE else "text"}">{escape(text)}</td>'
