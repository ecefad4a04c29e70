"""Run a step on a machine, and compare machines.

Name the machine, let its system make a plan, run the plan on the clock, book the time to ops, keep the way back.
(The file is not called run.py: `trainyard.run` is the function.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Device, Masks, Step, System, assumptions_of
from trainyard.results.result import Peaks, Result, booked
from trainyard.units import show

if TYPE_CHECKING:
    import os

    from trainyard.ir.plan import Plan

Machine = str | Device | System
METRICS = ("time_s", "energy_j", "samples_per_s", "cycles", "array_cycles")


def run(
    workload: Step | str,
    on: Machine,
    *,
    masks: Masks | str | None = None,
    batch: int | None = None,
    parallel: str | None = None,
    seed: int | None = None,
    **overrides: Any,
) -> Result:
    """What one training step costs on a machine.

    `workload` is a Step or the name of a zoo model; `on` a machine or its name (`npu(dram=75 GB/s)`); further keywords override
    fields of the machine for this run (`fusion="none"`, `tiling=(128, 128, 128)`). `masks` also takes the name of a file, or
    made-up zeros as on the command line (`sparsity(A=0.6,G=0.5)`).
    """
    from trainyard import engine, machines
    from trainyard.systems import Single

    step = _step(workload, batch)
    name = on if isinstance(on, str) else machines.title(on)
    machine = machines.machine(on)
    if parallel is not None:
        if not isinstance(machine, System):
            raise BadInput(f"{name} is one device: parallel={parallel!r} needs a system of several")
        if step.world_size > 1:
            raise BadInput(
                f"step {step.name!r} was captured with the exchanges of its own parallelism: leave parallel={parallel!r} out, or "
                "capture the model without them"
            )
        overrides["parallel"] = parallel
    machine = machines.with_overrides(machine, overrides)
    masks = _named(masks, step)
    if masks is not None:
        _check(masks, step)
    system = _system(machine)
    alone = machine.device if isinstance(machine, Single) else machine
    plan = system.plan(step, masks)
    timeline = engine.run(plan)
    if not timeline.end_ps:
        raise BadInput(
            f"step {step.name!r} takes no time on {name}: none of its {len(step)} ops is simulated (scope='all' takes all)"
        )
    rows, columns = booked(timeline, plan.booking)
    return Result(
        workload=step.name,
        machine=name,
        batch=step.batch,
        samples=plan.booking.samples or step.batch,
        steps=plan.booking.steps,
        rows=rows,
        columns=columns,
        entries=plan.booking.rows_of_entries,
        peaks=_peaks(alone),
        clock_hz=getattr(alone, "clock_hz", None),
        cycles=plan.booking.cycles,
        array_cycles=plan.booking.array_cycles,
        peak_memory_bytes={pool.name: timeline.peak(number) for number, pool in enumerate(timeline.pools)},
        assumptions=assumptions_of(machine, step),
        notes=(*_notes(timeline, alone, masks), *_without_masks(masks, step), *_sampled(plan), *plan.booking.notes),
        config=machines.describe(machine),
        seed=seed,
        timeline=timeline,
        rerun=Rerun(step, machine, masks, seed),
        on=machine,
    )


@dataclass(frozen=True, slots=True)
class Rerun:
    """The way back from a result: the same step on the machine with some fields changed. A class, so that results pickle."""

    step: Step
    machine: Device | System
    masks: Masks | None
    seed: int | None

    def __call__(self, changes: Mapping[str, Any]) -> Result:
        from trainyard import machines

        return run(self.step, machines.with_overrides(self.machine, changes), masks=self.masks, seed=self.seed)


def _step(workload: Step | str, batch: int | None) -> Step:
    if isinstance(workload, str):
        from trainyard.workloads import zoo

        return zoo.load(workload, batch=batch)
    if not isinstance(workload, Step):
        raise BadInput(
            f"expected a Step or the name of a zoo model, got {type(workload).__name__}: ty.capture(model, ...) makes a Step"
        )
    if not workload.ops:
        raise BadInput(f"step {workload.name!r} has no ops")
    return workload if batch is None else workload.rebatch(batch)


def _named(masks: Masks | str | None, step: Step) -> Masks | None:
    if isinstance(masks, str):
        from trainyard.masks.named import load

        return load(masks, step)
    if masks is not None and not callable(getattr(masks, "bits", None)):
        raise BadInput(f"masks must be recorded or generated ones, or a file's name, got {type(masks).__name__}")
    return masks


def _check(masks: Masks, step: Step) -> None:
    fits: Callable[[Step], None] | None = getattr(masks, "check", None)
    if fits is not None:
        fits(step)


def _system(machine: Device | System) -> System:
    if isinstance(machine, System):
        return machine
    from trainyard.systems import Single

    return Single(device=machine)


def _peaks(machine: Device | System) -> Peaks:
    peaks: Peaks | None = getattr(machine, "peaks", None)
    if peaks is None:
        raise BadInput(f"{type(machine).__name__} does not say its peaks: give it a `peaks` property that returns results.Peaks")
    return peaks


def _notes(timeline: Timeline, machine: Device | System, masks: Masks | None) -> tuple[str, ...]:
    over = (
        f"{o.pool}: the step needs {show(o.peak_bytes, 'B')} of {show(o.capacity_bytes, 'B')} and does not fit this machine"
        for o in timeline.overflows
    )
    unused = getattr(getattr(machine, "device", machine), "masks_note", "") if masks is not None else ""
    return (*getattr(machine, "notes", ()), *([unused] if unused else []), *over)


def _sampled(plan: Plan) -> Iterator[str]:
    """An array that looked at some of its outputs says how sure its cycles are."""
    booking = plan.booking
    if booking.uncertainty_cycles and booking.cycles:
        whole = booking.array_cycles or booking.cycles
        yield f"outputs were sampled: the array's cycles are known within {booking.uncertainty_cycles / whole:.2%} (95 %)"


def _without_masks(masks: Masks | None, step: Step) -> Iterator[str]:
    """Layers that a recording does not cover; weights are dense unless something prunes them."""
    recorded = getattr(masks, "specs", None)
    if recorded is None:
        return
    whole = {layer for layer, _, letter in recorded if len(letter) > 1}  # recurrent layers, by `A.input` and the like
    missing = dict.fromkeys(
        op.layer
        for op in step.ops
        for letter in op.letters
        if letter in ("A", "G") and (op.layer, op.call, letter) not in recorded and op.layer not in whole
    )
    if missing:
        named = ", ".join([*list(missing)[:3], *(["..."] if len(missing) > 3 else [])])
        yield f"{len(missing)} of {len(step.layers)} layers have no recorded mask and count as dense: {named}"


class Comparison(tuple[Result, ...]):
    """Results side by side; prints as a table."""

    __slots__ = ()

    def table(self) -> None:
        from trainyard.report import tables

        tables.compare([result.ranged() for result in self])

    def to_html(self, path: str | os.PathLike[str]) -> None:
        from trainyard.report import page

        page.write([result.ranged() for result in self], path)


def compare(workload: Step | str, on: Sequence[Machine] | str, **options: Any) -> Comparison:
    """The same step on several machines."""
    from trainyard import machines

    chosen = machines.split(on) if isinstance(on, str) else list(on)
    if not chosen:
        raise BadInput("compare on which machines? (for example: on=['tpu', 'npu'])")
    step = _step(workload, options.pop("batch", None))
    return Comparison(run(step, machine, **options) for machine in chosen)


def metric_of(result: Result, metric: str) -> float:
    """A number of a result by its name, or by its name and a key: `time_s`, `traffic_bytes.dram`, `peak_memory_bytes.dram`."""
    name, _, key = metric.partition(".")
    value = getattr(result, name, None)
    if key and isinstance(value, Mapping):
        if key not in value:
            raise UnknownName(f"key of {name}", key, map(str, value), where="metric")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"unknown metric {metric!r} (known: {', '.join(METRICS)}, traffic_bytes.LEVEL, peak_memory_bytes.POOL)")
    return float(value)
