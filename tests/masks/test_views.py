"""Views of masks: the matrices of the products that they stand for, cut as asked, and nothing read in vain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Thread

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles.lowering import matrices
from trainyard.caches import BoundedCache, ByIdentity
from trainyard.errors import BadInput, MaskError
from trainyard.ir import Convolution, MaskView
from trainyard.masks.views import matrix, ranges


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    tuples = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    try:
        return Convolution(
            batch=draw(st.integers(1, 2)),
            in_channels=groups * draw(st.integers(1, 2)),
            out_channels=groups * draw(st.integers(1, 3)),
            size=draw(tuples(2, 6)),
            kernel=draw(tuples(1, 3)),
            stride=draw(tuples(1, 3)),
            padding=draw(tuples(0, 2)),
            dilation=draw(tuples(1, 2)),
            groups=groups,
        )
    except BadInput:
        assume(False)


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = "bits"

    def bits(self, key):
        return self.tensors[key[2]]


@given(body=convolutions())
def test_mask_views_are_the_matrices_of_the_product(body):
    random = np.random.default_rng(body.batch + sum(body.size))
    draw = lambda *shape: random.random(shape) * (random.random(shape) < 0.5)  # noqa: E731
    x, dy = draw(body.batch, body.in_channels, *body.size), draw(body.batch, body.out_channels, *body.out_size)
    w = draw(body.out_channels, body.in_channels // body.groups, *body.kernel)
    source = Bits({"A": x != 0, "W": w != 0, "G": dy != 0})
    view = lambda letter, **cut: matrix(MaskView(source, ("layer", 0, letter), body, **cut))  # noqa: E731
    a, b = matrices(body, x, w)
    assert np.array_equal(view("A"), (a != 0).reshape(-1, a.shape[-1]))
    assert np.array_equal(view("W", transposed=True), np.concatenate(list(b != 0), axis=1))
    g, _ = matrices(body.as_product("grad_input"), dy, w)
    assert np.array_equal(view("G"), (g != 0).reshape(-1, g.shape[-1]))
    rows = math.ceil(a.shape[1] / 2)
    assert np.array_equal(view("A", rows=(0, rows), columns=(0, 1)), (a[0] != 0)[:rows, :1])


def test_masks_that_do_not_fit_are_refused():
    body = Convolution(batch=1, in_channels=2, out_channels=2, size=(4,), kernel=(3,))
    source = Bits({"A": np.ones((1, 2, 5), bool), "W": np.ones((2, 2, 3), bool)})
    with pytest.raises(MaskError, match=r"'conv1'.*does not fit"):
        matrix(MaskView(source, ("conv1", 0, "A"), body))
    with pytest.raises(MaskError, match=r"rows .* lie outside"):
        matrix(MaskView(source, ("conv1", 0, "W"), body, rows=(0, 9)))


def test_a_view_without_geometry_keeps_the_last_dimension():
    source = Bits({"A": np.arange(24).reshape(2, 3, 4) % 5 != 0})
    assert np.array_equal(matrix(MaskView(source, ("fc", 0, "A"))), source.tensors["A"].reshape(6, 4))


def test_a_mask_without_rows_is_refused():
    source = Bits({"A": np.ones((0, 4), bool)})
    with pytest.raises(MaskError, match="has 0 rows, the step 3"):
        ranges(MaskView(source, ("fc", 0, "A"), height=3))


def test_the_cache_keeps_the_arrays_used_last():
    kept, built = BoundedCache(entries=2), []
    source = Bits({})

    def of(name):
        return kept.get((ByIdentity(source), name), lambda: built.append(name) or np.zeros(1))

    for name in ("a", "b", "a", "c", "a", "b"):  # c takes the place of b, which was not asked for since
        of(name)
    assert built == ["a", "b", "c", "b"]


def test_the_cache_serves_many_threads():
    kept, source, wrong = BoundedCache(entries=2), Bits({}), []

    def ask(first):
        for turn in range(300):
            name = (first + turn) % 5
            if kept.get((ByIdentity(source), name), lambda name=name: np.full(1, name))[0] != name:
                wrong.append(name)

    threads = [Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
