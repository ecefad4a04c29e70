"""The record of a training run: accuracy over steps and simulated time, every exchange, and parameter ages.

Two metrics that are easily mixed up:

*parameter age* of a gradient, when it is complete: the time since the other groups made their newest contributions to the weights
that it was computed on; in seconds, and in steps of the group that computes it, this step included. For synchronous SGD it is 1
step and one period of step and exchange. Under D-PSGD the farthest worker of the ring counts.

*exchange latency*: from the last participant's request (under `literal`: that of the cluster that exchanges) until all have the
result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.mapping.algorithms import Algorithm
from trainyard.units import PICOSECONDS_PER_SECOND

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ages:
    """A histogram of gradients by parameter age.

    >>> ages = Ages({1: 3, 5: 1})
    >>> ages.mean, ages.largest, ages.percentile(50), ages.percentile(100)
    (2.0, 5, 1, 5)
    """

    counts: Mapping[float, int]

    @property
    def gradients(self) -> int:
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        return sum(age * count for age, count in self.counts.items()) / self.gradients

    @property
    def largest(self) -> float:
        return max(self.counts)

    def percentile(self, percent: float) -> float:
        """The smallest age that at least `percent` of the gradients do not exceed."""
        if not 0 <= percent <= 100:
            raise BadInput(f"percentile: give 0 to 100, got {percent!r}")
        reached = 0
        for age in sorted(self.counts):
            reached += self.counts[age]
            if 100 * reached >= percent * self.gradients:
                return age
        return self.largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Accuracy and loss of the algorithm's model on the test part; `step` is the mean over groups, `epoch` counts samples used."""

    step: float
    time_s: float
    epoch: float
    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One exchange; ages are those of the participants' models at its start, waits are summed over participants."""

    start_s: float
    end_s: float
    token_wait_s: float
    barrier_wait_s: float
    bytes: int
    age_steps: Array
    age_s: Array

    @property
    def latency_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """One run. Waits are summed over groups: divide by `groups * time_s` for the share of the machine that waited."""

    algorithm: Algorithm
    workers: int
    cluster_size: int
    groups: int
    batch: int
    learning_rate: float
    momentum: float
    shards: str
    seed: int
    steps: float
    """Local steps of a group, averaged over groups."""
    samples: int
    """Samples used; a sample counts each time it is used."""
    time_s: float
    weights: Array
    evaluations: tuple[Evaluation, ...]
    exchanges: tuple[Exchange, ...]
    age_steps: Ages
    age_s: Ages
    bytes_global: int
    bytes_local: int
    token_wait_s: float
    barrier_wait_s: float
    lost_steps: int
    """Local steps whose effect a broadcast of `literal` overwrote."""

    @property
    def accuracy(self) -> float:
        return self.evaluations[-1].accuracy

    @property
    def loss(self) -> float:
        return self.evaluations[-1].loss

    @property
    def exchange_latency_s(self) -> float:
        """Mean over exchanges; 0 where there was none."""
        return sum(exchange.latency_s for exchange in self.exchanges) / len(self.exchanges) if self.exchanges else 0.0

    def time_to(self, accuracy: float) -> float | None:
        """Simulated seconds until an evaluation first reached `accuracy`; None if none did."""
        return next((evaluation.time_s for evaluation in self.evaluations if evaluation.accuracy >= accuracy), None)

    def curve(self) -> dict[str, list[float]]:
        """Evaluations as columns, ready for a data frame."""
        names = ("step", "time_s", "epoch", "accuracy", "loss")
        return {name: [getattr(evaluation, name) for evaluation in self.evaluations] for name in names}

    def exchange_table(self) -> dict[str, list[float]]:
        """Exchanges as columns; ages are the mean and maximum over participants."""
        names = ("start_s", "end_s", "latency_s", "token_wait_s", "barrier_wait_s", "bytes")
        columns: dict[str, list[float]] = {name: [getattr(exchange, name) for exchange in self.exchanges] for name in names}
        for name in ("age_steps", "age_s"):
            columns[f"{name}_mean"] = [float(np.mean(getattr(exchange, name))) for exchange in self.exchanges]
            columns[f"{name}_largest"] = [float(np.max(getattr(exchange, name))) for exchange in self.exchanges]
        return columns

    def row(self) -> dict[str, Any]:
        """One line of a comparison."""
        return {
            "algorithm": repr(self.algorithm),
            "shards": self.shards,
            "workers": self.workers,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "exchanges": len(self.exchanges),
            "bytes_global": self.bytes_global,
            "bytes_local": self.bytes_local,
            "time_s": self.time_s,
            "age_s": self.age_s.mean,
            "age_steps": self.age_steps.mean,
            "age_s_95": self.age_s.percentile(95),
            "exchange_latency_s": self.exchange_latency_s,
            "token_wait_s": self.token_wait_s,
            "barrier_wait_s": self.barrier_wait_s,
            "lost_steps": self.lost_steps,
        }


def seconds(picoseconds: Any) -> Any:
    return picoseconds / PICOSECONDS_PER_SECOND


class Recorder:
    """Collects a History during a run; times are integer picoseconds."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.evaluations: list[Evaluation] = []
        self.exchanges: list[Exchange] = []
        self.steps: Counter[int] = Counter()
        self.age_steps: Counter[int] = Counter()
        self.age_ps: Counter[int] = Counter()
        self.token_wait_ps = 0
        self.barrier_wait_ps = 0
        self.lost_steps = 0

    @property
    def gradients(self) -> int:
        return self.age_steps.total()

    def gradient(self, age_steps: Any, age_ps: Any, count: int) -> None:
        """Records one step of `count` groups; an age is one number for all groups, or an array."""
        for counter, ages in ((self.age_steps, age_steps), (self.age_ps, age_ps)):
            if np.ndim(ages) == 0:
                counter[int(ages)] += count
            else:
                counter.update(np.asarray(ages).tolist())

    def exchange(
        self, *, start: int, end: int, size_bytes: int, age_steps: Any, age_ps: Any, token_wait: int = 0, barrier_wait: int = 0
    ) -> None:
        self.token_wait_ps += token_wait
        self.barrier_wait_ps += barrier_wait
        self.exchanges.append(
            Exchange(
                start_s=seconds(start),
                end_s=seconds(end),
                token_wait_s=seconds(token_wait),
                barrier_wait_s=seconds(barrier_wait),
                bytes=size_bytes,
                age_steps=np.broadcast_to(np.asarray(age_steps, np.int64), self.groups),
                age_s=np.broadcast_to(seconds(np.asarray(age_ps)), self.groups),
            )
        )

    def ages(self) -> tuple[Ages, Ages]:
        in_steps = {float(age): count for age, count in self.age_steps.items()}
        return Ages(in_steps), Ages({seconds(age): count for age, count in self.age_ps.items()})


def mean_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of several seeds as one row: numbers are averaged; the standard deviation of the accuracy is added.

    >>> mean_rows([{"seed": 0, "accuracy": 0.5}, {"seed": 1, "accuracy": 0.7}])
    {'seeds': 2, 'accuracy': 0.6, 'accuracy_deviation': 0.1}
    """
    merged: dict[str, Any] = {"seeds": len(rows)}
    for name, value in rows[0].items():
        if name == "seed":
            continue
        numbers = [row[name] for row in rows]
        merged[name] = round(float(np.mean(numbers)), 12) if isinstance(value, int | float) else value
    merged["accuracy_deviation"] = round(float(np.std([row["accuracy"] for row in rows])), 12)
    return merged
