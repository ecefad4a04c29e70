"""Runs of the two workloads on the three systems: time of an optimizer step and of its parts, joules by component.

`trainyard run linear --on direct --dpus 2048` gives the same time. Results are cached: experiments share them. Every row rests on
these assumptions; docs/direct.md, "Changed after results had been seen", says what was known when they were chosen:

- A DPU's batch is 8, PIM-Opt's. An epoch of the linear model is what PIM-Opt's largest machine holds, 3328 samples for each of 2048
  DPUs, 416 steps; one of ResNet-18 is ImageNet's.
- The linear model runs on UPMEM's DPU in 32-bit fixed point, as in PIM-Opt; ResNet-18 on one with a MAC array and 512 MiB, because
  UPMEM's neither holds nor trains it (`printed.proof_of_rate`). PIM-Opt and DIRECT have the same.
- Seconds and joules of the GPU column are one A100's: 650 s an epoch are 1971 pictures/s, one board's rate and not 2048 boards'.
  Its batch is 16384 for the linear model, what 2048 DPUs take together, and 256 for ResNet-18 (He et al., CVPR 2016).
- PIM-Opt, the baseline, transfers as Eq. 1 says: 2 N messages and no broadcast; B, the available bandwidth, is that measured of a
  rank of 64 DPUs, on one memory channel. Real systems use all channels and broadcast the mean: "PIM-Opt, rank-parallel".
- Efficiency: every unit keeps its batch (`systems.pim.scaling`). Its two factors are those of the POP project (pop-coe.eu):
  *computation* is a unit's seconds of computing alone over those among n, *communication* is computing over everything; their
  product is the efficiency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

from trainyard.devices.dpu.device import Dpu
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.hardware.dpu.host_link import Transfers
from trainyard.ir import Step
from trainyard.machines.presets.direct import A100_CLUSTER, DIRECT, PIM_OPT
from trainyard.machines.presets.gpus import A100
from trainyard.papers.direct.printed import IMAGENET, UNITS
from trainyard.papers.processes import workers
from trainyard.runs import run
from trainyard.systems.pim.machine import Pim
from trainyard.systems.pim.scaling import with_workers
from trainyard.systems.scale_out.replicas import Replicas
from trainyard.workloads import zoo

BATCH = 8  # PIM-Opt: samples of a DPU's mini-batch
HELD = 3328  # PIM-Opt: samples of the linear model in a DPU's MRAM
COUNTS = (32, 64, 128, 256, 512, 1024, 2048)  # Fig. 2
P = TypeVar("P", bound=Pim)
ACTS = ("reduce", "exchange", "token")
System = Literal["PIM-Opt", "PIM-Opt, rank-parallel", "PIM-Opt, DPU by DPU", "DIRECT", "A100"]
SYSTEMS: tuple[System, ...] = ("PIM-Opt", "DIRECT", "A100")
"""Table II's columns."""
TRANSFERS: Mapping[System, Transfers] = {
    "PIM-Opt": "ranks_in_turn",
    "PIM-Opt, rank-parallel": "rank_parallel",
    "PIM-Opt, DPU by DPU": "serial",
}
"""PIM-Opt as Eq. 1 has it, with the bandwidth of a rank; as real systems transfer; Eq. 1 with the bandwidth of one DPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, the samples of an epoch, and the DPU it runs on."""

    name: str
    dpu: Dpu
    samples: int
    gpu_batch: int
    samples_per_dpu: int = 0
    batch: int = BATCH

    @property
    def step(self) -> Step:
        return _step(self.name, self.batch)

    @property
    def steps(self) -> float:
        """Optimizer steps of 2048 DPUs in an epoch."""
        return self.samples / (UNITS * self.batch)


# fmt: off
LINEAR   = Workload(name="linear",   dpu=UPMEM,   samples=HELD * UNITS, gpu_batch=BATCH * UNITS, samples_per_dpu=HELD)
RESNET18 = Workload(name="resnet18", dpu=MAC_DPU, samples=IMAGENET,     gpu_batch=256)
# fmt: on
WORKLOADS = (LINEAR, RESNET18)


@cache
def _step(name: str, batch: int) -> Step:
    return zoo.load(name, batch=batch)


def on(plain: P, workload: Workload, **changes: Any) -> P:
    """The machine with the workload's DPUs and samples."""
    return replace(plain, **{"dpu": workload.dpu, "samples_per_dpu": workload.samples_per_dpu, **changes})


def machine(system: System, workload: Workload) -> Pim | Replicas:
    if system == "A100":
        return A100_CLUSTER
    if system == "DIRECT":
        return on(DIRECT, workload)
    return on(PIM_OPT, workload, transfers=TRANSFERS[system])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """An optimizer step of so many units in steady state; `acts_s` is the exposed time of reduce, exchange and token."""

    units: int
    time_s: float
    alone_s: float
    compute_s: float
    local_steps: int
    local_s: float
    acts_s: Mapping[str, float]
    joules: Mapping[str, float]
    traffic_bytes: Mapping[str, int]

    @property
    def efficiency(self) -> float:
        return self.alone_s / self.time_s

    @property
    def computation(self) -> float:
        return self.alone_s / self.compute_s

    @property
    def communication(self) -> float:
        return self.compute_s / self.time_s

    @property
    def energy_j(self) -> float:
        return sum(self.joules.values())

    @property
    def latency_s(self) -> float:
        """From the request of the last unit for an exchange to the arrival of its result at all."""
        return self.local_steps * (self.time_s - self.local_s)

    @property
    def age_s(self) -> float:
        """Mean age of the parameters over all gradients between two exchanges (`training.history`).

        The j-th of k local steps of s seconds ends E + j s after all models went into an exchange that took E.
        """
        return self.latency_s + (self.local_steps + 1) / 2 * self.local_s


class Job(NamedTuple):
    """The arguments of one run."""

    machine: Any
    workload: Workload
    units: int


def step_cost(machine: Pim | Replicas, workload: Workload, units: int = UNITS) -> StepCost:
    """One workload on one machine, run once."""
    job = Job(machine, workload, units)
    return _cache().get(job) or _cache().setdefault(job, run_job(job))


def run_job(job: Job) -> StepCost:
    plain, workload, units = job
    sized = with_workers(plain, units)
    if isinstance(plain, Replicas):
        batch = workload.gpu_batch
        result = run(_step(workload.name, BATCH).rebatch(batch * units), sized)
        alone = run(_step(workload.name, BATCH).rebatch(batch), A100).time_s
        local, steps = alone, 1
    else:
        result = run(workload.step, sized)
        alone = sized.local_step(workload.step)[0]
        rates = sized.rates(workload.step)
        local, steps = max(rates.step_s) + rates.reduce_s, result.steps
    seconds = {key[0]: cost.time_s for key, cost in result.group("op").items()}
    return StepCost(
        units=units,
        time_s=result.time_s,
        alone_s=alone,
        compute_s=result.by_class["compute"].time_s,
        local_steps=steps,
        local_s=local,
        acts_s={name: seconds[name] for name in ACTS if name in seconds},
        joules=dict(result.energy_by_component),
        traffic_bytes=dict(result.traffic_bytes),
    )


def system(name: System, workload: Workload, units: int = UNITS) -> StepCost:
    return step_cost(machine(name, workload), workload, units)


@cache
def _cache() -> dict[Job, StepCost]:
    return {}


def prefetch(jobs: Iterable[Job]) -> None:
    """Runs jobs on several cores at once and caches them for `step_cost`, which otherwise runs one by one."""
    missing = [job for job in dict.fromkeys(jobs) if job not in _cache()]
    pool = workers() if len(missing) > 1 else None
    if pool is None:
        return
    try:
        _cache().update(zip(missing, pool.map(run_job, missing), strict=True))
    except BrokenProcessPool:  # a process was killed: each run is then made on demand
        return


@cache
def one_gpu(workload: Workload, batch: int | None = None) -> tuple[float, float]:
    """Seconds and joules of an epoch on one A100."""
    size = batch or workload.gpu_batch
    result = run(workload.step.rebatch(size), A100)
    return workload.samples / size * result.time_s, workload.samples / size * result.energy_j


def listed(values: Mapping[Any, float], digits: int = 2) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())


def slashed(values: Sequence[float], digits: int = 2) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values)
