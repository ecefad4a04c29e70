"""Tallies of views against their matrices written down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.ir import Convolution, MaskView
from trainyard.masks.row_counts import nonzero_counts
from trainyard.masks.views import matrix, ranges


class Drawn:
    """Bits of any shape, by the seed."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self._bits = np.random.default_rng(seed).random(shape) < 0.5
        self.digest = f"{shape} {seed}"

    def bits(self, key: object) -> np.ndarray:
        return self._bits


@st.composite
def views(draw: st.DrawFn) -> MaskView:
    seed, turned = draw(st.integers(0, 1000)), draw(st.booleans())
    if draw(st.booleans()):
        shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
        height = int(np.prod(shape[:-1])) * draw(st.integers(1, 3))
        view = MaskView(Drawn(shape, seed), ("fc", 0, "A"), None, turned, height=height)
    else:
        view = draw(unfolded(seed, turned))
    below, across = (sum(end - start for start, end in [cut]) for cut in ranges(view))
    cut = lambda extent: draw(st.tuples(*[st.integers(0, extent)] * 2).map(sorted).filter(lambda c: c[0] < c[1]).map(tuple))  # noqa: E731
    rows, columns = (across, below) if turned else (below, across)
    return replace(view, rows=draw(st.none() | st.just(cut(rows))), columns=draw(st.none() | st.just(cut(columns))))


@st.composite
def unfolded(draw: st.DrawFn, seed: int, turned: bool) -> MaskView:
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2]))
    several = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * rank))  # noqa: E731
    try:
        body = Convolution(
            batch=draw(st.integers(1, 3)), groups=groups,
            in_channels=groups * draw(st.integers(1, 2)), out_channels=groups * draw(st.integers(1, 3)),
            size=several(2, 5), kernel=several(1, 3), stride=several(1, 2), padding=several(0, 2), dilation=several(1, 2),
        )  # fmt: skip
    except BadInput:
        assume(False)
        raise
    letter, dilated = draw(st.sampled_from([("A", False), ("W", False), ("W", True), ("G", False), ("G", True)]))
    samples = draw(st.integers(1, body.batch))
    shape = {
        "A": (samples, body.in_channels, *body.size),
        "W": (body.out_channels, body.in_channels // groups, *body.kernel),
        "G": (samples, body.out_channels, *body.out_size),
    }[letter]
    return MaskView(Drawn(shape, seed), ("conv", 0, letter), body, turned, dilated=dilated)


@pytest.mark.oracle
@given(views())
def test_nonzero_counts_equal_the_sums_of_the_matrix(view: MaskView) -> None:
    bits = matrix(view)
    for axis in (0, 1):
        assert nonzero_counts(view, axis).tolist() == np.count_nonzero(bits, axis=axis).tolist()
        assert nonzero_counts(view, axis) is nonzero_counts(view, axis)  # remembered
