"""The server's side of a worker process: ask, receive progress, kill at the deadline or when the request is cancelled.

A worker that was killed, or died, is replaced by a new one at the next question. Each has a process group of its own, so that the
processes a task started go with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from trainyard.errors import TrainyardError
from trainyard.progress import ProgressCallback, no_progress
from trainyard.web.frames import ASK, DONE, FAILED, HEAD, PROGRESS, READY, SPENT, json_bytes, packed

START_S = 120.0
"""A worker imports numpy and numba first; on a busy machine that takes a while."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Threads of a library are address space that a task cannot have, and workers already share the cores."""


class TaskFailed(TrainyardError):
    """A task ended with an error; `status` is the HTTP status that says whose fault it is."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class Worker:
    """One process at a time, of `PROGRAM`."""

    PROGRAM: ClassVar[tuple[str, ...]] = ("-m", "trainyard.web.worker")

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.folder, self.memory_bytes = folder, memory_bytes
        self.started = 0
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> Process:
        """The process, ready to be asked."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        self.started += 1
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # nothing is imported from the folder of uploads, which is its working folder
            *self.PROGRAM,
            str(self.memory_bytes),
            stdin=PIPE,
            stdout=PIPE,
            cwd=self.folder,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": _search_path()},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_S):
                kind, _ = await _frame(process)
        except BaseException as problem:
            await self.kill()
            if isinstance(problem, EOFError | TimeoutError):
                raise TaskFailed(503, "a worker process could not be started") from None
            raise
        assert kind == READY
        return process

    async def ask(self, task: str, arguments: dict[str, Any], limit_s: float, on_progress: ProgressCallback = no_progress) -> bytes:
        """The compressed JSON that a task answers with. Cancelled, or past its limit, the process is killed."""
        process = await self.start()
        answered = spent = False
        try:
            async with asyncio.timeout(limit_s):
                assert process.stdin is not None
                process.stdin.write(packed(ASK, json_bytes([task, arguments])))
                await process.stdin.drain()
                while True:
                    kind, body = await _frame(process)
                    if kind == PROGRESS:
                        on_progress(*json.loads(body))
                        continue
                    if kind == SPENT:
                        spent = True
                        continue
                    answered = not spent
                    if kind == FAILED:
                        raise TaskFailed(*json.loads(body))
                    assert kind == DONE
                    return body
        except TimeoutError:
            raise TaskFailed(400, f"stopped: it took longer than {limit_s:g} s, the limit of this server") from None
        except (EOFError, ConnectionError):
            raise TaskFailed(400, "the worker process died: it needed more memory than it may take, or was killed") from None
        finally:
            if not answered:
                await self.kill()

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(_reap(process))


def _search_path() -> str:
    """The PYTHONPATH of a worker: ours, made absolute, and the folder of this package."""
    own = str(Path(__file__).parents[2])
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([*map(os.path.abspath, inherited), own])


async def _reap(process: Process) -> None:
    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # closes the pipes now, not when the garbage is collected


async def _frame(process: Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    kind, length = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
    return kind, await process.stdout.readexactly(length)


class QueryWorker:
    """A worker that answers short questions, one after the other; so many may wait for it."""

    def __init__(self, worker: Worker, limit_s: float, waiting: int) -> None:
        self.worker, self.limit_s, self.most = worker, limit_s, waiting
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def ask(self, task: str, /, **arguments: Any) -> bytes:
        if self._waiting >= self.most:
            raise TaskFailed(503, f"{self.most} questions are waiting already: ask again in a moment")
        self._waiting += 1
        try:
            async with self._lock:
                return await self.worker.ask(task, arguments, self.limit_s)
        finally:
            self._waiting -= 1
