"""Gradients of linear models, compiled: each sample is read once, without a copy, for its margin and for its share of the gradient.

Plain Python: `LinearModel.gradients` of `training/models.py`, which works on copies of the samples. Samples of 4096 features are
16 KB each and still in the cache when they are added to the gradient, so that they go over the memory bus once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Reals = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
LOGISTIC, HINGE = 0, 1  # the numbers of `training.models.Loss`


@njit(cache=True, nogil=True)
def slope(margin: float, target: float, loss: int) -> float:
    """Derivative of the loss with respect to the margin."""
    if loss == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-margin)) - target
    sign = 2.0 * target - 1.0
    return -sign if sign * margin < 1.0 else 0.0


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def linear_gradients(weights: Reals, features: Reals, targets: Reals, rows: Ints, loss: int, l2: float, gradients: Reals) -> None:
    """Writes into `gradients` [replicas, features] the mean over each replica's `rows` [replicas, batch] plus l2 times its weights.

    Four samples are processed together, so that weights and gradient are read and written once for them.
    """
    batch, width, real = rows.shape[1], weights.shape[1], gradients.dtype.type
    for replica in range(rows.shape[0]):
        own, gradient, chosen = weights[replica], gradients[replica], rows[replica]
        for column in range(width):
            gradient[column] = l2 * own[column]
        fours = batch - batch % 4
        for first in range(0, fours, 4):
            a, b, c, d = (
                features[chosen[first]],
                features[chosen[first + 1]],
                features[chosen[first + 2]],
                features[chosen[first + 3]],
            )
            of_a, of_b, of_c, of_d = real(0), real(0), real(0), real(0)
            for column in range(width):
                weight = own[column]
                of_a += weight * a[column]
                of_b += weight * b[column]
                of_c += weight * c[column]
                of_d += weight * d[column]
            of_a = real(slope(of_a, targets[chosen[first]], loss) / batch)
            of_b = real(slope(of_b, targets[chosen[first + 1]], loss) / batch)
            of_c = real(slope(of_c, targets[chosen[first + 2]], loss) / batch)
            of_d = real(slope(of_d, targets[chosen[first + 3]], loss) / batch)
            for column in range(width):
                gradient[column] += of_a * a[column] + of_b * b[column] + of_c * c[column] + of_d * d[column]
        for last in range(fours, batch):
            a, of_a = features[chosen[last]], real(0)
            for column in range(width):
                of_a += own[column] * a[column]
            of_a = real(slope(of_a, targets[chosen[last]], loss) / batch)
            for column in range(width):
                gradient[column] += of_a * a[column]
