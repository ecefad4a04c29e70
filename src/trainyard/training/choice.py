"""The tau and cluster size that reach a target accuracy first: every pair is trained, timed by the machine's rates.

A larger tau saves exchanges and lets clusters drift apart; a larger cluster averages more gradients in every step and gives the
AGAU more to add. The best pair depends on both the machine and the convergence, so both are simulated. DIRECT leaves tau to its
users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.mapping.algorithms import Direct
from trainyard.progress import ProgressCallback, no_progress
from trainyard.systems.pim.systems import DpuToDpu
from trainyard.training.data import Data
from trainyard.training.history import History
from trainyard.training.models import Model
from trainyard.training.trainer import train

TAUS = (0, 3, 7, 31, 127)
CLUSTER_SIZES = (8, 16, 32, 64, 128)  # UPMEM's packaging: a chip's DPUs, to a DIMM's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """The training run of one pair; `time_s` is the time to the target, None if it was not reached."""

    tau: int
    cluster_size: int
    time_s: float | None
    history: History


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """All trials, the best of them, and the machine with the best pair."""

    machine: DpuToDpu
    best: Trial
    trials: tuple[Trial, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row of a table per trial."""
        return [
            {
                "tau": trial.tau,
                "cluster_size": trial.cluster_size,
                "time_s": trial.time_s,
                "accuracy": trial.history.accuracy,
                "exchanges": len(trial.history.exchanges),
            }
            for trial in self.trials
        ]


def cluster_sizes_of(machine: DpuToDpu) -> tuple[int, ...]:
    """The sizes that `choose` tries: the machine's own, and 8 to 128 that leave at least two clusters and fit the DSC's table.

    Where clusters differ (`speeds`, `other`) the size also decides which DPUs are slow: only the machine's own is tried.

    >>> cluster_sizes_of(DpuToDpu(dpus=64)), cluster_sizes_of(DpuToDpu(dpus=96, cluster_size=24))
    ((8, 16, 32, 64), (8, 16, 24, 32))
    """
    own = {machine.dpus_per_cluster}
    if machine.speeds or machine.other is not None:
        return tuple(own)
    most = machine.dpus if machine.dsc is None else machine.dsc.entries
    fitting = {size for size in CLUSTER_SIZES if machine.dpus % size == 0 and 2 <= machine.dpus // size <= most}
    return tuple(sorted(own | fitting))


def choose(
    model: Model,
    data: Data,
    *,
    step: Step,
    machine: DpuToDpu,
    target: float,
    learning_rate: float,
    taus: Sequence[int] = TAUS,
    cluster_sizes: Sequence[int] | None = None,
    epochs: float = 4,
    evaluate_every: int = 8,
    shards: str = "iid",
    seed: int = 0,
    on_progress: ProgressCallback = no_progress,
) -> Choice:
    """The pair that reaches the accuracy `target` in the least simulated time; of equals the one with the larger tau.

    `step` is the captured training step of one DPU, with its batch. Every pair is a complete training run: by default five taus
    with each of `cluster_sizes_of(machine)`, up to 30 runs. The time to the target has the resolution of `evaluate_every`;
    evaluations cost no simulated time.
    """
    if not isinstance(machine, DpuToDpu):
        raise BadInput(f"choose: tau and clusters are of machines whose DPUs talk to each other, got {type(machine).__name__}")
    if not 0 < target <= 1:
        raise BadInput(f"choose: target is an accuracy between 0 and 1, got {target!r}")
    sizes = cluster_sizes_of(machine) if cluster_sizes is None else tuple(cluster_sizes)
    pairs = [(size, tau) for size in sizes for tau in taus]
    if not pairs:
        raise BadInput("choose: give at least one tau and one cluster size")
    plain = machine.algorithm if isinstance(machine.algorithm, Direct) else Direct()
    trials, machines = [], []
    for number, (size, tau) in enumerate(pairs):
        on_progress(number, len(pairs))
        tried = replace(machine, cluster_size=size, algorithm=replace(plain, tau=tau, unit="steps"))
        history = train(
            model,
            data,
            algorithm=tried.algorithm,
            rates=tried.rates(step),
            workers=tried.dpus,
            batch=step.batch,
            learning_rate=learning_rate,
            epochs=epochs,
            shards=shards,
            seed=seed,
            evaluate_every=evaluate_every,
        )
        trials.append(Trial(tau=tau, cluster_size=size, time_s=history.time_to(target), history=history))
        machines.append(tried)
    on_progress(len(pairs), len(pairs))
    reached = [(trial.time_s, -trial.tau, number) for number, trial in enumerate(trials) if trial.time_s is not None]
    if not reached:
        closest = max(trials, key=lambda trial: trial.history.accuracy)
        raise BadInput(
            f"choose: none of {len(pairs)} pairs reaches {target:.3f} in {epochs:g} epochs; the best ends at "
            f"{closest.history.accuracy:.3f} (tau={closest.tau}, clusters of {closest.cluster_size}): "
            "give more epochs, another learning rate or a lower target"
        )
    number = min(reached)[2]
    return Choice(machine=machines[number], best=trials[number], trials=tuple(trials))
