"""Packed bits against numpy on unpacked ones; random bits against the laws of independent draws."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trainyard.errors import BadInput, MaskError
from trainyard.hardware.formats.bitmaps import Bitmap, as_bitmap

matrices = arrays.arrays(np.bool_, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=150))
EDGES = [
    (1, 1),
    (1, 63),
    (1, 64),
    (1, 65),
    (3, 128),
    (64, 64),
    (65, 129),
    (254, 7),
    (255, 7),
    (256, 7),
    (511, 70),
    (2, 64 * 256 + 1),
]


@pytest.mark.oracle
@given(mask=matrices)
def test_all_counts_equal_numpys_on_unpacked_bits(mask: np.ndarray) -> None:
    bitmap = Bitmap.of(mask)
    assert bitmap.shape == mask.shape
    assert np.array_equal(bitmap.bits(), mask)
    assert bitmap.nonzeros == mask.sum()
    assert np.array_equal(bitmap.row_counts(), mask.sum(axis=1))
    assert np.array_equal(bitmap.column_counts(), mask.sum(axis=0))
    assert np.array_equal(bitmap.transposed().bits(), mask.T)


@pytest.mark.probe
@pytest.mark.parametrize("shape", EDGES)
def test_counters_neither_overflow_nor_leak_at_the_edges_of_words_and_blocks(shape: tuple[int, int]) -> None:
    full = Bitmap.random(*shape, nonzero=1.0, seed=0)
    assert full == Bitmap.of(np.ones(shape))
    assert full.density == 1.0
    assert np.array_equal(full.column_counts(), np.full(shape[1], shape[0]))
    assert np.array_equal(full.row_counts(), np.full(shape[0], shape[1]))
    half = Bitmap.random(*shape, nonzero=0.5, seed=1)
    assert np.array_equal(half.column_counts(), half.bits().sum(axis=0))
    assert half.transposed().transposed() == half


@pytest.mark.oracle
@given(mask=matrices, data=st.data())
def test_a_cut_equals_numpys_slice(mask: np.ndarray, data: st.DataObject) -> None:
    (top, below), (left, right) = (sorted(data.draw(st.tuples(st.integers(0, side), st.integers(0, side)))) for side in mask.shape)
    assert Bitmap.of(mask).cut((top, below), (left, right)) == Bitmap.of(mask[top:below, left:right])


def test_a_cut_outside_the_bitmap_raises() -> None:
    with pytest.raises(BadInput, match="do not lie in 4 x 70"):
        Bitmap.of(np.ones((4, 70))).cut((0, 5), (0, 70))


@pytest.mark.oracle
@given(mask=matrices)
def test_a_mask_may_come_in_any_form(mask: np.ndarray) -> None:
    target = Bitmap.of(mask)
    forms = [mask, mask * 0.5, mask.astype(np.uint8), np.packbits(mask, axis=1), np.packbits(mask), target.words, target]
    assert all(as_bitmap(form, mask.shape, "a") == target for form in forms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given_mask", [np.ones((3, 5)), Bitmap.of(np.ones((5, 3))), np.ones(15), np.full((5, 4), "x"), None, np.ones((5, 1))]
)
def test_another_shape_is_refused_with_both_shapes(given_mask: object) -> None:
    with pytest.raises(MaskError, match=r"a: a mask of shape \[5, 4\] is wanted.*got"):
        as_bitmap(given_mask, (5, 4), "a")


def test_masks_that_are_no_numeric_matrix_raise() -> None:
    with pytest.raises(MaskError, match="no matrix"):
        as_bitmap([[1, 0], [1]], (2, 2), "a")
    for wrong in ({"nonzero": "x", "seed": 0}, {"nonzero": 0.5, "seed": 1.5}, {"nonzero": 0.5, "seed": None}):
        with pytest.raises(BadInput, match=r"Bitmap\.random"):
            Bitmap.random(2, 2, **wrong)  # type: ignore[arg-type]


def test_bits_past_the_end_are_refused() -> None:
    with pytest.raises(MaskError, match="past column 4"):
        as_bitmap(np.full((1, 1), 0b00001000, np.uint8), (1, 4), "a")
    with pytest.raises(MaskError, match="past the end"):
        Bitmap(np.full((1, 1), 16, np.uint64), 4)
    with pytest.raises(MaskError, match=r"uint64 \[rows, 2\]"):
        Bitmap(np.zeros((1, 1), np.uint64), 65)


def test_a_bitmap_is_a_value() -> None:
    mask = np.random.default_rng(0).random((20, 100)) < 0.5
    one, other = Bitmap.of(mask), Bitmap(Bitmap.of(mask).words.copy(), 100)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != Bitmap.of(np.logical_xor(mask, np.eye(20, 100, k=80, dtype=bool)))
    assert Bitmap.of(np.zeros((2, 60))) != Bitmap.of(np.zeros((2, 61)))
    assert hash(Bitmap.of(np.zeros((2, 60)))) != hash(Bitmap.of(np.zeros((2, 61))))
    with pytest.raises(ValueError, match="read-only"):
        one.words[0, 0] = 0


def test_later_writes_to_the_callers_words_do_not_reach_a_bitmap() -> None:
    words = np.zeros((1, 1), np.uint64)
    bitmap = Bitmap(words, 8)
    words[0, 0] = 1
    assert bitmap.nonzeros == 0


# ---- random bits: every bound below is five standard deviations of independent draws, under fixed seeds


@pytest.mark.parametrize("nonzero", [2.0**-16, 0.01, 0.2, 1 / 3, 0.5, 0.8, 0.999, 1 - 2.0**-16])
def test_random_bits_have_the_requested_density(nonzero: float) -> None:
    rows, columns = 1000, 20_001
    actual = Bitmap.random(rows, columns, nonzero=nonzero, seed=11).nonzeros
    expected = nonzero * rows * columns
    assert abs(actual - expected) < 5 * np.sqrt(expected * (1 - nonzero))


@pytest.mark.parametrize("nonzero", [0.1, 0.5, 0.8])
def test_random_bits_are_independent_of_their_neighbours(nonzero: float) -> None:
    bits = Bitmap.random(2000, 2000, nonzero=nonzero, seed=5).bits().astype(np.float64) - nonzero
    for down, right in [(0, 1), (1, 0), (1, 1), (0, 2), (0, 64), (0, 63), (2, 0), (64, 64)]:
        products = bits[down:, right:] * bits[: 2000 - down, : 2000 - right]
        assert abs(products.sum()) < 5 * nonzero * (1 - nonzero) * np.sqrt(products.size)


@pytest.mark.parametrize("nonzero", [0.1, 0.8])
def test_counts_of_random_rows_and_columns_spread_as_binomials(nonzero: float) -> None:
    bitmap = Bitmap.random(1024, 4096, nonzero=nonzero, seed=3)
    for counts, length in [(bitmap.row_counts(), 4096), (bitmap.column_counts(), 1024)]:
        chi_square = ((counts - length * nonzero) ** 2 / (length * nonzero * (1 - nonzero))).sum()
        assert abs(chi_square - counts.size) < 5 * np.sqrt(2 * counts.size)


def test_random_bits_of_different_seeds_have_nothing_in_common() -> None:
    one, other = (Bitmap.random(1000, 1000, nonzero=0.5, seed=seed).bits() for seed in (0, 1))
    assert abs(np.mean(one == other) - 0.5) < 5 * 0.5 / 1000


def test_random_bits_depend_on_the_seed_alone() -> None:
    assert Bitmap.random(100, 100, nonzero=0.3, seed=9) == Bitmap.random(100, 100, nonzero=0.3, seed=9)
    assert Bitmap.random(100, 100, nonzero=0.3, seed=9) != Bitmap.random(100, 100, nonzero=0.3, seed=10)
    assert Bitmap.random(100, 100, nonzero=0.3, seed=-1).nonzeros > 0


@pytest.mark.probe
def test_probabilities_0_and_1_are_exact() -> None:
    assert Bitmap.random(300, 1000, nonzero=0.0, seed=2).nonzeros == 0
    assert Bitmap.random(300, 1000, nonzero=1.0, seed=2).nonzeros == 300_000
    assert Bitmap.random(300, 1000, nonzero=1e-300, seed=2).nonzeros == 0
    assert Bitmap.random(300, 1000, nonzero=np.nextafter(1, 0), seed=2).nonzeros == 300_000


@pytest.mark.oracle
def test_random_words_equal_a_plain_comparison_of_fractions() -> None:
    """Twin: each bit's random fraction, digit by digit, against the probability's, with Python's whole numbers."""

    def mixed(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    step, nonzero = 0x9E3779B97F4A7C15, 0.7
    start = mixed(step + 42)
    plain = np.zeros((3, 100), bool)
    for row, column in np.ndindex(plain.shape):
        first = (row * 2 + column // 64) * 64
        digits = [mixed((start + (first + digit + 1) * step) % 2**64) >> column % 64 & 1 for digit in range(64)]
        plain[row, column] = int("".join(map(str, digits)), 2) < int(nonzero * 2**64)
    assert np.array_equal(Bitmap.random(3, 100, nonzero=nonzero, seed=42).bits(), plain)


@pytest.mark.parametrize("nonzero", [-0.1, 1.1, float("nan")])
def test_an_invalid_probability_raises(nonzero: float) -> None:
    with pytest.raises(BadInput, match="probability from 0 to 1"):
        Bitmap.random(2, 2, nonzero=nonzero, seed=0)
