"""Digits: the real ones where they are installed, drawn ones elsewhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.workloads.datasets.batches import Batches
from trainyard.workloads.datasets.digits import Digits, digits
from trainyard.workloads.datasets.strokes import SHAPES, Strokes, _distances


class TestDrawn:
    def test_the_same_digit_whenever_it_is_asked_for(self) -> None:
        data = Strokes(samples=500, size=12)
        images, labels = data.take(np.arange(100))
        assert images.shape == (100, 1, 12, 12)
        assert images.dtype == np.float32
        assert (images.min(), images.max()) == (0, 1)
        alone, label = data.take(np.array([77]))
        assert np.array_equal(alone[0], images[77])
        assert label[0] == labels[77] == 7
        assert not np.allclose(images[7], images[17]), "no two are alike"
        assert not np.allclose(Strokes(samples=500, size=12, seed=1).take(np.array([77]))[0], alone)
        assert np.bincount(labels).tolist() == [10] * 10

    @pytest.mark.oracle
    def test_distances_against_points_along_the_pen(self) -> None:
        ends = np.random.default_rng(0).random((3, 4, 2, 2))
        actual = _distances(ends, 5)
        shares = np.linspace(0, 1, 2001)[:, None]
        for sample in range(3):
            pen = np.concatenate([begin + shares * (finish - begin) for begin, finish in ends[sample]])
            for row in range(5):
                for column in range(5):
                    pixel = np.array([(column + 0.5) / 5, (row + 0.5) / 5])
                    assert actual[sample, row, column] == pytest.approx(np.linalg.norm(pen - pixel, axis=1).min(), abs=1e-3)

    def test_the_pen_stays_where_the_digit_is(self) -> None:
        assert all(0 < x < 1 and 0 < y < 1 for shape in SHAPES for stroke in shape for x, y in stroke)
        images, _ = Strokes(samples=300, size=16, noise=0).take(np.arange(300))
        edge = np.concatenate([images[:, 0, 0], images[:, 0, -1], images[:, 0, :, 0], images[:, 0, :, -1]], axis=1)
        assert edge.mean() < 0.05 < images.mean()

    def test_they_can_be_told_apart_but_not_by_their_mean_alone(self) -> None:
        images, labels = Strokes(samples=1500, size=8).take(np.arange(1500))
        flat = images.reshape(1500, -1)
        means = np.stack([flat[:1000][labels[:1000] == digit].mean(0) for digit in range(10)])
        nearest = ((flat[1000:, None] - means) ** 2).sum(-1).argmin(1)
        assert 0.6 < (nearest == labels[1000:]).mean() < 0.98
        neighbour = ((flat[1000:, None] - flat[:1000]) ** 2).sum(-1).argmin(1)
        assert (labels[neighbour] == labels[1000:]).mean() > 0.95

    def test_faults(self) -> None:
        with pytest.raises(BadInput, match="size must be at least 6"):
            Strokes(size=5)
        with pytest.raises(BadInput, match="noise is a share"):
            Strokes(noise=1.0)


class TestChoice:
    def test_real_ones(self) -> None:
        pytest.importorskip("sklearn")
        data = digits()
        assert isinstance(data, Digits)
        assert (data.samples, data.stand_in) == (1797, False)
        images, labels = data.take(np.arange(10))
        assert images.shape == (10, 1, 8, 8)
        assert labels.tolist() == list(range(10))
        assert (images.min(), images.max()) == (0, 1)
        assert Batches(source=data, batch=4).at(0)[0].shape == (4, 1, 8, 8)

    def test_other_sizes_are_drawn(self) -> None:
        assert digits(size=16, samples=30).stand_in
        assert digits("generated", samples=30).take(np.arange(2))[0].shape == (2, 1, 8, 8)
        with pytest.raises(BadInput, match="the real ones are 8 x 8"):
            digits("sklearn", size=16)
        with pytest.raises(UnknownName, match="did you mean 'sklearn'"):
            digits("sklern")

    def test_without_scikit_learn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        assert digits().stand_in
        with pytest.raises(MissingExtra, match=r"trainyard\[knn\]"):
            digits("sklearn")
