"""The packed systolic array: column combining on real masks, and by a factor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.arrays.rivals.packed_systolic import PackedSystolic
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, Density, MatMul

small = st.integers(1, 14)
shares = st.floats(0, 0.6)
sides = st.sampled_from(["a", "b", "best"])


def pair(m, n, k, p, q, seed):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
    return a * (random.random((m, k)) < p), b * (random.random((k, n)) < q)


def plain(weights, factor, conflicts, window):
    """Sets of rows instead of words: groups as lists of columns, and elements pruned."""
    columns = sorted((k for k in range(len(weights)) if weights[k].any()), key=lambda k: -np.count_nonzero(weights[k]))
    open_groups, groups, pruned = [], [], 0
    for k in columns:
        rows = set(np.flatnonzero(weights[k]))
        fits = [one for one in open_groups if one["met"] + len(one["rows"] & rows) <= conflicts]
        if fits:
            group = max(fits, key=lambda one: len(one["rows"]))
        else:
            group = {"rows": set(), "met": 0, "columns": []}
            if len(open_groups) == window:
                open_groups[open_groups.index(max(open_groups, key=lambda one: len(one["rows"])))] = group
            else:
                open_groups.append(group)
            groups.append(group)
        pruned += len(group["rows"] & rows)
        group["met"] += len(group["rows"] & rows)
        group["rows"] |= rows
        group["columns"].append(k)
        if len(group["columns"]) == factor:
            place = next(index for index, one in enumerate(open_groups) if one is group)
            open_groups[place] = open_groups[-1]
            open_groups.pop()
    return [group["columns"] for group in groups], pruned


@given(
    n=small, k=st.integers(1, 30), q=shares, seed=st.integers(0, 99), factor=st.integers(1, 9), window=st.integers(1, 5),
    conflicts=st.sampled_from([0.0, 0.25, 0.5]),
)  # fmt: skip
def test_columns_combine_as_the_plain_rule_says(n, k, q, seed, factor, window, conflicts):
    _, weights = pair(1, n, k, 1, q, seed)
    array = PackedSystolic(factor=factor, window=window, conflicts=conflicts, packing="measured")
    groups, number, lost = array.pack(Bitmap.of(weights))
    wanted, pruned = plain(weights, factor, int(conflicts * n), window)
    assert [np.flatnonzero(groups == one).tolist() for one in range(number)] == [sorted(one) for one in wanted]
    assert lost == pruned
    for columns in wanted:
        met = np.count_nonzero(weights[columns], axis=0)
        assert np.maximum(met - 1, 0).sum() <= conflicts * n
        assert len(columns) <= factor


@given(
    m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), rows=st.integers(1, 4), columns=st.integers(1, 4),
    stationary=sides,
)  # fmt: skip
def test_it_multiplies_in_the_cycles_it_costs(m, n, k, p, q, seed, rows, columns, stationary):
    a, b = pair(m, n, k, p, q, seed)
    array = PackedSystolic(rows=rows, columns=columns, packing="measured", stationary=stationary)
    done = array.execute(a, b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    cost = array.cost(MatMul(m, n, k), a=a, b=Bitmap.of(b))
    assert done.cycles == cost.cycles
    assert cost.pruned == 0.0


def test_with_conflicts_the_smaller_weight_is_pruned():
    weights = np.array([[1.0, 4.0], [3.0, 0.0]])  # both columns have the first output
    array = PackedSystolic(rows=2, columns=2, packing="measured", stationary="b", conflicts=0.5)
    cost = array.cost(MatMul(1, 2, 2), b=weights)
    assert (cost.groups, cost.pruned) == (1, 1 / 3)
    assert array.execute(np.ones((1, 2)), weights).product.tolist() == [[3.0, 4.0]]
    apart = PackedSystolic(rows=2, columns=2, packing="measured", stationary="b", conflicts=0.49).cost(MatMul(1, 2, 2), b=weights)
    assert (apart.groups, apart.pruned) == (2, 0.0)


@given(m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), stationary=st.sampled_from(["a", "b"]))
def test_the_factor_is_never_behind_what_can_be_packed_and_does_all_the_work(m, n, k, p, q, seed, stationary):
    a, b = pair(m, n, k, p, q, seed)
    trained, measured = (
        PackedSystolic(rows=3, columns=3, factor=4, packing=packing, stationary=stationary).cost(MatMul(m, n, k), a=a, b=b)
        for packing in ("factor", "measured")
    )
    assert trained.groups <= measured.groups <= k
    useful = int(np.count_nonzero(a, axis=0) @ np.count_nonzero(b, axis=1))
    assert useful <= trained.cycles * 9
    assert useful <= trained.events["mac"]  # zeros stay in the cells


@given(m=small, n=small, k=small, seed=st.integers(0, 99), stationary=sides)
def test_by_the_factor_fewer_nonzeros_never_take_longer(m, n, k, seed, stationary):
    a, b = pair(m, n, k, 0.7, 0.7, seed)
    random = np.random.default_rng(seed)
    fewer_a, fewer_b = a * (random.random(a.shape) < 0.8), b * (random.random(b.shape) < 0.8)
    array = PackedSystolic(rows=2, columns=3, stationary=stationary)
    assert array.cost(MatMul(m, n, k), a=fewer_a, b=fewer_b).cycles <= array.cost(MatMul(m, n, k), a=a, b=b).cycles


@given(
    m=small, n=small, k=small, rows=st.integers(1, 4), columns=st.integers(1, 4), packing=st.sampled_from(["factor", "measured"])
)
def test_without_zeros_it_is_the_systolic_array(m, n, k, rows, columns, packing):
    op = MatMul(m, n, k)
    array = PackedSystolic(rows=rows, columns=columns, packing=packing)
    plain_arrays = [Systolic(rows=rows, columns=columns, dataflow=flow) for flow in ("ws", "is")]
    cycles = min(one.tile_cycles(m, n, k) for one in plain_arrays)
    assert array.cost(op).cycles == array.tile_cycles(m, n, k) == cycles
    masked = array.cost(op, a=np.ones((m, k)), b=np.ones((k, n)))
    assert masked.cycles == cycles
    assert masked.events["mac"] == op.macs


def test_random_zeros_of_tall_columns_do_not_combine():
    """Table III: without algorithmic adjustments there is nothing to gain at 80 % and 4096 outputs; with them, up to the factor."""
    op, weights = MatMul(64, 4096, 512), Bitmap.random(512, 4096, nonzero=0.2, seed=3)
    measured, trained = (PackedSystolic(stationary="b", packing=packing).cost(op, b=weights) for packing in ("measured", "factor"))
    assert measured.groups == 512
    assert trained.groups == weights.column_counts().max() > 0.2 * 512
    sparser = Bitmap.random(512, 4096, nonzero=0.05, seed=3)
    assert PackedSystolic(stationary="b").cost(op, b=sparser).groups == 512 // 8


def test_zeros_of_the_streaming_operand_are_not_skipped():
    op, weights = MatMul(64, 128, 256), Bitmap.random(256, 128, nonzero=0.2, seed=1)
    array = PackedSystolic(stationary="b")
    assert array.cost(op, a=Density(0.1), b=weights).cycles == array.cost(op, a=DENSE, b=weights).cycles


@pytest.mark.parametrize("shape", [(128, 512, 700), (64, 1000, 96), (300, 32, 3000)])
@pytest.mark.parametrize("nonzero", [0.7, 0.2, 0.02])
def test_densities_come_close_to_masks_of_that_density(shape, nonzero):
    op = MatMul(*shape)
    array = PackedSystolic(rows=16, columns=16, stationary="b")
    counted = array.cost(op, b=Bitmap.random(op.K, op.N, nonzero=nonzero, seed=4))
    expected = array.cost(op, b=Density(nonzero))
    assert expected.groups == pytest.approx(counted.groups, rel=0.05, abs=1.5)
    assert expected.cycles == pytest.approx(counted.cycles, rel=0.1)
    assert array.cost(op, b=Density(nonzero, "channel")).groups < counted.groups or nonzero == 0.02


def test_columns_without_weights_need_no_cells():
    weights = np.zeros((40, 6))
    weights[7] = 1
    for packing in ("measured", "factor"):
        cost = PackedSystolic(packing=packing, stationary="b").cost(MatMul(5, 6, 40), b=weights)
        assert cost.groups == 1
        assert cost.events["scratchpad_read_a"] == 5  # one input of 40 is streamed
        assert PackedSystolic(packing=packing, stationary="b").cost(MatMul(5, 6, 40), b=np.zeros((40, 6))).groups == 1


def test_products_of_one_op_follow_each_other_and_share_no_mask():
    one, three = (PackedSystolic().cost(MatMul(20, 30, 40, count)) for count in (1, 3))
    assert (three.cycles, three.events["mac"]) == (3 * one.cycles, 3 * one.events["mac"])
    with pytest.raises(MaskError, match="one mask for 2 products"):
        PackedSystolic().cost(MatMul(2, 2, 2, 2), a=np.ones((2, 2)))


def test_bad_fields_and_masks_are_refused():
    with pytest.raises(BadInput, match="factor must be"):
        PackedSystolic(factor=0)
    with pytest.raises(BadInput, match="conflicts must be at least 0"):
        PackedSystolic(conflicts=-0.5)
    with pytest.raises(UnknownName, match="unknown packing 'exact'"):
        PackedSystolic(packing="exact")
    with pytest.raises(BadInput, match="give packing='measured'"):
        PackedSystolic().execute(np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(MaskError, match=r"a mask of shape \[4, 3\] is wanted"):
        PackedSystolic().cost(MatMul(2, 3, 4), a=DENSE, b=np.ones((3, 4)))
