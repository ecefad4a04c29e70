"""Tensors that stay on chip between layers, on accelerators of many kinds."""

from __future__ import annotations

import pytest

import trainyard as ty
from trainyard.devices.accelerator.counting import Traffic
from trainyard.devices.accelerator.side_by_side import repeated
from trainyard.ir import DeviceCost
from trainyard.mapping.demand import Move

MASKS = "sparsity(A=0.6,G=0.5)"


@pytest.mark.parametrize(
    ("machine", "masks"),
    [
        ("npu(array=tensordash,{})", MASKS),
        ("npu(dma=zero_compressed,{})", MASKS),
        ("npu(order=cost,{})", None),
        ("npu(order=interleaved,fusion=none,{})", None),
        ("npu(scope=products,im2col=materialised,{})", None),
        ("npu(precision=bf16,{})", None),
        ("sigma({})", None),
    ],
)
def test_reuse_between_layers_is_never_slower_on_any_machine(machine: str, masks: str | None) -> None:
    step = ty.zoo.load("ncf", batch=2)
    costs = [ty.run(step, machine.format(f"reuse={reuse}"), masks=masks) for reuse in ("step", "layers", "slices")]
    times = [(cost.cycles, cost.traffic_bytes["dram"]) for cost in costs]
    assert times[0] >= times[1] >= times[2]
    assert len({cost.macs for cost in costs}) == 1


def test_two_runs_of_one_step_choose_the_same() -> None:
    step = ty.zoo.load("ncf", batch=2)
    first, second = (ty.run(step, ty.machines.machine("npu(reuse=slices)")) for _ in range(2))
    assert first == second


def test_what_is_kept_crosses_the_scratchpads_port_and_no_pin() -> None:
    traffic = Traffic()
    traffic.add(Move("activation", "read", 0, 64, on_chip=True))
    traffic.add(Move("activation", "write", 0, 32, on_chip=True))
    assert (traffic.total, traffic.bytes) == (0, {})
    assert traffic.events == {"dram_read": 0.0, "dram_write": 0.0, "scratchpad_write": 32.0, "scratchpad_read": 64.0}


def test_a_repeated_work_adds_up_and_divides_its_time_by_cycles() -> None:
    parts = [
        DeviceCost(cycles=cycles, compute_cycles=1, bytes={("X", "read"): 8}, share=share, events={"mac": 2.0}, bound=bound)
        for cycles, share, bound in ((10, (0.5, 0.5), "dram"), (20, (1.0, 0.0), "compute"))
    ]
    cost = repeated([(1, parts[0]), (3, parts[1])])
    assert (cost.cycles, cost.compute_cycles, cost.bytes, cost.events) == (70, 4, {("X", "read"): 32}, {"mac": 8.0})
    assert cost.share == pytest.approx((65 / 70, 5 / 70))
    assert cost.bound == "compute"
