"""Rounding against torch's own types, bit for bit, over every exponent and at every tie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from number_formats import FORMATS, format_of, product, rounded

from trainyard.errors import UnknownName

TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def probes(form):
    """Every number of a narrow format (or a sample of a wide one), the ties between neighbours, and a little beside them."""
    draw = np.random.default_rng(0)
    exponents = np.arange(form.least_exponent - form.significand - 2, min(form.least_exponent + 2**form.exponent, 127))
    fine = 2 ** min(form.significand, 7)
    significands = np.unique(np.r_[1 + np.arange(fine) / fine, draw.random(50) + 1])
    numbers = np.ldexp(significands[:, None], exponents[None, :]).astype(np.float32).ravel()
    step = np.ldexp(1.0, np.frexp(numbers)[1] - 2 - form.significand).astype(np.float32)
    near = np.concatenate([numbers, numbers + step, np.nextafter(numbers + step, 0), np.nextafter(numbers + step, np.inf)])
    near = near[np.isfinite(near)].astype(np.float32)
    return np.concatenate([near, -near, [0.0, -0.0, 464.0, 464.1, 480.0, 61440.0, 65520.0]]).astype(np.float32)


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted(TORCH))
def test_numbers_are_torchs_bit_for_bit(name):
    torch = pytest.importorskip("torch")
    values = np.concatenate([probes(format_of(name)), np.random.default_rng(1).standard_normal(20000).astype(np.float32) * 30])
    theirs = torch.from_numpy(values).to(getattr(torch, TORCH[name])).to(torch.float32).numpy()
    mine = rounded(values, name, saturate=False)
    there = ~np.isnan(mine)
    assert np.all(np.isnan(theirs[~there]) | (np.abs(theirs[~there]) == 448))  # torch has done either
    assert np.all(np.abs(values[~there]) > 464)
    assert np.array_equal(mine[there].view(np.uint32), theirs[there].view(np.uint32))


@given(st.floats(width=32, allow_nan=False), st.sampled_from(sorted(FORMATS)))
def test_rounding_twice_changes_nothing_and_saturates(value, name):
    once = rounded([value], name)
    assert np.array_equal(once, rounded(once, name))
    assert abs(once[0]) <= format_of(name).largest
    if abs(value) <= format_of(name).largest:
        assert abs(float(once[0]) - value) <= max(abs(value) * 2.0 ** -(format_of(name).significand + 1), 2.0**-24)


def test_smallest_and_largest_numbers_of_the_fp8_paper():
    """Table 1: e4m3 448, subnormal 2^-9; e5m2 57344, subnormal 2^-16."""
    assert rounded([1e9, 2.0**-9, 2.0**-10, 2.0**-11], "fp8_e4m3").tolist() == [448.0, 2.0**-9, 0.0, 0.0]
    assert rounded([1e9, 2.0**-16, 1.5 * 2.0**-17], "fp8_e5m2").tolist() == [57344.0, 2.0**-16, 2.0**-16]
    assert np.isinf(rounded([1e9], "fp8_e5m2", saturate=False)[0])
    assert np.isnan(rounded([1e9], "fp8_e4m3", saturate=False)[0])


def test_a_product_of_rounded_operands_adds_up_in_fp32():
    draw = np.random.default_rng(2)
    a, b = draw.standard_normal((9, 40)), draw.standard_normal((40, 5))
    found = product(a, b, "fp8_e4m3", "fp8_e5m2")
    assert found.dtype == np.float32
    exact = rounded(a, "fp8_e4m3").astype(np.float64) @ rounded(b, "fp8_e5m2").astype(np.float64)
    assert np.allclose(found, exact, rtol=1e-5, atol=1e-5)
    assert not np.allclose(found, a @ b, rtol=1e-3)


def test_unknown_formats_are_refused_by_name():
    with pytest.raises(UnknownName, match="bf16"):
        rounded([1.0], "bf15")
