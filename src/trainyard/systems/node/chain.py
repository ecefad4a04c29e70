"""Concatenation of plans: the steps of a round, each of which begins when the one before has ended.

Streams, links and memories with equal names are identified. A plan that is repeated appears as often, with the same tags: its rows
are booked once, multiplied by the repetitions. Memory is booked for the first repetition; the others use the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.ir.booking import Booking
from trainyard.ir.plan import Plan, TaskClass

if TYPE_CHECKING:
    from trainyard.ir.plan import Columns

MOST_TASKS = 5_000_000
BARRIER = "between steps"


def chained(blocks: Sequence[tuple[Plan, int]]) -> Plan:
    """The plans in this order, each repeated as often as given.

    >>> plan = Plan()
    >>> row = plan.booking.row("mm", layer="a", phase="forward", resource="device", macs=2)
    >>> end = plan.task(plan.stream("device"), 5, tag=plan.booking.entry([row]))
    >>> repeated = chained([(plan, 3)])
    >>> repeated.streams, repeated.booking.macs, len(repeated)
    (['device', 'between steps'], [6], 5)
    """
    tasks = sum(len(plan) * times for plan, times in blocks)
    if tasks > MOST_TASKS:
        raise BadInput(
            f"{sum(times for _, times in blocks):,} local steps from one exchange to the next are {tasks:,} tasks, too many to "
            "simulate: with so long a period a step takes what a local step does; give a smaller one"
        )
    chain = _Chain()
    for plan, times in blocks:
        if times:
            chain.add(plan, times)
    return chain.built


class _Chain:
    """Builds the concatenated plan."""

    def __init__(self) -> None:
        self.built = Plan()
        self.streams: dict[str, int] = {}
        self.links: dict[str, int] = {}
        self.pools: dict[str, int] = {}
        self.ended: list[int] = []  # tasks that the next step waits for

    def add(self, plan: Plan, times: int) -> None:
        columns, first_tag = plan.columns(), self._rows(plan.booking, times)
        streams = [self._stream(name) for name in plan.streams]
        links = [self._link(plan, number) for number in range(len(plan.links))]
        waits, flows = _waits(columns), _flows(columns, links)
        last = _last(columns, waits)
        for repetition in range(times):
            if self.ended:
                self.ended = [self.built.task(self._stream(BARRIER), 0, after=self.ended)]
            first = self._tasks(columns, waits, flows, streams, first_tag)
            self.ended = [first + number for number in last]
            if repetition == 0:
                self._memory(plan, columns, first)

    def _tasks(
        self,
        columns: Columns,
        waits: Sequence[Sequence[int]],
        flows: Mapping[int, list[tuple[list[int], int]]],
        streams: Sequence[int],
        first_tag: int,
    ) -> int:
        built, first = self.built, len(self.built)
        rows = zip(columns.stream.tolist(), columns.duration_ps.tolist(), columns.kind.tolist(), columns.tag.tolist(), strict=True)
        for number, (stream, duration, kind, tag) in enumerate(rows):
            after = [first + before for before in waits[number]] or self.ended
            own = first_tag + tag if tag >= 0 else tag
            if number in flows:
                served = None if stream < 0 else streams[stream]
                built.transfer(flows[number], after=after, stream=served, kind=TaskClass(kind), tag=own)
            else:
                built.task(streams[stream], duration, after=after, kind=TaskClass(kind), tag=own)
        return first

    def _rows(self, booking: Booking, times: int) -> int:
        """Appends the rows and entries of a plan; returns its first tag."""
        into, before = self.built.booking, len(self.built.booking.op)
        for name in ("op", "layer", "phase", "resource", "kind", "bound"):
            getattr(into, name).extend(getattr(booking, name))
        into.macs.extend(count * times for count in booking.macs)
        into.energy.extend({part: joules * times for part, joules in row.items()} for row in booking.energy)
        into.traffic.extend({key: count * times for key, count in row.items()} for row in booking.traffic)
        first = len(into.entries)
        into.entries.extend((tuple(before + row for row in rows), shares) for rows, shares in booking.entries)
        into.notes.extend(note for note in booking.notes if note not in into.notes)
        return first

    def _stream(self, name: str) -> int:
        if name not in self.streams:
            self.streams[name] = self.built.stream(name)
        return self.streams[name]

    def _link(self, plan: Plan, number: int) -> int:
        link = plan.links[number]
        if link.name not in self.links:
            self.links[link.name] = len(self.built.links)
            self.built.links.append(link)
        return self.links[link.name]

    def _memory(self, plan: Plan, columns: Columns, first: int) -> None:
        pools = []
        for pool in plan.pools:
            if pool.name not in self.pools:
                self.pools[pool.name] = self.built.pool(pool.name, pool.capacity_bytes, resident_bytes=pool.resident_bytes)
            pools.append(self.pools[pool.name])
        for task, pool_number, size in columns.memory.tolist():
            (self.built.take if size >= 0 else self.built.give)(first + task, pools[pool_number], abs(size))


def _waits(columns: Columns) -> list[list[int]]:
    ends, after = columns.after_ends.tolist(), columns.after.tolist()
    return [after[begin:end] for begin, end in zip([0, *ends][: len(ends)], ends, strict=True)]


def _flows(columns: Columns, links: Sequence[int]) -> dict[int, list[tuple[list[int], int]]]:
    flows: dict[int, list[tuple[list[int], int]]] = {}
    ends, path = columns.path_ends.tolist(), columns.path.tolist()
    begins = [0, *ends][: len(ends)]
    for task, size, begin, end in zip(columns.flow_task.tolist(), columns.flow_bytes.tolist(), begins, ends, strict=True):
        flows.setdefault(task, []).append(([links[link] for link in path[begin:end]], size))
    return flows


def _last(columns: Columns, waits: Sequence[Sequence[int]]) -> list[int]:
    """Tasks that no other task waits for."""
    awaited = {before for row in waits for before in row}
    return [number for number in range(len(columns.stream)) if number not in awaited]
