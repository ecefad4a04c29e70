"""Parallel efficiency under weak scaling: every worker keeps its batch, so that with n workers

    efficiency(n) = samples per second of n workers / sum of the samples per second of each worker alone,

which for equal workers is the time of a local step over the time of an optimizer step of all workers. With Eq. 1 of DIRECT that is
1 / (1 + n / n_half): the host's time grows with n, the time of a local step does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard import engine
from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.systems.pim.machine import Pim
from trainyard.systems.scale_out.replicas import Replicas

PICOSECOND = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One point of the curve: samples per second of the workers together, and the sum of each worker alone."""

    workers: int
    time_s: float
    samples_per_s: float
    alone_per_s: float

    @property
    def efficiency(self) -> float:
        return self.samples_per_s / self.alone_per_s


def with_workers(system: Pim | Replicas, workers: int) -> Any:
    """The machine with another number of workers; a cluster is at most as large as the machine."""
    if isinstance(system, Replicas):
        return replace(system, devices=workers)
    if not isinstance(system, Pim):
        raise BadInput(f"scaling: expected a PIM machine or replicas of a device, got {type(system).__name__}")
    size = None if system.cluster_size is None else min(system.cluster_size, workers)
    plain = replace(system, dpus=workers, cluster_size=size, other=None, other_clusters=0)
    return replace(plain, other=system.other, other_clusters=min(system.other_clusters, plain.clusters)) if system.other else plain


def scaled(system: Pim | Replicas, step: Step, workers: int) -> Scaled:
    """Samples per second of `workers` workers; the batch of `step` is that of one worker."""
    machine = with_workers(system, workers)
    if isinstance(system, Replicas):
        plan = machine.plan(step.rebatch(step.batch * workers))
        alone = workers * step.batch / (engine.run(with_workers(system, 1).plan(step)).end_ps * PICOSECOND)
    else:
        plan = machine.plan(step)
        alone = sum(group.workers * step.batch / (group.step_ps * PICOSECOND) for group in machine.groups(step))
    seconds = engine.run(plan).end_ps * PICOSECOND
    samples = plan.booking.samples or step.batch * workers
    return Scaled(workers=workers, time_s=seconds / plan.booking.steps, samples_per_s=samples / seconds, alone_per_s=alone)


def efficiencies(system: Pim | Replicas, step: Step, workers: Sequence[int]) -> tuple[float, ...]:
    """
    >>> from trainyard.systems import HostMediated
    >>> from trainyard.workloads import zoo
    >>> few, many = efficiencies(HostMediated(), zoo.load("linear"), (32, 2048))
    >>> few > many
    True
    """
    return tuple(scaled(system, step, count).efficiency for count in workers)
