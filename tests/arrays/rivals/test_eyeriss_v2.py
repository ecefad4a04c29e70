"""Eyeriss v2: compressed blocks, queues of their own, a linear reduction, the slowest element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.rivals.eyeriss_v2 import EyerissV2
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, Density, MatMul

small = st.integers(1, 12)
shares = st.floats(0, 1)
arrays = st.builds(
    EyerissV2,
    rows=st.integers(1, 4),
    columns=st.integers(1, 3),
    simd=st.integers(1, 3),
    weights=st.integers(1, 9),
    sums=st.integers(1, 9),
    activations=st.integers(1, 4),
    bandwidth=st.integers(1, 5),
    stationary=st.sampled_from(["a", "b", "best"]),
    streaming=st.sampled_from(["wide", "limited"]),
)


def pair(m, n, k, p, q, seed):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
    return a * (random.random((m, k)) < p), b * (random.random((k, n)) < q)


def plain(array, held, streamed, plan):
    """Cycles of one mapping, from the definition: blocks in order, the slowest of each pass."""
    (m, k), n = held.shape, streamed.shape[1]
    blocks = [(top, first) for first in range(0, k, plan.deep) for top in range(0, m, plan.high)]
    share, taken = -(-n // plan.copies), array.elements if plan.copies == 1 else len(blocks)
    total, seen = 0, 0
    for start in range(0, len(blocks), taken):
        here = blocks[start : start + taken]
        loaded, slow = 0, 0
        for top, first in here:
            block = held[top : top + plan.high, first : first + plan.deep]
            loaded += block.sum()
            for left in range(0, n, share):
                coming = streamed[first : first + plan.deep, left : left + share].sum(axis=1)
                slow = max(slow, int((np.ceil(block.sum(axis=0) / array.simd) * coming).sum()))
        reached = here[-1][1] + plan.deep
        if array.streaming == "limited":
            slow = max(slow, -(-int(streamed[seen:reached].sum()) // array.bandwidth))
        seen = reached
        total += -(-int(loaded) // array.bandwidth) + slow + min(array.rows, len({first for _, first in here}))
    return total


@given(m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), array=arrays)
def test_it_multiplies_in_the_cycles_it_costs(m, n, k, p, q, seed, array):
    a, b = pair(m, n, k, p, q, seed)
    done = array.execute(a, b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    cost = array.cost(MatMul(m, n, k), a=Bitmap.of(a), b=b)
    assert done.cycles == cost.cycles == cost.loading + cost.working + cost.add


@given(m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), array=arrays)
def test_the_best_of_all_mappings_counts(m, n, k, p, q, seed, array):
    a, b = (one != 0 for one in pair(m, n, k, p, q, seed))
    sides = {"a": (a, b, (m, k, n)), "b": (b.T, a.T, (n, k, m))}
    wanted = sides if array.stationary == "best" else [array.stationary]
    cycles = [
        plain(array, held, streamed, plan) for held, streamed, size in map(sides.get, wanted) for plan in array.mappings(*size)
    ]
    cost = array.cost(MatMul(m, n, k), a=a, b=b)
    assert cost.cycles == min(cycles)
    useful = int(a.sum(axis=0) @ b.sum(axis=1))
    assert cost.events["mac"] == useful
    assert useful <= cost.working * array.peak_macs_per_cycle


@given(m=small, n=small, k=small, array=arrays)
def test_the_dense_form_is_that_of_masks_without_zeros(m, n, k, array):
    op = MatMul(m, n, k)
    dense, masked = array.cost(op), array.cost(op, a=np.ones((m, k)), b=np.ones((k, n)))
    assert dense.cycles == masked.cycles
    assert dense.events["mac"] == masked.events["mac"] == op.macs


@given(m=small, n=small, k=small, seed=st.integers(0, 99), array=arrays)
def test_fewer_nonzeros_never_take_longer(m, n, k, seed, array):
    a, b = pair(m, n, k, 0.7, 0.7, seed)
    random = np.random.default_rng(seed)
    fewer_a, fewer_b = a * (random.random(a.shape) < 0.8), b * (random.random(b.shape) < 0.8)
    assert array.cost(MatMul(m, n, k), a=fewer_a, b=fewer_b).cycles <= array.cost(MatMul(m, n, k), a=a, b=b).cycles


@given(m=small, n=small, k=small, array=arrays)
def test_no_block_is_larger_than_the_memories(m, n, k, array):
    for plan in array.mappings(m, k, n):
        assert plan.high <= array.sums
        assert plan.deep <= array.activations
        assert plan.high * plan.deep <= array.weights
        blocks = -(-m // plan.high) * -(-k // plan.deep)
        assert blocks * plan.copies <= array.elements * plan.passes
        assert plan.copies == 1 or plan.passes == 1


@pytest.mark.parametrize("stationary", ["a", "b"])
@pytest.mark.parametrize("streaming", ["wide", "limited"])
@pytest.mark.parametrize("shape", [(128, 512, 700), (64, 1000, 96), (300, 32, 3000)])
@pytest.mark.parametrize("shares", [(0.2, 0.7), (0.9, 0.2)])
def test_densities_come_close_to_masks_of_that_density(shape, shares, streaming, stationary):
    op, (p, q) = MatMul(*shape), shares
    array = EyerissV2(rows=32, columns=16, stationary=stationary, streaming=streaming)
    masks = Bitmap.random(op.M, op.K, nonzero=p, seed=1), Bitmap.random(op.K, op.N, nonzero=q, seed=2)
    counted, expected = array.cost(op, a=masks[0], b=masks[1]), array.cost(op, a=Density(p), b=Density(q))
    assert expected.cycles == pytest.approx(counted.cycles, rel=0.08)
    for name, number in counted.events.items():
        if not name.endswith("_out"):
            assert expected.events[name] == pytest.approx(number, rel=0.03), name


def test_the_slowest_element_decides():
    """Two blocks of two k each: where one holds all non-zeros, the other element is idle."""
    array = EyerissV2(rows=2, columns=1, simd=1, weights=2, sums=1, activations=2, stationary="a")
    masks = np.array([[[1, 0, 1, 0]], [[1, 1, 0, 0]]])
    assert [array.cost(MatMul(1, 8, 4), a=mask, b=np.ones((4, 8))).working for mask in masks] == [8, 16]


def test_the_reduction_is_linear_in_the_column_of_elements():
    array = EyerissV2(rows=8, columns=1, simd=1, weights=1, sums=1, activations=1, stationary="a")
    assert [array.cost(MatMul(1, 5, k)).add for k in (1, 4, 8)] == [1, 4, 8]
    assert array.cost(MatMul(1, 5, 9)).add == 8 + 1  # the ninth k is another pass


def test_what_comes_by_is_fetched_once_however_many_passes():
    array = EyerissV2(rows=2, columns=2, stationary="a")
    cost = array.cost(MatMul(500, 20, 64))
    assert cost.passes > 10
    assert (cost.events["scratchpad_read_a"], cost.events["scratchpad_read_b"]) == (500 * 64, 64 * 20)


def test_a_narrow_mesh_makes_what_comes_by_wait():
    op = MatMul(8, 4096, 64)
    wide, narrow = (EyerissV2(bandwidth=4, streaming=streaming, stationary="a").cost(op) for streaming in ("wide", "limited"))
    assert wide.working < narrow.working == 4096 * 64 // 4


def test_the_default_has_16384_multipliers():
    array = EyerissV2()
    assert array.peak_macs_per_cycle == 16384
    assert array.local_bytes == 4 * (192 + 32 + 16)


def test_products_of_one_op_follow_each_other_and_share_no_mask():
    one, three = (EyerissV2().cost(MatMul(20, 30, 40, count)) for count in (1, 3))
    assert (three.cycles, three.events["mac"]) == (3 * one.cycles, 3 * one.events["mac"])
    with pytest.raises(MaskError, match="one mask for 2 products"):
        EyerissV2().cost(MatMul(2, 2, 2, 2), a=np.ones((2, 2)))


def test_bad_fields_and_masks_are_refused():
    with pytest.raises(BadInput, match="bandwidth must be"):
        EyerissV2(bandwidth=0)
    with pytest.raises(BadInput, match="at most 255 sums"):
        EyerissV2(sums=256)
    with pytest.raises(UnknownName, match="unknown stationary 'c'"):
        EyerissV2(stationary="c")
    with pytest.raises(UnknownName, match="unknown streaming 'narrow'"):
        EyerissV2(streaming="narrow")
    with pytest.raises(MaskError, match=r"a mask of shape \[4, 3\] is wanted"):
        EyerissV2().cost(MatMul(2, 3, 4), a=DENSE, b=np.ones((3, 4)))


def test_the_granule_of_few_weights_is_one_row_deep():
    array = EyerissV2(weights=8, sums=16)
    assert array.granule() == (16, 16, array.rows)
