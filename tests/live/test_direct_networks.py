"""torch networks as models of training: their gradients are autograd's, their judgements depend on weights and samples alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from trainyard.errors import BadInput, UnknownName
from trainyard.live.direct.networks import Network, SmallResNet, perceptron, resnet18_small
from trainyard.mapping.algorithms import Direct, Synchronous
from trainyard.training.data import Data
from trainyard.training.models import IndexedModel
from trainyard.training.trainer import train
from trainyard.workloads.datasets.digits import digits

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((3, 6, 1, 8, 8)).astype(np.float32)
LABELS = RANDOM.integers(0, 10, (3, 6))
NETWORKS = {
    "perceptron": lambda **options: perceptron(64, (16,), **options),
    "batch": lambda **options: resnet18_small(size=8, width=8, channels=1, **options),
    "group": lambda **options: resnet18_small(size=8, width=8, channels=1, norm="group", **options),
}
EVERY = pytest.mark.parametrize("kind", NETWORKS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads of torch that share a core with other tests wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain(network: Network, weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One replica's gradient with nothing but torch."""
    module = network.build()
    vector_to_parameters(torch.from_numpy(weights), module.parameters())
    functional.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Up to the rounding of sums in another order."""
    return bool(np.linalg.norm(actual - expected) < 1e-5 * np.linalg.norm(expected))


def starts(network: Network) -> np.ndarray:
    return np.stack([network.start(seed) for seed in range(3)])


@pytest.mark.oracle
@EVERY
def test_gradients_are_those_of_plain_autograd(kind: str) -> None:
    network = NETWORKS[kind]()
    weights = starts(network)
    actual = network.gradients(weights, IMAGES, LABELS)
    assert actual.dtype == np.float32
    for replica in range(3):
        expected = plain(network, weights[replica], IMAGES[replica], LABELS[replica])
        assert np.abs(expected).max() > 1e-3
        assert close(actual[replica], expected)


@pytest.mark.oracle
def test_gradients_equal_finite_differences_of_the_loss() -> None:
    network = perceptron(64, (16,))
    weights, direction = network.start(1), RANDOM.standard_normal(network.parameters).astype(np.float32)
    slope = float(network.gradients(weights[None], IMAGES[:1], LABELS[:1])[0] @ direction)
    step = np.float32(1e-3)
    ahead, behind = (network.loss(weights + sign * step * direction, IMAGES[0], LABELS[0]) for sign in (1, -1))
    assert (ahead - behind) / (2 * float(step)) == pytest.approx(slope, rel=0.02)


def test_each_worker_normalises_by_its_own_batch() -> None:
    alone, together = NETWORKS["batch"](worker_batch=2), NETWORKS["batch"]()
    weights = starts(alone)[:1]
    parts = [plain(alone, weights[0], IMAGES[0, at : at + 2], LABELS[0, at : at + 2]) for at in (0, 2, 4)]
    actual = alone.gradients(weights, IMAGES[:1], LABELS[:1])[0]
    assert close(actual, np.mean(parts, axis=0))
    assert not close(actual, together.gradients(weights, IMAGES[:1], LABELS[:1])[0])
    uneven = NETWORKS["perceptron"](worker_batch=4)
    whole = NETWORKS["perceptron"]().gradients(starts(uneven), IMAGES, LABELS)
    assert close(uneven.gradients(starts(uneven), IMAGES, LABELS), whole), "4 and 2 count as they are"


@EVERY
def test_gradients_at_rows_and_from_several_threads_are_the_same(kind: str) -> None:
    network = NETWORKS[kind]()
    assert isinstance(network, IndexedModel)
    weights, rows = starts(network), np.arange(18).reshape(3, 6)
    flat, labels = IMAGES.reshape(18, 1, 8, 8), LABELS.reshape(18)
    expected = network.gradients(weights, IMAGES, LABELS)
    torch.set_num_threads(2)
    with ThreadPoolExecutor(3) as pool:
        results = pool.map(lambda at: network.gradients_at(weights[at][None], flat, labels, rows[at][None])[0], [0, 1, 2] * 4)
        for at, actual in zip([0, 1, 2] * 4, results, strict=True):
            assert np.array_equal(actual, expected[at])
    network.loss(weights[0], IMAGES[0], LABELS[0])
    assert torch.get_num_threads() == 2, "torch is left as it was"


@EVERY
def test_initial_weights_depend_on_the_seed_alone(kind: str) -> None:
    network = NETWORKS[kind]()
    before = torch.random.get_rng_state()
    assert np.array_equal(network.start(4), network.start(4))
    assert not np.array_equal(network.start(4), network.start(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert network.start(4).shape == (network.parameters,)


class TestStatistics:
    def test_they_are_made_for_the_weights_that_are_judged(self) -> None:
        network = NETWORKS["batch"](calibration=IMAGES[1])
        weights = network.start(3)
        module = network.build()
        vector_to_parameters(torch.from_numpy(weights), module.parameters())
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1.0
        with torch.no_grad():
            module.train()(torch.from_numpy(IMAGES[1]))
            scores = module.eval()(torch.from_numpy(IMAGES[0]))
        expected = float(functional.cross_entropy(scores, torch.from_numpy(LABELS[0])))
        assert network.loss(weights, IMAGES[0], LABELS[0]) == pytest.approx(expected, rel=1e-4)
        assert network.accuracy(weights, IMAGES[0], LABELS[0]) == float((scores.argmax(1).numpy() == LABELS[0]).mean())
        one, all_of_them = (network.loss(weights, IMAGES[0][part], LABELS[0][part]) for part in (slice(0, 1), slice(0, 6)))
        assert one != pytest.approx(all_of_them), "a sample's score does not need the others"

    def test_batches_of_calibration_count_by_their_size(self) -> None:
        network = NETWORKS["batch"](calibration=np.concatenate([IMAGES[0], IMAGES[1][:3]]), judged_at_once=6)
        network.loss(network.start(0), IMAGES[0], LABELS[0])
        with network._flat_module() as flat:
            stem = flat.module.stem
            with torch.no_grad():
                means = [stem[0](torch.from_numpy(part)).mean((0, 2, 3)) for part in (IMAGES[0], IMAGES[1][:3])]
            assert torch.allclose(stem[1].running_mean, (2 * means[0] + means[1]) / 3, atol=1e-6)
            assert stem[1].momentum == 0.1

    @pytest.mark.parametrize("calibration", [None, IMAGES[1]])
    def test_an_answer_does_not_depend_on_what_was_asked_before(self, calibration: np.ndarray | None) -> None:
        network, fresh = NETWORKS["batch"](calibration=calibration), NETWORKS["batch"](calibration=calibration)
        weights = starts(network)
        network.gradients(weights, IMAGES * 100, LABELS)
        network.gradients(weights * np.float32(np.nan), IMAGES, LABELS)
        assert network.loss(weights[0], IMAGES[0], LABELS[0]) == fresh.loss(weights[0], IMAGES[0], LABELS[0])
        assert np.array_equal(network.gradients(weights, IMAGES, LABELS), fresh.gradients(weights, IMAGES, LABELS))

    def test_dropout_is_for_training_alone(self) -> None:
        network = Network(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)))
        weights = network.start(0)
        assert network.loss(weights, IMAGES[0], LABELS[0]) == network.loss(weights, IMAGES[0], LABELS[0])


def test_the_small_resnet_is_resnet18() -> None:
    module = SmallResNet(classes=10)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert sum(layer.kernel_size == (3, 3) for layer in layers if isinstance(layer, nn.Conv2d)) == 17, "and one fully connected"
    maps = module.stages(module.stem(torch.zeros(1, 3, 32, 32)))
    assert maps.shape == (1, 512, 4, 4)


def test_a_single_score_classifies_by_its_sign() -> None:
    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(scores[:, 0], targets)

    network = Network(lambda: nn.Linear(2, 1, bias=False), loss, targets=torch.float32)
    features, targets = np.array([[1.0, 0.0], [-1.0, 5.0], [2.0, 0.0]], np.float32), np.array([1.0, 0.0, 0.0])
    assert network.accuracy(np.array([1.0, 0.0], np.float32), features, targets) == pytest.approx(2 / 3)
    gradient = network.gradients(np.zeros((1, 2), np.float32), features[None], targets[None])[0]
    assert np.allclose(gradient, ((0.5 - targets)[:, None] * features).mean(0))


def test_bad_modules_weights_and_samples_raise() -> None:
    with pytest.raises(BadInput, match="no parameters to train"):
        Network(nn.ReLU)
    with pytest.raises(BadInput, match="must be float32"):
        Network(lambda: nn.Linear(2, 2).double())
    with pytest.raises(BadInput, match="size must be at least 8, got 4"):
        resnet18_small(size=4)
    with pytest.raises(UnknownName, match="did you mean 'batch'"):
        resnet18_small(norm="batsch")
    with pytest.raises(BadInput, match="width=12 is not divided"):
        resnet18_small(norm="group", width=12)
    network = perceptron(4, ())
    with pytest.raises(BadInput, match=r"does not take 5 samples of shape \(3,\)"):
        network.gradients(network.start(0)[None], np.zeros((1, 5, 3)), np.zeros((1, 5)))
    with pytest.raises(BadInput, match=r"weights of shape \(2,\), the module has 50 parameters"):
        network.loss(np.zeros(2, np.float32), np.zeros((5, 4)), np.zeros(5))


@pytest.mark.parametrize("algorithm", [Synchronous(), Direct(tau=7)], ids=["synchronous", "direct"])
def test_digits_are_learned_by_clusters(algorithm: Synchronous | Direct) -> None:
    images, labels = digits("generated", samples=1200, size=8).take(np.arange(1200))
    data = Data(features=images[:1000], targets=labels[:1000], test_features=images[1000:], test_targets=labels[1000:])
    history = train(
        perceptron(64, (32,)),
        data,
        algorithm=algorithm,
        workers=8,
        cluster_size=2,
        batch=4,
        learning_rate=0.2,
        momentum=0.9,
        epochs=10,
    )
    assert history.evaluations[0].accuracy < 0.3
    assert history.accuracy > 0.9
