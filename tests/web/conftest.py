"""One server for all tests of its answers, one with small limits, and programs that do what a worker must survive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from trainyard.sweep.records import Record
from trainyard.sweep.store import Store
from trainyard.web.app import create_app
from trainyard.web.settings import Settings

HERE = "http://127.0.0.1:8080"
PROGRAM = (sys.executable, "-m", "trainyard", "serve")


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


def _descendants(pid: int) -> list[int]:
    """All processes below one, itself left out."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


@dataclass
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    address: str
    folder: Path

    def client(self) -> Any:
        import httpx

        return httpx.Client(base_url=self.address, timeout=60, trust_env=False)

    @property
    def workers(self) -> list[int]:
        """Its processes, all the way down."""
        return _descendants(self.process.pid)

    @property
    def handles(self) -> int:
        """Files, sockets and pipes that it holds open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def resident_bytes(self, pids: list[int]) -> int:
        """Memory of some of its processes."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def kept(self) -> list[Path]:
        return list(self.folder.glob("trainyard-serve-*"))


def start_server(folder: Path, *words: str) -> Served:
    """A server in a process of its own, whose temporary files and caches are in `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder), "TRAINYARD_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [*PROGRAM, "--port", "0", "--no-open", "--jobs", "1", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("trainyard serves http://127.0.0.1:"), line
    return Served(process, line.split()[2].rstrip("/"), folder)


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
