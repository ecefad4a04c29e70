"""Bytes of a call through DRAM and L2, and the time of its kernels: each rule on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu.traffic import Cache, Traffic, element_type, finish
from trainyard.ir import ElementWise, MatMul, Op, Role, Step, TensorSpec
from trainyard.machines.presets.gpus import H200

GPU = replace(H200, dram_bytes_per_s=100.0, copy_fraction=0.5, l2_bytes_per_s=1000.0, l2_fraction=0.1, ramp_s=2.0, gap_s=1.0)
STEP = Step(
    "two",
    1,
    (
        Op(body=MatMul(4, 5, 6), inputs=(0, 1), outputs=(2,)),
        Op(body=ElementWise("add", 20), inputs=(2, 3), outputs=(4,)),
    ),
    (
        TensorSpec((4, 6)),
        TensorSpec((6, 5), role=Role.PARAMETER),
        TensorSpec((4, 5)),
        TensorSpec((4, 5), view_of=2),
        TensorSpec((4, 5)),
    ),
)


def test_the_oldest_tensors_leave_a_cache_that_is_full() -> None:
    cache = Cache(100.0)
    for base, size in ((1, 40), (2, 40), (1, 40)):
        cache.touch(base, size)
    assert (list(cache.tensors), cache.used) == ([2, 1], 80)
    cache.touch(3, 30)
    assert (list(cache.tensors), cache.used) == ([1, 3], 70)
    cache.touch(4, 101)  # larger than the cache: it passes
    assert (list(cache.tensors), cache.used) == ([1, 3], 70)
    cache.touch(5, 30)
    assert cache.used == 100
    cache.touch(3, 60)  # it has grown: 1 leaves
    assert (list(cache.tensors), cache.used) == ([5, 3], 90)


def test_what_is_produced_and_read_inside_a_call_does_not_move() -> None:
    apart, both = (Traffic(GPU, STEP, ops, Cache(0.0)) for ops in (STEP.ops[1:], STEP.ops))
    assert (apart.read, apart.written) == ({2: 80}, {4: 80})  # 3 is a view of 2
    assert (both.read, both.written) == ({0: 96, 1: 120}, {4: 80})


@pytest.mark.parametrize(
    ("capacity", "cached", "times", "dram", "l2"),
    [
        (1000.0, False, 1.0, 96, 0),  # once from DRAM
        (1000.0, False, 3.0, 96, 2 * 96),  # again from the L2
        (1000.0, True, 1.0, 0, 96),
        (50.0, False, 3.0, 3 * 96, 0),  # too large to stay
        (1000.0, False, 0.5, 48, 0),
    ],
)
def test_an_input_comes_from_dram_once_and_again_if_it_does_not_stay(
    capacity: float, cached: bool, times: float, dram: int, l2: float
) -> None:
    cache = Cache(capacity)
    if cached:
        cache.touch(0, 96)
    traffic = Traffic(GPU, STEP, STEP.ops[:1], cache)
    traffic.reads(times, only=0)
    assert (traffic.bytes, traffic.l2_bytes) == ({("activation", "read"): dram}, l2)


def test_bytes_are_booked_by_role_and_direction_and_take_their_time() -> None:
    traffic = Traffic(GPU, STEP, STEP.ops[:1], Cache(1000.0))
    traffic.reads()
    traffic.writes(2.0)
    traffic.moves(10.0, 20.0, Role.GRADIENT)
    assert traffic.bytes == {
        ("activation", "read"): 96, ("parameter", "read"): 120, ("activation", "write"): 160, ("gradient", "read"): 10,
        ("gradient", "write"): 20,
    }  # fmt: skip
    assert traffic.dram_s == pytest.approx(406 / 50)
    assert traffic.l2_s == pytest.approx(406 / 100)
    traffic.update_cache()
    assert traffic.cache.tensors == {0: 96, 1: 120, 2: 80}
    update = Traffic(GPU, STEP, STEP.ops[:1], traffic.cache)
    update.all_through_dram(1.5)
    assert sum(update.bytes.values()) == 1.5 * (96 + 120 + 80)


def test_views_of_one_tensor_are_different_parts_of_it() -> None:
    tensors = (TensorSpec((3, 4)), TensorSpec((2, 4), view_of=0), TensorSpec((2, 4), view_of=0), TensorSpec((4,)))
    ops = (Op(body=ElementWise("add", 8), inputs=(1, 2), outputs=(3,)),)
    traffic = Traffic(GPU, Step("views", 1, ops, tensors), ops, Cache(0.0))
    assert traffic.read == {0: 32}
    assert traffic.distinct_bytes(ops) == 48  # all of it, not 2 x 32
    masked = Cache(0.0, masks={0})
    assert Traffic(GPU, Step("views", 1, ops, tensors), ops, masked).read == {0: 8}  # a byte for each element


@pytest.mark.parametrize(
    ("compute", "l2", "launches", "bound", "busy"),
    [(9.0, 0.0, 1.0, "compute", 9.0), (1.0, 0.0, 1.0, "dram", 4.32), (1.0, 8.0, 1.0, "l2", 8.0), (1.0, 0.0, 2.0, "launch", 4.32)],
)
def test_the_longest_of_compute_l2_and_dram_counts_and_what_cannot_overlap_is_added(
    compute: float, l2: float, launches: float, bound: str, busy: float
) -> None:
    traffic = Traffic(GPU, STEP, STEP.ops[:1], Cache(1000.0))
    traffic.reads()
    kernel = finish(GPU, traffic, compute_s=compute, l2_s=l2, launches=launches, macs=7, serial_s=0.5, calls=3.0, listed=4.0)
    assert kernel.seconds == pytest.approx(busy + 0.5 + launches * 3.0)
    assert kernel.compute_s == pytest.approx(compute + 0.5)
    assert (kernel.bound, kernel.launches, kernel.macs, kernel.calls, kernel.listed) == (bound, launches, 7, 3.0, 4.0)


def test_an_op_has_the_type_of_its_first_input_on_this_device() -> None:
    assert element_type(GPU, STEP, STEP.ops[0]) == ("fp32", 4)
    assert element_type(replace(GPU, precision="bf16"), STEP, STEP.ops[0]) == ("bf16", 2)
    assert element_type(replace(GPU, precision="fp8"), STEP, Op(body=MatMul(4, 5, 6))) == ("fp8", 1)
    assert element_type(GPU, STEP, Op(body=MatMul(4, 5, 6))) == ("fp32", 4)
