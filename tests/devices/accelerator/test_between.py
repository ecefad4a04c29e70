"""Tensors that stay on chip between layers, on accelerators of many kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.devices.accelerator import between, sliced
from trainyard.devices.accelerator.counting import Traffic
from trainyard.devices.accelerator.side_by_side import repeated
from trainyard.ir import DeviceCost, MatMul
from trainyard.mapping.between_layers.search import Choice, Cost
from trainyard.mapping.demand import Move, ProductDemand, Residency
from trainyard.mapping.tiling import Problem

MASKS = "sparsity(A=0.6,G=0.5)"


@pytest.mark.parametrize(
    ("machine", "masks"),
    [
        pytest.param("npu(array=tensordash,{})", MASKS, marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("plain", "kept", "slices", "chosen"),
    [(9, 5, 5, "slices"), (9, 5, 6, "kept"), (9, 6, 5, "slices"), (5, 5, 5, "plain"), (9, 5, None, "kept")],
)
def test_of_equal_policies_the_plain_one_is_taken_and_slices_before_whole_tensors(
    plain: int, kept: int, slices: int | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where slices cost what whole tensors do, they are those whose search was ended: the result says so."""
    device, step = ty.machines.machine("npu(reuse=slices)"), ty.zoo.load("linear", batch=2)
    policies = {name: replace(device.policy, residency=Residency({})) for name in ("kept", "slices")} | {"plain": device.policy}
    cycles = {"plain": plain, "kept": kept, "slices": slices or 0}
    least = Cost(kept, 0)
    choice = Choice(kept=(), states={}, costs=(), before=Cost(plain, 0), after=least, bound=least, proved=True)
    monkeypatch.setattr(between, "kept_between", lambda *_: (policies["kept"], choice))
    monkeypatch.setattr(sliced, "sliced_between", lambda *_: None if slices is None else (policies["slices"], []))
    named = {id(policy): name for name, policy in policies.items()}
    monkeypatch.setattr(between, "_costed", lambda _, policy, *__: ({}, Cost(cycles[named[id(policy)]], 0)))
    found, _ = between.chosen_between(step, device.policy, device._costing, 2**20, slices=True)
    assert found is policies[chosen]


def test_a_cost_at_two_sizes_holds_between_them_and_what_has_no_room_has_none_with_less() -> None:
    rooms = between._Rooms()
    fast, slow = Cost(5, 1), Cost(6, 1)
    for occupied, cost in ((100, fast), (0, fast), (300, None), (200, slow), (0, slow)):
        rooms.put(occupied, cost)  # the second cost of a size is not taken
    assert (rooms.occupied, rooms.costs) == ([0, 100, 200, 300], [fast, fast, slow, None])
    assert [rooms.find(occupied) for occupied in (0, 50, 100, 200, 300)] == [(0, True), (1, True), (1, True), (2, True), (3, True)]
    assert [rooms.find(occupied) for occupied in (150, 250)] == [(2, False), (3, False)]
    assert rooms.find(301) == (3, True)
    assert [rooms.same(occupied) for occupied in (50, 100, 200, 300, 400)] == [
        (0, 100),
        (0, 100),
        (200, 200),
        (300, 300),
        (300, 300),
    ]
    assert between._Rooms().find(0) == (0, False)


@pytest.mark.parametrize(("operations", "loaded"), [(0, None), (20_001, None), (0, 64)])
def test_a_products_cost_without_its_events_is_that_of_the_device(operations: int, loaded: int | None) -> None:
    """40 x 30 x 20 on two lanes; an operand that stays is read once, however often its tiles are."""
    device = ty.devices.Accelerator(
        array=ty.arrays.Systolic(rows=4, columns=4), scratchpad_bytes=2000, dram="4 GB/s", clock="1 GHz", vector_lanes=2
    )
    problem = Problem.dense(MatMul(40, 30, 20), 4)
    demand = ProductDemand(
        problem=problem, labels=("X", "W", "Y"), element_bytes=(4, 4, 4), drained=((Move("Y", "write", 4800, 4800),),),
        number="fp32", vector_operations=operations, loaded_bytes=(None, loaded),
    )  # fmt: skip
    cost, tiles_bytes = between._product(device._costing, demand)
    (whole,), (tiled,) = device._costing.costs([demand]), device._costing.searched([problem])
    assert cost == (whole.cycles, sum(whole.bytes.values()))
    assert cost.cycles == max(tiled.cycles, 10_001 if operations else 0)
    assert whole.bytes["W", "read"] == (tiled.b_read if loaded is None else 30 * 20 * 4)
    m, n, k = min(40, tiled.tiling.m), min(30, tiled.tiling.n), min(20, tiled.tiling.k)
    assert tiles_bytes == 4 * (m * k + k * n + m * n) <= 1000
