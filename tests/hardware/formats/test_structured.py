"""n:m structure: masks that have it, compression with places, and products that are the masked dense ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.formats.structured import compress, drawn, expand, fits, largest, multiply, stored_bytes
from trainyard.ir import TWO_FOUR, Structured

PATTERNS = st.sampled_from([Structured(2, 4), Structured(1, 4), Structured(4, 8), Structured(1, 2)])


@given(PATTERNS, st.integers(1, 5), st.integers(1, 6), st.integers(1, 7), st.integers(0, 99))
@settings(max_examples=60)
def test_a_compressed_product_is_the_masked_dense_one(pattern, rows, groups, columns, seed):
    random = np.random.default_rng(seed)
    deep = groups * pattern.of
    a, w = random.integers(-9, 9, (rows, deep)), random.integers(-9, 9, (deep, columns))
    kept = w * largest(w, 0, pattern)
    values, places = compress(kept, pattern)
    assert values.shape == places.shape == (deep * pattern.kept // pattern.of, columns)
    assert places.max(initial=0) < 2**pattern.index_bits
    assert np.array_equal(expand(values, places, pattern), kept)
    assert np.array_equal(multiply(a, values, places, pattern), a @ kept)


@given(PATTERNS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 1), st.integers(0, 99))
@settings(max_examples=60)
def test_drawn_masks_have_exactly_n_of_every_m(pattern, first, second, axis, seed):
    shape = (first * pattern.of, second * pattern.of, 3)
    mask = drawn(shape, axis, pattern, np.random.default_rng(seed))
    groups = np.moveaxis(mask, axis, -1).reshape(-1, pattern.of).sum(-1)
    assert (groups == pattern.kept).all()
    assert mask.mean() == pattern.nonzero


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=30)
def test_transposable_masks_have_it_along_both_axes(first, second, seed):
    mask = drawn((4 * first, 4 * second, 2), 1, TWO_FOUR, np.random.default_rng(seed), transposable=True)
    for axis in (0, 1):
        assert (np.moveaxis(mask, axis, -1).reshape(-1, 4).sum(-1) == 2).all()


def test_axes_that_do_not_divide_stay_dense_and_too_many_values_raise():
    assert drawn((8, 3), 1, TWO_FOUR, np.random.default_rng(0)).all()
    assert not fits(np.ones((3, 8), bool), 0, TWO_FOUR)
    with pytest.raises(BadInput, match="more than 2 of 4"):
        compress(np.ones((4, 2)), TWO_FOUR)
    with pytest.raises(BadInput, match="from 1 to all"):
        Structured(5, 4)


@pytest.mark.parametrize(("width", "share"), [(1, 5 / 8), (2, 9 / 16), (4, 17 / 32)])
def test_bytes_are_values_and_two_bits_each(width, share):
    assert stored_bytes(1 << 12, width, TWO_FOUR) == share * width * (1 << 12)
