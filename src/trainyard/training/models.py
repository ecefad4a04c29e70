"""Models as vectors of parameters: the protocol that training algorithms use, and two linear models on many replicas at once.

| class              | loss of a sample, label y in {0, 1}, s = 2 y - 1, margin m = w . x | source                                 |
|--------------------|--------------------------------------------------------------------|----------------------------------------|
| LogisticRegression | log(1 + exp(-s m))                                                 | PIM-Opt's models on YFCC features      |
| LinearSvm          | max(0, 1 - s m)                                                    | the same, hinge loss                   |

Both add l2 / 2 |w|^2. There is no bias: 4096 parameters are the 16 KB that PIM-Opt's DPUs exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput

Array = npt.NDArray[Any]
CHUNK_BYTES = 1 << 25
"""Bytes of samples that are evaluated at once."""


class Loss(IntEnum):
    """The loss of a linear model; the compiled gradients (`kernels.training`) take its number."""

    LOGISTIC = 0
    HINGE = 1


class Model(Protocol):
    """A loss whose parameters are one vector. A sample may have any shape; `features` has two leading axes, replica and batch."""

    @property
    def parameters(self) -> int: ...

    def start(self, seed: int) -> Array:
        """Initial weights [parameters], float32."""
        ...

    def gradients(self, weights: Array, features: Array, targets: Array) -> Array:
        """Mean gradients [replicas, parameters] of each batch; features [replicas, batch, ...], targets [replicas, batch]."""
        ...

    def loss(self, weights: Array, features: Array, targets: Array) -> float:
        """Mean loss over samples, for one vector of weights."""
        ...

    def accuracy(self, weights: Array, features: Array, targets: Array) -> float:
        """Share of samples that are classified correctly."""
        ...


@runtime_checkable
class IndexedModel(Protocol):
    """A model that reads samples by index, without a copy, and may be called by several threads at once."""

    def gradients_at(self, weights: Array, features: Array, targets: Array, rows: Array) -> Array:
        """Equal to `gradients` of features[rows], targets[rows], for rows [replicas, batch]."""
        ...


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A linear classifier without bias; subclasses define the loss as a function of the margin."""

    features: int = 4096  # PIM-Opt: dense fc6 features of YFCC100M
    l2: float = 0.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, features=self.features)
        require_quantity(type(self).__name__, zero=True, l2=self.l2)

    @property
    def parameters(self) -> int:
        return self.features

    def start(self, seed: int) -> Array:
        """Zeros: the problem is convex."""
        return np.zeros(self.features, np.float32)

    def gradients(self, weights: Array, features: Array, targets: Array) -> Array:
        margins = np.matmul(features, weights[:, :, None])[..., 0]
        slopes = self._slopes(margins, targets) / targets.shape[1]
        gradients = np.matmul(slopes[:, None, :].astype(features.dtype), features)[:, 0, :]
        return np.asarray(gradients + weights.dtype.type(self.l2) * weights)

    def gradients_at(self, weights: Array, features: Array, targets: Array, rows: Array) -> Array:
        from trainyard.kernels import training

        gradients = np.empty((len(rows), self.features), weights.dtype)
        training.linear_gradients(weights, features, targets, rows, int(self._loss), weights.dtype.type(self.l2), gradients)
        return gradients

    def loss(self, weights: Array, features: Array, targets: Array) -> float:
        total = sum(float(self._losses(margins, labels).sum()) for margins, labels in self._margins(weights, features, targets))
        return total / len(targets) + self.l2 / 2 * float(weights.astype(np.float64) @ weights.astype(np.float64))

    def accuracy(self, weights: Array, features: Array, targets: Array) -> float:
        correct = sum(int(((margins > 0) == (labels > 0.5)).sum()) for margins, labels in self._margins(weights, features, targets))
        return correct / len(targets)

    def _margins(self, weights: Array, features: Array, targets: Array) -> Any:
        count = max(1, CHUNK_BYTES // (8 * self.features))
        for first in range(0, len(targets), count):
            chunk = slice(first, first + count)
            yield (features[chunk] @ weights).astype(np.float64), targets[chunk]

    @property
    def _loss(self) -> Loss:
        raise NotImplementedError

    def _slopes(self, margins: Array, targets: Array) -> Array:
        """Derivatives of the loss with respect to the margins."""
        raise NotImplementedError

    def _losses(self, margins: Array, targets: Array) -> Array:
        raise NotImplementedError

    def check(self, features: Array, targets: Array) -> None:
        """Refuses samples that this model cannot be trained on."""
        name = type(self).__name__
        if features.ndim != 2 or features.shape[1] != self.features:
            fix = f"{name}(features={features.shape[1]})" if features.ndim == 2 else "flat samples"
            raise BadInput(f"{name}: features={self.features}, but samples have shape {features.shape[1:]}: write {fix}")
        if features.dtype not in (np.float32, np.float64):
            raise BadInput(f"{name}: samples are {features.dtype}: give float32 or float64")
        if not np.isin(targets, (0, 1)).all():
            raise BadInput(f"{name}: targets must be 0 or 1, got {np.unique(targets)[:5].tolist()}")


@dataclass(frozen=True, slots=True)
class LogisticRegression(LinearModel):
    """A linear classifier with log loss.

    >>> model = LogisticRegression(features=2)
    >>> model.gradients(np.zeros((1, 2)), np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([[1.0, 0.0]])).tolist()
    [[-0.25, 0.5]]
    """

    @property
    def _loss(self) -> Loss:
        return Loss.LOGISTIC

    def _slopes(self, margins: Array, targets: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-margins)) - targets)

    def _losses(self, margins: Array, targets: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, -(2.0 * targets - 1.0) * margins))


@dataclass(frozen=True, slots=True)
class LinearSvm(LinearModel):
    """A linear classifier with hinge loss; at the corner of the hinge the derivative is 0."""

    @property
    def _loss(self) -> Loss:
        return Loss.HINGE

    def _slopes(self, margins: Array, targets: Array) -> Array:
        signs = 2.0 * targets - 1.0
        return np.asarray(np.where(signs * margins < 1.0, -signs, 0.0))

    def _losses(self, margins: Array, targets: Array) -> Array:
        return np.asarray(np.maximum(0.0, 1.0 - (2.0 * targets - 1.0) * margins))
