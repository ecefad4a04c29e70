"""torch networks as models of `training`: parameters in one vector, gradients by autograd.

A replica's weights are loaded with one copy and its gradient is read with one, because the parameters of the module that computes
are views of one flat tensor. No state of one call affects the next, and several threads may call at once: each gets a module of its
own. Each computes with `threads` threads of torch, one by default, so that sums are added in the same order on every machine.

Batch normalisation under averaging: weights are averaged, statistics are not weights. In training a layer normalises by its batch.
For an evaluation its running statistics are computed for the evaluated weights: as the mean over `calibration` samples, or, where
there are none, from the evaluated samples themselves, `judged_at_once` of them together. Older or averaged statistics would belong
to other weights.

A cluster's batch is the batches of its workers. With `worker_batch` each of these is normalised by itself, as on workers that share
only gradients; without it, all together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.live.measurement.training_step import torch_device
from trainyard.workloads.zoo.vision.resnet import BasicBlock, Normalisation, stage

Array = npt.NDArray[Any]
Loss = Callable[[Tensor, Tensor], Tensor]
NORMS = ("batch", "group")
GROUPS = 8  # assumed: divides every width that is a multiple of 8, the narrow ones of tests too
SMALLEST = 8  # three times halved, one pixel is left


class Network:
    """Any module that maps samples to scores, with a loss that is a mean over samples.

    >>> network = perceptron(inputs=4, hidden=(3,), classes=2)
    >>> weights = network.start(seed=0)
    >>> network.parameters, network.gradients(weights[None], np.ones((1, 5, 4), np.float32), np.zeros((1, 5))).shape
    (23, (1, 23))
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        loss: Loss = functional.cross_entropy,
        *,
        calibration: Array | None = None,
        worker_batch: int | None = None,
        judged_at_once: int = 256,
        targets: torch.dtype = torch.int64,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        require_positive("Network", judged_at_once=judged_at_once, threads=threads)
        require_positive("Network", worker_batch=1 if worker_batch is None else worker_batch)
        self.build, self._loss, self.calibration = build, loss, calibration
        self.worker_batch, self.judged_at_once, self.threads = worker_batch, judged_at_once, threads
        self._targets, self._device = targets, torch_device(device)
        self.module = build()
        self.parameters = sum(parameter.numel() for parameter in _trainable_parameters(self.module))
        self._free: SimpleQueue[_FlatModule] = SimpleQueue()

    def start(self, seed: int) -> Array:
        """The module's own initial weights under a seed; torch's generator is left as it was."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            module = self.build()
        vectors = [parameter.detach().reshape(-1) for parameter in _trainable_parameters(module)]
        return np.asarray(torch.cat(vectors).numpy())

    def gradients(self, weights: Array, features: Array, targets: Array) -> Array:
        """[replicas, parameters]: each replica's gradient of the mean loss over its batch."""
        batches = zip(features, targets, strict=True)
        return self._gradients(weights, batches)

    def gradients_at(self, weights: Array, features: Array, targets: Array, rows: Array) -> Array:
        """The same for features[rows] and targets[rows], gathered for one replica at a time."""
        return self._gradients(weights, ((features[replica_rows], targets[replica_rows]) for replica_rows in rows))

    def loss(self, weights: Array, features: Array, targets: Array) -> float:
        total = 0.0
        for part, scores in self._judged(weights, features):
            total += float(self._loss(scores, self._target_tensor(targets[part]))) * len(scores)
        return total / len(features)

    def accuracy(self, weights: Array, features: Array, targets: Array) -> float:
        """Share of samples whose largest score is the target's; of a single score, whose sign is."""
        right = 0
        for part, scores in self._judged(weights, features):
            chosen = scores.argmax(1) if scores.shape[1:] != (1,) else (scores[:, 0] > 0).long()
            right += int((chosen == self._target_tensor(targets[part]).reshape(len(chosen))).sum())
        return right / len(features)

    def _gradients(self, weights: Array, batches: Iterable[tuple[Array, Array]]) -> Array:
        gradients = np.empty_like(weights)
        with self._flat_module() as flat:
            flat.module.train()
            for replica, (samples, targets) in enumerate(batches):
                flat.load(weights[replica])
                flat.gradient.zero_()
                for part in _parts(len(samples), self.worker_batch):
                    value = self._loss(self._scores(flat, samples[part]), self._target_tensor(targets[part]))
                    (value * ((part.stop - part.start) / len(samples))).backward()
                gradients[replica] = flat.gradient.cpu().numpy()
        return gradients

    @torch.no_grad()
    def _judged(self, weights: Array, features: Array) -> Iterator[tuple[slice, Tensor]]:
        """Scores of samples, with running statistics calibrated for these weights, or with the statistics of the samples."""
        with self._flat_module() as flat:
            flat.load(weights)
            flat.module.eval()
            for layer in flat.normalising:
                layer.train()
            if self.calibration is not None and flat.normalising:
                self._calibrate(flat, self.calibration)
                flat.module.eval()
            for part in _parts(len(features), self.judged_at_once):
                yield part, self._scores(flat, features[part])

    def _calibrate(self, flat: _FlatModule, samples: Array) -> None:
        """Running statistics become the mean of those of the batches, each with its share."""
        momenta = [layer.momentum for layer in flat.normalising]
        for layer in flat.normalising:
            layer.reset_running_stats()  # a nan of former weights would stay
        for part in _parts(len(samples), self.judged_at_once):
            for layer in flat.normalising:
                layer.momentum = (part.stop - part.start) / part.stop
            self._scores(flat, samples[part])
        for layer, momentum in zip(flat.normalising, momenta, strict=True):
            layer.momentum = momentum

    @contextmanager
    def _flat_module(self) -> Iterator[_FlatModule]:
        """A module for the exclusive use of the calling thread."""
        try:
            flat = self._free.get_nowait()
        except Empty:
            flat = _FlatModule(copy.deepcopy(self.module), self._device)
        with _THREADS.limited_to(self.threads):
            yield flat
        self._free.put(flat)

    def _scores(self, flat: _FlatModule, samples: Array) -> Tensor:
        inputs = torch.from_numpy(np.ascontiguousarray(samples, np.float32)).to(self._device)
        try:
            scores: Tensor = flat.module(inputs)
        except (RuntimeError, ValueError) as error:
            shape = tuple(inputs.shape[1:])
            raise BadInput(f"Network: the module does not take {len(inputs)} samples of shape {shape}: {error}") from None
        return scores

    def _target_tensor(self, targets: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(targets)).to(self._device, self._targets)


class _FlatModule:
    """A module whose parameters and gradients are views of two flat tensors."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        parameters = _trainable_parameters(self.module)
        self.weights, self.gradient = (torch.zeros(sum(layer.numel() for layer in parameters), device=device) for _ in range(2))
        first = 0
        for parameter in parameters:
            part = slice(first, first + parameter.numel())
            parameter.data = self.weights[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)
            first = part.stop
        self.normalising: list[Any] = [layer for layer in module.modules() if getattr(layer, "track_running_stats", False)]

    def load(self, weights: Array) -> None:
        if weights.shape != self.weights.shape:
            raise BadInput(f"Network: weights of shape {weights.shape}, the module has {len(self.weights)} parameters")
        self.weights.copy_(torch.from_numpy(np.ascontiguousarray(weights)))


class _Threads:
    """torch's own threads limited while anyone computes, and as before when the last is done."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, 1

    @contextmanager
    def limited_to(self, threads: int) -> Iterator[None]:
        with self.lock:
            if not self.inside:
                self.before = torch.get_num_threads()
            self.inside += 1
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    torch.set_num_threads(self.before)


_THREADS = _Threads()


def _trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise BadInput("Network: the module has no parameters to train")
    if any(parameter.dtype != torch.float32 for parameter in parameters):
        raise BadInput("Network: parameters must be float32")
    return parameters


def _parts(samples: int, size: int | None) -> Iterator[slice]:
    size = size or samples
    for first in range(0, samples, size):
        yield slice(first, min(first + size, samples))


class SmallResNet(nn.Module):
    """ResNet-18 for small pictures: a 3 x 3 convolution instead of 7 x 7 and pooling, then the four stages, twice two layers each.

    He et al., CVPR 2016, Table 1 and Sec. 4.2 (a 3 x 3 convolution first, for CIFAR-10). `width` is 64 in the paper's Table 1.
    """

    def __init__(self, classes: int, width: int = 64, channels: int = 3, norm: Normalisation = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        widths = [width << number for number in range(4)]
        pairs = zip([width, *widths], widths, strict=False)
        self.stages = nn.Sequential(*(stage(BasicBlock, a, b, 2, 1 if not at else 2, norm) for at, (a, b) in enumerate(pairs)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.pool(self.stages(self.stem(images))).flatten(1))
        return scores


def resnet18_small(
    classes: int = 10,
    size: int = 32,
    *,
    width: int = 64,
    channels: int = 3,
    norm: Literal["batch", "group"] = "batch",
    **options: Any,
) -> Network:
    """ResNet-18 on pictures of size x size; `options` are Network's. A narrower one (`width=8`) trains in seconds.

    >>> resnet18_small(width=64).parameters
    11173962
    """
    require_positive("resnet18_small", classes=classes, size=size, width=width, channels=channels)
    if size < SMALLEST:
        raise BadInput(f"resnet18_small: pictures are halved three times: size must be at least {SMALLEST}, got {size}")
    if norm not in NORMS:
        raise UnknownName("norm of resnet18_small", norm, NORMS)
    if norm == "group" and width % GROUPS:
        raise BadInput(f"resnet18_small: width={width} is not divided by the {GROUPS} groups of norm='group'")
    layer: Normalisation = nn.BatchNorm2d if norm == "batch" else lambda filters: nn.GroupNorm(GROUPS, filters)
    return Network(lambda: SmallResNet(classes, width, channels, layer), **options)


def perceptron(inputs: int, hidden: tuple[int, ...] = (64,), classes: int = 10, **options: Any) -> Network:
    """Fully connected layers with ReLUs between; samples of any shape are flattened."""
    require_positive("perceptron", inputs=inputs, classes=classes)

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in zip((inputs, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], classes))

    return Network(build, **options)
