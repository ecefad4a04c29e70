"""Models as vectors of parameters: what an algorithm needs to know of one, and two linear ones, of many replicas at once.

| class              | loss of a sample, label y in {0, 1}, s = 2 y - 1, margin m = w . x | source                                 |
|--------------------|--------------------------------------------------------------------|----------------------------------------|
| LogisticRegression | log(1 + exp(-s m))                                                 | PIM-Opt's models on YFCC features      |
| LinearSvm          | max(0, 1 - s m)                                                    | the same, hinge loss                   |

both plus l2 / 2 |w|^2. There is no bias: 4096 parameters are the 16 KB that PIM-Opt's DPUs exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput

Array = npt.NDArray[Any]
CHUNK_BYTES = 1 << 25
"""Of samples judged at once."""


class Model(Protocol):
    """A loss with parameters in one vector. A sample may have any shape; `features` has the replicas and the batch before it."""

    @property
    def parameters(self) -> int: ...

    def start(self, seed: int) -> Array:
        """[parameters], float32."""
        ...

    def gradients(self, weights: Array, features: Array, targets: Array) -> Array:
        """Batch means, shaped as weights [replicas, parameters]; features [replicas, batch, ...], targets [replicas, batch]."""
        ...

    def loss(self, weights: Array, features: Array, targets: Array) -> float:
        """Mean over samples, for one vector of weights."""
        ...

    def accuracy(self, weights: Array, features: Array, targets: Array) -> float:
        """Share of samples that are right."""
        ...


@runtime_checkable
class Indexed(Protocol):
    """A model that reads samples where they lie, and may be asked by several threads at once."""

    def gradients_at(self, weights: Array, features: Array, targets: Array, rows: Array) -> Array:
        """As `gradients` of features[rows], targets[rows], for rows [replicas, batch]."""
        ...


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A plane through the origin; what differs is the slope of the loss in the margin."""

    features: int = 4096  # PIM-Opt: dense fc6 features of YFCC100M
    l2: float = 0.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, features=self.features)
        require_quantity(type(self).__name__, zero=True, l2=self.l2)

    @property
    def parameters(self) -> int:
        return self.features

    def start(self, seed: int) -> Array:
        """Zeros: convex, every start leads to the same end."""
        return np.zeros(self.features, np.float32)

    def gradients(self, weights: Array, features: Array, targets: Array) -> Array:
        margins = np.matmul(features, weights[:, :, None])[..., 0]
        slopes = self._slopes(margins, targets) / targets.shape[1]
        found = np.matmul(slopes[:, None, :].astype(features.dtype), features)[:, 0, :]
        return np.asarray(found + weights.dtype.type(self.l2) * weights)

    def gradients_at(self, weights: Array, features: Array, targets: Array, rows: Array) -> Array:
        from trainyard.kernels import training

        found = np.empty((len(rows), self.features), weights.dtype)
        training.linear_gradients(weights, features, targets, rows, self._kind, weights.dtype.type(self.l2), found)
        return found

    def loss(self, weights: Array, features: Array, targets: Array) -> float:
        total = sum(float(self._losses(margins, near).sum()) for margins, near in self._margins(weights, features, targets))
        return total / len(targets) + self.l2 / 2 * float(weights.astype(np.float64) @ weights.astype(np.float64))

    def accuracy(self, weights: Array, features: Array, targets: Array) -> float:
        right = sum(int(((margins > 0) == (near > 0.5)).sum()) for margins, near in self._margins(weights, features, targets))
        return right / len(targets)

    def _margins(self, weights: Array, features: Array, targets: Array) -> Any:
        count = max(1, CHUNK_BYTES // (8 * self.features))
        for first in range(0, len(targets), count):
            part = slice(first, first + count)
            yield (features[part] @ weights).astype(np.float64), targets[part]

    @property
    def _kind(self) -> int:
        raise NotImplementedError

    def _slopes(self, margins: Array, targets: Array) -> Array:
        raise NotImplementedError

    def _losses(self, margins: Array, targets: Array) -> Array:
        raise NotImplementedError

    def check(self, features: Array, targets: Array) -> None:
        """Samples this model can be trained on, or what is wrong with them."""
        name = type(self).__name__
        if features.ndim != 2 or features.shape[1] != self.features:
            given = f"{name}(features={features.shape[1]})" if features.ndim == 2 else "flat samples"
            raise BadInput(f"{name}: features={self.features}, but samples have shape {features.shape[1:]}: write {given}")
        if features.dtype not in (np.float32, np.float64):
            raise BadInput(f"{name}: samples are {features.dtype}: give float32 or float64")
        if not np.isin(targets, (0, 1)).all():
            raise BadInput(f"{name}: targets must be 0 or 1, got {np.unique(targets)[:5].tolist()}")


@dataclass(frozen=True, slots=True)
class LogisticRegression(LinearModel):
    """Log loss.

    >>> model = LogisticRegression(features=2)
    >>> model.gradients(np.zeros((1, 2)), np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([[1.0, 0.0]])).tolist()
    [[-0.25, 0.5]]
    """

    @property
    def _kind(self) -> int:
        return 0

    def _slopes(self, margins: Array, targets: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-margins)) - targets)

    def _losses(self, margins: Array, targets: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, -(2.0 * targets - 1.0) * margins))


@dataclass(frozen=True, slots=True)
class LinearSvm(LinearModel):
    """Hinge loss; at the corner of the hinge the slope is 0."""

    @property
    def _kind(self) -> int:
        return 1

    def _slopes(self, margins: Array, targets: Array) -> Array:
        signs = 2.0 * targets - 1.0
        return np.asarray(np.where(signs * margins < 1.0, -signs, 0.0))

    def _losses(self, margins: Array, targets: Array) -> Array:
        return np.asarray(np.maximum(0.0, 1.0 - (2.0 * targets - 1.0) * margins))
