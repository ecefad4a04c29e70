"""One colour for each thing in every plot, and the look that all plots share.

The colours are those of Okabe and Ito (2008), told apart by every kind of colour vision, on light and on dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trainyard.units import parse, show

if TYPE_CHECKING:
    import plotly.graph_objects as go

# fmt: off
PHASES: Mapping[str, str] = {
    "forward":     "#0072B2",
    "loss":        "#CC79A7",
    "grad_input":  "#E69F00",
    "grad_weight": "#009E73",
    "update":      "#56B4E9",
    "copy":        "#D55E00",
    "idle":        "#9A9A9A",
}
CLASSES: Mapping[str, str] = {
    "compute":         "#0072B2",
    "synchronisation": "#E69F00",
    "copy":            "#D55E00",
    "idle":            "#9A9A9A",
}
DIRECTIONS: Mapping[str, str] = {"read": "#0072B2", "write": "#E69F00", "spill": "#D55E00"}
EXPOSED: Mapping[str, str] = {"exposed": "#0072B2", "hidden": "#A9C9DF", "idle": "#9A9A9A"}
# fmt: on
SPARE = ("#8C6BB1", "#B8860B", "#5F9EA0", "#C71585", "#708090")
SMALL_TASKS = "#B9B9B9"
NEUTRAL = "rgba(128,128,128,0.35)"


def colours(names: Iterable[str], palette: Mapping[str, str]) -> dict[str, str]:
    """A colour for each name, in the table's order first; names it lacks get spare ones in their own order."""
    unique = list(dict.fromkeys(names))
    strange = [name for name in unique if name not in palette]
    chosen = {name: palette[name] for name in palette if name in unique}
    return chosen | {name: SPARE[number % len(SPARE)] for number, name in enumerate(strange)}


def scale(most: float, unit: str, *, binary: bool = False) -> tuple[float, str]:
    """What to divide by, and the unit to write on the axis, so that `most` reads well.

    >>> scale(0.0123, "s"), scale(5e9, "B"), scale(0.0, "J")
    ((0.001, 'ms'), (1000000000.0, 'GB'), (1.0, 'J'))
    """
    if not most:
        return 1.0, unit
    name = show(most, unit, binary=binary).split(" ")[1]
    return parse(f"1 {name}", unit), name


def plain(text: str, width: int = 60) -> str:
    """A name as plotly must be given it, for it reads a subset of HTML; a long one keeps its end."""
    return html.escape(text if len(text) <= width else f"…{text[-width:]}", quote=False)


def styled(figure: go.Figure, title: str, description: str, *, x: str, y: str, height: int = 420) -> go.Figure:
    """Title, axis names with units, room for labels; `description` is the text for readers who cannot see the plot."""
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 16}, "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"l": 12, "t": 14}},
        title_xref="container",
        title_yref="container",
        font={"family": "system-ui, sans-serif", "size": 12},
        height=height,
        margin={"l": 10, "r": 20, "t": 84, "b": 52},
        legend={
            "orientation": "h",
            "y": 1,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "traceorder": "normal",
            "itemsizing": "constant",
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"namelength": -1},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#9a9a9a", "activecolor": "#0072B2"},
        meta={"description": description},
    )
    figure.update_xaxes(title={"text": x}, automargin=True, gridcolor=NEUTRAL, zerolinecolor=NEUTRAL)
    figure.update_yaxes(title={"text": y}, automargin=True, gridcolor=NEUTRAL, zerolinecolor=NEUTRAL)
    return figure


def empty(title: str, reason: str) -> go.Figure:
    """A figure that says why there is nothing to see; never a silent blank."""
    import plotly.graph_objects as go

    figure = styled(go.Figure(), title, reason, x="", y="", height=160)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(text=plain(reason, 200), showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure
