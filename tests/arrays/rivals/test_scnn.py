"""SCNN: Cartesian products and banks at work against the counted cycles; positions and parts of K over the elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays.rivals.scnn import Scnn
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Array, Density, MatMul

sizes = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 7))


@st.composite
def arrays(draw):
    """Few accumulators, so that there are several groups and rounds."""
    wide, high, parts = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    return Scnn(
        elements=parts * draw(st.integers(1, 3)),
        wide=wide,
        high=high,
        banks=wide * high * draw(st.sampled_from([1, 2])),
        bank_entries=draw(st.sampled_from([1, 2, 32])),
        bandwidth=draw(st.integers(1, 9)),
        loading=draw(st.sampled_from(["counted", "left out"])),
        queue=draw(st.integers(0, 3)),
        broadcast=draw(st.booleans()),
        channel_parts=parts,
        link_sums=draw(st.integers(1, 3)),
        weights=draw(st.sampled_from(["a", "b", "best"])),
        sample=None,
    )


def operands(shape, seed, share=0.5):
    random = np.random.default_rng(seed)
    m, n, k = shape
    return [random.standard_normal(size) * (random.random(size) < share) for size in ((m, k), (k, n))]


@settings(max_examples=60)
@given(array=arrays(), shape=sizes, seed=st.integers(0, 10**6), share=st.sampled_from([0.2, 0.5, 0.8]))
def test_products_at_work_take_the_counted_cycles(array, shape, seed, share):
    a, b = operands(shape, seed, share)
    done, cost = array.execute(a, b), array.cost(MatMul(*shape), a=a, b=b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    assert done.cycles == cost.cycles
    assert cost.uncertainty == 0
    assert cost.events["mac"] <= cost.cycles * array.peak_macs_per_cycle
    assert array.steps(MatMul(*shape), a=a, b=b) <= cost.cycles


@given(array=arrays(), shape=sizes)
def test_dense_operands_follow_the_closed_form(array, shape):
    op = MatMul(*shape)
    a, b = np.ones((op.M, op.K)), np.ones((op.K, op.N))
    assert array.execute(a, b).cycles == array.cost(op, a=a, b=b).cycles == array.cost(op).cycles == array.steps(op)
    without = replace(array, loading="left out")
    assert without.cost(op).cycles == min(form.cycles(*shape) for form in without.folds)


@given(array=arrays(), shape=sizes, weights=st.sampled_from(["a", "b"]))
def test_guides_hold_the_whole_elements_and_no_less_than_the_cycles(array, shape, weights):
    """Where K is not divided: never too low, and exact for as many positions as there is room for, entering in whole cycles."""
    array = replace(array, loading="counted", weights=weights, channel_parts=1)
    assert not array.folds
    m, n, k = shape
    assert array.cost(MatMul(m, n, k)).cycles <= min(form.cycles(m, n, k) for form in array.guides)
    room = array.elements * array.high
    exact, full = replace(array, bandwidth=room), (m, room, k) if weights == "a" else (room, n, k)
    assert exact.cost(MatMul(*full)).cycles == min(form.cycles(*full) for form in exact.guides)


def plain(array, weights, inputs):
    """Loading, then steps by the rule in words, of one part of K."""
    total = -(-int(np.count_nonzero(inputs)) // array.bandwidth) if array.loading == "counted" else 0
    for cut in array.rounds(len(weights), len(inputs)):
        for top in range(0, len(weights), cut.group):
            vectors = [-(-int(count) // array.wide) for count in np.count_nonzero(weights[top : top + cut.group], axis=0)]
            busy = [sum(vectors)] if array.broadcast else [0]
            for first in range(*cut.positions, cut.positions_each):
                own = np.count_nonzero(inputs[first : min(first + cut.positions_each, cut.positions[1])], axis=0)
                busy.append(sum(v * -(-int(count) // array.high) for v, count in zip(vectors, own, strict=True)))
            total += max(busy)
    return total


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 200)),
    seed=st.integers(0, 10**6),
    cast=st.booleans(),
    loading=st.sampled_from(["counted", "left out"]),
)
def test_steps_are_those_of_the_plain_rule(shape, seed, cast, loading):
    a, b = operands(shape, seed)
    array = Scnn(elements=3, bank_entries=2, weights="a", broadcast=cast, bandwidth=7, loading=loading)
    assert array.steps(MatMul(*shape), a=a, b=b) == plain(array, a, b.T)


@given(array=arrays(), shape=sizes, seed=st.integers(0, 10**6))
def test_fewer_non_zeros_never_take_more_steps(array, shape, seed):
    """Of conflicts that does not hold: other products meet."""
    a, b = operands(shape, seed, 0.7)
    fewer_a, fewer_b = operands(shape, seed + 1, 0.6)
    op = MatMul(*shape)
    assert array.steps(op, a=(a != 0) & (fewer_a != 0), b=(b != 0) & (fewer_b != 0)) <= array.steps(op, a=a, b=b)


@pytest.mark.probe
def test_two_products_for_one_bank_wait_or_queue():
    """Outputs 0 and 8 share bank 0 (4 x 8 = 32); the second channel's product goes to bank 4."""
    weights = np.zeros((9, 2))
    weights[[0, 8], 0] = weights[1, 1] = 1
    op, inputs = MatMul(9, 1, 2), np.ones((2, 1))
    array = Scnn(queue=0, weights="a", sample=None, loading="left out")
    cycles = [replace(array, queue=queue).cost(op, a=weights, b=inputs).cycles for queue in (0, 1)]
    assert cycles == [3, 2]
    weights[8, 0], weights[7, 0] = 0, 1  # bank 28: nothing to wait for
    assert array.cost(op, a=weights, b=inputs).cycles == 2


@pytest.mark.probe
def test_one_input_more_than_enter_in_a_cycle_is_loaded_in_another():
    """Positions lie in the elements, 256 or 257 of them: one in each. Weights are broadcast and load nothing, 900 of them."""
    op, weights = MatMul(900, 300, 1), np.ones((900, 1))
    array = Scnn(weights="a", sample=None)
    without = replace(array, loading="left out").cost(op, a=weights).cycles
    found = [array.cost(op, a=weights, b=np.arange(300)[None] < inputs).cycles - without for inputs in (256, 257)]
    assert found == [2, 3]
    assert replace(array, bandwidth=257).cost(op, a=weights, b=np.arange(300)[None] < 257).cycles - without == 1


def test_few_positions_leave_elements_idle_unless_k_is_divided_and_sums_travel():
    """The limitation of SIGMA's Table III: 64 positions keep 64 of 1024 elements busy, with one input in a vector of four."""
    op = MatMul(64, 64, 4096)
    plain_cost, parted = (Scnn(weights="a", channel_parts=parts).cost(op) for parts in (1, 64))
    loading = 64 * 4096 // 128
    assert plain_cost.cycles == loading + 16 * 4096
    assert parted.cycles == loading + 16 * (64 + 16)  # 64 channels in each part; 16 sums of each block pass, one a cycle
    assert plain_cost.events["link_sum"] == 0
    assert parted.events["link_sum"] == 64 * 64 * 63


def test_twice_as_many_banks_as_multipliers_and_a_queue_keep_conflicts_rare():
    """SCNN: the reason for A = 2 F I. With as many banks as multipliers, or no queue, they are not."""
    a, b = Bitmap.random(256, 256, nonzero=0.3, seed=1), Bitmap.random(256, 64, nonzero=0.4, seed=2)
    op = MatMul(256, 64, 256)
    slower = {}
    for banks, queue in ((32, 4), (16, 4), (32, 0)):
        array = Scnn(elements=4, banks=banks, bank_entries=1024 // banks, queue=queue, weights="a", sample=None, loading="left out")
        slower[banks, queue] = array.cost(op, a=a, b=b).cycles / array.steps(op, a=a, b=b)
    assert slower[32, 4] < 1.05
    assert slower[32, 4] < slower[16, 4] < slower[32, 0]


def test_a_sample_of_conflicts_carries_an_interval():
    a, b = Bitmap.random(64, 1024, nonzero=0.3, seed=3), Bitmap.random(1024, 64, nonzero=0.4, seed=4)
    op = MatMul(64, 64, 1024)
    array = Scnn(elements=8, queue=0, weights="a", loading="left out")
    whole, part = (replace(array, sample=sample).cost(op, a=a, b=b) for sample in (None, 16))
    assert whole.uncertainty == 0 < part.uncertainty < 0.05 * whole.cycles
    assert part.cycles == pytest.approx(whole.cycles, rel=0.03)  # the slowest element is taken to wait like the average
    assert replace(array, sample=10**6).cost(op, a=a, b=b) == whole
    loaded = replace(array, loading="counted", sample=16).cost(op, a=a, b=b)
    assert (loaded.cycles - part.cycles, loaded.uncertainty) == (-(-b.nonzeros // 128), part.uncertainty)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("density", [(0.2, 0.7), (0.7, 0.2), (1.0, 0.4), (0.1, 0.05)])
def test_a_density_is_close_to_random_masks_of_it(parts, density):
    a, b = Bitmap.random(100, 1000, nonzero=density[0], seed=5), Bitmap.random(1000, 300, nonzero=density[1], seed=6)
    op, array = MatMul(100, 300, 1000), Scnn(elements=16, channel_parts=parts, weights="a", loading="left out")
    expected = array.cost(op, a=Density(density[0]), b=Density(density[1]))
    loaded = replace(array, loading="counted").cost(op, a=Density(density[0]), b=Density(density[1]))
    assert loaded.cycles - expected.cycles == -(-round(density[1] * 300 * 1000) // 128)
    assert expected.cycles == pytest.approx(array.cost(op, a=a, b=b).cycles, rel=0.03)
    assert array.cost(op, a=Density(1.0), b=Density(1.0)).cycles == array.cost(op).cycles


def test_it_is_an_array_and_refuses_what_it_cannot_be():
    assert isinstance(Scnn(), Array)
    assert Scnn().peak_macs_per_cycle == 16384
    for wrong, message in (
        ({"banks": 8}, "8 banks for 4 x 4 products"),
        ({"channel_parts": 3}, "does not divide"),
        ({"queue": -1}, "queue must be"),
        ({"elements": 0}, "elements must be"),
        ({"bandwidth": 0}, "bandwidth must be"),
        ({"bank_entries": 2**20}, "give no more than"),
        ({"broadcast": "no"}, "broadcast must be"),
    ):
        with pytest.raises(BadInput, match=message):
            Scnn(**wrong)
    with pytest.raises(UnknownName, match="weights"):
        Scnn(weights="c")
    with pytest.raises(UnknownName, match="loading"):
        Scnn(loading=True)
    with pytest.raises(MaskError, match="one by one"):
        Scnn().cost(MatMul(2, 2, 2, count=2), b=np.ones((2, 2)))
    with pytest.raises(BadInput, match="do not multiply"):
        Scnn().execute(np.ones((2, 3)), np.ones((2, 3)))


def test_the_granule_is_a_group_of_outputs_that_fills_the_accumulators_of_an_element():
    scnn = Scnn(banks=32, bank_entries=32, high=4, wide=4, elements=1024)
    assert scnn.granule() == (32 * 32 // 4, 32 * 32 // 4, 256)
    assert replace(scnn, weights="a").granule() == (256, 1024 * 4, 256)
    assert replace(scnn, weights="b").granule() == (1024 * 4, 256, 256)


def test_there_is_no_guide_where_channels_are_divided():
    assert Scnn(channel_parts=2, loading="counted").guides == ()
    assert Scnn(loading="counted").guides
