"""Machines of a family share what a step asks of them; all other machines do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trainyard as ty
from trainyard.arrays import Sigma, Systolic
from trainyard.construction import settable
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.family import NUMBERS
from trainyard.ir import MatMul, Op, Phase, Step
from trainyard.systems import Single
from trainyard.systems.step_columns import edges_of, energy_columns

STEP = Step("two", 1, tuple(Op(body=MatMul(*s), layer="fc", phase=Phase.FORWARD) for s in ((37, 50, 64), (100, 7, 90))), ())
BASE = Accelerator(array=Systolic(rows=4, columns=6), scratchpad="64 KiB", dram="10 GB/s")
SHARED = {
    "scratchpad_bytes": 2**15, "scratchpad_banks": 4, "dram_bytes_per_s": 3e9, "dram_latency_s": 0.0, "dram_capacity_bytes": 2**30,
    "dram_kind": "ddr4", "clock_hz": 2e9, "technology_nm": 7, "dma": "csr",
}  # fmt: skip
OTHERS = {
    "array": Systolic(rows=4, columns=8), "precision": "bf16", "rates": {"fp32": 2}, "tiling": (8, 8, 8), "cores": 2,
    "fusion": "none", "scope": "products", "im2col": "materialised", "line_buffer": False, "grad_input": "dilated",
    "vector_lanes": 2, "accumulator_bytes": 2, "order": "interleaved",
}  # fmt: skip


def test_machines_that_differ_in_such_numbers_alone_are_of_one_family() -> None:
    assert SHARED.keys() == NUMBERS
    assert settable(Accelerator).keys() > NUMBERS
    family = BASE._family(STEP)
    assert family is not None
    for name, value in SHARED.items():
        assert replace(BASE, **{name: value})._family(STEP) is family, name


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_field_makes_another_family(name: str) -> None:
    more = {"reuse": "lru"} if name == "cores" else {}
    assert replace(BASE, **{name: OTHERS[name]}, **more)._family(STEP) is not BASE._family(STEP)


def test_what_depends_on_more_than_the_family_has_none() -> None:
    for fields in ({"reuse": "layers"}, {"objective": "energy"}, {"tolerance": 0.0}, {"scratchpad_width_bytes_per_cycle": 8.0}):
        assert replace(BASE, **fields)._family(STEP) is None
    several = Step("heads", 1, (Op(body=MatMul(8, 8, 6, 3), layer="scores"),), ())
    assert replace(BASE, array=Sigma(dpes=4, multipliers=8))._family(several) is None  # heads are costed one by one


@pytest.mark.parametrize("machine", ["npu", "sigma", "tensordash"])
@pytest.mark.parametrize("model", ["resnet18", "bert-tiny"])
def test_joules_of_a_step_are_the_sums_of_its_rows(machine: str, model: str) -> None:
    device = replace(ty.machine(machine), technology_nm=11.5, scratchpad_banks=3)
    schedule = Single(device=device).schedule(ty.zoo.load(model, batch=2))
    assert schedule is not None
    spent = energy_columns(schedule.columns, schedule.costs, edges_of(schedule.columns, schedule.costs))
    assert schedule.energy_by_component() == dict(zip(schedule.costs.components, spent.sum(axis=1).tolist(), strict=True))
    assert np.all(spent >= 0.0)
