"""Every plot of a result: functions that return a plotly figure with units on its axes.

>>> [plot.__name__ for plot in ALL]
['time_by_layer', 'time_by_class', 'energy_by_component', 'roofline', 'traffic_by_tensor', 'timeline', 'memory_over_time']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainyard.report.bars import energy_by_component, time_by_class, time_by_layer, traffic_by_tensor
from trainyard.report.roofline import roofline
from trainyard.report.spans import memory_over_time, timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.results import Result

ALL: tuple[Callable[[Result], go.Figure], ...] = (
    time_by_layer,
    time_by_class,
    energy_by_component,
    roofline,
    traffic_by_tensor,
    timeline,
    memory_over_time,
)

__all__ = [
    "ALL", "energy_by_component", "memory_over_time", "roofline", "time_by_class", "time_by_layer", "timeline", "traffic_by_tensor",
]  # fmt: skip
