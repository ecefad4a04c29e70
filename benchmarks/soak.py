"""`trainyard serve` under random requests for as long as asked: memory, processes and files must stay flat.

    python benchmarks/soak.py --seconds 3600 --json benchmarks/data/soak.json

A server of its own on loopback, through the real command, with caches that are full after a few minutes: what still grows then is a
leak. One client sends requests drawn from a seed, at a bounded rate: pages, lists, machines that can be read and that cannot, runs
that were never asked for before, what-ifs that are cancelled, uploads good and bad, hosts that are refused, connections that leave
in the middle of a request. Everything is watched from outside, in /proc and on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

LIMITS = {"cache_results": 32, "jobs_kept": 32, "results_kept": 48, "uploads": 8}
"""Smaller than the command's own, so that every bound is reached early."""
START = f"""
import sys
from functools import partial
from trainyard.web import settings
settings.Settings = partial(settings.Settings, **{LIMITS!r})
from trainyard.cli import main
sys.exit(main(["serve", "--port", "0", "--no-open", "--jobs", "1"]))
"""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVER_GROWTH_BYTES = 8 * 10**6
"""Of the server's memory between the first and the last tenth of the samples: allocators round up."""
WORKER_GROWTH_BYTES = 64 * 10**6
"""Of its workers': they keep tilings and steps of machines they have seen, within bounds of their own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the server holds at a moment."""

    at_s: float
    server_bytes: int
    worker_bytes: int
    processes: int
    zombies: int
    handles: int
    temporary_files: int
    kept_results: int


@dataclass(slots=True)
class Soak:
    """The figures of a soak."""

    seconds: float = 0.0
    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    left_processes: int = 0
    left_files: list[str] = field(default_factory=list)
    exit_code: int | None = None

    def growth_bytes(self, of: str) -> float:
        """The median of the last tenth of the samples less that of the tenth before the half: by then all bounds are reached."""
        tenth = max(1, len(self.samples) // 10)
        values: list[int] = [getattr(sample, of) for sample in self.samples]
        middle = len(values) // 2
        return statistics.median(values[-tenth:]) - statistics.median(values[max(0, middle - tenth) : middle] or values[:1])

    def problems(self) -> list[str]:
        """What was not flat, or went wrong."""
        most = {name: max(getattr(sample, name) for sample in self.samples) for name in ("zombies", "kept_results")}
        last, found = self.samples[-1], [f"{len(self.faults)} faults, the first: {self.faults[0]}"] if self.faults else []
        for name, bound in (("server_bytes", SERVER_GROWTH_BYTES), ("worker_bytes", WORKER_GROWTH_BYTES)):
            if (grown := self.growth_bytes(name)) > bound:
                found.append(f"{name} grew by {grown / 1e6:.1f} MB, at most {bound / 1e6:g} MB are not a leak")
        if last.zombies:
            found.append(f"{last.zombies} zombies at the end, {most['zombies']} at most")
        for name in ("processes", "handles", "temporary_files"):
            if (now := getattr(last, name)) > (first := getattr(self.samples[0], name)):
                found.append(f"{now} {name} at rest, {first} at the beginning")
        if most["kept_results"] > LIMITS["results_kept"]:
            found.append(f"{most['kept_results']} results on disk, {LIMITS['results_kept']} may be kept")
        if self.left_processes or self.left_files or self.exit_code != 0:
            found.append(f"after the end: exit {self.exit_code}, {self.left_processes} processes, files {self.left_files[:3]}")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 1),
            "requests": self.requests,
            "statuses": dict(sorted(self.statuses.items())),
            "limits": LIMITS,
            "server_growth_bytes": round(self.growth_bytes("server_bytes")),
            "worker_growth_bytes": round(self.growth_bytes("worker_bytes")),
            "most_zombies": max(sample.zombies for sample in self.samples),
            "left_processes": self.left_processes,
            "left_files": self.left_files,
            "problems": self.problems(),
            "samples": [asdict(sample) for sample in self.samples[:: max(1, len(self.samples) // 60)]],
        }


class Server:
    """The command as a process, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun_s = folder, time.monotonic()
        environment = {**os.environ, "TMPDIR": str(folder), "TRAINYARD_CACHE": str(folder / "cache")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=folder
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[2].rstrip("/")

    def descendants(self, pid: int | None = None) -> list[int]:
        pids: list[int] = []
        try:
            for task in Path(f"/proc/{pid or self.process.pid}/task").iterdir():
                for child in map(int, (task / "children").read_text().split()):
                    pids += [child, *self.descendants(child)]
        except OSError:  # it has ended meanwhile
            pass
        return pids

    def sample(self) -> Sample:
        pids = self.descendants()
        return Sample(
            at_s=round(time.monotonic() - self.begun_s, 1),
            server_bytes=_resident_bytes(self.process.pid),
            worker_bytes=sum(map(_resident_bytes, pids)),
            processes=len(pids),
            zombies=sum(map(_is_zombie, pids)),
            handles=len(list(Path(f"/proc/{self.process.pid}/fd").iterdir())),
            temporary_files=sum(1 for path in self.folder.rglob("*") if "cache" not in path.parts),
            kept_results=len(list((self.folder / "cache" / "results").glob("*"))),
        )

    def stop(self, soak: Soak) -> None:
        pids = self.descendants()
        self.process.send_signal(signal.SIGINT)
        try:
            soak.exit_code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        soak.left_processes = sum(Path(f"/proc/{pid}").exists() for pid in pids)
        soak.left_files = [path.name for path in self.folder.iterdir() if path.name != "cache"]


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


class Visitor:
    """One client that does something at random."""

    WORKLOADS = ("linear", "bert-tiny", "ncf")
    MACHINES = ("npu", "tpu", "sigma", "tensordash", "mcdla-b")
    PATHS = ("/", "/api/version", "/api/workloads", "/api/machines", "/api/papers", "/api/papers/igo", "/api/stores", "/api/jobs")
    NONSENSE = ("nppu(", "npu(dram=1e999999 GB/s)", "npu(array=" * 30, "a:b", "../x.toml", "npu(dram=-1)", "\x00", "")

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.client = httpx.Client(base_url=server.address, timeout=120, trust_env=False)
        self.actions: dict[Callable[[], list[httpx.Response]], int] = {
            self.look: 30,
            self.machine: 20,
            self.run: 20,
            self.cancelled: 2,
            self.upload: 8,
            self.refused: 8,
            self.leave: 3,
        }

    def warm_up(self) -> None:
        """Every workload on every machine once: workers have imported and compiled what they need."""
        for workload in self.WORKLOADS:
            for machine in self.MACHINES:
                job = self.client.post("/api/jobs", json={"workload": workload, "machine": machine}).json()
                while job["state"] in ("queued", "running"):
                    job = self.client.get(f"/api/jobs/{job['id']}", params={"wait": 30}).json()

    def act(self) -> list[httpx.Response]:
        (action,) = self.random.choices([*self.actions], [*self.actions.values()])
        return action()

    def look(self) -> list[httpx.Response]:
        return [self.client.get(self.random.choice(self.PATHS))]

    def machine(self) -> list[httpx.Response]:
        text = self.random.choice([*self.MACHINES, *self.NONSENSE, f"npu(dram={self.random.randint(1, 10**6)} GB/s)"])
        return [self.client.get("/api/machine", params={"text": text})]

    def _request(self) -> dict[str, Any]:
        request = {"workload": self.random.choice(self.WORKLOADS), "machine": self.random.choice(self.MACHINES)}
        return {**request, "batch": self.random.randint(1, 4096)}

    def run(self) -> list[httpx.Response]:
        answers = [self.client.post("/api/jobs", json=self._request())]
        if answers[0].status_code == 200:
            job = answers[0].json()
            answers.append(self.client.get(f"/api/jobs/{job['id']}", params={"wait": 30}))
            answers.append(self.client.get(f"/api/results/{job['key']}"))
        return answers

    def cancelled(self) -> list[httpx.Response]:
        answers = [self.client.post("/api/jobs", json={**self._request(), "whatif": True})]
        if answers[0].status_code == 200:
            answers.append(self.client.delete(f"/api/jobs/{answers[0].json()['id']}"))
        return answers

    def upload(self) -> list[httpx.Response]:
        good = f"Layer, M, N, K,\na, {self.random.randint(1, 99)}, 8, 8,\n".encode()
        bad = self.random.randbytes(self.random.randint(1, 5000))
        content = self.random.choice([good, good, bad, good[: self.random.randint(1, len(good))], b"[" * 3000])
        answers = [self.client.post("/api/uploads", params={"name": "a.csv"}, content=content)]
        if answers[0].status_code == 200:
            answers.append(self.client.delete(f"/api/uploads/{answers[0].json()['id']}"))
        return answers

    def refused(self) -> list[httpx.Response]:
        answers = [
            lambda: self.client.get("/api/version", headers={"host": self.random.choice(["evil.example", "evil@127.0.0.1"])}),
            lambda: self.client.post("/api/jobs", content=self.random.randbytes(200)),
            lambda: self.client.post("/api/jobs", json={}, headers={"origin": "https://evil.example"}),
            lambda: self.client.get("/static/../app.py"),
            lambda: self.client.get(f"/api/results/{self.random.randbytes(32).hex()}"),
            lambda: self.client.delete("/api/jobs/none"),
        ]
        return [self.random.choice(answers)()]

    def leave(self) -> list[httpx.Response]:
        """Part of a request; the server's time limit ends it if nobody else does."""
        host, port = self.server.address.removeprefix("http://").split(":")
        whole = b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + b"x" * 2500
        with socket.create_connection((host, int(port))) as half:
            half.sendall(whole[: self.random.randint(0, len(whole))])
        return []

    def settle(self) -> None:
        """Until nothing runs, the workers that were killed are replaced and half-open connections are timed out."""
        deadline = time.monotonic() + 60
        while any(job["state"] in ("queued", "running") for job in self.client.get("/api/jobs").json()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        job = self.client.post("/api/jobs", json=self._request()).json()
        self.client.get(f"/api/jobs/{job['id']}", params={"wait": 30})
        time.sleep(1.0)


def soak(
    seconds: float,
    folder: Path,
    *,
    seed: int = 0,
    per_s: float = 12.0,
    every_s: float = 5.0,
    on_sample: Callable[[Soak], None] = lambda _: None,
) -> Soak:
    """A server under random requests for so long."""
    figures, server = Soak(), Server(folder)
    try:
        visitor = Visitor(server, seed)
        visitor.warm_up()
        visitor.settle()
        figures.samples.append(server.sample())
        begin = sampled = time.monotonic()
        while (now := time.monotonic()) - begin < seconds:
            for answer in visitor.act():
                figures.requests += 1
                figures.statuses[str(answer.status_code)] += 1
                if answer.status_code >= 500 and answer.status_code != 503:
                    figures.faults.append(f"{answer.request.method} {answer.request.url}: {answer.text[:300]}")
            if now - sampled > every_s:
                sampled = now
                figures.samples.append(server.sample())
                figures.seconds = now - begin
                on_sample(figures)
            time.sleep(max(0.0, figures.requests / per_s - (time.monotonic() - begin)))
        visitor.settle()
        figures.samples.append(server.sample())
        figures.seconds = time.monotonic() - begin
        visitor.client.close()
    finally:
        server.stop(figures)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second at most")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()

    def write(figures: Soak) -> None:
        if options.json:
            Path(options.json).write_text(json.dumps(figures.as_dict(), indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        figures = soak(options.seconds, Path(folder), seed=options.seed, per_s=options.rate, on_sample=write)
    write(figures)
    print(json.dumps({name: value for name, value in figures.as_dict().items() if name != "samples"}, indent=1))
    if figures.problems():
        sys.exit(1)


if __name__ == "__main__":
    main()
