"""Long-lived worker processes: a library is imported once in each, and a crash or a hang is one failed case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from coverage_cases.case import Case, cases_of
from coverage_cases.examination import MACHINES, Record, examine

TIME_LIMIT_S = 180.0
START_LIMIT_S = 120.0
MEMORY_LIMIT_BYTES = 8 << 30
CASES_PER_WORKER = 60  # then a new process: what libraries keep would add up

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def serve(pipe: Connection) -> None:
    """The life of a worker: a case's family and name in, its record out."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    import torch

    from coverage_cases.torchvision_ops import provide

    torch.set_num_threads(1)
    provide()
    pipe.send("ready")
    while (request := pipe.recv()) is not None:
        family, name, real, machines = request
        case = next(case for case in cases_of(family) if case.name == name)
        pipe.send(examine(case, real=real, machines=machines))


class Worker:
    """One process that examines cases, started when it is needed and again after a crash."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None
        self._family, self._done = "", 0

    def examine(self, case: Case, *, real: bool, machines: tuple[str, ...] = MACHINES) -> Record:
        if self._process is not None and (self._family != case.family or self._done >= CASES_PER_WORKER):
            self.stop()
        failure = "" if self._process is not None else self._start()
        if not failure:
            self._family, self._done = case.family, self._done + 1
            try:
                self._pipe.send((case.family, case.name, real, machines))
                if self._pipe.poll(self._time_limit_s):
                    record: Record = self._pipe.recv()
                    return record
                failure = f"took longer than {self._time_limit_s:.0f} s"
            except (EOFError, OSError):
                self._process.join(5)
                failure = f"the process ended with exit code {self._process.exitcode}"
        self._kill()
        return Record(case.family, case.name, default_error=failure, real_error=failure, real=False if real else None)

    def _start(self) -> str:
        self._pipe, theirs = self._context.Pipe()
        self._process, self._done = self._context.Process(target=serve, args=(theirs,), daemon=True), 0
        self._process.start()
        theirs.close()
        try:
            if self._pipe.poll(START_LIMIT_S) and self._pipe.recv() == "ready":
                return ""
        except EOFError:
            pass
        return "a worker process did not start"

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(None)
            self._process.join(10)
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = None


def examine_all(cases: Sequence[Case], *, jobs: int, real: bool, on_record: Callable[[Record], None]) -> list[Record]:
    """The records of all cases, in their order; `on_record` hears of each as it comes."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    waiting = deque(enumerate(cases))
    records: dict[int, Record] = {}
    lock = threading.Lock()

    def work() -> None:
        worker = Worker()
        while True:
            with lock:
                if not waiting:
                    break
                number, case = waiting.popleft()
            record = worker.examine(case, real=real)
            with lock:
                records[number] = record
                on_record(record)
        worker.stop()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [records[number] for number in sorted(records)]
