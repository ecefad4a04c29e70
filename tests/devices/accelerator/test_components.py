"""Energy and area from an array's own rows, banks of the scratchpad, and local scratchpads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.hardware.tables import area, energy
from trainyard.hardware.tables.area import ComponentArea
from trainyard.hardware.tables.energy import Component, ram_joules_per_byte
from trainyard.ir import DENSE, ArrayCost, MatMul, Op, Step, one_after_another
from trainyard.report.plots import energy_by_component

MIB = 2**20
SOURCE = "assumed: an example"


@dataclass(frozen=True)
class Measured:
    """An array whose paper has a table: a core that is busy for 10 slots a MAC, a scheduler, and a local scratchpad."""

    components: Any = (
        Component(event="core_slot", component="core", joules=2e-12, nm=65, source=SOURCE, number="fp16"),
        Component(event="core_slot", component="clock", joules=1e-12, nm=65, source=SOURCE),
        Component(event="scheduler_cycle", component="scheduler", joules=5e-12, nm=65, source=SOURCE),
    )
    component_areas: Any = (
        ComponentArea(component="core", m2=6e-6, nm=65, source=SOURCE, number="fp16"),
        ComponentArea(component="scheduler", m2=1e-6, nm=65, source=SOURCE),
        ComponentArea(component="local", m2=2e-6, nm=65, source=SOURCE, memory=True),
    )
    local_bytes: int | None = 1024
    peak_macs_per_cycle: int = 16

    def granule(self):
        return (4, 4, 4)

    def cost(self, op, *, a=DENSE, b=DENSE):
        counted = {
            "mac": op.macs, "core_slot": 10 * op.macs, "scheduler_cycle": 7,
            "scratchpad_read_a": op.M * op.K, "scratchpad_read_b": op.K * op.N, "scratchpad_write_out": op.M * op.N,
            "local_read_a": 3 * op.M * op.K, "local_write_b": 5 * op.K * op.N, "local_read_out": 2, "local_write_out": 11,
        }  # fmt: skip
        return ArrayCost(cycles=max(1, op.macs // 16), events={name: float(count) for name, count in counted.items()})

    def concurrent(self, products):
        return one_after_another(self, products)


CHIP = Accelerator(
    array=Measured(), scratchpad_bytes=8 * MIB, dram="10 GB/s", precision="fp16", technology_nm=65, dram_kind="lpddr4",
    clock="500 MHz",
)  # fmt: skip
STEP = Step(name="one", batch=1, ops=(Op(body=MatMul(8, 8, 8), layer="layer"),), tensors=())


def costed(device):
    (work,) = device.works(STEP)
    return device.cost(STEP, work)


def test_events_times_the_arrays_rows_in_place_of_the_tables_macs():
    cost = costed(replace(CHIP, precision=None))
    assert cost.events["mac_fp32"] == 512
    joules = CHIP.energy({**{k: v for k, v in cost.events.items() if k != "mac_fp32"}, "mac_fp16": 512.0})
    assert joules["mac"] == 0
    assert joules["core"] == pytest.approx(5120 * 2e-12, rel=1e-6, abs=0.0)
    assert joules["clock"] == pytest.approx(5120 * 1e-12, rel=1e-6, abs=0.0)
    assert joules["scheduler"] == pytest.approx(7 * 5e-12, rel=1e-6, abs=0.0)
    assert set(joules) == {"mac", "scratchpad", "dram", "vector", "core", "clock", "scheduler", "local"}


def test_arithmetic_changes_with_its_format_and_nothing_else_does():
    fp16 = CHIP.energy({"core_slot": 100.0, "scheduler_cycle": 10.0, "mac_fp16": 10.0})
    bf16 = CHIP.energy({"core_slot": 100.0, "scheduler_cycle": 10.0, "mac_bf16": 10.0})
    assert bf16["core"] / fp16["core"] == pytest.approx(energy.mac_joules("bf16", 65) / energy.mac_joules("fp16", 65))
    assert (bf16["clock"], bf16["scheduler"]) == (fp16["clock"], fp16["scheduler"])
    plain = replace(CHIP, precision="bf16").energy({"core_slot": 100.0})  # no product says its format: the device's own
    assert plain["core"] == pytest.approx(bf16["core"], rel=1e-6, abs=0.0)


@given(nm=st.floats(7, 90), number=st.sampled_from(["fp16", "bf16", "fp32", "int8"]))
def test_rows_follow_the_node_as_a_multiply_accumulate_does(nm, number):
    core, clock, _ = Measured().components
    assert core.at(nm, number) == pytest.approx(
        2e-12 * energy.mac_joules(number, nm) / energy.mac_joules("fp16", 65), rel=1e-6, abs=0.0
    )
    assert clock.at(nm, number) == pytest.approx(
        1e-12 * energy.mac_joules("fp16", nm) / energy.mac_joules("fp16", 65), rel=1e-6, abs=0.0
    )
    if nm >= 45:
        ratio = energy.gate_energy(nm) / energy.gate_energy(65)
        assert clock.at(nm, number) == pytest.approx(1e-12 * ratio, rel=1e-6, abs=0.0)


def test_rows_are_kept_exactly_at_their_own_node_and_format():
    for row in Measured().components:
        assert row.at(65, "fp16") == row.joules
    for row in Measured().component_areas:
        assert row.at(65, "fp16") == row.m2


def test_local_scratchpads_cost_the_energy_of_one_of_them():
    cost = costed(CHIP)
    assert cost.events["local_read"] == 3 * 64 * 2 + 2 * 4  # elements of 2 bytes, sums of 4
    assert cost.events["local_write"] == 5 * 64 * 2 + 11 * 4
    joules = CHIP.energy(cost.events)["local"]
    assert joules == pytest.approx(
        sum(cost.events[f"local_{way}"] * ram_joules_per_byte(way, 1024, 65) for way in ("read", "write")),
        rel=1e-6,
        abs=0.0,
    )
    assert not {event for event in cost.events if event.endswith(("_a", "_b", "_out"))}


def test_an_array_that_hides_the_size_of_its_scratchpads_is_refused():
    hidden = replace(CHIP, array=Measured(local_bytes=None))
    with pytest.raises(BadInput, match="Measured counts local_read: give it local_bytes"):
        hidden.energy(costed(hidden).events)


@given(banks=st.sampled_from([1, 2, 64, 192]))
def test_an_access_costs_the_energy_of_one_bank(banks):
    chip = replace(CHIP, scratchpad_bytes=24 * MIB, scratchpad_banks=banks)
    for way in ("read", "write"):
        assert chip.energy({f"scratchpad_{way}": 8.0})["scratchpad"] == 8 * ram_joules_per_byte(way, 24 * MIB / banks, 65)
    assert chip.supply == replace(chip, scratchpad_banks=1).supply
    assert chip.area()["scratchpad"] == area.sram_m2(24 * MIB, 65)


def test_banks_must_be_a_positive_whole_number():
    with pytest.raises(BadInput, match="scratchpad_banks must be a positive whole number"):
        replace(CHIP, scratchpad_banks=0)


def test_area_is_the_arrays_own_where_it_has_one():
    found = CHIP.area()
    assert found == {"core": 6e-6, "scheduler": 1e-6, "local": 2e-6, "scratchpad": area.sram_m2(8 * MIB, 65)}
    narrow, small = replace(CHIP, precision="bf16").area(), replace(CHIP, technology_nm=16).area()
    assert narrow["core"] / found["core"] == pytest.approx(area.mac_m2("bf16", 65) / area.mac_m2("fp16", 65))
    assert narrow["scheduler"] == found["scheduler"]
    assert small["scheduler"] / found["scheduler"] == pytest.approx(area.area_factor(16) / area.area_factor(65))
    assert small["local"] / found["local"] == pytest.approx(area.sram_m2(1, 16) / area.sram_m2(1, 65))


def test_arrays_without_rows_are_charged_by_the_tables():
    plain = replace(CHIP, array=Systolic(rows=4, columns=4))
    joules = plain.energy({"mac": 10.0, "mac_fp16": 4.0, "core_slot": 100.0})
    macs = pytest.approx(10 * energy.mac_joules("fp16", 65), rel=1e-6, abs=0.0)
    assert joules == {"mac": macs, "scratchpad": 0, "dram": 0, "vector": 0}
    odd = plain.energy({"mac": 10.0, "mac_int64": 10.0})  # a format without a row counts as the device's
    assert odd["mac"] == macs


def test_what_sampling_leaves_open_reaches_the_cost():
    class Masks:
        digest = "none"
        specs = ()

    @dataclass(frozen=True)
    class Sampling(Measured):
        def cost(self, op, *, a=DENSE, b=DENSE):
            return replace(super().cost(op), uncertainty=3.0)

    (work,) = CHIP.works(STEP)
    assert CHIP.cost(STEP, work, Masks()).uncertainty == 0
    assert replace(CHIP, array=Sampling(), tiling=(8, 8, 8)).cost(STEP, work, Masks()).uncertainty == 3.0
    assert replace(CHIP, array=Sampling(), tiling=(4, 8, 8)).cost(STEP, work, Masks()).uncertainty >= 18**0.5  # two tiles


def test_reports_show_every_component():
    result = ty.run(STEP, on=CHIP)
    assert {"core", "clock", "scheduler", "local"} <= set(result.columns.energy)
    text = result.explain("layer")
    assert all(name in text for name in ("core", "scheduler", "local"))
    drawn = energy_by_component(result).to_json()
    assert all(f'"{name}"' in drawn for name in ("core", "clock", "scheduler", "local"))


def test_rows_that_cannot_be_are_refused():
    with pytest.raises(BadInput, match="Component core: joules"):
        Component(event="core_slot", component="core", joules=-1.0, nm=65, source=SOURCE)
    with pytest.raises(BadInput, match="outside the tables"):
        ComponentArea(component="core", m2=1.0, nm=3, source=SOURCE)
