"""EIE: lists, queues and broadcasts at work against the counted cycles; the link of one element per cycle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.rivals.eie import Eie
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Array, Density, MatMul

sizes = st.tuples(st.integers(1, 14), st.integers(1, 4), st.integers(1, 9))
arrays = st.builds(
    Eie,
    elements=st.integers(1, 5),
    queue=st.integers(1, 4),
    index_bits=st.integers(1, 2),
    empty=st.sampled_from([0, 1]),
    bandwidth=st.integers(1, 9),
    loading=st.sampled_from(["counted", "left out"]),
    weights=st.sampled_from(["a", "b", "best"]),
)


def operands(shape, seed, share=0.5):
    random = np.random.default_rng(seed)
    m, n, k = shape
    return [random.standard_normal(size) * (random.random(size) < share) for size in ((m, k), (k, n))]


@given(array=arrays, shape=sizes, seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.4, 0.8, 1.0]))
def test_queues_at_work_take_the_counted_cycles(array, shape, seed, share):
    a, b = operands(shape, seed, share)
    done, cost = array.execute(a, b), array.cost(MatMul(*shape), a=a, b=b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    assert done.cycles == cost.cycles
    assert cost.uncertainty == 0
    assert cost.events["mac"] == np.count_nonzero(a, axis=0) @ np.count_nonzero(b, axis=1)
    assert cost.events["mac"] <= cost.cycles * array.peak_macs_per_cycle


@given(array=arrays, shape=sizes)
def test_dense_operands_follow_the_closed_form(array, shape):
    a, b = (np.ones(size) for size in ((shape[0], shape[2]), (shape[2], shape[1])))
    op = MatMul(*shape)
    assert array.execute(a, b).cycles == array.cost(op, a=a, b=b).cycles == array.cost(op).cycles
    assert array.cost(op).cycles == min(form.cycles(*shape) for form in array.folds)
    assert array.cost(op, a=Density(1.0), b=Density(1.0)) == array.cost(op)


@given(array=arrays, shape=sizes, seed=st.integers(0, 10**6), kept=st.sampled_from([0.3, 0.8]))
def test_fewer_non_zeros_never_take_longer(array, shape, seed, kept):
    """Stored zeros included: one entry less never costs more than one of them."""
    a, b = operands(shape, seed, 0.7)
    fewer_a, fewer_b = operands(shape, seed + 1, kept)
    few = array.cost(MatMul(*shape), a=(a != 0) & (fewer_a != 0), b=(b != 0) & (fewer_b != 0))
    assert few.cycles <= array.cost(MatMul(*shape), a=a, b=b).cycles


def lower_bound(array, weights, vector):
    """A broadcast for each non-zero; and the element with the most weights for them, stored zeros left out."""
    met = np.count_nonzero(weights[:, vector != 0], axis=1)
    return max(np.count_nonzero(vector), *(met[element :: array.elements].sum() for element in range(array.elements)))


@given(shape=sizes, seed=st.integers(0, 10**6), queue=st.integers(1, 9))
def test_the_bounds(shape, seed, queue):
    """Between no waiting for each other at all and waiting after every input."""
    a, b = operands(shape, seed)
    array = Eie(elements=3, queue=queue, weights="a", empty=0, loading="left out")
    found = array.cost(MatMul(*shape), a=a, b=b).cycles
    together = replace(array, queue=1).cost(MatMul(*shape), a=a, b=b).cycles
    assert sum(lower_bound(array, a, vector) for vector in b.T) <= found <= together


@pytest.mark.probe
def test_a_queue_one_shorter_holds_the_fourth_input_back():
    """Element 0 has five weights for input 0, element 1 five for input 3. A queue of three is full until cycle 5."""
    weights = np.zeros((10, 4))
    weights[0::2, 0] = weights[1::2, 3] = 1
    vector = np.ones((4, 1))
    array = Eie(elements=2, weights="a", loading="left out")
    cycles = [replace(array, queue=queue).cost(MatMul(10, 1, 4), a=weights, b=vector).cycles for queue in (3, 4, 5)]
    assert cycles == [10, 8, 8]


@pytest.mark.probe
def test_one_weight_more_than_enter_in_a_cycle_is_loaded_in_another():
    """One input is not zero, so one is broadcast; weights that meet none are loaded all the same."""
    found = {}
    for weights in (256, 257):
        mask = np.zeros((2, 200))
        mask.flat[:weights] = 1
        found[weights] = [
            Eie(weights="a", loading=loading).cost(MatMul(2, 1, 200), a=mask, b=np.eye(200, 1)).cycles
            for loading in ("counted", "left out")
        ]
    assert found == {256: [3, 1], 257: [4, 1]}
    assert Eie(weights="a", bandwidth=257).cost(MatMul(2, 1, 200), a=mask, b=np.eye(200, 1)).cycles == 2


@pytest.mark.probe
def test_the_sixteenth_zero_in_a_row_is_stored():
    """EIE: the field holds up to 15 zeros; with 16 in between there are three entries instead of two."""
    found = []
    for apart in (16, 17):
        weights = np.zeros((20, 1))
        weights[[0, apart], 0] = 1
        array = Eie(elements=1, weights="a", loading="left out")
        found.append(array.cost(MatMul(20, 1, 1), a=weights, b=np.ones((1, 1))).cycles)
    assert found == [2, 3]


def test_more_elements_do_not_scale_past_one_broadcast_a_cycle():
    """The limitation of SIGMA's Table III: from one row an element on, the inputs' non-zeros alone count."""
    a, b = Bitmap.random(1024, 300, nonzero=0.2, seed=1), Bitmap.random(300, 7, nonzero=0.7, seed=2)
    op = MatMul(1024, 7, 300)
    cycles = [Eie(elements=elements, weights="a").cost(op, a=a, b=b).cycles for elements in (64, 256, 1024, 16384)]
    assert cycles[0] > cycles[1] > cycles[2] == cycles[3] == b.nonzeros + -(-a.nonzeros // 128)


@pytest.mark.paper
def test_queues_of_eight_balance_the_load():
    """EIE, Fig. 8, on 64 elements and a layer as full as its AlexNet ones: half the cycles idle at depth 1, little gained past 8.

    Stored zeros keep an element busy and are left out here (wide indices): they are no imbalance.
    """
    a, b = Bitmap.random(4096, 512, nonzero=0.09, seed=1), Bitmap.random(512, 4, nonzero=0.351, seed=2)
    useful = int(a.column_counts() @ b.row_counts())
    array = Eie(elements=64, index_bits=8, weights="a", loading="left out")
    busy = {queue: useful / (64 * replace(array, queue=queue).cost(MatMul(4096, 4, 512), a=a, b=b).cycles) for queue in (1, 8, 256)}
    assert 0.4 < busy[1] < 0.6
    assert busy[8] > 0.9
    assert busy[256] - busy[8] < 0.01


def test_a_sample_of_vectors_carries_an_interval():
    a, b = Bitmap.random(300, 200, nonzero=0.2, seed=3), Bitmap.random(200, 400, nonzero=0.5, seed=4)
    op = MatMul(300, 400, 200)
    array = Eie(elements=64, weights="a", loading="left out")
    whole, part = (replace(array, sample=sample).cost(op, a=a, b=b) for sample in (None, 40))
    assert whole.uncertainty == 0 < part.uncertainty < 0.02 * whole.cycles
    assert abs(part.cycles - whole.cycles) <= 2 * part.uncertainty
    assert part == replace(array, sample=40).cost(op, a=a, b=b)
    loaded = Eie(elements=64, weights="a", sample=40).cost(op, a=a, b=b)
    assert (loaded.cycles - part.cycles, loaded.uncertainty) == (-(-a.nonzeros // 128), part.uncertainty)


@pytest.mark.parametrize("elements", [64, 512])
@pytest.mark.parametrize("density", [(0.2, 0.7), (0.5, 0.1), (1.0, 0.4)])
def test_a_density_is_close_to_random_masks_of_it(elements, density):
    a, b = Bitmap.random(400, 600, nonzero=density[0], seed=5), Bitmap.random(600, 200, nonzero=density[1], seed=6)
    op, array = MatMul(400, 200, 600), Eie(elements=elements, weights="a", loading="left out")
    assert array.cost(op, a=Density(density[0]), b=Density(density[1])).cycles == pytest.approx(
        array.cost(op, a=a, b=b).cycles, rel=0.03
    )
    half, loaded = Density(0.5), Eie(elements=elements, weights="a", bandwidth=5)
    assert loaded.cost(MatMul(4, 5, 6, count=3), a=half).cycles == 3 * loaded.cost(MatMul(4, 5, 6), a=half).cycles
    assert loaded.cost(MatMul(4, 5, 6), a=half).cycles - array.cost(MatMul(4, 5, 6), a=half).cycles == 3  # 12 weights, 5 a cycle


def test_it_is_an_array_and_refuses_what_it_cannot_be():
    assert isinstance(Eie(), Array)
    assert Eie().peak_macs_per_cycle == 16384
    with pytest.raises(BadInput, match="queue must be"):
        Eie(queue=0)
    with pytest.raises(BadInput, match="bandwidth must be"):
        Eie(bandwidth=0)
    with pytest.raises(BadInput, match="empty must be 0 or 1"):
        Eie(empty=2)
    with pytest.raises(BadInput, match="seed must be"):
        Eie(seed=-1)
    with pytest.raises(UnknownName, match="weights"):
        Eie(weights="c")
    with pytest.raises(UnknownName, match="loading"):
        Eie(loading="left")
    with pytest.raises(MaskError, match="one by one"):
        Eie().cost(MatMul(2, 2, 2, count=2), a=np.ones((2, 2)))
    with pytest.raises(MaskError, match="a: a mask of shape"):
        Eie().cost(MatMul(2, 2, 2), a=np.ones((3, 2)))
    with pytest.raises(BadInput, match="do not multiply"):
        Eie().execute(np.ones((2, 3)), np.ones((2, 3)))
