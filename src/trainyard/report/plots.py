"""Every plot of a result: functions that return a plotly figure with units on its axes.

>>> [plot.__name__ for plot in ALL][:4]
['time_by_layer', 'time_by_class', 'exposed_and_hidden', 'energy_by_component']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainyard.report import nodes
from trainyard.report.bars import (
    classes_by_machine,
    energy_by_component,
    energy_by_machine,
    exposed_and_hidden,
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
    "memory_over_time",
    "of_node",
    "roofline",
    "side_by_side",
    "time_by_class",
    "time_by_layer",
    "time_by_machine",
    "timeline",
    "traffic_by_tensor",
]  # fmt: skip
