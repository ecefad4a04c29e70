"""`trainyard serve` as a process: its address, its errors, who leaves in the middle, its end (in the fixture)."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

PROGRAM = (sys.executable, "-m", "trainyard", "serve")


def ran(*words: str) -> tuple[int, str]:
    done = subprocess.run([*PROGRAM, "--no-open", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr.strip()


def test_a_taken_port_and_other_slips_are_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ran("--port", str(port)) == (
            2,
            f"trainyard: port {port} of 127.0.0.1 is taken: write --port {port + 1}, or --port 0",
        )
    assert ran("--stores", str(tmp_path / "none")) == (2, f"trainyard: --stores {tmp_path / 'none'}: there is no such folder")
    code, line = ran("--max-upload", "8 apples")
    assert (code, "'8 apples' is not a quantity in B" in line) == (2, True)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = None\nfrom trainyard.cli import main\nsys.exit(main(['serve', '--no-open']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (2, "trainyard: trainyard serve needs fastapi: pip install 'trainyard[web]'")


def test_the_page_is_there_at_once_and_a_run_answers(served: Any) -> None:
    with served.client() as client:
        begin = time.perf_counter()
        page = client.get("/")
        assert page.status_code == 200
        assert time.perf_counter() - begin < 1.0
        job = client.post("/api/jobs", json={"workload": "linear", "machine": "npu"}).json()
        job = client.get(f"/api/jobs/{job['id']}", params={"wait": 30}).json()
        assert job["state"] == "done", job
        assert client.get("/api/version", headers={"host": "evil.example"}).status_code == 421
        assert "server" not in page.headers


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(served: Any) -> None:
    host, port = served.address.removeprefix("http://").split(":")
    (folder,) = served.kept()
    with served.client() as client:
        client.get("/api/version")
        before = served.handles
        for _ in range(5):
            with socket.create_connection((host, int(port))) as half:
                half.sendall(b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + b"x" * 2500)
        deadline = time.monotonic() + 5
        while (list(folder.glob("*.part")) or served.handles > before) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not list(folder.glob("*.part"))
        assert served.handles <= before
        assert client.get("/api/version").status_code == 200


def test_another_host_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import uvicorn

    from trainyard.cli.serve import serve

    taken: list[tuple[str, int]] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: taken.append(sockets[0].getsockname()))
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        serve(host=host, port=0, opened=False, stores=None, max_upload="1 MB", jobs=1)
        told = capsys.readouterr()
        assert told.out == f"trainyard serves http://127.0.0.1:{taken[-1][1]}/ (Ctrl-C ends it)\n"
        assert (f"{host} can be reached by other computers" in told.err) == warned
        assert taken[-1][0] == host
