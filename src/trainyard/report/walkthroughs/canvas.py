"""A sheet to draw the walk-through of an array on: cells with letters in them, lines, texts, a legend below, words on hover.

Shared by `report.walkthroughs.tensordash` and `report.walkthroughs.sigma`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard.report.colours import CLASSES, NEUTRAL, PHASES, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

DARK_ON = (CLASSES["synchronisation"], PHASES["loss"], PHASES["update"])
"""Colours that carry dark letters."""
GREY = "#8a8a8a"
WAITS = "rgba(128,128,128,0.30)"
CELL_PIXELS, SMALLEST_CELL_PIXELS, LARGEST_CELL_PIXELS = 30, 28, 42
"""At the first, texts have their stated size."""
WIDEST = 41.0
"""Places across the sheet: what is wider goes below."""
PAGE_PIXELS = 1216
"""Of a sheet as wide as a page: fewer places are larger ones."""
LEGEND_SIZE = 12


@dataclass(slots=True)
class Sheet:
    """What is to be drawn, in units of one place of a buffer; y grows downwards."""

    shapes: list[dict[str, object]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str | None, int]] = field(default_factory=list)
    hovers: list[tuple[float, float, str]] = field(default_factory=list)

    def cell(self, x: float, y: float, fill: str | None, text: str = "", hover: str = "", *, round_cell: bool = False) -> None:
        self.shapes.append(
            {
                "type": "circle" if round_cell else "rect", "layer": "below",
                "x0": x + 0.06, "x1": x + 0.94, "y0": y + 0.06, "y1": y + 0.94,
                "line": {"width": 1, "color": fill if fill and fill != WAITS else NEUTRAL},
                "fillcolor": fill or "rgba(0,0,0,0)",
            }
        )  # fmt: skip
        if text:
            self.text(x + 0.5, y + 0.5, text, GREY if fill in (None, WAITS) else "#1a1a1a" if fill in DARK_ON else "#ffffff")
        if hover:
            self.hovers.append((x + 0.5, y + 0.5, hover))

    def text(self, x: float, y: float, text: str, colour: str | None = None, size: int = 10) -> None:
        """In the colour of the page's text, unless another is given."""
        self.texts.append((x, y, text, colour, size))

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str, dash: str) -> None:
        self.shapes.append(
            {
                "type": "line", "layer": "below", "x0": start[0], "y0": start[1], "x1": end[0], "y1": end[1],
                "line": {"width": 2, "color": colour, "dash": dash}, "opacity": 0.75,
            }
        )  # fmt: skip

    def legend(self, lines: Sequence[str], y: float) -> None:
        """At the left, from `y` down."""
        for number, line in enumerate(lines):
            self.text(-1.0, y + 0.7 * number, line, size=LEGEND_SIZE)

    def figure(self, title: str, description: str, wide: float, high: float) -> go.Figure:
        """All of it, `wide` places across and `high` down."""
        import plotly.graph_objects as go

        pixels = min(LARGEST_CELL_PIXELS, max(SMALLEST_CELL_PIXELS, int(PAGE_PIXELS / (wide + 2.0))))
        drawn = go.Figure(layout={"shapes": self.shapes})
        for size, coloured in sorted({(entry[4], entry[3] is not None) for entry in self.texts}):
            chosen = [entry for entry in self.texts if (entry[4], entry[3] is not None) == (size, coloured)]
            x, y, text, colour, _ = zip(*chosen, strict=True)
            place = "middle right" if size == LEGEND_SIZE else "middle center"
            font = {"size": round(size * pixels / CELL_PIXELS), **({"color": colour} if coloured else {})}
            drawn.add_scatter(
                x=x, y=y, text=text, mode="text", textposition=place, textfont=font, hoverinfo="skip", cliponaxis=False
            )
        x, y, hover = zip(*self.hovers, strict=True)
        invisible = {"size": pixels * 0.8, "symbol": "square", "opacity": 0}
        drawn.add_scatter(x=x, y=y, text=hover, mode="markers", marker=invisible, hovertemplate="%{text}<extra></extra>")
        styled(drawn, title, description, x="", y="", height=round((high + 3.0) * pixels) + 60)
        margin = {"b": 12, "t": 48, "l": 12, "r": 12}
        drawn.update_layout(showlegend=False, margin=margin, width=round((wide + 2.0) * pixels) + 24)
        drawn.update_xaxes(visible=False, range=[-1.5, wide + 0.5], fixedrange=True)
        drawn.update_yaxes(visible=False, range=[high + 0.5, -2.5], scaleanchor="x", fixedrange=True)
        return drawn
