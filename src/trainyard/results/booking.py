"""Who did it, as columns: the rows of a plan that ran, what each cost, and sums of them by what they have in common.

Times, bytes and MACs are whole numbers, so that sums are exact in any order; energies are added row by row, first to last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainyard.errors import BadInput

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.engine.timeline import Timeline
    from trainyard.ir.booking import Booking, BookingColumns

Axis = Literal["layer", "phase", "resource", "kind", "op", "bound"]
AXES: tuple[Axis, ...] = ("layer", "phase", "resource", "kind", "op", "bound")
IDLE = "idle"
REMEMBERED_ROWS = 100_000
"""Groups of longer results are found anew each time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows there are: labels, one list per axis."""

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
            raise BadInput(f"cannot group by {name!r} (known: {', '.join(AXES)})")
        return getattr(self, name)  # type: ignore[no-any-return]  # one of the six fields above


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The numbers of the rows: integers for time, bytes and MACs, so that sums are exact.

    Where 64 bits do not hold a column's sum, it holds Python's own integers (`dtype=object`).
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
        """Bytes of each row by level of the memory, whatever the tensor and the direction."""
        levels: dict[str, list[npt.NDArray[Any]]] = {}
        for (level, _, _), count in self.traffic.items():
            levels.setdefault(level, []).append(count)
        return {level: _sum_of(counts) for level, counts in levels.items()}

    def scaled(self, factor: int) -> Columns:
        def times(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return _roomy(column, int(column.sum()) * factor) * factor

        return Columns(
            times(self.time_ps),
            times(self.busy_ps),
            times(self.macs),
            {name: joules * factor for name, joules in self.energy.items()},
            {key: times(count) for key, count in self.traffic.items()},
        )

    def beside(self, other: Columns, join: Callable[[Any, Any], Any]) -> Columns:
        mine, theirs = len(self.time_ps), len(other.time_ps)

        def merge(a: Mapping[Any, Any], b: Mapping[Any, Any], dtype: type, join: Callable[[Any, Any], Any]) -> dict[Any, Any]:
            empty_a: npt.NDArray[Any] = np.zeros(mine, dtype)
            empty_b: npt.NDArray[Any] = np.zeros(theirs, dtype)
            return {key: join(a.get(key, empty_a), b.get(key, empty_b)) for key in dict.fromkeys([*a, *b])}

        def whole(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Any:
            total = int(a.sum()) + int(b.sum())
            return join(_roomy(a, total), _roomy(b, total))

        return Columns(
            whole(self.time_ps, other.time_ps),
            whole(self.busy_ps, other.busy_ps),
            whole(self.macs, other.macs),
            merge(self.energy, other.energy, np.float64, join),
            merge(self.traffic, other.traffic, np.int64, whole),
        )


def _roomy(column: npt.NDArray[Any], total: int) -> npt.NDArray[Any]:
    """A column of whole numbers with room for `total`."""
    return column if total < 2**63 else column.astype(object)


def _sum_of(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One column of several, with room for their sum."""
    whole = np.array(columns)
    total: npt.NDArray[Any] = whole.sum(axis=0, dtype=object if float(whole.sum(dtype=np.float64)) >= 2**62 else whole.dtype)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows by label, in order of first appearance: the group of each row, and the rows in order of their groups."""

    numbers: Mapping[tuple[str, ...], int]
    codes: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    def whole(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of whole numbers, of the last axis; exact, whatever the order."""
        if not self.numbers:
            return values[..., :0]
        found: npt.NDArray[Any] = np.add.reduceat(values[..., self.order], self.starts, axis=-1)
        return found

    def real(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sums of real numbers, row by row."""
        found: npt.NDArray[Any] = np.bincount(self.codes, weights=values, minlength=len(self.numbers))
        return found


def grouped(rows: Rows, axes: Sequence[Axis]) -> Groups:
    labels = tuple(rows.axis(axis) for axis in axes)
    return _remembered(labels) if len(rows) <= REMEMBERED_ROWS else _groups(labels)


def _groups(labels: tuple[tuple[str, ...], ...]) -> Groups:
    numbers: dict[tuple[str, ...], int] = {}
    codes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in zip(*labels, strict=True)), np.intp, len(labels[0]))
    order = np.argsort(codes, kind="stable")
    return Groups(numbers, codes, order, np.searchsorted(codes[order], np.arange(len(numbers))))


_remembered = lru_cache(maxsize=16)(_groups)  # results of one step have the same labels


def booked(timeline: Timeline, booking: Booking) -> tuple[Rows, Columns]:
    """The rows of a plan that ran: exposed and busy time by tag, split over a Work's ops by share, idle time a row of its own."""
    if booking.columns is not None:
        return _booked_at_once(timeline, booking.columns)
    count = len(booking.op) + 1
    time, busy = [0] * count, [0] * count
    exposed_of = _sum_by_tag(timeline.exposed_ps, timeline.tags, len(booking.entries))
    busy_of = _sum_by_tag(timeline.busy_ps, timeline.tags, len(booking.entries))
    for (rows, shares), exposed, occupied in zip(booking.entries, exposed_of.tolist(), busy_of.tolist(), strict=True):
        if len(rows) == 1:
            time[rows[0]] += exposed
            busy[rows[0]] += occupied
            continue
        for row, part_exposed, part_busy in zip(rows, split(exposed, shares), split(occupied, shares), strict=True):
            time[row] += part_exposed
            busy[row] += part_busy
    time[-1] = timeline.end_ps - sum(time)
    rows_ = Rows(
        (*booking.op, IDLE),
        (*booking.layer, ""),
        (*booking.phase, IDLE),
        (*booking.resource, ""),
        (*booking.kind, IDLE),
        (*booking.bound, IDLE),
    )
    columns = Columns(
        np.array(time, np.int64),
        np.array(busy, np.int64),
        np.array([*booking.macs, 0], np.int64 if sum(booking.macs) < 2**63 else object),
        _column(booking.energy, count, np.float64),
        _column(booking.traffic, count, np.int64),
    )
    return rows_, columns


def _booked_at_once(timeline: Timeline, ledger: BookingColumns) -> tuple[Rows, Columns]:
    """The same of a ledger, whose rows each belong to one entry and end with that of the idle time."""
    exposed, busy = timeline.exposed_ps, timeline.busy_ps
    time = ledger.split(_sum_by_tag(exposed, timeline.tags, len(ledger.entries)))
    same = np.array_equal(exposed, busy)  # one stream that is never idle
    occupied = time.copy() if same else ledger.split(_sum_by_tag(busy, timeline.tags, len(ledger.entries)))
    time[-1] = timeline.end_ps - int(time.sum())
    rows = Rows(ledger.op, ledger.layer, ledger.phase, ledger.resource, ledger.kind, ledger.bound)
    return rows, Columns(time, occupied, ledger.macs, ledger.energy, ledger.traffic)


def _sum_by_tag(values: npt.NDArray[np.int64], tags: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    sums = np.zeros(count, np.int64)
    booked_tasks = tags >= 0
    np.add.at(sums, tags[booked_tasks], values[booked_tasks])
    return sums


def split(total: int, shares: Sequence[float]) -> list[int]:
    """Whole parts of `total` in proportion to `shares`, summing to it exactly.

    >>> split(10, (0.25, 0.25, 0.5))
    [2, 3, 5]
    """
    if shares[0] == 1.0:
        return [total, *(0 for _ in shares[1:])]
    edges = [round(total * edge) for edge in accumulate(shares[:-1])]
    bounds = [0, *edges, total]
    return [right - left for left, right in pairwise(bounds)]


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
