"""The handle of a running collective: it ends when gloo's work ends, or with an error when a worker is lost.

C++ reaches two methods of a Python Work, `wait` and `get_future`. DDP's reducer waits on the future, without Python's lock; the
future of `get_future` fails as a C++ future only if a `then` callback raises, which is why it depends on a gate. gloo's own works
are not stored: each holds the group's sockets open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainyard.live.direct.heartbeat import Call, Heartbeat


class DirectWork(dist.Work):
    """One priced collective; `ended(real_s)` is called once, when gloo has done it."""

    def __init__(self, call: Call, heartbeat: Heartbeat | None, ended: Callable[[float], None]) -> None:
        super().__init__()
        self.call = call
        self._heartbeat, self._ended = heartbeat, ended
        self._began_s = time.perf_counter()
        self._left = 0
        self._source = -1
        self._value: list[torch.Tensor] = []
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._gates: list[torch.futures.Future[None]] = []

    def follow(self, inner: Sequence[dist.Work], released: Callable[[], None]) -> None:
        """Ends when all of gloo's works end; `released` is called when each has ended, with or without an error."""
        self._left = len(inner)
        if self._heartbeat:
            self._heartbeat.watch(self.call, self.fail)
        for work in inner:
            try:
                future = work.get_future()
            except RuntimeError:  # gloo's sends and receives have none: a thread waits for them
                threading.Thread(target=self._stand_by, args=(work, released), name=f"direct-{self.call.kind}", daemon=True).start()
            else:
                future.add_done_callback(lambda done: self._returned(done.value, released))

    def _stand_by(self, work: dist.Work, released: Callable[[], None]) -> None:
        def value() -> list[torch.Tensor]:
            work.wait()
            self._source = work._source_rank() if self.call.kind == "recv" else -1
            return []

        self._returned(value, released)

    def _returned(self, value: Callable[[], Any], released: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            result = value()
        except RuntimeError as failure:
            error = failure
        finally:
            released()
        if error is None:
            with self._lock:
                self._value.extend(result if isinstance(result, list) else [])
                self._left -= 1
                done = self._left == 0
            if done:
                self._settle(None)
        elif self._heartbeat:
            self._heartbeat.broken(self.fail, error)
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._error = error
            self._over.set()
            gates, self._gates = self._gates, []
        if self._heartbeat:
            self._heartbeat.forget(self.fail)
        if error is None:
            self._ended(time.perf_counter() - self._began_s)
        for gate in gates:
            gate.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until it is done; raises WorkerLost. Without a positive timeout it waits as long as needed."""
        seconds = timeout.total_seconds()
        if not self._over.wait(seconds if seconds > 0 else None):
            raise RuntimeError(f"{self.call} is not done after {seconds} s")
        self._outcome()
        return True

    def _outcome(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._value

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        gate: torch.futures.Future[None] = torch.futures.Future()
        future = gate.then(lambda _: self._outcome())
        with self._lock:
            over = self._over.is_set()
            if not over:
                self._gates.append(gate)
        if over:
            gate.set_result(None)
        return future

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._value

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank
