"""The numbers of a result that stand alone, by name: what sweeps store and minimise, what `whatif` and comparisons look at.

`BASE` are sums that every run has at hand; `DERIVED` follow from them, or from the machine's area. What a machine does not state
(an area, a static power) is missing, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trainyard.errors import BadInput, UnknownName
from trainyard.ir.assumptions import OF_ENERGY

if TYPE_CHECKING:
    from trainyard.results.result import Result

BASE = ("time_s", "samples_per_s", "energy_j", "cycles", "array_cycles", "macs", "memory_share")
DERIVED = OF_ENERGY
BY_NAME = ("traffic_bytes", "peak_memory_bytes")


def metrics_of(result: Result, names: Iterable[str] = BASE) -> dict[str, float]:
    """Those of `names` that the result has, then bytes by level (`traffic_bytes.dram`) and peak memory by pool."""
    metrics = {name: float(value) for name in names if (value := getattr(result, name)) is not None}
    for head in BY_NAME:
        metrics.update({f"{head}.{name}": float(value) for name, value in getattr(result, head).items()})
    return metrics


def metric_of(result: Result, metric: str) -> float:
    """A number of a result by its name, or by its name and a key: `time_s`, `traffic_bytes.dram`, `peak_memory_bytes.dram`."""
    name, _, key = metric.partition(".")
    if name not in (*BASE, *DERIVED, *BY_NAME):
        raise UnknownName("metric", metric, (*BASE, *DERIVED, "traffic_bytes.LEVEL", "peak_memory_bytes.POOL"))
    value = getattr(result, name)
    if key and isinstance(value, Mapping):
        if key not in value:
            raise UnknownName(f"key of {name}", key, map(str, value), where="metric")
        value = value[key]
    if value is None:
        raise BadInput(f"{result.machine} has no {name}: the machine does not state it")
    if not isinstance(value, int | float):
        raise BadInput(f"{metric} is several numbers: write {metric}.{next(iter(value), 'NAME')}")
    return float(value)
