"""Footprints of whole tensors: each form against bytes that are really written, both orders of use, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.prescheduled import encode, store
from trainyard.arrays.tensordash.footprints import FORMS, KINDS, activation_orders, footprint, weight_orders
from trainyard.arrays.tensordash.scheduler import Scheduler, pack
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats import zero_compression

START_BITS = 32
shapes = st.tuples(st.integers(1, 12), st.integers(1, 20))
units = st.sampled_from([Scheduler(), Scheduler(depth=2), Scheduler(lanes=16, depth=3), Scheduler(lanes=3, depth=5)])
shares = st.sampled_from([0.0, 0.4, 0.8, 1.0])


def streams(seed: int, shape: tuple[int, int], lanes: int, zeros: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(1, 2**15, (*shape, lanes)).astype(np.uint16)
    values[random.random(values.shape) < zeros] = 0
    return values


@given(seed=st.integers(0, 999), shape=shapes, unit=units, zeros=shares)
def test_pre_scheduled_bits_are_the_bytes_of_the_store(seed, shape, unit, zeros):
    values = streams(seed, shape, unit.lanes, zeros)
    found = footprint(pack(values), shape[1], unit)
    for form in FORMS:
        assert found.bits[form] == 8 * len(store(values, unit, form))
    assert found.cycles == sum(encode(stream, unit).cycles for stream in values)
    assert (found.nonzeros, found.elements) == (np.count_nonzero(values), values.size)


@given(seed=st.integers(0, 999), shape=shapes, unit=units, zeros=shares, rows=st.integers(1, 5))
def test_row_groups_too_the_last_one_filled_with_empty_rows(seed, shape, unit, zeros, rows):
    values = streams(seed, shape, unit.lanes, zeros)
    found = footprint(pack(values), shape[1], unit, rows=rows)
    groups = np.zeros((-(-shape[0] // rows) * rows, *values.shape[1:]), values.dtype)
    groups[: shape[0]] = values
    groups = groups.reshape(-1, rows, *values.shape[1:])
    for form in FORMS:
        assert found.bits[form] == 8 * len(store(groups, unit, form))


@pytest.mark.oracle
@given(seed=st.integers(0, 999), shape=shapes, unit=units, zeros=shares)
def test_the_other_forms_are_what_they_would_be_written(seed, shape, unit, zeros):
    values = streams(seed, shape, unit.lanes, zeros)
    found = footprint(pack(values), shape[1], unit)
    assert found.bits["dense"] == 8 * values.nbytes
    bitmap = csr = 0
    for stream in values:
        flat = stream.reshape(-1)
        mask = np.packbits(flat != 0).tobytes()
        bitmap += START_BITS + 8 * (len(mask) + flat[flat != 0].nbytes)
        index_width = len(format(flat.size - 1, "b")) if flat.size > 1 else 0
        text = "".join(
            format(place, f"0{index_width}b") * (index_width > 0) + format(flat[place], "016b") for place in np.flatnonzero(flat)
        )
        csr += START_BITS + 8 * -(-len(text) // 8)
        assert zero_compression.compressed_bytes(flat.size, np.count_nonzero(flat), 2) == min(
            flat.nbytes, len(mask) + flat[flat != 0].nbytes
        )
    assert (found.bits["bitmap"], found.bits["csr"]) == (bitmap, csr)


def test_a_row_group_stores_one_advance_but_more_rows():
    unit, values = Scheduler(), streams(1, (64, 200), 4, 0.6)
    alone, together = footprint(pack(values), 200, unit), footprint(pack(values), 200, unit, rows=4)
    assert together.cycles * 4 > alone.cycles  # the slowest row's AS
    assert together.bits["padded"] > alone.bits["padded"]


def test_ratios_at_known_sparsities_and_footprints_add():
    unit = Scheduler()
    sparse = footprint(pack(streams(2, (50, 256), 4, 0.9)), 256, unit)
    assert sparse.ratio("padded") < 4 < sparse.ratio("bitmap") < sparse.ratio("gapless")  # padded: depth at most
    assert sparse.smallest == "gapless"
    dense = footprint(pack(streams(2, (50, 256), 4, 0.0)), 256, unit)
    assert dense.ratio("padded") == pytest.approx(16 / (19 + 0.5), rel=0.005)
    assert dense.smallest == "dense"
    both = sparse + dense
    assert all(both.bits[kind] == sparse.bits[kind] + dense.bits[kind] for kind in KINDS)
    assert both.sparsity == pytest.approx(0.45, abs=0.01)
    with pytest.raises(UnknownName, match="did you mean 'gapless'"):
        dense.ratio("gaples")


@given(seed=st.integers(0, 99), samples=st.integers(1, 3), channels=st.integers(1, 19), positions=st.integers(1, 19), unit=units)
def test_both_orders_of_an_activation_hold_the_same_values(seed, samples, channels, positions, unit):
    nonzero = np.random.default_rng(seed).random((samples, channels, positions)) < 0.4
    orders = activation_orders(nonzero, unit)
    assert orders.first.nonzeros == orders.second.nonzeros == nonzero.sum()
    assert orders.first.elements == orders.second.elements == nonzero.size
    assert (orders.first.streams, orders.second.streams) == (samples * positions, samples * channels)
    by_hand = 0
    for sample in nonzero:
        for column in sample.T:
            stream = np.zeros((-(-channels // unit.lanes), unit.lanes), np.uint16)
            stream.reshape(-1)[:channels] = column
            by_hand += START_BITS + 8 * len(encode(stream, unit).to_bytes("padded"))
    assert orders.first.bits["padded"] == by_hand
    assert orders.both["padded"] == orders.first.bits["padded"] + orders.second.bits["padded"]
    assert orders.both["bitmap"] == orders.first.bits["bitmap"]


@given(seed=st.integers(0, 99), filters=st.integers(1, 9), channels=st.integers(1, 9), taps=st.sampled_from([1, 9]), unit=units)
def test_weights_are_streams_of_filters_and_of_channels(seed, filters, channels, taps, unit):
    nonzero = np.random.default_rng(seed).random((filters, channels, taps)) < 0.3
    orders = weight_orders(nonzero, unit)
    steps = -(-channels // unit.lanes)
    by_hand = 0
    for kernel in nonzero:
        stream = np.zeros((taps, steps * unit.lanes), np.uint16)
        stream[:, :channels] = kernel.T
        by_hand += START_BITS + 8 * len(encode(stream.reshape(-1, unit.lanes), unit).to_bytes())
    assert orders.first.bits["gapless"] == by_hand
    turned = weight_orders(nonzero.transpose(1, 0, 2), unit)
    assert (turned.first, turned.second) == (orders.second, orders.first)


def test_the_other_order_costs_an_expansion_and_the_transposers():
    nonzero = np.random.default_rng(3).random((2, 64, 196)) < 0.4
    orders = activation_orders(nonzero, Scheduler())
    price = orders.expansion()
    assert (price.rows_read, price.rows_written) == (orders.first.cycles, 2 * 196 * 16)
    assert price.decompress_cycles() == price.rows_read < price.rows_written == price.decompress_cycles(ports="one")
    assert (price.groups, price.transpose_cycles) == (2 * 16 * 49, 4 * (2 * 16 * 49 + 1))
    assert orders.expansion("second").rows_written == 2 * 64 * 49
    assert orders.both["gapless"] > orders.first.bits["dense"]  # at 60 % both copies take more than the dense tensor


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(BadInput, match="cannot have 9 elements"):
        footprint(pack(np.ones((1, 2, 4))), 2, Scheduler(), elements=9)
    with pytest.raises(BadInput, match=r"give activations \[samples, channels, positions\]"):
        activation_orders(np.ones((3, 4)), Scheduler())
