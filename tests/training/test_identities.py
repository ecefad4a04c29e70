"""What algorithms have in common: cases in which two of them are one, fixed points, conserved means, counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
from trainyard.training import Data, History, LogisticRegression, train
from trainyard.training.data import linear_problem
from trainyard.training.direct import Clusters
from trainyard.training.lockstep import ElasticModels
from trainyard.training.shards import Feed, Shards

DATA = linear_problem(samples=480, features=6, test_samples=50, dtype="float64")
MODEL = LogisticRegression(6, l2=0.01)


def run(algorithm: Algorithm, **changes: Any) -> History:
    options = {"workers": 12, "cluster_size": 3, "batch": 4, "learning_rate": 0.5, "steps": 20} | changes
    return train(options.pop("model", MODEL), options.pop("data", DATA), algorithm=algorithm, **options)


def close(first: History, second: History) -> None:
    assert first.weights == pytest.approx(second.weights, rel=1e-10, abs=1e-13)
    assert np.abs(first.weights).max() > 0.01


SAME = [
    GradientAveraging(1),
    ModelAveraging(1),
    Direct(0),
    Direct(0, unit="s"),
    Direct(0, order="priority"),
    Direct(0, update="literal", recheck=True),
]


@pytest.mark.parametrize("algorithm", SAME, ids=repr)
@pytest.mark.parametrize("shards", ["iid", "feature"])
def test_an_exchange_after_every_step_is_synchronous_sgd(algorithm: Algorithm, shards: str) -> None:
    close(run(algorithm, shards=shards), run(Synchronous(), shards=shards))


@pytest.mark.parametrize("algorithm", [GradientAveraging(1), ModelAveraging(1), Direct(0)], ids=repr)
def test_an_exchange_after_every_step_is_synchronous_sgd_with_momentum(algorithm: Algorithm) -> None:
    close(run(algorithm, momentum=0.9, learning_rate=0.1), run(Synchronous(), momentum=0.9, learning_rate=0.1))


ALONE = [
    Synchronous(),
    GradientAveraging(1),
    ModelAveraging(7),
    ADMM(1),
    DecentralizedSgd(),
    Direct(7),
    Direct(7, update="literal"),
]


@pytest.mark.parametrize("algorithm", ALONE, ids=repr)
def test_one_worker_does_plain_sgd(algorithm: Algorithm) -> None:
    history = run(algorithm, workers=1, cluster_size=1, steps=24)
    weights = np.zeros((1, 6))
    feed = Feed(Shards().deal(DATA.features, DATA.targets, workers=1, cluster_size=1, seed=0), 4, 0)
    for number in range(24):
        rows = feed.rows(number, slice(0, 1))
        weights -= 0.5 * MODEL.gradients(weights, DATA.features[rows], DATA.targets[rows])
    assert history.weights == pytest.approx(weights[0], rel=1e-10, abs=1e-13)
    assert history.bytes_global == 0


def test_a_cluster_of_all_is_synchronous_sgd() -> None:
    close(run(Direct(5), cluster_size=12), run(Synchronous(), cluster_size=12))


def test_literal_without_recheck_applies_the_same_gradient_once_for_each_cluster() -> None:
    once, each = run(Direct(0, update="literal", recheck=True), steps=1), run(Direct(0, update="literal"), steps=1)
    assert each.weights == pytest.approx(4 * once.weights, rel=1e-10)
    assert (len(once.exchanges), len(each.exchanges)) == (1, 4)


def fewer_samples() -> Data:
    return Data(
        features=DATA.features[:24], targets=DATA.targets[:24], test_features=DATA.test_features, test_targets=DATA.test_targets
    )


def solved(data: Data, model: LogisticRegression) -> np.ndarray:
    """Newton's method on the whole problem."""
    weights = np.zeros(model.features)
    for _ in range(30):
        gradient = model.gradients(weights[None], data.features[None], data.targets[None])[0]
        chance = 1 / (1 + np.exp(-data.features @ weights))
        curvature = (data.features * (chance * (1 - chance))[:, None]).T @ data.features / len(chance)
        weights -= np.linalg.solve(curvature + model.l2 * np.eye(len(weights)), gradient)
    return weights


@pytest.mark.parametrize("shards", ["iid", "feature"])
def test_admm_ends_at_the_solution_of_the_whole_problem(shards: str) -> None:
    """Whole-shard gradients and enough local steps: the consensus solves what no worker has all samples of. MA-SGD does not."""
    data = fewer_samples()
    options = {"data": data, "workers": 4, "cluster_size": 1, "batch": 6, "steps": 1600, "evaluate_every": 1600, "shards": shards}
    model = LogisticRegression(6, l2=0.2)
    best = solved(data, model)
    assert run(ADMM(20, rho=0.3), model=model, **options).weights == pytest.approx(best, rel=1e-6, abs=1e-7)
    assert run(ModelAveraging(20), model=model, **options).weights != pytest.approx(best, rel=1e-2)


def test_decentralized_sgd_moves_the_mean_by_the_mean_gradient_alone() -> None:
    """Mixing keeps the mean of models: with a learning rate near zero it is that of synchronous SGD to first order."""
    small = 1e-7
    ring, whole = run(DecentralizedSgd(), learning_rate=small), run(Synchronous(), learning_rate=small)
    assert ring.weights / small == pytest.approx(whole.weights / small, rel=1e-5)


def test_elastic_exchange_keeps_the_sum_of_all_and_lets_equals_be() -> None:
    """What workers give up the centre gets; with beta 0.9 it goes nine tenths of the way to their mean."""
    elastic = object.__new__(ElasticModels)
    elastic.weights, elastic.centre = np.random.default_rng(0).standard_normal((5, 3)), np.ones(3)
    elastic.elasticity = 0.9 / 5
    elastic.workspace = SimpleNamespace(map_chunks=lambda count, batch, work: [work(slice(0, 2)), work(slice(2, count))])
    before, mean = elastic.weights.sum(0) + elastic.centre, elastic.weights.mean(0)
    elastic.exchange()
    assert elastic.weights.sum(0) + elastic.centre == pytest.approx(before)
    assert elastic.centre == pytest.approx(1 + 0.9 * (mean - 1))
    elastic.weights[:] = elastic.centre
    elastic.exchange()
    assert (elastic.weights == elastic.centre).all()


COUNTS = [
    (Synchronous(), 20),
    (GradientAveraging(8), 3),
    (ModelAveraging(5), 4),
    (ADMM(20), 1),
    (ElasticAveraging(3), 7),
    (DecentralizedSgd(), 20),
    (Direct(0), 20),
    (Direct(3), 5),
    (Direct(6), 3),
    (Direct(3, update="literal"), 20),
    (Direct(3, update="literal", recheck=True), 5),
]


@pytest.mark.parametrize(("algorithm", "count"), COUNTS, ids=lambda one: repr(one))
def test_exchanges_and_bytes_are_those_of_the_formula(algorithm: Algorithm, count: int) -> None:
    """ceil(steps / local steps); literal without recheck: once for each of the four clusters."""
    history = run(algorithm)
    groups = 4 if isinstance(algorithm, Direct) else 12
    assert len(history.exchanges) == count
    assert history.bytes_global == count * 2 * groups * 6 * 4
    assert history.bytes_local == (20 * 2 * 12 * 6 * 4 if isinstance(algorithm, Direct) else 0)
    assert history.samples == 20 * 12 * 4
    assert history.time_s == 20.0


@pytest.mark.parametrize("algorithm", [Synchronous(), ModelAveraging(4), Direct(3), Direct(3, update="literal")], ids=repr)
def test_a_sample_is_used_once_in_an_epoch(algorithm: Algorithm) -> None:
    class Counting(LogisticRegression):
        def gradients_at(self, weights: Any, features: Any, targets: Any, rows: Any) -> Any:
            seen.extend(rows.ravel().tolist())
            return LogisticRegression.gradients_at(self, weights, features, targets, rows)

    seen: list[int] = []
    history = run(algorithm, model=Counting(6), epochs=3, steps=None)
    assert sorted(seen) == sorted([*range(480)] * 3)
    assert (history.steps, history.evaluations[-1].epoch) == (30, 3.0)


@pytest.mark.parametrize("algorithm", [Direct(3), Direct(3, update="literal"), Direct(2, unit="s", update="literal")], ids=repr)
@pytest.mark.parametrize("step_s", [(1.0,), (1.0, 2.0)], ids=("alike", "not alike"))
def test_clusters_in_one_array_and_one_by_one_give_the_same_bits(
    algorithm: Direct, step_s: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = Rates(
        workers=12, cluster_size=3, step_s=step_s, reduce_s=0.0, exchange_s=0.25, update_s=0.0, token_s=0.125,
        message_bytes=24, exchange_bytes=0, reduce_bytes=0,
    )  # fmt: skip
    together = run(algorithm, rates=rates, shards="feature")
    original = Clusters.gradients

    def one_by_one(self: Clusters, clusters: Any) -> Any:
        return np.concatenate([original(self, clusters[number : number + 1]) for number in range(len(clusters))])

    monkeypatch.setattr(Clusters, "gradients", one_by_one)
    alone = run(algorithm, rates=rates, shards="feature")
    assert (together.weights == alone.weights).all()
    assert together.curve() == alone.curve()


@pytest.mark.parametrize("algorithm", [Synchronous(), ModelAveraging(4), ADMM(4), Direct(3), Direct(3, update="literal")], ids=repr)
def test_runs_repeat_to_the_bit_on_any_number_of_threads(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    data = linear_problem(samples=2048, features=4096, test_samples=8)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
        found.append(run(algorithm, model=LogisticRegression(4096), data=data, workers=128, cluster_size=2, steps=5))
    assert (found[0].weights == found[1].weights).all()
    assert (found[0].weights == found[2].weights).all()
    assert found[0].weights.dtype == np.float32
