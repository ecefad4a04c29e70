"""Linear models: gradients against autograd, the compiled loop against the array form, losses against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.training import LinearSvm, LogisticRegression
from trainyard.training.models import IndexedModel, LinearModel

MODELS = st.sampled_from([LogisticRegression, LinearSvm])


def batch_of(seed: int, replicas: int, batch: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((replicas, features)),
        rng.standard_normal((replicas, batch, features)),
        rng.integers(0, 2, (replicas, batch)).astype(float),
    )


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(MODELS, st.integers(0, 1000), st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.0, 0.3]))
def test_gradients_and_losses_are_those_of_autograd(
    kind: type[LinearModel], seed: int, replicas: int, batch: int, features: int, l2: float
) -> None:
    torch = pytest.importorskip("torch")
    model = kind(features, l2=l2)
    weights, samples, targets = batch_of(seed, replicas, batch, features)
    found = model.gradients(weights, samples, targets)
    for own, inputs, labels, gradient in zip(weights, samples, targets, found, strict=True):
        given = torch.tensor(own, requires_grad=True)
        signed = (2 * torch.tensor(labels) - 1) * (torch.tensor(inputs) @ given)
        losses = torch.nn.functional.softplus(-signed) if kind is LogisticRegression else (1 - signed).clamp(min=0)
        loss = losses.mean() + l2 / 2 * (given**2).sum()
        loss.backward()
        assert gradient == pytest.approx(given.grad.numpy(), rel=1e-12, abs=1e-14)
        assert model.loss(own, inputs, labels) == pytest.approx(loss.item(), rel=1e-12)
        assert model.accuracy(own, inputs, labels) == (signed > 0).double().mean().item()


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(MODELS, st.integers(0, 1000), st.integers(1, 5), st.integers(1, 6), st.integers(1, 40))
def test_compiled_gradients_read_the_same_samples_in_place(
    kind: type[LinearModel], seed: int, replicas: int, batch: int, features: int
) -> None:
    rng = np.random.default_rng(seed)
    samples, targets = rng.standard_normal((30, features)), rng.integers(0, 2, 30).astype(float)
    rows = rng.integers(0, 30, (replicas, batch))
    weights = rng.standard_normal((replicas, features))
    model = kind(features, l2=0.1)
    assert isinstance(model, IndexedModel)
    expected = model.gradients(weights, samples[rows], targets[rows])
    assert model.gradients_at(weights, samples, targets, rows) == pytest.approx(expected, rel=1e-11, abs=1e-13)
    if kind is LogisticRegression:  # a hinge may open on the other side of a rounding
        narrow = model.gradients_at(weights.astype("f4"), samples.astype("f4"), targets.astype("f4"), rows)
        assert narrow.dtype == np.float32
        assert narrow == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_replica_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    samples, targets = rng.standard_normal((30, 50), dtype="f4"), rng.integers(0, 2, 30).astype("f4")
    weights, rows = rng.standard_normal((6, 50), dtype="f4"), rng.integers(0, 30, (6, 8))
    model = LogisticRegression(50)
    together = model.gradients_at(weights, samples, targets, rows)
    alone = [model.gradients_at(weights[i : i + 1], samples, targets, rows[i : i + 1])[0] for i in range(6)]
    assert (together == np.array(alone)).all()


@pytest.mark.probe
@pytest.mark.parametrize(("margin", "gradient"), [(np.nextafter(1, 0), -1.0), (1.0, 0.0)])
def test_the_hinge_opens_below_a_margin_of_one(margin: float, gradient: float) -> None:
    model, sample, target = LinearSvm(1), np.ones((1, 1, 1)), np.ones((1, 1))
    weights = np.array([[margin]])
    assert model.gradients(weights, sample, target).item() == gradient
    assert model.gradients_at(weights, sample[0], target[0], np.zeros((1, 1), int)).item() == gradient


def test_large_margins_do_not_overflow() -> None:
    model = LogisticRegression(1)
    weights = np.array([[1e4], [-1e4]], "f4")
    samples, targets = np.ones((2, 1, 1), "f4"), np.array([[1], [0]], "f4")
    assert model.gradients(weights, samples, targets).tolist() == [[0.0], [0.0]]
    assert model.loss(weights[1], samples[0], targets[0]) == pytest.approx(1e4)


def test_samples_of_wrong_shape_type_or_label_are_refused() -> None:
    model = LogisticRegression(4)
    with pytest.raises(BadInput, match=r"write LogisticRegression\(features=3\)"):
        model.check(np.zeros((2, 3), "f4"), np.zeros(2))
    with pytest.raises(BadInput, match="targets must be 0 or 1"):
        model.check(np.zeros((2, 4), "f4"), np.array([1, -1]))
    with pytest.raises(BadInput, match="give float32 or float64"):
        model.check(np.zeros((2, 4), "u1"), np.zeros(2))
    with pytest.raises(BadInput, match="l2 must be at least 0"):
        LinearSvm(4, l2=-1)
