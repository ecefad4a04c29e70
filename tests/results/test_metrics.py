"""Power, energy-delay product, static energy and area: they follow from result and machine, in runs, sweeps, searches."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.errors import BadInput, UnknownKey, UnknownName
from trainyard.hardware.tables import area
from trainyard.hardware.tables.cells import LEAKAGE_W_PER_M2, SRAM_LEAKAGE_W_PER_BIT
from trainyard.results.metrics import BASE, DERIVED, metric_of, metrics_of
from trainyard.sweep.running import sweep


@pytest.fixture(scope="module")
def result() -> ty.Result:
    return ty.run("linear", on="npu")


def test_power_and_products_follow_from_energy_and_time(result: ty.Result) -> None:
    assert result.power_w == pytest.approx(result.energy_j / result.time_s)
    assert result.energy_delay_js == pytest.approx(result.energy_j * result.time_s)
    assert result.energy_per_sample_j == pytest.approx(result.energy_j / result.batch)


def test_area_and_leakage_are_those_of_the_tables(result: ty.Result) -> None:
    npu = ty.machine("npu")
    macs = 128 * 128 * area.mac_m2(npu.number, npu.technology_nm)
    sram = area.sram_m2(npu.scratchpad_bytes, npu.technology_nm)
    assert result.area_by_component == {"mac": macs, "scratchpad": sram}
    assert result.area_m2 == macs + sram
    watts = macs * LEAKAGE_W_PER_M2 + npu.scratchpad_bytes * 8 * SRAM_LEAKAGE_W_PER_BIT
    assert result.static_energy_j == pytest.approx(watts * result.time_s)
    assert result.total_energy_j == pytest.approx(result.energy_j + watts * result.time_s)


def test_a_laid_out_array_leaks_within_its_own_rows() -> None:
    machine = ty.machine("tensordash")
    assert machine.leakage_w == pytest.approx(machine.scratchpad_bytes * 8 * SRAM_LEAKAGE_W_PER_BIT)
    assert "core" in machine.area()


def test_static_components_that_energy_has_are_not_added_again() -> None:
    board = ty.run("linear", on="h200")
    assert board.static_energy_j == board.energy_by_component["static"]
    assert board.total_energy_j == board.energy_j


def test_a_system_of_several_devices_has_the_area_of_all_of_them() -> None:
    node = ty.run("alexnet", on="mcdla-b(device=npu)", batch=64)
    assert node.area_m2 == pytest.approx(8 * sum(ty.machine("npu").area().values()))


def test_what_a_machine_does_not_state_is_missing_and_not_zero() -> None:
    board = ty.run("linear", on="upmem")
    assert board.area_m2 is None
    assert "area_m2" not in metrics_of(board, DERIVED)
    with pytest.raises(BadInput, match="upmem has no area_m2"):
        metric_of(board, "area_m2")


def test_metrics_by_name_are_the_attributes(result: ty.Result) -> None:
    for name in (*BASE, *DERIVED):
        if name != "memory_share":
            assert metric_of(result, name) == getattr(result, name)
    with pytest.raises(BadInput, match="has no memory_share: the machine does not state it"):
        metric_of(result, "memory_share")
    assert metric_of(result, "traffic_bytes.dram") == result.traffic_bytes["dram"]
    with pytest.raises(UnknownName, match="did you mean 'energy_delay_js'"):
        metric_of(result, "energy_delay")
    with pytest.raises(BadInput, match=r"several numbers: write traffic_bytes\.dram"):
        metric_of(result, "traffic_bytes")


def test_the_json_has_them(result: ty.Result) -> None:
    table = json.loads(result.to_json())
    for name in ("power_w", "energy_per_sample_j", "energy_delay_js", "static_energy_j", "total_energy_j", "area_m2"):
        assert table[name] == getattr(result, name)
    assert math.fsum(table["area_by_component_m2"].values()) == pytest.approx(table["area_m2"])


def test_a_missing_key_names_its_neighbour_and_is_still_a_key_error(result: ty.Result) -> None:
    layer = next(name for name in result.by_layer if name)
    with pytest.raises(UnknownKey, match=f"unknown layer '{layer}x': did you mean '{layer}'"):
        result.by_layer[f"{layer}x"]
    with pytest.raises(KeyError):
        result.energy_by_component["drom"]
    assert result.by_phase.get("nothing") is None
    again = pickle.loads(pickle.dumps(result.by_layer))
    assert again == result.by_layer
    assert type(again) is type(result.by_layer)


def test_a_wrong_attribute_names_its_neighbour(result: ty.Result) -> None:
    with pytest.raises(AttributeError, match="did you mean 'energy_j'"):
        result.enrgy_j  # noqa: B018


def test_technology_changes_what_follows_from_energy_and_area() -> None:
    study = ty.whatif("linear", "npu", metric="area_m2", kinds=("assumption",), paired=0)
    effects = {effect.name: effect.change for effect in study.effects}
    assert effects["technology_nm"] < -0.3


STUDY = """
name = "figures"
workloads = ["linear"]
machine = "npu"
metrics = ["power_w", "area_by_component.mac"]
objectives = { energy_delay_js = "min", area_m2 = "min" }
[axes]
"array.rows" = [16, 64]
"""


@pytest.mark.parametrize("search", ["", "[search]\ntrials = 2\ngeneration = 2\n"])
def test_sweeps_store_and_searches_minimise_them(tmp_path: Path, search: str) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(STUDY + search)
    summary = sweep(file, store=tmp_path / "store", workers=1)
    assert summary.failed == 0
    for record in summary.records:
        alone = ty.run("linear", on="npu", **{"array.rows": record.settings["array.rows"]})
        for name in ("power_w", "energy_delay_js", "area_m2"):
            assert record.metrics[name] == pytest.approx(getattr(alone, name))
        assert record.metrics["area_by_component.mac"] == pytest.approx(alone.area_by_component["mac"])


def test_a_layer_that_no_workload_has_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    file = tmp_path / "layers.toml"
    file.write_text(STUDY.replace('"power_w"', '"by_layer.los.energy_j"'))
    with pytest.raises(UnknownName, match=r"unknown layer 'los' in .*did you mean 'loss'"):
        sweep(file, store=tmp_path / "store", workers=1)


def test_the_parts_that_direct_adds_have_an_area() -> None:
    system = ty.machine("direct")
    areas = ty.run("linear", on=system).area_by_component
    assert areas["agau_adder"] == pytest.approx(system.clusters * system.agau.areas["agau_adder"])
    assert sum(areas.values()) == pytest.approx(
        sum(system.crossbar.areas.values()) + system.clusters * sum(system.agau.areas.values()) + sum(system.dsc.areas.values())
    )


def test_sums_of_one_machine_keep_its_area(result: ty.Result) -> None:
    assert (result + result).area_m2 == result.area_m2
    assert replace(result, on=None).area_m2 is None
