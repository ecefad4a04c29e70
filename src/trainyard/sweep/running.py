"""The loop of a sweep: which points the store has, which are run, when they are written, and progress.

Records are appended when `APPEND_S` have passed, so a kill costs at most what was run since. Ctrl-C and SIGTERM hand out no more
points, keep what is done, compact, and say so in the summary; they are held back while a segment is being written.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput
from trainyard.progress import ProgressCallback, no_progress
from trainyard.sweep import pareto
from trainyard.sweep.executors import Executor, Inline, LocalProcesses
from trainyard.sweep.metrics import shown
from trainyard.sweep.points import Materials
from trainyard.sweep.records import Record, ranked
from trainyard.sweep.store import Disk, Store
from trainyard.sweep.study import LIMIT, Point, Study

APPEND_S = 1.0
MOST_UNSAFE = 4096
"""Records that wait for their segment at most."""
SUFFIX = ".sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a sweep did: of the study's `points`, `computed` now and `reused` from the store; `front` by workload.

    `timed_out` of the `failed` were stopped by a time limit, in this sweep or an earlier one.
    `overfull` points need more memory than their machine has; they are in `best` and `front` only where the study says any_memory.
    """

    points: int
    computed: int
    reused: int
    failed: int
    timed_out: int
    overfull: int
    store: Path
    best: dict[str, Record]
    front: list[Record]
    records: list[Record] = field(repr=False)
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "points": self.points,
            "computed": self.computed,
            "reused": self.reused,
            "failed": self.failed,
            "timed_out": self.timed_out,
            "overfull": self.overfull,
            "interrupted": self.interrupted,
            "store": str(self.store),
            "best": {name: record.as_dict() for name, record in self.best.items()},
            "front": [record.as_dict() for record in self.front],
            "notes": list(self.notes),
        }


def store_of(study: str | os.PathLike[str] | Study) -> Path:
    """Where a study's store lies unless said otherwise: beside its file, or in the folder one is in."""
    if isinstance(study, Study):
        return Path(f"{study.name}{SUFFIX}")
    return Path(study).with_suffix(SUFFIX)


@suggests_keywords
def sweep(
    study: Study | str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    on_progress: ProgressCallback = no_progress,
    *,
    workers: int | None = None,
    limit: int = LIMIT,
    retry_failed: bool = False,
    point_timeout_s: float | None = None,
    disk: Disk | None = None,
) -> Summary:
    """Runs every point of a study that its store does not have yet; `workers` processes (or as `executor` does it).

    A point that takes longer than `point_timeout_s` is stopped and recorded as failed; it needs a process of its own.
    """
    path = store_of(study) if store is None else Path(store)
    loaded = study if isinstance(study, Study) else Study.load(study)
    if executor is not None and workers is not None:
        raise BadInput(f"workers={workers} and an executor are given: the executor has its own")
    if executor is not None and point_timeout_s is not None:
        raise BadInput(f"point_timeout_s={point_timeout_s} and an executor are given: give it to the executor (point_s=)")
    chosen = executor or _local(workers, point_timeout_s)
    materials = Materials.of(loaded)
    points = [] if loaded.plan else list(materials.keyed(loaded.points(limit)))
    opened = Store.begin(path, loaded.table, points=None if loaded.plan else len(points), disk=disk)
    with opened.writing(), stopping() as stop:
        run = Run(loaded, materials, opened, chosen, on_progress, stop, retry_failed)
        try:
            if loaded.plan:
                from trainyard.sweep.search import search

                search(run)
            else:
                run.evaluate(points)
        except KeyboardInterrupt:
            stop.requested = True
        finally:
            with stop.deferred():  # a second Ctrl-C does not cost what is done
                try:
                    run.flush()
                finally:
                    chosen.close()
        with stop.deferred():
            opened.compact()
    return run.summary()


def _local(workers: int | None, point_s: float | None) -> Executor:
    """This process for one worker; a time limit needs another one, which can be ended."""
    if point_s is None:
        return Inline() if workers == 1 or not _spawnable() else LocalProcesses(workers)
    if not _spawnable():
        raise BadInput("point_timeout_s needs worker processes: put the call of a script under if __name__ == '__main__'")
    return LocalProcesses(workers, point_s=point_s)


def _spawnable() -> bool:
    """Whether new processes can be started: a script without a guard would be run again in each."""
    import sys

    from trainyard.papers.processes import guarded

    return guarded(getattr(sys.modules["__main__"], "__file__", None))


class Run:
    """One sweep at work. `evaluate` may be called many times, as a search does; a point is run once."""

    def __init__(
        self,
        study: Study,
        materials: Materials,
        store: Store,
        executor: Executor,
        on_progress: ProgressCallback = no_progress,
        stop: Stop | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.study, self.materials, self.store, self.executor, self.on_progress = study, materials, store, executor, on_progress
        self.stop = stop or Stop()
        self._retry_failed = retry_failed
        self._asked: dict[str, None] = {}
        self._records: dict[str, Record] = {}
        self._unsafe: list[Record] = []
        self._computed: set[str] = set()
        self._expected, self._failed, self._said_s, self._started_s = 0, 0, 0.0, time.monotonic()
        self._appended_s = self._started_s
        self._best: dict[str, Record] = {}

    def evaluate(self, points: Iterable[Point], total: int | None = None) -> list[Record]:
        """The records of points (with or without keys), in their order; `total` is how many there will be in all."""
        keyed = [point if point.key else next(self.materials.keyed([point])) for point in points]
        fresh: dict[str, Point] = {}
        self._asked |= dict.fromkeys(point.key for point in keyed)
        for point in keyed:
            if point.key in self._records:
                continue
            old = self.store.get(point.key)
            if old is not None and not (old.failed and self._retry_failed and point.key not in self._computed):
                self._take(old)
            else:
                fresh.setdefault(point.key, point)
        self._expected = total or len(self._records) + len(fresh)
        self._report_progress(force=True)
        for record in self.executor.map(fresh.values(), self.materials):
            with self.stop.deferred():  # counted, queued for the store and reported, or none of these
                self._computed.add(record.key)
                self._unsafe.append(record)
                self._take(record)
            if time.monotonic() - self._appended_s > APPEND_S or len(self._unsafe) >= MOST_UNSAFE:
                self.flush()
            self._report_progress()
            self.stop.raise_if_requested()
        self.flush()
        self._report_progress(force=True)
        return [self._records[point.key] for point in keyed]

    def flush(self) -> None:
        """Makes safe what is done; Ctrl-C waits for it."""
        records, self._unsafe = self._unsafe, []
        with self.stop.deferred():
            self.store.append(records)
        self._appended_s = time.monotonic()

    def _take(self, record: Record) -> None:
        self._records[record.key] = record
        self._failed += record.failed
        if not ranked([record], any_memory=self.study.any_memory):
            return
        for name, direction in self.study.objectives.items():
            value, best = record.metrics.get(name), self._best.get(name)
            if value is not None and value == value and (best is None or _beats(value, best.metrics[name], direction)):
                self._best[name] = record

    def _report_progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._said_s > 0.1:
            self._said_s = now
            self.on_progress(len(self._records), max(self._expected, len(self._records)), self._status(now - self._started_s))

    def _status(self, elapsed_s: float) -> str:
        """Points per second, failures, and the best value of each objective so far."""
        phrases = [f"{len(self._computed) / elapsed_s:.3g}/s"] if elapsed_s and self._computed else []
        phrases += [f"{self._failed} failed"] if self._failed else []
        best = ((name, self._best[name]) for name in self.study.objectives if name in self._best)
        return "; ".join([*phrases, *(f"best {name} {shown(name, record.metrics[name])}" for name, record in best)])

    def summary(self) -> Summary:
        records = [self._records[key] for key in self._asked if key in self._records]  # as asked for, however they were finished
        chosen_from = ranked(records, any_memory=self.study.any_memory)
        best = pareto.best(chosen_from, self.study.objectives)
        return Summary(
            points=max(self._expected, len(records)),
            computed=len(self._computed),
            reused=len(records) - len(self._computed),
            failed=self._failed,
            timed_out=sum(record.timed_out for record in records),
            overfull=sum(not record.fits for record in records),
            store=self.store.path,
            best={name: self._records[key] for name, key in best.items()},
            front=fronts(chosen_from, self.study.objectives),
            records=records,
            interrupted=self.stop.requested,
            notes=(*self.store.notes, *_missing(records, (*self.study.metrics, *self.study.objectives))),
        )


def _beats(value: float, other: float, direction: str) -> bool:
    return value < other if direction == "min" else value > other


def fronts(records: list[Record], objectives: Mapping[str, str]) -> list[Record]:
    """The front of each workload, one after the other: a small model does not beat a large one."""
    front_records: list[Record] = []
    first = next(iter(objectives))
    for workload in dict.fromkeys(record.workload for record in records):
        own = {record.key: record for record in records if record.workload == workload}
        front_records += sorted(
            (own[key] for key in pareto.front(own.values(), objectives)), key=lambda record: record.metrics[first]
        )
    return front_records


def _missing(records: list[Record], names: Iterable[str]) -> Iterator[str]:
    """Metrics that were asked for and that no point has: a slip of the pen, most likely."""
    done = [record for record in records if not record.failed]
    for name in dict.fromkeys(names) if done else ():
        head = name.partition(".")[0]
        if not any(name in record.metrics for record in done):
            others = sorted({other for record in done for other in record.metrics if other.startswith(f"{head}.")})
            yield f"no point has the metric {name}" + (f" (there are {', '.join(others)})" if others else "")


class Stop:
    """Whether the sweep was asked to end: raised where it comes, and after `deferred()` by `raise_if_requested`."""

    def __init__(self) -> None:
        self.requested = False
        self._deferred = 0

    def request(self, *_: object) -> None:
        self.requested = True
        if not self._deferred:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    def raise_if_requested(self) -> None:
        if self.requested:
            raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """SIGINT and SIGTERM ask a sweep to stop, while it runs in the main thread."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
