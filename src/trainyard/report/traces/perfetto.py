"""A gzipped Chrome trace that ui.perfetto.dev opens: a track for each stream, a counter for each memory pool.

Written event by event, so that a million tasks need no more memory than the timeline itself; equal results give equal bytes.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.errors import BadInput
from trainyard.files import whole_file
from trainyard.report import lines
from trainyard.report.tasks import Tasks, lanes, memory, tasks
from trainyard.results.result import Result

if TYPE_CHECKING:
    import numpy.typing as npt

PROCESS = 1
EVENTS_PER_WRITE = 4096


def write(result: Result, path: str | os.PathLike[str]) -> None:
    task_table = tasks(result)
    if task_table is None:
        raise BadInput("this result carries no timeline (it was added, scaled or read from a file): run the step again to trace it")
    with (
        whole_file(path) as part,
        part.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as stream,
    ):
        about = {"workload": result.workload, "machine": result.machine, "trainyard": result.version, "config": result.config_hash}
        stream.write(f'{{"displayTimeUnit":"ns","otherData":{_json(about)},"traceEvents":[\n'.encode())
        block: list[str] = []
        first = True
        for event in _events(result, task_table):
            block.append(event if first else f",\n{event}")
            first = False
            if len(block) == EVENTS_PER_WRITE:
                stream.write("".join(block).encode())
                block.clear()
        stream.write(("".join(block) + "\n]}\n").encode())


def _events(result: Result, task_table: Tasks) -> Iterator[str]:
    thread, names = lanes(task_table)
    yield _json({"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": lines.title(result)}})
    for number, name in enumerate(names, 1):
        yield _json({"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": name}})
        yield _json({"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    yield from _slices(result, task_table, thread)
    for pool, times_ps, sizes in memory(result):
        name = _json(f"memory: {pool.name}")
        for time_ps, count in zip(times_ps.tolist(), sizes.tolist(), strict=True):
            yield f'{{"ph":"C","pid":{PROCESS},"ts":{_microseconds(time_ps)},"name":{name},"args":{{"bytes":{count}}}}}'


def _slices(result: Result, task_table: Tasks, thread: npt.NDArray[np.int64]) -> Iterator[str]:
    """One slice per task that takes time, track by track, in order of time."""
    moved: dict[str, npt.NDArray[np.int64]] = {}
    for (level, _, _), counts in result.columns.traffic.items():
        moved[level] = moved[level] + counts if level in moved else counts

    @lru_cache(maxsize=EVENTS_PER_WRITE)
    def about(tag: int, kind: int, track: int) -> str:
        who = task_table.who_of_tag(tag)
        arguments: dict[str, Any] = {"layer": who.layer, "phase": who.phase, "class": task_table.kinds[kind]}
        for level, counts in moved.items():
            if count := sum(int(counts[row]) for row in who.rows):
                arguments[f"{level} bytes of the op"] = count
        if macs := sum(int(result.columns.macs[row]) for row in who.rows):
            arguments["MACs of the op"] = macs
        name = ": ".join(word for word in (who.layer, who.op or task_table.tracks[track]) if word)
        return f'"name":{_json(name)},"cat":{_json(task_table.kinds[kind])},"args":{_json(arguments)}'

    order = np.lexsort((task_table.start_ps, thread))
    order = order[task_table.end_ps[order] > task_table.start_ps[order]]
    for begin in range(0, len(order), EVENTS_PER_WRITE):
        chosen = order[begin : begin + EVENTS_PER_WRITE]
        for start, end, number, tag, kind, track in zip(
            task_table.start_ps[chosen].tolist(),
            task_table.end_ps[chosen].tolist(),
            thread[chosen].tolist(),
            task_table.tag[chosen].tolist(),
            task_table.kind[chosen].tolist(),
            task_table.track[chosen].tolist(),
            strict=True,
        ):
            when = f'"ts":{_microseconds(start)},"dur":{_microseconds(end - start)}'
            yield f'{{"ph":"X","pid":{PROCESS},"tid":{number + 1},{when},{about(tag, kind, track)}}}'


def _microseconds(picoseconds: int) -> str:
    """The trace format counts in microseconds; written as an exact decimal.

    >>> _microseconds(1_234_567), _microseconds(5)
    ('1.234567', '0.000005')
    """
    return f"{picoseconds // 10**6}.{picoseconds % 10**6:06d}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
