"""The AGAU: cycles, sums and events against registers clocked one by one; sums against numpy; what it takes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracles.agau_pipeline import Pipeline
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau.unit import Agau, scale
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, MUX_UM2, cells_joules
from trainyard.ir import assumptions_of

LIMIT = 100_000


def clocked(agau, rows, average=False, cycles=None):
    pipeline = Pipeline(agau, rows, average)
    while not pipeline.done if cycles is None else pipeline.cycle < cycles:
        pipeline.step()
        assert pipeline.cycle < LIMIT
        assert 4 * sum(len(words) for words in pipeline._buffer.values()) <= agau.buffer_bytes
    return pipeline


def random_numbers(seed, shape, number):
    random = np.random.default_rng(seed)
    if number == "int32":
        return random.integers(-(2**31), 2**31, shape, np.int32)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 6, shape)).astype(np.float32)


agaus = st.builds(
    Agau,
    width_bits=st.sampled_from([32, 64, 256]),
    inputs=st.integers(2, 9),
    ports=st.sampled_from([None, 1, 2, 3]),
    adder_cycles=st.integers(1, 5),
    multiplier_cycles=st.integers(1, 4),
    buffer_bytes=st.sampled_from([32, 64, 256]),
    number=st.sampled_from(["fp32", "int32"]),
)


@pytest.mark.oracle
@settings(deadline=None, max_examples=100)
@given(agaus, st.integers(1, 24), st.integers(1, 50), st.booleans(), st.integers(0, 2**32))
def test_cycles_sums_and_events_equal_the_clocked_registers(agau, contributions, elements, average, seed):
    rows = random_numbers(seed, (contributions, elements), agau.number)
    pipeline = clocked(agau, rows, average)
    assert pipeline.cycle == agau.cycles(contributions, elements, average=average)
    assert np.array_equal(pipeline.sums.view(np.int32), agau.reduce(rows, average=average).view(np.int32))  # bit for bit
    for event, count in agau.events(contributions, elements, average=average).items():
        assert pipeline.counts[event] == count, event


@pytest.mark.probe
@settings(deadline=None, max_examples=60)
@given(agaus, st.integers(1, 20), st.integers(1, 40), st.booleans())
def test_one_cycle_early_the_last_sum_is_not_there(agau, contributions, elements, average):
    rows = random_numbers(1, (contributions, elements), agau.number)
    cycles = agau.cycles(contributions, elements, average=average)
    early, on_time = clocked(agau, rows, average, cycles - 1), clocked(agau, rows, average, cycles)
    assert on_time.done
    assert not early.done
    assert len(on_time.result) - len(early.result) == 1


@given(st.integers(2, 70), st.integers(1, 300), st.sampled_from([2, 3, 8, 64]), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_sums_equal_numpys_within_rounding(contributions, elements, inputs, seed):
    rows = random_numbers(seed, (contributions, elements), "fp32")
    exact, size = rows.astype(np.float64).sum(axis=0), np.abs(rows).astype(np.float64).sum(axis=0)
    agau = Agau(inputs=inputs)
    depth = agau.depth * agau.rounds(contributions)  # additions that an element goes through at most
    assert (np.abs(agau.reduce(rows) - exact) <= depth * 2.0**-24 * size * 1.01).all()
    whole = random_numbers(seed, (contributions, elements), "int32")
    assert np.array_equal(Agau(inputs=inputs, number="int32").reduce(whole), whole.sum(axis=0, dtype=np.int32))


@given(st.integers(1, 3000), st.integers(-(2**31), 2**31 - 1))
def test_the_mean_is_within_a_unit_of_the_exact_one(contributions, total):
    mean = int(scale(np.array([total], np.int32), contributions)[0])
    assert abs(mean - total / contributions) <= 0.5 + abs(total) / 2**33
    assert scale(np.array([total], np.float32), contributions)[0] == pytest.approx(np.float32(total) / contributions, rel=2e-7)


def test_means_of_powers_of_two_are_exact():
    rows = random_numbers(3, (64, 1000), "fp32")
    agau = Agau()
    assert np.array_equal(agau.reduce(rows, average=True), agau.reduce(rows) / np.float32(64))


def test_cycles_equal_the_formula_of_one_and_of_many_rounds():
    agau = Agau(inputs=8, adder_cycles=3, buffer_bytes=4096)
    assert agau.cycles(8, 80) == 10 + 3 * 3  # beats and log2(8) adders
    assert agau.cycles(2, 80) == agau.cycles(8, 80)  # the tree is as deep for two
    assert agau.cycles(9, 80) == 10 + 10 + 9  # a second round
    assert agau.cycles(9, 8) == 1 + 9 + 9  # of one beat: it waits for the first round's sum
    assert agau.cycles(8, 80, average=True) - agau.cycles(8, 80) == agau.multiplier_cycles
    assert replace(agau, ports=1).cycles(8, 80) == 8 * 10 + 9
    assert agau.bytes_per_s == 32 * agau.clock_hz
    assert agau.shares(64) == (8, *(7,) * 8)


@given(agaus, st.integers(1, 100), st.integers(1, 5000))
def test_more_work_never_takes_fewer_cycles_and_more_hardware_never_more(agau, contributions, elements):
    cycles = agau.cycles(contributions, elements)
    assert agau.cycles(contributions + 1, elements) >= cycles
    assert agau.cycles(contributions, elements + 1) >= cycles
    assert replace(agau, adder_cycles=agau.adder_cycles + 1).cycles(contributions, elements) > cycles
    assert replace(agau, ports=(agau.ports or agau.inputs) + 1).cycles(contributions, elements) <= cycles
    assert replace(agau, buffer_bytes=2 * agau.buffer_bytes).cycles(contributions, elements) <= cycles
    beats = -(-elements // agau.lanes)
    assume(agau.ports is None)
    assert cycles >= agau.rounds(contributions) * beats  # no faster than its inputs


def test_depth_grows_as_the_logarithm():
    depths = [Agau(inputs=inputs).depth for inputs in (2, 3, 4, 5, 8, 9, 64)]
    assert depths == [1, 2, 2, 3, 3, 4, 6]


def test_a_large_gradient_is_summed_at_the_speed_of_memory():
    rows = np.ones((64, 500_000), np.float32)
    start = time.perf_counter()
    assert (Agau().reduce(rows) == 64).all()
    assert time.perf_counter() - start < 5  # 32 million additions; plain Python takes far longer


def test_rows_may_be_slices_of_a_larger_array_and_are_left_alone():
    rows = random_numbers(4, (40, 200), "fp32")
    kept = rows.copy()
    assert np.array_equal(Agau().reduce(rows[::2, 1::2]), Agau().reduce(np.ascontiguousarray(rows[::2, 1::2])))
    assert np.array_equal(rows, kept)


def test_energy_area_and_power_by_component():
    agau = Agau()
    assert set(agau.events(64, 4096, average=True)) | {"agau_cache_byte", "agau_directory_access"} == set(agau.joules)
    assert set(agau.busy_w) < set(agau.joules)
    assert all(joules > 0 for joules in agau.joules.values())
    assert all(area > 0 for area in agau.areas.values())
    wide = replace(agau, inputs=64)
    assert wide.areas["agau_adder"] == pytest.approx(agau.areas["agau_adder"] * 63 / 7)
    assert wide.static_w > agau.static_w
    assert replace(agau, number="int32").joules["agau_add"] < agau.joules["agau_add"] / 5
    total_mm2, total_w = sum(agau.areas.values()) * 1e6, sum(agau.busy_w.values()) + agau.static_w
    print(f"AGAU: {total_mm2:.3f} mm2, {total_w * 1e3:.0f} mW at work; the paper adds 0.09 mm2 and 20 mW, or 0.51 mm2 and 205 mW")
    assert 0.1 < total_mm2 < 1.0
    assert 0.01 < total_w < 1.0


def test_area_is_the_cells_of_every_lane():
    """Two lanes of eight inputs: a tree of seven adders of three cycles each, one multiplier of two."""
    agau = Agau(inputs=8, width_bits=64, adder_cycles=3, multiplier_cycles=2, technology_nm=45)
    words = 2 * (8 + 7 * 3 + 2)  # input latches, pipeline registers of the adders and of the multiplier
    assert agau.areas["agau_register"] == pytest.approx(words * 32 * FLIP_FLOP_UM2 * 1e-12, rel=1e-6, abs=0.0)
    assert agau.areas["agau_bypass"] == pytest.approx(2 * 7 * 32 * MUX_UM2 * 1e-12, rel=1e-6, abs=0.0)
    assert replace(agau, width_bits=128).areas["agau_multiplier"] == pytest.approx(
        2 * agau.areas["agau_multiplier"], rel=1e-6, abs=0.0
    )
    assert agau.joules["agau_register"] == pytest.approx(cells_joules(32 * FLIP_FLOP_UM2, 45), rel=1e-6, abs=0.0)


def test_assumptions_are_named():
    assert {"clock_hz", "inputs", "ports", "adder_cycles", "buffer_bytes"} <= {row.name for row in assumptions_of(Agau())}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": 1}, "inputs=2 or more"),
        ({"width_bits": 100}, "whole words of 32 bits"),
        ({"buffer_bytes": 100}, "whole beats"),
        ({"number": "fp64"}, "fp32, int32"),
        ({"cache_bytes": 100}, "whole sets"),
        ({"ports": 0}, "positive whole number"),
    ],
)
def test_invalid_fields_raise(fields, words):
    with pytest.raises((BadInput, UnknownName), match=words):
        Agau(**fields)


def test_invalid_arrays_raise():
    with pytest.raises(BadInput, match="astype"):
        Agau().reduce(np.ones((2, 3)))
    with pytest.raises(BadInput, match=r"\[contributions, elements\]"):
        Agau().reduce(np.ones(3, np.float32))
    with pytest.raises(BadInput, match="contributions"):
        Agau().cycles(0, 8)
    with pytest.raises(BadInput, match="elements"):
        Agau().cycles(8, 0)
