"""MRAM of a step: counted op by op, refused with remedies if too much, split over several DPUs."""

from __future__ import annotations

import pytest

from trainyard.devices.dpu.memory import MemoryUse, Split, split_over, step_memory
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput
from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update
from trainyard.workloads import zoo


def peak_bytes(step: Step) -> int:
    """The largest sum over ops of the tensors that are alive while one runs."""
    return max(sum(size for users, size in step.transients if min(users) <= op <= max(users)) for op in range(len(step.ops)))


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "batch"), [("linear", 8), ("resnet18", 2)])
def test_memory_use_is_resident_bytes_and_the_peak_of_transients(name: str, batch: int) -> None:
    step = zoo.load(name, batch=batch)
    memory = step_memory(step)
    assert memory.resident_bytes == step.resident_bytes
    assert memory.transient_bytes == peak_bytes(step)


def test_a_step_that_does_not_fit_is_refused_with_remedies() -> None:
    """93.5 MB of weights and gradients alone in 64 MiB."""
    step = zoo.load("resnet18", batch=8)
    assert not UPMEM.fits(step)
    with pytest.raises(
        BadInput,
        match=r"needs .* of MRAM .* upmem has 67.1 MB: give a DPU with more memory \(dpu=mac-dpu\), or split=true .* batch$",
    ):
        UPMEM.require_room(step)
    assert MAC_DPU.fits(step)
    MAC_DPU.require_room(step)


def test_only_remedies_that_help_are_recommended() -> None:
    """Not the present DPU, nor a split if activations or data are too large."""
    with pytest.raises(BadInput, match=r"give a DPU with more memory, or a smaller batch$"):
        MAC_DPU.require_room(zoo.load("resnet18", batch=64))
    with pytest.raises(BadInput, match=r"\(dpu=mac-dpu\), or at most 66.9 MB of data per DPU$"):
        UPMEM.require_room(zoo.load("linear", batch=8), UPMEM.mram_bytes)


@pytest.mark.probe
@pytest.mark.parametrize(
    ("capacity", "sharded", "end"),
    [
        (70, 30, r"a smaller batch, or split=true [^,]*$"),  # 70 are left beside the shards
        (70, 29, r"or a smaller batch$"),
        (61, 39, r"or a smaller batch, or split=true [^,]*$"),
        (60, 39, r"\(dpu=mac-dpu\), or split=true .*, with a smaller batch$"),  # 60 stay whatever the batch
        (60, 0, r"\(dpu=mac-dpu\)$"),
    ],
)
def test_a_split_is_recommended_if_it_frees_enough(capacity: int, sharded: int, end: str) -> None:
    needed = MemoryUse(step="s", batch=2, resident_bytes=60, transient_bytes=40, sharded_bytes=sharded)
    with pytest.raises(BadInput, match=end):
        needed.require(capacity)
    needed.require(100)


@pytest.mark.probe
def test_data_that_fill_mram_fit_and_one_byte_more_is_refused() -> None:
    """PIM-Opt's 3328 samples of 4096 numbers fill MRAM to 81 %."""
    step = zoo.load("linear", batch=8)
    left = UPMEM.mram_bytes - UPMEM.memory_use(step).bytes
    assert UPMEM.fits(step, 3328 * 4096 * 4)
    UPMEM.require_room(step, left)
    with pytest.raises(BadInput, match="of data per DPU"):
        UPMEM.require_room(step, left + 1)


def test_a_split_stores_one_shard_and_gathers_the_others() -> None:
    step = zoo.load("resnet18", batch=1)
    parameters = [spec for spec in step.tensors if spec.view_of is None and spec.role is Role.PARAMETER]
    size = sum(spec.bytes for spec in parameters)
    alone, many = split_over(step, 1), split_over(step, 64)
    assert (alone.gathered_bytes, alone.scattered_bytes) == (0, 0)
    assert alone.resident_bytes == step.resident_bytes
    assert alone.peak_bytes >= step_memory(step).bytes
    assert many.scattered_bytes == pytest.approx(size * 63 / 64, rel=0.001)
    assert size * 63 / 64 < many.gathered_bytes <= 2 * size * 63 / 64  # forward, and backward where dX is needed
    peaks = [split_over(step, shards).peak_bytes for shards in (1, 2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)
    assert many.peak_bytes < UPMEM.mram_bytes < alone.peak_bytes  # so it does fit a cluster of 64
    with pytest.raises(BadInput, match="shards must be a positive"):
        split_over(step, 0)


X, W = TensorSpec((4, 50), role=Role.INPUT), TensorSpec((50, 6), role=Role.PARAMETER)  # 800 and 1200 bytes
Y, DY = TensorSpec((4, 6)), TensorSpec((4, 6), role=Role.GRADIENT)  # 96 bytes
DW = TensorSpec((50, 6), role=Role.PARAMETER_GRADIENT)
FORWARD = Op(body=MatMul(4, 6, 50), inputs=(0, 1), outputs=(2,), name="Y")
LOSS = Op(body=ElementWise("mse_loss_backward", 24), inputs=(0,), outputs=(2,), phase=Phase.GRAD_INPUT, name="dY")
GRADIENT = Op(body=MatMul(50, 6, 4), inputs=(0, 2), outputs=(3,), phase=Phase.GRAD_WEIGHT, name="dW")
UPDATE = Op(body=Update("SGD", 300, 2), inputs=(1, 3), outputs=(1,), phase=Phase.UPDATE, name="SGD")


@pytest.mark.parametrize(
    ("ops", "tensors", "split"),
    [
        (
            (FORWARD,),
            (X, W, Y),
            Split(shards=4, resident_bytes=1100, peak_bytes=1100 + 96 + 900, gathered_bytes=900, scattered_bytes=0),
        ),
        (
            (LOSS, GRADIENT, UPDATE),
            (X, W, DY, DW),
            Split(shards=4, resident_bytes=1100, peak_bytes=1100 + 300 + 96 + 900, gathered_bytes=0, scattered_bytes=900),
        ),
        ((), (X, W), Split(shards=4, resident_bytes=1100, peak_bytes=1100, gathered_bytes=0, scattered_bytes=0)),
    ],
    ids=["forward", "gradient and update", "no ops"],
)
def test_a_quarter_of_a_parameter_stays_and_three_quarters_come_or_go_with_the_op_that_uses_them(
    ops: tuple[Op, ...], tensors: tuple[TensorSpec, ...], split: Split
) -> None:
    """The input of 800 bytes and 300 of 1200 weights stay; a gradient's 300 bytes stay from its op to the update."""
    assert split_over(Step("linear", 4, ops, tensors), 4) == split


def test_a_batch_of_one_cannot_be_smaller() -> None:
    for batch, end in ((1, r"\(dpu=mac-dpu\)$"), (2, r"or a smaller batch$")):
        with pytest.raises(BadInput, match=end):
            MemoryUse(step="s", batch=batch, resident_bytes=60, transient_bytes=40).require(70)
