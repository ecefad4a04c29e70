"""Blocks of layers that run slice by slice: what they move, how they are told, and where they are not taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.arrays import Systolic, TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.between import kept_between
from trainyard.devices.accelerator.sliced import NOTHING, SlicedCosts, sliced_between
from trainyard.ir import DeviceCost, MatMul, Op, Role, Step, TensorSpec
from trainyard.mapping.between_layers.slices import Part
from trainyard.mapping.demand import OnChip, Residency, Slices
from trainyard.masks.generated import generated_masks

TENSORS = (
    TensorSpec((96, 16), slope=(1, 0), role=Role.INPUT), TensorSpec((16, 64), role=Role.PARAMETER),
    TensorSpec((96, 64), slope=(1, 0)), TensorSpec((64, 16), role=Role.PARAMETER), TensorSpec((96, 16), slope=(1, 0)),
)  # fmt: skip
BOTTLENECK = Step(
    "bottleneck",
    96,
    (
        Op(body=MatMul(96, 64, 16), name="up", layer="first", inputs=(0, 1), outputs=(2,), slope=(1, 0, 0, 0)),
        Op(body=MatMul(96, 16, 64), name="down", layer="second", inputs=(2, 3), outputs=(4,), slope=(1, 0, 0, 0)),
    ),
    TENSORS,
)
ROOM = 16 * 1024  # the map between the layers has 24 KiB


def accelerator(**fields: object) -> Accelerator:
    given = {"array": Systolic(rows=8, columns=8), "scratchpad_bytes": ROOM, "dram_bytes_per_s": 4e9, "clock_hz": 1e9}
    return Accelerator(**{**given, **fields})


def test_a_map_that_is_too_large_as_a_whole_stays_on_chip_slice_by_slice() -> None:
    device = accelerator(reuse="slices")
    costs = [device.cost(BOTTLENECK, work) for work in device.works(BOTTLENECK)]
    assert sum(sum(cost.bytes.values()) for cost in costs) == 4 * (2 * 96 * 16 + 2 * 16 * 64)
    assert [cost.events["mac"] for cost in costs] == [96 * 64 * 16] * 2
    whole = accelerator(reuse="layers")
    assert sum(cost.cycles for cost in costs) < sum(whole.cost(BOTTLENECK, work).cycles for work in whole.works(BOTTLENECK))


def test_the_nests_of_a_block_say_its_slices_and_its_layers() -> None:
    nests = accelerator(reuse="slices").loop_nests(BOTTLENECK)
    assert [nest.layer for nest in nests] == ["first", "second"]
    assert {nest.block for nest in nests} == {"first to second"}
    (text,) = {nest.slices for nest in nests}
    slices, samples = (int(word) for word in text.split() if word.isdigit())
    assert slices * samples == 96
    assert text == f"{slices} slices of {samples} sample{'s' if samples > 1 else ''}"


def test_slices_are_not_taken_where_whole_tensors_are_not_slower() -> None:
    device = accelerator(scratchpad_bytes=2**20)
    _, choice = kept_between(BOTTLENECK, device.policy, device._costing, 2**20)
    assert sliced_between(BOTTLENECK, device.policy, device._costing, 2**20, choice) is None


def test_a_work_in_slices_costs_so_many_times_a_slice() -> None:
    device = accelerator()
    costs = SlicedCosts(BOTTLENECK, device.works(BOTTLENECK), device.policy, device._costing)
    small, large = Part(times=2, samples=32, on_chip=NOTHING), Part(times=1, samples=32, on_chip=NOTHING)
    whole, one = costs.cost(0, NOTHING), costs.part_cost(0, small)
    assert whole is not None
    assert one is not None
    assert whole.bytes == 4 * (96 * 16 + 16 * 64 + 96 * 64)
    assert one.bytes == 4 * (32 * 16 + 16 * 64 + 32 * 64)
    costs.parts[0] = (small, large)
    assert costs.cost(0, NOTHING) == (3 * one.cycles, 3 * one.bytes)
    assert costs.cost(1, NOTHING) == costs.whole.cost(1, NOTHING)
    assert costs.cost(0, OnChip(occupied_bytes=ROOM)) is None  # no room for tiles beside what others keep
    assert costs.of(small) is costs.of(large)


def residency(step: Step, device: Accelerator) -> Residency | None:
    _, choice = kept_between(step, device.policy, device._costing, ROOM)
    found = sliced_between(step, device.policy, device._costing, ROOM, choice)
    return None if found is None else found[0].residency


def test_the_policy_of_slices_has_the_step_of_one_slice() -> None:
    found = residency(BOTTLENECK, accelerator())
    assert found is not None
    assert set(found.by_work) == {(0,), (1,)}
    for slices in found.by_work.values():
        assert isinstance(slices, Slices)
        assert sum(times * slices.step.batch for times, _, _ in slices.parts) == 96
        assert all(on_chip.occupied_bytes <= ROOM for _, on_chip, _ in slices.parts)
    assert not found.ended


def test_a_step_that_cannot_be_cut_runs_as_a_whole() -> None:
    fixed = Step("fixed", 96, BOTTLENECK.ops, BOTTLENECK.tensors, rebatchable=False)
    assert residency(fixed, accelerator()) is None
    slices, layers = (ty.run(fixed, accelerator(reuse=reuse)) for reuse in ("slices", "layers"))
    assert (slices.cycles, slices.traffic_bytes) == (layers.cycles, layers.traffic_bytes)


def test_a_search_that_its_effort_ends_says_so() -> None:
    """Two such bottlenecks one after the other."""
    again = [
        replace(op, layer=f"{op.layer} again", inputs=tuple(t + 4 for t in op.inputs), outputs=tuple(t + 4 for t in op.outputs))
        for op in BOTTLENECK.ops
    ]
    step = Step("two", 96, (*BOTTLENECK.ops, *again), (*TENSORS, *TENSORS[1:]))
    notes = [ty.run(step, accelerator(reuse="slices", effort=effort)).notes for effort in (1, 100_000)]
    told = [[note for note in some if "ended the search for what stays on chip" in note] for some in notes]
    assert [len(some) for some in told] == [1, 0]
    assert told[0][0].startswith("effort=1 ")


@pytest.mark.parametrize("reuse", ["layers", "slices"])
def test_works_take_no_less_than_their_macs_and_bytes(reuse: str) -> None:
    device = accelerator(reuse=reuse)
    for work in device.works(BOTTLENECK):
        cost: DeviceCost = device.cost(BOTTLENECK, work)
        assert cost.cycles >= max(96 * 64 * 16 / 64, sum(cost.bytes.values()) / 4)


def test_with_masks_whole_tensors_are_looked_at_not_slices() -> None:
    step = replace(BOTTLENECK, ops=tuple(replace(op, letters=("A", "W")) for op in BOTTLENECK.ops))
    masks = generated_masks(step, {"A": 0.5})
    sliced, whole = (
        accelerator(array=TensorDash(tiles=1, rows=2, columns=2, lanes=4, depth=2), reuse=reuse) for reuse in ("slices", "layers")
    )
    assert sliced.loop_nests(step, masks) == whole.loop_nests(step, masks)
    for work in whole.works(step):
        assert sliced.cost(step, work, masks) == whole.cost(step, work, masks)
