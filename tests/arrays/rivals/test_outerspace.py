"""OuterSPACE: outer products dealt out to elements, linked lists merged."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.rivals.eyeriss_v2 import EyerissV2
from trainyard.arrays.rivals.outerspace import OuterSpace
from trainyard.arrays.rivals.packed_systolic import PackedSystolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, Dense, Density, MatMul, Op, Step
from trainyard.kernels.arrays.dealing import list_schedule
from trainyard.kernels.arrays.merging import levels, merge_lists

small = st.integers(1, 12)
shares = st.floats(0, 1)
ways = st.sampled_from(["rows", "columns", "best"])


def pair(m, n, k, p, q, seed):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
    return a * (random.random((m, k)) < p), b * (random.random((k, n)) < q)


def plain(array, a, b):
    """Both phases of an output by rows, on Python lists: cycles to multiply, cycles to merge."""
    free, steps = [0] * array.elements, 0
    for k in range(a.shape[1]):
        for _ in range(np.count_nonzero(a[:, k])):
            heapq.heapreplace(free, free[0] + int(np.count_nonzero(b[k])))
    for row in a:
        lists = [int(np.count_nonzero(b[k])) for k in np.flatnonzero(row) if b[k].any()]
        steps += sum(lists) * max(1, math.ceil(math.log2(len(lists)))) if lists else 0
    return max(free), math.ceil(steps / array.merging)


@given(m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), elements=st.integers(1, 9), lists=ways)
def test_it_multiplies_in_the_cycles_it_costs(m, n, k, p, q, seed, elements, lists):
    a, b = pair(m, n, k, p, q, seed)
    array = OuterSpace(elements=elements, lists=lists)
    done = array.execute(a, b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    cost = array.cost(MatMul(m, n, k), a=a, b=Bitmap.of(b))
    assert done.cycles == cost.cycles == max(1, cost.multiply + cost.merge)


@given(m=small, n=small, k=small, p=shares, q=shares, seed=st.integers(0, 99), elements=st.integers(1, 9))
def test_the_counts_on_packed_words_are_those_of_the_plain_rule(m, n, k, p, q, seed, elements):
    a, b = pair(m, n, k, p, q, seed)
    by_rows, by_columns = (OuterSpace(elements=elements, lists=lists) for lists in ("rows", "columns"))
    cost = by_rows.cost(MatMul(m, n, k), a=a, b=b)
    assert (cost.multiply, cost.merge) == plain(by_rows, a, b)
    turned = by_columns.cost(MatMul(m, n, k), a=a, b=b)
    assert (turned.multiply, turned.merge) == plain(by_columns, b.T, a.T)
    best = OuterSpace(elements=elements).cost(MatMul(m, n, k), a=a, b=b)
    assert best.cycles == min(cost.cycles, turned.cycles)
    useful = int(np.count_nonzero(a, axis=0) @ np.count_nonzero(b, axis=1))
    assert best.events["mac"] == useful
    assert useful <= best.cycles * elements


@given(m=small, n=small, k=small, seed=st.integers(0, 99), lists=ways)
def test_fewer_nonzeros_never_take_longer(m, n, k, seed, lists):
    a, b = pair(m, n, k, 0.7, 0.7, seed)
    random = np.random.default_rng(seed)
    fewer_a, fewer_b = a * (random.random(a.shape) < 0.8), b * (random.random(b.shape) < 0.8)
    array = OuterSpace(elements=4, lists=lists)
    assert array.cost(MatMul(m, n, k), a=fewer_a, b=fewer_b).cycles <= array.cost(MatMul(m, n, k), a=a, b=b).cycles


@given(m=small, n=small, k=small, elements=st.integers(1, 9), lists=ways)
def test_the_dense_form_is_that_of_masks_without_zeros(m, n, k, elements, lists):
    array = OuterSpace(elements=elements, lists=lists)
    op, ones = MatMul(m, n, k), (np.ones((m, k)), np.ones((k, n)))
    dense, masked = array.cost(op), array.cost(op, a=ones[0], b=ones[1])
    assert (dense.cycles, dict(dense.events)) == (masked.cycles, dict(masked.events))
    assert array.cost(op, a=Dense(), b=Density(1.0)).cycles == dense.cycles


@pytest.mark.parametrize("lists", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(128, 512, 700), (800, 600, 90), (300, 20, 3000)])
@pytest.mark.parametrize("shares", [(0.2, 0.7), (0.9, 0.2), (0.05, 0.3)])
def test_densities_come_close_to_masks_of_that_density(shape, shares, lists):
    op, (p, q) = MatMul(*shape), shares
    array = OuterSpace(elements=512, lists=lists)
    masks = Bitmap.random(op.M, op.K, nonzero=p, seed=1), Bitmap.random(op.K, op.N, nonzero=q, seed=2)
    counted, expected = array.cost(op, a=masks[0], b=masks[1]), array.cost(op, a=Density(p), b=Density(q))
    assert expected.cycles == pytest.approx(counted.cycles, rel=0.03)
    for name, number in counted.events.items():
        assert expected.events[name] == pytest.approx(number, rel=0.03), name


def test_a_merge_takes_the_logarithm_of_its_lists():
    """Table III: N log N. One list more than a power of two takes one comparison more for each partial product."""
    assert [levels(lists) for lists in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)] == [1, 1, 2, 2, 3, 3, 4, 10, 11]
    array = OuterSpace(elements=2, merge_share=0.5, lists="rows")
    eight, nine = (array.cost(MatMul(1, 6, k)).merge for k in (8, 9))
    assert (eight, nine) == (8 * 6 * 3, 9 * 6 * 4)


def test_lists_merge_in_order_and_equal_columns_add_up():
    columns, values = np.array([1, 4, 7, 1, 2, 4]), np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    merged = np.zeros(8)
    assert merge_lists(columns, values, np.array([0, 3, 6]), merged) == 6 * 1
    assert merged.tolist() == [0, 11, 20, 0, 32, 0, 0, 3]


def test_a_chunk_waits_for_a_free_element():
    chunks, lengths = np.array([2, 1]), np.array([5, 3])
    assert list_schedule(chunks, lengths, 3) == 5  # all three at once
    assert list_schedule(chunks, lengths, 2) == 8  # the third one after a long one


def test_merging_elements_limit_the_merge_alone():
    op = MatMul(64, 64, 64)
    whole, half = (OuterSpace(elements=64, merge_share=share).cost(op) for share in (1.0, 0.5))
    assert whole.multiply == half.multiply
    assert half.merge == 2 * whole.merge


def test_products_of_one_op_follow_each_other_and_share_no_mask():
    one, three = (OuterSpace().cost(MatMul(20, 30, 40, count)) for count in (1, 3))
    assert (three.cycles, three.events["mac"]) == (3 * one.cycles, 3 * one.events["mac"])
    with pytest.raises(MaskError, match="one mask for 2 products"):
        OuterSpace().cost(MatMul(2, 2, 2, 2), a=np.ones((2, 2)))


def test_nothing_to_do_takes_a_cycle():
    assert OuterSpace().cost(MatMul(3, 3, 3), a=np.zeros((3, 3)), b=DENSE).cycles == 1
    assert OuterSpace().cost(MatMul(3, 3, 3), a=Density(0.0), b=DENSE).cycles == 1


def test_a_density_beside_a_mask_is_drawn_the_same_again():
    op, mask = MatMul(30, 40, 50), np.eye(30, 50)
    first, again, other = (OuterSpace(elements=8, seed=seed).cost(op, a=mask, b=Density(0.5)).cycles for seed in (0, 0, 1))
    assert first == again
    assert other != first
    clustered = OuterSpace(lists="rows").cost(op, a=Density(0.5, "channel"), b=DENSE)
    assert clustered.events["mac"] % (30 * 40) == 0  # whole k's or none


def test_bad_fields_and_masks_are_refused():
    with pytest.raises(BadInput, match="elements must be"):
        OuterSpace(elements=0)
    with pytest.raises(BadInput, match="merge_share is a share"):
        OuterSpace(merge_share=1.5)
    with pytest.raises(UnknownName, match="unknown lists 'row'"):
        OuterSpace(lists="row")
    with pytest.raises(MaskError, match=r"a mask of shape \[2, 4\] is wanted"):
        OuterSpace().cost(MatMul(2, 3, 4), a=np.ones((4, 2)), b=DENSE)


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = "rivals"

    def bits(self, key):
        return self.tensors[key[2]]


@pytest.mark.parametrize("array", [OuterSpace(), EyerissV2(), PackedSystolic(), PackedSystolic(packing="measured")])
def test_inside_an_accelerator_zeros_save_time_and_energy(array):
    """Tiles are searched without zeros and costed with their own; every event has an energy."""
    op = Op(body=MatMul(256, 640, 2048), layer="layer", letters=("A", "W"))
    step = Step(name="made", batch=1, ops=(op,), tensors=())
    random = np.random.default_rng(5)
    masks = Bits({"A": random.random((256, 2048)) < 0.5, "W": random.random((640, 2048)) < 0.005})
    device = Accelerator(array=array, scratchpad_bytes=2**22, dram="10 TB/s")
    work = device.works(step)[0]
    dense, sparse = device.cost(step, work), device.cost(step, work, masks)
    assert sparse.compute_cycles < dense.compute_cycles
    assert 0 < sum(device.energy(sparse.events).values()) < sum(device.energy(dense.events).values())
