"""`train` executes any algorithm on any model and any shards, timed by a machine's rates."""

from __future__ import annotations

import numpy as np

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dsc.sync_interval import Interval
from trainyard.mapping.algorithms import Algorithm, Direct, Rates
from trainyard.progress import ProgressCallback, no_progress
from trainyard.training import direct, lockstep
from trainyard.training.clock import Clock, unit_rates
from trainyard.training.data import Data
from trainyard.training.history import History, Recorder, seconds
from trainyard.training.models import LinearModel, Model
from trainyard.training.shards import Feed, Shards, shard
from trainyard.training.workspace import Array, Workspace

CLUSTER = 64  # UPMEM: DPUs of a rank


def train(
    model: Model,
    data: Data,
    *,
    algorithm: Algorithm,
    workers: int,
    cluster_size: int | None = None,
    rates: Rates | None = None,
    batch: int = 8,
    learning_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    shards: str | Shards = "iid",
    seed: int = 0,
    evaluate_every: int | None = None,
    momentum: float = 0.0,
    interval: Interval | None = None,
    on_progress: ProgressCallback = no_progress,
) -> History:
    """Train `model` on the training part of `data` with `workers` workers, `batch` samples each in a step.

    Give the `steps` of a worker, or `epochs`, which are rounded up to whole steps. The model is evaluated on the test part before
    the first and after the last step and every `evaluate_every` steps (default: an epoch). `rates` are the machine's durations
    (`system.rates(step)`); without them every step takes 1 s and exchanges are free. `cluster_size` is 64, or all workers where
    they are fewer, or, under Direct, that of the rates; for algorithms without clusters it matters only for skewed shards.
    `interval` is how an adaptive Direct chooses its steps between exchanges.

    >>> from trainyard.mapping.algorithms import Direct, Synchronous
    >>> from trainyard.training import LogisticRegression
    >>> from trainyard.training.data import linear_problem
    >>> data = linear_problem(samples=4096, features=16, noise=0)
    >>> options = dict(workers=16, cluster_size=4, batch=8, learning_rate=0.5, epochs=4)
    >>> often = train(LogisticRegression(16), data, algorithm=Synchronous(), **options)
    >>> rarely = train(LogisticRegression(16), data, algorithm=Direct(tau=31), **options)
    >>> len(often.exchanges), len(rarely.exchanges), abs(often.accuracy - rarely.accuracy) < 0.02
    (128, 4, True)
    """
    if not isinstance(algorithm, Algorithm):
        raise BadInput(f"train: algorithm={algorithm!r} is none: write algorithm=ty.algorithms.Direct(31), say")
    if rates is not None and not isinstance(rates, Rates):
        raise BadInput(f"train: rates must be a machine's Rates, got {type(rates).__name__}: write rates=machine.rates(step)")
    require_positive("train", workers=workers, batch=batch)
    require_quantity("train", learning_rate=learning_rate)
    if not 0 <= momentum < 1:
        raise BadInput(f"train: momentum must be at least 0 and below 1, got {momentum!r}")
    clustered = isinstance(algorithm, Direct)
    cluster_size = _cluster_size(workers, cluster_size, rates, clustered)
    steps = _steps(data.samples, workers * batch, epochs, steps)
    if isinstance(model, LinearModel):
        model.check(data.features, data.targets)
    sharding = shard(shards)
    parts = sharding.deal(data.features, data.targets, workers=workers, cluster_size=cluster_size, seed=seed)
    groups = workers // cluster_size if clustered else workers
    every = max(1, data.samples // (workers * batch)) if evaluate_every is None else evaluate_every
    require_positive("train", evaluate_every=every)
    workspace = Workspace(
        model=model,
        data=data,
        feed=Feed(parts, batch, seed),
        clock=Clock.of(rates or unit_rates(algorithm, model.parameters, workers, cluster_size), groups),
        recorder=Recorder(groups),
        workers=workers,
        cluster_size=cluster_size,
        learning_rate=learning_rate,
        momentum=momentum,
        steps=steps,
        evaluate_every=every,
        seed=seed,
        on_progress=on_progress,
        interval=interval or Interval(),
    )
    with workspace.pool, np.errstate(over="ignore", invalid="ignore"):  # a run that diverges shows it in its accuracy
        if isinstance(algorithm, Direct):
            weights = direct.run(workspace, algorithm)
        elif type(algorithm) in lockstep.RULES:
            weights = lockstep.run(workspace, algorithm)
        else:
            known = ["Direct", *(rule.__name__ for rule in lockstep.RULES)]
            raise UnknownName("algorithm", type(algorithm).__name__, known, "train")
    return _history(workspace, algorithm, weights, sharding.kind)


def _history(workspace: Workspace, algorithm: Algorithm, weights: Array, shards: str) -> History:
    recorder = workspace.recorder
    age_steps, age_s = recorder.ages()
    return History(
        algorithm=algorithm,
        workers=workspace.workers,
        cluster_size=workspace.cluster_size,
        groups=recorder.groups,
        batch=workspace.feed.batch,
        learning_rate=workspace.learning_rate,
        momentum=workspace.momentum,
        shards=shards,
        seed=workspace.seed,
        steps=recorder.gradients / recorder.groups,
        samples=recorder.gradients * workspace.feed.batch * workspace.workers // recorder.groups,
        time_s=recorder.evaluations[-1].time_s,
        weights=weights,
        evaluations=tuple(recorder.evaluations),
        exchanges=tuple(recorder.exchanges),
        age_steps=age_steps,
        age_s=age_s,
        bytes_global=sum(exchange.bytes for exchange in recorder.exchanges),
        bytes_local=workspace.clock.local_bytes(recorder.gradients),
        token_wait_s=seconds(recorder.token_wait_ps),
        barrier_wait_s=seconds(recorder.barrier_wait_ps),
        lost_steps=recorder.lost_steps,
    )


def _cluster_size(workers: int, cluster_size: int | None, rates: Rates | None, clustered: bool) -> int:
    if rates is not None and rates.workers != workers:
        raise BadInput(f"train: rates are of a machine with {rates.workers} workers: write workers={rates.workers}")
    if rates is not None and clustered:
        if cluster_size not in (None, rates.cluster_size):
            raise BadInput(f"train: rates are of clusters of {rates.cluster_size}: leave cluster_size={cluster_size} out")
        cluster_size = rates.cluster_size
    if cluster_size is None:
        cluster_size = min(CLUSTER, workers)
    require_positive("train", cluster_size=cluster_size)
    if workers % cluster_size:
        fitting = max(size for size in range(1, min(cluster_size, workers) + 1) if workers % size == 0)
        raise BadInput(f"train: cluster_size={cluster_size} does not divide {workers} workers: write cluster_size={fitting}, say")
    return cluster_size


def _steps(samples: int, samples_per_step: int, epochs: float | None, steps: int | None) -> int:
    if (epochs is None) == (steps is None):
        raise BadInput("train: give epochs or steps, one of them")
    if steps is not None:
        require_positive("train", steps=steps)
        return steps
    require_quantity("train", epochs=epochs)
    assert epochs is not None
    return max(1, -int(-epochs * samples // samples_per_step))
