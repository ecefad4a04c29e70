"""Stand-in for YFCC100M-HNfc6: features of pictures, indoors or outdoors, of which the best classifier and its accuracy are known.

With y = 0 or 1 for the class, half of the samples each, a sample is

    x = L (h + (y - 1/2) c) + s e - offset,    h, e standard normal,

a few hidden factors h (what a network's features share) seen through loadings L, and noise e of each feature's own; the class moves
the factors by c. Both classes have the covariance L L' + s^2, so that a plane parts them best, logistic regression can find it, and
its accuracy is Phi(d / 2) for a distance d of the means with d^2 = c' M (s^2 + M)^-1 c, M = L' L; c is scaled to the accuracy asked
for. Features have unit variance apart from the class. In which form they come:

    raw            x, as published (before the ReLU): `active` of the values are above 0
    rectified      max(x, 0), as the next layer sees them: sparse; the plane is no longer quite the best classifier
    normalised     each feature from 0 to 1, as PIM-Opt trains on them; 0 and 1 are SPAN standard deviations from the mean
    standardised   without the offset: mean 0, and the best plane goes through the origin

What all features of the first three have in common, their mean, is their largest part: SGD has to go slowly along it, slowest with
normalised ones (four epochs of 16,000 samples, batches of 64: 86 % standardised, 84 % rectified, 77 % normalised, of 87 % at best).

A sample is drawn from its number alone: any rows can be had at any time, 2048 x 3328 of them need not be in memory. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.streams import streams

Form = Literal["normalised", "standardised", "raw", "rectified"]
Reals = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
FORMS = ("normalised", "standardised", "raw", "rectified")
SPAN = 6.0  # assumed: the range of 43 million samples of a normal feature is about 5.5 deviations to either side
MAP, SAMPLES = 801, 802  # whose random numbers


@dataclass(frozen=True, kw_only=True)
class Features:
    """(features [n, features] as float32, labels [n] of 2)."""

    samples: int = 2048 * 3328  # PIM-Opt: samples of its largest machine, 3328 a DPU
    features: int = 4096  # Amato et al., SISAP 2016
    accuracy: float = 0.87  # assumed: a little above the 84.2 to 84.5 % of DIRECT's Table II
    form: Form = "normalised"
    factors: int = 64  # assumed: directions that features share, the r-th with a weight of 1 / sqrt(r)
    shared: float = 0.5  # assumed: of a feature's variance
    active: float = 0.2  # assumed: share of fc6 that a ReLU lets through
    seed: int = 0
    loadings: Reals = field(init=False, repr=False, compare=False)
    shift: Reals = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive("Features", samples=self.samples, features=self.features, factors=self.factors)
        if self.form not in FORMS:
            raise UnknownName("form of Features", self.form, FORMS)
        for name, value, lower in (("accuracy", self.accuracy, 0.5), ("shared", self.shared, 0.0), ("active", self.active, 0.0)):
            if not lower < value < 1.0:
                raise BadInput(f"Features: {name} must be between {lower} and 1, got {value!r}")
        (generator,) = streams(self.seed, MAP, (0,))
        loadings = generator.standard_normal((self.features, self.factors)) / np.sqrt(1 + np.arange(self.factors))
        loadings *= np.sqrt(self.shared / (loadings**2).sum(axis=1, keepdims=True))
        direction = generator.standard_normal(self.factors)
        products = loadings.T @ loadings
        squared_distance = direction @ products @ np.linalg.solve(products + (1 - self.shared) * np.eye(self.factors), direction)
        distance = 2 * NormalDist().inv_cdf(self.accuracy)
        object.__setattr__(self, "loadings", loadings.astype(np.float32))
        object.__setattr__(self, "shift", (direction * (distance / np.sqrt(squared_distance))).astype(np.float32))

    @property
    def name(self) -> str:
        return f"stand-in: {self.features} {self.form} features of two classes, {self.accuracy:.1%} at best, for YFCC100M-HNfc6"

    @property
    def stand_in(self) -> bool:
        return True

    @property
    def offset(self) -> float:
        """How far below 0 the mean of a raw feature is."""
        return -NormalDist().inv_cdf(self.active)

    def take(self, indices: Whole) -> tuple[Reals, Whole]:
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.samples:
            raise BadInput(
                f"{self.name}: samples are numbered 0 to {self.samples - 1}, got {int(numbers.min())} to {int(numbers.max())}"
            )
        labels = np.empty(len(numbers), np.int64)
        hidden, values = np.empty((len(numbers), self.factors), np.float32), np.empty((len(numbers), self.features), np.float32)
        for row, generator in enumerate(streams(self.seed, SAMPLES, numbers)):
            labels[row] = generator.integers(2)
            generator.standard_normal(dtype=np.float32, out=hidden[row])
            generator.standard_normal(dtype=np.float32, out=values[row])
        values *= np.float32(np.sqrt(1 - self.shared))
        values += (hidden + (labels[:, None] - np.float32(0.5)).astype(np.float32) * self.shift) @ self.loadings.T
        return self._formed(values), labels

    def rows(self, start: int, stop: int) -> tuple[Reals, Whole]:
        return self.take(np.arange(start, stop))

    def best_plane(self) -> tuple[Doubles, float]:
        """Weights and bias of the best classifier: class 1 where features @ weights + bias > 0. Of rectified features none is."""
        if self.form == "rectified":
            raise BadInput("Features: of rectified features no plane is the best classifier: ask for another form")
        loadings, noise_variance = self.loadings.astype(np.float64), 1 - self.shared
        moved = loadings @ self.shift.astype(np.float64)
        inner = np.linalg.solve(loadings.T @ loadings + noise_variance * np.eye(self.factors), loadings.T @ moved)
        weights = (moved - loadings @ inner) / noise_variance  # (L L' + s^2)^-1 L c, by Woodbury's identity
        if self.form == "normalised":
            return 2 * SPAN * weights, -SPAN * float(weights.sum())
        return weights, (self.offset if self.form == "raw" else 0.0) * float(weights.sum())

    def _formed(self, values: Reals) -> Reals:
        if self.form == "normalised":
            values *= np.float32(0.5 / SPAN)
            values += np.float32(0.5)
            return np.clip(values, 0.0, 1.0, out=values)
        if self.form != "standardised":
            values -= np.float32(self.offset)
        return np.maximum(values, 0, out=values) if self.form == "rectified" else values
