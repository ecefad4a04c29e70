"""Parallel efficiency: what is left of a worker when there are many of them.

Every worker keeps its batch (weak scaling), so that with n workers

    efficiency(n) = seconds of one worker's step alone / seconds of an optimizer step of n workers.

With Eq. 1 of DIRECT that is 1 / (1 + n / n_half): the host's time grows with n, a step's own does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard import engine
from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.systems.pim_machine import Pim
from trainyard.systems.replicas import Replicas

PICOSECOND = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One point: an optimizer step of so many workers, and of one alone."""

    workers: int
    time_s: float
    alone_s: float

    @property
    def efficiency(self) -> float:
        return self.alone_s / self.time_s


def with_workers(system: Pim | Replicas, workers: int) -> Any:
    """The machine with so many workers; clusters that would be larger than it shrink with it."""
    if isinstance(system, Replicas):
        return replace(system, devices=workers)
    if not isinstance(system, Pim):
        raise BadInput(f"scaling: expected a PIM machine or replicas of a device, got {type(system).__name__}")
    size = system.cluster_size
    return replace(system, dpus=workers, cluster_size=None if size is None else min(size, workers))


def scaled(system: Pim | Replicas, step: Step, workers: int) -> Scaled:
    """`step` is one worker's."""
    machine = with_workers(system, workers)
    whole = step.rebatch(step.batch * workers) if isinstance(system, Replicas) else step
    plan = machine.plan(whole)
    alone = with_workers(system, 1)
    one = (
        engine.run(alone.plan(step)).end_ps if isinstance(system, Replicas) else max(group.step_ps for group in alone.groups(step))
    )
    return Scaled(workers=workers, time_s=engine.run(plan).end_ps * PICOSECOND / plan.book.steps, alone_s=one * PICOSECOND)


def efficiencies(system: Pim | Replicas, step: Step, workers: Sequence[int]) -> tuple[float, ...]:
    """
    >>> from trainyard.systems import HostMediated
    >>> from trainyard.workloads import zoo
    >>> few, many = efficiencies(HostMediated(), zoo.load("linear"), (32, 2048))
    >>> few > many
    True
    """
    return tuple(scaled(system, step, count).efficiency for count in workers)
