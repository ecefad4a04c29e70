"""Runs of the eight networks (Table III) on nodes: time of a step, of its parts alone, and bytes of host memory.

`trainyard run MODEL --on NODE --batch 512 --parallel data` gives the same time. Results are cached: experiments share them. All
designs of one network run one after the other, so that the devices' costs are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.engine.timeline import Timeline
from trainyard.errors import TrainyardError
from trainyard.ir import Step
from trainyard.ir.plan import TaskClass
from trainyard.papers.mcdla.printed import harmonic
from trainyard.papers.mcdla.wiring import to_memory
from trainyard.papers.processes import workers
from trainyard.results.result import PICOSECOND, Result
from trainyard.runs import run
from trainyard.systems.node.systems import Node
from trainyard.workloads import zoo

Parallel = Literal["data", "model"]
PARALLEL: tuple[Parallel, ...] = ("data", "model")
CNNS = ("alexnet", "googlenet", "vgg19", "resnet34")  # Table III: AlexNet, GoogLeNet, VGG-E, ResNet
RNNS = ("rnn-gemv", "lstm-1", "lstm-2", "gru")  # Table III
NETWORKS = (*CNNS, *RNNS)
BATCH = 512  # Sec. IV
HOST = "host memory"

Values = npt.NDArray[np.floating[Any]]
Networks = Mapping[str, float]
"""A value for each network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """A step on a node. For each class, `alone_s` is the sum of durations of one device, `exposed_s` the time that no earlier class
    hides.

    `host_bytes` are those of all sockets, `host_peak` the largest number of bytes a second at one of them.
    """

    time_s: float
    alone_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    host_bytes: int
    host_peak: float
    memory_bytes: int

    @property
    def compute_s(self) -> float:
        return self.alone_s.get("compute", 0.0)

    @property
    def synchronisation_s(self) -> float:
        return self.alone_s.get("synchronisation", 0.0)

    @property
    def copy_s(self) -> float:
        return self.alone_s.get("copy", 0.0)


class Job(NamedTuple):
    """The arguments of one run."""

    network: str
    batch: int
    node: Node


def job(node: Node, network: str, parallel: Parallel, batch: int = BATCH) -> Job:
    return Job(network, batch, replace(node, parallel=parallel))


def step_times(node: Node, network: str, parallel: Parallel, batch: int = BATCH) -> StepTimes:
    """One network on one node, run once."""
    request = job(node, network, parallel, batch)
    return _cache().get(request) or _cache().setdefault(request, run_job(request))


def run_job(request: Job) -> StepTimes:
    result = run(_step(request.network, request.batch), request.node)
    timeline = result.timeline
    assert timeline is not None  # it was just run
    simulated = sum(name.startswith("device ") for name in timeline.stream_names)
    busy = {str(kind): int(timeline.busy_ps[timeline.kinds == kind].sum()) * PICOSECOND for kind in TaskClass}
    moved = result.traffic_bytes
    return StepTimes(
        time_s=result.time_s,
        alone_s={name: seconds / (1 if name == "synchronisation" else simulated) for name, seconds in busy.items()},
        exposed_s={name: exposed_ps * PICOSECOND for name, exposed_ps in timeline.class_exposed().items()},
        host_bytes=moved.get(HOST, 0),
        host_peak=_host_peak(result, timeline, request.node) if HOST in moved else 0.0,
        memory_bytes=max(result.peak_memory_bytes.values(), default=0),
    )


@cache
def _step(network: str, batch: int) -> Step:
    return zoo.load(network, batch=batch)


def _host_peak(result: Result, timeline: Timeline, node: Node) -> float:
    """The most bytes a second at a socket."""
    moved = np.zeros(len(result.rows))
    for (level, _, _), column in result.columns.traffic.items():
        moved += column if level == HOST else 0.0
    chosen = np.flatnonzero((timeline.kinds == TaskClass.COPY) & (timeline.busy_ps > 0))
    sizes = np.array([float(moved[list(result.entries[tag])].sum()) for tag in timeline.tags[chosen]])
    sockets = sum(place.kind == "socket" for place in node.topology.places)
    starts, ends = (ps[chosen] * PICOSECOND for ps in (timeline.starts_ps, timeline.ends_ps))
    return largest_rate(starts, ends, sizes, to_memory(node) * node.devices) / sockets


def largest_rate(starts: Values, ends: Values, sizes: Values, alone: float) -> float:
    """The largest rate of copies in bytes a second: of one by itself, or of several that overlap.

    A copy's mean rate does not show how fast it was while it overlapped with others. So for each stretch without a pause, the most
    that a single copy can have moved while it was the only one, at `alone` bytes a second, is subtracted: the rest was moved by
    several.

    >>> largest_rate(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([75.0, 75.0]), 50.0)  # 50, then 25 + 25, then 50
    50.0
    """
    if not len(sizes):
        return 0.0
    times = np.concatenate([ends, starts])
    order = np.argsort(times, kind="stable")  # an end before a start at the same time
    under_way = np.cumsum(np.repeat([-1, 1], len(sizes))[order])
    stretch = np.cumsum(np.concatenate([[1], under_way[:-1] == 0])) - 1
    lengths = np.append(np.diff(times[order]), 0.0)
    single = np.bincount(stretch, lengths * (under_way == 1))
    several = np.bincount(stretch, lengths * (under_way > 1))
    moved = np.bincount(stretch, np.concatenate([np.zeros(len(sizes)), sizes])[order])
    together = (moved - alone * single)[several > 0] / several[several > 0]
    return float(max((sizes / (ends - starts)).max(), together.max(initial=0.0)))


@cache
def _cache() -> dict[Job, StepTimes]:
    return {}


def matrix(
    nodes: Iterable[Node],
    networks: Sequence[str] = NETWORKS,
    parallels: Sequence[Parallel] = PARALLEL,
    batches: Sequence[int] = (BATCH,),
) -> list[Job]:
    """Runs of all combinations, a network's designs one after the other."""
    designs = [*nodes]
    return [
        job(node, network, parallel, batch)
        for network in networks for batch in batches for parallel in parallels for node in designs
    ]  # fmt: skip


def prefetch(requests: Iterable[Job]) -> None:
    """Runs jobs on several cores at once and caches them for `step_times`, which otherwise runs one by one."""
    missing = [request for request in dict.fromkeys(requests) if request not in _cache()]
    groups = [[*group] for _, group in groupby(missing, key=lambda one: (one.network, one.batch, one.node.parallel))]
    pool = workers() if len(groups) > 1 else None
    if pool is None:
        return
    groups.sort(key=lambda group: -len(group) * len(_step(group[0].network, group[0].batch)))  # the longest first
    try:
        for group, results in zip(groups, pool.map(run_jobs, groups), strict=True):
            _cache().update((one, times) for one, times in zip(group, results, strict=True) if times is not None)
    except BrokenProcessPool:  # a process was killed: each run is then made on demand
        return


def run_jobs(requests: Sequence[Job]) -> list[StepTimes | None]:
    """None where a node refuses the network; `step_times` raises the error."""
    results: list[StepTimes | None] = []
    for request in requests:
        try:
            results.append(run_job(request))
        except TrainyardError:
            results.append(None)
    return results


# ---- figures of all networks
def speedups(fast: Node, slow: Node, parallel: Parallel, networks: Sequence[str] = NETWORKS, batch: int = BATCH) -> Networks:
    prefetch(matrix((slow, fast), networks, (parallel,), (batch,)))
    return {
        network: step_times(slow, network, parallel, batch).time_s / step_times(fast, network, parallel, batch).time_s
        for network in networks
    }


def mean_of_both(values: Mapping[Parallel, Networks]) -> float:
    """Across the two parallelisms as the paper takes it: harmonic inside one (Sec. V), then half of the sum (2.8 = 5.6 / 2)."""
    return fmean(harmonic(one.values()) for one in values.values())


def means(*values: Networks) -> str:
    """Both means of all values, the smallest and the largest."""
    every = [value for one in values for value in one.values()]
    return f"harmonic mean {harmonic(every):.2f}, arithmetic {fmean(every):.2f}, least {min(every):.2f}, most {max(every):.2f}"


def listed(values: Networks, digits: int = 2) -> str:
    return ", ".join(f"{network} {value:.{digits}f}" for network, value in values.items())
