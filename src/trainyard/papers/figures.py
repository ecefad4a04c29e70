"""Figures of a paper in the house style: bars or lines of ours, the paper's own figures as diamonds beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainyard.report.colours import NEUTRAL, plain, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

PAPER = "#D55E00"
PRINTED = "#CC79A7"
LEGEND_LINE = 19
"""Pixels of a line of the legend."""
LEGEND_SIGNS = 62
"""Signs that fit on it, the marks counted as six each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values by what stands on the axis; `faint` is a thin line, `quiet` one without a place in the legend."""

    name: str
    values: Mapping[Any, float]
    colour: str
    kind: Literal["bar", "line", "faint", "quiet", "paper", "printed"] = "bar"


def drawn(
    series: Sequence[Series],
    title: str,
    told: str,
    *,
    x: str,
    y: str,
    stacked: bool = False,
    height: int = 400,
    ceiling: float | None = None,
    unity: bool = False,
    numbers: bool = False,
    digits: int = 2,
) -> go.Figure:
    """All series over one axis, of names or of `numbers`; the legend stands below.

    `unity` draws the line at which nothing is gained, `ceiling` cuts the axis off.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for one in series:
        values = list(one.values.values())
        told_each = [f"{plain(one.name)}<br>{plain(_name(place))}: {value:.{digits}f}" for place, value in one.values.items()]
        common: dict[str, Any] = {"x": _places(one.values), "y": values, "name": plain(one.name), "customdata": told_each}
        figure.add_trace(_trace(one, {**common, "hovertemplate": "%{customdata}<extra></extra>"}))
    figure.update_layout(barmode="stack" if stacked else "group", bargap=0.22, bargroupgap=0.04, showlegend=True)
    if unity:
        figure.add_hline(y=1, line={"color": NEUTRAL, "width": 1.5})
    below = LEGEND_LINE * -(-sum(len(one.name) + 6 for one in series if one.kind != "quiet") // LEGEND_SIGNS)
    styled(figure, title, told, x=x, y=y, height=height + below)
    figure.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom"}, margin={"t": 50, "b": 50 + below})
    figure.update_yaxes(rangemode="tozero", ticksuffix="  ")
    figure.update_xaxes(showgrid=numbers)
    if not numbers and not any(isinstance(place, tuple) for one in series for place in one.values):
        figure.update_xaxes(type="category")
    if ceiling is not None:
        figure.update_yaxes(range=[0, ceiling])
    return figure


def _places(values: Mapping[Any, float]) -> Any:
    """Names, numbers, or names in groups, as plotly takes them."""
    places = list(values)
    return [list(names) for names in zip(*places, strict=True)] if places and isinstance(places[0], tuple) else places


def _name(place: Any) -> str:
    if isinstance(place, tuple):
        return ", ".join(place)
    return f"{place:.4g}" if isinstance(place, float) else str(place)


def _trace(one: Series, common: dict[str, Any]) -> Any:
    import plotly.graph_objects as go

    if one.kind == "bar":
        return go.Bar(marker={"color": one.colour}, **common)
    if one.kind == "line":
        return go.Scatter(mode="lines+markers", line={"color": one.colour, "width": 2}, marker={"size": 7}, **common)
    if one.kind in ("faint", "quiet"):
        thin = {"color": one.colour, "width": 1}
        return go.Scatter(mode="lines", line=thin, opacity=0.55, showlegend=one.kind == "faint", **common)
    symbol = {"paper": "diamond", "printed": "circle-open"}[one.kind]
    width = {"paper": 1, "printed": 2}[one.kind]
    return go.Scatter(
        mode="markers", marker={"symbol": symbol, "size": 11, "color": one.colour, "line": {"width": width}}, **common
    )


def paper(values: Mapping[Any, float], name: str = "paper") -> Series:
    return Series(name=name, values=values, colour=PAPER, kind="paper")


def from_printed(values: Mapping[Any, float], name: str = "from the paper's printed inputs") -> Series:
    return Series(name=name, values=values, colour=PRINTED, kind="printed")


def panels(
    drawn: Mapping[str, go.Figure], title: str, told: str, *, columns: int, height: int, below: int = 40
) -> go.Figure:  # fmt: skip
    """The traces and axes of every figure under its name; series of one name share a place in the legend, `below` pixels high."""
    from plotly.subplots import make_subplots

    rows = -(-len(drawn) // columns)
    whole = make_subplots(rows=rows, cols=columns, subplot_titles=list(drawn), vertical_spacing=0.26 / rows)
    styled(whole, title, told, x="", y="", height=height)
    listed: set[str] = set()
    for number, one in enumerate(drawn.values()):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in one.data:
            trace.update(legendgroup=trace.name, showlegend=trace.name not in listed)
            listed.add(trace.name)
            whole.add_trace(trace, **place)
        for axis, update in ((one.layout.xaxis, whole.update_xaxes), (one.layout.yaxis, whole.update_yaxes)):
            update({key: value for key, value in axis.to_plotly_json().items() if key not in ("anchor", "domain")}, **place)
    whole.update_layout(barmode="group", bargap=0.22, bargroupgap=0.04, showlegend=True)
    whole.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom"}, margin={"t": 84, "b": 50 + below, "l": 50})
    return whole
