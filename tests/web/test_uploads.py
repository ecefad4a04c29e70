"""Uploads: every kind by its content, every limit at its last byte, names that lead nowhere, files that lie."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.errors import BadInput, TrainyardError
from trainyard.machines import save_toml, write_cfg
from trainyard.masks.recorded import MaskWriter
from trainyard.web.app import create_app
from trainyard.web.folders import LOCK
from trainyard.web.recognition import kind_of, recognised, unpacked
from trainyard.web.settings import Settings
from trainyard.web.uploads import shown_name

TOPOLOGY = b"Layer, M, N, K,\nfirst, 64, 32, 16,\nsecond, 8, 8, 8,\n"


def step_json() -> bytes:
    return ty.zoo.load("linear", batch=4).to_json().encode()


def sent(client: Any, content: bytes, name: str = "file") -> dict[str, Any]:
    answer = client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_step_runs_as_if_it_were_loaded_here(client: Any) -> None:
    plain, packed = sent(client, step_json(), "mine.json"), sent(client, gzip.compress(step_json()), "mine.json.gz")
    assert (plain["kind"], packed["kind"], plain["name"]) == ("step", "step", "mine.json")
    assert plain == sent(client, step_json(), "again.json")  # the same content is the same upload
    result = client.found(workload=plain["id"], machine="npu", batch=16)
    assert result["time_s"] == ty.run("linear", "npu", batch=16).time_s
    assert result["title"].startswith("mine, batch 16")
    for upload in (plain, packed):
        assert client.delete(f"/api/uploads/{upload['id']}").status_code == 200
    assert client.delete(f"/api/uploads/{plain['id']}").status_code == 404
    assert client.post("/api/jobs", json={"workload": plain["id"], "machine": "npu"}).status_code == 404


def test_a_topology_runs(client: Any, tmp_path: Path) -> None:
    upload = sent(client, TOPOLOGY, "net.csv")
    assert upload["kind"] == "topology"
    (tmp_path / "net.csv").write_bytes(TOPOLOGY)
    from trainyard.workloads.named import load

    assert client.found(workload=upload["id"], machine="tpu")["time_s"] == ty.run(load(str(tmp_path / "net.csv")), "tpu").time_s


def model(batch: int | str) -> bytes:
    onnx = pytest.importorskip("onnx")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = onnx.TensorProto(name="w", dims=[32, 16], data_type=real, data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../../../etc/passwd")
    given = [helper.make_tensor_value_info("x", real, [4, batch, 32])]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", real, [4, batch, 16])], [weight])
    content: bytes = helper.make_model(graph).SerializeToString()
    return content


def test_an_onnx_model_runs_and_its_open_sizes_are_given_with_it(client: Any) -> None:
    fixed, opened = sent(client, model(8), "fixed.onnx"), sent(client, model("words"), "open.onnx")
    assert (fixed["kind"], opened["kind"]) == ("onnx", "onnx")
    assert "words" in opened["about"]
    ran = client.found(workload=fixed["id"], machine="npu", batch=4)
    assert client.found(workload=f"{opened['id']}:words=8", machine="npu", batch=4)["time_s"] == ran["time_s"]
    refused = client.post("/api/jobs", json={"workload": opened["id"], "machine": "npu"})
    assert (refused.status_code, "open dimension 'words'" in refused.json()["error"]) == (400, True)
    assert "trainyard-serve-" not in refused.text
    assert client.post("/api/jobs", json={"workload": f"{opened['id']}:words=x", "machine": "npu"}).status_code == 400


def test_masks_are_taken_for_the_step_that_they_fit(client: Any, tmp_path: Path) -> None:
    step = ty.zoo.load("linear", batch=4)
    op = next(op for op in step.ops if op.letters)
    writer = MaskWriter(tmp_path / "run.safetensors", {})
    writer.add(0, (op.layer, op.call, "A"), np.zeros((op.body.M, op.body.K), np.bool_))  # type: ignore[union-attr]
    writer.close()
    masks = sent(client, (tmp_path / "run.safetensors").read_bytes(), "run.safetensors")
    assert (masks["kind"], "1 masks" in masks["about"]) == ("masks", True)
    assert client.found(workload="linear", batch=4, machine="tensordash", masks=masks["id"])["time_s"] > 0
    job = client.finished(workload="alexnet", machine="tensordash", masks=masks["id"])
    assert (job["state"], "run.safetensors" in job["error"], "/" in job["error"]) == ("failed", True, False)
    refused = client.post("/api/jobs", json={"workload": masks["id"], "machine": "npu"})
    assert (refused.status_code, refused.json()["error"]) == (400, "run.safetensors is not a workload but masks")


def test_machine_files_are_machines_by_their_id(client: Any, tmp_path: Path) -> None:
    mine = ty.machine("npu(dram=75 GB/s)")
    save_toml(mine, tmp_path / "mine.toml")
    write_cfg(mine, tmp_path / "mine.cfg")
    for name in ("mine.toml", "mine.cfg"):
        upload = sent(client, (tmp_path / name).read_bytes(), name)
        assert upload["kind"] == "machine"
        told = client.get("/api/machine", params={"text": f"{upload['id']}(clock=2 GHz)"}).json()
        rows = {row["path"]: row["value"] for row in told["fields"]}
        assert (rows["dram_bytes_per_s"], rows["clock_hz"]) == (75e9, 2e9)
        assert client.found(workload="linear", machine=upload["id"])["machine"] == name
    inside = client.get("/api/machine", params={"text": f"mcdla-b(device={upload['id']})"})
    assert inside.status_code == 200


def test_points_of_a_sweep_are_a_store(client: Any, stores: Path) -> None:
    upload = sent(client, (stores / "npu.store" / "points.parquet").read_bytes(), "points.parquet")
    assert (upload["kind"], upload["about"]) == ("store", "6 points of a sweep")
    told = client.get(f"/api/stores/{upload['id']}").json()
    assert told["rows"] == client.get("/api/stores/npu.store").json()["rows"]
    assert upload["id"] in {row["name"] for row in client.get("/api/stores").json()}
    client.delete(f"/api/uploads/{upload['id']}")
    assert client.get(f"/api/stores/{upload['id']}").status_code == 404


class Bomb:
    """Unpickling it would leave a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("unpickled",))


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))  # torch.save's layout
    return stream.getvalue()


LIES = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "torch": _zip(),
    "bytes": bytes(range(256)) * 4,
    "words": b"only some words",
    "html": b"<html><script>alert(1)</script></html>",
    "other json": b'{"a": 1}',
    "deep json": b'{"a":' * 100_000,
    "deep toml": b"type = " + b"[" * 100_000,
    "half a step": step_json()[:-20],
    "half a gzip": gzip.compress(step_json())[:-9],
    "gzip of gzip": gzip.compress(gzip.compress(step_json())),
    "safetensors of nothing": (64).to_bytes(8, "little") + b"{" + b" " * 63,
    "safetensors too long": (2**31).to_bytes(8, "little") + b"{}",
    "onnx of nothing": b"\x08\x07\x12\x07pytorch\xff\xff",
    "parquet of nothing": b"PAR1" + b"\0" * 64 + b"PAR1",
    "toml with a file": b'base = "/etc/machine.toml"',
    "toml with a file in an escape": b'base = "npu"\narray = "\\u002fetc\\u002fx\\u002etoml"',
    "toml with a class": b'type = "subprocess:Popen"',
    "toml with a class inside": b'base = "npu"\n[array]\ntype = "os:stat_result"',
    "toml with a file inside": b'base = "npu"\n[array]\nbase = "x.cfg"',
    "unknown machine": b'base = "nppu"',
    "half a cfg": b"[architecture_presets]\nArrayHeight = x",
    "wrong csv": b"Layer, M, N\nfirst, -1, x\n",
}


@pytest.mark.parametrize("name", LIES)
def test_what_no_loader_takes_is_refused_in_one_line_without_a_path(
    client: Any, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = client.post("/api/uploads", params={"name": "mine.bin"}, content=LIES[name])
    assert answer.status_code == 400, answer.text
    line = answer.json()["error"]
    assert line
    assert "\n" not in line
    assert "trainyard-serve-" not in line
    assert "a fault of trainyard" not in line
    assert "unpickled" not in capfd.readouterr().out


def test_a_program_is_pointed_to_the_command_that_makes_a_step(client: Any) -> None:
    program = b"import torch\n\n\ndef net(batch=8):\n    return torch.nn.Linear(4, 4), torch.randn(batch, 4)\n"
    for name, content, function in (("my.py", program, "net"), ("my.txt", program, "net"), ("empty.py", b"x = 1\n", "build")):
        answer = client.post("/api/uploads", params={"name": name}, content=content)
        assert answer.status_code == 400
        assert f"trainyard export {name}:{function} --to step -o step.json" in answer.json()["error"]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("archive/data.pkl", pickle.dumps({}))
    answer = client.post("/api/uploads", params={"name": "net.pt"}, content=archive.getvalue())
    assert "torch.save" in answer.json()["error"]
    assert "--to step" in answer.json()["error"]


def test_errors_of_a_worker_leave_nothing_behind(client: Any) -> None:
    folder = client.app.state.server.uploads.folder
    kept = {Path(upload.path).name for upload in client.app.state.server.uploads}
    assert {path.name for path in folder.iterdir()} == {*kept, LOCK}


@given(st.text(max_size=300))
def test_a_name_never_leads_anywhere(name: str) -> None:
    shown = shown_name(name)
    assert shown
    assert len(shown) <= 100
    assert not set("/\\<>&\"'`\0\n\x1b") & set(shown)
    assert shown not in (".", "..")


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..\\..\\x", "a/../../b", "\0", "%2e%2e%2f", "con", "." * 300]
)
def test_the_file_of_an_upload_is_named_by_its_content(client: Any, name: str) -> None:
    upload = sent(client, TOPOLOGY, name)
    server = client.app.state.server
    path = Path(server.uploads.find(upload["id"]).path)
    assert path.parent == server.uploads.folder
    assert path.name == f"{upload['id']}.csv"


@pytest.fixture(scope="module")
def small() -> Iterator[TestClient]:
    limits = Settings(
        upload_bytes=4000,
        uploads=2,
        uploads_bytes=6000,
        unpacked_bytes=20_000,
        body_bytes=500,
        workers=1,
        warm=False,
        receiving_s=2.0,
    )
    with TestClient(create_app(limits), base_url="http://127.0.0.1:8080") as made:
        yield made


def topology(size: int, mark: str = "a") -> bytes:
    """A topology of exactly so many bytes."""
    head = f"Layer, M, N, K,\n{mark}, 8, 8, 8,\n".encode()
    return head + b"\n" * (size - len(head))


@pytest.mark.probe
@pytest.mark.parametrize("chunked", [False, True])
def test_one_byte_over_the_size_fails_and_the_last_one_passes(small: TestClient, chunked: bool) -> None:
    def body(size: int) -> Any:
        content = topology(size)
        return (content[at : at + 1000] for at in range(0, size, 1000)) if chunked else content

    over = small.post("/api/uploads", content=body(4001))
    assert (over.status_code, "4 kB" in over.json()["error"]) == (413, True)
    fits = small.post("/api/uploads", content=body(4000))
    assert fits.status_code == 200, fits.text
    small.delete(f"/api/uploads/{fits.json()['id']}")


@pytest.mark.probe
def test_number_and_sum_of_uploads_are_bounded(small: TestClient) -> None:
    first = small.post("/api/uploads", content=topology(3000, "b")).json()["id"]
    over = small.post("/api/uploads", content=topology(3001, "c"))
    assert (over.status_code, "too much" in over.json()["error"]) == (507, True)
    second = small.post("/api/uploads", content=topology(3000, "d")).json()["id"]
    assert small.post("/api/uploads", content=topology(3000, "d")).json()["id"] == second  # is there already
    third = small.post("/api/uploads", content=topology(10 + 40, "e"))
    assert (third.status_code, "2 uploads are kept" in third.json()["error"]) == (507, True)
    for name in (first, second):
        small.delete(f"/api/uploads/{name}")
    assert small.get("/api/uploads").json() == []


@pytest.mark.probe
def test_a_json_body_is_bounded(small: TestClient) -> None:
    frame = len(json.dumps({"workload": "", "machine": "npu"}))
    at, over = ({"workload": "x" * (500 - frame + extra), "machine": "npu"} for extra in (0, 1))
    assert small.post("/api/jobs", content=json.dumps(at)).status_code == 400  # read, and no such workload
    assert small.post("/api/jobs", content=json.dumps(over)).status_code == 413


@pytest.mark.probe
def test_a_compressed_upload_is_stopped_at_the_limit(tmp_path: Path) -> None:
    content = bytes(1000)
    assert unpacked(gzip.compress(content), 1000) == content
    with pytest.raises(BadInput, match="more than 999 bytes"):
        unpacked(gzip.compress(content), 999)
    bomb = gzip.compress(bytes(20 * 10**6))
    assert len(bomb) < 30_000
    with pytest.raises(BadInput, match="more than 5000 bytes"):
        unpacked(bomb, 5000)


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_no_content_brings_recognition_down(content: bytes) -> None:
    try:
        kind, ending = kind_of(content)
    except BadInput:
        return
    assert kind in ("step", "topology", "onnx", "masks", "machine", "store")
    assert ending.startswith(".")


@given(st.data())
def test_a_damaged_step_is_refused_or_is_a_step(data: st.DataObject) -> None:
    import tempfile

    content = bytearray(step_json())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(32, 126))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.part").write_bytes(content)
        try:
            told = recognised(str(Path(folder) / "x.part"), str(Path(folder) / "x"), "mine", 10**6)
        except TrainyardError:
            assert [path.name for path in Path(folder).iterdir()] == ["x.part"]
        else:
            assert told["kind"] in ("step", "topology", "machine")
