"""Study files: which workloads on which machine, what varies, which metrics are stored and which are optimised.

    name = "npu-pareto"
    workloads = ["resnet50", { model = "bert-large", batch = 4, masks = "sparsity(A=0.6)" }]   # or files beside the study
    machine = "npu"                                    # the machine grammar, a machine file, or an inline table
    metrics = ["by_phase.forward"]                     # beyond those that every point has (metrics.py)
    objectives = { time_s = "min", energy_j = "min" }
    any_memory = false                                 # whether points that do not fit their machine's memory are ranked as well
    [axes]                                             # any field of the machine by path, and batch, masks, at, parallel, inference
    "array.rows" = [32, 64, 128]
    dram = { from = "50 GB/s", to = "800 GB/s", steps = 5, scale = "log" }
    device = ["npu", "npu(array=tensordash)"]          # whole parts; `machine` for whole machines
    [tie]
    "array.columns" = "array.rows"                     # moves with it: the same values, or its own list of as many
    [search]                                           # a search in place of the grid (search.py)

Everything is checked before the first run; every error names the file and the key. A value that cannot be built with any values
of the other axes is an error of the study; a combination that cannot be built is a point that failed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from trainyard.checks import require_flag
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.reading import parse_toml, read_text, reader
from trainyard.sweep.axes import Axis
from trainyard.sweep.metrics import extra, require_metric
from trainyard.sweep.search import Plan

KEYS = ("name", "workloads", "machine", "metrics", "objectives", "axes", "tie", "search", "any_memory")
KNOBS = ("batch", "masks", "at", "parallel", "inference")
"""What may vary and is no field of a machine."""
LIMIT = 100_000
OBJECTIVES = {"time_s": "min"}
FILES = (".toml", ".cfg")
INNER_FILE = re.compile(r"""([=(,]\s*)([^\s=(),'"][^=(),'"]*(?:\.toml|\.cfg))(?=\s*[,)])""")
"""A file inside a machine's text, as the value of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model or file, and how it is run; None leaves it to the workload or the machine."""

    model: str
    batch: int | None = None
    masks: str | None = None
    at: int | None = None
    parallel: str | None = None
    inference: bool = False

    def options(self) -> dict[str, Any]:
        chosen = {name: getattr(self, name) for name in KNOBS}
        return {name: value for name, value in chosen.items() if value not in (None, False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a study: a workload as it is run, the machine that it starts from, and what is set in it.

    `settings` has every axis by path; `key` is the content address, empty until `points.Materials` has found it.
    """

    workload: Workload
    machine: str
    settings: Mapping[str, Any]
    key: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The settings that are fields of the machine."""
        return {path: value for path, value in self.settings.items() if path not in KNOBS and path != "machine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study file says, checked. `machines` has the machines that points start from, by the text that names each."""

    name: str
    workloads: tuple[Workload, ...]
    machines: Mapping[str, Any]
    axes: tuple[Axis, ...] = ()
    metrics: tuple[str, ...] = ()
    objectives: Mapping[str, str] = field(default_factory=lambda: dict(OBJECTIVES))
    plan: Plan | None = None
    any_memory: bool = False
    table: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source: str = "study"
    folder: Path = Path()

    @classmethod
    @reader("study")
    def load(cls, path: str | os.PathLike[str]) -> Study:
        """The study of a file."""
        text = read_text(path, "study", "study_bytes")
        try:
            table = parse_toml(text, str(path))
        except ValueError as error:
            raise BadInput(f"{path}: {error}") from None
        return cls.from_table(table, folder=Path(path).parent, source=str(path))

    @classmethod
    @reader("study", source="table")
    def from_table(cls, table: Mapping[str, Any], folder: str | os.PathLike[str] = ".", source: str = "study") -> Study:
        """The study of a table as a file has it; `folder` is where its files lie, `source` what errors call it."""
        from trainyard.sweep.binding import Reading

        for key in table:
            if key not in KEYS:
                raise UnknownName("key", str(key), KEYS, source)
        try:
            return _checked(table, Reading(Path(folder), source))
        except TrainyardError as error:
            if str(error).startswith(source) or f" in {source}" in str(error):
                raise
            raise BadInput(f"{source}: {error}") from None

    @property
    def size(self) -> int:
        """Points of the grid."""
        return len(self.workloads) * math.prod(len(axis) for axis in self.axes)

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        """Metrics beside those that every point keeps."""
        return extra((*self.metrics, *self.objectives))

    def points(self, limit: int = LIMIT) -> Iterator[Point]:
        """The grid: workloads first, then axes in the file's order, the last the fastest."""
        for axis in self.axes:
            if not axis.values:
                raise BadInput(
                    f"{self.source}: axes.{axis.name}: a range in a grid needs steps or step (a [search] takes any value between)"
                )
        if self.size > limit:
            raise BadInput(
                f"{self.source}: {self.size} points are more than the limit of {limit}: take fewer values, or raise --limit"
            )
        return self._grid()

    def _grid(self) -> Iterator[Point]:
        for workload in self.workloads:
            for indices in product(*(range(len(axis)) for axis in self.axes)):
                settings: dict[str, Any] = {}
                for axis, index in zip(self.axes, indices, strict=True):
                    settings.update(axis.at(index))
                yield self.point(workload, settings)

    def point(self, workload: Workload, settings: Mapping[str, Any]) -> Point:
        """The point of settings by path, such as `axis.of(value)` gives."""
        knobs = {name: value for name, value in settings.items() if name in KNOBS}
        used = Workload(**{**{name: getattr(workload, name) for name in ("model", *KNOBS)}, **knobs}) if knobs else workload
        machine = settings.get("machine", next(iter(self.machines)))
        return Point(workload=used, machine=machine, settings={**workload.options(), **settings})


def _checked(table: Mapping[str, Any], reading: Any) -> Study:
    name = table.get("name")
    if not isinstance(name, str) or not name.strip().isprintable() or not name.strip() or any(sign in name for sign in "/\\"):
        raise BadInput(f'{reading.source}: name: expected a name of the study, such as "npu-pareto", got {name!r}')
    metrics = table.get("metrics", [])
    if not isinstance(metrics, list):
        raise BadInput(f"{reading.source}: metrics: expected a list, got {metrics!r}")
    objectives = table.get("objectives", OBJECTIVES)
    if not isinstance(objectives, Mapping) or not objectives:
        raise BadInput(f'{reading.source}: objectives: expected a table such as {{ time_s = "min" }}, got {objectives!r}')
    for metric, direction in objectives.items():
        require_metric(metric, f"{reading.source}: objectives")
        if direction not in ("min", "max"):
            raise UnknownName("direction", str(direction), ("min", "max"), f"{reading.source}: objectives.{metric}")
    search = table.get("search", {})
    if not isinstance(search, Mapping):
        raise BadInput(f"{reading.source}: search: expected a table, got {search!r}")
    any_memory = table.get("any_memory", False)
    require_flag(reading.source, any_memory=any_memory)
    workloads, raw_axes = reading.workloads(table), reading.raw_axes(table)
    machines = reading.machines(table, raw_axes)
    axes = reading.axes(table, raw_axes, machines)
    knobs = {axis.path for leader in axes for axis in (leader, *leader.followers)} & {*KNOBS}
    for number, workload in enumerate(workloads):
        for knob in sorted(knobs & workload.options().keys()):
            raise BadInput(f"{reading.source}: axes.{knob}: workload {number + 1} ({workload.model}) gives {knob} too")
    return Study(
        name=name.strip(),
        workloads=workloads,
        machines=machines,
        axes=axes,
        metrics=tuple(require_metric(metric, f"{reading.source}: metrics") for metric in metrics),
        objectives=dict(objectives),
        any_memory=any_memory,
        plan=Plan.of(search, axes, objectives, KNOBS, reading.source) if "search" in table else None,
        table=dict(table),
        source=reading.source,
        folder=reading.folder,
    )


def resolved_paths(value: Any, folder: Path) -> Any:
    """Machine files in a machine's text or table, named from here; they lie in the study's folder.

    >>> resolved_paths("my.toml", Path("studies")), resolved_paths("npu(array=my.toml,clock=1 GHz)", Path("studies"))
    ("'studies/my.toml'", "npu(array='studies/my.toml',clock=1 GHz)")
    """
    if isinstance(value, Mapping):
        return {key: resolved_paths(item, folder) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if not value.endswith(FILES):
        return INNER_FILE.sub(lambda match: match[1] + _quoted(match[2], folder), value)
    return _quoted(value, folder)


def _quoted(file: str, folder: Path) -> str:
    """Brackets and commas of a path are not the grammar's."""
    quote = '"' if "'" in str(folder / file) else "'"
    return file if Path(file).is_absolute() else f"{quote}{folder / file}{quote}"


def file_of(text: str, folder: Path) -> str:
    """A workload or masks, if it is a file, named from here. Zoo models have no suffix, made-up zeros have brackets.

    >>> file_of("net.csv", Path("studies")), file_of("my.py:build", Path("studies")), file_of("resnet50", Path("studies"))
    ('studies/net.csv', 'studies/my.py:build', 'resnet50')
    """
    file = text.rpartition(":")[0] if text.rpartition(":")[0].endswith(".py") else text
    plain = "(" not in text and Path(file).suffix and not Path(file).is_absolute()
    return str(folder / text) if plain else text
