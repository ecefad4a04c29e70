"""Figures of several panels: each drawn by itself (`papers.drawing`), then set beside or below each other with one legend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainyard.report.colours import styled

if TYPE_CHECKING:
    import plotly.graph_objects as go


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
