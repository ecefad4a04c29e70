"""Results of one device compute their fields when they are read: every key against the twin, which books Work by Work at once."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Spatial, Systolic, TensorCore, TensorDash
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import ElementWise, MatMul, Op, Phase, Step
from trainyard.ir.plan import LONGEST_PS, picoseconds
from trainyard.kernels.mapping.product_costs import durations
from trainyard.results.result import DEFERRED, Result
from trainyard.systems import Single

MODELS = [("resnet18", 2), ("bert-tiny", 2), ("mobilenet", 1)]
BASES = [
    Accelerator(array=array, scratchpad="2 MiB", dram="100 GB/s", precision=precision)
    for array, precision in (
        (Systolic(rows=32, columns=64), None),
        (Spatial(elements=96, macs_per_element=20), "bf16"),
        (TensorCore(tiles=30, rows=4, columns=2), {"parameter": "fp16"}),
        (TensorDash(tiles=16, multicast=False), None),
    )
]
changed_fields = st.fixed_dictionaries(
    {},
    optional={
        "clock_hz": st.floats(1e6, 5e9),
        "dram_bytes_per_s": st.floats(1e8, 5e12),
        "dram_latency_s": st.sampled_from([0.0, 1e-9, 100e-9, 5e-6]),
        "technology_nm": st.floats(7, 90),
        "dram_kind": st.sampled_from(["hbm2", "gddr6", "ddr4", "lpddr4"]),
        "scratchpad_banks": st.sampled_from([1, 2, 16]),
        "dram_capacity_bytes": st.sampled_from([None, 1_000_000, 2**40]),
        "scratchpad_bytes": st.integers(200_000, 5_000_000),
        "vector_lanes": st.sampled_from([1, 100, 4096]),
    },
)


@cache
def step_of(model: str, batch: int) -> Step:
    return ty.zoo.load(model, batch=batch)


def booked_at_once(step: Step, device: Accelerator) -> Result:
    """The same run, planned Work by Work."""
    with patch.object(Single, "schedule", lambda *_: None):
        return ty.run(step, on=device)


@pytest.mark.oracle
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(model=st.sampled_from(MODELS), base=st.sampled_from(BASES), changes=st.lists(changed_fields, min_size=1, max_size=3))
def test_every_key_is_that_of_the_twin_after_any_changes(
    model: tuple[str, int], base: Accelerator, changes: list[dict[str, object]]
) -> None:
    """Machines follow each other, so that what is shared between them would show."""
    step = step_of(*model)
    for change in changes:
        device = replace(base, **change)
        found, twin = ty.run(step, on=device), booked_at_once(step, device)
        assert (found.time_s, found.energy_j, found.cycles) == (twin.time_s, twin.energy_j, twin.cycles)  # before rows are booked
        assert found.as_dict() == twin.as_dict()
        assert found == twin
        assert found.timeline == twin.timeline
        assert found.entries == twin.entries


@pytest.mark.parametrize("name", sorted(DEFERRED))
def test_each_deferred_field_is_computed_when_it_is_read_first(name: str) -> None:
    step, device = step_of("bert-tiny", 2), ty.machine("npu")
    found = ty.run(step, on=device)
    assert name not in vars(found)
    assert getattr(found, name) == getattr(booked_at_once(step, device), name)
    assert getattr(found, name) is getattr(found, name)


def test_an_unread_result_pickles_copies_and_changes_whole() -> None:
    step, device = step_of("bert-tiny", 2), ty.machine("npu")
    twin = booked_at_once(step, device)
    assert pickle.loads(pickle.dumps(ty.run(step, on=device))) == twin
    assert copy.copy(ty.run(step, on=device)) == twin
    assert replace(ty.run(step, on=device), machine="mine") == replace(twin, machine="mine")
    assert ty.run(step, on=device) + ty.run(step, on=device) == twin + twin
    assert {field.name for field in fields(Result)} >= DEFERRED
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        _ = ty.run(step, on=device).speed


@pytest.mark.probe
def test_events_that_real_numbers_cannot_count_are_added_up_by_the_twin() -> None:
    """The cycles are few enough; the multiplications are not."""
    body = MatMul(2**18, 2**18, 2**18)
    step = Step("cube", 1, (Op(body=body, name="mm", layer="fc", phase=Phase.FORWARD),), ())
    device = replace(ty.machine("npu"), array=Systolic(rows=4096, columns=4096), scratchpad_bytes=2**34, dram_bytes_per_s=1e13)
    schedule = Single(device=device).schedule(step)
    assert schedule is not None
    assert not schedule.costs.exact
    assert ty.run(step, on=device).energy_j == booked_at_once(step, device).energy_j
    assert ty.run(step, on=device).as_dict() == booked_at_once(step, device).as_dict()


def test_a_refusal_comes_with_the_run_and_not_with_the_first_read() -> None:
    op = Op(body=MatMul(4096, 4096, 4096), name="mm", layer="fc", phase=Phase.FORWARD)
    step, device = Step("one", 1, (op,), ()), ty.machine("npu")
    slow = replace(device, clock_hz=1e-3, dram_bytes_per_s=150.0)  # more than the 53 days of the clock
    for refused in (replace(device, precision="int64"), replace(device, scratchpad_bytes=8), slow):
        with pytest.raises((BadInput, LookupError)) as reason:
            ty.run(step, on=refused)
        with pytest.raises(type(reason.value)) as twin:
            booked_at_once(step, refused)
        assert str(reason.value) == str(twin.value)
    outside = Step("none", 1, (Op(body=ElementWise("relu", 8), name="relu", layer="act", phase=Phase.FORWARD),), ())
    with pytest.raises(BadInput, match="takes no time on npu: none of its 1 ops is simulated"):
        ty.run(outside, on="npu", scope="products")


@given(
    cycles=st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=5),
    clock=st.one_of(st.floats(1e-3, 1e18), st.integers(1, 10**12), st.floats(9.99e8, 1.001e9)),
)
def test_compiled_picoseconds_are_the_exact_quotient_rounded_up(cycles: list[int], clock: float) -> None:
    numerator, denominator = clock.as_integer_ratio()
    exact = [picoseconds(count, clock) for count in cycles]
    if max(numerator, denominator) >= LONGEST_PS:
        return
    counts, works = np.array(cycles), np.arange(len(cycles))
    times, end, summed, multiplied = durations(counts, counts, works, works % 2 == 0, float(clock), numerator, denominator)
    if end < 0:
        assert sum(exact) >= LONGEST_PS // 4 or numerator >= 2**50  # near the end of what 64 bits hold
    else:
        assert times.tolist() == exact
        assert (end, summed, multiplied) == (sum(exact), sum(cycles), sum(cycles[::2]))


@pytest.mark.probe
@pytest.mark.parametrize("late", [-1, 0, 1])
def test_a_cycle_that_ends_just_after_a_picosecond_takes_the_next(late: int) -> None:
    """A clock of 1 GHz less `late` parts of 2**30: its cycle is 1000 ps, or ends within the picosecond before or behind it."""
    clock = 1e9 - late * 2.0**-20
    once, first = np.ones(1, np.int64), np.zeros(1, np.int64)
    times, end, *_ = durations(once, once, first, first == 0, clock, *clock.as_integer_ratio())
    assert times.tolist() == [picoseconds(1, clock)] == [1001 if late > 0 else 1000]
    assert end == times[0]
