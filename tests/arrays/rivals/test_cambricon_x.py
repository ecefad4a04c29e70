"""Cambricon-X: trees at work against the counted cycles; one output per tree at a time, dense inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.rivals.cambricon_x import CambriconX
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Array, Density, MatMul

sizes = st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 20))
arrays = st.builds(
    CambriconX,
    elements=st.integers(1, 5),
    leaves=st.integers(1, 5),
    bandwidth=st.integers(1, 9),
    loading=st.sampled_from(["counted", "left out"]),
    waits=st.sampled_from(["round", "vector"]),
    weights=st.sampled_from(["a", "b", "best"]),
)


def operands(shape, seed, share=0.5):
    random = np.random.default_rng(seed)
    m, n, k = shape
    return [random.standard_normal(size) * (random.random(size) < share) for size in ((m, k), (k, n))]


def plain(array, weights, vectors):
    """The rule in words: all weights come in, then outputs in turn on the elements, each a whole number of trees."""
    return loading(array, weights) + vectors * vector_cycles(array, weights)


def loading(array, weights):
    return -(-int(np.count_nonzero(weights)) // array.bandwidth) if array.loading == "counted" else 0


def vector_cycles(array, weights):
    each = [-(-int(np.count_nonzero(row)) // array.leaves) for row in weights]
    if array.waits == "round":
        return sum(max(each[first : first + array.elements]) for first in range(0, len(each), array.elements))
    return max(sum(each[element :: array.elements]) for element in range(array.elements))


@given(array=arrays, shape=sizes, seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.4, 0.8, 1.0]))
def test_trees_at_work_take_the_counted_cycles(array, shape, seed, share):
    a, b = operands(shape, seed, share)
    done, cost = array.execute(a, b), array.cost(MatMul(*shape), a=a, b=b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    ways = {"a": plain(array, a, shape[1]), "b": plain(array, b.T, shape[0])}
    assert done.cycles == cost.cycles == (min(ways.values()) if array.weights == "best" else ways[array.weights])
    assert cost.events["mac"] <= cost.cycles * array.peak_macs_per_cycle


@given(array=arrays, shape=sizes)
def test_dense_operands_follow_the_closed_form(array, shape):
    op = MatMul(*shape)
    a, b = np.ones((op.M, op.K)), np.ones((op.K, op.N))
    assert array.execute(a, b).cycles == array.cost(op, a=a, b=b).cycles == array.cost(op).cycles
    without = replace(array, loading="left out")
    assert without.cost(op).cycles == min(form.cycles(*shape) for form in without.folds)
    deep = MatMul(op.M, op.N, op.K * array.leaves)
    assert array.loading == "left out" or array.cost(deep).cycles == min(
        form.cycles(deep.M, deep.N, deep.K) for form in array.guides
    )


@given(array=arrays, shape=sizes, seed=st.integers(0, 10**6))
def test_fewer_weights_never_take_longer_and_zeros_of_inputs_change_nothing(array, shape, seed):
    a, b = operands(shape, seed, 0.7)
    fewer = operands(shape, seed + 1, 0.6)
    op = MatMul(*shape)
    assert array.cost(op, a=(a != 0) & (fewer[0] != 0), b=b).cycles <= array.cost(op, a=a, b=b).cycles
    one = replace(array, weights="a")
    assert one.cost(op, a=a, b=b) == one.cost(op, a=a)


@pytest.mark.probe
def test_one_weight_more_than_the_tree_has_leaves_takes_another_cycle():
    """The limitation of SIGMA's Table III: fifteen leaves stay idle, though other outputs wait."""
    array = CambriconX(elements=1, weights="a", loading="left out")
    cycles = []
    for weights in (16, 17):
        mask = np.zeros((4, 64))
        mask[:, :weights] = 1
        cycles.append(array.cost(MatMul(4, 1, 64), a=mask).cycles)
    assert cycles == [4, 8]


@pytest.mark.probe
def test_one_weight_more_than_enter_in_a_cycle_is_loaded_in_another():
    """Seventeen trees of one output, whether 257 or 258 weights."""
    found = []
    for weights in (256, 257, 258):
        cost = CambriconX(weights="a").cost(MatMul(1, 1, 300), a=np.arange(300)[None] < weights)
        found.append(cost.cycles)
    assert found == [16 + 2, 17 + 3, 17 + 3]
    assert CambriconX(weights="a", bandwidth=257).cost(MatMul(1, 1, 300), a=np.arange(300)[None] < 257).cycles == 17 + 1


@pytest.mark.parametrize("waits", ["round", "vector"])
@pytest.mark.parametrize("density", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("outputs", [100, 128, 500])
def test_a_density_is_close_to_random_masks_of_it(waits, density, outputs):
    array, op = CambriconX(elements=64, waits=waits, weights="a", loading="left out"), MatMul(outputs, 10, 1000)
    found = [array.cost(op, a=Bitmap.random(outputs, 1000, nonzero=density, seed=seed)).cycles for seed in range(100)]
    expected = array.cost(op, a=Density(density)).cycles
    assert expected == pytest.approx(np.mean(found), rel=0.02)
    loaded = replace(array, loading="counted").cost(op, a=Density(density)).cycles
    assert loaded - expected == -(-round(density * outputs * 1000) // 128)


def test_it_is_an_array_and_refuses_what_it_cannot_be():
    assert isinstance(CambriconX(), Array)
    assert CambriconX().peak_macs_per_cycle == 16384
    half = Density(0.5)
    assert CambriconX().cost(MatMul(4, 5, 60, count=3), a=half).cycles == 3 * CambriconX().cost(MatMul(4, 5, 60), a=half).cycles
    with pytest.raises(BadInput, match="leaves must be"):
        CambriconX(leaves=0)
    with pytest.raises(BadInput, match="bandwidth must be"):
        CambriconX(bandwidth=0)
    with pytest.raises(UnknownName, match="waits"):
        CambriconX(waits="never")
    with pytest.raises(UnknownName, match="weights"):
        CambriconX(weights="c")
    with pytest.raises(UnknownName, match="loading"):
        CambriconX(loading="never")
    with pytest.raises(MaskError, match="one by one"):
        CambriconX().cost(MatMul(2, 2, 2, count=2), b=np.ones((2, 2)))
    with pytest.raises(BadInput, match="do not multiply"):
        CambriconX().execute(np.ones((2, 3)), np.ones((2, 3)))


def test_a_round_more_reads_the_inputs_once_more():
    array = CambriconX(elements=4, weights="a")
    reads = {outputs: array.cost(MatMul(outputs, 3, 64)).events["scratchpad_read_b"] for outputs in (3, 4, 5, 8, 9)}
    assert reads == {3: 192, 4: 192, 5: 2 * 192, 8: 2 * 192, 9: 3 * 192}
