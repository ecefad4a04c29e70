"""What the server answers: every address, against what the package itself says."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import trainyard as ty
from trainyard import machines
from trainyard._version import VERSION
from trainyard.errors import BadInput
from trainyard.papers import ledger, shipped
from trainyard.sweep.pareto import front
from trainyard.sweep.records import Record
from trainyard.sweep.store import Store
from trainyard.sweep.study import Study
from trainyard.web import views
from trainyard.web.stores import _closed, listed, opened
from trainyard.workloads.zoo.catalogue import ENTRIES

FIGURES = {"layers", "phases", "roofline", "traffic", "energy", "timeline"}
KINDS = ["choice", "integer", "number", "choice", "choice"]


def test_workloads_and_machines_are_those_of_the_package(client: Any) -> None:
    workloads = client.get("/api/workloads").json()
    assert [row["name"] for row in workloads] == list(ENTRIES)
    assert {row["name"]: row["batch"] for row in workloads} == {name: entry.batch for name, entry in ENTRIES.items()}
    listed = client.get("/api/machines").json()
    assert {row["name"]: row["about"] for row in listed} == machines.names()
    assert all(row["group"] in views.GROUPS.values() for row in listed)
    assert client.get("/api/version").json() == {"version": VERSION}


def test_a_machine_tells_every_field_with_unit_source_meaning_and_alternatives(client: Any) -> None:
    told = client.get("/api/machine", params={"text": "npu(dram=75 GB/s)"}).json()
    rows = {row["path"]: row for row in told["fields"]}
    built = ty.machine("npu(dram=75 GB/s)")
    assert told["peaks"]["dram_bytes_per_s"] == 75e9 == rows["dram_bytes_per_s"]["value"]
    assert (rows["dram_bytes_per_s"]["unit"], rows["dram_bytes_per_s"]["text"]) == ("B/s", "75 GB/s")
    assert rows["dram_bytes_per_s"]["source"] == ""  # the number is not the paper's any more
    assert rows["clock_hz"]["source"].startswith("Table 3")
    assert rows["array"]["kind"] == "part"
    assert rows["array.rows"]["value"] == built.array.rows
    assert [rows[path]["kind"] for path in ("array.dataflow", "array.rows", "clock_hz", "order", "precision")] == KINDS
    assert rows["array.dataflow"]["choices"] == ["ws", "os", "is"]
    for order in rows["order"]["choices"]:  # what is offered can be set
        assert machines.with_overrides(built, {"order": order}).order == order
    assert {"sequential", "interleaved", "paper", "cost"} <= set(rows["order"]["choices"])
    assert rows["precision"]["choices"][-1] is None
    for precision in rows["precision"]["choices"]:
        assert machines.with_overrides(built, {"precision": precision}).precision == precision
    opened = next(row for row in told["fields"] if row["alternatives"])
    assert opened["meaning"]
    for path, row in rows.items():
        if row["kind"] in ("choice", "integer", "number", "boolean"):  # what is shown can be set again
            assert machines.with_overrides(built, {path: row["value"]}) == built, path


def test_a_machine_is_shown_with_what_is_set_in_it(client: Any) -> None:
    settings = {"array": "tensordash", "dram_bytes_per_s": "75 GB/s", "array.rows": "2"}
    answer = client.get("/api/machine", params={"text": "npu", "set": [f"{path}={value}" for path, value in settings.items()]})
    told, built = answer.json(), machines.with_overrides(ty.machine("npu"), settings)
    rows = {row["path"]: row for row in told["fields"]}
    assert told["peaks"]["dram_bytes_per_s"] == 75e9
    assert told["peaks"]["macs_per_s"] == built.peaks.macs_per_s != ty.machine("npu").peaks.macs_per_s
    assert (rows["array"]["value"], rows["array.rows"]["value"]) == ("tensordash", 2)
    assert rows["array.lanes"]["value"] == built.array.lanes  # a knob of the part that was put in
    assert "array.dataflow" not in rows
    for wrong, said in (
        ("dram", "expected path=value"),
        ("=1", "expected path=value"),
        ("dram=much", "much"),
        ("array='x.toml'", "file"),
    ):
        answer = client.get("/api/machine", params={"text": "npu", "set": wrong})
        assert answer.status_code == 400
        assert said in answer.json()["error"]
    assert client.get("/api/machine", params={"text": "npu", "set": ["cores=1"] * 257}).status_code == 400


def test_every_machine_can_be_shown(client: Any) -> None:
    for name in machines.names():
        answer = client.get("/api/machine", params={"text": name})
        assert answer.status_code == 200, (name, answer.text)
        assert answer.json()["fields"]


def test_a_run_is_what_the_library_computes(client: Any) -> None:
    result = client.found(workload="alexnet", machine="npu", batch=2, settings={"dram": "75 GB/s", "array.rows": 64})
    direct = ty.run(
        ty.zoo.load("alexnet", batch=2), machines.with_overrides(ty.machine("npu"), {"dram": "75 GB/s", "array.rows": 64})
    )
    assert result["time_s"] == direct.time_s
    assert result["energy_j"] == direct.energy_j
    assert result["traffic_bytes"] == direct.traffic_bytes
    assert result["config_hash"] == direct.config_hash
    assert set(result["figures"]) >= FIGURES
    assert all(set(figure) >= {"data", "layout"} for figure in result["figures"].values())
    assert result["title"] == "alexnet, batch 2, on npu with dram=75 GB/s, array.rows=64"
    assert result["time_range_s"] is None
    ranged = client.found(workload="alexnet", machine="npu", batch=2, range=True)
    assert ranged["time_range_s"] == list(ty.run("alexnet", "npu", batch=2).ranged().range_s or ())


def test_the_forward_pass_alone(client: Any) -> None:
    from trainyard.ir import Phase

    direct = ty.run(ty.zoo.load("alexnet", batch=2).only(Phase.FORWARD), "npu")
    result = client.found(workload="alexnet", machine="npu", batch=2, inference=True)
    assert result["time_s"] == direct.time_s
    assert result["title"] == "alexnet, batch 2, on npu, the forward pass alone"
    assert client.finished(workload="alexnet", machine="npu", batch=2)["key"] != result["key"]
    refused = client.post("/api/jobs", json={"workload": "alexnet", "machine": "npu", "at": 3})
    assert (refused.status_code, "recorded masks" in refused.json()["error"]) == (400, True)


def test_a_node_with_zeros_and_parallelism_is_drawn(client: Any) -> None:
    result = client.found(
        workload="alexnet", machine="mcdla-b(device=npu(array=tensordash))", parallel="data", masks="sparsity(A=0.5)"
    )
    assert result["node"]["svg"].startswith("<svg")
    assert {"overlap", "memory"} <= set(result["figures"])


def test_a_cached_point_answers_in_well_under_a_tenth_of_a_second(client: Any) -> None:
    request = {"workload": "alexnet", "machine": "tpu", "batch": 2}
    first = client.finished(**request)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        again = client.started(**request)
        answer = client.get(f"/api/results/{again['key']}")
        times.append(time.perf_counter() - begin)
        assert (again["state"], again["key"], answer.status_code) == ("done", first["key"], 200)
    assert min(times) < 0.1
    other = client.finished(workload="alexnet", machine="tpu", batch=3)
    assert other["key"] != first["key"]


def test_whatif_weighs_as_the_library_does(client: Any) -> None:
    from trainyard import sensitivity

    result = client.found(workload="linear", machine="npu", whatif=True, only="assumption", pairs=2)
    weighed = sensitivity.whatif("linear", "npu", kinds=("assumption",), paired=2)
    assert [(row["name"], row["after"]) for row in result["worths"]] == [(effect.name, effect.after) for effect in weighed]
    assert [pair["interaction"] for pair in result["pairs"]] == [pair.interaction for pair in weighed.pairs]
    assert result["figures"]["tornado"]["data"]


def test_papers_are_reported_with_what_is_known(client: Any) -> None:
    papers = client.get("/api/papers").json()
    assert [row["name"] for row in papers] == list(ledger.papers())
    for row in papers:
        assert row["claims"] == sum(row["verdicts"].values()) == len(ledger.select(row["name"]))
    told = client.get("/api/papers/igo").json()
    assert [row["id"] for row in told["rows"]] == [claim.id for claim in ledger.select("igo")]
    assert told["complete"] is False  # the shipped ledger was not computed on this computer
    assert told["shipped"] == shipped.sentence()
    assert [(row["id"], row["ours"]) for row in told["rows"]] == [(row.id, row.as_dict()["ours"]) for row in shipped.rows("igo")]
    assert sum(row["ours"] is not None for row in told["rows"]) > 30
    assert told["figures"]
    refused = client.get("/api/papers/nothing")
    assert refused.status_code == 404
    assert "unknown paper 'nothing'" in refused.json()["error"]
    assert client.post("/api/jobs", json={"paper": "nothing"}).status_code == 404


def test_stores_are_listed_and_opened_by_name(client: Any, stores: Path) -> None:
    (listed,) = client.get("/api/stores").json()
    assert (listed["name"], listed["points"], listed["failed"]) == ("npu.store", 6, 1)
    records = Store(stores / "npu.store").records()
    told = client.get("/api/stores/npu.store").json()
    assert told["axes"] == ["array.rows"]
    assert told["metrics"] == ["energy_j", "time_s"]
    assert told["objectives"] == {"time_s": "min", "energy_j": "min"}
    assert told["rows"] == [record.as_dict() for record in records]
    assert told["front"] == front(records, told["objectives"])
    paged = [client.get("/api/stores/npu.store", params={"offset": n, "limit": 2}).json()["rows"] for n in (0, 2, 4, 6)]
    assert [len(rows) for rows in paged] == [2, 2, 2, 0]
    assert [row for rows in paged for row in rows] == told["rows"]


def test_a_store_that_cannot_be_read_is_listed_with_the_reason(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "npu.store", tmp_path / "good.store")
    shutil.copytree(stores / "npu.store", tmp_path / "cut.store")
    points = tmp_path / "cut.store" / "points.parquet"
    points.write_bytes(points.read_bytes()[:-9])
    for name, manifest in (
        ("foreign", '{"name": "some other program"}'),
        ("torn", "{"),
        ("newer", '{"format": "x", "version": 99}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest)
    (tmp_path / "empty.sweep").mkdir()
    (tmp_path / "looped.sweep").mkdir()
    (tmp_path / "looped.sweep" / "manifest.json").mkdir()
    rows = {row["name"]: row for row in listed(str(tmp_path), {})}
    assert [name for name, row in rows.items() if not row["error"]] == ["good.store"]
    assert rows["good.store"]["points"] == 6
    assert set(rows) == {"good.store", "cut.store", "foreign", "torn", "newer", "empty.sweep", "looped.sweep"}
    assert "cut.store/points.parquet is damaged" in rows["cut.store"]["error"]
    assert "no manifest.json" in rows["empty.sweep"]["error"]
    assert not any(str(tmp_path) in row["error"] for row in rows.values())
    with pytest.raises(BadInput, match=r"^cut\.store/points\.parquet is damaged"):
        opened(str(tmp_path), {}, "cut.store", 0, 10)


def test_the_store_of_a_sweep_is_found_beside_its_study(tmp_path: Path) -> None:
    from trainyard.sweep import running

    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    study = {"name": "one", "workloads": ["linear"], "machine": "npu", "axes": {"batch": [1, 2], "inference": [True, False]}}
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        running.sweep(Study.from_table(study), folder / running.store_of("one.toml"), workers=1)
    for unseen in (deep / "far.sweep", tmp_path / ".hidden" / "x.sweep"):
        unseen.mkdir()
    (tmp_path / "link.sweep").symlink_to(tmp_path / "a" / "one.sweep")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [row["name"] for row in listed(str(tmp_path), {})] == ["one.sweep", "a/one.sweep", "a/b/one.sweep"]
    told = opened(str(tmp_path), {}, "a/one.sweep", 0, 10)
    assert [told["points"], told["axes"], told["closed"]] == [4, ["batch", "inference"], {}]


def test_points_that_need_files_of_the_study_say_so() -> None:
    def of(**more: Any) -> str:
        return _closed([Record(**{"key": "k", "workload": "linear", "machine": "npu", "settings": {"batch": 8}, **more})]).get(
            "k", ""
        )

    assert of() == of(settings={"masks": "sparsity(A=0.5)", "inference": True, "array": "tensordash"}) == ""
    assert "net.csv is a file of the study" in of(workload="net.csv")
    assert "run.safetensors, a file of the study" in of(settings={"masks": "run.safetensors", "at": 3})
    assert "names a file" in of(machine="mine.toml")
    assert "names a file" in of(settings={"device": "mine.toml"})
    assert "table of the study" in of(machine='{"type": "accelerator"}')
    assert "table of the study" in of(settings={"device": {"type": "accelerator"}})


@pytest.mark.parametrize("name", ["link.store", "no-store", "%2e%2e", "..%2foutside0%2fsecret.store", "/etc", "npu.store%00"])
def test_what_is_no_store_of_the_folder_is_refused(client: Any, name: str) -> None:
    answer = client.get(f"/api/stores/{name}")
    assert answer.status_code == 404
    assert set(answer.json()) == {"error"}


def test_unknown_things_are_404_and_bad_ones_400(client: Any) -> None:
    for path in ("/api/jobs/x", "/api/results/x", "/api/nothing", "/static/nothing.js"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert set(answer.json()) == {"error"}
    assert client.get("/api/machine").status_code == 400
    assert (
        client.get("/api/machine", params={"text": "nppu"}).json()["error"].startswith("unknown machine 'nppu': did you mean 'npu'")
    )
    for request in (
        {"workload": "resnet5", "machine": "npu"},
        {"workload": "my.py:build", "machine": "npu"},
        {"workload": "/etc/passwd", "machine": "npu"},
        {"workload": "x.json", "machine": "npu"},
        {"workload": "linear", "machine": "npu", "masks": "/etc/x.safetensors"},
        {"workload": "linear", "machine": "npu", "settings": {"nothing": 1}},
        {"workload": "linear", "machine": "npu", "batch": 0},
        {"workload": "linear", "machine": "npu", "unknown": 0},
        {"workload": "linear", "machine": "npu", "parallel": "sideways"},
    ):
        answer = client.post("/api/jobs", json=request)
        assert answer.status_code == 400, request
        assert "\n" not in answer.json()["error"]
    assert client.post("/api/jobs", json={"workload": "upload-0123456789abcdef", "machine": "npu"}).status_code == 404
    assert client.put("/api/jobs", json={}).status_code == 405


def test_an_error_inside_a_job_is_the_jobs_own(client: Any) -> None:
    job = client.finished(workload="linear", machine="npu", parallel="data")
    assert job["state"] == "failed"
    assert "npu is one device" in job["error"] or "one device" in job["error"]
    assert client.get(f"/api/results/{job['key']}").status_code == 404


def test_the_interface_is_documented_without_a_page_that_loads_from_elsewhere(client: Any) -> None:
    assert client.get("/docs").status_code == 404
    assert client.get("/redoc").status_code == 404
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/jobs", "/api/results/{key}", "/api/uploads", "/api/stores/{name}"} <= set(paths)
