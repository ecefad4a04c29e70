"""Points on a Ray cluster: the same chunks, the same records, any number of computers.

`auto` joins the cluster that runs here, or starts one of this computer alone for as long as the sweep lasts; anything else is a
cluster's address. Every node needs the same code of trainyard (checked). Materials travel once to each node through Ray's object
store. A chunk whose process or node is lost is run again point by point; a point that is lost alone again is recorded as failed.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from trainyard.errors import BadInput, MissingExtra, TrainyardError
from trainyard.sweep.executors import AHEAD, Chunks, over_limit, require_limit, run_within
from trainyard.sweep.points import Materials
from trainyard.sweep.records import Record
from trainyard.sweep.study import Point

WAIT_S = 0.2
"""Between two looks at whether the sweep was asked to stop."""


class Cluster:
    """An executor whose workers are the CPUs of a Ray cluster, or as many of them as asked for."""

    def __init__(self, address: str = "auto", workers: int | None = None, *, point_s: float | None = None) -> None:
        require_limit(point_s)
        self.point_s = point_s
        self._ray = _started(address)
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if not cpus:
            self._ray.shutdown()
            raise BadInput(f"the Ray cluster {address!r} has no CPUs")
        self.workers = min(workers or cpus, cpus)
        self._materials: Materials | None = None
        self._content: Any = None
        self._pending: dict[Any, tuple[list[Point], float]] = {}

    @property
    def nodes(self) -> int:
        return sum(bool(node["Alive"]) for node in self._ray.nodes())

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]:
        if materials is not self._materials:
            self._materials = materials
            self._content = self._ray.put(pickle.dumps(replace(materials, _started={})))
        chunks = Chunks(iter(points), self.workers)
        task = self._ray.remote(run_chunk).options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        try:
            while True:
                while len(self._pending) < AHEAD * self.workers and len(chunks):
                    chunk = chunks.next()
                    self._pending[task.remote(self._content, chunk, self.point_s)] = (chunk, time.monotonic())
                if not self._pending:
                    return
                ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=WAIT_S)
                for future in ready:
                    yield from self._answer(future, chunks, materials)
        except BaseException:
            self._pending.clear()  # what is in flight ends by itself or with this program; Ray may break down over cancelled tasks
            raise

    def _answer(self, future: Any, chunks: Chunks, materials: Materials) -> Iterator[Record]:
        chunk, began = self._pending.pop(future)
        try:
            records = self._ray.get(future)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, TrainyardError) else BadInput(f"a Ray worker failed: {cause}") from None
        except self._ray.exceptions.RayError as error:  # its process or its node is gone
            if chunks.suspected(chunk):
                yield materials.record(chunk[0], {}, self._why_lost(error))
            return
        chunks.took((time.monotonic() - began) / AHEAD, len(records))
        yield from records

    def _why_lost(self, error: Exception) -> str:
        """Ray does not say which signal ended a process."""
        how = f"its process ended: {type(error).__name__}"
        return how if self.point_s is None else f"{how} (or it {over_limit(self.point_s)})"

    def close(self) -> None:
        self._pending.clear()
        self._content = self._materials = None
        self._ray.shutdown()


_known: dict[int, Materials] = {}
"""What this process of Ray's has unpacked, by its bytes."""


def run_chunk(content: bytes, points: list[Point], point_s: float | None = None) -> list[Record]:
    """A worker's part, on any node."""
    name = hash(content)
    if name not in _known:
        _known.clear()
        materials: Materials = pickle.loads(content)
        materials.require_same_code()
        _known[name] = materials
    return [run_within(_known[name], point, point_s) for point in points]


def _started(address: str) -> Any:
    """Ray, connected to the cluster, with its usage reports switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtra("ray", "cluster", "--ray") from None
    quiet: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "configure_logging": False,
        "ignore_reinit_error": False,
    }
    if ray.is_initialized():
        raise BadInput("Ray is in use in this process already: ray.shutdown() first")
    logging.getLogger("ray").setLevel(logging.ERROR)  # its hints are for those who start a cluster by hand
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address != "auto":
            raise BadInput(f"no Ray cluster at {address!r}: {_first_line(error)}") from None
        ray.init(address="local", include_dashboard=False, **quiet)
    return ray


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
