from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard import machines
from trainyard.errors import BadInput
from trainyard.sweep.points import Materials, code_digest
from trainyard.sweep.study import Study

KEYS = """
import json, sys
from trainyard.sweep.points import Materials
from trainyard.sweep.study import Study
study = Study.load(sys.argv[1])
print(json.dumps([point.key for point in Materials.of(study).keyed(study.points())]))
"""


def keys(study: Study) -> list[str]:
    return [point.key for point in Materials.of(study).keyed(study.points())]


def test_keys_are_the_same_in_every_process(study: Study, study_file: Path) -> None:
    def elsewhere(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", KEYS, study_file], capture_output=True, text=True, env=environment, check=True)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    assert keys(study) == elsewhere("1" if os.environ.get("PYTHONHASHSEED") != "1" else "2")
    assert len(set(keys(study))) == 12


def test_two_settings_of_one_machine_are_one_point(table: dict[str, Any]) -> None:
    table["axes"] = {"array": ["systolic(rows=64,columns=64)", "npu(columns=64,rows=64)"]}
    table["tie"] = {}
    table["workloads"] = ["linear", {"model": "linear", "batch": ty.zoo.load("linear").batch}]
    assert len(keys(Study.from_table(table))) == 1


def test_whatever_decides_a_record_is_in_its_key(table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    table["axes"], table["tie"] = {"order": ["sequential"]}, {}

    def key(**change: Any) -> str:
        (found,) = keys(Study.from_table({**table, **change}))
        return found

    own = key()
    assert own == key(name="other", objectives={"time_s": "max"})  # what is sought changes no number
    others = [
        key(workloads=[{"model": "linear", "batch": 16}]),
        key(workloads=[{"model": "linear", "inference": True}]),
        key(workloads=[{"model": "linear", "masks": "sparsity(A=0.5)"}]),
        key(workloads=[{"model": "linear", "masks": "sparsity(A=0.5,seed=2)"}]),
        key(machine="npu-small"),
        key(metrics=["by_phase.loss"]),
    ]
    monkeypatch.setattr("trainyard.sweep.points.code_digest", lambda: "other code")
    others.append(key())
    monkeypatch.setattr("trainyard.sweep.points.VERSION", "0.0.0")
    others.append(key())
    assert len({own, *others}) == 9


def test_the_code_that_computes_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    package = Path(ty.__file__).parent
    for name in ("runs.py", "cli/sweep.py", "sweep/metrics.py", "sweep/page.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(package / name, tmp_path / name)
    monkeypatch.setattr("trainyard.sweep.points.files", lambda _: tmp_path)

    def changed(name: str) -> bool:
        code_digest.cache_clear()
        before = code_digest()
        (tmp_path / name).write_text("# changed")
        code_digest.cache_clear()
        return code_digest() != before

    assert [changed(name) for name in ("runs.py", "cli/sweep.py", "sweep/metrics.py", "sweep/page.py")] == [
        True,
        False,
        True,
        False,
    ]
    code_digest.cache_clear()


@given(
    rows=st.integers(1, 256),
    dram=st.floats(1e9, 1e12),
    order=st.sampled_from(["sequential", "interleaved"]),
    array=st.sampled_from(["systolic", "systolic(dataflow=os)"]),
)
def test_setting_numbers_is_the_same_as_reading_them(rows: int, dram: float, order: str, array: str) -> None:
    axes = {"array": [array], "array.rows": [rows], "dram_bytes_per_s": [dram], "order": [order]}
    study = Study.from_table({"name": "s", "workloads": ["linear"], "machine": "npu", "axes": axes})
    (point,) = study.points()
    materials = Materials({}, {}, study.machines, frozenset(a.path for a in study.axes if a.plain), (), "")
    assert materials.plain == {"array.rows", "dram_bytes_per_s", "order"}
    settings = {"array": array, "array.rows": rows, "dram_bytes_per_s": dram, "order": order}
    assert materials.machine(point) == machines.with_overrides(machines.machine("npu"), settings)


def test_a_record_has_the_numbers_of_the_run(study: Study) -> None:
    materials = Materials.of(study)
    point = next(materials.keyed(study.points()))
    record = materials.run(point)
    result = ty.run("linear", "npu(dram=50 GB/s,array=systolic(rows=32,columns=32))")
    assert record.metrics["time_s"] == result.time_s
    assert record.metrics["traffic_bytes.dram"] == result.traffic_bytes["dram"]
    assert record.metrics["by_phase.forward"] == result.by_phase["forward"].time_s
    assert record.settings["batch"] == result.batch
    assert record.workload == "linear"


def test_a_point_that_cannot_be_built_or_run_is_recorded(table: dict[str, Any]) -> None:
    table["axes"] = {"array": ["systolic", "tensordash"], "array.dataflow": ["ws"], "scratchpad": ["1 B", "8 MiB"]}
    table["tie"] = {}
    study = Study.from_table(table)
    materials = Materials.of(study)
    records = [materials.run(point) for point in materials.keyed(study.points())]
    assert [bool(record.error) for record in records] == [True, False, True, True]
    assert "dataflow" in records[2].error
    assert len({record.key for record in records}) == 4


def test_faults_that_are_not_the_users_are_recorded_with_their_type(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(f"at {object()!r}")

    monkeypatch.setattr("trainyard.runs.run", fail)
    materials = Materials.of(study)
    record = materials.run(next(materials.keyed(study.points())))
    assert record.error == "ZeroDivisionError: at <object object at 0x...>"  # no address: the same in every process
    assert not record.metrics


def test_what_cannot_be_loaded_is_said_before_the_first_run(table: dict[str, Any]) -> None:
    for workload, said in (
        ("linearr", "workload linearr: unknown model"),
        ({"model": "linear", "masks": "none.safetensors"}, "workload linear: "),
        ({"model": "linear", "parallel": "data"}, "needs a system of several devices: npu is one"),
    ):
        with pytest.raises(BadInput, match=said):
            Materials.of(Study.from_table({**table, "workloads": [workload]}))


def test_other_code_on_another_computer_is_refused(study: Study) -> None:
    materials = Materials.of(study)
    materials.require_same_code()
    with pytest.raises(BadInput, match="other code of trainyard"):
        replace(materials, code="other").require_same_code()


def test_ten_thousand_keys_take_seconds(table: dict[str, Any]) -> None:
    table["axes"] = {"array.rows": {"from": 1, "to": 256, "step": 1}, "dram": {"from": "1 GB/s", "to": "2 GB/s", "steps": 4}}
    study = Study.from_table(table)
    materials = Materials.of(study)
    next(materials.keyed(study.points()))
    began = time.process_time()
    assert len(list(materials.keyed(study.points()))) == 1024
    assert time.process_time() - began < 1.5  # 10,000 in 15 s on a slow computer
