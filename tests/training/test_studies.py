"""Experiments: rows that say what they should, rates chosen without a look at the test part, and the findings on Algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainyard.errors import BadInput
from trainyard.mapping.algorithms import Synchronous
from trainyard.training import Data, LogisticRegression
from trainyard.training.data import linear_problem
from trainyard.training.studies import algorithms_of, choose_rate, compare_algorithms, study, tau_sweep

DATA = linear_problem(samples=8192, features=32, test_samples=4000, regions=8)
MODEL = LogisticRegression(32, l2=1e-4)
SMALL: dict[str, Any] = {"workers": 16, "cluster_size": 2, "batch": 8, "epochs": 8}


def test_rates_are_chosen_without_the_test_part() -> None:
    blind = Data(
        features=DATA.features, targets=DATA.targets, test_features=DATA.test_features[:1], test_targets=DATA.test_targets[:1]
    )
    options = SMALL | {"epochs": 1}
    grid = (1e-6, 0.1, 1e4)
    assert choose_rate(MODEL, DATA, Synchronous(), grid, **options) == choose_rate(MODEL, blind, Synchronous(), grid, **options)
    assert choose_rate(MODEL, DATA, Synchronous(), (0.7,), **options) == 0.7
    with pytest.raises(BadInput, match="grid of learning rates is empty"):
        choose_rate(MODEL, DATA, Synchronous(), (), **options)


def test_tau_sweep_trades_exchanges_for_age() -> None:
    rows = tau_sweep(MODEL, DATA, (0, 7, 63), grid=(0.3,), seeds=(0,), **SMALL)
    assert [row["tau"] for row in rows] == [0, 7, 63]
    assert [row["exchanges"] for row in rows] == [512, 64, 8]
    assert [row["age_steps"] for row in rows] == [1, 4.5, 32.5]
    assert rows[0]["bytes_global"] == 64 * rows[2]["bytes_global"]
    assert all({"accuracy", "time_s", "age_s", "accuracy_deviation"} <= set(row) for row in rows)


def test_all_algorithms_learn_and_are_compared_with_synchronous() -> None:
    rows = study(MODEL, DATA, shards=("iid",), grid=(0.3,), seeds=(0,), **SMALL | {"epochs": 4})
    assert [row["name"] for row in rows] == list(algorithms_of())
    assert rows[0]["points"] == 0
    assert min(row["accuracy"] for row in rows) > 0.8
    assert {row["shards"] for row in rows} == {"iid"}


@pytest.mark.paper
def test_algorithm_1_as_printed_loses_what_averaging_keeps() -> None:
    """Same grid for both, two seeds: averaging stays with synchronous SGD at 32 times fewer exchanges, literal does not."""
    named = {name: algorithms_of(32)[name] for name in ("synchronous", "averaging", "literal")}
    rows = compare_algorithms(MODEL, DATA, named, shards=("iid", "feature"), grid=(0.1, 0.3, 1.0), seeds=(0, 1), **SMALL)
    points = {(row["shards"], row["name"]): row["points"] for row in rows}
    exchanges = {(row["shards"], row["name"]): row["exchanges"] for row in rows}
    assert exchanges["iid", "synchronous"] == 32 * exchanges["iid", "averaging"]
    assert points["iid", "averaging"] > -0.5
    for kind in ("iid", "feature"):
        assert points[kind, "literal"] < points[kind, "averaging"] - 0.5
    assert points["feature", "literal"] < points["iid", "literal"]


def test_generated_data_repeats_by_seed_and_noise_raises_the_loss() -> None:
    clean = linear_problem(samples=2000, features=4, test_samples=10, noise=0.0, margin=0.3)
    turned = linear_problem(samples=2000, features=4, test_samples=10, noise=0.2)
    again = linear_problem(samples=2000, features=4, test_samples=10, noise=0.2)
    assert (turned.features == again.features).all()
    assert np.mean(np.square(turned.features)) == pytest.approx(1, abs=0.5)
    best = LogisticRegression(4)
    found = [tau_sweep(best, one, (0,), grid=(1.0,), seeds=(0,), workers=4, batch=8, epochs=5)[0] for one in (clean, turned)]
    assert found[0]["loss"] < found[1]["loss"]
