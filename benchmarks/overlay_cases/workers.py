"""Processes of `overlay_gpu.py --models`: many compile, one measures.

A machine has a GPU and some cores, and compiling takes the cores for minutes. So processes fill the compiler's caches for all
networks (`caches`). A network whose code is there gets a process of its own, which traces it and waits for its turn to be measured.
Measuring begins when everything is compiled, since compilers on other cores slow the host of a measured step down by a third; after
`Request.quiet_s` it begins all the same, with the networks that are ready, on cores that new compilers leave alone. Every row is
written as it is measured, and networks that a file has already are left out: a run that was ended goes on where it was.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlay_gpu import say

from overlay_cases.caches import fill_caches
from overlay_cases.fronts import Front

COMPILER_THREADS = "3"
MEASURING_CORES = 4
"""Cores that only the network that is measured runs on."""
LARGE = ("llama-7b",)
"""Networks of which one share is compiled at a time: four at once left another network's measurement without memory."""
TICK_S, WRITE_S = 0.2, 5.0
Order = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    specs: tuple[str, ...]
    shares: tuple[float, ...]
    compiled: tuple[str, ...]
    """Networks that are compiled; all where it is empty."""
    to_cpu: tuple[str, ...]
    compiled_first: tuple[str, ...] = ()
    """Networks that take the longest to compile."""
    device: str = "cuda"
    compiler: str = "inductor"
    """Of the overlay; `torch.compile` has its own."""
    seconds: float = 600.0
    quiet_s: float = 0.0
    """How long the first measurement waits for all networks to be compiled."""

    def shares_of(self, spec: str) -> list[float]:
        return [*self.shares] if not self.compiled or spec in self.compiled else []

    def fillers_of(self, spec: str) -> list[Order]:
        """Orders of processes that compile a network: one for each share of its blocks, with the whole where that is asked for."""
        from trainyard.live.paging.regions.variants import SHARES

        shares = self.shares_of(spec) if self.device == "cuda" else []
        every = sorted({*shares, *SHARES}, reverse=True) if shares else []
        # The whole and the blocks of a network that takes long are compiled side by side.
        parts = [(True, False), (False, True)] if spec in self.compiled_first else [(True, True)]
        orders: list[Order] = [
            {"spec": spec, "fill": share, "whole": whole and share in shares, "blocks": blocks, "compiler": self.compiler}
            for share in every
            for whole, blocks in parts
            if blocks or share in shares
        ]
        if self.compiler == "inductor":
            return orders
        alone = {"spec": spec, "whole": True, "blocks": False, "compiler": "inductor"}
        return [*orders, *(alone | {"fill": share} for share in shares)]


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores for the network that is measured (the last: the first serve interrupts), and for the rest; all, if they are few."""

    measuring: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of_this_machine(cls) -> Cores:
        cores = tuple(sorted(os.sched_getaffinity(0)))
        enough = len(cores) >= 3 * MEASURING_CORES
        return cls(cores[-MEASURING_CORES:], cores[:-MEASURING_CORES]) if enough else cls(cores, cores)


def move_to(cores: Iterable[int]) -> None:
    """This process with all its threads."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def work(order: Order) -> None:
    """The life of one process: its order is to compile one share of a network, or to measure a network."""
    if "fill" in order:
        fill_caches(order["spec"], order["fill"], whole=order["whole"], blocks=order["blocks"], compiler=order["compiler"])
        return
    front = Front(order["spec"], order["shares"], order["with_cpu"], order["device"], order["compiler"])
    front.prepare()
    folder, number = Path(order["folder"]), order["number"]
    (folder / f"{number}.ready").touch()
    while not (folder / f"{number}.go").exists():
        time.sleep(0.05)
    move_to(order["cores"])
    part = folder / f"{number}.json"
    for document in front.rows():
        fresh = part.with_suffix(".new")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(part)


def start(order: Order, cores: Sequence[int]) -> subprocess.Popen[bytes]:
    script = Path(__file__).parents[1] / "overlay_gpu.py"
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": COMPILER_THREADS, "OMP_NUM_THREADS": "4"}
    process = subprocess.Popen([sys.executable, str(script), "--worker", json.dumps(order)], env=environment)
    os.sched_setaffinity(process.pid, cores)
    return process


class Worker:
    """The process that measures one network, and its files."""

    def __init__(self, number: int, spec: str, request: Request, folder: Path, cores: Cores) -> None:
        self.spec, self.stem, self.begun = spec, folder / str(number), 0.0
        self.compiling: list[str] = []
        """Networks that are compiled or traced while this one is measured."""
        order = {
            "spec": spec,
            "number": number,
            "folder": str(folder),
            "shares": request.shares_of(spec),
            "with_cpu": spec in request.to_cpu,
            "device": request.device,
            "compiler": request.compiler,
            "cores": cores.measuring,
        }
        self.process = start(order, cores.others)

    def file(self, suffix: str) -> Path:
        return self.stem.with_suffix(suffix)

    @property
    def is_ready(self) -> bool:
        return self.file(".ready").exists()

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def go(self, compiling: list[str]) -> None:
        self.compiling, self.begun = compiling, time.monotonic()
        self.file(".go").touch()

    def document(self) -> dict[str, Any] | None:
        part = self.file(".json")
        return json.loads(part.read_text(encoding="utf-8")) | {"beside": self.compiling} if part.exists() else None


@dataclass(slots=True)
class Filler:
    """A process that compiles a share of a network."""

    spec: str
    process: subprocess.Popen[bytes]


@dataclass(slots=True)
class Run:
    """All processes of a run: which are started when, and what was measured."""

    request: Request
    out: Path
    folder: Path
    done: list[dict[str, Any]]
    waiting: list[str]
    """Networks that have no process yet."""
    cores: Cores = field(default_factory=Cores.of_this_machine)
    orders: list[Order] = field(default_factory=list)
    """Shares of networks that are still to be compiled."""
    fillers: list[Filler] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    """The network that is measured, if one is, and the next ones."""
    measured: Worker | None = None
    count: int = 0
    written: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def step(self) -> None:
        self.fillers = [filler for filler in self.fillers if filler.process.poll() is None]
        tracing = sum(not worker.is_ready for worker in self.workers)
        cores = self.compiling_cores
        while len(self.fillers) + tracing < len(cores) and (order := self._next_order()) is not None:
            self.orders.remove(order)
            self.fillers.append(Filler(order["spec"], start(order, cores)))
        busy = {filler.spec for filler in self.fillers} | {order["spec"] for order in self.orders}
        for spec in [spec for spec in self.waiting if spec not in busy]:
            self.waiting.remove(spec)
            self.workers.append(Worker(self.count, spec, self.request, self.folder, self.cores))
            self.workers.sort(key=lambda worker: self.request.specs.index(worker.spec))
            self.count += 1
        for worker in [worker for worker in self.workers if worker.is_over]:
            self._finish(worker)
        if self.measured is not None and time.monotonic() - self.written > WRITE_S:
            self.write()
        ready = [worker for worker in self.workers if worker.is_ready]
        others = busy | {worker.spec for worker in self.workers if not worker.is_ready}
        if self.measured is None and ready and (not others or time.monotonic() - self.begun > self.request.quiet_s):
            self.measured = ready[0]
            self.measured.go(sorted(others))

    @property
    def compiling_cores(self) -> tuple[int, ...]:
        """All of them while nothing can be measured."""
        is_waiting = time.monotonic() - self.begun < self.request.quiet_s
        return tuple(sorted({*self.cores.measuring, *self.cores.others})) if is_waiting else self.cores.others

    def _next_order(self) -> Order | None:
        running = {filler.spec for filler in self.fillers}
        return next((order for order in self.orders if order["spec"] not in LARGE or order["spec"] not in running), None)

    def _finish(self, worker: Worker) -> None:
        self.workers.remove(worker)
        document = worker.document()
        say(f"{worker.spec}: {time.monotonic() - worker.begun:.0f} s" if document else f"{worker.spec}: nothing measured")
        if document is not None:
            self.done.append(document)
        if worker is self.measured:
            self.measured = None
        self.write()

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.workers

    def write(self) -> None:
        """What was measured so far, also of the network that is measured now."""
        import torch

        self.written = time.monotonic()
        partial = self.measured.document() if self.measured is not None else None
        networks = [*self.done, *([partial] if partial is not None else [])]
        name = torch.cuda.get_device_name() if self.request.device == "cuda" else "CPU"
        fresh = self.out.with_suffix(".new")
        fresh.write_text(json.dumps({"device": name, "torch": torch.__version__, "networks": networks}), encoding="utf-8")
        fresh.replace(self.out)

    def close(self) -> None:
        for process in (*(filler.process for filler in self.fillers), *(worker.process for worker in self.workers)):
            if process.poll() is None:
                process.kill()
            process.wait()
        self.write()


def measure(out: Path, request: Request) -> None:
    """Fronts of the networks, as far as the time goes, in the order of `request.specs`."""
    deadline = time.monotonic() + request.seconds
    done = finished(out)
    specs = [spec for spec in request.specs if spec not in {network["name"] for network in done}]
    first = sorted(specs, key=lambda spec: spec not in request.compiled_first)
    orders = [order for spec in first for order in request.fillers_of(spec)]
    with tempfile.TemporaryDirectory() as folder, alone():
        run = Run(request, out, Path(folder), done, specs, orders=orders)
        move_to(run.cores.others)
        try:
            while not run.is_over and time.monotonic() < deadline:
                run.step()
                time.sleep(TICK_S)
            if not run.is_over:
                say(f"out of time: {', '.join([*(worker.spec for worker in run.workers), *run.waiting])}")
        finally:
            run.close()


@contextmanager
def alone() -> Iterator[None]:
    """One run of this script at a time on a machine."""
    with (Path(tempfile.gettempdir()) / "overlay_gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def finished(out: Path) -> list[dict[str, Any]]:
    """Networks that a file has completely."""
    if not out.exists():
        return []
    networks = json.loads(out.read_text(encoding="utf-8"))["networks"]
    return [network for network in networks if network.get("complete")]


def run_worker(text: str) -> None:
    try:
        work(json.loads(text))
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
