"""A walk-through as one HTML file in the frame of all reports: the drawing in a box that scrolls, and below it the text."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.files import write_text
from trainyard.report.page import framed, place_of

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write(drawing: go.Figure, text: str, path: str | os.PathLike[str]) -> None:
    """The drawing has the title and the description of the page; `text` is what the command prints."""
    figures: dict[str, Any] = {}
    title, width = drawing.layout.title.text, drawing.layout.width
    description = drawing.layout.meta["description"]
    drawing.update_layout(title_text="", margin_t=12, height=drawing.layout.height - 36)
    place = place_of(drawing, "drawing", figures, style=f"width:{width}px")
    body = (
        f'<figure class="drawing"><div class="scroll" tabindex="0" role="region" aria-label="Drawing">{place}</div>'
        f"<figcaption>Point at a cell to read what happens there.</figcaption></figure>\n"
        f'<h2>Step by step</h2>\n<pre tabindex="0">{escape(text)}</pre>'
    )
    write_text(path, framed(title, description, body, escape(f"trainyard {VERSION}"), figures))
