"""`ty.run` and `ty.compare`: one training step on one machine, or on several.

A run resolves the names of workload, machine and masks, lets the system plan the step, runs the plan on the engine's clock, and
books the time to ops. (The file is not called run.py: `trainyard.run` is the function.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput, UnknownKeyword, UnknownName
from trainyard.ir import Device, Masks, Step, System, assumptions_of
from trainyard.ir.protocols import (
    ChecksStep,
    ExplainsMasks,
    HasDevice,
    HasDeviceStep,
    HasNotes,
    HasPeakOfStep,
    HasPeaks,
    HasStepNotes,
    ListsLoopNests,
    ListsMasks,
)
from trainyard.reading import within_counters
from trainyard.results.booking import book_timeline, entries_of
from trainyard.results.memory import held, shortages
from trainyard.results.result import Peaks, Result
from trainyard.units import show

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from trainyard.ir.plan import Plan
    from trainyard.report.summaries.differences import Difference
    from trainyard.report.summaries.model import ModelSummary
    from trainyard.results.loop_nests import LoopNest
    from trainyard.systems.single import ProgramSchedule

Machine = str | Device | System
Workload = Step | str | os.PathLike[str]
StoredResult = Result | Mapping[str, Any] | str | os.PathLike[str]
UNREMARKABLE_BYTES = 16 * 2**30
"""Device memory that needs no note where a machine states no capacity: what a training board of 2017 had."""
DEVICE_MEMORIES = ("device memory", "memory at a DPU's place")  # pools of `systems`; those of hosts and memory-nodes are not named
KEYWORDS = ("workload", "on", "masks", "batch", "parallel", "seed")
"""Of `run`; any other keyword is a field of the machine."""


@within_counters
def run(
    workload: Workload,
    on: Machine,
    *,
    masks: Masks | str | None = None,
    batch: int | None = None,
    parallel: str | None = None,
    seed: int | None = None,
    **overrides: Any,
) -> Result:
    """What one training step costs on a machine.

    - `workload`: a Step, or what the command line takes: a zoo model, a step file (.json), an ONNX model, a SCALE-Sim topology
      (.csv), `my.py:function`.
    - `on`: a machine (`ty.Accelerator(...)`, a system) or its name, with changes in brackets: `npu(dram=75 GB/s)`.
    - `masks`: where the zeros are: recorded or generated masks, the name of a recording, or zeros to generate as on the command
      line (`sparsity(A=0.6,G=0.5)`). All tensors are dense without it.
    - `batch`: samples of the step; the workload's own by default. Of each worker under PIM algorithms, of all devices otherwise.
    - `parallel`: how a system of several devices divides the step: `data`, `model`, `mixed`, `pipeline` or `expert`.
    - `seed`: of masks written as `sparsity(...)`, unless the text states its own.
    - `overrides`: any other keyword is a field of the machine for this run: `fusion="none"`, `order="cost"`, `dram="75 GB/s"`,
      `tiling=(128, 128, 128)`, and by path `**{"array.rows": 64}`. `trainyard show MACHINE` lists the fields.

    >>> run("alexnet", on="npu", batch=4, dram="75 GB/s").samples
    4
    """
    from trainyard import machines
    from trainyard.systems import Single

    step = step_of(workload, batch)
    machine = machines.machine(on)
    if parallel is not None:
        if not isinstance(machine, System):
            raise BadInput(f"{_name(on)} is one device: parallel={parallel!r} needs a system of several")
        if step.world_size > 1:
            raise BadInput(
                f"step {step.name!r} was captured with the exchanges of its own parallelism: leave parallel={parallel!r} out, or "
                "capture the model without them"
            )
        overrides["parallel"] = parallel
    if overrides:
        machine = _overridden(machine, overrides)
    masks = _masks(masks, step, seed)
    system = machine if isinstance(machine, System) else Single(device=machine)
    request = RunRequest(step, on, machine, masks)
    schedule = system.schedule(step, masks) if isinstance(system, Single) else None
    if schedule is None:
        from trainyard import engine

        plan = system.plan(step, masks)
        return _result(request, plan, engine.run(plan))
    if not schedule.end_ps:
        raise _no_time(request)
    return Result.deferred(
        DeferredRun(request, schedule),
        schedule.end_ps,
        workload=step.name,
        batch=step.batch,
        samples=step.batch,
        clock_hz=schedule.system.device.clock_hz,
        cycles=schedule.cycles,
        array_cycles=schedule.array_cycles,
        seed=getattr(masks, "seed", None),
        rerun=Rerun(step, machine, masks),
        on=machine,
    )


def _overridden(machine: Device | System, overrides: Mapping[str, Any]) -> Device | System:
    """The machine with its fields changed; a keyword that is no field may be meant as one of `run`'s own."""
    from trainyard import machines

    try:
        changed: Device | System = machines.with_overrides(machine, overrides)
    except UnknownName as error:
        if error.given not in overrides:
            raise
        inside = error.nearest if error.nearest and "." in error.nearest else None
        raise UnknownKeyword("keyword", error.given, {*KEYWORDS, *error.known}, nearest=inside) from None
    return changed


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run: the machine as it was asked for (`on`) and as it is, with all overrides."""

    step: Step
    on: Machine
    machine: Device | System
    masks: Masks | None

    @property
    def name(self) -> str:
        return _name(self.on)

    @property
    def about(self) -> str:
        """One line about the preset that the machine is or starts from: two papers may have a machine of one name."""
        from trainyard import machines

        return machines.about(self.name)

    @property
    def machine_alone(self) -> Device | System:
        """The device itself where it is the only one of a system."""
        from trainyard.systems import Single

        return self.machine.device if isinstance(self.machine, Single) else self.machine


def _name(on: Machine) -> str:
    from trainyard import machines

    return on if isinstance(on, str) else machines.title(on)


def _no_time(request: RunRequest) -> BadInput:
    step = request.step
    return BadInput(
        f"step {step.name!r} takes no time on {request.name}: none of its {len(step)} ops is simulated (scope='all' takes all)"
    )


def _result(request: RunRequest, plan: Plan, timeline: Timeline) -> Result:
    """All fields of a result, from a plan and its timeline."""
    if not timeline.end_ps:
        raise _no_time(request)
    step, masks, booking = request.step, request.masks, plan.booking
    rows, columns = book_timeline(timeline, booking)
    return Result(
        workload=step.name,
        machine=request.name,
        about=request.about,
        batch=step.batch,
        samples=booking.samples or step.batch,
        steps=booking.steps,
        rows=rows,
        columns=columns,
        entries=entries_of(booking),
        peaks=_peaks(request.machine_alone, step, masks),
        clock_hz=getattr(request.machine_alone, "clock_hz", None),
        cycles=booking.cycles,
        array_cycles=booking.array_cycles,
        **_memory(timeline),
        assumptions=assumptions_of(request.machine, step),
        notes=_all_notes(request, plan, timeline),
        config=_config(request.machine),
        seed=getattr(masks, "seed", None),
        timeline=timeline,
        rerun=Rerun(step, request.machine, masks),
        on=request.machine,
    )


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """The fields of a result that are computed when they are read: of one device that runs a step in program order."""

    request: RunRequest
    schedule: ProgramSchedule

    def energy_by_component(self) -> dict[str, float] | None:
        return self.schedule.energy_by_component()

    def fields(self, name: str) -> Mapping[str, Any]:
        request = self.request
        match name:
            case "machine":
                return {name: request.name}
            case "about":
                return {name: request.about}
            case "peaks":
                return {name: _peaks(request.machine_alone, request.step, request.masks)}
            case "assumptions":
                return {name: assumptions_of(request.machine, request.step)}
            case "config":
                return {name: _config(request.machine)}
            case _:
                return self._booked()

    def _booked(self) -> Mapping[str, Any]:
        """Rows, their numbers and all that the timeline says."""
        from trainyard import engine

        request, schedule = self.request, self.schedule
        plan = schedule.plan() if schedule.costs.exact else schedule.system.work_by_work(request.step, request.masks)
        timeline = engine.run(plan)
        rows, columns = book_timeline(timeline, plan.booking)
        return {
            "rows": rows,
            "columns": columns,
            "entries": entries_of(plan.booking),
            "timeline": timeline,
            **_memory(timeline),
            "notes": _all_notes(request, plan, timeline),
        }


def _config(machine: Device | System) -> dict[str, Any]:
    from trainyard import machines

    return machines.describe(machine)


def _memory(timeline: Timeline) -> dict[str, Any]:
    """The most that each pool held, and what those can hold that state it."""
    return {
        "peak_memory_bytes": {pool.name: timeline.peak(number) for number, pool in enumerate(timeline.pools)},
        "memory_capacity_bytes": {pool.name: pool.capacity_bytes for pool in timeline.pools if pool.capacity_bytes is not None},
    }


def _all_notes(request: RunRequest, plan: Plan, timeline: Timeline) -> tuple[str, ...]:
    step, masks = request.step, request.masks
    return (
        *_notes(timeline, request.machine_alone, masks),
        *_step_notes(request),
        *_without_masks(masks, step),
        *_sampled(plan),
        *step.notes,
        *plan.booking.notes,
    )


def _step_notes(request: RunRequest) -> tuple[str, ...]:
    owner = request.machine.device if isinstance(request.machine, HasDevice) else request.machine
    if not isinstance(owner, HasStepNotes):
        return ()
    device, step, masks = _on_one_device(request.machine, request.step, request.masks)
    return tuple(device.step_notes(step, masks)) if isinstance(device, HasStepNotes) else ()


def _on_one_device(machine: Device | System, step: Step, masks: Masks | None) -> tuple[object, Step, Masks | None]:
    """A device of a machine, with its part of the step and of the masks."""
    if isinstance(machine, HasDeviceStep):
        step, masks = machine.device_step(step, masks)
    return machine.device if isinstance(machine, HasDevice) else machine, step, masks


@dataclass(frozen=True, slots=True)
class Rerun:
    """Runs the step of a result again with some fields of its machine changed. A class, so that results pickle."""

    step: Step
    machine: Device | System
    masks: Masks | None

    def loop_nests(self) -> tuple[LoopNest, ...]:
        """How one device of the machine maps its part of the step; nothing where it has no tile search."""
        device, step, masks = _on_one_device(self.machine, self.step, self.masks)
        return tuple(device.loop_nests(step, masks)) if isinstance(device, ListsLoopNests) else ()

    def __call__(self, changes: Mapping[str, Any]) -> Result:
        from trainyard import machines

        return run(self.step, machines.with_overrides(self.machine, changes), masks=self.masks)


def step_of(workload: Workload, batch: int | None) -> Step:
    """The Step that a workload is or names, for a batch."""
    step: object = workload
    if isinstance(workload, str | os.PathLike):
        from trainyard.workloads.named import load

        step, batch = load(os.fspath(workload), batch), None
    if not isinstance(step, Step):
        raise BadInput(f"expected a Step or the name of a workload, got {type(step).__name__}: ty.capture(model, ...) makes a Step")
    if not step.ops:
        raise BadInput(f"step {step.name!r} has no ops")
    return step if batch is None else step.rebatch(batch)


def _masks(masks: Masks | str | None, step: Step, seed: int | None) -> Masks | None:
    """The masks themselves, checked against the step they are for."""
    if isinstance(masks, str):
        from trainyard.masks.named import load

        masks = load(masks, step, seed=seed)
    elif seed is not None:
        raise BadInput(f"seed={seed}: nothing is drawn at random here; it is for masks written as sparsity(A=0.6,...)")
    if masks is not None and not callable(getattr(masks, "bits", None)):
        raise BadInput(f"masks must be recorded or generated ones, or a file's name, got {type(masks).__name__}")
    if masks is not None and isinstance(masks, ChecksStep):
        masks.check(step)
    return masks


def _peaks(machine: Device | System, step: Step, masks: Masks | None) -> Peaks:
    """The machine's peaks, MACs at the precision of each op of the step where that decides the rate."""
    if not isinstance(machine, HasPeaks):
        raise BadInput(f"{type(machine).__name__} does not say its peaks: give it a `peaks` property that returns results.Peaks")
    peaks: Peaks = machine.peaks
    device = machine.device if isinstance(machine, HasDevice) else machine
    if isinstance(device, HasPeakOfStep) and isinstance(device, HasPeaks):
        rate = device.peak_macs_per_s(step, masks)
        return replace(peaks, macs_per_s=peaks.macs_per_s * rate / device.peaks.macs_per_s) if rate else peaks
    return peaks


def _notes(timeline: Timeline, machine: Device | System, masks: Masks | None) -> Iterator[str]:
    yield from machine.notes if isinstance(machine, HasNotes) else ()
    owner = machine.device if isinstance(machine, HasDevice) and not isinstance(machine, ExplainsMasks) else machine
    if masks is not None and isinstance(owner, ExplainsMasks) and owner.masks_note:
        yield owner.masks_note
    yield from _memory_notes(timeline)


def _memory_notes(timeline: Timeline) -> Iterator[str]:
    """Memories that the step does not fit, and large needs of devices that state no capacity."""
    pools = _memory(timeline)
    peaks, capacities = pools["peak_memory_bytes"], pools["memory_capacity_bytes"]
    yield from shortages(peaks, capacities)
    for need in held(peaks, capacities):
        if need.capacity_bytes is None and need.name in DEVICE_MEMORIES and need.peak_bytes > UNREMARKABLE_BYTES:
            size = show(need.peak_bytes, "B")
            yield f"{need.title}: the step needs {size}; the machine states no capacity (dram_capacity), it counts as enough"


def _sampled(plan: Plan) -> Iterator[str]:
    """How exact the cycles of an array are that sampled its outputs."""
    booking = plan.booking
    if booking.uncertainty_cycles and booking.cycles:
        cycles = booking.array_cycles or booking.cycles
        yield f"outputs were sampled: the array's cycles are known within {booking.uncertainty_cycles / cycles:.2%} (95 %)"


def _without_masks(masks: Masks | None, step: Step) -> Iterator[str]:
    """Layers whose activations or gradients a recording does not cover; weights are dense unless something prunes them."""
    if masks is None or not isinstance(masks, ListsMasks):
        return
    recorded = masks.specs
    recurrent = {layer for layer, _, letter in recorded if len(letter) > 1}  # their masks are named `A.input` and the like
    missing = dict.fromkeys(
        op.layer
        for op in step.ops
        for letter in op.letters
        if letter in ("A", "G") and (op.layer, op.call, letter) not in recorded and op.layer not in recurrent
    )
    if missing:
        named = ", ".join([*list(missing)[:3], *(["..."] if len(missing) > 3 else [])])
        yield f"{len(missing)} of {len(step.layers)} layers have no recorded mask and count as dense: {named}"


class Comparison(tuple[Result, ...]):
    """Results side by side; prints as a table, in a notebook too."""

    __slots__ = ()

    def table(self) -> None:
        from trainyard.report import tables

        tables.compare([result.ranged() for result in self])

    def to_html(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report import page

        page.write([result.ranged() for result in self], path)

    def to_frame(self) -> pd.DataFrame:
        """One line for each result: every metric that a sweep stores, under the same names."""
        from trainyard.report import frames

        return frames.comparison(self)

    def to_json(self) -> str:
        """A list of the objects that `Result.to_json` writes, as `trainyard compare --json -` prints it."""
        return json.dumps([result.as_dict() for result in self], indent=2, default=str)

    def plot(self, which: str = "time") -> go.Figure:
        """A plotly figure of `which`: time, class, energy or memory, a bar for each machine."""
        from trainyard.report import plots

        return plots.plot_of_machines(self, which)

    def _repr_html_(self) -> str:
        from trainyard.report import page

        return page.notebook_comparison(self)


def compare(
    workload: Workload,
    on: Sequence[Machine] | str,
    *,
    masks: Masks | str | None = None,
    batch: int | None = None,
    parallel: str | None = None,
    seed: int | None = None,
    **overrides: Any,
) -> Comparison:
    """The same step on several machines.

    `on` is a list of machines, or their names with commas between them: `"tpu,npu(dram=75 GB/s)"`. The first is what the speedups
    are measured against. All other arguments are those of `ty.run`, and hold for every machine.
    """
    from trainyard import machines

    selected = machines.split(on) if isinstance(on, str) else list(on)
    if not selected:
        raise BadInput("compare on which machines? (for example: on=['tpu', 'npu'])")
    step = step_of(workload, batch)
    return Comparison(run(step, machine, masks=masks, parallel=parallel, seed=seed, **overrides) for machine in selected)


def summary(workload: Workload, batch: int | None = None) -> ModelSummary:
    """The layers of a workload before any machine: shapes, parameters, multiply-accumulates and bytes by phase.

    It prints with `.table()`, and is a frame with `.to_frame()`; `workload` and `batch` are those of `ty.run`.
    """
    from trainyard.report.summaries.model import summary_of

    return summary_of(step_of(workload, batch))


def diff(before: StoredResult, after: StoredResult) -> Difference:
    """What changed between two results: numbers, layers with the largest change first, fields of the machine.

    Each is a Result, its JSON object (`Result.as_dict()`), or the name of a file that `trainyard run --json FILE` has written.
    """
    from trainyard.report.summaries.differences import difference_of, read_result

    return difference_of(*(read_result(result) for result in (before, after)))
