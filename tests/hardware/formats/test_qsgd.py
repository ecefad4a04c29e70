"""QSGD: right on average, within its variance, and the very bits of its codes, against twins in plain Python."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats.qsgd import Qsgd, Quantized

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
SCHEMES = st.builds(
    Qsgd, bits=st.integers(2, 16), bucket=st.integers(1, 40), coding=st.sampled_from(["packed", "sparse", "shorter"])
)
VECTORS = st.lists(
    st.one_of(st.just(0.0), st.floats(-(2.0**100), 2.0**100, width=32), st.floats(-2, 2, width=32)), min_size=1, max_size=90
)


def split_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fraction(seed: int, place: int) -> float:
    state = split_mix((seed + STEP) & MASK)
    return (split_mix((state + place * STEP) & MASK) >> 11) / 2**53


def norm_of(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value * value
    exact = math.sqrt(total)
    rounded = np.float32(exact)
    return float(rounded if float(rounded) >= exact else np.nextafter(rounded, np.float32(np.inf)))


def levels_of(values: list[float], scheme: Qsgd, seed: int) -> tuple[list[float], list[int]]:
    norms, levels = [], []
    for first in range(0, len(values), scheme.bucket):
        own = values[first : first + scheme.bucket]
        norms.append(norm_of(own))
        for place, value in enumerate(own, start=first):
            ratio = abs(value) / norms[-1] * scheme.steps if norms[-1] else 0.0
            level = math.floor(ratio) + (fraction(seed, place) < ratio - math.floor(ratio))
            levels.append(-level if value < 0 else level)
    return norms, levels


def omega(number: int) -> str:
    """P. Elias's recursive code by its definition."""
    code = "0"
    while number > 1:
        code = f"{number:b}{code}"
        number = len(f"{number:b}") - 1
    return code


def bits_of(norms: list[float], levels: list[int], scheme: Qsgd) -> str:
    packed = sparse = ""
    for number, norm in enumerate(norms):
        own = levels[number * scheme.bucket : (number + 1) * scheme.bucket]
        head = f"{struct.unpack('>I', struct.pack('>f', norm))[0]:032b}"
        packed += head + "".join(f"{int(level < 0)}{abs(level):0{scheme.bits - 1}b}" for level in own)
        places = [place for place, level in enumerate(own) if level]
        sparse += head + omega(len(places) + 1)
        for before, place in zip([-1, *places], places, strict=False):
            sparse += omega(place - before) + str(int(own[place] < 0)) + omega(abs(own[place]))
    if scheme.coding == "shorter":
        return "1" + sparse if len(sparse) < len(packed) else "0" + packed
    return sparse if scheme.coding == "sparse" else packed


def as_bytes(bits: str) -> bytes:
    return bytes(int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8))


@pytest.mark.oracle
@given(SCHEMES, VECTORS, st.integers(0, MASK))
def test_levels_and_codes_equal_plain_python(scheme: Qsgd, values: list[float], seed: int) -> None:
    norms, levels = levels_of(values, scheme, seed)
    quantized = scheme.quantize(np.array(values, np.float32), seed)
    assert quantized.norms.tolist() == norms
    assert quantized.levels.tolist() == levels
    bits = bits_of(norms, levels, scheme)
    assert quantized.bits == len(bits)
    assert scheme.encode(quantized) == as_bytes(bits)
    assert quantized.bytes == len(as_bytes(bits))


@given(SCHEMES, VECTORS, st.integers(0, 99))
def test_encoding_round_trips(scheme: Qsgd, values: list[float], seed: int) -> None:
    quantized = scheme.quantize(values, seed)
    back = scheme.decode(scheme.encode(quantized), len(values))
    assert np.array_equal(back.levels, quantized.levels)
    assert np.array_equal(back.norms, quantized.norms)
    assert np.array_equal(back.values(), quantized.values())


@given(SCHEMES, VECTORS, st.integers(0, 99))
def test_a_value_is_one_of_its_two_neighbours_and_never_above_the_norm(scheme: Qsgd, values: list[float], seed: int) -> None:
    quantized = scheme.quantize(values, seed)
    norms = np.repeat(quantized.norms, scheme.bucket)[: len(values)].astype(np.float64)
    assert (np.abs(quantized.levels) <= scheme.steps).all()
    step = norms / scheme.steps
    exact = quantized.levels * step
    assert (np.abs(exact - np.array(values)) <= step * (1 + 1e-9)).all()
    assert (np.sign(quantized.levels) * np.sign(values) >= 0).all()


@given(st.integers(2, 8), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=64))
def test_expectation_variance_and_non_zeros_over_all_draws(bits: int, values: list[float]) -> None:
    """Each draw falls below the fraction of the ratio or not: the two outcomes, weighted, are the mean of all draws."""
    vector = np.array(values, np.float64)
    scheme = Qsgd(bits=bits, bucket=len(values))
    norm = norm_of(values)
    if norm == 0:
        return
    ratio = np.abs(vector) / norm * scheme.steps
    lower, chance = np.floor(ratio), ratio - np.floor(ratio)
    assert np.allclose(np.sign(vector) * norm / scheme.steps * (lower * (1 - chance) + (lower + 1) * chance), vector, rtol=1e-12)
    variance = float(((norm / scheme.steps) ** 2 * chance * (1 - chance)).sum())
    assert variance <= scheme.variance_bound * float(vector @ vector) * (1 + 1e-6)
    assert float(np.where(lower > 0, 1.0, chance).sum()) <= scheme.nonzero_bound * (1 + 1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_mean_of_many_draws_is_the_vector(bits: int) -> None:
    scheme, draws = Qsgd(bits=bits, bucket=64), 4000
    vector = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    actual = np.stack([scheme.quantize(vector, seed).values() for seed in range(draws)]).astype(np.float64)
    norms = np.repeat(scheme.quantize(vector, 0).norms, 64)[:200].astype(np.float64)
    ratio = np.abs(vector) / norms * scheme.steps
    chance = ratio - np.floor(ratio)
    spread = norms / scheme.steps * np.sqrt(chance * (1 - chance))
    assert (np.abs(actual.mean(0) - vector) < 5 * spread / draws**0.5 + 1e-6).all()
    assert np.allclose(actual.var(0).sum(), (spread**2).sum(), rtol=0.05), "and they vary as much as they should"


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    scheme, vector = Qsgd(bits=3, bucket=32), np.linspace(-1, 1, 640, dtype=np.float32)
    first = scheme.quantize(vector, 7)
    assert np.array_equal(first.levels, scheme.quantize(vector, 7).levels)
    assert not np.array_equal(first.levels, scheme.quantize(vector, 8).levels)
    drawn = [scheme.quantize(vector, np.random.default_rng(3)).levels for _ in range(2)]
    assert np.array_equal(*drawn)
    generator = np.random.default_rng(3)
    assert not np.array_equal(scheme.quantize(vector, generator).levels, scheme.quantize(vector, generator).levels)


def test_rows_are_coded_by_themselves() -> None:
    scheme = Qsgd(bits=5, bucket=512)
    rows = np.random.default_rng(2).standard_normal((3, 2, 40)).astype(np.float32) * np.array([1, 100]).reshape(2, 1)
    actual = scheme.applied(rows, 5)
    generator = np.random.default_rng(5)
    for place in np.ndindex(3, 2):
        assert np.array_equal(actual[place], scheme.quantize(rows[place], generator).values())


@pytest.mark.probe
@pytest.mark.parametrize("coding", ["packed", "sparse", "shorter"])
def test_a_byte_too_few_or_too_many_is_refused(coding: str) -> None:
    scheme = Qsgd(bits=4, bucket=16, coding=coding)
    vector = np.random.default_rng(0).standard_normal(50)
    data = scheme.encode(scheme.quantize(vector, 0))
    scheme.decode(data, 50)
    for damaged in (data[:-1], data + b"\0", b""):
        with pytest.raises(BadInput, match=f"not 50 elements in the {coding} coding"):
            scheme.decode(damaged, 50)


@given(st.binary(max_size=60), st.sampled_from(["packed", "sparse", "shorter"]), st.integers(1, 60))
def test_any_bytes_are_a_vector_or_a_clear_error(data: bytes, coding: str, elements: int) -> None:
    scheme = Qsgd(bits=4, bucket=16, coding=coding)
    try:
        actual = scheme.decode(data, elements)
    except BadInput:
        return
    assert actual.levels.size == elements
    assert (np.abs(actual.levels) <= scheme.steps).all()


def test_a_sparse_vector_is_sent_by_its_non_zeros() -> None:
    vector = np.zeros(4096, np.float32)
    vector[[5, 700, 4000]] = 1, -2, 3
    quantized = Qsgd(coding="shorter").quantize(vector, 1)
    assert quantized.sparse
    assert quantized.bits == 1 + quantized.sparse_bits < quantized.packed_bits / 30
    dense = Qsgd(bits=8, bucket=64, coding="shorter").quantize(np.ones(4096), 1)
    assert not dense.sparse
    assert dense.bits == 1 + 4096 * 8 + 64 * 32


def test_operations_of_decoding_and_encoding() -> None:
    scheme = Qsgd(bits=4, bucket=512)
    decoding, encoding = scheme.decode_ops(1025), scheme.encode_ops(1025)
    assert (decoding.multiplies, decoding.conversions, decoding.divisions) == (1025 + 3, 1025, 0)
    assert (encoding.roots, encoding.divisions) == (3, 3)
    assert encoding.total > decoding.total > 3 * 1025


def test_invalid_schemes_and_vectors_raise() -> None:
    with pytest.raises(BadInput, match="bits must be 2 to 16"):
        Qsgd(bits=1)
    with pytest.raises(BadInput, match="bucket must be a positive"):
        Qsgd(bucket=0)
    with pytest.raises(UnknownName, match="did you mean 'sparse'"):
        Qsgd(coding="sparce")
    with pytest.raises(BadInput, match="flatten it"):
        Qsgd().quantize(np.zeros((2, 3)), 0)
    with pytest.raises(BadInput, match="elements 512 to 1023 have no finite norm"):
        Qsgd().quantize(np.concatenate([np.ones(600), [np.nan], np.ones(900)]), 0)
    with pytest.raises(BadInput, match="no finite norm"):
        Qsgd().quantize(np.full(64, 3e38, np.float32), 0)


def test_all_zero_stays_zero() -> None:
    quantized = Qsgd().quantize(np.zeros(700), 3)
    assert isinstance(quantized, Quantized)
    assert not quantized.values().any()
