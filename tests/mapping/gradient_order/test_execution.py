"""The orders at work on real numbers: gradients are numpy's, bytes the compiled model's, and the scratchpad keeps its rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import ArrayCost, MatMul
from trainyard.mapping.gradient_order.execution import Scratchpad, Tile, execute
from trainyard.mapping.gradient_order.scratchpad import POLICIES, Pair, cost, traffic
from trainyard.mapping.gradient_order.tile_streams import ALL_ORDERS, ORDERS, Partition
from trainyard.mapping.tiling import Supply


def matrices(op, kind=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(kind) for shape in ((op.M, op.K), (op.K, op.N), (op.M, op.N)))


def whole_numbers(op, seed=0):
    """Sums of small whole numbers are exact in any order."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-8, 9, shape).astype(np.float64) for shape in ((op.M, op.K), (op.K, op.N), (op.M, op.N)))


def least(op, tile, cores=1):
    """Elements of one operation on full tiles, on every core."""
    m, n, k = (min(size, extent) for size, extent in zip(tile, (op.M, op.N, op.K), strict=True))
    return cores * (m * n + k * n + m * k)


@st.composite
def cases(draw):
    op = MatMul(*(draw(st.integers(1, 9)) for _ in range(3)))
    tile = tuple(draw(st.integers(1, 4)) for _ in range(3))
    partition = draw(st.none() | st.builds(Partition, axis=st.sampled_from("mnk"), parts=st.integers(1, 9), cores=st.booleans()))
    cores = 1 if partition is None or not partition.cores else min(partition.parts, getattr(op, partition.axis.upper()))
    size, needed = draw(st.sampled_from([1, 2, 4])), least(op, tile, cores)
    capacity = size * draw(st.integers(needed, 4 * needed)) + draw(st.integers(0, size - 1))
    return op, {
        "tile": tile, "capacity_bytes": capacity, "element_bytes": size, "order": draw(st.sampled_from(ALL_ORDERS)),
        "policy": draw(st.sampled_from(POLICIES)), "partition": partition,
    }  # fmt: skip


@pytest.mark.oracle
@given(cases())
def test_gradients_are_numpys_and_bytes_are_the_models(case):
    op, given_all = case
    x, w, dy = whole_numbers(op)
    done, moved = execute(x, w, dy, **given_all), traffic(op, **given_all)
    assert (done.dx == dy @ w.T).all()
    assert (done.dw == x.T @ dy).all()
    assert {key: size for key, size in done.bytes.items() if size} == {key: size for key, size in moved.bytes.items() if size}


class Fixed:
    peak_macs_per_cycle = 1

    def granule(self):
        return (1, 1, 1)

    def cost(self, op, **_):
        return ArrayCost(cycles=op.M * op.N * op.K + op.M)


ADDING_PUSHES_OUT = (
    MatMul(6, 3, 1),
    {
        "tile": (2, 1, 1), "capacity_bytes": 1200, "element_bytes": 100, "order": "dx_major", "policy": "farthest",
        "partition": Partition(axis="n", parts=2, cores=True),
    },
)  # fmt: skip
"""What another core left comes back to be added, and a sum makes room for it."""


@pytest.mark.oracle
@given(cases(), st.integers(0, 7), st.sampled_from([0.75, 1.0, 8.0]))
@example(ADDING_PUSHES_OUT, 0, 0.75)
def test_cycles_follow_from_what_each_step_moves(case, latency, rate):
    """A step of several cores takes as long as its longest operation."""
    op, given_all = case[0], dict(case[1])
    done = execute(*whole_numbers(op), **given_all)
    size, capacity = given_all.pop("element_bytes"), given_all.pop("capacity_bytes")
    supply = Supply(resident_bytes=capacity, bytes_per_cycle=rate, latency_cycles=latency)
    busy = [max((3 * one.m + 5 * one.n + 7 * one.k) % 11 * 4 for one in step.ops) for step in done.steps]

    def dram(moved):
        return 0 if moved == 0 else latency + math.ceil(moved / rate)

    stages = [number for number, step in enumerate(done.steps) if step.opens]
    busy, loads, spilled, finished = (
        [sum(values[begin:end]) for begin, end in itertools.pairwise([*stages, len(done.steps)])]
        for values in (busy, done.loads, done.spilled, done.finished)
    )
    assert given_all["policy"] == "window" or len(busy) == len(done.steps)
    expected = dram(loads[0]) + dram(finished[-1])
    for number, one in enumerate(busy):
        ahead = loads[number + 1] if number + 1 < len(busy) else 0
        before = finished[number - 1] if number else 0
        expected += max(one, dram(ahead + spilled[number] + before))
    found = cost(
        Pair.dense(op, size), array=Fixed(), supply=supply, compute=lambda gradient, m, n, k: (3 * m + 5 * n + 7 * k) % 11 * 4,
        **given_all,
    )  # fmt: skip
    assert (found.cycles, found.compute_cycles) == (expected, sum(busy))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_any_floating_point(order, kind):
    """Half precision is summed in single; a re-ordered sum rounds differently, no more."""
    x, w, dy = matrices(MatMul(7, 5, 9), kind)
    done = execute(x, w, dy, tile=(3, 2, 4), capacity_bytes=60 * x.itemsize, order=order)
    exact = [value.astype(np.float64) for value in (x, w, dy)]
    assert done.dx.dtype == done.dw.dtype == (np.float32 if kind == np.float16 else kind)
    rounding = 16 * np.finfo(done.dx.dtype).eps
    np.testing.assert_allclose(done.dx, exact[2] @ exact[1].T, rtol=rounding, atol=8 * rounding)
    np.testing.assert_allclose(done.dw, exact[0].T @ exact[2], rtol=rounding, atol=8 * rounding)


@pytest.mark.oracle
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_are_those_of_a_training_step(order):
    """What torch's backward pass gives a linear layer."""
    torch = pytest.importorskip("torch")
    x, w, dy = (torch.from_numpy(values) for values in whole_numbers(MatMul(7, 5, 9)))
    x.requires_grad_()
    w.requires_grad_()
    (x @ w).backward(dy)
    done = execute(x.detach().numpy(), w.detach().numpy(), dy.numpy(), tile=(3, 2, 4), capacity_bytes=400, order=order)
    assert (done.dx == x.grad.numpy()).all()
    assert (done.dw == w.grad.numpy()).all()


def test_the_operands_are_left_as_they_were():
    given_all = whole_numbers(MatMul(5, 4, 6))
    kept = [values.copy() for values in given_all]
    execute(*given_all, tile=(2, 2, 2), capacity_bytes=200, order="dw_major")
    assert all((now == before).all() for now, before in zip(given_all, kept, strict=True))


def test_views_are_as_good_as_matrices():
    op = MatMul(6, 4, 5)
    x, w, dy = whole_numbers(op)
    turned = [np.asfortranarray(values) for values in (x, w, dy)]
    plain, other = (execute(*one, tile=(2, 3, 2), capacity_bytes=300, order="dx_major") for one in ((x, w, dy), turned))
    assert (plain.dx == other.dx).all()
    assert (plain.dw == other.dw).all()
    assert plain.bytes == other.bytes


@given(st.tuples(*[st.integers(1, 7)] * 3), st.tuples(*[st.integers(1, 3)] * 3))
def test_every_order_does_the_same_multiplications(dims, tile):
    op = MatMul(*dims)
    done = {order: execute(*whole_numbers(op), tile=tile, capacity_bytes=400, order=order) for order in ALL_ORDERS}
    multiplied = {order: sorted(one for step in found.steps for one in step.ops) for order, found in done.items()}
    assert all(ops == multiplied["sequential"] for ops in multiplied.values())
    for found in done.values():
        assert (found.dx == done["sequential"].dx).all()
        assert (found.dw == done["sequential"].dw).all()


@pytest.mark.probe
def test_partial_sums_of_two_cores_counted_by_hand():
    """Rows of M on two cores, one tile of each tensor a core: W is read once for both, dW has two sums and is written once."""
    x, w, dy = whole_numbers(MatMul(2, 1, 1))
    given_all = {"tile": (1, 1, 1), "capacity_bytes": 6, "element_bytes": 1, "order": "dx_major"}
    done = execute(x, w, dy, partition=Partition(axis="m", parts=2, cores=True), **given_all)
    assert [len(step.ops) for step in done.steps] == [2, 2]
    assert done.bytes == {
        ("dY", "read"): 2, ("W", "read"): 1, ("X", "read"): 2, ("dX", "write"): 2, ("dW", "write"): 1,
    }  # fmt: skip
    assert (done.loads, done.spilled, done.finished) == ([3, 2], [0, 0], [2, 1])


@pytest.mark.probe
def test_a_partial_sum_that_was_pushed_out_comes_back_to_be_added():
    """Two cores with one and two tiles of M: core 0 ends its dW long before core 1, and its sum has to wait outside."""
    op = MatMul(3, 2, 2)
    given_all = {"tile": (1, 1, 1), "capacity_bytes": 6, "element_bytes": 1, "order": "sequential"}
    cut = Partition(axis="m", parts=2, cores=True)
    done = execute(*whole_numbers(op), partition=cut, **given_all)
    back = [moved for step in done.steps for moved in step.finished if moved.direction == "spill"]
    assert back
    assert all(moved.tile.tensor == "dW" and moved.tile.core == 0 for moved in back)
    assert done.bytes["dW", "write"] == 4
    assert done.bytes == {key: size for key, size in traffic(op, partition=cut, **given_all).bytes.items() if size}


def test_over_time_there_is_one_sum_that_waits():
    """m in two parts on one core: dW stays unfinished between them, and with little room has to leave and come back."""
    op = MatMul(4, 3, 3)
    done = execute(
        *whole_numbers(op),
        tile=(1, 1, 1),
        capacity_bytes=3,
        element_bytes=1,
        order="sequential",
        partition=Partition(axis="m", parts=2),
    )
    assert {len(step.ops) for step in done.steps} == {1}
    assert done.bytes["dW", "spill"] == 2 * 9
    assert ("dX", "spill") not in done.bytes


@pytest.mark.probe
def test_the_scratchpad_gives_only_what_it_holds_and_takes_only_what_fits():
    pad = Scratchpad(capacity_bytes=8, element_bytes=2)
    one, other = Tile("W", 0, 0), Tile("W", 0, 1)
    pad.put(one, np.ones((1, 3)))
    with pytest.raises(AssertionError, match=r"W\(0,1\) is not in"):
        pad[other]
    with pytest.raises(AssertionError, match="does not fit"):
        pad.put(other, np.ones((1, 2)))
    pad.put(other, np.ones((1, 1)))
    assert pad.used_bytes == 8
    with pytest.raises(AssertionError, match="already"):
        pad.put(other, np.ones((0, 0)))
    assert pad.take(one).tolist() == [[1.0, 1.0, 1.0]]
    assert pad.used_bytes == 2
    with pytest.raises(AssertionError, match="not in"):
        pad.take(one)


def test_it_holds_copies():
    values = np.zeros((2, 2))
    pad = Scratchpad(capacity_bytes=32, element_bytes=8)
    pad.put(Tile("X", 0, 0), values)
    values += 1
    assert not pad[Tile("X", 0, 0)].any()


@pytest.mark.probe
@pytest.mark.parametrize("order", ORDERS)
def test_a_byte_below_one_step_is_refused(order):
    x, w, dy = matrices(MatMul(6, 6, 6))
    needed = 8 * (2 * 3 + 3 * 4 + 2 * 4)
    execute(x, w, dy, tile=(2, 3, 4), capacity_bytes=needed, order=order)
    with pytest.raises(BadInput, match=f"needs {needed} bytes resident, got {needed - 1}"):
        execute(x, w, dy, tile=(2, 3, 4), capacity_bytes=needed - 1, order=order)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"order": "dxmajor"}, UnknownName, "did you mean 'dx_major'"),
        ({"policy": "random"}, UnknownName, "unknown policy"),
        ({"tile": (1, 0, 1)}, BadInput, "n must be a positive whole number"),
        ({"tile": (1, 1)}, BadInput, "three sizes"),
        ({"capacity_bytes": 0}, BadInput, "capacity_bytes"),
        ({"element_bytes": 1.5}, BadInput, "element_bytes"),
        ({"x": np.ones((2, 3))}, BadInput, "do not fit together"),
        ({"dy": np.ones((3, 2))}, BadInput, "do not fit together"),
        ({"w": np.ones(2)}, BadInput, "w must be a matrix"),
        ({"x": np.ones((2, 2), int)}, BadInput, "floating-point"),
        ({"x": np.ones((0, 2)), "dy": np.ones((0, 2))}, BadInput, "M must be a positive whole number, got 0"),
    ],
)
def test_errors_say_what(changed, error, said):
    right = {
        "x": np.ones((2, 2)), "w": np.ones((2, 2)), "dy": np.ones((2, 2)), "tile": (1, 1, 1), "capacity_bytes": 64,
        "order": "dx_major",
    }  # fmt: skip
    execute(**right)
    with pytest.raises(error, match=said):
        execute(**{**right, **changed})
