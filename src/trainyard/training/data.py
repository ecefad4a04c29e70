"""Training and test samples, and a generator of both.

`linear_problem` draws features around a number of centres (the regions that feature-skewed shards cut along) with a falling
spectrum, as the features of a network have, and labels from a hidden plane, of which a share is flipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_flag, require_positive, require_quantity
from trainyard.errors import BadInput

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Features [samples, ...] and one target per sample, in memory; the test part is never used for training."""

    features: Array
    targets: Array
    test_features: Array
    test_targets: Array

    def __post_init__(self) -> None:
        for part, features, targets in self._parts():
            if len(features) == 0 or len(features) != len(targets):
                raise BadInput(f"Data: {part}: {len(features)} samples and {len(targets)} targets; give as many, at least one")
        if self.features.shape[1:] != self.test_features.shape[1:]:
            raise BadInput(
                f"Data: samples have shape {self.features.shape[1:]}, those of the test part {self.test_features.shape[1:]}"
            )

    def _parts(self) -> Iterator[tuple[str, Array, Array]]:
        yield "training part", self.features, self.targets
        yield "test part", self.test_features, self.test_targets

    @property
    def samples(self) -> int:
        return len(self.targets)

    def held_out(self, share: float, seed: int = 0) -> Data:
        """The training part split in two: `share` of it becomes the test part (a validation set)."""
        held_out = round(share * self.samples)
        if not 0 < held_out < self.samples:
            raise BadInput(f"Data.held_out: share {share!r} of {self.samples} samples leaves one part empty")
        order = np.random.default_rng((seed, 1)).permutation(self.samples)
        test, train = order[:held_out], order[held_out:]
        return Data(
            features=self.features[train],
            targets=self.targets[train],
            test_features=self.features[test],
            test_targets=self.targets[test],
        )


def linear_problem(
    *,
    samples: int = 20_000,
    features: int = 64,
    test_samples: int = 5_000,
    regions: int = 8,
    spread: float = 1.0,
    noise: float = 0.05,
    margin: float = 0.0,
    own_features: bool = False,
    seed: int = 0,
    dtype: str = "float32",
) -> Data:
    """Binary labels by the side of a hidden plane, a share `noise` of them flipped; `spread` scales the regions' distance.

    `margin` leaves out samples nearer to the plane than that. With `own_features` a sample is zero but for its region's block of
    features, so that nothing is learned of one region from the samples of another. Else features have unit mean square.

    >>> data = linear_problem(samples=100, features=4, test_samples=10)
    >>> data.features.shape, data.test_targets.shape, sorted(set(data.targets.tolist()))
    ((100, 4), (10,), [0.0, 1.0])
    """
    require_positive("linear_problem", samples=samples, features=features, test_samples=test_samples, regions=regions)
    require_flag("linear_problem", own_features=own_features)
    require_quantity("linear_problem", zero=True, spread=spread, noise=noise, margin=margin)
    rng = np.random.default_rng((seed, features, regions))
    scales = 1.0 / np.sqrt(1.0 + np.arange(features) / 8.0)  # a spectrum that falls: assumed, as of a network's features
    centres = spread * rng.standard_normal((regions, features)) * scales
    plane = rng.standard_normal(features)
    plane /= np.linalg.norm(plane)
    block = np.arange(features) * regions // features
    blocks = block == np.arange(regions)[:, None] if own_features else np.ones((regions, features), bool)
    unit = float(np.sqrt(np.mean(scales**2) * (1.0 + spread**2)))

    def draw(count: int) -> tuple[Array, Array]:
        samples, labels = np.empty((count, features), dtype), np.empty(count, dtype)
        done = 0
        while done < count:
            number = min(count - done, 8192)
            region = rng.integers(regions, size=number)
            rows = (centres[region] + rng.standard_normal((number, features)) * scales) * blocks[region] / unit
            side = rows @ plane
            far = np.abs(side) >= margin
            flipped = rng.random(number) < noise
            accepted = int(far.sum())
            samples[done : done + accepted] = rows[far]
            labels[done : done + accepted] = ((side > 0) ^ flipped)[far]
            done += accepted
        return samples, labels

    train, test = draw(samples), draw(test_samples)
    return Data(features=train[0], targets=train[1], test_features=test[0], test_targets=test[1])
