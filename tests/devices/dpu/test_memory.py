"""What a step takes of MRAM: counted op by op, refused with the way out, split over several DPUs."""

from __future__ import annotations

import pytest

from trainyard.devices.dpu.memory import Room, room, split_over
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput
from trainyard.ir import Role, Step
from trainyard.workloads import zoo


def most_alive(step: Step) -> int:
    """Op by op: all that is there while it runs, the plain way."""
    return max(sum(size for users, size in step.transients if min(users) <= op <= max(users)) for op in range(len(step.ops)))


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "batch"), [("linear", 8), ("resnet18", 2)])
def test_room_is_what_lives_at_a_time(name: str, batch: int) -> None:
    step = zoo.load(name, batch=batch)
    found = room(step)
    assert found.resident_bytes == step.resident_bytes
    assert found.transient_bytes == most_alive(step)


def test_resnet_does_not_fit_upmem_and_says_what_to_do() -> None:
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


def test_only_what_helps_is_recommended() -> None:
    """Not the DPU that it is already, nor a split where activations or data are too large."""
    with pytest.raises(BadInput, match=r"give a DPU with more memory, or a smaller batch$"):
        MAC_DPU.require_room(zoo.load("resnet18", batch=64))
    with pytest.raises(BadInput, match=r"\(dpu=mac-dpu\), or at most 66.9 MB of data per DPU$"):
        UPMEM.require_room(zoo.load("linear", batch=8), UPMEM.mram_bytes)


@pytest.mark.probe
@pytest.mark.parametrize(
    ("there", "sharded", "end"),
    [
        (70, 30, r"a smaller batch, or split=true [^,]*$"),  # 70 are left beside the shards
        (70, 29, r"or a smaller batch$"),
        (61, 39, r"or a smaller batch, or split=true [^,]*$"),
        (60, 39, r"\(dpu=mac-dpu\), or split=true .*, with a smaller batch$"),  # 60 stay whatever the batch
        (60, 0, r"\(dpu=mac-dpu\)$"),
    ],
)
def test_a_split_is_recommended_where_its_shards_are_what_is_missing(there: int, sharded: int, end: str) -> None:
    needed = Room(step="s", batch=2, resident_bytes=60, transient_bytes=40, sharded_bytes=sharded)
    with pytest.raises(BadInput, match=end):
        needed.require(there)
    needed.require(100)


@pytest.mark.probe
def test_one_byte_of_data_too_many() -> None:
    """PIM-Opt's 3328 samples of 4096 numbers fill MRAM to 81 %."""
    step = zoo.load("linear", batch=8)
    left = UPMEM.mram_bytes - UPMEM.room(step).bytes
    assert UPMEM.fits(step, 3328 * 4096 * 4)
    UPMEM.require_room(step, left)
    with pytest.raises(BadInput, match="of data per DPU"):
        UPMEM.require_room(step, left + 1)


def test_a_split_keeps_a_share_and_moves_the_rest() -> None:
    step = zoo.load("resnet18", batch=1)
    parameters = [spec for spec in step.tensors if spec.view_of is None and spec.role is Role.PARAMETER]
    size = sum(spec.bytes for spec in parameters)
    alone, many = split_over(step, 1), split_over(step, 64)
    assert (alone.gathered_bytes, alone.scattered_bytes) == (0, 0)
    assert alone.resident_bytes == step.resident_bytes
    assert alone.peak_bytes >= room(step).bytes
    assert many.scattered_bytes == pytest.approx(size * 63 / 64, rel=0.001)
    assert size * 63 / 64 < many.gathered_bytes <= 2 * size * 63 / 64  # forward, and backward where dX is needed
    peaks = [split_over(step, shards).peak_bytes for shards in (1, 2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)
    assert many.peak_bytes < UPMEM.mram_bytes < alone.peak_bytes  # so it does fit a cluster of 64
    with pytest.raises(BadInput, match="shards must be a positive"):
        split_over(step, 0)
