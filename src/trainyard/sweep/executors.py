"""Who runs points: this process, or new processes on this computer. Points go out in chunks, records come back in any order.

An executor has `workers`, `map(points, materials)` and `close()`; `map` may be called again (a search does), its workers stay.
Workers are new processes (spawn), for numba and others have threads that a copy would lose. Each gets the materials once. A worker
that dies (out of memory, a fault in a library) is replaced: the points that it had are run one by one, and one that kills again is
recorded as failed. A worker ends by itself when its driver is gone, however that ended.

With `point_s`, a point that takes longer ends its process (SIGALRM, by the operating system: no compiled loop can hold it up) and
is recorded as failed, `TOO_LONG`. Workers then answer point by point, so that it is known which one it was.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, Protocol

from trainyard.errors import BadInput, TrainyardError
from trainyard.sweep.points import Materials
from trainyard.sweep.records import TOO_LONG, Record
from trainyard.sweep.study import Point

CHUNK_S = 0.25
"""What a worker does between two messages: much more than a message takes, little enough to be lost."""
MOST_IN_CHUNK = 256
AHEAD = 2
"""Chunks that a worker has, so that it never waits for the next."""
LONGEST_S = 1e8
"""Three years."""
SHORTEST_S = 1e-3
"""0 would stop the timer."""
STARTS = 3
"""Of workers that end before they are ready, before the sweep gives up."""


class Executor(Protocol):
    """Runs points."""

    workers: int

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]: ...
    def close(self) -> None: ...


class Inline:
    """In this process, one after the other."""

    workers = 1

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]:
        return map(materials.run, points)

    def close(self) -> None:
        pass


@dataclass(slots=True, eq=False)
class _Worker:
    """One process, its end of the pipe, and the chunks that it has not answered."""

    process: Any
    pipe: Connection
    ready: bool = False
    chunks: deque[list[Point]] = field(default_factory=deque)
    asked_s: float = 0.0

    def answered(self, points: int) -> None:
        """The first so many points of its first chunk are done."""
        del self.chunks[0][:points]
        if not self.chunks[0]:
            self.chunks.popleft()


class LocalProcesses:
    """Worker processes on this computer."""

    def __init__(self, workers: int | None = None, *, point_s: float | None = None) -> None:
        require_limit(point_s)
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise BadInput(f"workers must be a whole number of at least 1, got {workers!r}")
        self.workers, self.point_s = workers or _cores(), point_s
        self._team: list[_Worker] = []
        self._materials: Materials | None = None
        self._content = b""

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]:
        if materials is not self._materials:
            self.close()
            self._materials, self._content = materials, pickle.dumps(replace(materials, _started={}))
        work = Chunks(iter(points), self.workers)
        failures = 0
        try:
            while True:
                self._hand_out(work)
                if not any(worker.chunks for worker in self._team) and not len(work):
                    return
                for pipe in wait([worker.pipe for worker in self._team]):
                    worker = next(w for w in self._team if w.pipe is pipe)
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        failures += not worker.ready
                        yield from self._handle_dead_worker(worker, work, materials, failures)
                        continue
                    if isinstance(answer, TrainyardError):
                        raise answer
                    now, began, worker.ready, worker.asked_s = time.monotonic(), worker.asked_s, True, time.monotonic()
                    if answer is not None:
                        work.took(now - began, len(answer))
                        worker.answered(len(answer))
                        yield from answer
        except BaseException:
            self.close()  # chunks in flight must not be answered into a later map
            raise

    def _hand_out(self, work: Chunks) -> None:
        busy = sum(bool(worker.chunks) for worker in self._team)
        while len(self._team) < min(self.workers, busy + len(work)):
            self._team.append(self._started())
        for _ in range(AHEAD):
            for worker in self._team:
                if len(worker.chunks) < AHEAD and (chunk := work.next()):
                    if not worker.chunks:
                        worker.asked_s = time.monotonic()
                    worker.chunks.append(chunk)
                    with suppress(OSError):  # it has died: its pipe says so at the next wait
                        worker.pipe.send(chunk)

    def _started(self) -> _Worker:
        """A new process in which Ctrl-C is blocked: it goes to the whole group, and is the driver's to handle."""
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._content, self.point_s), daemon=True)
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        theirs.close()
        return _Worker(process, ours)

    def _handle_dead_worker(self, worker: _Worker, work: Chunks, materials: Materials, failures: int) -> Iterator[Record]:
        """A worker has died: what it was at is suspect, what it had not begun goes back."""
        self._team.remove(worker)
        worker.pipe.close()
        worker.process.join()
        code = worker.process.exitcode
        how = _ending(code)
        if failures >= STARTS:
            raise BadInput(f"workers end before they are ready ({how}): try --workers 1, which says why")
        if not worker.ready:
            work.back([point for chunk in worker.chunks for point in chunk])
            return
        suspects = worker.chunks.popleft() if worker.chunks else []
        if suspects and self.point_s is not None and code == -signal.SIGALRM:
            yield materials.record(suspects.pop(0), {}, over_limit(self.point_s))
            work.back([point for chunk in (suspects, *worker.chunks) for point in chunk])
            return
        work.back([point for chunk in worker.chunks for point in chunk])
        if work.suspected(suspects):
            yield materials.record(suspects[0], {}, f"its process ended: {how}")

    def close(self) -> None:
        team, self._team = self._team, []
        for worker in team:
            worker.pipe.close()
            worker.process.terminate()
        for worker in team:
            worker.process.join()
            worker.process.close()
        self._materials = None


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"exit code {code}"


class Chunks:
    """Points still to be handed out: suspects one by one first, then the rest in chunks of about `CHUNK_S`."""

    def __init__(self, points: Iterator[Point], workers: int) -> None:
        self._points = points
        self._waiting: deque[Point] = deque(islice(points, workers))
        self._suspects: deque[Point] = deque()
        self._alone: set[str] = set()
        self._size = 1

    def __len__(self) -> int:
        """Points at hand: at least one while there is one at all."""
        if not self._waiting:
            self._waiting.extend(islice(self._points, 1))
        return len(self._waiting) + len(self._suspects)

    def next(self) -> list[Point]:
        if self._suspects:
            return [self._suspects.popleft()]
        self._waiting.extend(islice(self._points, max(self._size - len(self._waiting), 0)))
        return [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]

    def took(self, seconds: float, points: int) -> None:
        fitting = int(CHUNK_S * points / max(seconds, 1e-6))
        self._size = max(1, min(fitting, 2 * self._size, MOST_IN_CHUNK))

    def back(self, points: list[Point]) -> None:
        self._waiting.extendleft(reversed(points))

    def suspected(self, points: list[Point]) -> bool:
        """Whether one point alone is to blame; if not, each of them is run alone."""
        if len(points) == 1 and points[0].key in self._alone:
            return True
        self._suspects.extend(points)
        self._alone.update(point.key for point in points)
        return False


def require_limit(point_s: float | None) -> None:
    if point_s is not None and not (isinstance(point_s, int | float) and 0 < point_s < LONGEST_S):
        raise BadInput(f"the time limit of a point must be a number of seconds above 0, got {point_s!r}")


def over_limit(point_s: float) -> str:
    """The error of a point that was stopped."""
    return f"{TOO_LONG} {point_s:g} s (--point-timeout): --retry-failed runs it again"


def run_within(materials: Materials, point: Point, point_s: float | None) -> Record:
    """The record of a point; where it takes longer than `point_s`, the operating system ends this process.

    Time in which loops are compiled does not count: that is a matter of this computer's cache, not of the point.
    """
    if point_s is None:
        return materials.run(point)
    from trainyard.kernels.compilation import suspended

    clock = _Clock(point_s)
    clock.go_on()
    try:
        with suspended(clock.hold, clock.go_on):
            return materials.run(point)
    finally:
        clock.hold()


class _Clock:
    """A timer of the operating system that can be held."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def go_on(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.left_s)

    def hold(self) -> None:
        self.left_s = max(signal.setitimer(signal.ITIMER_REAL, 0)[0], SHORTEST_S)


def _serve(pipe: Connection, content: bytes, point_s: float | None) -> None:
    """A worker's life: chunks in, records out, until the pipe or the driver is gone."""
    Thread(target=_leave_with, args=(parent_process(),), daemon=True).start()
    try:
        materials: Materials = pickle.loads(content)
        materials.require_same_code()
        from trainyard import runs, systems  # noqa: F401  # loaded before the first point
    except TrainyardError as error:
        pipe.send(error)
        return
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        pipe.send(None)
        while True:
            points: list[Point] = pipe.recv()
            for batch in [points] if point_s is None else [[point] for point in points]:
                pipe.send([run_within(materials, point, point_s) for point in batch])
    except (EOFError, OSError):
        return


def _leave_with(driver: Any) -> None:
    wait([driver.sentinel])
    os._exit(1)
