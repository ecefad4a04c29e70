"""What each assumption is worth: the speedup of DIRECT over PIM-Opt at 2048 DPUs with another value in its place in both.

Crossbars are counted in closed form here (`fidelity="analytic"`), which moves the speedup of either workload by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from trainyard.devices.dpu import Dpu
from trainyard.errors import TrainyardError
from trainyard.papers.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.measuring import BATCH, WORKLOADS, Workload
from trainyard.papers.mcdla.assumptions import shown
from trainyard.parts.crossbar import DOUBLE_RATE, HALF_RATE, TENFOLD_LATENCY, UPMEM_LEVELS
from trainyard.results import Result
from trainyard.runs import Told, Worth, run, silent
from trainyard.workloads import zoo

METRIC = "speedup of DIRECT over PIM-Opt (2048 DPUs, batch 8 each)"
LEVELS = {UPMEM_LEVELS: "UPMEM's pins", HALF_RATE: "half as fast", DOUBLE_RATE: "twice as fast", TENFOLD_LATENCY: "10 x latency"}
LANES = (8, 32)
BATCHES = (2, 4, 16, 32)


class Pair(NamedTuple):
    """A workload on both machines."""

    slow: Result
    fast: Result

    @property
    def speedup(self) -> float:
        return self.slow.time_s / self.fast.time_s


class Other(NamedTuple):
    """One alternative: its path, and the whole of another DPU or batch where no field of the machines stands for it."""

    path: str
    meaning: str
    value: Any
    alternative: Any
    dpu: Dpu | None = None
    batch: int = BATCH


def pair(workload: Workload, dpu: Dpu | None = None, batch: int = BATCH) -> Pair:
    step = workload.step if batch == BATCH else zoo.load(workload.name, batch=batch)
    own = dpu or workload.dpu
    return Pair(run(step, replace(PIM_OPT, dpu=own)), run(step, replace(DIRECT, dpu=own, fidelity="analytic")))


def readings(workload: Workload) -> Iterator[Other]:
    """What the speedup rests on beside fields marked as open: the DPU's arithmetic and its batch."""
    dpu = workload.dpu
    for lanes in LANES if dpu.mac_lanes else ():
        wide = replace(dpu, mac_lanes=lanes, wram_bytes_per_cycle=dpu.wram_bytes_per_cycle * lanes / dpu.mac_lanes)
        yield Other("dpu.mac_lanes", "MACs a cycle, the port of WRAM as wide along", dpu.mac_lanes, lanes, dpu=wide)
    if not dpu.mac_lanes:
        soft = replace(dpu, number="fp32")
        yield Other("dpu.number", "what a DPU computes in, in software", dpu.number, "fp32", dpu=soft)
    for batch in BATCHES:
        larger = replace(dpu, mram_bytes=dpu.mram_bytes * max(1, batch // BATCH))
        yield Other("batch", "samples of a DPU's step; MRAM grows along above 8", BATCH, batch, dpu=larger, batch=batch)


def alternatives(both: Pair) -> Iterator[Other]:
    """Every open field of the two machines that may change a time; DIRECT's host has nothing to do."""
    seen: set[str] = set()
    for result, foreign in ((both.slow, ""), (both.fast, "host.")):
        for one in result.assumptions:
            ours = one.open and one.changes("time_s") and one.path not in seen and not (foreign and one.path.startswith(foreign))
            if ours:
                seen.add(one.path)
                yield from (Other(one.path, one.meaning, one.value, other) for other in one.alternatives)


def changed(both: Pair, other: Other, workload: Workload) -> float:
    if other.dpu is not None:
        return pair(workload, other.dpu, other.batch).speedup
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
    trials = [(workload, other) for workload, both in pairs.items() for other in (*alternatives(both), *readings(workload))]
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
