from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard import machines
from trainyard.errors import TrainyardError
from trainyard.sweep.points import Materials
from trainyard.sweep.study import Study


def test_a_grid_in_the_order_of_the_file(study: Study) -> None:
    points = list(study.points())
    assert study.size == len(points) == 12
    assert points[0].settings == {
        "array.rows": 32,
        "array.columns": 32,
        "dram_bytes_per_s": 5e10,
        "order": "sequential",
    }
    assert points[1].settings["order"] == "interleaved"  # the last axis is the fastest
    assert points[2].settings["dram_bytes_per_s"] == 1e11
    assert points[-1].settings["array.columns"] == 64


def test_a_file_and_its_table_are_one_study(study: Study, study_file: Path) -> None:
    loaded = Study.load(study_file)
    assert list(loaded.points()) == list(study.points())
    assert loaded.source == str(study_file)


def test_values_are_held_as_the_machine_holds_them(table: dict[str, Any]) -> None:
    table["axes"] = {"scratchpad": ["1 MiB", 2097152], "clock": ["500 MHz", 1e9], "dram-latency": ["100 ns"]}
    table["tie"] = {}
    scratchpad, clock, latency = Study.from_table(table).axes
    assert (scratchpad.path, scratchpad.values) == ("scratchpad_bytes", (1048576, 2097152))
    assert (clock.path, clock.values) == ("clock_hz", (5e8, 1e9))
    assert (latency.path, latency.values) == ("dram_latency_s", (1e-7,))


def test_whole_parts_machines_and_fields_that_only_some_have(table: dict[str, Any]) -> None:
    del table["machine"]
    table["axes"] = {"machine": ["npu", "tpu"], "array": ["systolic", "tensordash"], "array.rows": [4]}
    table["tie"] = {}
    points = list(Study.from_table(table).points())
    assert [(p.machine, p.settings["array"]) for p in points] == [
        ("npu", "systolic"),
        ("npu", "tensordash"),
        ("tpu", "systolic"),
        ("tpu", "tensordash"),
    ]


def test_deep_paths_and_knobs(table: dict[str, Any]) -> None:
    table |= {"machine": "mcdla-b", "tie": {}, "workloads": [{"model": "linear", "masks": "sparsity(A=0.5)"}]}
    table["axes"] = {"device.array.elements": [512, 1024], "batch": [8, 16], "parallel": ["data", "model"]}
    study = Study.from_table(table)
    point = list(study.points())[-1]
    assert (point.workload.batch, point.workload.parallel, point.workload.masks) == (16, "model", "sparsity(A=0.5)")
    assert point.fields == {"device.array.elements": 1024}


def test_two_lists_move_together(table: dict[str, Any]) -> None:
    table["axes"] = {"array.rows": [32, 64], "array.columns": [128, 256]}
    points = [point.settings for point in Study.from_table(table).points()]
    assert points == [{"array.rows": 32, "array.columns": 128}, {"array.rows": 64, "array.columns": 256}]


def test_files_lie_beside_the_study(tmp_path: Path, table: dict[str, Any]) -> None:
    (tmp_path / "mine.toml").write_text(machines.to_toml(machines.machine("npu")))
    (tmp_path / "net.csv").write_text("Layer,M,N,K\nfc,4,8,16\n")
    table |= {"machine": "mine.toml", "workloads": ["net.csv"]}
    study = Study.from_table(table, folder=tmp_path)
    materials = Materials.of(study)
    record = materials.run(next(materials.keyed(study.points())))
    assert not record.error
    assert record.workload == "net.csv"  # as it is written: the same from every folder
    table |= {"machine": {"base": "mine.toml", "clock": "1 GHz"}}
    assert next(iter(Study.from_table(table, folder=tmp_path).machines.values())).clock_hz == 1e9
    table |= {"machine": "npu", "axes": {"array": ["mine.toml", "tensordash"]}, "tie": {}}
    study = Study.from_table(table, folder=tmp_path)
    assert [point.settings["array"] for point in study.points()] == ["mine.toml", "tensordash"]
    materials = Materials.of(study)
    assert materials.machine(next(study.points())) == machines.machine("npu")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"axis": {}}, "did you mean 'axes'"),
    ({"name": ""}, "study: name: expected a name"),
    ({"name": "a/b"}, "study: name: expected a name"),
    ({"name": "a\nb"}, "study: name: expected a name"),
    ({"workloads": []}, "study: workloads: expected a list"),
    ({"workloads": ["linear", "linear"]}, "study: workloads[1]: linear is given twice"),
    ({"workloads": [{"modell": "linear"}]}, "did you mean 'model'"),
    ({"workloads": [{"model": "linear", "batch": 0}]}, "study: workloads[0].batch: expected a whole number"),
    ({"machine": "npuu"}, "did you mean 'npu'"),
    ({"machine": 3}, "study: machine: expected the text of a machine"),
    ({"machine": "npu(dram=75 GB/s)"}, "study: axes.dram: the machine gives dram too"),
    ({"machine": {"base": "npu", "dram_bytes_per_s": 1e9}}, "study: axes.dram: the machine gives dram_bytes_per_s too"),
    ({"metrics": ["times"]}, "did you mean 'time_s'"),
    ({"metrics": ["by_phase.forwards"]}, "did you mean 'forward'"),
    ({"metrics": "time_s"}, "study: metrics: expected a list"),
    ({"objectives": {}}, "study: objectives: expected a table"),
    ({"objectives": {"time_s": "low"}}, "(known: max, min)"),
    ({"axes": {"array.row": [1]}, "tie": {}}, "did you mean 'rows'"),
    ({"axes": {"rows": [1]}, "tie": {}}, "did you mean 'array.rows'"),
    ({"axes": {"dram": ["75 GHz"]}, "tie": {}}, "study: axes.dram"),
    ({"axes": {"dram": [75]}, "tie": {}}, "write dram='75 GB/s'"),
    ({"axes": {"dram": ["75 GB/s", 75e9]}, "tie": {}}, "study: axes.dram: 75000000000.0 is given twice"),
    ({"axes": {"dram": [1e9], "dram_bytes_per_s": [2e9]}, "tie": {}}, "dram_bytes_per_s is given twice, as dram too"),
    ({"axes": {"order": ["interleave"]}, "tie": {}}, "did you mean 'interleaved'"),
    ({"axes": {"array": ["tensordsh"]}, "tie": {}}, "did you mean 'tensordash'"),
    ({"axes": {"array.rows": [0]}, "tie": {}}, "study: axes.array.rows"),
    ({"axes": {"batch": ["8"]}, "tie": {}}, "study: axes.batch: expected a whole number"),
    ({"axes": {"bach": [8]}, "tie": {}}, "study: axes.bach: the machine has no such field: did you mean 'batch'?"),
    ({"axes": {"dram": {"from": "1 GB/s", "to": "2 GB/s", "stps": 2}}, "tie": {}}, "study: axes.dram: did you mean 'steps'?"),
    ({"axes": {"machine": ["npu"]}, "tie": {}}, "machine is given outside the axes too"),
    ({"tie": {"array.columns": "array.row"}}, "did you mean 'array.rows'"),
    ({"axes": {"array.rows": [1, 2], "array.columns": [1, 2, 3]}}, "3 values cannot move with the 2 of array.rows"),
    ({"search": 3}, "study: search: expected a table"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_cannot_be_meant_is_said_with_its_key(table: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainyardError) as error:
        Study.from_table({**table, **change})
    assert said in str(error.value)
    assert "study" in str(error.value)


def test_a_batch_on_an_axis_and_in_a_workload(table: dict[str, Any]) -> None:
    table["workloads"] = [{"model": "linear", "batch": 4}]
    table["axes"]["batch"] = [8]
    with pytest.raises(TrainyardError, match=r"axes\.batch: workload 1 \(linear\) gives batch too"):
        Study.from_table(table)


def test_too_many_points_and_ranges_without_steps(table: dict[str, Any], study: Study) -> None:
    with pytest.raises(TrainyardError, match="12 points are more than the limit of 11: take fewer values, or raise --limit"):
        study.points(limit=11)
    assert len(list(study.points(limit=12))) == 12
    table["axes"]["dram"] = {"from": "50 GB/s", "to": "200 GB/s"}
    with pytest.raises(TrainyardError, match=r"axes\.dram: a range in a grid needs steps"):
        Study.from_table(table).points()


def test_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("name = 'a'\nname = 'b'\n")
    with pytest.raises(TrainyardError, match=r"s\.toml: .*line 2"):
        Study.load(path)
    with pytest.raises(TrainyardError, match="cannot read study"):
        Study.load(tmp_path / "none.toml")


words = st.sampled_from(
    [
        "linear",
        "npu",
        "tpu",
        "time_s",
        "min",
        "array.rows",
        "dram",
        "array",
        "tensordash",
        "machine",
        "from",
        "to",
        "steps",
        "batch",
        "",
    ]
)
leaves = st.one_of(words, st.integers(-3, 200), st.floats(), st.booleans(), st.text(max_size=4))
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6)
keys = st.sampled_from(["name", "workloads", "machine", "metrics", "objectives", "axes", "tie", "search", "other"])


@given(changes=st.dictionaries(keys, values, max_size=3), axes=st.dictionaries(words, values, max_size=2))
@settings(max_examples=80)
def test_any_table_is_a_study_or_an_error_in_words(changes: dict[str, Any], axes: dict[str, Any]) -> None:
    table = {"name": "f", "workloads": ["linear"], "machine": "npu", "axes": axes, **changes}
    with suppress(TrainyardError):
        study = Study.from_table(table)
        if study.size < 50:
            list(study.points())


@given(text=st.text(alphabet='axes[]{}="\n.1,from to steps#', max_size=80))
def test_any_text_is_a_study_or_an_error_in_words(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text('name = "f"\nworkloads = ["linear"]\nmachine = "npu"\n' + text)
    problem = ""
    try:
        Study.load(path)
    except TrainyardError as error:
        problem = str(error)
    assert not problem or str(path) in problem


def test_paths_whose_quotes_were_left_out(table: dict[str, Any]) -> None:
    """TOML makes tables of them."""
    quoted = Study.from_table(table)
    table["axes"] = {"array": {"rows": [32, 64]}, **{name: axis for name, axis in table["axes"].items() if name != "array.rows"}}
    table["tie"] = {"array": {"columns": "array.rows"}}
    assert list(Study.from_table(table).points()) == list(quoted.points())


def test_machine_files_lie_beside_the_study_wherever_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "my (odd), file.toml").write_text('base = "npu"\nclock = "800 MHz"\n')
    (tmp_path / "array.toml").write_text('type = "systolic"\nrows = 16\ncolumns = 16\n')
    table = {"name": "files", "workloads": ["linear"], "axes": {"dram": ["50 GB/s"]}}
    (whole,) = Study.from_table({**table, "machine": "my (odd), file.toml"}, folder=tmp_path).machines.values()
    assert whole.clock_hz == 8e8
    (inner,) = Study.from_table({**table, "machine": "npu(clock=1 GHz, array=array.toml)"}, folder=tmp_path).machines.values()
    assert (inner.clock_hz, inner.array.rows) == (1e9, 16)


def test_a_training_step_of_masks_that_are_not_there(table: dict[str, Any]) -> None:
    table["workloads"] = [{"model": "linear", "at": 3}]
    with pytest.raises(TrainyardError, match="none are given: add masks"):
        Materials.of(Study.from_table(table))
