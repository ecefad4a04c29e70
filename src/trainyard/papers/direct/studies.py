"""Beyond the paper: accuracy, exchanges and time against tau; all algorithms by one clock; Algorithm 1 as printed on skewed shards.

On the linear model's stand-in of `accuracy` with 512 DPUs. DIRECT's algorithm has DIRECT's clock, all others PIM-Opt's. The study
of shards has features in regions, which the stand-in does not have (`training.data.linear_problem`), and fewer of them; there every
algorithm gets the learning rate of three that does best on held-out samples.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from trainyard.mapping.algorithms import Algorithm, Direct
from trainyard.papers.direct.accuracy import RATE, WORKERS, linear_data, rates_of
from trainyard.papers.direct.measuring import BATCH
from trainyard.training import History, LogisticRegression, train
from trainyard.training.data import linear_problem
from trainyard.training.studies import Row, algorithms_of, study

TAUS = (0, 1, 3, 7, 15, 31, 63, 127)
STEPS = 128
SHARDS = ("iid", "label", "feature")
REGION_FEATURES = 256
GRID = (0.1, 0.3, 1.0)


def trained(algorithm: Algorithm, **options: Any) -> History:
    return train(
        LogisticRegression(), linear_data(), algorithm=algorithm, rates=rates_of(algorithm), workers=WORKERS, batch=BATCH,
        learning_rate=RATE, steps=STEPS, **options,
    )  # fmt: skip


@cache
def by_tau() -> dict[int, History]:
    return {tau: trained(Direct(tau), evaluate_every=STEPS) for tau in TAUS}


@cache
def by_algorithm() -> dict[str, History]:
    """Judged every few steps, for curves."""
    return {name: trained(algorithm, evaluate_every=8) for name, algorithm in algorithms_of(32).items()}


@cache
def on_shards() -> list[Row]:
    data = linear_problem(samples=16_384, features=REGION_FEATURES, test_samples=8_192)
    return study(
        LogisticRegression(REGION_FEATURES), data, shards=SHARDS, grid=GRID, seeds=(0, 1), workers=WORKERS, batch=BATCH,
        steps=STEPS, evaluate_every=STEPS,
    )  # fmt: skip
