"""What points are made of, and their content addresses.

A key is the SHA-256 of canonical JSON over what decides a record: the step's digest (at its batch), every field of the *built*
machine, the masks' digest, the metrics beyond the usual ones, the version, and a digest of the package's own code.
So two settings that build one machine are one point, and a result of other code is never taken for a result of this. Of the code
count all rooms that compute (`CODE_LEFT_OUT` has those that only show, serve or measure); numpy and numba do not count. A machine
that cannot be built is addressed by what it starts from and what was set. Keys are the same in every process and on every computer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from trainyard._version import VERSION
from trainyard.errors import BadInput, TrainyardError
from trainyard.sweep import metrics
from trainyard.sweep.records import Record
from trainyard.sweep.study import KNOBS, Point, Study, Workload, file_of, resolved_paths

CODE_LEFT_OUT = ("cli", "web", "report", "live", "sweep")
CODE_TAKEN_IN = ("sweep/metrics.py", "sweep/points.py")
MOST_KEPT = 4096
"""Machines with parts replaced that are cached; the other points of a grid only change numbers in them."""


@cache
def code_digest() -> str:
    """Of the package's source files, by their place in it."""
    root, digest = Path(str(files("trainyard"))), hashlib.sha256()
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        path = file.relative_to(root).as_posix()
        if path.split("/")[0] not in CODE_LEFT_OUT or path in CODE_TAKEN_IN:
            content = file.read_bytes()
            digest.update(f"{path}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def canonical(value: Any) -> str:
    """JSON with one spelling."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_no_address)


def _no_address(value: object) -> Any:
    raise BadInput(f"a machine that holds {type(value).__name__} has no content address: only numbers, words, lists and parts have")


@dataclass(slots=True)
class Materials:
    """Steps, masks and machines of a study, each made once; what an executor hands to its workers, and what runs a point there."""

    steps: dict[Workload, Any]
    masks: dict[Workload, Any]
    machines: Mapping[str, Any]
    plain: frozenset[str]
    extra_metrics: tuple[str, ...]
    code: str
    folder: Path = Path()
    _started: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, study: Study) -> Materials:
        """Loads what points of the study need; what cannot be loaded is an error now, not in the middle."""
        plain = frozenset(axis.path for leader in study.axes for axis in (leader, *leader.followers) if axis.plain)
        materials = cls({}, {}, dict(study.machines), plain, study.extra_metrics, code_digest(), study.folder.resolve())
        for workload in _workloads(study):
            try:
                materials.step(workload)
                for name, machine in study.machines.items():
                    _require_parallel(workload, name, machine)
            except TrainyardError as error:
                raise BadInput(f"{study.source}: workload {workload.model}: {error}") from error
        metrics.require_layers(study.extra_metrics, materials.steps.values(), study.source)
        return materials

    def step(self, workload: Workload) -> Any:
        """The workload's step, with its masks at hand; a search may ask for a batch that is not loaded yet."""
        if workload not in self.steps:
            from trainyard.ir import Phase
            from trainyard.masks.named import load as load_masks
            from trainyard.workloads.named import load

            if workload.at is not None and workload.masks is None:
                raise BadInput(f"at = {workload.at} is a training step of masks, and none are given: add masks")
            step = load(file_of(workload.model, self.folder), workload.batch)
            if workload.masks is not None:
                masks: Any = load_masks(file_of(workload.masks, self.folder), step, workload.at)
                masks.check(step)
                self.masks[workload] = masks
            self.steps[workload] = step.only(Phase.FORWARD) if workload.inference else step
        return self.steps[workload]

    def machine(self, point: Point) -> Any:
        """The point's machine: as `machines.with_overrides` makes it, but numbers are set without being read again."""
        from trainyard import machines

        fields = point.fields
        if point.workload.parallel is not None:
            fields["parallel"] = point.workload.parallel
        parts = {path: resolved_paths(value, self.folder) for path, value in fields.items() if path not in self.plain}
        start = self.machines[point.machine]
        if parts:
            name = canonical([point.machine, parts])
            if name not in self._started:
                if len(self._started) >= MOST_KEPT:
                    self._started.clear()
                self._started[name] = machines.with_overrides(start, parts)
            start = self._started[name]
        numbers = {path: value for path, value in fields.items() if path in self.plain}
        try:
            return _set(start, numbers)
        except Exception:
            return machines.with_overrides(self.machines[point.machine], {**fields, **parts})  # which says where, if it fails too

    def key(self, point: Point) -> str:
        from trainyard import machines

        step, masks = self.step(point.workload), self.masks.get(point.workload)
        try:
            built: Any = machines.describe(self.machine(point))
        except Exception:
            built = {"start": machines.describe(self.machines[point.machine]), "set": dict(point.settings)}
        content = {
            "step": step.digest,
            "machine": built,
            "masks": None if masks is None else masks.digest,
            "metrics": self.extra_metrics,
            "version": VERSION,
            "code": self.code,
        }
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    def keyed(self, points: Iterable[Point]) -> Iterator[Point]:
        """Points with their keys, each key once: the first settings that lead to a machine stand for it."""
        seen: set[str] = set()
        for point in points:
            if (key := self.key(point)) not in seen:
                seen.add(key)
                yield replace(point, key=key)

    def run(self, point: Point) -> Record:
        """The point's record; an error of any kind is the point's own, and ends nothing else."""
        from trainyard import runs

        values: dict[str, float] = {}
        error = ""
        try:
            step, masks = self.step(point.workload), self.masks.get(point.workload)
            values = metrics.of_result(runs.run(step, self.machine(point), masks=masks), self.extra_metrics)
        except TrainyardError as problem:
            error = str(problem) or type(problem).__name__
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        return self.record(point, values, _steady(error))

    def record(self, point: Point, values: Mapping[str, float], error: str = "") -> Record:
        settings = {path: value for path, value in point.settings.items() if path != "machine"}
        settings["batch"] = self.step(point.workload).batch
        return Record(
            key=point.key, workload=point.workload.model, machine=point.machine, settings=settings, metrics=values, error=error
        )

    def require_same_code(self) -> None:
        """On another computer: results of other code must not come under these keys."""
        if self.code != code_digest():
            raise BadInput(
                "this worker has other code of trainyard than the sweep that it works for: install the same there, or start "
                "the sweep again if the code was changed meanwhile"
            )


def _steady(error: str) -> str:
    """One line without addresses, which differ from run to run."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", " ".join(error.split()))


def _set(part: Any, numbers: Mapping[str, Any]) -> Any:
    """The part with plain fields set by whole path, inner parts first."""
    if not numbers:
        return part
    new: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in numbers.items():
        head, _, rest = path.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            new[head] = value
    for head, below in inner.items():
        inner_part = getattr(part, head)
        if not is_dataclass(inner_part):
            raise BadInput(f"{head} has no fields inside")
        new[head] = _set(inner_part, below)
    return replace(part, **new)


def _workloads(study: Study) -> list[Workload]:
    """Every workload as some point of the grid runs it."""
    knobs = [axis for axis in study.axes if axis.values and any(a.path in KNOBS for a in (axis, *axis.followers))]
    used: dict[Workload, None] = {}
    for workload in study.workloads:
        for indices in product(*(range(len(axis)) for axis in knobs)):
            settings: dict[str, Any] = {}
            for axis, index in zip(knobs, indices, strict=True):
                settings.update(axis.at(index))
            used[study.point(workload, settings).workload] = None
    return list(used)


def _require_parallel(workload: Workload, name: str, machine: Any) -> None:
    from trainyard import machines
    from trainyard.ir import System

    if workload.parallel is None:
        return
    if not isinstance(machine, System):
        raise BadInput(f"parallel = {workload.parallel!r} needs a system of several devices: {name} is one")
    machines.with_overrides(machine, {"parallel": workload.parallel})
