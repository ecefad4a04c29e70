"""The rows of a simulated plan: their labels, their cost as columns, and sums of groups of rows.

`book_timeline` has one path: bookings are columns (`BookingColumns`), or lists that become columns first. Times, bytes and
MACs are integers, so that sums are exact in any order; energies are floats, added row by row from first to last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainyard.errors import UnknownName
from trainyard.ir.booking import Booking, BookingColumns

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.engine.timeline import Timeline

Axis = Literal["layer", "phase", "resource", "kind", "op", "bound"]
AXES: tuple[Axis, ...] = ("layer", "phase", "resource", "kind", "op", "bound")
IDLE = "idle"
CACHED_ROWS = 100_000
"""Groups of results with more rows are not cached."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The labels of all rows, one tuple for each axis."""

    op: tuple[str, ...]
    layer: tuple[str, ...]
    phase: tuple[str, ...]
    resource: tuple[str, ...]
    kind: tuple[str, ...]
    bound: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.op)

    def axis(self, name: str) -> tuple[str, ...]:
        if name not in AXES:
            raise UnknownName("axis to group by", name, AXES)
        return getattr(self, name)  # type: ignore[no-any-return]  # one of the six fields above


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The numbers of all rows: integers for time, bytes and MACs, so that sums are exact.

    A column whose sum exceeds 64 bits holds Python integers (`dtype=object`).
    """

    time_ps: npt.NDArray[np.int64]
    busy_ps: npt.NDArray[np.int64]
    macs: npt.NDArray[np.int64]
    energy: Mapping[str, npt.NDArray[np.float64]]
    traffic: Mapping[tuple[str, str, str], npt.NDArray[np.int64]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        pairs = ((self.energy, other.energy), (self.traffic, other.traffic))
        return all(
            np.array_equal(a, b) for a, b in ((self.time_ps, other.time_ps), (self.busy_ps, other.busy_ps), (self.macs, other.macs))
        ) and all(a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a) for a, b in pairs)  # type: ignore[index]  # one key type each

    __hash__ = None  # type: ignore[assignment]  # arrays are compared by content

    def by_level(self) -> dict[str, npt.NDArray[Any]]:
        """Bytes of each row by memory level, summed over tensors and directions."""
        levels: dict[str, list[npt.NDArray[Any]]] = {}
        for (level, _, _), count in self.traffic.items():
            levels.setdefault(level, []).append(count)
        return {level: _sum_of(counts) for level, counts in levels.items()}

    def scaled(self, factor: int) -> Columns:
        def multiplied(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return _widened(column, int(column.sum()) * factor) * factor

        return Columns(
            multiplied(self.time_ps),
            multiplied(self.busy_ps),
            multiplied(self.macs),
            {name: joules * factor for name, joules in self.energy.items()},
            {key: multiplied(count) for key, count in self.traffic.items()},
        )

    def joined(self, other: Columns, join: Callable[[Any, Any], Any]) -> Columns:
        """Each column joined with the same column of `other` by `np.add` or concatenation; a missing column is zeros."""
        own_rows, other_rows = len(self.time_ps), len(other.time_ps)

        def merge(a: Mapping[Any, Any], b: Mapping[Any, Any], dtype: type, join: Callable[[Any, Any], Any]) -> dict[Any, Any]:
            empty_a: npt.NDArray[Any] = np.zeros(own_rows, dtype)
            empty_b: npt.NDArray[Any] = np.zeros(other_rows, dtype)
            return {key: join(a.get(key, empty_a), b.get(key, empty_b)) for key in dict.fromkeys([*a, *b])}

        def join_integers(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Any:
            total = int(a.sum()) + int(b.sum())
            return join(_widened(a, total), _widened(b, total))

        return Columns(
            join_integers(self.time_ps, other.time_ps),
            join_integers(self.busy_ps, other.busy_ps),
            join_integers(self.macs, other.macs),
            merge(self.energy, other.energy, np.float64, join),
            merge(self.traffic, other.traffic, np.int64, join_integers),
        )


def _widened(column: npt.NDArray[Any], total: int) -> npt.NDArray[Any]:
    """The column as Python integers where `total` exceeds 64 bits."""
    return column if total < 2**63 else column.astype(object)


def _sum_of(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The columns added up, as Python integers where the sum may exceed 64 bits."""
    table = np.array(columns)
    total: npt.NDArray[Any] = table.sum(axis=0, dtype=object if float(table.sum(dtype=np.float64)) >= 2**62 else table.dtype)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows by label, in order of first appearance: the group of each row, and the rows in order of their groups."""

    numbers: Mapping[tuple[str, ...], int]
    codes: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    def sum_integers(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum of each group; integers are exact in any order."""
        if not self.numbers:
            return values[:0]
        sums: npt.NDArray[Any] = np.add.reduceat(values[self.order], self.starts)
        return sums

    def sum_floats(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum of each group, added in the order of the rows."""
        sums: npt.NDArray[Any] = np.bincount(self.codes, weights=values, minlength=len(self.numbers))
        return sums


def grouped(rows: Rows, axes: Sequence[Axis]) -> Groups:
    """The rows grouped by their labels along one or several axes."""
    labels = tuple(rows.axis(axis) for axis in axes)
    return _cached_groups(labels) if len(rows) <= CACHED_ROWS else _groups(labels)


def _groups(labels: tuple[tuple[str, ...], ...]) -> Groups:
    numbers: dict[tuple[str, ...], int] = {}
    codes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in zip(*labels, strict=True)), np.intp, len(labels[0]))
    order = np.argsort(codes, kind="stable")
    return Groups(numbers, codes, order, np.searchsorted(codes[order], np.arange(len(numbers))))


_cached_groups = lru_cache(maxsize=16)(_groups)  # results of one step have the same labels


def book_timeline(timeline: Timeline, booking: Booking) -> tuple[Rows, Columns]:
    """The rows of a simulated plan: the time of a task goes to the rows of its tag by their shares; the last row is idle time."""
    columns = columns_of(booking)
    entries = len(columns.entries)
    exposed, busy = timeline.exposed_ps, timeline.busy_ps
    time = _divided(columns, _sum_by_tag(exposed, timeline.tags, entries))
    never_waits = np.array_equal(exposed, busy)  # one stream without idle time
    occupied = time.copy() if never_waits else _divided(columns, _sum_by_tag(busy, timeline.tags, entries))
    time[-1] = timeline.end_ps - int(time.sum())
    rows = Rows(columns.op, columns.layer, columns.phase, columns.resource, columns.kind, columns.bound)
    return rows, Columns(time, occupied, columns.macs, columns.energy, columns.traffic)


def _divided(columns: BookingColumns, totals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The total of each entry divided among its rows in integers, as `split` does; 0 for the idle row."""
    own = totals[columns.entry]
    ends = np.where(columns.last | (columns.end == 1.0), own, np.rint(own * columns.end).astype(np.int64))
    parts = ends - np.where(columns.begin == 1.0, own, np.rint(own * columns.begin).astype(np.int64))
    if columns.row is None:
        return np.append(parts, 0)
    sums = np.zeros(len(columns.op), np.int64)
    np.add.at(sums, columns.row, parts)
    return sums


def entries_of(booking: Booking) -> tuple[tuple[int, ...], ...]:
    """The rows of each entry."""
    return tuple(rows for rows, _ in booking.entries) if booking.columns is None else booking.columns.entries


def columns_of(booking: Booking) -> BookingColumns:
    """A booking as columns: its own, or its lists with a row for the idle time behind them."""
    if booking.columns is not None:
        return booking.columns
    parts: list[tuple[int, int, float, float, bool]] = []  # entry, row, begin, end, last
    for entry, (rows, shares) in enumerate(booking.entries):
        if len(rows) == 1 or (shares[0] == 1.0 and len(rows) == len(shares)):
            parts.append((entry, rows[0], 0.0, 1.0, True))
            continue
        edges = [0.0, *accumulate(shares[:-1]), 1.0]
        parts += [(entry, row, *edge, False) for row, edge in zip(rows, pairwise(edges), strict=True)]
        parts[-1] = (*parts[-1][:-1], True)
    entry_of, row_of, begin, end, last = zip(*parts, strict=True) if parts else ((),) * 5
    count = len(booking.op) + 1
    return BookingColumns(
        op=(*booking.op, IDLE),
        layer=(*booking.layer, ""),
        phase=(*booking.phase, IDLE),
        resource=(*booking.resource, ""),
        kind=(*booking.kind, IDLE),
        bound=(*booking.bound, IDLE),
        macs=np.array([*booking.macs, 0], np.int64 if sum(booking.macs) < 2**63 else object),
        energy=_column(booking.energy, count, np.float64),
        traffic=_column(booking.traffic, count, np.int64),
        entries=entries_of(booking),
        entry=np.array(entry_of, np.int64),
        row=np.array(row_of, np.int64),
        begin=np.array(begin, np.float64),
        end=np.array(end, np.float64),
        last=np.array(last, np.bool_),
    )


def _sum_by_tag(values: npt.NDArray[np.int64], tags: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    sums = np.zeros(count, np.int64)
    tagged = tags >= 0
    np.add.at(sums, tags[tagged], values[tagged])
    return sums


def split(total: int, shares: Sequence[float]) -> list[int]:
    """`total` in integer parts proportional to `shares`, which sum to it exactly.

    >>> split(10, (0.25, 0.25, 0.5))
    [2, 3, 5]
    """
    if shares[0] == 1.0:
        return [total, *(0 for _ in shares[1:])]
    edges = [0, *(total if edge == 1.0 else round(total * edge) for edge in accumulate(shares[:-1])), total]
    return [right - left for left, right in pairwise(edges)]


def _column(maps: Sequence[Mapping[Any, Any]], count: int, dtype: type) -> dict[Any, npt.NDArray[Any]]:
    cells: dict[Any, tuple[list[int], list[Any]]] = {}
    for row, mapping in enumerate(maps):
        for key, value in mapping.items():
            rows, values = cells.get(key) or cells.setdefault(key, ([], []))
            rows.append(row)
            values.append(value)
    columns: dict[Any, npt.NDArray[Any]] = {}
    for key, (rows, values) in cells.items():
        columns[key] = np.zeros(count, dtype if dtype is np.float64 or sum(values) < 2**63 else object)
        columns[key][rows] = values
    return columns
