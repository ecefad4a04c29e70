"""A dead worker is noticed by all others within a stated time, and never hangs them.

gloo tells only the ring neighbours of a dead process, by a closed socket; the others would wait for gloo's own timeout, half an
hour by default, and a stopped process closes no socket at all. So every process counts up a key of the c10d Store from a thread of
its own, over a connection of its own (the training thread may block on its connection), and reads the others' keys. Ages are
taken with the reader's clock from when a count last changed, so clocks need not agree.

With T = `failure_timeout_s`, a beat is T / 8. A rank is lost after five beats of silence, or three when gloo has reported a broken
connection; who notices first publishes it on the Store, and everybody else reads that at the next beat. Hence every survivor has
its error before T. A process that holds Python's lock for five beats at a stretch looks dead; T must be longer than that.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from trainyard.errors import TrainyardError
from trainyard.units import show

BEATS = 8
LOST_BEATS = 5
SUSPECTED_BEATS = 3
_LEFT = 1 << 40  # added to the count of a process that leaves the group


class WorkerLost(TrainyardError, RuntimeError):
    """A process of the group is dead, stopped or gone while others need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective under way: what, and between which ranks of the whole group."""

    kind: str
    size_bytes: int
    ranks: frozenset[int]

    def __str__(self) -> str:
        return f"{self.kind} of {show(self.size_bytes, 'B')}" if self.size_bytes else self.kind


Fail = Callable[[BaseException], None]


class Heartbeat:
    """The thread that beats for this rank and listens to the others; `check` and `watch` are what collectives call."""

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.beat_s = timeout_s / BEATS
        self.lost: tuple[int, float, bool] | None = None  # rank, seconds of silence when it was noticed, whether it had left
        self.on_lost: list[Callable[[], bool]] = []
        """Called when a rank is lost, and at every beat from then on until it returns True."""
        self._store = store
        self._counts = dict.fromkeys(range(size), 0)
        self._heard_s = dict.fromkeys(range(size), time.monotonic())
        self._lost_s = 0.0
        self._calls: dict[Fail, Call] = {}
        self._broken: dict[Fail, tuple[float, BaseException]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="direct-heartbeat", daemon=True)
        self._thread.start()

    def check(self, call: Call) -> None:
        """Raises WorkerLost for a collective that cannot end."""
        if self.lost:
            raise self._error(call)

    def watch(self, call: Call, fail: Fail) -> None:
        """Have `fail` called with a WorkerLost if a rank is lost before `forget`."""
        with self._lock:
            self._calls[fail] = call
        if self.lost:  # noticed since `check`
            self._fail(fail, self._error(call))

    def forget(self, fail: Fail) -> None:
        with self._lock:
            self._calls.pop(fail, None)
            self._broken.pop(fail, None)

    def broken(self, fail: Fail, error: BaseException) -> None:
        """gloo failed a call that is watched; `fail` is called once the lost rank is known, or that there is none."""
        with self._lock:
            if fail in self._calls:
                self._broken[fail] = (time.monotonic(), error)

    def stop(self) -> None:
        """Announces the departure: from now on silence is no failure, except to ranks that wait for this one."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(timeout=self.timeout_s)
        with suppress(RuntimeError):  # whoever held the Store may have gone first
            self._store.add(f"beat/{self.rank}", _LEFT)

    def drop_connections(self) -> bool:
        """Have all groups drop their connections; True when none is left."""
        self.on_lost = [drop for drop in self.on_lost if not drop()]
        return not self.on_lost

    def _run(self) -> None:
        store_lost = False
        while True:
            try:
                if not store_lost:
                    self._listen()
            except RuntimeError:
                store_lost = True  # the Store is gone; torch's clients do not connect again
            silence_s = time.monotonic() - self._heard_s[self.rank]
            if store_lost and not self.lost and silence_s > SUSPECTED_BEATS * self.beat_s:
                self._lose(0, silence_s, self._counts[0] >= _LEFT)  # without an agent's, the Store is rank 0's
            self._settle()
            if self._stop.wait(self.beat_s):
                return

    def _listen(self) -> None:
        self._store.add(f"beat/{self.rank}", 1)
        for rank in range(self.size):
            count = self._store.add(f"beat/{rank}", 0)
            if count != self._counts[rank]:
                self._counts[rank], self._heard_s[rank] = count, time.monotonic()
        if self.lost is None and self._store.check(["lost"]):
            self._lose(*json.loads(self._store.get("lost")))
        elif self.lost is None:
            self._look()

    def _look(self) -> None:
        """Declares a rank lost that has been silent for too long."""
        now = time.monotonic()
        with self._lock:
            suspected = bool(self._broken)
            awaited = frozenset[int]().union(*(call.ranks for call in self._calls.values()))
        patience_s = (SUSPECTED_BEATS if suspected else LOST_BEATS) * self.beat_s
        for rank in range(self.size):
            silence_s = now - self._heard_s[rank]
            has_left = self._counts[rank] >= _LEFT
            if rank == self.rank or silence_s < patience_s or (has_left and rank not in awaited):
                continue
            self._store.compare_set("lost", "", json.dumps([rank, silence_s, has_left]))
            self._lose(rank, silence_s, has_left)
            return

    def _lose(self, rank: int, silence_s: float, has_left: bool = False) -> None:
        self._lost_s = time.monotonic()
        self.lost = (rank, silence_s, has_left)

    def _settle(self) -> None:
        """Fails calls that cannot end: all calls if a rank is lost, else those that gloo failed a while ago."""
        now = time.monotonic()
        with self._lock:
            calls, broken = dict(self._calls), dict(self._broken)
        if self.lost:
            for fail, call in calls.items():
                self._fail(fail, self._error(call))
            self.drop_connections()
            return
        for fail, (since, error) in broken.items():
            if now - since > LOST_BEATS * self.beat_s:
                self._fail(fail, WorkerLost(f"{calls[fail]} failed on rank {self.rank} though all ranks are alive: {error}"))

    def _fail(self, fail: Fail, error: BaseException) -> None:
        self.forget(fail)
        fail(error)

    def _error(self, call: Call) -> WorkerLost:
        assert self.lost is not None
        rank, silence_s, has_left = self.lost
        age_s = silence_s + time.monotonic() - self._lost_s
        what = "left the group" if has_left else "was last heard of"
        return WorkerLost(f"rank {rank} {what} {age_s:.1f} s ago, during {call} on rank {self.rank}")
