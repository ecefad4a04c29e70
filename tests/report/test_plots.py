"""Plots: every figure has units, sums to the result, and stays small whatever the number of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trainyard.report import bars, plots, roofline, spans
from trainyard.report.colours import CLASSES, PHASES
from trainyard.results.result import Result, Rows
from trainyard.units import parse

Make = Callable[..., Result]


def unit_of(title: str) -> str:
    return title[title.index("[") + 1 : title.index("]")]


@pytest.mark.parametrize("plot", plots.ALL, ids=lambda plot: plot.__name__)
def test_axes_have_units_and_titles_and_words_for_those_who_cannot_see(result: Result, plot: Callable[[Result], object]) -> None:
    figure = plot(result)
    assert figure.layout.title.text
    assert "[" in figure.layout.xaxis.title.text
    assert len(figure.layout.meta["description"]) > 30
    numeric_y = plot in (plots.roofline, plots.memory_over_time)
    assert ("[" in (figure.layout.yaxis.title.text or "")) == numeric_y


@pytest.mark.parametrize("plot", plots.ALL, ids=lambda plot: plot.__name__)
def test_a_thousand_layers_make_a_bounded_figure(large_result: Result, plot: Callable[[Result], object]) -> None:
    figure = plot(large_result)
    shapes = sum(len(trace.x) for trace in figure.data)
    assert shapes <= 2600
    assert len(figure.to_json()) < 600_000


@pytest.mark.parametrize(("plot", "total"), [
    (bars.time_by_layer, "time_s"), (bars.time_by_class, "time_s"), (bars.energy_by_component, "energy_j"),
])  # fmt: skip
@pytest.mark.parametrize("layers", [4, 90])
def test_bars_sum_to_the_result(make_result: Make, plot: Callable[[Result], object], total: str, layers: int) -> None:
    result = make_result(layers=layers)
    figure = plot(result)
    unit = unit_of(figure.layout.xaxis.title.text)
    summed = sum(sum(trace.x) for trace in figure.data) * parse(f"1 {unit}", unit[-1])
    assert summed == pytest.approx(getattr(result, total))


def test_traffic_bars_sum_to_all_levels(result: Result) -> None:
    figure = bars.traffic_by_tensor(result)
    factor = parse(f"1 {unit_of(figure.layout.xaxis.title.text)}", "B")
    assert sum(sum(trace.x) for trace in figure.data) * factor == pytest.approx(sum(result.traffic_bytes.values()))
    assert {trace.name for trace in figure.data} == {"read", "write", "spill"}


def test_colours_mean_the_same_in_every_plot(result: Result) -> None:
    for plot in (bars.time_by_layer, bars.energy_by_component, roofline.roofline, spans.timeline):
        for trace in plot(result).data:
            if trace.name in PHASES:
                assert trace.marker.color == PHASES[trace.name]
    for trace in bars.time_by_class(result).data:
        assert trace.marker.color == CLASSES[trace.name]


def test_the_tail_becomes_one_bar_and_does_not_dwarf_the_others(make_result: Make) -> None:
    figure = bars.time_by_layer(make_result(layers=300), top=10)
    assert len(figure.layout.yaxis.ticktext) == 11
    assert figure.layout.yaxis.ticktext[-1] == "291 other layers"  # and what is outside any
    named = max(sum(trace.x[bar] for trace in figure.data) for bar in range(10))
    assert figure.layout.xaxis.range[1] == pytest.approx(1.3 * named)
    assert "in all" in figure.layout.annotations[0].text


def test_many_even_layers_are_shown_as_their_modules(make_result: Make) -> None:
    result = make_result(layers=200)
    names = tuple(f"block{number % 12}.{name}" if name else "" for number, name in enumerate(result.rows.layer))
    even = replace(result.columns, time_ps=np.full(len(result.rows), 10**6, np.int64))
    rows = Rows(result.rows.op, names, result.rows.phase, result.rows.resource, result.rows.kind, result.rows.bound)
    figure = bars.time_by_layer(replace(result, rows=rows, columns=even))
    assert {name.split(".")[0] for name in figure.layout.yaxis.ticktext} >= {f"block{number}" for number in range(12)}
    assert len(figure.layout.yaxis.ticktext) <= 41


def test_names_that_look_alike_when_cut_stay_two_bars(make_result: Make) -> None:
    result = make_result(layers=3)
    end = "x" * 80
    names = tuple(f"{name}{end}" if name else "" for name in result.rows.layer)
    rows = Rows(result.rows.op, names, result.rows.phase, result.rows.resource, result.rows.kind, result.rows.bound)
    figure = bars.time_by_layer(replace(result, rows=rows))
    assert len(set(figure.data[0].y)) == 4
    assert len(set(figure.layout.yaxis.ticktext)) == 2


def test_the_roof_is_the_machines_and_points_lie_under_it(result: Result) -> None:
    figure = plots.roofline(result)
    roof = figure.data[0]
    assert roof.x[1] == pytest.approx(result.peaks.macs_per_s / result.peaks.dram_bytes_per_s)
    assert roof.y[1] == roof.y[2] == result.peaks.macs_per_s
    forward = next(trace for trace in figure.data if trace.name == "forward")
    cost = result.group("layer", "phase")["encoder.layer5.conv", "forward"]
    position = int(np.argmin(np.abs(np.array(forward.x) - cost.macs / cost.traffic_bytes["dram"])))
    assert forward.y[position] == pytest.approx(cost.macs / cost.busy_s)
    for trace in figure.data[1:]:
        for x, y in zip(trace.x, trace.y, strict=True):
            assert y <= min(result.peaks.macs_per_s, x * result.peaks.dram_bytes_per_s)


def test_the_timeline_draws_large_tasks_alone_and_small_ones_together(result: Result) -> None:
    all_of_them = spans.timeline(result)
    assert sum(len(trace.x) for trace in all_of_them.data) == len(result.timeline)
    few = spans.timeline(result, most=3)
    small, *large = few.data
    assert small.name == f"{len(result.timeline) - 3} smaller tasks"
    assert sum(len(trace.x) for trace in large) == 3
    longest = np.sort(result.timeline.busy_ps)[-3:].sum() * 1e-6
    assert sum(sum(trace.x) for trace in large) == pytest.approx(longest)


def test_memory_keeps_its_peak_when_thinned(large_result: Result) -> None:
    result = large_result
    figure = spans.memory_over_time(result, most=50)
    held = figure.data[0]
    unit = unit_of(figure.layout.yaxis.title.text)
    assert len(held.x) <= 51
    assert max(held.y) * parse(f"1 {unit}", "B") == result.peak_memory_bytes["hbm"]
    assert held.x[-1] == pytest.approx(result.timeline.end_ps * 1e-12 / parse(f"1 {unit_of(figure.layout.xaxis.title.text)}", "s"))


def test_a_plot_without_data_says_why(result: Result) -> None:
    bare = replace(result, timeline=None, columns=replace(result.columns, energy={}, traffic={}))
    for plot in (plots.timeline, plots.memory_over_time, plots.energy_by_component, plots.traffic_by_tensor, plots.roofline):
        figure = plot(bare)
        assert not figure.data
        assert len(figure.layout.annotations[0].text) > 20
