"""Weights and inputs of a product, expectations, samples; the three engines behind them as arrays of a device."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.rivals.cambricon_x import CambriconX
from trainyard.arrays.rivals.eie import Eie
from trainyard.arrays.rivals.expectation import binomial, expected_maximum, sampled_ratio, step_distribution
from trainyard.arrays.rivals.scnn import Scnn
from trainyard.arrays.rivals.weights_and_inputs import WeightsAndInputs, load, load_cycles, role_assignments
from trainyard.devices import Accelerator
from trainyard.errors import UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, Density, MaskView, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.mapping.tiling import Problem, Supply, evaluate, search


@given(trials=st.integers(1, 60), share=st.floats(0.0, 1.0), width=st.integers(1, 7), among=st.integers(1, 5))
def test_expectations_are_those_of_the_plain_sums(trials, share, width, among):
    likely = [math.comb(trials, hits) * share**hits * (1 - share) ** (trials - hits) for hits in range(trials + 1)]
    np.testing.assert_allclose(binomial(trials, share), likely, atol=1e-12)
    steps = step_distribution(np.array(likely), width)
    assert steps @ np.arange(len(steps)) == pytest.approx(
        sum(p * math.ceil(hits / width) for hits, p in enumerate(likely)), abs=1e-9
    )
    highest = sum(
        steps_high * (steps[: steps_high + 1].sum() ** among - steps[:steps_high].sum() ** among)
        for steps_high in range(len(steps))
    )
    assert expected_maximum(steps, among) == pytest.approx(highest, abs=1e-9)


def test_the_interval_of_a_ratio_holds_the_truth_nineteen_times_in_twenty():
    random = np.random.default_rng(0)
    against = random.integers(50, 150, 10_000)
    found = against * 1.5 + random.normal(0, 20, 10_000)
    truth, held = found.sum() / against.sum(), 0
    for _ in range(400):
        chosen = random.choice(10_000, 12, replace=False)
        value, half = sampled_ratio(found[chosen], against[chosen])
        held += abs(value - truth) <= half
    assert 0.91 < held / 400 < 0.985
    assert sampled_ratio(np.zeros(3), np.zeros(3)) == (1.0, 0.0)


def test_both_operands_may_be_the_weights():
    random = np.random.default_rng(1)
    a, b = random.random((5, 9)) < 0.5, random.random((9, 4)) < 0.5
    first, second = role_assignments(MatMul(5, 4, 9), a, b)
    assert (first.outputs, first.vectors, first.weight_operand, second.outputs, second.vectors, second.weight_operand) == (
        5,
        4,
        "a",
        4,
        5,
        "b",
    )
    assert first.weights == second.inputs == Bitmap.of(a)
    assert first.inputs == second.weights == Bitmap.of(b.T)
    assert first.useful_products == second.useful_products == int((a.astype(int) @ b).sum())
    (mixed,) = role_assignments(MatMul(5, 4, 9), a, Density(0.25), "a")
    assert mixed.weights is None
    assert (mixed.weight_density, mixed.input_density) == (a.mean(), 0.25)
    assert role_assignments(MatMul(5, 4, 9), a, DENSE)[0].inputs == Bitmap.of(np.ones((4, 9)))


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), seed=st.integers(0, 10**6), bandwidth=st.integers(1, 20))
def test_what_is_kept_comes_in_whole(shape, seed, bandwidth):
    random = np.random.default_rng(seed)
    kept = (random.standard_normal(shape) * (random.random(shape) < 0.6)).T
    held, cycles = load(kept, bandwidth, "counted")
    assert np.array_equal(held, kept)
    assert cycles == math.ceil(np.count_nonzero(kept) / bandwidth) == load_cycles(np.count_nonzero(kept), bandwidth, "counted")
    assert load(kept, bandwidth, "left out")[1] == load_cycles(kept.size, bandwidth, "left out") == 0


class Recorded:
    digest = "sides"

    def __init__(self, **tensors):
        self.tensors = tensors

    def bits(self, key):
        if key[2] not in self.tensors:
            raise UnknownName("mask", key[2], self.tensors)
        return self.tensors[key[2]]


ARRAYS = [Eie(elements=64), Scnn(elements=16), CambriconX(elements=16)]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: type(array).__name__)
def test_a_view_counts_like_its_bits(array):
    random = np.random.default_rng(2)
    a, b = random.random((40, 70)) < 0.4, random.random((30, 70)) < 0.6
    masks = Recorded(A=a, W=b)
    left, right = MaskView(masks, ("layer", 0, "A")), MaskView(masks, ("layer", 0, "W"), transposed=True)
    assert array.cost(MatMul(40, 30, 70), a=left, b=right) == array.cost(MatMul(40, 30, 70), a=a, b=b.T)


class AskedTileByTile:
    """An array without closed forms: the search asks it for every tile there is."""

    def __init__(self, array):
        self.cost, self.granule, self.peak_macs_per_cycle = array.cost, array.granule, array.peak_macs_per_cycle


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (96, 2000, 700), (4000, 33, 513), (64, 64, 5000)])
@pytest.mark.parametrize("weights", ["a", "best"])
@pytest.mark.parametrize("array", [*ARRAYS, Scnn(elements=64, channel_parts=16)], ids=["EIE", "SCNN", "Cambricon-X", "K divided"])
def test_with_loading_closed_forms_choose_tiles_like_the_array_itself(array, weights, shape):
    array, supply = replace(array, weights=weights), Supply(resident_bytes=2**19, bytes_per_cycle=1000.0)
    problem = Problem.dense(MatMul(*shape), 2)
    (chosen,), (best,) = (search([problem], one, supply) for one in (array, AskedTileByTile(array)))
    assert 0.98 * best.cycles <= chosen.cycles <= 1.03 * best.cycles  # a descent that asks tile by tile is no complete search
    without = evaluate(problem, chosen.tiling, replace(array, loading="left out"), supply)
    assert without.cycles < chosen.cycles


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: type(array).__name__)
def test_behind_a_scratchpad_zeros_save_cycles_and_energy(array):
    random = np.random.default_rng(3)
    masks = Recorded(A=random.random((96, 256)) < 0.5, W=random.random((128, 256)) < 0.2)
    tensors = (TensorSpec((96, 256)), TensorSpec((128, 256), role=Role.PARAMETER), TensorSpec((96, 128)))
    op = Op(body=MatMul(96, 128, 256), phase=Phase.FORWARD, layer="layer", inputs=(0, 1), outputs=(2,), letters=("A", "W"))
    step = Step(name="one product", batch=1, ops=(op,), tensors=tensors)
    device = Accelerator(array=array, scratchpad="1 MiB", dram="100 GB/s", dram_latency=0, fusion="none")
    (work,) = device.works(step)
    dense, sparse = device.cost(step, work), device.cost(step, work, masks)
    assert dense.compute_cycles >= array.cost(op.body).cycles
    assert sparse.compute_cycles < 0.7 * dense.compute_cycles
    joules = [sum(device.energy(cost.events).values()) for cost in (dense, sparse)]
    assert 0 < joules[1] < joules[0]
    assert device.energy(sparse.events)["local"] > 0


def test_expected_products_are_the_densities_times_all_products():
    shape = {"outputs": 3, "vectors": 5, "depth": 7, "weight_operand": "a", "weights": None, "inputs": None}
    product = WeightsAndInputs(**shape, weight_density=0.5, input_density=0.25)
    assert product.useful_products == pytest.approx(0.5 * 0.25 * 3 * 5 * 7)
    assert (product.weight_count, product.input_count) == (0.5 * 3 * 7, 0.25 * 5 * 7)
