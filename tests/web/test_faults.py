"""What a server survives: requests that are never finished, being killed, and results on disk that somebody has damaged."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.web.serving import Served, start_server

from trainyard.files import source_digest
from trainyard.web import connections, folders
from trainyard.web.connections import within
from trainyard.web.kept_results import KeptResults

KEYS = [f"{number:064x}" for number in range(8)]


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def test_a_result_on_disk_is_found_by_the_next_server(tmp_path: Path) -> None:
    KeptResults(tmp_path, "program", 10**6, 10).put(KEYS[0], _packed(b"{}"))
    assert KEYS[0] in KeptResults(tmp_path, "program", 10**6, 10)
    assert KeptResults(tmp_path, "program", 10**6, 10).get(KEYS[0]) == _packed(b"{}")
    assert KeptResults(tmp_path, "another program", 10**6, 10).get(KEYS[0]) is None


def test_a_damaged_result_on_disk_is_removed_and_not_answered(tmp_path: Path) -> None:
    results = KeptResults(tmp_path, "program", 10**6, 10)
    content = _packed(b'{"time_s": 1.0}')
    removed = 0
    for position in range(len(content)):
        results.put(KEYS[1], content)
        (file,) = tmp_path.iterdir()
        file.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        answer = results.get(KEYS[1])
        removed += answer is None
        assert (KEYS[1] in results) is (answer is not None)
        assert answer is None or gzip.decompress(answer) == b'{"time_s": 1.0}'
    assert removed > len(content) - 10  # a time, an operating system and bits that fill the last byte say nothing


@pytest.mark.parametrize(("most_bytes", "most_results"), [(10**6, 3), (3 * len(_packed(b"{}")), 100)])
def test_results_on_disk_are_bounded_and_the_least_recently_used_go_first(
    tmp_path: Path, most_bytes: int, most_results: int
) -> None:
    results = KeptResults(tmp_path, "program", most_bytes, most_results)
    for age, key in enumerate(KEYS[:3]):
        results.put(key, _packed(b"{}"))
        (path,) = tmp_path.glob(f"*{key}*")
        os.utime(path, (age, age))
    assert results.get(KEYS[0]) is not None  # used again
    results.put(KEYS[3], _packed(b"{}"))
    assert [key in results for key in KEYS[:4]] == [True, False, True, True]
    results.put(KEYS[4], b"x" * (most_bytes + 1))
    assert KEYS[4] not in results


@pytest.mark.parametrize("key", ["", "../secret", "0" * 63, "0" * 63 + "/", "A" * 64, "0" * 64 + "\n"])
def test_no_path_is_made_of_a_key_that_is_no_hash(tmp_path: Path, key: str) -> None:
    results = KeptResults(tmp_path / "results", "program", 10**6, 10)
    results.put(key, b"content")
    assert not (tmp_path / "results").exists()
    assert key not in results
    assert results.get(key) is None


def test_a_results_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results = KeptResults(tmp_path / "file" / "results", "program", 10**6, 10)
    results.put(KEYS[0], b"content")
    assert results.get(KEYS[0]) is None


def test_folders_of_dead_servers_are_removed_and_those_of_living_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, new, outside = (tmp_path / f"{folders.PREFIX}{name}" for name in ("dead", "new", "link"))
    for folder in (dead, new, tmp_path / "outside"):
        (folder / "uploads").mkdir(parents=True)
    (dead / folders.LOCK).touch()
    (tmp_path / "outside" / folders.LOCK).touch()
    outside.symlink_to(tmp_path / "outside")
    with folders.private_folder(tmp_path) as living:
        assert not dead.exists()
        assert new.exists()  # it has no lock yet
        assert (outside / "uploads").exists()
        with folders.private_folder(tmp_path) as second:
            assert living.exists()
            assert second != living
        assert not second.exists()
    assert not living.exists()
    monkeypatch.setattr(folders, "UNLOCKED_S", -1.0)
    assert folders.remove_abandoned(tmp_path) == [new]


def test_a_body_that_stops_coming_is_an_error_and_one_that_comes_is_not() -> None:
    async def blocks(pause_s: float) -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(pause_s)
        yield b"b"

    async def read(pause_s: float) -> bytes:
        return b"".join([block async for block in within(blocks(pause_s), idle_s=0.2)])

    assert asyncio.run(read(0.0)) == b"ab"
    with pytest.raises(TimeoutError):
        asyncio.run(read(30.0))


HEAD = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
HALVES = [b"", b"GET / HT", b"GET /api/version HTTP/1.1\r\nHost: local", HEAD, HEAD + b'{"workload"']
GET = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _answers(half: bytes) -> list[bytes]:
    """What a server with short limits says to half a request, alone and after a whole one; an empty read is its hanging up."""
    import uvicorn

    from trainyard.web.app import create_app
    from trainyard.web.settings import Settings

    settings = Settings(workers=1, warm=False, idle_s=0.2, body_s=0.3)
    limited = connections.protocol(0.2)
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, http=limited, timeout_keep_alive=1, log_level="error"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            answers = []
            for before in (b"", GET):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(before + half)
                answers.append(await asyncio.wait_for(reader.read(), 20))
                writer.close()
            return answers
        finally:
            server.should_exit = True
            await serving


@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_is_answered_with_408_and_hung_up_on(half: bytes) -> None:
    alone, after_another = asyncio.run(_answers(half))
    assert alone.startswith(b"HTTP/1.1 408")
    assert b"did not come in time" in alone
    assert after_another.startswith(b"HTTP/1.1 200")


@pytest.mark.timeout(120)
def test_a_killed_server_loses_no_result_and_the_next_one_removes_its_folder(tmp_path: Path) -> None:
    def finished(server: Served) -> dict[str, Any]:
        with server.client() as client:
            job = client.post("/api/jobs", json={"workload": "linear", "machine": "npu"}).json()
            found: dict[str, Any] = client.get(f"/api/jobs/{job['id']}", params={"wait": 30}).json()
            return found

    source = source_digest.__wrapped__()
    first = start_server(tmp_path)
    job = finished(first)
    assert job["state"] == "done"
    workers = first.workers
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(20)
    assert first.process.stdout is not None
    first.process.stdout.close()
    (left,) = first.kept()
    second = start_server(tmp_path)
    try:
        with second.client() as client:
            answer = client.get(f"/api/results/{job['key']}")
            if source_digest.__wrapped__() != source:
                pytest.skip("the package was changed between the two servers: results of other code do not count")
            assert answer.json()["time_s"] > 0
            again = client.post("/api/jobs", json={"workload": "linear", "machine": "npu"}).json()
            assert (again["state"], again["key"]) == ("done", job["key"])
        assert left not in second.kept()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    finally:
        second.process.send_signal(signal.SIGINT)
        assert second.process.wait(20) == 0
        assert second.process.stdout is not None
        second.process.stdout.close()
    assert not second.kept()


@pytest.mark.parametrize("keep", [True, False])
def test_the_command_times_requests_and_keeps_results_unless_told_not_to(monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    import uvicorn

    from trainyard.cli.serve import serve
    from trainyard.files import cache_folder
    from trainyard.web import app

    configs: list[Any] = []
    chosen: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: configs.append(self.config))
    monkeypatch.setattr(app, "create_app", chosen.append)
    serve(host="127.0.0.1", port=0, opened=False, stores=None, max_upload="1 MB", jobs=1, keep=keep)
    assert configs[0].http is connections.TimedConnection
    assert chosen[0].results == (cache_folder() / "results" if keep else None)
