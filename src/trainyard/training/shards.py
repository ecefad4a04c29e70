"""Who has which samples, and in what order a worker goes through its own.

| kind    | a cluster's samples                                                                                          |
|---------|--------------------------------------------------------------------------------------------------------------|
| iid     | drawn at random                                                                                              |
| label   | equal numbers, with classes in shares drawn from Dirichlet(alpha): the smaller alpha, the purer              |
| feature | a region of feature space: halved, and halved again, across the direction in which its samples spread most   |
| sizes   | drawn at random, in numbers drawn from Dirichlet(alpha), at least one for each of its workers                |

Within a cluster, workers share evenly and at random. Every sample belongs to exactly one worker. A worker goes through its samples
in a new random order in every pass, and a batch that reaches the end of one pass goes on in the next: batches are always full, and
a worker with fewer samples sees them more often.
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
LOOKED_AT = 4096
"""Samples that the direction of a cut is found from; assumed: enough for a first principal direction of thousands of features."""
TURNS = 12
"""Of power iteration; assumed: a cut needs a direction of large spread, not the very largest."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How samples are dealt.

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
        """The numbers of each worker's samples."""
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
    """A kind by name, or one as given.

    >>> shard("lable")
    Traceback (most recent call last):
    trainyard.errors.UnknownName: unknown kind of shards 'lable': did you mean 'label'? (known: feature, iid, label, sizes)
    """
    return shards if isinstance(shards, Shards) else Shards(shards)  # type: ignore[arg-type]


def _quotas(total: int, parts: int) -> list[int]:
    return [total // parts + (number < total % parts) for number in range(parts)]


def _by_label(order: Whole, targets: Array, clusters: int, alpha: float, rng: np.random.Generator) -> list[Whole]:
    """Each cluster takes its shares from what is left of the classes, and fills up from the rest where a class has run out."""
    classes = np.unique(targets)
    left = [list(order[targets[order] == label]) for label in classes]
    prior = np.array([len(one) for one in left]) / len(order)
    parts = []
    for quota in _quotas(len(order), clusters):
        shares = rng.dirichlet(alpha * len(classes) * prior)
        if not np.isfinite(shares).all() or shares.sum() == 0:  # an alpha so small that every draw is 0
            shares = np.eye(len(classes))[rng.choice(len(classes), p=prior)]
        wanted = np.floor(shares * quota + 0.5).astype(int)
        taken: list[int] = []
        for one, number in zip(left, wanted, strict=True):
            number = min(int(number), len(one), quota - len(taken))
            taken += one[len(one) - number :]
            del one[len(one) - number :]
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
    near = clusters // 2
    flat = features.reshape(len(features), -1)
    seen = flat[np.sort(order[:LOOKED_AT])].astype(np.float64)
    middle = seen.mean(0)
    seen -= middle
    direction = rng.standard_normal(flat.shape[1])
    for _ in range(TURNS):
        direction = seen.T @ (seen @ direction)
        direction /= np.linalg.norm(direction) or 1.0
    places = np.concatenate([flat[part] @ direction for part in np.array_split(order, max(1, len(order) // LOOKED_AT))])
    ranked = order[np.argsort(places, kind="stable")]
    cut = sum(_quotas(len(order), clusters)[:near])
    return [
        *_by_region(rng.permutation(ranked[:cut]), features, near, rng),
        *_by_region(rng.permutation(ranked[cut:]), features, clusters - near, rng),
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
    """Batches of every worker: number t of a worker is always the same samples, whoever asks first."""

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
        passes, places = np.divmod(number * self.batch, sizes)
        first = workers.start or 0
        for worker in np.nonzero(passes != self.passes[workers])[0]:
            self._shuffle(first + int(worker), int(passes[worker]))
        found = (self.starts[workers] + places)[:, None] + self._within
        crossing = np.nonzero(places + self.batch > sizes)[0]
        if not crossing.size:
            return np.asarray(self.order[found])
        rows = self.order[np.minimum(found, len(self.order) - 1)]
        for worker in crossing:
            rows[worker] = self._across(first + int(worker), int(passes[worker]), int(places[worker]))
        return np.asarray(rows)

    def _across(self, worker: int, turn: int, place: int) -> Whole:
        pieces, wanted = [], self.batch
        while True:
            own = self.order[self.starts[worker] : self.starts[worker] + self.sizes[worker]]
            pieces.append(own[place : place + wanted].copy())
            wanted -= len(pieces[-1])
            if not wanted:
                return np.concatenate(pieces)
            turn, place = turn + 1, 0
            self._shuffle(worker, turn)

    def _shuffle(self, worker: int, turn: int) -> None:
        own = slice(self.starts[worker], self.starts[worker] + self.sizes[worker])
        self.order[own] = np.random.default_rng((self.seed, 3, worker, turn)).permutation(self.samples[own])
        self.passes[worker] = turn
