"""Sensitivity of the speedup of MC-DLA(B) over DC-DLA to each assumption of the nodes, changed in both designs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.machines import with_overrides
from trainyard.machines.presets.mcdla import DC_DLA, MCDLA_B
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, Parallel, job, prefetch, step_times
from trainyard.papers.mcdla.printed import harmonic
from trainyard.sensitivity import KINDS, Change, Kind, SensitivityStudy, has_field, parameters
from trainyard.systems.node.systems import Node
from trainyard.units import show, unit_of_field

METRIC = "speedup of MC-DLA(B) over DC-DLA (harmonic mean of eight networks, batch 512)"


def shown(name: str, value: Any) -> Any:
    """A field's value with its unit.

    >>> shown("pcie_bytes_per_s", 12e9), shown("message_bytes", 4096), shown("pcie_latency_s", 0.0)
    ('12 GB/s', '4 KiB', '0 s')
    >>> shown("bucket_bytes", 0), shown("window", None), shown("contention", False)
    ('0 B', None, 'False')
    """
    unit = unit_of_field(name)
    if unit is None or value is None:
        return str(value) if isinstance(value, bool) else value  # a table would take it for a number
    return show(value, unit, binary=unit == "B" and value % 1024 == 0)


def nodes(changes: Sequence[Change]) -> tuple[Node, Node]:
    """DC-DLA and MC-DLA(B) with changes made; a field that only one of them has leaves the other as it is."""
    made = {path: value for change in changes for path, value in change.payload.items()}
    slow, fast = (with_overrides(one, {path: made[path] for path in made if has_field(one, path)}) for one in (DC_DLA, MCDLA_B))
    return slow, fast


def alternatives() -> Iterator[Change]:
    """Every open field of the two nodes, and the bytes of an element."""
    open_fields = {one.name: one for node in (DC_DLA, MCDLA_B) for one in fields(node) if "meaning" in one.metadata}
    for name, field in open_fields.items():
        value = getattr(DC_DLA, name, None) if hasattr(DC_DLA, name) else getattr(MCDLA_B, name)
        others = dict.fromkeys((field.default, *field.metadata["alternatives"]))  # a preset may differ from the default
        for other in others:
            if other == value:
                continue
            yield Change(
                name=name, meaning=field.metadata["meaning"], value=shown(name, value), alternative=shown(name, other),
                payload={name: other},
            )  # fmt: skip
    yield Change(
        name="device.precision", meaning="bytes of an element: 4, or 2", value="fp32", alternative="fp16",
        payload={"device.precision": "fp16"},
    )  # fmt: skip


def of_nodes() -> Iterator[Change]:
    """Every parameter of the two nodes that is no assumption; how the work is divided is the group's."""
    seen = {"parallel", "device.precision"}
    for node in (DC_DLA, MCDLA_B):
        new = [change for change in parameters(node) if change.name not in seen]
        yield from (
            replace(
                change, payload={change.name: change.alternative},
                value=shown(change.name, change.value), alternative=shown(change.name, change.alternative),
            ) for change in new
        )  # fmt: skip
        seen |= {change.name for change in new}


def concerns(change: Change, parallel: Parallel) -> bool:
    """Whether it can change anything under this parallelism."""
    field = change.name.partition(".")[0]
    return any(field not in replace(node, parallel=parallel).unused_assumptions(None) for node in (DC_DLA, MCDLA_B))  # type: ignore[arg-type]


def mean_speedup(slow: Node, fast: Node, parallel: Parallel, networks: Sequence[str]) -> float:
    return harmonic(step_times(slow, network, parallel).time_s / step_times(fast, network, parallel).time_s for network in networks)


def sensitivity_study(networks: Sequence[str] = NETWORKS, kinds: Sequence[Kind] = KINDS) -> SensitivityStudy:
    """The paper's own figure of merit, of both parallelisms."""
    by_group = {f"{parallel}-parallel": parallel for parallel in PARALLEL}

    def measure(group: str, changes: Sequence[Change]) -> float:
        slow, fast = nodes(changes)
        return mean_speedup(slow, fast, by_group[group], networks)

    def prepare(trials: Sequence[tuple[str, Sequence[Change]]]) -> None:
        machines: set[tuple[str, Node]] = {(group, node) for group in by_group for node in (DC_DLA, MCDLA_B)}
        for group, changes in trials:
            with suppress(TrainyardError):  # measured, it says what is wrong
                machines |= {(group, node) for node in nodes(changes)}
        ordered = sorted(machines, key=lambda one: (one[0], repr(one[1])))
        prefetch(job(node, network, by_group[group]) for network in networks for group, node in ordered)

    sources = {"assumption": alternatives, "parameter": of_nodes}
    changes = [
        replace(change, group=group)
        for kind in kinds
        for group, parallel in by_group.items()
        for change in sources[kind]()
        if concerns(change, parallel)
    ]
    return SensitivityStudy(title="mcdla", metric=METRIC, changes=changes, measure=measure, prefetch=prepare)
