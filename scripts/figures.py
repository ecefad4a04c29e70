"""Draws a plotly figure as a still SVG for the manual: the same data, axes, colours and marks, by matplotlib.

It knows what the figures of this project are made of: bars side by side, stacked or lying (tornado), lines, marks, panels, names in
groups, logarithmic axes, lines across. Anything else is refused. The same figure gives the same bytes: no date, no random ids.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

INCH = 96.0
WIDTH = 860.0
"""Pixels; the column of a page of the manual."""
PANEL = 300.0
STYLE = {
    "svg.hashsalt": "trainyard", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9.5,
    "font.sans-serif": ["DejaVu Sans"], "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "xtick.color": "#333333", "ytick.color": "#333333",
    "legend.frameon": False, "legend.fontsize": 9, "axes.axisbelow": True,
}  # fmt: skip
MARKS = {"diamond": "D", "circle": "o", "circle-open": "o", "square": "s", "x": "x", "cross": "+", "triangle-up": "^", "star": "*"}
DASHES = {"solid": "-", "dot": ":", "dash": "--", "dashdot": "-.", "longdash": (0, (8, 3))}
Given = Mapping[str, Any]


def svg(figure: Any) -> str:
    """A plotly figure, or its JSON as a mapping, as the text of an SVG."""
    given: Given = figure if isinstance(figure, Mapping) else figure.to_plotly_json()
    layout = given["layout"]
    if strange := {trace["type"] for trace in given["data"]} - {"bar", "scatter"}:
        raise SystemExit(f"scripts/figures.py draws bars and lines, not {', '.join(sorted(strange))}")
    rows = list(dict.fromkeys(trace.get("xaxis", "x") for trace in given["data"]))
    with mpl.rc_context(STYLE):
        lying = any(trace.get("orientation") == "h" for trace in given["data"])
        entries = len({trace["name"] for trace in given["data"] if trace.get("showlegend", True)})
        tall = layout["height"] - 40 if lying else PANEL * len(rows) + 40 + 18 * -(-entries // 3)
        drawing = Figure(figsize=(WIDTH / INCH, tall / INCH), dpi=INCH, layout="constrained", facecolor="white")
        drawing.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr,call-arg]
        for place, (name, axes) in enumerate(zip(rows, drawing.subplots(len(rows), squeeze=False)[:, 0], strict=True)):
            _panel(axes, [trace for trace in given["data"] if trace.get("xaxis", "x") == name], layout, name[1:], place, len(rows))
        drawing.suptitle(text_of(layout["title"]["text"]), x=0.01, ha="left", fontweight="bold", fontsize=11.5)
        _legend(drawing, dict.fromkeys(_label(trace) for trace in given["data"]))
        return _text(drawing, text_of(layout["title"]["text"]), layout["meta"]["description"])


def _text(drawing: Figure, title: str, description: str) -> str:
    """Without what changes from day to day, and with words for those who cannot see it."""
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = buffer.getvalue()
    body = re.sub(r"^.*?(?=<svg )", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"\n <metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    words = f"\n <title>{html.escape(title)}</title>\n <desc>{html.escape(description)}</desc>"
    head, _, rest = body.partition(">")
    return "\n".join(line.rstrip() for line in f"{head}>{words}{rest}".splitlines()) + "\n"


def _panel(axes: Axes, traces: Sequence[Given], layout: Given, number: str, place: int, panels: int) -> None:
    across, upward = layout.get(f"xaxis{number}", {}), layout.get(f"yaxis{number}", {})
    titles = [note["text"] for note in layout.get("annotations", ()) if not note.get("showarrow", True)]
    if panels > 1 and len(titles) >= panels:
        axes.set_title(text_of(titles[place]), loc="left")
    bars = [trace for trace in traces if trace["type"] == "bar"]
    if any(bar.get("orientation") == "h" for bar in bars):
        _lying(axes, bars)
    else:
        where = _places(traces, across)
        _standing(axes, bars, where, layout)
        for trace in traces:
            if trace["type"] == "scatter":
                _line(axes, trace, where)
        _name_places(axes, where)
    _lines_across(axes, layout, number)
    _axis(axes, "x", across, [])
    _axis(axes, "y", upward, [value for trace in traces for value in _heights(trace) if value > 0])


def _heights(trace: Given) -> list[float]:
    base = float(trace.get("base") or 0)
    return [base + float(value) for value in trace["y"] if value is not None and not isinstance(value, str)]


Places = Mapping[Any, float]


def _keys(trace: Given) -> list[Any]:
    """What stands on the axis at each value: a name, a number, or names in groups."""
    given = list(trace["x"])
    return list(zip(*given, strict=True)) if given and isinstance(given[0], list | tuple) else given


def _places(traces: Sequence[Given], axis: Given) -> Places | None:
    """Where each name stands, groups a little apart; None on an axis of numbers."""
    keys = list(dict.fromkeys(key for trace in traces for key in _keys(trace)))
    if axis.get("type") != "category" and not any(isinstance(key, str | tuple) for key in keys):
        return None
    groups = list(dict.fromkeys(key[0] for key in keys if isinstance(key, tuple)))
    keys.sort(key=lambda key: groups.index(key[0]) if isinstance(key, tuple) else 0)
    found: dict[Any, float] = {}
    gap = 0.0
    for number, key in enumerate(keys):
        gap += 0.7 * (isinstance(key, tuple) and number > 0 and keys[number - 1][0] != key[0])
        found[key] = number + gap
    return found


def _at(trace: Given, where: Places | None) -> list[float]:
    return [float(key) if where is None else where[key] for key in _keys(trace)]


def _standing(axes: Axes, bars: Sequence[Given], where: Places | None, layout: Given) -> None:
    stacked = layout.get("barmode") in ("stack", "relative")
    room = 1 - layout.get("bargap", 0.2)
    wide = room if stacked else room / max(1, len(bars))
    tops: dict[float, float] = {}
    for number, bar in enumerate(bars):
        at, values = _at(bar, where), [float(value or 0) for value in bar["y"]]
        shift = 0.0 if stacked else (number - (len(bars) - 1) / 2) * wide
        floor = [tops.get(place, 0.0) for place in at] if stacked else float(bar.get("base") or 0)
        axes.bar([place + shift for place in at], values, 0.96 * wide, bottom=floor, color=_colour(bar), label=_label(bar))
        for place, value in zip(at, values, strict=True):
            tops[place] = tops.get(place, 0.0) + value


def _lying(axes: Axes, bars: Sequence[Given]) -> None:
    for bar in bars:
        names, values = [text_of(name) for name in bar["y"]], [float(value) for value in bar["x"]]
        drawn = axes.barh(names, values, 0.7, color=_colour(bar), label=_label(bar))
        told = [text_of(word) if value else "" for word, value in zip(bar.get("text") or (), values, strict=False)]
        if told:
            axes.bar_label(drawn, told, padding=4, fontsize=8.5)
    axes.invert_yaxis()


def _line(axes: Axes, trace: Given, where: Places | None) -> None:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace.get("mode", "lines+markers")
    symbol = marker.get("symbol", "circle")
    options: dict[str, Any] = {"color": _colour(trace), "alpha": trace.get("opacity", 1.0), "label": _label(trace), "zorder": 3}
    options |= {"linewidth": line.get("width", 2), "linestyle": DASHES[line.get("dash", "solid")] if "lines" in mode else "none"}
    if "markers" in mode:
        options |= {"marker": MARKS[symbol], "markersize": 0.7 * float(marker.get("size", 7))}
        if symbol.endswith("-open"):
            options |= {"markerfacecolor": "none", "markeredgewidth": 1.6}
        elif "lines" not in mode:
            options |= {"markeredgecolor": "#222222", "markeredgewidth": 0.7}
    axes.plot(_at(trace, where), [None if value is None else float(value) for value in trace["y"]], **options)


def _name_places(axes: Axes, where: Places | None) -> None:
    if where is None:
        return
    grouped = any(isinstance(key, tuple) for key in where)
    names = [text_of(str(key[-1] if isinstance(key, tuple) else key)) for key in where]
    letters = sum(len(name) + 2 for name in names)
    turned = 90 if grouped and letters > 130 else 30 if letters > 110 else 0
    ha = {"ha": "right", "rotation_mode": "anchor"} if turned == 30 else {}
    axes.set_xticks(list(where.values()), names, rotation=turned, fontsize=7.5 if turned == 90 else 9, **ha)
    axes.set_xlim(min(where.values()) - 0.6, max(where.values()) + 0.6)
    axes.tick_params(axis="x", length=0)
    if grouped:
        groups: dict[str, list[float]] = {}
        for key, place in where.items():
            groups.setdefault(key[0], []).append(place)
        below = axes.secondary_xaxis(-0.06 - 0.03 * max(map(len, names)) if turned else -0.1)
        below.set_xticks([sum(at) / len(at) for at in groups.values()], [text_of(name) for name in groups])
        below.tick_params(length=0)
        below.spines["bottom"].set_visible(False)


def _lines_across(axes: Axes, layout: Given, number: str) -> None:
    for shape in layout.get("shapes", ()):
        if shape.get("type") != "line" or shape.get("yref", "y").split(" ")[0] not in (f"y{number}", "paper", f"y{number} domain"):
            continue
        style = {
            "color": "#999999",
            "linewidth": 1.2,
            "linestyle": DASHES[shape.get("line", {}).get("dash", "solid")],
            "zorder": 0.5,
        }
        if shape["y0"] == shape["y1"]:
            axes.axhline(shape["y0"], **style)
        elif shape["x0"] == shape["x1"]:
            axes.axvline(shape["x0"], **style)


def _axis(axes: Axes, which: str, given: Given, values: Sequence[float]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    name = text_of(given.get("title", {}).get("text", "") or "")
    axis.set_label_text(name)
    scale, limits = (axes.set_xscale, axes.set_xlim) if which == "x" else (axes.set_yscale, axes.set_ylim)
    if given.get("type") == "log":
        scale("log")
        if values:
            limits(0.7 * min(values), 1.4 * max(values))
    ends = tuple(axis.get_view_interval())
    if given.get("tickvals") is not None:
        axis.set_ticks(list(given["tickvals"]), [text_of(str(word)) for word in given.get("ticktext", given["tickvals"])])
        axis.set_ticks([], minor=True)
        limits(*ends)  # ticks far away would widen the axis
    if given.get("range") is not None:
        asked = given["range"]
        limits(*((10.0**end for end in asked) if given.get("type") == "log" else asked))
    elif which == "y" and given.get("rangemode") == "tozero" and given.get("type") != "log":
        low, high = axes.get_ylim()
        limits(min(0.0, low), high)
    if which == "y" or given.get("showgrid", True):
        axes.grid(axis=which, color="#dddddd", linewidth=0.8)  # type: ignore[arg-type]
    if given.get("showgrid") is False:
        axes.grid(visible=False, axis=which)  # type: ignore[arg-type]


def _legend(drawing: Figure, names: Iterable[str]) -> None:
    found = {label: handle for axes in drawing.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    entries = {name: found[name] for name in names if name in found}
    longest = max(map(len, entries), default=0)
    columns = max(1, min(len(entries), int(120 / (longest + 6))))
    drawing.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=columns, handlelength=1.4, columnspacing=1.4)


def _label(trace: Given) -> str:
    return text_of(trace["name"]) if trace.get("showlegend", True) or trace.get("legendgroup") else f"_{trace['name']}"


def _colour(trace: Given) -> Any:
    wanted = trace.get("marker", {}).get("color") or trace.get("line", {}).get("color") or "#0072B2"
    return to_rgba(_rgba(wanted) if wanted.startswith("rgb") else wanted)


def _rgba(text: str) -> tuple[float, ...]:
    numbers = [float(word) for word in re.findall(r"[\d.]+", text)]
    return tuple(number / 255 if place < 3 else number for place, number in enumerate(numbers))


def text_of(text: str) -> str:
    """What plotly was given to show, without its tags; a dollar sign is no formula."""
    return html.unescape(re.sub(r"<br\s*/?>", "\n", text)).replace("$", r"\$")
