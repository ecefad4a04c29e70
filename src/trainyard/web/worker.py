"""A worker process: takes one task at a time from stdin, answers on stdout, ends when the server does.

Its address space is limited, so that a step or a file that needs too much fails here alone. A thread reads stdin: the end of it
means that the server is gone, and ends the worker with all its children in the middle of whatever it computes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from trainyard.errors import TrainyardError, UnknownName
from trainyard.web import frames
from trainyard.web.frames import ASK, DONE, FAILED, HEAD, PROGRESS, READY, SPENT, packed

BAD, ABSENT, FAULT = 400, 404, 500
LOOKED_UP = ("job", "paper", "result", "store", "upload")
"""What an address names."""
NICENESS = 5
"""The server answers before its workers compute."""
SPENT_SHARE = 0.25
"""Of its limit: a worker that holds more after a task is replaced, so that what it keeps cannot make a later task fail."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers
    os.nice(NICENESS)
    _limit_memory(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not stand between answers
    requests: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
    Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    from trainyard.web.tasks import TASKS

    answers.write(packed(READY, b""))
    while True:
        name, arguments = requests.get()
        _answer(answers, TASKS[name], arguments)


def _limit_memory(limit_bytes: int) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(stream: BinaryIO, requests: SimpleQueue[tuple[str, dict[str, Any]]]) -> None:
    while len(head := stream.read(HEAD.size)) == HEAD.size:
        kind, length = HEAD.unpack(head)
        body = stream.read(length)
        if kind != ASK or len(body) < length:
            break
        name, arguments = json.loads(body)
        requests.put((name, arguments))
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def _answer(answers: BinaryIO, task: Callable[..., Any], arguments: dict[str, Any]) -> None:
    def on_progress(done: int, total: int, message: str = "", /) -> None:
        _write(answers, packed(PROGRESS, frames.json_bytes([done, total, message])))

    spent = False
    try:
        answer = packed(DONE, frames.compressed(task(on_progress, **arguments)))
    except Exception as error:
        spent = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
        answer = packed(FAILED, frames.json_bytes([*reason(error)]))
    if spent or _resident_bytes() > int(sys.argv[1]) * SPENT_SHARE:
        _write(answers, packed(SPENT, b""))
    _write(answers, answer)


def _resident_bytes() -> int:
    """Memory that this process holds now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _write(answers: BinaryIO, body: bytes) -> None:
    rest = memoryview(body)
    while rest:
        rest = rest[answers.write(rest) :]


def reason(error: BaseException) -> tuple[int, str]:
    """One line about an error, and its HTTP status."""
    if isinstance(error, TrainyardError):
        cause = error.__cause__
        without_torch = isinstance(cause, ModuleNotFoundError) and cause.name == "torch"
        line = f"{error}: pip install 'trainyard[torch]'" if without_torch else str(error)
        return ABSENT if isinstance(error, UnknownName) and error.kind in LOOKED_UP else BAD, " ".join(line.split())
    if isinstance(error, MemoryError):
        return BAD, "this needs more memory than a worker may take (trainyard serve limits it)"
    if isinstance(error, RecursionError):
        return BAD, "nested too deeply to be read"
    if isinstance(error, OverflowError):
        return BAD, f"a size of the workload or the machine is too large to count with ({error})"
    return FAULT, " ".join(f"a fault of trainyard: {type(error).__name__}: {error}".split())[:500]


if __name__ == "__main__":
    main()
