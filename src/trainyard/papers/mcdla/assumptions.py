"""What each assumption of the node is worth: the speedup of MC-DLA(B) over DC-DLA with another value in its place in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from trainyard.errors import TrainyardError
from trainyard.papers.mcdla import DC_DLA, MCDLA_B
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, Parallel, ahead, asked, ran
from trainyard.papers.mcdla.printed import harmonic
from trainyard.runs import Told, Worth, silent
from trainyard.systems.node import Node
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


class Other(NamedTuple):
    """One alternative: DC-DLA and MC-DLA(B) with it."""

    name: str
    meaning: str
    value: Any
    alternative: Any
    slow: Node
    fast: Node


def alternatives() -> Iterator[Other]:
    """Every open field of the two nodes, and the bytes of an element."""
    open_fields = {one.name: one for node in (DC_DLA, MCDLA_B) for one in fields(node) if "meaning" in one.metadata}
    for name, field in open_fields.items():
        value = getattr(DC_DLA, name)
        for other in field.metadata["alternatives"]:
            slow, fast = (replace(node, **{name: other}) if hasattr(node, name) else node for node in (DC_DLA, MCDLA_B))
            yield Other(name, field.metadata["meaning"], shown(name, value), shown(name, other), slow, fast)
    half = replace(DC_DLA.device, precision="fp16")  # type: ignore[type-var]  # an Accelerator
    yield Other(
        "device.precision", "bytes of an element: 4, or 2", "fp32", "fp16",
        replace(DC_DLA, device=half), replace(MCDLA_B, device=half),
    )  # fmt: skip


def concerns(other: Other, parallel: Parallel) -> bool:
    """Whether it can change anything under this parallelism."""
    field = other.name.partition(".")[0]
    return any(field not in replace(node, parallel=parallel).idle(None) for node in (DC_DLA, MCDLA_B))  # type: ignore[arg-type]


def mean_speedup(slow: Node, fast: Node, parallel: Parallel, networks: Sequence[str]) -> float:
    return harmonic(ran(slow, network, parallel).time_s / ran(fast, network, parallel).time_s for network in networks)


def worths(told: Told = silent, networks: Sequence[str] = NETWORKS) -> list[Worth]:
    """The most valuable first, of both parallelisms."""
    trials = [(parallel, other) for parallel in PARALLEL for other in alternatives() if concerns(other, parallel)]
    machines = {parallel: [DC_DLA, MCDLA_B] for parallel in PARALLEL}
    for parallel, other in trials:
        machines[parallel] += [other.slow, other.fast]
    told(0, len(trials))
    ahead(asked(node, network, parallel) for network in networks for parallel in PARALLEL for node in machines[parallel])
    found = []
    for done, (parallel, other) in enumerate(trials):
        told(done, len(trials))
        before, error = mean_speedup(DC_DLA, MCDLA_B, parallel, networks), ""
        try:
            after = mean_speedup(other.slow, other.fast, parallel, networks)
        except TrainyardError as problem:
            after, error = before, str(problem)
        found.append(
            Worth(
                name=f"{parallel}-parallel: {other.name}", meaning=other.meaning, value=other.value, alternative=other.alternative,
                before=before, after=after, error=error,
            )
        )  # fmt: skip
    return sorted(found, key=lambda worth: -abs(worth.change))
