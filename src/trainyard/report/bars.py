"""Bar plots: where time, traffic and energy go. Each function returns a figure; a long tail becomes one bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainyard.report.colours import CLASSES, DIRECTIONS, EXPOSED, PHASES, colours, empty, plain, scale, styled
from trainyard.report.lines import NOBODY, classes, overlap, peaks, percent
from trainyard.results.result import IDLE, Result
from trainyard.units import show

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_BARS = 40
MOST_TENSORS = 15
"""Of one level; if there are more they are one bar."""
FEWEST_MODULES = 8
CLIPPED = 3.0
"""A last bar of all others is cut off where it is this many times the longest: the named bars must stay readable."""
Parts = Mapping[tuple[str, str], float]
"""(bar, colour) -> value"""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plot is of; `summed` where its bars are parts of one whole."""

    title: str
    quantity: str
    unit: str
    colours: Mapping[str, str]
    bars: str
    summed: bool = True


# fmt: off
TIME_BY_LAYER   = Subject("Time by layer and phase",     "exposed time per step", "s", PHASES,     "layers")
TIME_BY_CLASS   = Subject("Time by phase and class",     "exposed time per step", "s", CLASSES,    "phases")
OVERLAP         = Subject("Exposed and hidden time",     "time per step",         "s", EXPOSED,    "classes")
TRAFFIC         = Subject("Traffic by tensor",           "traffic per step",      "B", DIRECTIONS, "tensors")
ENERGY          = Subject("Energy by component",         "energy per step",       "J", PHASES,     "components")
MACHINES_TIME   = Subject("Time by machine and phase",   "exposed time per step", "s", PHASES,     "machines", summed=False)
MACHINES_CLASS  = Subject("Time by machine and class",   "exposed time per step", "s", CLASSES,    "machines", summed=False)
MACHINES_ENERGY = Subject("Energy by machine and phase", "energy per step",       "J", PHASES,     "machines", summed=False)
MACHINES_MEMORY = Subject("Peak memory by machine",      "peak memory",           "B", {},         "machines", summed=False)
# fmt: on


def time_by_layer(result: Result, top: int = MOST_BARS) -> go.Figure:
    """Exposed time of each layer, stacked by phase, in the order of the network."""
    parts = {
        (f"({IDLE})" if phase == IDLE else layer or NOBODY["layer"], phase): cost.time_s
        for (layer, phase), cost in result.group("layer", "phase").items()
    }
    return _stacked(_folded(parts, top), TIME_BY_LAYER, top)


def time_by_class(result: Result) -> go.Figure:
    """Exposed time of each phase, stacked by class: compute, synchronisation, copy, idle."""
    parts = {(phase, kind): cost.time_s for (phase, kind), cost in result.group("phase", "kind").items()}
    return _stacked({key: parts[key] for key in sorted(parts, key=lambda key: _place(key[0]))}, TIME_BY_CLASS)


def exposed_and_hidden(result: Result) -> go.Figure:
    """Of each class what the step waits for, and what goes on behind a class before it: compute, synchronisation, copy."""
    parts: dict[tuple[str, str], float] = {}
    for name, (seen, hidden) in overlap(result).items():
        parts |= {(name, "exposed"): seen, (name, "hidden"): hidden or 0.0}
    if idle := result.by_class.get(IDLE):
        parts[IDLE, IDLE] = idle.time_s
    figure = _stacked(parts, OVERLAP)
    caption = "; ".join(f"{name} {text}" for name, text in classes(result))
    return figure.update_layout(meta={"description": f"{OVERLAP.title} by class: {caption}."}) if caption else figure


def traffic_by_tensor(result: Result, top: int = MOST_BARS) -> go.Figure:
    """Bytes moved for each tensor at each level, stacked by direction."""
    tensors: dict[str, set[str]] = {}
    for level, tensor, _ in result.traffic:
        tensors.setdefault(level, set()).add(tensor)
    parts: dict[tuple[str, str], float] = {}
    for (level, tensor, direction), count in sorted(result.traffic.items(), key=lambda pair: pair[0][0]):
        many = len(tensors[level]) > MOST_TENSORS  # by layer: feature maps that are paged
        bar = f"{level}: {len(tensors[level])} tensors" if many else f"{level}: {tensor}"
        parts[bar, direction] = parts.get((bar, direction), 0.0) + count
    return _stacked(parts, TRAFFIC, top)


def energy_by_component(result: Result, top: int = MOST_BARS) -> go.Figure:
    """Joules of each component of the machine, stacked by phase."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(phase, len(numbers)) for phase in result.rows.phase], np.intp)
    parts: dict[tuple[str, str], float] = {}
    for component, joules in result.columns.energy.items():
        sums = np.bincount(codes, weights=joules, minlength=len(numbers))
        parts.update({(component, phase): float(sums[number]) / result.steps for phase, number in numbers.items()})
    return _stacked(parts, ENERGY, top)


def time_by_machine(results: Sequence[Result]) -> go.Figure:
    """Exposed time of each machine, stacked by phase."""
    costs = {(name, phase): cost for name, result in _named(results) for phase, cost in result.by_phase.items()}
    return _stacked({key: cost.time_s for key, cost in costs.items()}, MACHINES_TIME)


def classes_by_machine(results: Sequence[Result]) -> go.Figure:
    """Exposed time of each machine, stacked by class: where a better part moves the bottleneck."""
    costs = {(name, kind): cost for name, result in _named(results) for kind, cost in result.by_class.items()}
    return _stacked({key: cost.time_s for key, cost in costs.items()}, MACHINES_CLASS)


def energy_by_machine(results: Sequence[Result]) -> go.Figure:
    """Energy of each machine, stacked by phase."""
    costs = {(name, phase): cost for name, result in _named(results) for phase, cost in result.by_phase.items()}
    return _stacked({key: cost.energy_j for key, cost in costs.items()}, MACHINES_ENERGY)


def memory_by_machine(results: Sequence[Result]) -> go.Figure:
    """The most that each memory of each machine holds; of equal memories of several devices, one."""
    parts = {(name, pool): float(held.peak_bytes) for name, result in _named(results) for pool, held in peaks(result)}
    return _stacked(parts, MACHINES_MEMORY)


def _named(results: Sequence[Result]) -> Iterator[tuple[str, Result]]:
    """A bar's name for each result; a machine's second result has a number behind its name."""
    seen: dict[str, int] = {}
    for result in results:
        seen[result.machine] = seen.get(result.machine, 0) + 1
        yield (result.machine if seen[result.machine] == 1 else f"{result.machine} ({seen[result.machine]})"), result


def _place(phase: str) -> int:
    return list(PHASES).index(phase) if phase in PHASES else len(PHASES)


def _folded(parts: Parts, top: int) -> Parts:
    """Where the `top` layers are not half of it all: modules instead, paths cut until they are few, if that leaves enough."""
    totals: dict[str, float] = {}
    for (bar, _), value in parts.items():
        totals[bar] = totals.get(bar, 0.0) + value
    if sum(sorted(totals.values())[-top - 1 :]) >= sum(totals.values()) / 2:
        return parts
    for depth in range(max(bar.count(".") for bar in totals), 0, -1):
        cut = {bar: ".".join(bar.split(".")[:depth]) for bar in totals}
        if FEWEST_MODULES <= len(set(cut.values())) <= top:
            folded: dict[tuple[str, str], float] = {}
            for (bar, colour), value in parts.items():
                folded[cut[bar], colour] = folded.get((cut[bar], colour), 0.0) + value
            return folded
    return parts


def _stacked(parts: Parts, subject: Subject, top: int = MOST_BARS) -> go.Figure:
    """Horizontal bars, one for each name, stacked by colour. Bars are placed by number, so that equal short names stay apart."""
    import plotly.graph_objects as go

    totals: dict[str, float] = {}
    for (bar, _), value in parts.items():
        totals[bar] = totals.get(bar, 0.0) + value
    totals = {bar: value for bar, value in totals.items() if value}
    if not totals:
        return empty(subject.title, f"{subject.title}: no {subject.quantity.removesuffix(' per step')} is booked in this result.")
    position, names = _positions(totals, top, subject.bars)
    heights: dict[str, list[float]] = {}
    for (bar, colour), value in parts.items():
        if value:
            heights.setdefault(colour, [0.0] * len(names))[position[bar]] += value
    total_height = sum(totals.values())
    longest = [sum(column) for column in zip(*heights.values(), strict=True)]
    cut = 1 < len(names) < len(totals) and longest[-1] > CLIPPED * max(longest[:-1])
    edge = 1.3 * max(longest[:-1]) if cut else 1.03 * max(longest)
    factor, unit = scale(edge, subject.unit)
    figure = go.Figure()
    for colour, shade in colours(heights, subject.colours).items():
        of = [total_height] * len(names) if subject.summed else longest
        labels = [f"{show(v, subject.unit)} ({percent(v / total)})" for v, total in zip(heights[colour], of, strict=True)]
        figure.add_bar(
            orientation="h",
            y=list(range(len(names))),
            x=[value / factor for value in heights[colour]],
            name=plain(colour),
            marker={"color": shade},
            customdata=[f"{plain(bar)}<br>{plain(colour)}: {text}" for bar, text in zip(names, labels, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.25, showlegend=True)
    figure.update_yaxes(range=[len(names) - 0.5, -0.5], showgrid=False, zeroline=False, ticksuffix="  ")
    figure.update_yaxes(tickmode="array", tickvals=list(range(len(names))), ticktext=[plain(bar) for bar in names])
    figure.update_xaxes(range=[0, edge / factor])
    if cut:
        text = f"{show(longest[-1], subject.unit)} in all, cut off here  "
        white = {"color": "#ffffff"}
        figure.add_annotation(x=edge / factor, y=len(names) - 1, xanchor="right", text=text, showarrow=False, font=white)
    height = 150 + 22 * max(len(names), 4)
    return styled(figure, subject.title, _sentence(subject, totals), x=f"{subject.quantity} [{unit}]", y="", height=height)


def _positions(totals: Mapping[str, float], top: int, what: str) -> tuple[dict[str, int], list[str]]:
    """Where each bar stands, and the names by place: the `top` largest in their own order, the others together in the last."""
    if len(totals) <= top + 1:
        return {bar: number for number, bar in enumerate(totals)}, list(totals)
    chosen = set(sorted(totals, key=lambda bar: -totals[bar])[:top])
    names = [bar for bar in totals if bar in chosen]
    position = {bar: number for number, bar in enumerate(names)}
    return {bar: position.get(bar, len(names)) for bar in totals}, [*names, f"{len(totals) - len(names)} other {what}"]


def _sentence(subject: Subject, totals: Mapping[str, float]) -> str:
    first = sorted(totals, key=lambda bar: -totals[bar])[:3]
    total = sum(totals.values())
    if not subject.summed:
        return f"{subject.title}: {', '.join(f'{bar} {show(value, subject.unit)}' for bar, value in totals.items())}."
    named = ", ".join(f"{bar} {show(totals[bar], subject.unit)} ({percent(totals[bar] / total)})" for bar in first)
    return f"{subject.title}: {show(total, subject.unit)} over {len(totals)} {subject.bars}; most in {named}."
