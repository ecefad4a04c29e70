"""Generated features: any rows at any time, the same, and as hard to tell apart as was asked for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.training.models import LogisticRegression
from trainyard.workloads.datasets.batches import Part
from trainyard.workloads.datasets.features import FORMS, Features

SMALL = Features(samples=20_000, features=256, factors=16, accuracy=0.85)
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def of(form: str, **changes: object) -> Features:
    return Features(**{"samples": 20_000, "features": 256, "factors": 16, "accuracy": 0.85, "form": form, **changes})


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2048 * 3328 - 1), min_size=1, max_size=4))
def test_a_sample_depends_on_its_number_alone(numbers: list[int]) -> None:
    data = Features(features=64, factors=4)
    together, labels = data.take(np.array(numbers))
    for row, number in enumerate(numbers):
        alone, label = data.rows(number, number + 1)
        assert np.allclose(alone[0], together[row], atol=1e-6), "up to the rounding of a product"
        assert label[0] == labels[row]


def test_rows_and_parts() -> None:
    data = of("raw", samples=250)
    whole, labels = data.rows(0, 250)
    held_out = Part(source=data, first=200, samples=50)
    assert np.array_equal(held_out.take(np.arange(3))[1], labels[200:203])
    assert data.stand_in
    assert data.name.startswith("stand-in: ")
    assert not np.allclose(of("raw", seed=1).rows(0, 5)[0], whole[:5])


def test_the_whole_set_of_2048_dpus_is_there_but_not_in_memory() -> None:
    data = Features()
    assert data.samples == 2048 * 3328
    values, _ = data.rows(data.samples - 2, data.samples)
    assert values.shape == (2, 4096)
    assert values.dtype == np.float32


@pytest.mark.parametrize("accuracy", [0.6, 0.85, 0.97])
@pytest.mark.parametrize("form", ["raw", "normalised", "standardised"])
def test_the_best_plane_has_the_requested_accuracy(accuracy: float, form: str) -> None:
    data = of(form, accuracy=accuracy)
    weights, bias = data.best_plane()
    values, labels = data.rows(0, 8000)
    right = ((values @ weights + bias > 0) == labels).mean()
    assert abs(right - accuracy) < 4 * (accuracy * (1 - accuracy) / 8000) ** 0.5


@pytest.mark.oracle
def test_the_best_plane_is_fishers() -> None:
    """Against the full covariance inverted, and against means and covariance counted from samples."""
    data = of("standardised", features=8, factors=3, samples=40_000)
    weights, _ = data.best_plane()
    loadings = data.loadings.astype(np.float64)
    assert np.allclose(np.linalg.solve(loadings @ loadings.T + 0.5 * np.eye(8), loadings @ data.shift), weights, rtol=1e-5)
    values, labels = data.rows(0, 40_000)
    means = [values[labels == label].mean(0) for label in (0, 1)]
    own = values - np.where(labels[:, None] == 1, means[1], means[0])
    fisher = np.linalg.solve(own.T @ own / len(own), means[1] - means[0])
    assert weights @ fisher / np.linalg.norm(weights) / np.linalg.norm(fisher) > 0.995


@EVERY_FORM
def test_each_form_has_its_range_and_mean(form: str) -> None:
    values, labels = of(form).rows(0, 4000)
    assert abs(labels.mean() - 0.5) < 0.04
    if form == "rectified":
        assert values.min() == 0
        assert (values > 0).mean() == pytest.approx(0.2, abs=0.02)
    elif form == "normalised":
        assert 0 < values.min() < 0.25
        assert 0.75 < values.max() < 1
        assert values.mean() == pytest.approx(0.5, abs=0.01)
    else:
        assert values.std() == pytest.approx(1, abs=0.05)
        assert (values > 0).mean() == pytest.approx(0.2 if form == "raw" else 0.5, abs=0.02)


def test_logistic_regression_comes_near_the_best() -> None:
    data, model = of("standardised"), LogisticRegression(256)
    values, labels = data.rows(0, 8000)
    weights = model.start(0)[None]
    for step in range(600):
        part = slice(step * 40 % 8000, step * 40 % 8000 + 40)
        weights -= 0.01 * model.gradients(weights, values[part][None], labels[part][None])
    assert model.accuracy(weights[0], *data.rows(8000, 14_000)) == pytest.approx(0.85, abs=0.03)


def test_no_torch_is_needed() -> None:
    code = "import sys, trainyard.workloads.datasets.features, trainyard.workloads.datasets.digits; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_bad_form_accuracy_or_rows_raise() -> None:
    with pytest.raises(UnknownName, match="did you mean 'rectified'"):
        Features(form="rectify")
    with pytest.raises(BadInput, match=r"accuracy must be between 0.5 and 1"):
        Features(accuracy=0.5)
    with pytest.raises(BadInput, match=r"samples are numbered 0 to 19999, got 19999 to 20000"):
        SMALL.rows(19_999, 20_001)
    with pytest.raises(BadInput, match="no plane is the best"):
        of("rectified").best_plane()
