"""One server for all tests of its answers, one with small limits, and programs that do what a worker must survive."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient
from tests.web.serving import Served, start_server

from trainyard.sweep.records import Record
from trainyard.sweep.store import Store
from trainyard.web.app import create_app
from trainyard.web.settings import Settings

HERE = "http://127.0.0.1:8080"


class Client(TestClient):
    """A visitor."""

    def started(self, **request: Any) -> dict[str, Any]:
        answer = self.post("/api/jobs", json=request)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def finished(self, **request: Any) -> dict[str, Any]:
        """The job, when it has ended."""
        job = self.started(**request)
        while job["state"] in ("queued", "running"):
            job = self.get(f"/api/jobs/{job['id']}", params={"wait": 20}).json()
        return job

    def found(self, **request: Any) -> dict[str, Any]:
        """What a job found."""
        job = self.finished(**request)
        assert job["state"] == "done", job
        answer = self.get(f"/api/results/{job['key']}")
        assert answer.status_code == 200
        result: dict[str, Any] = answer.json()
        return result


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of six points, one of them failed, and things that are none."""
    folder = tmp_path_factory.mktemp("stores")
    store = Store.begin(folder / "npu.store", {"name": "npu", "objectives": {"time_s": "min", "energy_j": "min"}})
    records = [
        Record(
            key=f"{n:064x}",
            workload="linear",
            machine="npu",
            settings={"array.rows": 2**n, "batch": 8},
            metrics={"time_s": 10.0 - n, "energy_j": float(abs(n - 2))},
        )
        for n in range(5)
    ]
    failed = Record(key=f"{9:064x}", workload="linear", machine="npu", settings={"array.rows": 0, "batch": 8}, error="no rows")
    with store.writing():
        store.append([*records, failed])
        store.compact()
    (folder / "no-store").mkdir()
    outside = tmp_path_factory.mktemp("outside")
    Store.begin(outside / "secret.store", {"name": "secret"})
    (folder / "link.store").symlink_to(outside / "secret.store")
    return folder


@pytest.fixture(scope="session")
def client(stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    before = os.environ.get("TRAINYARD_CACHE")
    os.environ["TRAINYARD_CACHE"] = str(tmp_path_factory.mktemp("server"))  # its workers are started below
    with Client(create_app(Settings(stores=stores, workers=1)), base_url=HERE, raise_server_exceptions=False) as made:
        assert made.get("/api/machine", params={"text": "npu"}).status_code == 200
        made.found(workload="linear", machine="npu")
        if before is None:
            del os.environ["TRAINYARD_CACHE"]
        else:
            os.environ["TRAINYARD_CACHE"] = before
        yield made


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = start_server(tmp_path_factory.mktemp("served"))
    yield made
    workers = made.workers
    assert workers
    assert made.kept()
    made.process.send_signal(signal.SIGINT)
    assert made.process.wait(20) == 0
    assert made.process.stdout is not None
    assert made.process.stdout.read() == ""  # nothing but the address was said
    made.process.stdout.close()
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert not made.kept()  # uploads are gone
