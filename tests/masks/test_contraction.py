"""Counts along the reduction, against looking at every element; from views as from bits; expectations against drawn bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, MaskError
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, Density, MaskView, MatMul
from trainyard.masks.contraction import bitmap_of, counts, stationary_rows

Bits = np.ndarray[Any, np.dtype[np.bool_]]


class Recorded:
    """One tensor's bits."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self.digest = f"{bits.shape} {bits.tobytes()!r}"

    def bits(self, key: object) -> Bits:
        return self._bits


@st.composite
def pairs(draw: st.DrawFn) -> tuple[MatMul, Bits, Bits]:
    op = MatMul(draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 80)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = st.sampled_from([0.0, 0.2, 0.8, 1.0])
    return op, random.random((op.M, op.K)) < draw(share), random.random((op.K, op.N)) < draw(share)


@pytest.mark.oracle
@given(pairs(), st.integers(1, 90))
def test_counts_equal_a_loop_over_every_element(case: tuple[MatMul, Bits, Bits], chunk: int) -> None:
    op, a, b = case
    met = counts(op, a, b)
    meets = {"a": [[bool(a[m, k]) and bool(b[k].any()) for k in range(op.K)] for m in range(op.M)],
             "b": [[bool(b[k, n]) and bool(a[:, k].any()) for k in range(op.K)] for n in range(op.N)]}  # fmt: skip
    for side, rows in meets.items():
        assert met.stationary(side) == sum(map(sum, rows))  # type: ignore[arg-type]
        starts = range(0, op.K, chunk)
        parts = [[sum(row[start : start + chunk]) for row in rows] for start in starts]
        assert stationary_rows(op, a, b, side, chunk).tolist() == parts  # type: ignore[arg-type]
        assert met.stationary_by_chunk(side, chunk).tolist() == list(map(sum, parts))  # type: ignore[arg-type]
    assert met.useful == sum(bool(a[m, k]) and bool(b[k, n]) for m in range(op.M) for n in range(op.N) for k in range(op.K))


@pytest.mark.unit
@given(pairs())
def test_views_have_the_counts_of_their_bits(case: tuple[MatMul, Bits, Bits]) -> None:
    op, a, b = case
    left, right = MaskView(Recorded(a), ("layer", 0, "A")), MaskView(Recorded(b.T.copy()), ("layer", 0, "W"), transposed=True)
    by_view, by_bits = counts(op, left, right), counts(op, a, b)
    assert (by_view.useful, by_view.stationary("a"), by_view.stationary("b")) == (
        by_bits.useful,
        by_bits.stationary("a"),
        by_bits.stationary("b"),
    )
    assert bitmap_of(right, (op.K, op.N), "b") == Bitmap.of(b)
    for side in ("a", "b"):
        for chunk in (op.K, 7):
            assert np.array_equal(stationary_rows(op, left, right, side, chunk), stationary_rows(op, a, b, side, chunk))  # type: ignore[arg-type]


@pytest.mark.unit
@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_expectations_agree_with_drawn_bits(p: float) -> None:
    op = MatMul(30, 40, 3000)
    a, b = Bitmap.random(30, 3000, nonzero=p, seed=1), Bitmap.random(3000, 40, nonzero=0.05, seed=2)
    expected, exact = counts(op, Density(p), Density(0.05)), counts(op, a, b)
    assert expected.useful == pytest.approx(exact.useful, rel=0.05)
    assert expected.stationary("a") == pytest.approx(exact.stationary("a"), rel=0.05)
    assert expected.stationary("b") == pytest.approx(exact.stationary("b"), rel=0.05)
    mixed = counts(op, Density(p), b)
    assert mixed.useful == pytest.approx(exact.useful, rel=0.05)


@pytest.mark.unit
def test_dense_operands_have_full_counts() -> None:
    met = counts(MatMul(3, 5, 7), DENSE, DENSE)
    assert (met.stationary("a"), met.stationary("b"), met.useful) == (21, 35, 105)
    assert met.stationary_by_chunk("a", 4).tolist() == [12, 9]
    assert stationary_rows(MatMul(3, 5, 7), DENSE, DENSE, "b", 4).tolist() == [[4] * 5, [3] * 5]


@pytest.mark.unit
def test_masks_of_a_wrong_shape_raise() -> None:
    view = MaskView(Recorded(np.ones((4, 6), dtype=bool)), ("fc", 0, "A"))
    with pytest.raises(MaskError, match=r"4 x 6.*fc.*5 x 6"):
        counts(MatMul(5, 2, 6), view, DENSE)
    with pytest.raises(MaskError, match="one by one"):
        counts(MatMul(4, 2, 6, 3), view, DENSE)
    with pytest.raises(BadInput, match="density"):
        bitmap_of(Density(0.5), (2, 2), "a")
