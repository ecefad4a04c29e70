"""What every algorithm shares during a run: model, samples, clock, recorder, and the gradients of many replicas at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.hardware.dsc.sync_interval import Interval
from trainyard.progress import ProgressCallback
from trainyard.training.clock import Clock
from trainyard.training.data import Data
from trainyard.training.history import Evaluation, Recorder, seconds
from trainyard.training.models import IndexedModel, Model
from trainyard.training.shards import Feed, Whole

Array = npt.NDArray[Any]
MODEL_BYTES = 1 << 19
"""Bytes of weights that one thread works on, so that they stay in its cache until they are updated."""
SAMPLE_BYTES = 1 << 25
"""Bytes of samples that are read (or copied, for a model that takes copies) in one chunk."""


@dataclass(kw_only=True, slots=True)
class Workspace:
    """The state of one run. Chunks do not depend on the number of threads, so that results do not either."""

    model: Model
    data: Data
    feed: Feed
    clock: Clock
    recorder: Recorder
    workers: int
    cluster_size: int
    learning_rate: float
    momentum: float
    steps: int
    evaluate_every: int
    seed: int
    on_progress: ProgressCallback
    interval: Interval
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(os.cpu_count() or 1))
    indexed: IndexedModel | None = field(init=False)

    def __post_init__(self) -> None:
        self.indexed = self.model if isinstance(self.model, IndexedModel) else None

    def initial_weights(self) -> Array:
        features = self.data.features
        dtype = np.float64 if features.dtype == np.float64 else np.float32
        return np.asarray(self.model.start(self.seed), dtype)

    def gradients(self, weights: Array, rows: Whole) -> Array:
        """Gradients [replicas, parameters]: for each replica the mean over its rows."""
        if self.indexed is not None:
            return np.asarray(self.indexed.gradients_at(weights, self.data.features, self.data.targets, rows))
        return self.model.gradients(weights, self.data.features[rows], self.data.targets[rows])

    def map_chunks(self, count: int, batch: int, work: Callable[[slice], Any], *, shared: bool = False) -> list[Any]:
        """Results of `work` on slices of `count` replicas, in order; by several threads where the model allows it."""
        sample = self.data.features[0].nbytes * batch
        models = count if shared else MODEL_BYTES // (4 * self.model.parameters)
        size = max(1, min(SAMPLE_BYTES // max(1, sample), models))
        slices = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        if len(slices) == 1 or self.indexed is None:
            return [work(chunk) for chunk in slices]
        return list(self.pool.map(work, slices))

    def shared_gradient(self, weights: Array, rows: Whole) -> Array:
        """The mean gradient over all rows [workers, batch] of one model that all workers share."""

        def part(chunk: slice) -> Array:
            own = rows[chunk].reshape(1, -1)
            return np.asarray(self.gradients(weights[None], own)[0] * (own.size / rows.size))

        return np.asarray(sum(self.map_chunks(len(rows), rows.shape[1], part, shared=True)))

    def evaluate(self, weights: Array, now_ps: int) -> None:
        gradients = self.recorder.gradients
        features, targets = self.data.test_features, self.data.test_targets
        self.recorder.evaluations.append(
            Evaluation(
                step=gradients / self.recorder.groups,
                time_s=seconds(int(now_ps)),
                epoch=gradients * self.feed.batch * self.workers / self.recorder.groups / self.data.samples,
                accuracy=self.model.accuracy(weights, features, targets),
                loss=self.model.loss(weights, features, targets),
            )
        )


def mean_of(models: Array) -> Array:
    """Mean over replicas, summed in double precision."""
    return np.asarray(models.mean(0, dtype=np.float64).astype(models.dtype))
