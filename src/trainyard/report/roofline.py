"""Roofline: what each layer reaches against what its arithmetic intensity allows.

S. Williams, A. Waterman, D. Patterson: Roofline: An Insightful Visual Performance Model for Multicore Architectures. CACM 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.report.colours import PHASES, colours, empty, plain, styled
from trainyard.report.lines import dram_bytes, percent
from trainyard.results.result import Cost, Result
from trainyard.units import show

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_POINTS = 400
TITLE = "Roofline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layer in one phase: `intensity` in MAC per DRAM byte, `rate` in MAC per second while it was at work."""

    layer: str
    phase: str
    intensity: float
    rate: float
    busy_s: float
    time_s: float


def points(result: Result) -> list[Point]:
    """Every layer and phase that multiplies and touches DRAM, the longest first."""
    merged: dict[tuple[str, str], list[Cost]] = {}
    for (layer, phase, _), cost in result.group("layer", "phase", "resource").items():
        merged.setdefault((layer, phase), []).append(cost)
    plotted = []
    for (layer, phase), costs in merged.items():
        macs, moved = sum(cost.macs for cost in costs), sum(dram_bytes(cost) for cost in costs)
        busy_s = max((cost.busy_s for cost in costs if cost.macs), default=0.0)  # devices work side by side
        if macs and moved and busy_s:
            time_s = sum(cost.time_s for cost in costs)
            name = layer or "(outside any layer)"
            plotted.append(Point(layer=name, phase=phase, intensity=macs / moved, rate=macs / busy_s, busy_s=busy_s, time_s=time_s))
    return sorted(plotted, key=lambda point: -point.busy_s)


def roofline(result: Result, most: int = MOST_POINTS) -> go.Figure:
    """Layers and phases under the machine's roof; a point's area is its time."""
    import plotly.graph_objects as go

    plotted = points(result)
    peak, bandwidth = result.peaks.macs_per_s, result.peaks.dram_bytes_per_s
    if not plotted or not peak or not bandwidth:
        return empty(TITLE, "Roofline: nothing here both multiplies and touches DRAM, or the machine's peaks are not known.")
    shown = plotted[:most]
    longest, ridge = shown[0].busy_s, peak / bandwidth
    lowest = _decade(min(ridge, *(point.intensity for point in shown)) / 1.5, up=False)
    highest = _decade(max(ridge, *(point.intensity for point in shown)) * 1.5, up=True)
    bottom = _decade(min(point.rate for point in shown) / 1.5, up=False)
    top = _decade(max(peak, *(point.rate for point in shown)) * 1.5, up=True)
    figure = go.Figure()
    figure.add_scatter(
        x=[lowest, ridge, highest],
        y=[lowest * bandwidth, peak, peak],
        mode="lines",
        name=f"roof: {show(bandwidth, 'B/s')}, {show(peak, 'MAC/s')}",
        line={"color": "#888888", "width": 2},
        hoverinfo="skip",
    )
    for phase, shade in colours((point.phase for point in shown), PHASES).items():
        mine = [point for point in shown if point.phase == phase]
        figure.add_scatter(
            x=[point.intensity for point in mine],
            y=[point.rate for point in mine],
            mode="markers",
            name=plain(phase),
            marker={
                "color": shade,
                "opacity": 0.75,
                "line": {"width": 0},
                "size": [max(5.0, 30.0 * (point.busy_s / longest) ** 0.5) for point in mine],
            },
            text=list(_hover(mine, peak, bandwidth)),
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(type="log", **_decades(lowest, highest))
    figure.update_yaxes(type="log", **_decades(bottom, top))
    left = f" ({most} largest of {len(plotted)} points)" if len(plotted) > most else ""
    styled(
        figure,
        f"{TITLE}{left}",
        _sentence(plotted, ridge),
        x="intensity [MAC per DRAM byte]",
        y="rate [MAC/s]",
        height=500,
    )
    return figure.update_layout(margin_t=104)  # its legend takes two lines


def _decades(low: float, high: float) -> dict[str, Any]:
    """An axis over whole decades; plotly itself names none above 10^12."""
    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    texts = [show(10.0**power, "").replace(" ", "") if power >= 0 else f"{10.0**power:g}" for power in powers]
    return {"range": [powers[0], powers[-1]], "tickvals": [10.0**power for power in powers], "ticktext": texts}


def _decade(value: float, *, up: bool) -> float:
    """The power of ten at or beyond a value.

    >>> _decade(57.3, up=False), _decade(57.3, up=True)
    (10.0, 100.0)
    """
    return float(10.0 ** (math.ceil if up else math.floor)(math.log10(value)))


def _hover(mine: Iterable[Point], peak: float, bandwidth: float) -> Iterable[str]:
    for point in mine:
        roof = min(peak, point.intensity * bandwidth)
        yield (
            f"{plain(point.layer)}<br>{plain(point.phase)}<br>{show(point.intensity, 'MAC/B')}, {show(point.rate, 'MAC/s')}"
            f"<br>{percent(point.rate / roof)} of its roof<br>{show(point.busy_s, 's')} busy, {show(point.time_s, 's')} exposed"
        )


def _sentence(plotted: list[Point], ridge: float) -> str:
    below = sum(point.intensity < ridge for point in plotted)
    return (
        f"Roofline: {below} of {len(plotted)} layers and phases lie left of the ridge at {show(ridge, 'MAC/B')}, "
        "where DRAM bandwidth is the roof; the others lie under the machine's peak."
    )
