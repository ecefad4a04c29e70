"""What the next 10 % of each resource is worth: the machine is run again with one field raised at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.report.lines import percent
from trainyard.results.result import Result
from trainyard.units import parse, show, unit_of_field

ENDINGS = ("_hz", "_bytes_per_s", "_bytes", "_macs_per_s", "_flop_per_s")
COUNTS = frozenset(
    {
        "rows", "columns", "dimms", "elements", "lanes", "depth", "tiles", "dpes", "multipliers", "bandwidth", "macs_per_element",
        "macs_per_cycle", "units",
    }
)  # fmt: skip
SIZES_OF_THINGS = (
    "accumulator_bytes", "bucket_bytes", "burst_bytes", "element_bytes", "line_bytes", "message_bytes", "page_bytes",
    "request_bytes", "sector_bytes", "transaction_bytes",
)  # fmt: skip
"""Fields that end like a capacity and are none: more of them is not more of a resource."""
POLICIES = ("depth",)
"""Counts that are a policy in a node with an overlay, and a resource elsewhere: how many ops are made again in a row."""
GRAPH = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalGain:
    """One field raised: `change` is the relative change of the time (negative: faster), None where the machine refused it."""

    path: str
    before: float
    after: float
    change: float | None = None
    step_change: float | None = None
    error: str = ""

    @property
    def raised(self) -> float:
        return self.after / self.before - 1.0

    def text(self) -> str:
        """`dram_bytes_per_s 150 GB/s -> 165 GB/s (+10 %)`."""
        unit = unit_of_field(self.path.replace(".", "_"))
        binary = unit == "B"
        old, new = (f"{v:g}" if unit is None else show(v, unit, binary=binary) for v in (self.before, self.after))
        return f"{self.path} {old} -> {new} (+{percent(self.raised)})"


def resources(config: Mapping[str, Any], prefix: str = "", outer: frozenset[str] = frozenset()) -> Iterator[tuple[str, float]]:
    """The fields of a machine that are amounts of something, by path, in the order of the config.

    A field that the machine around a part has too (a node's links and its memory-nodes' links) is the machine's.

    >>> list(resources({"clock_hz": 1e9, "order": "plain", "array": {"type": "systolic", "rows": 128}}))
    [('clock_hz', 1000000000.0), ('array.rows', 128)]
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from resources(value, f"{prefix}{name}.", outer | config.keys())
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            continue
        if name in outer or (name in POLICIES and "overlay" in config):
            continue
        if name in COUNTS or (name.endswith(ENDINGS) and not name.endswith(SIZES_OF_THINGS)):
            yield f"{prefix}{name}", value


def graph_resources(config: Mapping[str, Any]) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """Of a machine that is given by its graph: its wires and its memories by their rate, and the graph with a tenth more of it."""
    graph = config.get(GRAPH)
    if not isinstance(graph, Mapping):
        return
    for rows, key in (("wires", "bytes_per_s"), ("places", "memory_bytes_per_s")):
        rates = [parse(row[key], "B/s") if key in row else None for row in graph.get(rows, ())]
        for rate in dict.fromkeys(rates):
            if rate is not None:
                pairs = zip(graph[rows], rates, strict=True)
                more = [{**row, key: raised(rate)} if own == rate else row for row, own in pairs]
                yield f"{GRAPH}.{rows}.{key}", rate, {GRAPH: {**graph, rows: more}}


def raised(value: float) -> float:
    """A tenth more; a whole number is rounded up to the next.

    >>> raised(128), raised(4), raised(150e9)
    (141, 5, 165000000000.0)
    """
    return -(-value * 11 // 10) if isinstance(value, int) else float(f"{value * 1.1:.12g}")


def layer_time_s(result: Result, layer: str) -> float:
    """Exposed time of a layer and of the layers below it; of the whole step for ''."""
    if not layer:
        return result.time_s
    return sum(cost.time_s for name, cost in result.by_layer.items() if name == layer or name.startswith(f"{layer}."))


def marginal_gains(result: Result, layer: str = "") -> list[MarginalGain]:
    """Every resource raised by a tenth, the most valuable first, those that the machine refuses last."""
    if result.rerun is None:
        return []
    gains = []
    before_s = layer_time_s(result, layer)
    fields = ((path, value, {path: raised(value)}) for path, value in resources(result.config))
    for path, value, changes in (*fields, *graph_resources(result.config)):
        gain = MarginalGain(path=path, before=value, after=raised(value))
        try:
            rerun = result.rerun(changes)
        except TrainyardError as problem:
            gains.append(replace(gain, error=str(problem)))
            continue
        change = layer_time_s(rerun, layer) / before_s - 1.0 if before_s else 0.0
        gains.append(replace(gain, change=change, step_change=rerun.time_s / result.time_s - 1.0))
    return sorted(gains, key=lambda gain: (gain.change is None, gain.change or 0.0))
