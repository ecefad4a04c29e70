"""Plan: the task table of a system. Streams, links, memory pools, and tasks in the order in which they were added.

A task waits only for tasks of lower number, and a stream runs its tasks by number: every plan that can be written can be run.
Times are whole picoseconds, sizes whole bytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING

from trainyard.errors import BadInput, TooLarge
from trainyard.ir.booking import Booking
from trainyard.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

FASTEST_LINK = 9 * 10**15
"""Bytes per second; above it the compiled division by a rate would leave 64 bits."""
LONGEST_PS = 2**62
Flow = tuple[Sequence[int], int]
"""(the links it crosses, its bytes)"""

_BLOCK_MASK = 2**16 - 1  # rows are packed into an array after every 2**16 tasks
_NO_DURATION = 0  # the flows of a transfer decide its duration
_NO_STREAM = -1


class TaskClass(IntEnum):
    """The class of a task; an instant in which several classes are active is booked to the first of them."""

    COMPUTE = 0
    SYNCHRONISATION = 1
    COPY = 2

    def __str__(self) -> str:
        return self.name.lower()


_COMPUTE = TaskClass.COMPUTE


@dataclass(frozen=True, slots=True)
class Link:
    """A link that flows share; `latency_ps` passes once before a flow's bytes move."""

    name: str
    bytes_per_s: int
    latency_ps: int

    @classmethod
    def of(cls, name: str, bytes_per_s: float, latency_s: float = 0.0) -> Link:
        """Bandwidth rounded to whole bytes per second, latency to whole picoseconds.

        >>> Link.of("nvlink", 25e9, 1.5e-6)
        Link(name='nvlink', bytes_per_s=25000000000, latency_ps=1500000)
        """
        if not (math.isfinite(bytes_per_s) and 1 <= round(bytes_per_s) <= FASTEST_LINK):
            raise BadInput(f"link {name!r}: bytes_per_s must lie between 1 and {FASTEST_LINK:.0e}, got {bytes_per_s!r}")
        if not (math.isfinite(latency_s) and 0 <= latency_s * PICOSECONDS_PER_SECOND < LONGEST_PS):
            raise BadInput(f"link {name!r}: latency_s must be at least 0, got {latency_s!r}")
        return cls(name, round(bytes_per_s), round(latency_s * PICOSECONDS_PER_SECOND))


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory pool; `capacity_bytes` None is unlimited, `resident_bytes` are allocated from the start."""

    name: str
    capacity_bytes: int | None = None
    resident_bytes: int = 0

    def __post_init__(self) -> None:
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise BadInput(f"pool {self.name!r}: capacity_bytes must be at least 0, got {self.capacity_bytes}")
        if self.resident_bytes < 0:
            raise BadInput(f"pool {self.name!r}: resident_bytes must be at least 0, got {self.resident_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """A plan as arrays. Ragged rows are stored with their ends: row i of `after` is after[after_ends[i - 1] : after_ends[i]].

    `stream` is -1 for a transfer that no stream serialises. `memory` has rows (task, pool, bytes): positive bytes are allocated at
    the start of the task, negative ones released at its end.
    """

    stream: Integers
    duration_ps: Integers
    kind: Integers
    tag: Integers
    after_ends: Integers
    after: Integers
    flow_task: Integers
    flow_bytes: Integers
    path_ends: Integers
    path: Integers
    memory: Integers


def checked_integer(value: object, what: str, *, least: int = 0) -> int:
    """`value` as a Python int of at least `least`; numpy integers are accepted, fractions are refused.

    >>> checked_integer(2.5, "task 3: duration_ps")
    Traceback (most recent call last):
    trainyard.errors.BadInput: task 3: duration_ps must be a whole number, got 2.5
    """
    try:
        number = index(value)  # type: ignore[arg-type]  # anything else raises TypeError
    except TypeError:
        raise BadInput(f"{what} must be a whole number, got {value!r}") from None
    if number < least:
        raise BadInput(f"{what} must be at least {least}, got {number}")
    if number >= LONGEST_PS:
        raise TooLarge(f"{what} must be below 2**62, got {number}")
    return number


def checked_flows(flows: Iterable[Flow], links: int, where: str) -> list[tuple[tuple[int, ...], int]]:
    """The flows of a transfer as Python integers, with paths checked against the number of links."""
    checked = []
    for path, size in flows:
        route = tuple(checked_integer(link, f"{where}: link") for link in path)
        if not route:
            raise BadInput(f"{where}: a flow needs at least one link in its path")
        if max(route) >= links:
            raise BadInput(f"{where}: link {max(route)} is not known (there are {links})")
        if len(set(route)) < len(route):
            raise BadInput(f"{where}: the path {list(route)} crosses a link twice")
        checked.append((route, checked_integer(size, f"{where}: bytes")))
    if not checked:
        raise BadInput(f"{where}: a transfer needs at least one flow, (path, bytes)")
    return checked


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """The earlier tasks that each of many tasks waits for, numbered from the first of them; checked once and shared by plans."""

    counts: Integers
    after: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Dependencies:
        """
        >>> Dependencies.of([(), (0,), (0, 2)])
        Traceback (most recent call last):
        trainyard.errors.BadInput: tasks: task 2 is refused: it may wait only for tasks before it
        """
        import numpy as np

        for task, row in enumerate(rows):
            if not all(0 <= earlier < task for earlier in row):
                raise BadInput(f"tasks: task {task} is refused: it may wait only for tasks before it")
        return cls(np.array([len(row) for row in rows], np.int64), np.array([task for row in rows for task in row], np.int64))


class Plan:
    """Tasks on streams and links, with their dependencies.

    >>> plan = Plan()
    >>> device, ring = plan.stream("device 0"), plan.link("ring", bytes_per_s=50e9)
    >>> backward = plan.task(device, 2_000_000)
    >>> reduce = plan.transfer([([ring], 100_000)], after=[backward], kind=TaskClass.SYNCHRONISATION)
    >>> plan.task(device, 500_000, after=[reduce]), len(plan)
    (2, 3)
    """

    def __init__(self) -> None:
        self.streams: list[str] = []
        self.links: list[Link] = []
        self.pools: list[Pool] = []
        self.booking = Booking()  # the rows of each tag
        self._count = 0
        self._stream_count = 0
        self._rows: list[int] = []  # stream, duration, kind, tag, number of dependencies; packed into _blocks
        self._after: list[int] = []
        self._blocks: list[tuple[Integers, Integers]] = []
        self._flow_task = array("q")
        self._flow_bytes = array("q")
        self._path_ends = array("q")
        self._path = array("q")
        self._memory = array("q")

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Plan({self._count} tasks, {len(self.streams)} streams, {len(self.links)} links, {len(self.pools)} pools)"

    def stream(self, name: str) -> int:
        """A resource that runs one task at a time, in plan order, like a CUDA stream."""
        self.streams.append(name)
        self._stream_count += 1
        return self._stream_count - 1

    def link(self, name: str, bytes_per_s: float, latency_s: float = 0.0) -> int:
        """A link whose bandwidth the flows that cross it share fairly."""
        self.links.append(Link.of(name, bytes_per_s, latency_s))
        return len(self.links) - 1

    def pool(self, name: str, capacity_bytes: int | None = None, *, resident_bytes: int = 0) -> int:
        """A memory in which tasks allocate and release bytes."""
        self.pools.append(Pool(name, capacity_bytes, resident_bytes))
        return len(self.pools) - 1

    def task(
        self, stream: int, duration_ps: int, *, after: Sequence[int] = (), kind: TaskClass = TaskClass.COMPUTE, tag: int = -1
    ) -> int:
        """Occupies `stream` for `duration_ps` once all of `after` have ended. `tag` is its entry in the booking."""
        number = self._count
        # `_check` and `_append` inlined: plans have millions of tasks, and the calls would cost more than the checks.
        if type(duration_ps) is not int or not 0 <= duration_ps < LONGEST_PS or not 0 <= stream < self._stream_count:
            self._check(stream, kind, ())
            duration_ps = checked_integer(duration_ps, f"task {number}: duration_ps")
        if kind is not _COMPUTE:
            self._check(stream, kind, ())
        for earlier in after:
            if not 0 <= earlier < number:
                self._check(stream, kind, after)
        self._rows += (stream, duration_ps, 0 if kind is _COMPUTE else int(kind), tag, len(after))
        self._after.extend(after)
        self._count = number + 1
        if not self._count & _BLOCK_MASK:
            self._pack()
        return number

    def transfer(
        self,
        flows: Iterable[Flow],
        *,
        after: Sequence[int] = (),
        stream: int | None = None,
        kind: TaskClass = TaskClass.COPY,
        tag: int = -1,
    ) -> int:
        """Flows (path, bytes) start together, the task ends with the last of them. `stream`: the copy engine that serialises it."""
        checked = checked_flows(flows, len(self.links), f"task {self._count}")
        self._check(stream, kind, after)
        number = self._append(_NO_STREAM if stream is None else stream, _NO_DURATION, after, kind, tag)
        for path, size in checked:
            self._flow_task.append(number)
            self._flow_bytes.append(size)
            self._path.extend(path)
            self._path_ends.append(len(self._path))
        return number

    def tasks(
        self,
        streams: npt.ArrayLike,
        durations_ps: npt.ArrayLike,
        *,
        after: npt.ArrayLike | Dependencies | None = None,
        kinds: npt.ArrayLike = TaskClass.COMPUTE,
        tags: npt.ArrayLike = -1,
    ) -> range:
        """Many tasks at once: integer columns, or one number for all. The new task numbers start at `len(plan)`.

        `after` has one row of earlier task numbers for each task, with -1 for none; `Dependencies` are numbered within these tasks.

        >>> plan = Plan()
        >>> plan.tasks(plan.stream("device 0"), [5, 6, 7], after=[-1, 0, 1])
        range(0, 3)
        """
        import numpy as np

        durations = _integers(durations_ps, "durations_ps").reshape(-1)
        count, first = len(durations), self._count
        rows = np.empty((count, 5), np.int64)
        columns = {"streams": streams, "durations_ps": durations, "kinds": kinds, "tags": tags}
        for position, (name, column) in enumerate(columns.items()):
            try:
                rows[:, position] = _integers(column, name)
            except ValueError:
                raise BadInput(f"tasks: {name} must hold one number or {count}, got shape {np.shape(column)}") from None
        if isinstance(after, Dependencies):
            rows[:, 4], earlier = after.counts, after.after + first
            misordered = np.zeros(count, np.bool_)
        else:
            waits = np.full((count, 0), -1) if after is None else _integers(after, "after").reshape(count, -1)
            present = waits != -1
            rows[:, 4], earlier = present.sum(axis=1), waits[present]
            misordered = (present & ((waits < 0) | (waits >= np.arange(first, first + count)[:, None]))).any(axis=1)
        for wrong, reason in (
            ((rows[:, 0] < 0) | (rows[:, 0] >= len(self.streams)), f"its stream is not one of 0..{len(self.streams) - 1}"),
            ((rows[:, 1] < 0) | (rows[:, 1] >= LONGEST_PS), "its duration_ps must lie between 0 and 2**62"),
            ((rows[:, 2] < 0) | (rows[:, 2] > 2), "its class is not a TaskClass"),
            (misordered, "it may wait only for tasks before it"),
        ):
            if wrong.any():
                raise BadInput(f"tasks: task {first + int(wrong.argmax())} is refused: {reason}")
        self._pack()
        self._blocks.append((rows, earlier))
        self._count += count
        return range(first, self._count)

    def take(self, task: int, pool: int, size: int) -> None:
        """`size` bytes of `pool` are allocated when `task` starts."""
        self._memory.extend((*self._checked_use(task, pool), checked_integer(size, f"task {task}: bytes taken")))

    def give(self, task: int, pool: int, size: int) -> None:
        """`size` bytes of `pool` are released when `task` ends."""
        self._memory.extend((*self._checked_use(task, pool), -checked_integer(size, f"task {task}: bytes given back")))

    def allocate(
        self, first: Sequence[int] | Integers, last: Sequence[int] | Integers, pool: int, sizes: Sequence[int] | Integers
    ) -> None:
        """Many allocations: `sizes[i]` bytes of `pool` from the start of task `first[i]` to the end of task `last[i]`."""
        import numpy as np

        if not len(first) == len(last) == len(sizes):
            raise BadInput(f"allocate: {len(first)} first tasks, {len(last)} last tasks and {len(sizes)} sizes do not pair up")
        if not len(first):
            return
        starts, ends, amounts = (
            _integers(column, name, "allocate") for column, name in ((first, "first"), (last, "last"), (sizes, "sizes"))
        )
        for tasks in (starts, ends):
            self._checked_use(tasks.min(), pool)
            self._checked_use(tasks.max(), pool)
        checked_integer(amounts.min(), "allocate: the least of its sizes")
        rows = np.full((len(starts), 2, 3), pool, np.int64)
        rows[:, 0, 0], rows[:, 1, 0], rows[:, 0, 2], rows[:, 1, 2] = starts, ends, amounts, -amounts
        self._memory.frombytes(rows.tobytes())

    def columns(self) -> Columns:
        """A copy of the plan as arrays."""
        import numpy as np

        self._pack()
        rows = np.concatenate([np.empty((0, 5), np.int64), *(rows for rows, _ in self._blocks)])
        stream, duration_ps, kind, tag, waits = np.ascontiguousarray(rows.T)
        if float(duration_ps.sum(dtype=np.float64)) >= LONGEST_PS:
            raise TooLarge(
                f"the plan's durations add up to {duration_ps.sum(dtype=np.float64):.3g} ps: more than the clock can count"
            )

        def column(values: array[int]) -> Integers:
            return np.array(values, np.int64)

        return Columns(
            stream=stream,
            duration_ps=duration_ps,
            kind=kind,
            tag=tag,
            after_ends=np.cumsum(waits),
            after=np.concatenate([np.empty(0, np.int64), *(after for _, after in self._blocks)]),
            flow_task=column(self._flow_task),
            flow_bytes=column(self._flow_bytes),
            path_ends=column(self._path_ends),
            path=column(self._path),
            memory=column(self._memory).reshape(-1, 3),
        )

    def _pack(self) -> None:
        """Moves the rows that are still Python integers into an array block."""
        import numpy as np

        if self._rows:
            try:
                rows, after = array("q", self._rows), array("q", self._after)
            except (TypeError, OverflowError) as error:
                raise BadInput(
                    f"before task {self._count}: a stream, duration, tag or dependency is no 64-bit integer ({error})"
                ) from None
            self._blocks.append((np.array(rows).reshape(-1, 5), np.array(after)))
            self._rows, self._after = [], []

    def _append(self, stream: int, duration_ps: int, after: Sequence[int], kind: TaskClass, tag: int) -> int:
        self._rows += stream, duration_ps, kind, tag, len(after)
        self._after.extend(after)
        self._count += 1
        if self._count & _BLOCK_MASK == 0:
            self._pack()
        return self._count - 1

    def _check(self, stream: int | None, kind: TaskClass, after: Sequence[int]) -> None:
        number = self._count
        if stream is not None and checked_integer(stream, f"task {number}: stream") >= self._stream_count:
            raise BadInput(f"task {number}: stream {stream} is not known (there are {self._stream_count})")
        if not 0 <= kind <= 2:
            raise BadInput(f"task {number}: unknown class {kind!r} (write TaskClass.COMPUTE, SYNCHRONISATION or COPY)")
        for earlier in after:
            if not 0 <= earlier < number:
                raise BadInput(f"task {number} cannot wait for task {earlier}: only for one before it (a lower number)")

    def _checked_use(self, task: int, pool: int) -> tuple[int, int]:
        if checked_integer(task, "task") >= self._count:
            raise BadInput(f"task {task} is not known (there are {self._count})")
        if checked_integer(pool, f"task {task}: pool") >= len(self.pools):
            raise BadInput(f"task {task}: pool {pool} is not known (there are {len(self.pools)})")
        return task, pool


def _integers(values: npt.ArrayLike, name: str, where: str = "tasks") -> Integers:
    import numpy as np

    column = np.asarray(values)
    if column.size and column.dtype.kind not in "iu":
        raise BadInput(f"{where}: {name} must hold whole numbers, got {column.dtype}")
    return column.astype(np.int64)


def picoseconds(cycles: int, clock_hz: float) -> int:
    """Cycles in the engine's unit of time, rounded up so that nothing ends early.

    >>> picoseconds(3, 2e9), picoseconds(1, 3e9)
    (1500, 334)
    """
    numerator, denominator = clock_hz.as_integer_ratio()
    return -(-cycles * PICOSECONDS_PER_SECOND * denominator // numerator)
