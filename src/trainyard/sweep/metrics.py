"""The numbers of a Result that a point keeps, by name.

Every point keeps `BASE`, bytes by level (`traffic_bytes.dram`) and peak memory by pool. A study may ask for more by name:
`power_w`, `energy_delay_js`, `area_m2` and all others of `results.metrics.DERIVED`; dotted, `by_phase.forward` (its time),
`by_class.copy.busy_s`, `by_layer.layer4.0.conv2.energy_j`, `energy_by_component.dram`, `area_by_component.mac`, `traffic_bytes`
(all levels), `peaks.macs_per_s`. What one machine does not have (a pool, a class, an area) is missing there, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput, UnknownName
from trainyard.results.metrics import BASE, BY_NAME, DERIVED, metrics_of
from trainyard.results.result import Cost, Result
from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    from trainyard.ir import Step

GROUPS = ("by_phase", "by_class", "by_layer")
"""Of costs: a Cost's own fields may follow, its time is meant where none does."""
OTHERS = (*DERIVED, "energy_by_component", "area_by_component", "peaks", "samples", "steps", "batch", "clock_hz")
COSTS = ("time_s", "busy_s", "energy_j", "macs", "traffic_bytes")
PHASES = ("forward", "loss", "grad_input", "grad_weight", "update", "copy", "idle")
CLASSES = ("compute", "synchronisation", "copy", "idle")
PEAKS = ("macs_per_s", "dram_bytes_per_s", "devices")


def require_metric(name: object, where: str) -> str:
    """Refuses, before anything is run, what no Result has."""
    if not isinstance(name, str) or not name:
        raise BadInput(f"{where}: expected the name of a metric, such as time_s, got {name!r}")
    head, _, rest = name.partition(".")
    names = (*BASE, *BY_NAME, *GROUPS, *OTHERS)
    if head not in names:
        raise UnknownName("metric", head, names, where)
    if head in ("by_phase", "by_class", "peaks"):
        inner = {"by_phase": PHASES, "by_class": CLASSES, "peaks": PEAKS}[head]
        first, _, last = rest.partition(".")
        if first not in inner:
            raise UnknownName(f"part of {head}", first, inner, where)
        if head != "peaks" and last and last.partition(".")[0] not in COSTS:
            raise UnknownName(f"number of {head}.{first}", last, COSTS, where)
    elif head in ("by_layer", "energy_by_component", "area_by_component") and not rest:
        raise BadInput(f"{where}: {name}: which one? write {name}.NAME")
    elif rest and head in (*BASE, *DERIVED, "samples", "steps", "batch", "clock_hz"):
        raise BadInput(f"{where}: {name}: {head} is one number")
    return name


def require_layers(names: Iterable[str], steps: Iterable[Step], where: str) -> None:
    """Refuses a metric of a layer that no workload of a study has."""
    layers = {layer for step in steps for layer in step.layers if layer}
    for name in names:
        head, _, path = name.partition(".")
        if head == "by_layer" and not any(path == layer or path.startswith(f"{layer}.") for layer in layers):
            layer, _, number = path.rpartition(".")
            raise UnknownName("layer", layer if number in COSTS else path, layers, f"{where}: {name}")


def unit_of(name: str) -> str:
    """The unit of a metric or a setting, by its name.

    >>> unit_of("by_phase.forward"), unit_of("traffic_bytes.dram"), unit_of("array.rows")
    ('s', 'B', '')
    """
    words = name.split(".")
    timed = words[0] in ("by_phase", "by_class", "by_layer") and unit_of_field(words[-1]) is None
    return "s" if timed else unit_of_field(words[-1]) or unit_of_field(words[0]) or ""


def shown(name: str, value: Any) -> str:
    """A metric or a setting for the eye, with its unit.

    >>> shown("dram_bytes_per_s", 7.5e10), shown("scratchpad_bytes", 8388608), shown("time_s", 0.0123456), shown("order", "os")
    ('75 GB/s', '8 MiB', '12.35 ms', 'os')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if not (unit := unit_of(name)):
        return f"{value:.6g}"
    return show(value, unit, binary=unit == "B" and value >= 1024 and value % 1024 == 0, digits=4)


def extra(names: Iterable[str]) -> tuple[str, ...]:
    """Those that a point does not keep anyway, sorted."""
    return tuple(sorted({name for name in names if name not in BASE and not _is_always_stored(name)}))


def _is_always_stored(name: str) -> bool:
    head, _, rest = name.partition(".")
    return head in BY_NAME and bool(rest)


def of_result(result: Result, more: Iterable[str] = ()) -> dict[str, float]:
    metrics = metrics_of(result)
    groups: dict[str, Any] = {}
    for name in more:
        value = _number(result, name, groups)
        if value is not None:
            metrics[name] = value
    return metrics


def _number(result: Result, name: str, groups: dict[str, Any]) -> float | None:
    head, _, rest = name.partition(".")
    if head not in groups:  # a group is a pass over all rows: one for all its names
        groups[head] = getattr(result, head)
    value = _inside(groups[head], rest)
    if isinstance(value, Cost):
        value = value.time_s
    if isinstance(value, Mapping):
        value = sum(value.values())
    return float(value) if isinstance(value, int | float) else None


def _inside(value: Any, path: str) -> Any:
    """Down a dotted path; keys may have dots themselves, the longest that fits is meant."""
    if not path:
        return value
    if not isinstance(value, Mapping):
        head, _, rest = path.partition(".")
        return _inside(getattr(value, head, None), rest)
    words = path.split(".")
    for count in range(len(words), 0, -1):
        if (key := ".".join(words[:count])) in value:
            return _inside(value[key], ".".join(words[count:]))
    return None
