"""Result: the cost of a training step. Results add (one after the other), scale, and group by layer, phase or resource.

`time` is exposed time: every instant of the step belongs to one row, so that times sum to `time_s` exactly; `busy` times overlap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from trainyard._version import VERSION
from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput, nearest_name
from trainyard.ir.assumptions import Assumption
from trainyard.progress import ProgressCallback, no_progress
from trainyard.results import memory
from trainyard.results.booking import AXES, IDLE, Axis, Columns, Rows, grouped
from trainyard.results.tables import NamedTable

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    import pandas as pd
    import plotly.graph_objects as go

    from trainyard.ir import Device, System
    from trainyard.results.loop_nests import LoopNest
    from trainyard.results.savings import Saving
    from trainyard.results.training import TrainingCost

__all__ = ["AXES", "IDLE", "PICOSECOND", "Axis", "Columns", "Cost", "Peaks", "Result", "Rows"]
PICOSECOND = 1e-12
DEFERRED = frozenset(
    "machine about rows columns peaks peak_memory_bytes memory_capacity_bytes assumptions notes config timeline entries".split()
)
"""Fields of a result that may be computed when they are first read."""
STATIC = "static"
"""How the names of components end that draw power at rest: `static`, `fabric static`."""
NO_SINGLE_RUN: Mapping[str, Any] = {"timeline": None, "entries": (), "rerun": None, "range_by": {}}  # fields of a sum or a multiple


class Cost(NamedTuple):
    """The cost of a group of rows."""

    time_s: float
    busy_s: float
    energy_j: float
    traffic_bytes: Mapping[str, int]
    macs: int

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "traffic_bytes": dict(self.traffic_bytes)}


@runtime_checkable
class KnowsMapping(Protocol):
    """What a result is rerun by, where its machine can say how it maps the step."""

    def loop_nests(self) -> tuple[LoopNest, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak rates of a machine, for `compare` and the roofline plot."""

    macs_per_s: float
    dram_bytes_per_s: float
    technology: str = ""
    devices: int = 1


class DeferredFields(Protocol):
    """Computes the DEFERRED fields of a result, and its energy without them."""

    def fields(self, name: str) -> Mapping[str, Any]:
        """The field `name`, perhaps with others that come with it."""
        ...

    def energy_by_component(self) -> dict[str, float] | None:
        """Joules of all simulated steps; None where they have to be added up from the rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """The cost of a training step on a machine.

    `steps` optimizer steps over `samples` samples were simulated; times, energies and bytes are of one step. The rows are booked
    when they are first read (`deferred`): a sweep over many machines reads only sums.
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
    memory_capacity_bytes: Mapping[str, int] = field(default_factory=dict)  # of the pools that state one
    assumptions: tuple[Assumption, ...] = field(default_factory=tuple)
    notes: tuple[str, ...] = field(default_factory=tuple)
    config: Mapping[str, Any] = field(default_factory=dict)
    range_s: tuple[float, float] | None = None
    range_by: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of each assumption that `range_s` spans, by path
    about: str = field(default_factory=str)  # one line about a machine that has a name
    seed: int | None = None
    version: str = VERSION
    timeline: Timeline | None = field(default_factory=type(None), repr=False, compare=False)
    entries: tuple[tuple[int, ...], ...] = field(default_factory=tuple, repr=False, compare=False)
    """The rows of each task tag: `timeline` has the time of a task, `entries[tag]` the rows that it is booked to."""
    rerun: Callable[[Mapping[str, Any]], Result] | None = field(default=None, repr=False, compare=False)
    on: Device | System | None = field(default=None, repr=False, compare=False)  # the machine itself, for drawings

    @classmethod
    def deferred(cls, source: DeferredFields, time_ps: int, **known: Any) -> Result:
        """A result whose DEFERRED fields come from `source` when they are first read; all others are known."""
        result = cls.__new__(cls)
        vars(result).update(range_by={}, **known, time_ps=time_ps, _source=source)
        return result

    def __getattr__(self, name: str) -> Any:
        """A field that was not read before."""
        source: DeferredFields | None = vars(self).get("_source")
        if source is None or name not in DEFERRED:
            nearest = None if name.startswith("_") else nearest_name(name, (key for key in dir(type(self)) if key[0] != "_"))
            offer = f": did you mean {nearest!r}?" if nearest else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{offer}")
        vars(self).update(source.fields(name))
        return vars(self)[name]

    def __getstate__(self) -> dict[str, Any]:
        """All fields: what they are computed from is not pickled, nor what was derived from them."""
        return {known.name: getattr(self, known.name) for known in fields(self)}

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
        source: DeferredFields | None = vars(self).get("_source")
        total = source.energy_by_component() if source is not None and "columns" not in vars(self) else None
        if total is not None:
            return NamedTable("component", {name: joules / self.steps for name, joules in total.items()})
        energy = self.columns.energy
        return NamedTable("component", {name: float(joules.sum()) / self.steps for name, joules in energy.items()})

    @property
    def energy_j(self) -> float:
        return sum(self.energy_by_component.values())

    @property
    def power_w(self) -> float:
        """Mean power over the step: `energy_j` over `time_s`."""
        return self.energy_j / self.time_s

    @property
    def energy_per_sample_j(self) -> float:
        return self.energy_j * self.steps / self.samples

    @property
    def energy_delay_js(self) -> float:
        """Energy-delay product of one step."""
        return self.energy_j * self.time_s

    @cached_property
    def area_by_component(self) -> dict[str, float]:
        """Square metres of each component, over all devices; empty where the machine states none."""
        from trainyard.results.chip import area_by_component

        return NamedTable("component", area_by_component(self.on, self.peaks.devices) or {})

    @property
    def area_m2(self) -> float | None:
        return sum(self.area_by_component.values()) if self.area_by_component else None

    @property
    def samples_per_s_m2(self) -> float | None:
        """Throughput of a square metre."""
        return self.samples_per_s / self.area_m2 if self.area_m2 else None

    @property
    def leaked_j(self) -> float | None:
        """What the machine leaks in a step beside `energy_j`; None where it states no leakage."""
        from trainyard.results.chip import leakage_w

        watts = leakage_w(self.on, self.peaks.devices)
        return None if watts is None else watts * self.time_s

    @property
    def static_energy_j(self) -> float | None:
        """Energy of a step that is spent whatever is computed: what leaks, and the static components that `energy_j` has."""
        counted = [joules for name, joules in self.energy_by_component.items() if name.endswith(STATIC)]
        return sum(counted) + (self.leaked_j or 0.0) if counted or self.leaked_j is not None else None

    @property
    def total_energy_j(self) -> float | None:
        """`energy_j` with what leaks beside it; None where neither is known to be complete."""
        if self.leaked_j is not None:
            return self.energy_j + self.leaked_j
        return self.energy_j if any(name.endswith(STATIC) for name in self.energy_by_component) else None

    @property
    def macs(self) -> int:
        return int(self.columns.macs.sum()) // self.steps

    @property
    def memory_share(self) -> float | None:
        """The largest share of its capacity that a memory held: above 1 the step does not fit. None where none is stated."""
        capacities = self.memory_capacity_bytes
        return max((self.peak_memory_bytes.get(pool, 0) / capacities[pool] for pool in capacities), default=None)

    @property
    def shortages(self) -> tuple[str, ...]:
        """A sentence for each memory that the step does not fit."""
        return tuple(memory.shortages(self.peak_memory_bytes, self.memory_capacity_bytes))

    @cached_property
    def _levels(self) -> dict[str, npt.NDArray[Any]]:
        return self.columns.by_level()

    @property
    def traffic_bytes(self) -> dict[str, int]:
        """Bytes by level."""
        return NamedTable("level", {level: int(count.sum()) // self.steps for level, count in self._levels.items()})

    @property
    def traffic(self) -> dict[tuple[str, str, str], int]:
        """Bytes by (level, tensor, direction)."""
        return {key: int(count.sum()) // self.steps for key, count in self.columns.traffic.items()}

    @property
    def by_phase(self) -> dict[str, Cost]:
        return NamedTable("phase", {key[0]: cost for key, cost in self.group("phase").items()})

    @property
    def by_layer(self) -> dict[str, Cost]:
        return NamedTable("layer", {key[0]: cost for key, cost in self.group("layer").items()})

    @property
    def by_class(self) -> dict[str, Cost]:
        """Compute, synchronisation, copy, idle."""
        return NamedTable("class", {key[0]: cost for key, cost in self.group("kind").items()})

    @cached_property
    def mapping(self) -> tuple[LoopNest, ...]:
        """The loop nest of each Work of one device: tiles, order, what stays, what moves how often, and the least that could.

        Empty for machines without a tile search, and for results that were added, scaled, measured or read from a file.
        """
        return self.rerun.loop_nests() if isinstance(self.rerun, KnowsMapping) else ()

    @cached_property
    def without_reuse(self) -> Result | None:
        """The same run with nothing kept on chip between layers; None where that is what this run is."""
        from trainyard.results.savings import without_reuse

        return without_reuse(self)

    def saved(self, by: Axis = "layer") -> dict[str, Saving]:
        """What tensors that stay on chip between layers save, by layer or phase; empty where `reuse` keeps none."""
        from trainyard.results.savings import savings

        return {} if self.without_reuse is None else savings(self.without_reuse, self, by)

    def _saved_by_layer(self) -> dict[str, Any]:
        from trainyard.results.savings import slices_by_layer

        cuts = slices_by_layer(self)
        return {
            name: saved.as_dict() | ({"slices": cuts[name]} if name in cuts else {}) for name, saved in self.saved().items()
        }  # fmt: skip

    def group(self, *axes: Axis) -> dict[tuple[str, ...], Cost]:
        """Costs by one or several of layer, phase, resource, kind, op, bound, in order of first appearance."""
        if not axes:
            raise BadInput(f"group by what? (known: {', '.join(AXES)})")
        groups = grouped(self.rows, axes)
        time, busy, macs = (groups.sum_integers(c) for c in (self.columns.time_ps, self.columns.busy_ps, self.columns.macs))
        energy = groups.sum_floats(sum(self.columns.energy.values(), np.zeros(len(self.rows))))
        levels = self._levels
        traffic: list[dict[str, int]] = [{} for _ in groups.numbers]
        for level, count in levels.items():
            for sizes, moved in zip(traffic, (groups.sum_integers(count) // self.steps).tolist(), strict=True):
                sizes[level] = moved
        columns = (time * PICOSECOND / self.steps, busy * PICOSECOND / self.steps, energy / self.steps)
        costs = zip(*(column.tolist() for column in columns), traffic, (macs // self.steps).tolist(), strict=True)
        return dict(zip(groups.numbers, map(partial(tuple.__new__, Cost), costs), strict=True))

    def __add__(self, other: Result) -> Result:
        """One after the other: times, energies and bytes add; peak memory is the larger."""
        if not isinstance(other, Result):
            return NotImplemented
        if self.steps != other.steps:
            raise BadInput(f"results of {self.steps} and {other.steps} simulated steps do not add")
        same_rows = self.rows == other.rows
        rows = self.rows if same_rows else Rows(*(a + b for a, b in zip(_labels(self.rows), _labels(other.rows), strict=True)))
        columns = self.columns.joined(other.columns, np.add if same_rows else lambda a, b: np.concatenate([a, b]))
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
            memory_capacity_bytes={**self.memory_capacity_bytes, **other.memory_capacity_bytes},
            assumptions=tuple(dict.fromkeys([*self.assumptions, *other.assumptions])),
            notes=tuple(dict.fromkeys([*self.notes, *other.notes])),
            config=self.config if self.config == other.config else {"sum": [*_machines(self.config), *_machines(other.config)]},
            range_s=None,
            about=self.about if self.machine == other.machine else "",
            on=self.on if self.config == other.config else None,
            **NO_SINGLE_RUN,
        )

    def __radd__(self, other: int) -> Result:
        """`sum(results)` starts from 0."""
        return self if other == 0 else NotImplemented

    def __mul__(self, factor: int) -> Result:
        """The same step `factor` times, one after the other."""
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise BadInput(f"a result scales by a positive whole number, got {factor!r}")
        return replace(
            self,
            samples=self.samples * factor,
            columns=self.columns.scaled(factor),
            cycles=None if self.cycles is None else self.cycles * factor,
            array_cycles=None if self.array_cycles is None else self.array_cycles * factor,
            range_s=None if self.range_s is None else (self.range_s[0] * factor, self.range_s[1] * factor),
            **NO_SINGLE_RUN,
        )

    __rmul__ = __mul__

    @property
    def config_hash(self) -> str:
        """Hash of all fields of the machine: equal machines have equal hashes."""
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

    def ranged(self, on_progress: ProgressCallback = no_progress) -> Result:
        """The result with the range of its time over the open assumptions, each alternative alone."""
        from trainyard.results.ranges import with_range

        return with_range(self, on_progress)

    def training(self, samples: int, epochs: int = 1) -> TrainingCost:
        """Time, steps and energy of a training run: `epochs` over a data set of `samples`, every step at this result's cost."""
        from trainyard.results.training import training_cost

        return training_cost(self, samples, epochs)

    def as_dict(self, *, mapping: bool = True) -> dict[str, Any]:
        """The stable JSON object; every key is documented in docs/json.md. The loop nests of `mapping` can be left out."""
        return {
            "workload": self.workload,
            "machine": self.machine,
            "about": self.about,
            "batch": self.batch,
            "samples": self.samples,
            "steps": self.steps,
            "time_s": self.time_s,
            "time_range_s": self.range_s,
            "time_range_by": {path: list(ends) for path, ends in self.range_by.items()},
            "samples_per_s": self.samples_per_s,
            "cycles": self.cycles,
            "array_cycles": self.array_cycles,
            "clock_hz": self.clock_hz,
            "macs": self.macs,
            "energy_j": self.energy_j,
            "energy_by_component_j": self.energy_by_component,
            "power_w": self.power_w,
            "energy_per_sample_j": self.energy_per_sample_j,
            "energy_delay_js": self.energy_delay_js,
            "static_energy_j": self.static_energy_j,
            "total_energy_j": self.total_energy_j,
            "area_m2": self.area_m2,
            "area_by_component_m2": self.area_by_component,
            "traffic_bytes": self.traffic_bytes,
            "traffic_by_tensor_bytes": {"/".join(key): count for key, count in self.traffic.items()},
            "peak_memory_bytes": dict(self.peak_memory_bytes),
            "memory_capacity_bytes": dict(self.memory_capacity_bytes),
            "by_class": {name: cost.as_dict() for name, cost in self.by_class.items()},
            "by_phase": {name: cost.as_dict() for name, cost in self.by_phase.items()},
            "by_layer": {name: cost.as_dict() for name, cost in self.by_layer.items()},
            "peaks": asdict(self.peaks),
            "assumptions": [
                {"name": a.name, "value": a.value, "meaning": a.meaning, "alternatives": list(a.alternatives), "settles": a.settles}
                for a in self.assumptions
            ],
            "notes": list(self.notes),
            "config": dict(self.config),
            "config_hash": self.config_hash,
            "seed": self.seed,
            "version": self.version,
            **({"saved_by_layer": self._saved_by_layer()} if self.without_reuse else {}),
            **({"mapping": [nest.as_dict() for nest in self.mapping if nest.kind != "stream"]} if mapping else {}),
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, default=str)

    # The only imports from a higher layer: a result shows itself.
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
        from trainyard.report.traces import perfetto

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

    def plot(self, which: str = "time") -> go.Figure:
        """A plotly figure of `which`: time, class, overlap, energy, traffic, roofline, timeline or memory."""
        from trainyard.report import plots

        return plots.plot_of(self, which)

    def _repr_html_(self) -> str:
        from trainyard.report import page

        return page.notebook(self)


def _machines(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The machines of a result: several if it is a sum."""
    return list(config.get("sum", [config]))


def _labels(rows: Rows) -> Iterable[tuple[str, ...]]:
    return (rows.op, rows.layer, rows.phase, rows.resource, rows.kind, rows.bound)
