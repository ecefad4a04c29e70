"""Timeline: when every task ran, the task that owns each instant, and memory in use.

Time is *exposed* time: each instant belongs to one class, the first active of compute, synchronisation, copy (idle where none is),
and inside a class to the task that started first, of equals the lower number. Exposed and idle times sum to the end exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trainyard.errors import BadInput, UnknownName
from trainyard.ir.plan import Pool, TaskClass

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.ir.plan import Integers


@dataclass(frozen=True, slots=True)
class Overflow:
    """A pool whose use exceeds its capacity, first at `first_ps`."""

    pool: str
    capacity_bytes: int
    peak_bytes: int
    first_ps: int


def exposed(starts_ps: Integers, ends_ps: Integers, kinds: Integers) -> Integers:
    """The time that each task owns.

    In order of start, a task owns of its class what no earlier task covers, which is the interval from where those end:
    `[max(start, latest end so far), end)`, less what the classes before it cover.
    """
    owned = np.zeros(len(starts_ps), np.int64)
    cover_from, cover_to = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for kind in TaskClass:
        of_class = kinds == kind
        if not of_class.any():
            continue
        chosen = np.flatnonzero(of_class)
        chosen = chosen[np.argsort(starts_ps[chosen], kind="stable")]  # stable: of equal starts the lower number is first
        reach = np.maximum.accumulate(ends_ps[chosen])
        begin = np.maximum(starts_ps[chosen], np.concatenate([np.zeros(1, np.int64), reach[:-1]]))
        end = np.maximum(ends_ps[chosen], begin)
        owned[chosen] = end - begin
        if len(cover_from):
            owned[chosen] -= _covered(end, cover_from, cover_to) - _covered(begin, cover_from, cover_to)
        if not of_class.all():
            cover_from, cover_to = _union(np.concatenate([cover_from, begin]), np.concatenate([cover_to, end]))
    return owned


def _covered(until: Integers, cover_from: Integers, cover_to: Integers) -> Integers:
    """How much of [0, until) the disjoint sorted intervals cover."""
    before: Integers = np.concatenate([np.zeros(1, np.int64), np.cumsum(cover_to - cover_from)])
    passed = np.searchsorted(cover_from, until, side="right")  # intervals that have begun
    overshoot = np.where(passed > 0, np.maximum(cover_to[passed - 1] - until, 0), 0)
    return before[passed] - overshoot


def _union(begin: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Intervals as disjoint ones, sorted."""
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([np.ones(1, np.bool_), begin[1:] > reach[:-1]])
    return begin[opens], reach[np.concatenate([opens[1:], np.ones(1, np.bool_)])]


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """One column per property, one row per task. Streams are numbers into `stream_names`, -1 where a transfer had none."""

    starts_ps: Integers
    ends_ps: Integers
    kinds: Integers
    streams: Integers
    tags: Integers
    after_ends: Integers
    after: Integers
    memory_events: Integers = field(default_factory=lambda: np.empty((0, 3), np.int64))
    stream_names: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()

    def __post_init__(self) -> None:
        for column in (self.starts_ps, self.ends_ps, self.kinds, self.streams, self.tags, self.after_ends, self.after):
            column.flags.writeable = False
        self.memory_events.flags.writeable = False

    def __len__(self) -> int:
        return len(self.starts_ps)

    def __repr__(self) -> str:
        return f"Timeline({len(self)} tasks, {self.end_ps} ps)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return all(np.array_equal(getattr(self, column.name), getattr(other, column.name)) for column in fields(self))

    __hash__ = None  # type: ignore[assignment]  # arrays are compared by content

    @cached_property
    def end_ps(self) -> int:
        return int(self.ends_ps.max(initial=0))

    @cached_property
    def busy_ps(self) -> Integers:
        """Duration of each task; the sum has no meaning."""
        return self.ends_ps - self.starts_ps

    @cached_property
    def exposed_ps(self) -> Integers:
        """Time that each task owns; with `idle_ps` these sum to `end_ps`."""
        return exposed(self.starts_ps, self.ends_ps, self.kinds)

    @cached_property
    def idle_ps(self) -> int:
        return self.end_ps - int(self.exposed_ps.sum())

    def class_exposed(self, tasks: npt.ArrayLike | None = None) -> dict[str, int]:
        """Exposed time by class, and idle. With `tasks` (one device's, as numbers or a mask): as if no others ran."""
        if tasks is None:
            owned, kinds = self.exposed_ps, self.kinds
        else:
            chosen = np.asarray(tasks)
            kinds = self.kinds[chosen]
            owned = exposed(self.starts_ps[chosen], self.ends_ps[chosen], kinds)
        by_class = {str(kind): int(owned[kinds == kind].sum()) for kind in TaskClass}
        return {**by_class, "idle": self.end_ps - sum(by_class.values())}

    def by_tag(self, values: Integers) -> dict[int, int]:
        """A per-task column summed by tag: `timeline.by_tag(timeline.exposed_ps)`."""
        if not len(self):
            return {}
        order = np.argsort(self.tags, kind="stable")
        tags, first = np.unique(self.tags[order], return_index=True)
        return dict(zip(tags.tolist(), np.add.reduceat(values[order], first).tolist(), strict=True))

    def busy_of(self, stream: int | str) -> int:
        """The time that a stream was occupied."""
        number = _position("stream", stream, self.stream_names)
        return int(self.busy_ps[self.streams == number].sum())

    def memory(self, pool: int | str) -> tuple[Integers, Integers]:
        """(times, bytes): the bytes in use from each of these times on. Within an instant only the balance counts."""
        return self._curves[_position("pool", pool, tuple(p.name for p in self.pools))]

    def peak(self, pool: int | str) -> int:
        """The peak use of a pool in bytes."""
        return int(self.memory(pool)[1].max())

    @cached_property
    def overflows(self) -> tuple[Overflow, ...]:
        """The pools whose use exceeds their capacity."""
        overflows = []
        for number, pool in enumerate(self.pools):
            times_ps, used = self.memory(number)
            if pool.capacity_bytes is not None and used.max() > pool.capacity_bytes:
                first_ps = int(times_ps[used > pool.capacity_bytes][0])
                overflows.append(Overflow(pool.name, pool.capacity_bytes, int(used.max()), first_ps))
        return tuple(overflows)

    @cached_property
    def _curves(self) -> tuple[tuple[Integers, Integers], ...]:
        tasks, pools, sizes = self.memory_events.T
        when = np.where(sizes > 0, self.starts_ps[tasks], self.ends_ps[tasks])
        return tuple(_curve(pool, when[pools == number], sizes[pools == number]) for number, pool in enumerate(self.pools))

    def critical_path(self) -> tuple[int, ...]:
        """Tasks, first to last, each of which started when the one before it ended, up to the last to end.

        Of several that ended then, the one of the highest number. A transfer is one task, even on contended links. The path
        of a plan reaches back to time 0; that of a simulation may begin where an agent only waited.
        """
        if not len(self):
            return ()
        previous = self._stream_predecessors
        path = [int(np.argmax(self.ends_ps))]
        while True:
            task = path[-1]
            begin = self.after_ends[task - 1] if task else 0
            before = [*self.after[begin : self.after_ends[task]].tolist(), int(previous[task])]
            binding = [b for b in before if b >= 0 and self.ends_ps[b] == self.starts_ps[task]]
            if not binding:
                return tuple(reversed(path))
            path.append(max(binding))

    @cached_property
    def _stream_predecessors(self) -> Integers:
        """By task, the one before it on its stream, or -1."""
        previous = np.full(len(self), -1, np.int64)
        order = np.argsort(self.streams, kind="stable")
        same = (self.streams[order][1:] == self.streams[order][:-1]) & (self.streams[order][1:] >= 0)
        previous[order[1:][same]] = order[:-1][same]
        return previous


def _curve(pool: Pool, when: Integers, sizes: Integers) -> tuple[Integers, Integers]:
    when, sizes = np.concatenate([np.zeros(1, np.int64), when]), np.concatenate([np.array([pool.resident_bytes], np.int64), sizes])
    order = np.argsort(when, kind="stable")
    when = when[order]
    first = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), when[1:] > when[:-1]]))
    times_ps, used = when[first], np.cumsum(np.add.reduceat(sizes[order], first))
    if (used < 0).any():
        at = int(np.argmax(used < 0))
        raise BadInput(f"pool {pool.name!r}: at {times_ps[at]} ps {-used[at]} bytes more are given back than are held")
    return times_ps, used


def _position(kind: str, key: int | str, names: tuple[str, ...]) -> int:
    if isinstance(key, str):
        if key not in names:
            raise UnknownName(kind, key, names)
        return names.index(key)
    if not 0 <= key < len(names):
        raise BadInput(f"{kind} {key} is not known (there are {len(names)})")
    return key
