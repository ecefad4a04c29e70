"""The synchronisation interval, the number of local steps until the next global exchange, which adapts to staleness.

DIRECT, Sec. III-B: the DSC adapts the interval to gradient staleness metrics. Neither the metric nor the rule is printed; both are
ours. The metric is how far clusters have *drifted* apart since they last agreed, relative to the model:

    drift       = sqrt(mean_i |w_i - w|^2) / |w|,          w = mean_i w_i
    drift_bound = eta sqrt(mean_i (s_i g_i)^2) / |w|

The first needs all models; the second one number of each cluster, which fits a token request: s_i local steps whose gradients were
no longer than g_i move a model by at most eta s_i g_i, and no point has a smaller mean square distance to the models than their
mean.

The rule multiplies the interval by (target / drift)^gain, by `fastest` at most, and keeps it within its limits. Drift that grows in
proportion to the interval settles at the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput
from trainyard.ir import assumed


@dataclass(frozen=True, slots=True)
class Interval:
    """From `smallest` to `largest` local steps.

    >>> interval = Interval(1, 128, target=0.01)
    >>> [interval.next(32, drift) for drift in (0.0, 0.005, 0.01, 0.02, 1.0)]
    [64, 46, 32, 22, 16]
    """

    smallest: int = 1
    largest: int = 128
    target: float = assumed(0.01, "drift between clusters that is aimed at, relative to the model's length", 0.001, 0.1)
    gain: float = assumed(0.5, "power of target / drift by which the interval changes; 1 goes all the way at once", 0.25, 1.0)
    fastest: float = assumed(2.0, "most that an interval grows or shrinks by in one exchange", 1.25, 8.0)

    def __post_init__(self) -> None:
        require_positive("Interval", smallest=self.smallest, largest=self.largest)
        require_quantity("Interval", target=self.target, gain=self.gain, fastest=self.fastest)
        if self.smallest > self.largest:
            raise BadInput(f"Interval: smallest={self.smallest} is above largest={self.largest}")
        if self.fastest <= 1:
            raise BadInput(f"Interval: fastest must be above 1, got {self.fastest!r}: at 1 the interval never changes")

    def next(self, current: int, drift: float) -> int:
        """The interval after an exchange with this drift; it changes by at least one step unless drift is at the target."""
        require_positive("Interval", current=current)
        if drift != math.inf:
            require_quantity("Interval", zero=True, drift=drift)
        wanted = current * self._factor(drift)
        rounded = math.ceil(wanted) if wanted > current else math.floor(wanted)
        return min(max(rounded, self.smallest), self.largest)

    def _factor(self, drift: float) -> float:
        if drift in (0, math.inf):
            return 1 / self.fastest if drift else self.fastest
        exponent = self.gain * (math.log(self.target) - math.log(drift))
        if abs(exponent) < math.log(self.fastest):
            return math.exp(exponent)
        return self.fastest if exponent > 0 else 1 / self.fastest


def drift(models: npt.NDArray[np.floating]) -> float:
    """Relative distance of the clusters' models [clusters, parameters] from their mean, root mean square.

    >>> import numpy as np
    >>> drift(np.array([[3.0, 0.0], [5.0, 0.0]]))
    0.25
    """
    if models.ndim != 2 or not models.size:
        raise BadInput(f"drift: models must be [clusters, parameters], got an array of shape {models.shape}")
    mean = models.mean(axis=0, dtype=np.float64)
    apart = math.sqrt(float(((models - mean) ** 2).sum()) / len(models))
    return _relative(apart, float(np.linalg.norm(mean)))


def drift_bound(norms: Sequence[float], staleness: Sequence[float], *, learning_rate: float, model_norm: float) -> float:
    """An upper bound of `drift` after `staleness` plain steps of each cluster whose gradients were no longer than `norms`.

    >>> drift_bound([2.0, 2.0], [10, 10], learning_rate=0.01, model_norm=4.0)
    0.05
    """
    if len(norms) != len(staleness) or not norms:
        raise BadInput(f"drift_bound: {len(norms)} gradient norms and {len(staleness)} stalenesses: one of each for every cluster")
    moved = [norm * steps for norm, steps in zip(norms, staleness, strict=True)]
    return _relative(learning_rate * math.sqrt(sum(distance * distance for distance in moved) / len(moved)), model_norm)


def _relative(apart: float, length: float) -> float:
    """Distance over length; infinite for models that differ around a mean of zero."""
    return apart / length if length else (0.0 if not apart else math.inf)
