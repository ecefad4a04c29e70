"""The distribution of samples over workers, and the order in which a worker uses its samples.

| kind    | samples of a cluster                                                                                         |
|---------|--------------------------------------------------------------------------------------------------------------|
| iid     | drawn at random                                                                                              |
| label   | equal numbers, with class shares drawn from Dirichlet(alpha): the smaller alpha, the fewer classes           |
| feature | a region of feature space: bisected recursively across the direction of largest variance                     |
| sizes   | drawn at random, in numbers drawn from Dirichlet(alpha), at least one for each of its workers                |

Within a cluster, samples are distributed evenly and at random. Every sample belongs to exactly one worker. A worker uses its
samples in a new random order in every pass, and a batch that reaches the end of one pass continues in the next: batches are always
full, and a worker with fewer samples uses each of them more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, UnknownName

Array = npt.NDArray[Any]
Whole = npt.NDArray[np.int64]
Kind = Literal["iid", "label", "feature", "sizes"]
DIRECTION_SAMPLES = 4096
"""Samples that determine the direction of a cut; assumed: enough for the first principal direction of thousands of features."""
POWER_ITERATIONS = 12
"""Power iterations; assumed: a cut needs a direction of large variance, not the largest."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How samples are distributed over workers.

    >>> [len(part) for part in Shards("iid").deal(np.zeros((10, 2)), np.zeros(10), workers=4, cluster_size=2, seed=0)]
    [3, 2, 3, 2]
    """

    kind: Kind = "iid"
    alpha: float = 0.3  # assumed: strongly skewed, in the range 0.1 to 1 that the literature on federated learning uses

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownName("kind of shards", self.kind, get_args(Kind))
        require_quantity("Shards", alpha=self.alpha)

    def deal(self, features: Array, targets: Array, *, workers: int, cluster_size: int, seed: int) -> list[Whole]:
        """The indices of each worker's samples."""
        samples = len(targets)
        require_positive("Shards", workers=workers, cluster_size=cluster_size)
        if workers % cluster_size:
            raise BadInput(f"Shards: cluster_size={cluster_size} does not divide {workers} workers")
        if samples < workers:
            raise BadInput(f"Shards: {samples} samples for {workers} workers: give each at least one, or take fewer workers")
        rng = np.random.default_rng((seed, 2))
        clusters = workers // cluster_size
        order = rng.permutation(samples)
        if self.kind == "label":
            parts = _by_label(order, targets, clusters, self.alpha, rng)
        elif self.kind == "feature":
            parts = _by_region(order, features, clusters, rng)
        elif self.kind == "sizes":
            parts = _by_size(order, clusters, cluster_size, self.alpha, rng)
        else:
            parts = np.array_split(order, clusters)
        return [own for part in parts for own in np.array_split(rng.permutation(part), cluster_size)]


def shard(shards: str | Shards) -> Shards:
    """`shards` itself, or the Shards of that kind.

    >>> shard("lable")
    Traceback (most recent call last):
    trainyard.errors.UnknownName: unknown kind of shards 'lable': did you mean 'label'? (known: feature, iid, label, sizes)
    """
    return shards if isinstance(shards, Shards) else Shards(shards)  # type: ignore[arg-type]


def _quotas(total: int, parts: int) -> list[int]:
    return [total // parts + (number < total % parts) for number in range(parts)]


def _by_label(order: Whole, targets: Array, clusters: int, alpha: float, rng: np.random.Generator) -> list[Whole]:
    """Each cluster takes its shares of the remaining samples of each class; the largest class replaces exhausted ones."""
    classes = np.unique(targets)
    left = [list(order[targets[order] == label]) for label in classes]
    prior = np.array([len(members) for members in left]) / len(order)
    parts = []
    for quota in _quotas(len(order), clusters):
        shares = rng.dirichlet(alpha * len(classes) * prior)
        if not np.isfinite(shares).all() or shares.sum() == 0:  # an alpha so small that every draw is 0
            shares = np.eye(len(classes))[rng.choice(len(classes), p=prior)]
        wanted = np.floor(shares * quota + 0.5).astype(int)
        taken: list[int] = []
        for members, number in zip(left, wanted, strict=True):
            number = min(int(number), len(members), quota - len(taken))
            taken += members[len(members) - number :]
            del members[len(members) - number :]
        while len(taken) < quota:
            largest = max(left, key=len)
            number = min(quota - len(taken), len(largest))
            taken += largest[len(largest) - number :]
            del largest[len(largest) - number :]
        parts.append(np.array(taken, np.int64))
    return [parts[number] for number in rng.permutation(clusters)]


def _by_region(order: Whole, features: Array, clusters: int, rng: np.random.Generator) -> list[Whole]:
    if clusters == 1:
        return [order]
    half = clusters // 2
    flat = features.reshape(len(features), -1)
    sample = flat[np.sort(order[:DIRECTION_SAMPLES])].astype(np.float64)
    sample -= sample.mean(0)
    direction = rng.standard_normal(flat.shape[1])
    for _ in range(POWER_ITERATIONS):
        direction = sample.T @ (sample @ direction)
        direction /= np.linalg.norm(direction) or 1.0
    positions = np.concatenate([flat[part] @ direction for part in np.array_split(order, max(1, len(order) // DIRECTION_SAMPLES))])
    ranked = order[np.argsort(positions, kind="stable")]
    cut = sum(_quotas(len(order), clusters)[:half])
    return [
        *_by_region(rng.permutation(ranked[:cut]), features, half, rng),
        *_by_region(rng.permutation(ranked[cut:]), features, clusters - half, rng),
    ]


def _by_size(order: Whole, clusters: int, least: int, alpha: float, rng: np.random.Generator) -> list[Whole]:
    free = len(order) - clusters * least
    shares = rng.dirichlet(np.full(clusters, alpha))
    if not np.isfinite(shares).all():
        shares = np.eye(clusters)[0]
    ends = np.floor(np.cumsum(shares) / shares.sum() * free + 0.5).astype(int)
    ends[-1] = free
    return np.split(order, (ends + least * np.arange(1, clusters + 1))[:-1])


class Feed:
    """Batches of every worker; batch number t of a worker always has the same samples, in whatever order batches are requested."""

    def __init__(self, parts: Sequence[Whole], batch: int, seed: int) -> None:
        self.batch, self.seed = batch, seed
        self.sizes = np.array([len(part) for part in parts])
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self.samples = np.concatenate(parts).astype(np.int64)
        self.order = self.samples.copy()
        self.passes = np.full(len(parts), -1)
        self._within = np.arange(batch)

    def rows(self, number: int, workers: slice) -> Whole:
        """Samples [workers, batch] of batch `number`."""
        sizes = self.sizes[workers]
        passes, offsets = np.divmod(number * self.batch, sizes)
        first = workers.start or 0
        for worker in np.nonzero(passes != self.passes[workers])[0]:
            self._shuffle(first + int(worker), int(passes[worker]))
        indices = (self.starts[workers] + offsets)[:, None] + self._within
        crossing = np.nonzero(offsets + self.batch > sizes)[0]
        if not crossing.size:
            return np.asarray(self.order[indices])
        rows = self.order[np.minimum(indices, len(self.order) - 1)]
        for worker in crossing:
            rows[worker] = self._across_passes(first + int(worker), int(passes[worker]), int(offsets[worker]))
        return np.asarray(rows)

    def _across_passes(self, worker: int, number: int, offset: int) -> Whole:
        """A batch that begins at `offset` of pass `number` and continues in the next passes."""
        pieces, wanted = [], self.batch
        while True:
            own = self.order[self.starts[worker] : self.starts[worker] + self.sizes[worker]]
            pieces.append(own[offset : offset + wanted].copy())
            wanted -= len(pieces[-1])
            if not wanted:
                return np.concatenate(pieces)
            number, offset = number + 1, 0
            self._shuffle(worker, number)

    def _shuffle(self, worker: int, number: int) -> None:
        own = slice(self.starts[worker], self.starts[worker] + self.sizes[worker])
        self.order[own] = np.random.default_rng((self.seed, 3, worker, number)).permutation(self.samples[own])
        self.passes[worker] = number
