"""Experiments over many runs: comparisons of algorithms, and accuracy, exchanges and time against tau.

For every algorithm the learning rate is chosen from the same grid, by accuracy on samples held out from the training part. Only
models trained with that rate on the whole training part are evaluated on the test part; rows are means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainyard.checks import LARGEST_COUNT
from trainyard.errors import BadInput
from trainyard.mapping.algorithms import (
    ADMM,
    Algorithm,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Rates,
    Synchronous,
)
from trainyard.progress import ProgressCallback, no_progress
from trainyard.training.data import Data
from trainyard.training.history import History, mean_rows
from trainyard.training.models import Model
from trainyard.training.shards import Shards, shard
from trainyard.training.trainer import train

Row = dict[str, Any]
GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # assumed: half decades around what linear models on normalised features take
HELD_OUT = 0.2
RatesOf = Callable[[Algorithm], Rates | None]
"""The rates of a machine under an algorithm: `lambda algorithm: replace(machine, algorithm=algorithm).rates(step)`."""


def no_rates(algorithm: Algorithm) -> Rates | None:
    """No machine: the unit clock."""
    return None


def algorithms_of(period: int = 32) -> dict[str, Algorithm]:
    """The paper's algorithm as printed and as we interpret it, and its rivals; those with a period exchange every `period` steps.

    >>> list(algorithms_of())[:3]
    ['synchronous', 'averaging', 'literal']
    """
    return {
        "synchronous": Synchronous(),
        "averaging": Direct(period - 1),
        "literal": Direct(period - 1, update="literal"),
        "literal, recheck": Direct(period - 1, update="literal", recheck=True),
        "MA-SGD": ModelAveraging(period),
        "GA-SGD": GradientAveraging(1),
        "ADMM": ADMM(period),
        "EASGD": ElasticAveraging(period),
        "D-PSGD": DecentralizedSgd(),
    }


def choose_rate(
    model: Model, data: Data, algorithm: Algorithm, grid: Sequence[float] = GRID, *, rates_of: RatesOf = no_rates, **options: Any
) -> float:
    """The learning rate with the best accuracy on a held-out fifth of the training part; the smallest of equals."""
    if not grid:
        raise BadInput("choose_rate: the grid of learning rates is empty")
    if len(grid) == 1:
        return grid[0]
    parts = data.held_out(HELD_OUT)
    options = {**options, "evaluate_every": LARGEST_COUNT, "rates": rates_of(algorithm)}
    accuracy = {rate: train(model, parts, algorithm=algorithm, learning_rate=rate, **options).accuracy for rate in sorted(grid)}
    return max(accuracy, key=lambda rate: accuracy[rate])


def run_seeds(
    model: Model, data: Data, algorithm: Algorithm, *, seeds: Iterable[int], rates_of: RatesOf = no_rates, **options: Any
) -> list[History]:
    rates = rates_of(algorithm)
    return [train(model, data, algorithm=algorithm, rates=rates, seed=seed, **options) for seed in seeds]


def compare_algorithms(
    model: Model,
    data: Data,
    algorithms: Mapping[str, Algorithm] | None = None,
    *,
    shards: Sequence[str | Shards] = ("iid",),
    grid: Sequence[float] = GRID,
    seeds: Iterable[int] = (0, 1, 2),
    rates_of: RatesOf = no_rates,
    on_progress: ProgressCallback = no_progress,
    **options: Any,
) -> list[Row]:
    """A row per algorithm and kind of shards: `History.row` averaged over seeds, and accuracy points above synchronous SGD.

    `options` are those of `train`: workers, cluster_size, batch, epochs or steps, ...
    """
    named, seeds = algorithms_of() if algorithms is None else dict(algorithms), tuple(seeds)
    rows: list[Row] = []
    cases = [(kind, name) for kind in map(shard, shards) for name in named]
    for number, (kind, name) in enumerate(cases):
        on_progress(number, len(cases))
        case_options = {**options, "shards": kind}
        rate = choose_rate(model, data, named[name], grid, rates_of=rates_of, **case_options)
        runs = run_seeds(model, data, named[name], seeds=seeds, rates_of=rates_of, learning_rate=rate, **case_options)
        rows.append({"name": name, **mean_rows([run.row() for run in runs])})
    reference = {row["shards"]: row["accuracy"] for row in rows if row["name"] == "synchronous"}
    for row in rows:
        if row["shards"] in reference:
            row["points"] = round(100 * (row["accuracy"] - reference[row["shards"]]), 9)
    return rows


def tau_sweep(
    model: Model,
    data: Data,
    taus: Sequence[float],
    *,
    algorithm: Direct | None = None,
    grid: Sequence[float] = GRID,
    seeds: Iterable[int] = (0, 1, 2),
    rates_of: RatesOf = no_rates,
    on_progress: ProgressCallback = no_progress,
    **options: Any,
) -> list[Row]:
    """A row for each tau of `algorithm` (averaging by default): accuracy, exchanges, bytes, time_s, age_s, age_steps, ..."""
    seeds, rows = tuple(seeds), []
    for number, tau in enumerate(taus):
        on_progress(number, len(taus))
        changed = replace(algorithm or Direct(), tau=tau)
        rate = choose_rate(model, data, changed, grid, rates_of=rates_of, **options)
        runs = run_seeds(model, data, changed, seeds=seeds, rates_of=rates_of, learning_rate=rate, **options)
        rows.append({"tau": tau, **mean_rows([run.row() for run in runs])})
    return rows


def study(
    model: Model, data: Data, *, period: int = 32, shards: Sequence[str | Shards] = ("iid", "label", "feature"), **options: Any
) -> list[Row]:
    """All algorithms on even and on skewed shards: the accuracy of Algorithm 1 as printed against model averaging."""
    return compare_algorithms(model, data, algorithms_of(period), shards=shards, **options)
