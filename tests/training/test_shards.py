"""Shards: every sample once, whatever the skew; skew that is there; batches that go through a shard once a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.training import Shards
from trainyard.training.shards import Feed

KINDS = ("iid", "label", "feature", "sizes")


def deal(kind: Any, samples: int = 400, workers: int = 8, size: int = 2, seed: int = 0, alpha: float = 0.3) -> Any:
    rng = np.random.default_rng(1)
    features, targets = rng.standard_normal((samples, 3)), rng.integers(0, 2, samples)
    parts = Shards(kind, alpha).deal(features, targets, workers=workers, cluster_size=size, seed=seed)
    return features, targets, parts


ALPHAS = st.sampled_from([1e-9, 0.1, 10.0])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 4), st.integers(1, 5), st.integers(0, 60), st.integers(0, 9), ALPHAS)
def test_every_sample_belongs_to_exactly_one_worker(
    kind: str, size: int, clusters: int, more: int, seed: int, alpha: float
) -> None:
    workers = size * clusters
    _, _, parts = deal(kind, workers + more, workers, size, seed, alpha)
    assert len(parts) == workers
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(workers + more))
    if kind != "sizes":
        assert max(map(len, parts)) - min(map(len, parts)) <= 2


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_shards_and_other_seeds_others(kind: str) -> None:
    first, again, other = (deal(kind, seed=seed)[2] for seed in (3, 3, 4))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(a.shape != b.shape or (a != b).any() for a, b in zip(first, other, strict=True))


def of_clusters(parts: list[Any], size: int = 2) -> list[Any]:
    return [np.concatenate(parts[first : first + size]) for first in range(0, len(parts), size)]


def test_labels_are_skewed_by_alpha() -> None:
    spreads = {}
    for alpha in (0.1, 100.0):
        _, targets, parts = deal("label", samples=4000, workers=32, alpha=alpha)
        spreads[alpha] = np.std([targets[part].mean() for part in of_clusters(parts)])
    assert spreads[0.1] > 0.3
    assert spreads[100.0] < 0.1


def test_clusters_see_regions_of_their_own() -> None:
    """Cluster means are far apart, and most samples are nearest to the mean of their own cluster."""
    features, _, parts = deal("feature", samples=4000, workers=8)
    clusters = of_clusters(parts)
    centres = np.array([features[part].mean(0) for part in clusters])
    own = [np.argmin(((features[part][:, None] - centres) ** 2).sum(-1), axis=1) == number for number, part in enumerate(clusters)]
    assert np.concatenate(own).mean() > 0.7
    _, _, mixed = deal("iid", samples=4000, workers=8)
    assert np.ptp([features[part].mean(0) for part in of_clusters(mixed)]) < 0.3 < np.ptp(centres)


def test_kind_sizes_gives_clusters_of_unequal_size() -> None:
    _, _, parts = deal("sizes", samples=4000, workers=32)
    sizes = [len(part) for part in of_clusters(parts)]
    assert max(sizes) > 5 * np.median(sizes)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 15), st.integers(0, 9))
def test_a_worker_goes_through_its_samples_once_a_pass(sizes: list[int], batch: int, seed: int) -> None:
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    feed = Feed(parts, batch, seed)
    numbers = 2 * max(sizes)
    seen = np.concatenate([feed.rows(number, slice(0, len(sizes))) for number in range(numbers)], axis=1)
    for part, stream in zip(parts, seen, strict=True):
        for turn in range(len(stream) // len(part)):
            assert sorted(stream[turn * len(part) : (turn + 1) * len(part)]) == part.tolist()
    for number in (numbers - 1, 0, numbers // 2):  # whoever asks, in whatever order
        for worker in range(len(sizes)):
            alone = feed.rows(number, slice(worker, worker + 1))[0]
            assert (alone == seen[worker, number * batch : (number + 1) * batch]).all()


def test_every_pass_has_a_new_order_of_samples() -> None:
    feed = Feed([np.arange(50)], 50, 0)
    assert (feed.rows(0, slice(0, 1)) != feed.rows(1, slice(0, 1))).any()


def test_too_few_samples_or_unequal_clusters_are_refused() -> None:
    with pytest.raises(BadInput, match="3 samples for 8 workers: give each at least one, or take fewer workers"):
        deal("iid", samples=3)
    with pytest.raises(BadInput, match="cluster_size=3 does not divide 8 workers"):
        deal("iid", size=3)
    with pytest.raises(UnknownName, match="did you mean 'sizes'"):
        Shards("size")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="alpha must be above 0"):
        Shards("label", 0)
