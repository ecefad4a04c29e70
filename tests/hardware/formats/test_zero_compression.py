"""Zero compression: the exact way back, the closed form of its size, and when it does not pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from trainyard.errors import BadInput
from trainyard.hardware.formats.zero_compression import WINDOW, compressed_bytes, decode, encode

numbers = st.sampled_from(["f2", "f4", "f8", "i1", "u2", "i8", "?", "c8", ">f4", "S3", "f4,i2"])
shapes = numpy_strategies.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)


@st.composite
def tensors(draw):
    """Any bits at all (NaN, negative zeros, subnormals), then zeros put over a share of them."""
    dtype, shape = np.dtype(draw(numbers)), draw(shapes)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    octets = random.integers(0, 2 if dtype == np.bool_ else 256, (int(np.prod(shape)), dtype.itemsize), dtype=np.uint8)
    octets[random.random(len(octets)) < draw(st.sampled_from([0.0, 0.5, 0.97, 1.0]))] = 0
    return octets.reshape(-1).view(dtype).reshape(shape)


def windows_one_by_one(octets):
    """The plain twin: bytes of each window, bit after bit."""
    actual = bytearray()
    for start in range(0, len(octets), WINDOW):
        window = octets[start : start + WINDOW]
        mask = sum(1 << place for place, element in enumerate(window) if any(element))
        actual += mask.to_bytes(-(-len(window) // 8), "little")
        for element in window:
            actual += bytes(element) if any(element) else b""
    return bytes(actual)


@pytest.mark.oracle
@given(values=tensors())
def test_encoding_round_trips_and_has_the_size_of_the_closed_form(values):
    stored = encode(values)
    actual = decode(stored)
    assert actual.dtype == values.dtype
    assert actual.shape == values.shape
    assert actual.tobytes() == values.tobytes()
    octets = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, values.dtype.itemsize)
    assert len(stored) == compressed_bytes(values.size, int(octets.any(axis=1).sum()), values.dtype.itemsize)
    assert len(stored) <= values.nbytes
    if stored.compressed:
        assert stored.data == windows_one_by_one(octets)
    else:
        assert len(windows_one_by_one(octets)) >= values.nbytes


def test_a_negative_zero_is_not_lost():
    values = np.full(64, -0.0, np.float32)
    values[1::2] = 0.0
    assert np.signbit(decode(encode(values))).tolist() == np.signbit(values).tolist()


@pytest.mark.probe
@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_compression_stops_where_the_mask_costs_more_than_the_zeros_save(element_bytes):
    """1024 elements have a mask of 128 bytes: 128 / s zeros pay for it exactly, one more is a gain."""
    even = 128 // element_bytes
    assert compressed_bytes(1024, 1024 - even, element_bytes) == 1024 * element_bytes
    assert compressed_bytes(1024, 1024 - even - 1, element_bytes) == 1023 * element_bytes
    values = np.ones(1024, f"u{element_bytes}")
    values[:even] = 0
    assert not encode(values).compressed
    values[even] = 0
    assert encode(values).compressed


@pytest.mark.parametrize(("elements", "mask"), [(1, 1), (8, 1), (9, 2), (31, 4), (32, 4), (33, 5), (64, 8)])
def test_the_mask_of_a_partial_window_is_whole_bytes(elements, mask):
    assert len(encode(np.zeros(elements, np.float64))) == mask


@given(elements=st.integers(0, 5000), data=st.data(), size=st.sampled_from([1, 2, 4, 8]))
def test_fewer_non_zeros_never_take_more_bytes(elements, data, size):
    nonzero = data.draw(st.integers(0, elements))
    assert compressed_bytes(elements, max(0, nonzero - 1), size) <= compressed_bytes(elements, nonzero, size) <= elements * size


def test_bytes_that_are_no_tensor_raise():
    stored = encode(np.r_[np.zeros(40), 1.0])
    for damaged in (stored.data[:-1], stored.data + b"\0", stored.data[:3], b""):
        with pytest.raises(BadInput, match="are not a tensor"):
            decode(replace(stored, data=damaged))
    with pytest.raises(BadInput, match="are not a tensor"):
        decode(replace(encode(np.ones(4)), data=b"123"))
    with pytest.raises(BadInput, match="give numbers"):
        encode(np.array([None, 1], dtype=object))
    with pytest.raises(BadInput, match="that cannot be"):
        compressed_bytes(4, 5, 4)
