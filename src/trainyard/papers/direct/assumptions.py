"""What each assumption is worth: the speedup of DIRECT over PIM-Opt at 2048 DPUs with another value in its place in both.

Crossbars are counted in closed form here (`fidelity="analytic"`), which moves the speedup of either workload by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from trainyard.errors import TrainyardError
from trainyard.papers.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.measuring import WORKLOADS, Workload
from trainyard.papers.mcdla.assumptions import shown
from trainyard.parts.crossbar import DOUBLE_RATE, HALF_RATE, TENFOLD_LATENCY, UPMEM_LEVELS
from trainyard.results import Result
from trainyard.runs import Told, Worth, run, silent

METRIC = "speedup of DIRECT over PIM-Opt (2048 DPUs, batch 8 each)"
LEVELS = {UPMEM_LEVELS: "UPMEM's pins", HALF_RATE: "half as fast", DOUBLE_RATE: "twice as fast", TENFOLD_LATENCY: "10 x latency"}
CLUSTER_SIZES = (8, 128, 512)
"""A chip, a DIMM, four DIMMs."""


class Pair(NamedTuple):
    """A workload on both machines."""

    slow: Result
    fast: Result

    @property
    def speedup(self) -> float:
        return self.slow.time_s / self.fast.time_s


class Other(NamedTuple):
    """One alternative: its path, or the cluster size."""

    path: str
    meaning: str
    value: Any
    alternative: Any


def pair(workload: Workload, **changes: Any) -> Pair:
    slow = replace(PIM_OPT, dpu=workload.dpu)
    fast = replace(DIRECT, dpu=workload.dpu, fidelity="analytic", **changes)
    return Pair(run(workload.step, slow), run(workload.step, fast))


def alternatives(both: Pair) -> Iterator[Other]:
    """Every open field of the two machines that may change a time; DIRECT's host has nothing to do."""
    seen: set[str] = set()
    for result, foreign in ((both.slow, ""), (both.fast, "host.")):
        for one in result.assumptions:
            ours = one.open and one.changes("time_s") and one.path not in seen and not (foreign and one.path.startswith(foreign))
            if ours:
                seen.add(one.path)
                yield from (Other(one.path, one.meaning, one.value, other) for other in one.alternatives)
    for size in CLUSTER_SIZES:
        yield Other("cluster_size", "DPUs of a cluster, which share an AGAU; a rank here", DIRECT.dpus_per_cluster, size)


def changed(both: Pair, other: Other, workload: Workload) -> float:
    if other.path == "cluster_size":
        return both.slow.time_s / pair(workload, cluster_size=other.alternative).fast.time_s
    times = []
    for result in both:
        known = any(one.path == other.path for one in result.assumptions)
        rerun = result.rerun
        assert rerun is not None  # it was just run
        times.append(rerun({other.path: other.alternative}).time_s if known else result.time_s)
    return times[0] / times[1]


def name_of(path: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return LEVELS.get(value, "other levels")
    field = path.rpartition(".")[2]
    return shown(field, value) if isinstance(value, bool | int | float | None) else value


def worths(told: Told = silent) -> list[Worth]:
    """The most valuable first, of both workloads."""
    pairs = {workload: pair(workload) for workload in WORKLOADS}
    trials = [(workload, other) for workload, both in pairs.items() for other in alternatives(both)]
    found = []
    for done, (workload, other) in enumerate(trials):
        told(done, len(trials))
        before, error = pairs[workload].speedup, ""
        try:
            after = changed(pairs[workload], other, workload)
        except TrainyardError as problem:
            after, error = before, str(problem)
        found.append(
            Worth(
                name=f"{workload.name}: {other.path}", meaning=other.meaning, value=name_of(other.path, other.value),
                alternative=name_of(other.path, other.alternative), before=before, after=after, error=error,
            )
        )  # fmt: skip
    return sorted(found, key=lambda worth: -abs(worth.change))
