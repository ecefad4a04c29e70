"""Sensitivity of the speedup of DIRECT over PIM-Opt at 2048 DPUs to each assumption, changed in both machines.

Crossbars are counted in closed form here (`fidelity="analytic"`), which moves the speedup of either workload by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from trainyard.devices.dpu.device import Dpu
from trainyard.hardware.crossbar.hierarchy import DOUBLE_RATE, HALF_RATE, TENFOLD_LATENCY, UPMEM_LEVELS
from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.measuring import BATCH, WORKLOADS, Workload
from trainyard.papers.mcdla.assumptions import shown
from trainyard.results.result import Result
from trainyard.runs import run
from trainyard.sensitivity import KINDS, Change, Kind, SensitivityStudy, has_field, parameters
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


@cache
def pair(workload: Workload, dpu: Dpu | None = None, batch: int = BATCH) -> Pair:
    step = workload.step if batch == BATCH else zoo.load(workload.name, batch=batch)
    own = dpu or workload.dpu
    return Pair(run(step, replace(PIM_OPT, dpu=own)), run(step, replace(DIRECT, dpu=own, fidelity="analytic")))


class Reading(NamedTuple):
    """How the speedup is measured: fields changed in both machines that have them, and what no field stands for."""

    fields: Mapping[str, Any]
    dpu: Callable[[Dpu], Dpu] | None = None
    batch: int | None = None


def with_lanes(lanes: int, dpu: Dpu) -> Dpu:
    return replace(dpu, mac_lanes=lanes, wram_bytes_per_cycle=dpu.wram_bytes_per_cycle * lanes / dpu.mac_lanes)


def _software(dpu: Dpu) -> Dpu:
    return replace(dpu, number="fp32")


def with_room(batch: int, dpu: Dpu) -> Dpu:
    return replace(dpu, mram_bytes=dpu.mram_bytes * max(1, batch // BATCH))


def readings(workload: Workload) -> Iterator[Change]:
    """What the speedup rests on beside fields marked as open: the DPU's arithmetic and its batch."""
    dpu = workload.dpu
    for lanes in LANES if dpu.mac_lanes else ():
        made = Reading({}, dpu=partial(with_lanes, lanes))
        yield _change(workload, "dpu.mac_lanes", "MACs a cycle, the port of WRAM as wide along", dpu.mac_lanes, lanes, made)
    if not dpu.mac_lanes:
        made = Reading({}, dpu=_software)
        yield _change(workload, "dpu.number", "what a DPU computes in, in software", dpu.number, "fp32", made)
    for batch in BATCHES:
        made = Reading({}, dpu=partial(with_room, batch), batch=batch)
        yield _change(workload, "batch", "samples of a DPU's step; MRAM grows along above 8", BATCH, batch, made)


def _change(workload: Workload, path: str, meaning: str, value: Any, other: Any, made: Reading) -> Change:
    return Change(
        name=path, meaning=meaning, value=name_of(path, value), alternative=name_of(path, other), payload=made, group=workload.name
    )


def alternatives(workload: Workload) -> Iterator[Change]:
    """Every open field of the two machines that may change a time; DIRECT's host has nothing to do."""
    both = pair(workload)
    seen: set[str] = set()
    for result, foreign in ((both.slow, ""), (both.fast, "host.")):
        for one in result.assumptions:
            ours = one.open and one.changes("time_s") and one.path not in seen and not (foreign and one.path.startswith(foreign))
            if ours:
                seen.add(one.path)
                for other in one.alternatives:
                    yield _change(workload, one.path, one.meaning, one.value, other, Reading({one.path: other}))
    yield from readings(workload)


def of_machines(workload: Workload) -> Iterator[Change]:
    """Every parameter of the two machines; of how DIRECT's host works nothing is asked."""
    both, seen = pair(workload), {change.name for change in readings(workload)}
    for result, foreign in ((both.slow, ""), (both.fast, "host.")):
        new = [one for one in parameters(result.on) if one.name not in seen and not (foreign and one.name.startswith(foreign))]
        seen |= {one.name for one in new}
        for one in new:
            made = Reading({one.name: one.alternative})
            yield replace(_change(workload, one.name, one.meaning, one.value, one.alternative, made), kind="parameter")


def speedup(workload: Workload, changes: Sequence[Change]) -> float:
    dpu, batch, changed = workload.dpu, BATCH, dict[str, Any]()
    for change in changes:
        made: Reading = change.payload
        dpu = made.dpu(dpu) if made.dpu is not None else dpu
        batch = made.batch or batch
        changed |= made.fields
    both = pair(workload, dpu, batch)
    times = []
    for result in both:
        known = {path: value for path, value in changed.items() if has_field(result.on, path)}
        rerun = result.rerun
        assert rerun is not None  # it was just run
        times.append(rerun(known).time_s if known else result.time_s)
    return times[0] / times[1]


def name_of(path: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return LEVELS.get(value, "other levels")
    field = path.rpartition(".")[2]
    return shown(field, value) if isinstance(value, bool | int | float | None) else value


def sensitivity_study(kinds: Sequence[Kind] = KINDS) -> SensitivityStudy:
    """The paper's own figure of merit, of both workloads."""
    by_name = {workload.name: workload for workload in WORKLOADS}
    sources = {"assumption": alternatives, "parameter": of_machines}
    changes = [change for kind in kinds for workload in WORKLOADS for change in sources[kind](workload)]
    return SensitivityStudy(
        title="direct", metric=METRIC, changes=changes, measure=lambda group, made: speedup(by_name[group], made)
    )
