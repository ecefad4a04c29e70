"""The tasks of a timeline as reports need them: when, on which track, in which class, and whose work it was."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainyard.ir.plan import TaskClass
from trainyard.results.result import Result, Rows

if TYPE_CHECKING:
    from trainyard.ir.plan import Integers, Pool

TRANSFERS = "transfers"
"""The track of a transfer that neither a stream nor a row names a place for."""


@dataclass(frozen=True, slots=True)
class Who:
    """The op, layer and phase that a task worked for; a fused task names several."""

    op: str
    layer: str
    phase: str
    rows: tuple[int, ...]


NOBODY = Who("", "", "", ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tasks:
    """Columns of tasks; `track` numbers a stream, or, for a transfer that no stream serialises, the resource of its row."""

    start_ps: Integers
    end_ps: Integers
    kind: Integers
    track: Integers
    tag: Integers
    tracks: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: Rows
    entries: tuple[tuple[int, ...], ...]
    _known: dict[int, Who] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.start_ps)

    @property
    def span_ps(self) -> int:
        return int(self.end_ps.max(initial=0))

    def kind_name(self, task: int) -> str:
        return self.kinds[int(self.kind[task])]

    def track_name(self, task: int) -> str:
        return self.tracks[int(self.track[task])]

    def who(self, task: int) -> Who:
        return self.who_of_tag(int(self.tag[task]))

    def who_of_tag(self, tag: int) -> Who:
        if not 0 <= tag < len(self.entries):
            return NOBODY
        if tag not in self._known:
            rows = self.entries[tag]
            op, layer, phase = (
                _joined([labels[row] for row in rows]) for labels in (self.rows.op, self.rows.layer, self.rows.phase)
            )
            self._known[tag] = Who(op, layer, phase, rows)
        return self._known[tag]


def _joined(names: Sequence[str], most: int = 3) -> str:
    """
    >>> _joined(["relu", "conv", "relu"]), _joined(list("abcde"))
    ('relu + conv', 'a + b + c + 2 more')
    """
    different = [name for name in dict.fromkeys(names) if name]
    more = [f"{len(different) - most} more"] if len(different) > most else []
    return " + ".join([*different[:most], *more])


def tasks(result: Result) -> Tasks | None:
    """The tasks of a result's timeline; None where it carries none."""
    timeline = result.timeline
    if timeline is None:
        return None
    tracks = list(timeline.stream_names)
    track = np.array(timeline.streams)
    loose: dict[str, int] = {}
    for task in np.flatnonzero(track < 0).tolist():
        tag = int(timeline.tags[task])
        rows = result.entries[tag] if 0 <= tag < len(result.entries) else ()
        name = (result.rows.resource[rows[0]] if rows else "") or TRANSFERS
        track[task] = loose.setdefault(name, len(tracks) + len(loose))
    return Tasks(
        start_ps=timeline.starts_ps,
        end_ps=timeline.ends_ps,
        kind=timeline.kinds,
        track=track,
        tag=timeline.tags,
        tracks=(*tracks, *loose),
        kinds=tuple(str(kind) for kind in TaskClass),
        rows=result.rows,
        entries=result.entries,
    )


def memory(result: Result) -> Iterator[tuple[Pool, Integers, Integers]]:
    """(pool, times in ps, bytes held from then on) of every pool."""
    if result.timeline is not None:
        for number, pool in enumerate(result.timeline.pools):
            yield pool, *result.timeline.memory(number)


def lanes(task_table: Tasks) -> tuple[Integers, list[str]]:
    """A lane for each task, so that no two tasks of a lane overlap, and the lanes' names.

    A stream needs one; transfers that share links need as many as are under way at once.
    """
    lane = np.zeros(len(task_table), np.int64)
    names: list[str] = []
    for track, name in enumerate(task_table.tracks):
        mine = np.flatnonzero(task_table.track == track)
        mine = mine[np.lexsort((task_table.end_ps[mine], task_table.start_ps[mine]))]
        starts, ends = task_table.start_ps[mine], task_table.end_ps[mine]
        if (starts[1:] >= ends[:-1]).all():
            inside = np.zeros(len(mine), np.int64)
        else:
            inside = _packed(starts.tolist(), ends.tolist())
        lane[mine] = inside + len(names)
        names += [name, *(f"{name} ({number + 1})" for number in range(1, int(inside.max(initial=0)) + 1))]
    return lane, names


def _packed(starts: Sequence[int], ends: Sequence[int]) -> Integers:
    """For intervals by start: the lowest free lane when each begins."""
    free: list[int] = []
    running: list[tuple[int, int]] = []
    opened = 0
    chosen = np.zeros(len(starts), np.int64)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        chosen[number] = lane
        heapq.heappush(running, (end, lane))
    return chosen
