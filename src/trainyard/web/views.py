"""What the page shows, as JSON: workloads, machines with every field's source and meaning, results with their figures, ledgers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from trainyard.units import unit_of_field

if TYPE_CHECKING:
    from trainyard.ir.assumptions import Assumption
    from trainyard.papers.ledger import Row
    from trainyard.results.result import Result
    from trainyard.sensitivity import ChangeEffect, SensitivityResult

# fmt: off
FIGURES = {
    "time_by_layer": "layers", "time_by_class": "phases", "exposed_and_hidden": "overlap", "energy_by_component": "energy",
    "roofline": "roofline", "traffic_by_tensor": "traffic", "timeline": "timeline", "memory_over_time": "memory",
}
GROUPS = {
    "machines.presets.sigma": "SIGMA and its rivals", "machines.presets.tensordash": "TensorDash", "machines.presets.igo": "IGO",
    "machines.presets.mcdla": "MC-DLA", "machines.presets.direct": "DIRECT", "devices.dpu.presets": "One DPU",
    "machines.presets.gpus": "GPUs", "machines.presets.chips": "Training chips",
}
NAMED = {
    ("Accelerator", "order"): "trainyard.devices.accelerator.ordered:ORDER_NAMES", ("Accelerator",
    "precision"): "trainyard.ir:DTYPE_BYTES",
}
# fmt: on
"""Fields that are a text with known values: of which part, and where the values are listed."""


def workloads() -> list[dict[str, Any]]:
    from trainyard.workloads.zoo.catalogue import ENTRIES

    return [
        {
            "name": name,
            "about": f"{entry.parameters:,} parameters; {entry.source}",
            "batch": entry.batch,
            "family": entry.family,
            "note": entry.note,
        }
        for name, entry in ENTRIES.items()
    ]


def machines() -> list[dict[str, str]]:
    from trainyard.machines.registry import MACHINES

    return [
        {"name": name, "about": row.about, "group": GROUPS.get(row.path.partition(":")[0].removeprefix("trainyard."), "Others")}
        for name, row in MACHINES.items()
    ]


def machine(text: str, built: Any) -> dict[str, Any]:
    """A machine that has been built: its peaks, and every field with what is known of it."""
    from trainyard.ir import assumptions_of
    from trainyard.machines import title
    from trainyard.papers.provenance import remarks

    assumptions = {assumption.path: assumption for assumption in assumptions_of(built)}
    peaks = getattr(built, "peaks", None)
    return {
        "text": text,
        "title": title(built),
        "kind": "system" if hasattr(built, "plan") else "device",
        "peaks": asdict(peaks) if is_dataclass(peaks) and not isinstance(peaks, type) else None,
        "fields": list(_fields(built, "", assumptions, remarks(text, built))),
    }


def _fields(part: Any, prefix: str, assumptions: Mapping[str, Assumption], remarks: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    from trainyard.machines import describe
    from trainyard.machines.fields import hints, settable
    from trainyard.machines.registry import type_name

    if hasattr(part, "to_table"):  # a graph: shown as a table, changed as a whole
        return
    plain, own = describe(part), cast(type, type(part))
    for name in settable(own):
        value, path = getattr(part, name), f"{prefix}{name}"
        assumption = assumptions.get(path)
        inner = is_dataclass(value) and not isinstance(value, type)
        shown = type_name(cast(type, type(value))) if inner else plain[name]
        kind, choices = ("part", None) if inner else _kind(hints(own)[name], NAMED.get((own.__name__, name), ""))
        yield {
            "path": path,
            "value": shown,
            "text": _text(path, shown),
            "unit": unit_of_field(name) or "",
            "kind": kind,
            "choices": choices,
            "source": _source(path, assumption, remarks),
            "meaning": "" if assumption is None else assumption.meaning,
            "alternatives": [] if assumption is None else [_plain(other) for other in assumption.alternatives],
        }
        if inner:
            yield from _fields(value, f"{path}.", assumptions, remarks)


def _source(path: str, assumption: Assumption | None, remarks: Mapping[str, str]) -> str:
    """What the preset's line says; a remark that only repeats the assumption is none."""
    remark = remarks.get(path, "")
    return "" if assumption is not None and remark.startswith(assumption.meaning) else remark


def _plain(value: Any) -> Any:
    from trainyard.machines import describe

    return describe(value) if is_dataclass(value) and not isinstance(value, type) else value


def _text(path: str, value: Any) -> str:
    from trainyard.report.lines import value_text

    return value_text(path, value)


def _kind(hint: Any, listed: str = "") -> tuple[str, list[Any] | None]:
    """How a field is changed: a choice (of its type's, or of values that are `listed` somewhere), a switch, a number, a list, or as
    a text."""
    from trainyard.machines.fields import members

    options = members(hint)
    literals = [value for option in options if get_origin(option) is Literal for value in get_args(option)]
    if listed:
        module, _, name = listed.partition(":")
        literals = [*getattr(import_module(module), name)]
    if literals:
        return "choice", [*literals, *([None] if type(None) in options else [])]
    for plain, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "text")):
        if plain in options:
            return name, None
    if any(get_origin(option) is tuple for option in options):
        return "list", None
    if any(isinstance(get_origin(option), type) and issubclass(get_origin(option), Mapping) for option in options):
        return "table", None
    return "part", None


def figure(drawn: Any) -> dict[str, Any]:
    """A figure as plotly's own JSON."""
    import plotly.io

    found: dict[str, Any] = json.loads(plotly.io.to_json(drawn, engine="json"))
    return found


def result(run_result: Result, key: str) -> dict[str, Any]:
    """The object of `--json`, its figures, and what stands above them."""
    from trainyard.report import lines, plots, tables

    drawn = [*plots.informative(run_result), *plots.of_node(run_result)]
    return {
        "kind": "run",
        "key": key,
        **run_result.as_dict(mapping=False),
        "title": lines.title(run_result),
        "headline": run_result.headline,
        "facts": [{"name": name, "text": text} for name, text in lines.facts(run_result)],
        "bound": lines.bound_by(run_result),
        "memory": tables.memory_text(run_result),
        "memory_share": run_result.memory_share,
        "shortages": list(run_result.shortages),
        "conditions": lines.conditions(run_result),
        "provenance": lines.provenance(run_result),
        "node": _node(run_result),
        "figures": {FIGURES[plot.__name__]: figure(plot(run_result)) for plot in drawn},
    }


def _node(run_result: Result) -> dict[str, str] | None:
    """The machine's link graph as SVG, where it has one that can be drawn."""
    from trainyard.errors import BadInput
    from trainyard.report import nodes

    if nodes.graph(run_result.on) is None:
        return None
    try:
        svg, caption = nodes.drawing(run_result.on, run_result.machine)
    except BadInput as reason:  # too large
        return {"svg": "", "told": str(reason)}
    return {"svg": svg, "told": caption}


def sensitivity(result: SensitivityResult) -> dict[str, Any]:
    """What each change is worth alone and two at a time, and the tornado."""
    return {
        "kind": "whatif",
        "title": result.title,
        "metric": result.metric,
        "worths": [_effect(effect) for effect in result],
        "pairs": [
            {
                "first": _effect(pair.first),
                "second": _effect(pair.second),
                "after": pair.after,
                "change": pair.change,
                "interaction": pair.interaction,
                "error": pair.error,
            }
            for pair in result.pairs
        ],
        "figures": {"tornado": figure(result.figure())},
    }


def _effect(effect: ChangeEffect) -> dict[str, Any]:
    names = ("name", "kind", "meaning", "before", "after", "error")
    return {
        **{name: getattr(effect, name) for name in names},
        "value": _plain(effect.value),
        "alternative": _plain(effect.alternative),
        "value_text": _text(effect.name, effect.value),
        "alternative_text": _text(effect.name, effect.alternative),
        "change": None if effect.error else effect.change,
    }


def paper_title(paper: str) -> str:
    from trainyard.papers import bench

    return bench.citation(paper)


def ledger_of(rows: Sequence[Row], drawn: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The ledger of one paper with its figures, and with each the claims that it shows."""
    from trainyard.papers import ledger
    from trainyard.papers.pages import LEGEND, summary

    return {
        "rows": [row.as_dict() for row in rows],
        "counts": ledger.counts(rows),
        "summary": summary(rows),
        "legend": LEGEND,
        "figures": [
            {"name": name, "figure": picture, "claims": [row.id for row in rows if ledger.names_figure(row.claim, name)]}
            for name, picture in drawn.items()
        ],
    }
