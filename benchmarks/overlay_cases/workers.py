"""A process for each network: all compile side by side, then one after the other is measured, nearly alone on the machine.

Compiling takes minutes and one core for each network (150 to 420 s with eight side by side on 16 cores); measuring takes the GPU, a
minute or two for each. With `fill`, further processes compile the shares of a network in parallel, for the compiler's caches on
disk: for few networks only, since each holds its weights on the GPU. Every row is written as it is measured, and networks that a
file has already are left out: a run that was ended goes on where it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay_gpu import say

from overlay_cases.fronts import Front, fill_caches

LARGE = ("llama-7b",)
"""Networks of which there is memory for one process only while others compile."""
COMPILER_THREADS = "3"
STILL_COMPILING = 2
"""Networks that may still compile when the first is measured: they leave most of 16 cores idle. Rows say which did."""
PREPARED_S = 900.0
"""After so long, what is compiled is measured whatever still compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    specs: tuple[str, ...]
    shares: tuple[float, ...]
    compiled: tuple[str, ...]
    """Networks that are compiled; all where it is empty."""
    to_cpu: tuple[str, ...]
    device: str = "cuda"
    seconds: float = 600.0
    fill: bool = False
    """Whether further processes fill the compiler's caches."""

    def shares_of(self, spec: str) -> list[float]:
        return [*self.shares] if not self.compiled or spec in self.compiled else []


def work(order: dict[str, Any]) -> None:
    """The life of one process: its order is one network, or one share of it for the caches."""
    if "fill" in order:
        fill_caches(order["spec"], order["fill"])
        return
    front = Front(order["spec"], order["shares"], order["with_cpu"], order["device"])
    front.prepare()
    folder, number = Path(order["folder"]), order["number"]
    (folder / f"{number}.ready").touch()
    while not (folder / f"{number}.go").exists():
        time.sleep(0.05)
    part = folder / f"{number}.json"
    for document in front.rows():
        fresh = part.with_suffix(".new")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(part)


class Worker:
    """One network's process and its files."""

    def __init__(self, number: int, spec: str, request: Request, folder: Path) -> None:
        self.spec, self.stem = spec, folder / str(number)
        self.order = {
            "spec": spec,
            "number": number,
            "folder": str(folder),
            "shares": request.shares_of(spec),
            "with_cpu": spec in request.to_cpu,
            "device": request.device,
        }
        self.process = start(self.order)

    def file(self, suffix: str) -> Path:
        return self.stem.with_suffix(suffix)

    @property
    def is_ready(self) -> bool:
        return self.file(".ready").exists() or self.process.poll() is not None

    def document(self) -> dict[str, Any] | None:
        part = self.file(".json")
        return json.loads(part.read_text(encoding="utf-8")) if part.exists() else None


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    script = Path(__file__).parents[1] / "overlay_gpu.py"
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": COMPILER_THREADS, "OMP_NUM_THREADS": "4"}
    return subprocess.Popen([sys.executable, str(script), "--worker", json.dumps(order)], env=environment)


@contextmanager
def alone() -> Iterator[None]:
    """One network at a time is measured on a machine, also by several runs of this script."""
    with (Path(tempfile.gettempdir()) / "overlay_gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def finished(out: Path) -> list[dict[str, Any]]:
    """Networks that a file has completely."""
    if not out.exists():
        return []
    networks = json.loads(out.read_text(encoding="utf-8"))["networks"]
    return [network for network in networks if network.get("complete")]


def measure(out: Path, request: Request) -> None:
    """Fronts of the networks, as far as the time goes, in the order of `request.specs`."""
    deadline = time.monotonic() + request.seconds
    done = finished(out)
    specs = [spec for spec in request.specs if spec not in {network["name"] for network in done}]
    with tempfile.TemporaryDirectory() as folder:
        fillers = [
            start({"spec": spec, "fill": share})
            for spec in specs
            if spec not in LARGE and request.device == "cuda" and request.fill
            for share in request.shares_of(spec)[1:]
        ]
        workers = [Worker(number, spec, request, Path(folder)) for number, spec in enumerate(specs)]
        try:
            _run(workers, out, done, deadline, request.device)
        finally:
            for process in (*fillers, *(worker.process for worker in workers)):
                if process.poll() is None:
                    process.kill()
    write(out, done, workers_documents=[], device=request.device)


def _run(
    workers: Sequence[Worker],
    out: Path,
    done: list[dict[str, Any]],
    deadline: float,
    device: str,
) -> None:
    prepared_by = min(time.monotonic() + PREPARED_S, deadline)
    still = min(STILL_COMPILING, len(workers) - 1)
    while time.monotonic() < prepared_by and sum(not worker.is_ready for worker in workers) > still:
        time.sleep(0.2)
    waiting = list(workers)
    while waiting and time.monotonic() < deadline:
        worker = next((one for one in waiting if one.is_ready), None)
        if worker is None:
            time.sleep(0.2)
            continue
        waiting.remove(worker)
        busy = [one.spec for one in waiting if not one.is_ready]
        begun = time.monotonic()
        with alone():
            worker.file(".go").touch()
            while worker.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
                write(out, done, [worker.document()], device)
        document = worker.document()
        say(f"{worker.spec}: measured in {time.monotonic() - begun:.0f} s")
        if document is not None:
            done.append(document | {"beside": busy})
        write(out, done, [], device)
    for worker in waiting:
        say(f"out of time: {worker.spec} is left out")


def write(out: Path, done: Sequence[dict[str, Any]], workers_documents: Sequence[dict[str, Any] | None], device: str) -> None:
    import torch

    networks = [*done, *(document for document in workers_documents if document is not None)]
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    document = {"device": name, "torch": torch.__version__, "networks": networks}
    fresh = out.with_suffix(".new")
    fresh.write_text(json.dumps(document), encoding="utf-8")
    fresh.replace(out)


def run_worker(text: str) -> None:
    try:
        work(json.loads(text))
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
