"""A single device: times are the sum of its Works, memory follows the tensors' lives."""

from __future__ import annotations

import pytest

import trainyard as ty
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.ir.plan import picoseconds


def test_the_step_is_the_sum_of_its_works(device: Accelerator, step: Step) -> None:
    result = ty.run(step, on=device)
    costs = [device.cost(step, work) for work in device.works(step)]
    assert result.cycles == sum(cost.cycles for cost in costs)
    assert result.time_ps == sum(picoseconds(cost.cycles, device.clock_hz) for cost in costs)
    assert result.traffic_bytes["dram"] == sum(sum(cost.bytes.values()) for cost in costs)
    assert result.energy_j == pytest.approx(sum(sum(device.energy(cost.events).values()) for cost in costs))
    assert result.by_class["idle"].time_s == 0


def test_the_array_is_busy_with_products_alone(device: Accelerator, step: Step) -> None:
    result = ty.run(step, on=device)
    works = device.works(step)
    products = [work for work in works if any(step.ops[index].is_product for index in work.ops)]
    assert 0 < len(products) < len(works)
    assert result.array_cycles == sum(device.cost(step, work).compute_cycles for work in products)
    assert 0 < result.array_cycles < result.cycles
    assert ty.run(step, on="h200").array_cycles is None  # a GPU's roofline has no array of its own


def test_memory_is_what_is_alive(device: Accelerator, step: Step) -> None:
    """Against a plain walk over the ops, one Work each (no fusion)."""
    result = ty.run(step, on=device, fusion="none")
    resident = sum(t.bytes for t in step.tensors if t.view_of is None and t.role.resident)
    last = {t: i for i, op in enumerate(step.ops) for t in map(step.base, (*op.inputs, *op.outputs))}
    alive, peak = 0, 0
    for index, op in enumerate(step.ops):
        made = [t for t in op.outputs if step.tensors[t].view_of is None and not step.tensors[t].role.resident]
        alive += sum(step.tensors[t].bytes for t in made)
        peak = max(peak, alive)
        alive -= sum(step.tensors[t].bytes for t, end in last.items() if end == index and not step.tensors[t].role.resident)
    assert result.peak_memory_bytes["device memory"] == resident + peak
    assert alive == 0


def test_a_step_that_does_not_fit_says_so(step: Step, device: Accelerator) -> None:
    result = ty.run(step, on=device, dram_capacity_bytes=1000)
    assert any("does not fit" in note for note in result.notes)


@pytest.mark.parametrize(("cycles", "clock", "expected"), [(1, 1e9, 1000), (1, 1.05e9, 953), (0, 1e9, 0), (21, 1.05e9, 20000)])
def test_cycles_round_up_to_whole_picoseconds(cycles: int, clock: float, expected: int) -> None:
    assert picoseconds(cycles, clock) == expected


def test_memory_is_held_in_the_precision_of_the_device(device: Accelerator, step: Step) -> None:
    whole, half = ty.run(step, on=device), ty.run(step, on=device, precision="bf16")
    assert half.peak_memory_bytes["device memory"] * 2 == whole.peak_memory_bytes["device memory"]


def test_a_step_without_anything_in_scope_is_refused(device: Accelerator, step: Step) -> None:
    with pytest.raises(BadInput, match=r"takes no time on .*none of its 2 ops is simulated"):
        ty.run(step.only(Phase.UPDATE), on=device, scope="products")


@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
def test_no_row_moves_more_than_the_bandwidth_allows(model: str) -> None:
    """Time, energy and bytes of a fused Work are divided alike: no layer of it may seem faster than the DRAM."""
    result = ty.run(model, on="npu")
    for (layer, phase), cost in result.group("layer", "phase").items():
        allowed = cost.time_s * result.peaks.dram_bytes_per_s
        assert cost.traffic_bytes["dram"] <= allowed * (1 + 1e-6) + 64, f"{layer} {phase}"


def large_step() -> Step:
    """A product whose operands take 3 x 64 GiB in fp32."""
    tensors = tuple(TensorSpec((2**17, 2**17), "fp32", Role.PARAMETER) for _ in range(3))
    return Step("large", 1, (Op(body=MatMul(2**17, 2**17, 2**17), inputs=(0, 1), outputs=(2,)),), tensors)


@pytest.mark.parametrize("machine", ["npu", "npu-small", "tpu", "sigma", "spatial", "eie"])
def test_a_large_step_on_a_machine_without_a_stated_memory_has_a_note_of_its_need(machine: str) -> None:
    notes = [note for note in ty.run(large_step(), on=machine).notes if note.startswith("device memory: the step needs 206 GB")]
    assert len(notes) == 1
    assert "states no capacity" in notes[0]


@pytest.mark.parametrize("machine", ["h200", "a100", "tensordash", "tensorcore", "npu(dram_capacity=64 GB)"])
def test_a_large_step_on_a_machine_with_a_stated_memory_does_not_fit(machine: str) -> None:
    assert sum("does not fit this machine" in note for note in ty.run(large_step(), on=machine).notes) == 1


def test_a_small_step_has_no_note_of_memory(step: Step) -> None:
    for machine in ("npu", "tpu", "sigma", "h200", "tensordash"):
        assert not any("memory" in note for note in ty.run(step, on=machine).notes)
