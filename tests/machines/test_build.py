from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Spatial, Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Array, Device
from trainyard.machines import describe, from_table, machine, names, part_types, preset, title, with_overrides
from trainyard.machines.registry import kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """A system made up for these tests: every kind of field that a part may have."""

    device: Device
    spare: Device | None = None
    link_bytes_per_s: float = 1e9
    link_bytes: int = 4096
    label: str = "yard"
    tile: tuple[int, int, int] | Literal["search"] = "search"
    exact: bool = False
    policy: Literal["near", "far"] = "near"
    limit_s: float | None = None

    def plan(self, step: Any, masks: Any = None) -> Any:
        raise NotImplementedError


@pytest.fixture
def yard() -> Yard:
    return Yard(device=preset("npu"))


@pytest.mark.parametrize("name", names())
def test_every_name_is_a_machine(name: str) -> None:
    found = machine(name)
    assert kind_of(found) in ("device", "system")
    assert title(found) == name
    assert names()[name]


@pytest.mark.parametrize("name", names())
def test_a_described_machine_comes_back(name: str) -> None:
    assert from_table(describe(machine(name))) == machine(name)


@given(
    st.integers(1, 512), st.integers(1, 512), st.sampled_from(["ws", "os", "is"]), st.booleans(),
    st.floats(1e6, 1e10), st.integers(2**16, 2**30), st.floats(1e6, 1e13),
)  # fmt: skip
def test_any_accelerator_comes_back(
    rows: int, columns: int, dataflow: Any, pipelined: bool, clock: float, scratchpad: int, dram: float
) -> None:
    array = Systolic(rows=rows, columns=columns, dataflow=dataflow, pipelined=pipelined)
    made = replace(preset("npu"), array=array, clock_hz=clock, scratchpad_bytes=scratchpad, dram_bytes_per_s=dram)
    assert from_table(describe(made)) == made


def test_keys_may_leave_out_their_unit() -> None:
    made = machine("npu(dram=75 GB/s, scratchpad=4 MiB, clock=1.4 GHz)")
    assert made == replace(preset("npu"), dram_bytes_per_s=75e9, scratchpad_bytes=4 * 2**20, clock_hz=1.4e9)
    assert machine("npu(dram_bytes_per_s=75e9)").dram_bytes_per_s == 75e9


def test_swapping_the_array_keeps_the_rest() -> None:
    npu = preset("npu")
    assert machine("npu(array=systolic(rows=64,columns=32,dataflow=os))") == replace(
        npu, array=Systolic(rows=64, columns=32, dataflow="os")
    )
    assert machine("npu(array=spatial)").array == preset("spatial").array
    assert machine("npu(array=spatial(elements=512))").array == replace(preset("spatial").array, elements=512)
    assert machine("npu(array=npu-small)") == replace(npu, array=preset("npu-small").array)


def test_the_same_type_keeps_what_is_not_given() -> None:
    assert machine("npu(array=systolic(dataflow=os))").array == replace(preset("npu").array, dataflow="os")


def test_a_device_type_at_the_top() -> None:
    made = machine("accelerator(array=systolic(rows=8,columns=8),clock=1 GHz,scratchpad=64 KiB,dram=10 GB/s)")
    assert isinstance(made, Accelerator)
    assert made.array == Systolic(rows=8, columns=8)


def test_objects_pass_through() -> None:
    npu = preset("npu")
    assert machine(npu) is npu
    assert with_overrides(npu, {}) is npu


@pytest.mark.parametrize("text", ["systolic", "systolic(rows=4,columns=4)"])
def test_an_array_is_not_a_machine(text: str) -> None:
    with pytest.raises(BadInput, match=r"is an array, not a machine.*npu\(array=systolic\)"):
        machine(text)
    with pytest.raises(BadInput, match="is an array, not a machine"):
        machine(Systolic(rows=4, columns=4))


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'npu'"):
        machine("npo")
    with pytest.raises(UnknownName, match="did you mean 'scratchpad'"):
        machine("npu(scratchpat=4 MiB)")
    with pytest.raises(UnknownName, match="did you mean 'systolic'"):
        machine("npu(array=sistolic)")
    with pytest.raises(UnknownName, match=r"in array: did you mean 'rows'"):
        machine("npu(array=systolic(rowz=4))")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("npu(clock=-1 GHz)", "clock_hz"),
        ("npu(clock=nan)", "clock_hz"),
        ("npu(scratchpad=fast)", "scratchpad_bytes: 'fast' is not a quantity in B"),
        ("npu(scratchpad=1.5)", "not a whole number"),
        ("npu(array=systolic(rows=0))", "rows"),
        ("npu(array=systolic(rows=4.5))", "array.rows: '4.5' is not a whole number"),
        ("npu(array=systolic(dataflow=up))", "array.dataflow"),
        ("npu(array=npu(dram=4))", "array"),
        ("npu(clock=npu)", "clock_hz"),
        ("tensordash(array.options=4)", "array.options: '4' is none of a list such as ((1,1),(1,1)), none"),
        ("npu(clock=systolic(rows=4))", "is a part, but float is expected"),
        ("npu(dram=1 GB/s,dram_bytes_per_s=4)", "dram_bytes_per_s is given twice"),
        ("accelerator", "accelerator needs array"),
        ("npu(array=systolic(rows=1,columns=1),array.rows=4)", ""),
    ],
)
def test_wrong_values_name_their_path(text: str, says: str) -> None:
    if not says:
        assert machine(text).array == Systolic(rows=4, columns=1)
        return
    with pytest.raises((BadInput, UnknownName)) as caught:
        machine(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_by_path() -> None:
    changed = with_overrides(preset("npu"), {"array.rows": 64, "array.columns": "32", "dram": "75 GB/s"})
    assert changed == replace(preset("npu"), array=replace(preset("npu").array, rows=64, columns=32), dram_bytes_per_s=75e9)
    with pytest.raises(BadInput, match="has no fields inside"):
        with_overrides(preset("npu"), {"clock.hz": 4})


def test_overrides_replace_the_whole_before_its_fields() -> None:
    changed = with_overrides(preset("npu"), {"array.elements": 64, "array": "spatial"})
    assert changed.array == replace(preset("spatial").array, elements=64)


def test_parts_inside_systems(yard: Yard) -> None:
    changed = with_overrides(yard, {"device": "spatial", "device.dram": "1 TB/s"})
    assert changed.device == replace(preset("spatial"), dram_bytes_per_s=1e12)
    assert with_overrides(yard, {"spare": "npu-small"}).spare == preset("npu-small")
    assert with_overrides(replace(yard, spare=preset("npu")), {"spare": "none"}).spare is None
    with pytest.raises(BadInput, match="device: expected a device, got an array"):
        with_overrides(yard, {"device": Systolic(rows=1, columns=1)})
    with pytest.raises(BadInput, match=r"device: expected a device, got 4"):
        with_overrides(yard, {"device": 4})


def test_a_lent_part_may_lie_deep(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.machines import build

    monkeypatch.setattr(build, "MACHINES", {**build.MACHINES, "yard": None})
    monkeypatch.setattr(build, "preset", lambda name: yard if name == "yard" else preset(name))
    assert machine("npu-small(array=yard)").array == preset("npu").array
    assert with_overrides(yard, {"spare": "yard"}).spare == preset("npu")
    with pytest.raises(BadInput, match="array: 'v100' is a device and has no array to lend"):
        machine("npu(array=v100)")


def test_plain_fields_of_every_type(yard: Yard) -> None:
    changed = with_overrides(yard, {"tile": "(64,128,64)", "exact": "true", "policy": "far", "limit": "2 ms", "label": "8 MiB"})
    assert changed == replace(yard, tile=(64, 128, 64), exact=True, policy="far", limit_s=2e-3, label="8 MiB")
    assert with_overrides(changed, {"tile": "search", "limit": None, "exact": False}) == replace(yard, policy="far", label="8 MiB")
    for wrong in ({"tile": "(64,128)"}, {"tile": 4}, {"exact": "perhaps"}, {"policy": "fat"}, {"limit": "soon"}, {"label": 4}):
        with pytest.raises((BadInput, UnknownName)) as caught:
            with_overrides(yard, wrong)
        assert next(iter(wrong)) in str(caught.value)


def test_a_unit_decides_between_two_fields(yard: Yard) -> None:
    assert with_overrides(yard, {"link": "8 GB/s"}).link_bytes_per_s == 8e9
    assert with_overrides(yard, {"link": "8 KiB"}).link_bytes == 8192
    with pytest.raises(BadInput, match="link_bytes_per_s or link_bytes"):
        with_overrides(yard, {"link": 8})


def test_a_class_of_a_users_own_is_named_by_its_module(yard: Yard) -> None:
    table = describe(yard)
    assert table["type"].endswith(":Yard")
    assert from_table(table) == yard
    with pytest.raises(BadInput, match="is not imported"):
        from_table({"type": "nowhere.at_all:Part"})


def test_tables_may_start_from_a_machine() -> None:
    assert from_table({"base": "npu", "dram": "75 GB/s", "array": {"rows": 64}}) == with_overrides(
        preset("npu"), {"dram": "75 GB/s", "array.rows": 64}
    )
    assert from_table({"base": "npu", "array": {"type": "spatial"}}).array == Spatial()
    assert from_table({"base": "npu", "array": "spatial(elements=64)"}).array == replace(preset("spatial").array, elements=64)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "no type given"),
        ({"type": "acelerator"}, "did you mean 'accelerator'"),
        ({"type": 4}, "type: expected a name"),
        ({"type": "gpu", "base": "npu"}, "both type and base"),
        ({"base": "npu", "colour": 4}, "unknown key of Accelerator 'colour'"),
        ({"base": "npu", "array": {"type": "systolic", "rows": 4, "columns": 4, "rowz": 1}}, "in array: did you mean 'rows'"),
        ({"base": "npu", "array": {"type": "systolic", "rows": True, "columns": 4}}, "array.rows"),
        ({"base": "npu", "array": {"type": "accelerator"}}, "array.accelerator needs"),
        ({"base": "npu", "clock_hz": float("nan")}, "clock_hz: nan is not a finite number"),
        ({"base": "npu", "clock_hz": -4}, "clock_hz: -4 is negative"),
        ({"base": "npu", "clock_hz": [4]}, "clock_hz"),
        ({"base": "npu", "array": 4}, "array: expected an array, got 4"),
    ],
)
def test_faulty_tables_name_the_place(table: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, UnknownName)) as caught:
        from_table(table)
    assert says in str(caught.value)


def test_part_types_are_what_they_say() -> None:
    found = part_types()
    assert found["systolic"] is Systolic
    assert all((part.__doc__ or "").strip() for part in found.values())
    assert isinstance(Systolic(rows=1, columns=1), Array)


def test_an_entry_point_adds_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from trainyard.machines import registry

    added = {"yard": EntryPoint("yard", f"{__name__}:Yard", registry.GROUP)}
    monkeypatch.setattr(registry, "_added_parts", lambda: added)
    monkeypatch.setattr(EntryPoint, "load", lambda self: Yard)
    registry.part_class.cache_clear()
    registry.type_name.cache_clear()
    try:
        assert machine("yard(device=npu,link=8 KiB)") == Yard(device=preset("npu"), link_bytes=8192)
        assert describe(Yard(device=preset("npu")))["type"] == "yard"
    finally:
        registry.part_class.cache_clear()
        registry.type_name.cache_clear()


def test_titles_of_unnamed_machines(yard: Yard) -> None:
    assert title(replace(preset("npu"), clock_hz=7.0)) == "accelerator(systolic)"
    assert title(yard) == "Yard(npu)"


def test_what_is_known_is_what_would_fit() -> None:
    with pytest.raises(UnknownName) as caught:
        machine("npu(array=3)")
    arrays = (
        "cambricon-x, eie, eyeriss-v2, gaudi2, npu, npu-small, outerspace, packed-systolic, scnn, sigma, spatial, systolic, "
        "systolic-units, tensorcore, tensordash, tpu, tpu-v2, tpu-v3, tpu-v4, trainium"
    )
    assert str(caught.value).endswith(f"(known: {arrays})")
    with pytest.raises(UnknownName) as caught:
        machine("zzz")
    assert "systolic" not in caught.value.known
    assert "replicas" in caught.value.known
    with pytest.raises(UnknownName, match="did you mean 'npu'"):
        machine("NPU")
    with pytest.raises(BadInput, match=r"must end in \.toml or \.cfg"):
        machine("./machines/mine.tml")


def test_a_key_of_a_part_inside_is_offered_with_its_path(yard: Yard) -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'array\.rows'"):
        with_overrides(preset("npu"), {"rows": 64})
    with pytest.raises(UnknownName, match=r"did you mean 'device\.array\.columns'"):
        with_overrides(yard, {"columns": 64})


def test_one_device_as_a_system_is_that_device() -> None:
    from trainyard.runs import run

    alone, wrapped = (run("linear", on) for on in ("npu", "single(device=npu)"))
    assert (wrapped.time_s, wrapped.cycles, wrapped.clock_hz, wrapped.peaks) == (
        alone.time_s, alone.cycles, alone.clock_hz, alone.peaks
    )  # fmt: skip


@pytest.mark.parametrize(("text", "write"), [("npu(dram=75)", "dram='75 GB/s'"), ("npu(clock=1.05)", "clock='1.05 GHz'")])
def test_a_number_that_misses_its_unit_is_refused(text: str, write: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"has no unit: write {write}")):
        machine(text)
    assert machine("npu(dram=75e9)") == machine("npu(dram=75 GB/s)")
    assert machine("npu(dram_bytes_per_s=75)").dram_bytes_per_s == 75


def test_a_table_of_which_nothing_is_given_yet_takes_keys() -> None:
    built = machine("npu(precision.activation=fp8,precision.parameter=bf16)")
    assert dict(built.precision) == {"activation": "fp8", "parameter": "bf16"}
    assert with_overrides(built, {"precision.activation": "bf16"}).precision["activation"] == "bf16"
    with pytest.raises(UnknownName, match="unknown role 'activations'"):
        machine("npu(precision.activations=fp8)")


def test_expert_parallelism_is_a_part_by_name_and_in_a_file(tmp_path: Path) -> None:
    built = machine("mcdla-b(parallel=expert,experts=expert-parallel(ranks=4,imbalance=1.5))")
    assert (built.experts.ranks, built.experts.imbalance, built.experts.capacity_factor) == (4, 1.5, None)
    assert built == machine("mcdla-b(parallel=expert,experts.ranks=4,experts.imbalance=1.5)")
    text = 'base = "mcdla-b"\nparallel = "expert"\n[experts]\nranks = 4\nimbalance = 1.5\n'
    (tmp_path / "experts.toml").write_text(text, encoding="utf-8")
    assert machine(str(tmp_path / "experts.toml")) == built


def test_a_pipeline_is_a_part_by_name() -> None:
    built = machine("mcdla-b(parallel=pipeline,pipeline=pipeline(stages=4,schedule=gpipe))")
    assert (built.pipeline.stages, built.pipeline.schedule) == (4, "gpipe")
    assert built == machine("mcdla-b(parallel=pipeline,pipeline.stages=4,pipeline.schedule=gpipe)")
