"""Result: what a training step cost. A value that adds (one after the other), scales, and groups by layer, phase, resource.

`time` is exposed time: every instant of the step belongs to one row, so times sum to `time_s` exactly. `busy` does not sum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainyard._version import VERSION
from trainyard.errors import BadInput, TrainyardError
from trainyard.ir.assumptions import Assumption, trials
from trainyard.timeline import Timeline

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import pandas as pd

    from trainyard.ir import Device, System
    from trainyard.ir.book import Book

Axis = Literal["layer", "phase", "resource", "kind", "op", "bound"]
AXES: tuple[Axis, ...] = ("layer", "phase", "resource", "kind", "op", "bound")
PICOSECOND = 1e-12
IDLE = "idle"
OF_ONE_RUN: Mapping[str, Any] = {"timeline": None, "entries": (), "rerun": None}  # what a sum or a multiple does not have


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a group of rows."""

    time_s: float
    busy_s: float
    energy_j: float
    traffic_bytes: Mapping[str, int]
    macs: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "time_s": self.time_s,
            "busy_s": self.busy_s,
            "energy_j": self.energy_j,
            "traffic_bytes": dict(self.traffic_bytes),
            "macs": self.macs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a machine could do at best: what `compare` sets side by side and a roofline is drawn from."""

    macs_per_s: float
    dram_bytes_per_s: float
    technology: str = ""
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a training step costs on a machine.

    `steps` optimizer steps over `samples` samples were simulated; times, energies and bytes are of one step.
    """

    workload: str
    machine: str
    batch: int
    samples: int
    rows: Rows
    columns: Columns
    peaks: Peaks
    steps: int = 1
    clock_hz: float | None = None
    cycles: int | None = None
    array_cycles: int | None = None  # of `cycles`, those in which the array multiplies
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    range_s: tuple[float, float] | None = None
    seed: int | None = None
    version: str = VERSION
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    entries: tuple[tuple[int, ...], ...] = field(default=(), repr=False, compare=False)
    """The rows that a task's tag stands for: `timeline` tells when, `entries[tag]` whose time it was."""
    rerun: Callable[[Mapping[str, Any]], Result] | None = field(default=None, repr=False, compare=False)
    on: Device | System | None = field(default=None, repr=False, compare=False)  # the machine itself: its drawing is made from it

    def __repr__(self) -> str:
        return f"Result({self.workload!r} on {self.machine!r}, batch={self.batch}: {self.headline}, {len(self.rows)} rows)"

    @cached_property
    def time_ps(self) -> int:
        return int(self.columns.time_ps.sum())

    @property
    def time_s(self) -> float:
        """Steady-state time of one optimizer step."""
        return self.time_ps * PICOSECOND / self.steps

    @property
    def samples_per_s(self) -> float:
        return self.samples / (self.time_ps * PICOSECOND)

    @cached_property
    def energy_by_component(self) -> dict[str, float]:
        return {name: float(joules.sum()) / self.steps for name, joules in self.columns.energy.items()}

    @property
    def energy_j(self) -> float:
        return sum(self.energy_by_component.values())

    @property
    def macs(self) -> int:
        return int(self.columns.macs.sum()) // self.steps

    @property
    def traffic_bytes(self) -> dict[str, int]:
        """Bytes by level."""
        return _by_level(self.columns.traffic, slice(None), self.steps)

    @property
    def traffic(self) -> dict[tuple[str, str, str], int]:
        """Bytes by (level, tensor, direction)."""
        return {key: int(count.sum()) // self.steps for key, count in self.columns.traffic.items()}

    @property
    def by_phase(self) -> dict[str, Cost]:
        return {key[0]: cost for key, cost in self.group("phase").items()}

    @property
    def by_layer(self) -> dict[str, Cost]:
        return {key[0]: cost for key, cost in self.group("layer").items()}

    @property
    def by_class(self) -> dict[str, Cost]:
        """Compute, synchronisation, copy, idle."""
        return {key[0]: cost for key, cost in self.group("kind").items()}

    def group(self, *axes: Axis) -> dict[tuple[str, ...], Cost]:
        """Costs by one or several of layer, phase, resource, kind, op, bound, in order of first appearance."""
        if not axes:
            raise BadInput(f"group by what? (known: {', '.join(AXES)})")
        numbers: dict[tuple[str, ...], int] = {}
        labels = zip(*(self.rows.axis(axis) for axis in axes), strict=True)
        codes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.intp, len(self.rows))

        def total(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            sums = np.zeros(len(numbers), values.dtype)
            np.add.at(sums, codes, values)
            return sums

        time, busy, macs = total(self.columns.time_ps), total(self.columns.busy_ps), total(self.columns.macs)
        energy = total(sum(self.columns.energy.values(), np.zeros(len(self.rows))))
        traffic = {key: total(count) for key, count in self.columns.traffic.items()}
        return {
            label: Cost(
                time_s=int(time[i]) * PICOSECOND / self.steps,
                busy_s=int(busy[i]) * PICOSECOND / self.steps,
                energy_j=float(energy[i]) / self.steps,
                traffic_bytes=_by_level(traffic, i, self.steps),
                macs=int(macs[i]) // self.steps,
            )
            for label, i in numbers.items()
        }

    def __add__(self, other: Result) -> Result:
        """One after the other: times, energies and bytes add; peak memory is the larger."""
        if not isinstance(other, Result):
            return NotImplemented
        if self.steps != other.steps:
            raise BadInput(f"results of {self.steps} and {other.steps} simulated steps do not add")
        same = self.rows == other.rows
        rows = self.rows if same else Rows(*(a + b for a, b in zip(_labels(self.rows), _labels(other.rows), strict=True)))
        columns = self.columns.beside(other.columns, np.add if same else lambda a, b: np.concatenate([a, b]))
        pools, arrays = dict.fromkeys([*self.peak_memory_bytes, *other.peak_memory_bytes]), (self.array_cycles, other.array_cycles)
        return replace(
            self,
            workload=self.workload if self.workload == other.workload else f"{self.workload} + {other.workload}",
            machine=self.machine if self.machine == other.machine else f"{self.machine} + {other.machine}",
            samples=self.samples + other.samples,
            rows=rows,
            columns=columns,
            clock_hz=self.clock_hz if self.clock_hz == other.clock_hz else None,
            cycles=None if self.cycles is None or other.cycles is None else self.cycles + other.cycles,
            array_cycles=None if None in arrays else sum(arrays),  # type: ignore[arg-type]  # both are numbers
            peak_memory_bytes={p: max(self.peak_memory_bytes.get(p, 0), other.peak_memory_bytes.get(p, 0)) for p in pools},
            assumptions=tuple(dict.fromkeys([*self.assumptions, *other.assumptions])),
            notes=tuple(dict.fromkeys([*self.notes, *other.notes])),
            config=self.config if self.config == other.config else {"sum": [*_machines(self.config), *_machines(other.config)]},
            range_s=None,
            on=self.on if self.config == other.config else None,
            **OF_ONE_RUN,
        )

    def __radd__(self, other: int) -> Result:
        """`sum(results)` starts from 0."""
        return self if other == 0 else NotImplemented

    def __mul__(self, factor: int) -> Result:
        """The same thing `factor` times over."""
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise BadInput(f"a result scales by a positive whole number, got {factor!r}")
        return replace(
            self,
            samples=self.samples * factor,
            columns=self.columns.scaled(factor),
            cycles=None if self.cycles is None else self.cycles * factor,
            array_cycles=None if self.array_cycles is None else self.array_cycles * factor,
            range_s=None if self.range_s is None else (self.range_s[0] * factor, self.range_s[1] * factor),
            **OF_ONE_RUN,
        )

    __rmul__ = __mul__

    @property
    def config_hash(self) -> str:
        """Names the machine's every field: equal hashes, equal machines."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def headline(self) -> str:
        """Time with its range over the open assumptions: `9.1 ms (7.8-11.2)`."""
        from trainyard.units import parse, show

        if not self.time_s:
            return show(0, "s")
        unit = show(self.time_s, "s").split(" ")[1]
        size = parse(f"1 {unit}", "s")
        decimals = 1 if self.time_s / size < 99.95 else 0
        time, low, high = (f"{seconds / size:.{decimals}f}" for seconds in (self.time_s, *(self.range_s or (0.0, 0.0))))
        return f"{time} {unit}" if low == high else f"{time} {unit} ({low}-{high})"

    def ranged(self, told: Callable[[int, int], None] = lambda done, total: None) -> Result:
        """The result with the range of its time over the open assumptions, each alternative alone; `told` how many are done."""
        if self.range_s is not None or self.rerun is None:
            return self
        times, others = [self.time_s], trials(self.assumptions, "time_s")
        for done, (path, alternative) in enumerate(others):
            told(done, len(others))
            with suppress(TrainyardError):  # an alternative that this machine cannot be built with says nothing
                times.append(self.rerun({path: alternative}).time_s)
        return replace(self, range_s=(min(times), max(times)))

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON object; every key is documented in docs/json.md."""
        return {
            "workload": self.workload,
            "machine": self.machine,
            "batch": self.batch,
            "samples": self.samples,
            "steps": self.steps,
            "time_s": self.time_s,
            "time_range_s": self.range_s,
            "samples_per_s": self.samples_per_s,
            "cycles": self.cycles,
            "array_cycles": self.array_cycles,
            "clock_hz": self.clock_hz,
            "macs": self.macs,
            "energy_j": self.energy_j,
            "energy_by_component_j": self.energy_by_component,
            "traffic_bytes": self.traffic_bytes,
            "traffic_by_tensor_bytes": {"/".join(key): count for key, count in self.traffic.items()},
            "peak_memory_bytes": dict(self.peak_memory_bytes),
            "by_class": {name: cost.as_dict() for name, cost in self.by_class.items()},
            "by_phase": {name: cost.as_dict() for name, cost in self.by_phase.items()},
            "by_layer": {name: cost.as_dict() for name, cost in self.by_layer.items()},
            "peaks": {
                "macs_per_s": self.peaks.macs_per_s,
                "dram_bytes_per_s": self.peaks.dram_bytes_per_s,
                "technology": self.peaks.technology,
                "devices": self.peaks.devices,
            },
            "assumptions": [
                {"name": a.name, "value": a.value, "meaning": a.meaning, "alternatives": list(a.alternatives), "settles": a.settles}
                for a in self.assumptions
            ],
            "notes": list(self.notes),
            "config": dict(self.config),
            "config_hash": self.config_hash,
            "seed": self.seed,
            "version": self.version,
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, default=str)

    # The only upward imports of the house: a result shows itself.
    def table(self, by: Axis = "layer", top: int = 20, *, ranged: bool = True) -> None:
        from trainyard.report import tables

        tables.show(self.ranged() if ranged else self, by=by, top=top)

    def explain(self, layer: str = "") -> str:
        from trainyard.report import explain

        return explain.explain(self, layer)

    def to_html(self, path: str | os.PathLike[str], *, ranged: bool = True) -> None:
        from trainyard.report import page

        page.write([self.ranged() if ranged else self], path)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report import perfetto

        perfetto.write(self, path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report import frames

        frames.write_parquet(self, path)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report import frames

        frames.write_csv(self, path)

    def to_frame(self) -> pd.DataFrame:
        from trainyard.report import frames

        return frames.frame(self)

    def _repr_html_(self) -> str:
        from trainyard.report import page

        return page.notebook(self)


def _machines(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The machines of a result, one after the other if it is a sum."""
    return list(config.get("sum", [config]))


def _roomy(column: npt.NDArray[Any], total: int) -> npt.NDArray[Any]:
    """A column of whole numbers with room for `total`."""
    return column if total < 2**63 else column.astype(object)


def _labels(rows: Rows) -> Iterable[tuple[str, ...]]:
    return (rows.op, rows.layer, rows.phase, rows.resource, rows.kind, rows.bound)


def _by_level(traffic: Mapping[tuple[str, str, str], npt.NDArray[np.int64]], index: Any, steps: int) -> dict[str, int]:
    levels: dict[str, int] = {}
    for (level, _, _), count in traffic.items():
        levels[level] = levels.get(level, 0) + int(np.sum(count[index]))
    return {level: count // steps for level, count in levels.items()}


def booked(timeline: Timeline, book: Book) -> tuple[Rows, Columns]:
    """The rows of a plan that ran: exposed and busy time by tag, split over a Work's ops by share, idle time a row of its own."""
    count = len(book.op) + 1
    time, busy = [0] * count, [0] * count
    exposed_of = _sum_by_tag(timeline.exposed_ps, timeline.tags, len(book.entries))
    busy_of = _sum_by_tag(timeline.busy_ps, timeline.tags, len(book.entries))
    for (rows, shares), exposed, occupied in zip(book.entries, exposed_of.tolist(), busy_of.tolist(), strict=True):
        if len(rows) == 1:
            time[rows[0]] += exposed
            busy[rows[0]] += occupied
            continue
        for row, part_exposed, part_busy in zip(rows, split(exposed, shares), split(occupied, shares), strict=True):
            time[row] += part_exposed
            busy[row] += part_busy
    time[-1] = timeline.end_ps - sum(time)
    rows_ = Rows(
        (*book.op, IDLE), (*book.layer, ""), (*book.phase, IDLE), (*book.resource, ""), (*book.kind, IDLE), (*book.bound, IDLE)
    )
    columns = Columns(
        np.array(time, np.int64),
        np.array(busy, np.int64),
        np.array([*book.macs, 0], np.int64 if sum(book.macs) < 2**63 else object),
        _column(book.energy, count, np.float64),
        _column(book.traffic, count, np.int64),
    )
    return rows_, columns


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
