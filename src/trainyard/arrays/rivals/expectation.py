"""Expected cycles of operands of which only a density is known: distributions, expected maxima, intervals of samples."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float64]
NORMAL_95 = 1.96  # two-sided 95 % quantile of the normal distribution


def binomial(trials: int, probability: float) -> Probabilities:
    """Probability of each number of non-zeros from 0 to `trials`.

    >>> binomial(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    probabilities = np.zeros(trials + 1)
    if probability in (0.0, 1.0):
        probabilities[trials if probability else 0] = 1.0
        return probabilities
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    hits = np.arange(trials + 1)
    probabilities[:] = np.exp(
        logs[-1] - logs - logs[::-1] + hits * math.log(probability) + (trials - hits) * math.log1p(-probability)
    )
    return np.asarray(probabilities / probabilities.sum())


def step_distribution(nonzeros: Probabilities, width: int) -> Probabilities:
    """Probability of each number of steps, where a step takes `width` non-zeros and the last step may be partly filled.

    >>> step_distribution(binomial(2, 0.5), 2).tolist()
    [0.25, 0.75]
    """
    steps = -(-np.arange(len(nonzeros)) // width)
    return np.asarray(np.bincount(steps, weights=nonzeros), dtype=np.float64)


def expected_maximum(probabilities: Probabilities, count: int) -> float:
    """Expected maximum of `count` independent numbers with these probabilities of 0, 1, 2, ...

    >>> expected_maximum(binomial(1, 0.5), 2)
    0.75
    """
    return float(np.sum(1.0 - np.cumsum(probabilities)[:-1].clip(0.0, 1.0) ** count))


@lru_cache(maxsize=4096)
def expected_normal_maximum(count: int) -> float:
    """Expected maximum of `count` standard normal numbers, by integration.

    >>> [round(expected_normal_maximum(count), 2) for count in (1, 2, 1024)]
    [0.0, 0.56, 3.25]
    """
    points = np.linspace(-8.0, 8.0, 1601)
    below = np.array([0.5 * math.erfc(-point / math.sqrt(2.0)) for point in points]) ** count
    return abs(float(np.sum((points > 0) + 0.5 * (points == 0) - below)) * 0.01)


@lru_cache(maxsize=1024)
def blom_normal_maximum(count: float) -> float:
    """Expected maximum of `count` standard normal numbers, by Blom's approximation; a count need not be whole."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def sampled_ratio(numerators: npt.NDArray[Any], denominators: npt.NDArray[Any], sampled_share: float = 0.0) -> tuple[float, float]:
    """Ratio of two sums over a sample, and half of its 95 % interval; `sampled_share` of the population is in the sample.

    >>> sampled_ratio(np.array([2, 4, 6]), np.array([1, 2, 3]))
    (2.0, 0.0)
    """
    total = float(denominators.sum())
    if total == 0.0:
        return 1.0, 0.0
    ratio = float(numerators.sum()) / total
    freedom = len(numerators) - 1
    if not freedom:
        return ratio, 0.0
    z = NORMAL_95
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)  # Abramowitz and Stegun 26.7.5
    spread = float(np.sqrt(np.sum((numerators - ratio * denominators) ** 2) / freedom))
    return ratio, t * spread * math.sqrt(len(numerators)) / total * math.sqrt(max(0.0, 1.0 - sampled_share))
