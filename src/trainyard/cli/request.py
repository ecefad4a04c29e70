"""What the user asked to run, turned into a step, masks, machines and results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.cli import options
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.progress import ProgressCallback, with_message
from trainyard.report.terminal import progress, status

if TYPE_CHECKING:
    from trainyard.caches import DiskCache
    from trainyard.ir import Step
    from trainyard.results.result import Result

PARALLEL = ("data", "model", "mixed", "pipeline", "expert")
MOST_TILINGS = 512
"""Files with the tilings of a step on a machine, of a few kilobytes each."""
OWN_OPTIONS = ("batch", "parallel", "dpus", "algorithm", "masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A workload and its options: what `run`, `compare` and `explain` have in common."""

    workload: str
    batch: int | None = None
    world: int | None = None
    parallel: str | None = None
    dpus: int | None = None
    algorithm: str | None = None
    masks: str | None = None
    at: int | None = None
    inference: bool = False
    settings: Sequence[str] | None = None
    mapping_file: str | None = None

    def results(self, machines: Sequence[str], *, ranged: bool = False) -> list[Result]:
        """The step on each machine; a fault of the last must not cost a run of the first."""
        from trainyard import runs
        from trainyard.caches import on_disk
        from trainyard.ir import Phase

        overrides = self._overrides(machines)
        with status(f"reading {os.path.basename(self.workload)}"):
            step = step_of(self.workload, self.batch, self.world)
            zeros = masks_of(self.masks, self.at, step)
            step = step.only(Phase.FORWARD) if self.inference else step
        results = []
        with progress() as on_progress, on_disk(stored_tilings()):
            for number, name in enumerate(machines):
                on_progress(number, len(machines), f"machines: {name}" if len(machines) > 1 else name)
                fixed = self._constraints(name)
                result = runs.run(step, name, masks=zeros, parallel=self.parallel, **overrides, **fixed)
                result = with_range(result, on_progress) if ranged else result
                changed = options.changes(self.dpus, self.algorithm, self.settings, self.mapping_file)
                results.append(replace(result, machine=f"{name} with {changed}") if changed else result)
        return results

    def _constraints(self, name: str) -> dict[str, Any]:
        """The field that the file of constraints is for: the machine's own, or its device's."""
        if self.mapping_file is None:
            return {}
        from trainyard.machines import machine
        from trainyard.machines.files import read_table

        chosen = machine(name)
        owner = chosen if hasattr(chosen, "mapping") else getattr(chosen, "device", None)
        if not hasattr(owner, "mapping"):
            raise BadInput(
                f"{name} has no tile search: --mapping-file is of accelerators, an array behind a scratchpad such as npu"
            )
        table = read_table(self.mapping_file)
        return {"mapping" if owner is chosen else "device.mapping": table.get("mapping", table)}

    def _overrides(self, machines: Sequence[str]) -> dict[str, Any]:
        from trainyard.machines import machine, with_overrides

        if self.parallel not in (None, *PARALLEL):
            raise UnknownName("value of --parallel", str(self.parallel), PARALLEL)
        overrides = overrides_of(self.settings)
        overrides.update({name: value for name in ("dpus", "algorithm") if (value := getattr(self, name)) is not None})
        for name in machines:
            chosen = machine(name)
            options.require_fields(name, chosen, self.dpus, self.algorithm, self.parallel)
            constraints = self._constraints(name)
            try:
                with_overrides(chosen, {**overrides, **constraints})
            except TrainyardError as error:
                raise BadInput(f"{name}: {error}") from None
        return overrides


def stored_tilings() -> DiskCache | None:
    """The tilings that commands have found, in the cache folder; None where `$TRAINYARD_TILINGS` is `off`."""
    from trainyard.caches import DiskCache
    from trainyard.files import cache_folder

    if os.environ.get("TRAINYARD_TILINGS") == "off":
        return None
    return DiskCache(cache_folder() / "tilings", MOST_TILINGS, ("mapping", "kernels/mapping", "ir", "devices/accelerator"))


def with_range(result: Result, on_progress: ProgressCallback) -> Result:
    """The result with the range of its time: the step is run again with each alternative of each open assumption."""
    return result.ranged(with_message(on_progress, f"alternatives of {result.machine}"))


def overrides_of(settings: Sequence[str] | None) -> dict[str, Any]:
    """The fields that `--set path=value` changes."""
    overrides: dict[str, Any] = {}
    for setting in settings or ():
        path, equals, value = setting.partition("=")
        path = path.strip()
        if not equals or not all(map(str.strip, path.split("."))) or not value.strip():
            raise BadInput(f"--set {setting}: write path=value, as in --set array.rows=64")
        if path in OWN_OPTIONS:
            raise BadInput(f"--set {setting}: write --{path} {value}")
        if path in overrides:
            raise BadInput(f"--set {setting}: '{path}' is given twice")
        overrides[path] = value
    return overrides


def step_of(workload: str, batch: int | None, world: int | None = None) -> Step:
    from trainyard.workloads.named import load

    return load(workload, batch, world)


def masks_of(text: str | None, at: int | None, step: Step) -> Any:
    from trainyard.masks.named import load

    return load(text, step, at)


def one_machine(on: str) -> str:
    from trainyard.machines import split

    if not on:
        raise BadInput("on which machine? add --on, as in --on npu (see trainyard list machines)")
    if len(split(on)) > 1:
        raise BadInput(f"one machine at a time, not {on}: trainyard compare takes several")
    return on


def require_samples(samples: int | None, epochs: int | None) -> None:
    if epochs is not None and samples is None:
        raise BadInput(f"--epochs {epochs}: of how many samples? add --samples, as in --samples 1281167 for ImageNet")


def require_axis(by: str) -> None:
    from trainyard.results.result import AXES

    if by not in AXES:
        raise UnknownName("value of --by", by, AXES)
