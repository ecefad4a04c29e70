"""Every plot of a result: functions that return a plotly figure with units on its axes.

>>> [plot.__name__ for plot in ALL][:4]
['time_by_layer', 'time_by_class', 'exposed_and_hidden', 'energy_by_component']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.errors import UnknownName
from trainyard.report import nodes
from trainyard.report.bars import (
    classes_by_machine,
    energy_by_component,
    energy_by_machine,
    exposed_and_hidden,
    memory_by_machine,
    time_by_class,
    time_by_layer,
    time_by_machine,
    traffic_by_tensor,
)
from trainyard.report.lines import overlap
from trainyard.report.roofline import roofline
from trainyard.report.spans import memory_over_time, timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.results.result import Result

Plot = Callable[["Result"], "go.Figure"]
ALL: tuple[Plot, ...] = (
    time_by_layer,
    time_by_class,
    exposed_and_hidden,
    energy_by_component,
    roofline,
    traffic_by_tensor,
    timeline,
    memory_over_time,
)


BY_NAME: Mapping[str, Plot] = {
    "time": time_by_layer,
    "class": time_by_class,
    "overlap": exposed_and_hidden,
    "energy": energy_by_component,
    "traffic": traffic_by_tensor,
    "roofline": roofline,
    "timeline": timeline,
    "memory": memory_over_time,
}
"""What `Result.plot` takes."""
OF_MACHINES: Mapping[str, Callable[[Sequence[Result]], go.Figure]] = {
    "time": time_by_machine,
    "class": classes_by_machine,
    "energy": energy_by_machine,
    "memory": memory_by_machine,
}
"""What `Comparison.plot` takes."""


def plot_of(result: Result, which: str) -> go.Figure:
    """One result's plot by its short name."""
    if which not in BY_NAME:
        raise UnknownName("plot", str(which), BY_NAME)
    return BY_NAME[which](result)


def plot_of_machines(results: Sequence[Result], which: str) -> go.Figure:
    """A plot of several results by its short name."""
    if which not in OF_MACHINES:
        raise UnknownName("plot of a comparison", str(which), OF_MACHINES)
    return OF_MACHINES[which](results)


def of_node(result: Result) -> tuple[Plot, ...]:
    """Those that stand beside the drawing of a node: what its streams wait for, and how full its memories are."""
    if nodes.graph(result.on) is None:
        return ()
    return (exposed_and_hidden, memory_over_time) if len(overlap(result)) > 1 else (memory_over_time,)


def informative(result: Result) -> tuple[Plot, ...]:
    """The others that say something of this result: with compute alone, nothing is hidden."""
    silent = () if len(overlap(result)) > 1 else (exposed_and_hidden,)
    return tuple(plot for plot in ALL if plot not in (*of_node(result), *silent))


def side_by_side(results: Sequence[Result]) -> tuple[Callable[[Sequence[Result]], go.Figure], ...]:
    """Plots of several machines."""
    several = any(len(overlap(result)) > 1 for result in results)
    return (time_by_machine, *([classes_by_machine] if several else []), energy_by_machine)


__all__ = [
    "ALL",
    "classes_by_machine",
    "energy_by_component",
    "energy_by_machine",
    "exposed_and_hidden",
    "informative",
    "memory_by_machine",
    "memory_over_time",
    "of_node",
    "plot_of",
    "plot_of_machines",
    "roofline",
    "side_by_side",
    "time_by_class",
    "time_by_layer",
    "time_by_machine",
    "timeline",
    "traffic_by_tensor",
]  # fmt: skip
