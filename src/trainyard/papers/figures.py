"""Charts of a paper's figures: our results as bars or lines, the values that the paper prints as diamonds beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from trainyard.report.colours import NEUTRAL, PHASES, SPARE, plain, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

    Figures = Mapping[str, Callable[[], go.Figure]]

COLOURS = (PHASES["forward"], PHASES["grad_input"], PHASES["grad_weight"], PHASES["update"], *SPARE)
PAPER, PAPER_DARK = "#D55E00", "#8C2D04"
"""Diamonds of the paper, and those of a second quantity in the same chart."""
PRINTED = "#CC79A7"
MEAN = "mean"
LEGEND_LINE = 19
"""Pixels of a line of the legend."""
LEGEND_CHARACTERS = 62
"""Characters that fit on it, the marks counted as six each."""

Kind = Literal["bar", "line", "faint", "quiet", "paper", "printed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values by position on the axis; `faint` is a thin line, `quiet` one that the legend leaves out."""

    name: str
    values: Mapping[Any, float]
    colour: str
    kind: Kind = "bar"


def series_of(
    values: Mapping[Any, Mapping[Any, float]], colours: Sequence[str] | Mapping[Any, str] = COLOURS, kind: Kind = "bar"
) -> list[Series]:
    """A series for each name, coloured in order or by name."""
    by_name = colours if isinstance(colours, Mapping) else dict(zip(values, colours, strict=False))
    return [Series(name=name, values=one, colour=by_name[name], kind=kind) for name, one in values.items()]


def paper(values: Mapping[Any, float], name: str = "paper", colour: str = PAPER) -> Series:
    return Series(name=name, values=values, colour=colour, kind="paper")


def from_printed(values: Mapping[Any, float], name: str = "from the paper's printed inputs") -> Series:
    return Series(name=name, values=values, colour=PRINTED, kind="printed")


def with_mean(values: Mapping[str, float], mean: Callable[[Iterable[float]], float] = fmean, name: str = MEAN) -> dict[str, float]:
    """The values and, behind them, their mean.

    >>> with_mean({"a": 1.0, "b": 3.0})
    {'a': 1.0, 'b': 3.0, 'mean': 2.0}
    """
    return {**values, name: mean(values.values())}


def chart(
    series: Sequence[Series],
    title: str = "",
    caption: str = "",
    *,
    x: str = "",
    y: str = "",
    stacked: bool = False,
    height: int = 400,
    ceiling: float | None = None,
    unity: bool = False,
    numbers: bool = False,
    digits: int = 2,
) -> go.Figure:
    """All series over one axis, of names or of `numbers`; the legend stands below.

    `unity` draws the line at which nothing is gained, `ceiling` cuts the axis off. Panels need no title and no caption.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for one in series:
        labels = [f"{plain(one.name)}<br>{plain(_name(position))}: {value:.{digits}f}" for position, value in one.values.items()]
        common: dict[str, Any] = {"x": _axis(one.values), "y": list(one.values.values()), "name": plain(one.name)}
        figure.add_trace(_trace(one, {**common, "customdata": labels, "hovertemplate": "%{customdata}<extra></extra>"}))
    figure.update_layout(barmode="stack" if stacked else "group", bargap=0.22, bargroupgap=0.04, showlegend=True)
    if unity:
        figure.add_hline(y=1, line={"color": NEUTRAL, "width": 1.5})
    legend = LEGEND_LINE * -(-sum(len(one.name) + 6 for one in series if one.kind != "quiet") // LEGEND_CHARACTERS)
    styled(figure, title, caption, x=x, y=y, height=height + legend)
    figure.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom"}, margin={"t": 50, "b": 50 + legend})
    figure.update_yaxes(rangemode="tozero", ticksuffix="  ")
    figure.update_xaxes(showgrid=numbers)
    if not numbers and not any(isinstance(position, tuple) for one in series for position in one.values):
        figure.update_xaxes(type="category")
    if ceiling is not None:
        figure.update_yaxes(range=[0, ceiling])
    return figure


def panels(
    charts: Mapping[str, go.Figure], title: str, caption: str, *, columns: int, height: int, below: int = 40
) -> go.Figure:  # fmt: skip
    """Several charts under their names; series of one name share a place in the legend, which is `below` pixels high."""
    from plotly.subplots import make_subplots

    rows = -(-len(charts) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=list(charts), vertical_spacing=0.36 / rows)
    styled(figure, title, caption, x="", y="", height=height)
    in_legend: set[str] = set()
    for number, panel in enumerate(charts.values()):
        cell = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in panel.data:
            trace.update(legendgroup=trace.name, showlegend=trace.name not in in_legend)
            in_legend.add(trace.name)
            figure.add_trace(trace, **cell)
        for axis, update in ((panel.layout.xaxis, figure.update_xaxes), (panel.layout.yaxis, figure.update_yaxes)):
            update({key: value for key, value in axis.to_plotly_json().items() if key not in ("anchor", "domain")}, **cell)
    figure.update_layout(barmode="group", bargap=0.22, bargroupgap=0.04, showlegend=True)
    figure.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom"}, margin={"t": 84, "b": 50 + below, "l": 50})
    return figure


def _axis(values: Mapping[Any, float]) -> Any:
    """Names, numbers, or names in groups, as plotly takes them."""
    positions = list(values)
    return [list(names) for names in zip(*positions, strict=True)] if isinstance(next(iter(values), None), tuple) else positions


def _name(position: Any) -> str:
    if isinstance(position, tuple):
        return ", ".join(position)
    return f"{position:.4g}" if isinstance(position, float) else str(position)


def _trace(one: Series, common: dict[str, Any]) -> Any:
    import plotly.graph_objects as go

    if one.kind == "bar":
        return go.Bar(marker={"color": one.colour}, **common)
    if one.kind == "line":
        return go.Scatter(mode="lines+markers", line={"color": one.colour, "width": 2}, marker={"size": 7}, **common)
    if one.kind in ("faint", "quiet"):
        thin = {"color": one.colour, "width": 1}
        return go.Scatter(mode="lines", line=thin, opacity=0.55, showlegend=one.kind == "faint", **common)
    symbol, width = ("diamond", 1) if one.kind == "paper" else ("circle-open", 2)
    return go.Scatter(
        mode="markers", marker={"symbol": symbol, "size": 11, "color": one.colour, "line": {"width": width}}, **common
    )
