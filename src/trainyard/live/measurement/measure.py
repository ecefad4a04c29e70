"""The real training step on a real GPU, as the same Result that a simulated machine gives: per layer and phase.

Whole steps are timed without instruments; a few more, instrumented, assign the device time to layers and phases. The rest of the
step is idle: the device waited for the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import nn

from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput, UnknownName
from trainyard.ir.step import Phase, Step
from trainyard.live.measurement.attribution import Attribution, DispatchedOp
from trainyard.live.measurement.nvml import Board, board
from trainyard.live.measurement.replay import measured_rows, replay
from trainyard.live.measurement.stopwatch import (
    EventStopwatch,
    HostStopwatch,
    OpTime,
    PhaseStopwatch,
    ProfilerStopwatch,
    Stopwatch,
    median_times,
)
from trainyard.live.measurement.training_step import (
    Inputs,
    Loss,
    Optimizer,
    Precision,
    Targets,
    TrainingStep,
    float32_products,
    narrow_type,
    own_step,
    recipe_step,
    torch_device,
)
from trainyard.results.result import PICOSECOND, Columns, Peaks, Result

if TYPE_CHECKING:
    from trainyard.workloads.zoo.recipe import Recipe


INSTRUMENTED_STEPS = 3
HOST_STEPS = 10
ENERGY_WINDOW_S = 0.3  # the energy counter moves every 20 to 100 ms: a shorter window is too coarse


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """One aten op of the step and its device time."""

    op: DispatchedOp
    time: OpTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A Result and its raw data: the time of each step and of each op."""

    result: Result
    step_s: tuple[float, ...]
    host_s: dict[str, float]  # what the host needs to issue each phase, the device being idle when it begins
    ops: tuple[MeasuredOp, ...]
    unattributed_s: float
    method: str


@suggests_keywords
def measure(
    model: nn.Module | Recipe | Step,
    inputs: Inputs = None,
    targets: Targets = None,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    batch: int | None = None,
    device: str = "cuda",
    repeats: int = 20,
    warmup: int = 5,
    precision: Precision | None = None,
    graph: bool = False,
    foreach: bool | None = None,
    name: str = "",
) -> Result:
    """One training step of `model` on `device`, measured. A module and its optimizer are copied and left as they were.

    A zoo recipe brings its own inputs, targets, loss and optimizer: `measure(resnet50(), batch=64)`. `precision` is None for
    torch's defaults (fp32 products, TF32 convolutions), "tf32" or "fp32" for both alike, "bf16" or "fp16" for a whole model of
    that type, "bf16-mixed" for autocast. `graph` replays the step as a CUDA graph. `foreach` overrides the optimizer's own choice.
    A Step, which has no code, is replayed op by op in its own types (`live.measurement.replay`).
    """
    if isinstance(model, Step):
        on_device = torch_device(device)
        return replay(
            model, device=on_device, peaks=_peaks(on_device, None), machine=_machine(on_device)[0], repeats=repeats, warmup=warmup
        )
    return observe(
        model, inputs, targets, loss=loss, optimizer=optimizer, batch=batch, device=device, repeats=repeats, warmup=warmup,
        precision=precision, graph=graph, foreach=foreach, name=name,
    ).result  # fmt: skip


def observe(
    model: nn.Module | Recipe,
    inputs: Inputs = None,
    targets: Targets = None,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    batch: int | None = None,
    device: str = "cuda",
    repeats: int = 20,
    warmup: int = 5,
    precision: Precision | None = None,
    graph: bool = False,
    foreach: bool | None = None,
    name: str = "",
) -> Measurement:
    """Like `measure`, with the raw times of steps and ops in addition to the Result."""
    on_device = torch_device(device)
    if precision is not None and precision not in get_args(Precision):
        raise UnknownName("precision", precision, get_args(Precision))
    if repeats < 1 or warmup < 0:
        raise BadInput(f"repeats must be at least 1 and warmup at least 0, got {repeats} and {warmup}")
    if graph and on_device.type != "cuda":
        raise BadInput(f"graph=True needs a CUDA device, got device={device!r}")
    if isinstance(model, nn.Module):
        step = own_step(model, inputs, targets, loss, optimizer, on_device)
    else:
        step = recipe_step(model, batch, on_device)
    step.cast(precision)
    step.set_optimizer(foreach=foreach, capturable=graph)
    with float32_products(precision):
        timing = _time_whole_steps(step, repeats, warmup, graph)
        host_s = _time_host(step, min(repeats, HOST_STEPS))
        ops, times, method = _time_ops(step)
        peaks = _peaks(on_device, precision)
    measurement = _measurement(step, timing, ops, times, method, peaks, name or type(step.model).__name__, precision, graph)
    return replace(measurement, host_s=host_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    step_s: tuple[float, ...]
    peak_bytes: int | None
    energy_j: float | None
    clock_hz: float | None


def _time_whole_steps(step: TrainingStep, repeats: int, warmup: int, graph: bool) -> _Timing:
    if step.device.type == "cpu":
        for _ in range(warmup):
            step()
        marks = [time.perf_counter()]
        for _ in range(repeats):
            step()
            marks.append(time.perf_counter())
        spans = tuple(after - before for before, after in pairwise(marks))
        return _Timing(step_s=spans, peak_bytes=None, energy_j=None, clock_hz=None)
    run = _graphed(step, warmup) if graph else step
    for _ in range(max(warmup, 1)):
        run()
    torch.cuda.synchronize(step.device)
    torch.cuda.reset_peak_memory_stats(step.device)
    meters = _board(step.device)
    energy_before, started = meters.energy_j() if meters else None, time.perf_counter()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:  # no waiting in between: the host runs ahead, as in a training loop
        run()
        event.record()
    clock = meters.clock_hz() if meters else None
    torch.cuda.synchronize(step.device)
    window = time.perf_counter() - started
    energy_after = meters.energy_j() if meters else None
    energy = None
    if energy_before is not None and energy_after is not None and window >= ENERGY_WINDOW_S:
        energy = (energy_after - energy_before) / repeats
    spans = tuple(before.elapsed_time(after) * 1e-3 for before, after in pairwise(events))
    return _Timing(step_s=spans, peak_bytes=torch.cuda.max_memory_allocated(step.device), energy_j=energy, clock_hz=clock)


def _time_host(step: TrainingStep, repeats: int) -> dict[str, float]:
    watch = PhaseStopwatch(step.device)
    for _ in range(repeats):
        step(watch)
    return {str(phase): statistics.median(spans) for phase, spans in watch.spans.items()}


def _graphed(step: TrainingStep, warmup: int) -> Callable[[], None]:
    side = torch.cuda.Stream(step.device)
    side.wait_stream(torch.cuda.current_stream(step.device))
    with torch.cuda.stream(side):
        for _ in range(max(warmup, 3)):
            step()
    torch.cuda.current_stream(step.device).wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    step.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        step()
    return captured.replay


def _board(device: torch.device) -> Board | None:
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):  # an older torch does not tell
        return None
    domain, bus, slot = (getattr(properties, name) for name in names)
    return board(f"{domain:04x}:{bus:02x}:{slot:02x}.0")


def _time_ops(step: TrainingStep) -> tuple[list[DispatchedOp], dict[int, OpTime], str]:
    """Instrumented steps: the profiler first, events where it sees no kernel (a driver without tracing)."""
    if step.device.type == "cpu":
        return _instrumented(step, HostStopwatch())
    profiler = ProfilerStopwatch()
    try:
        with profiler.profile():
            ops = _instrumented_steps(step, profiler)
        times = median_times(profiler.times())
        if any(number >= 0 and time.seconds > 0 for number, time in times.items()):
            return ops, times, profiler.method
        reason = "the profiler saw no kernel"
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        reason = f"the profiler failed: {type(error).__name__}: {error}"
    ops, times, method = _instrumented(step, EventStopwatch())
    return ops, times, f"{method} ({reason})"


def _instrumented(step: TrainingStep, stopwatch: Stopwatch) -> tuple[list[DispatchedOp], dict[int, OpTime], str]:
    ops = _instrumented_steps(step, stopwatch)
    return ops, median_times(stopwatch.times()), stopwatch.method


def _instrumented_steps(step: TrainingStep, stopwatch: Stopwatch) -> list[DispatchedOp]:
    ops: list[DispatchedOp] = []
    for _ in range(INSTRUMENTED_STEPS):
        attribution = Attribution(step.model, step.optimizer, stopwatch.timer)
        with stopwatch.step(), attribution.modules(step.model), attribution:
            step(attribution)
        if ops and [op.name for op in ops] != [op.name for op in attribution.ops]:
            raise BadInput("the training step runs other ops every time: its time cannot be told apart by layer")
        ops = attribution.ops
    return ops


def _measurement(
    step: TrainingStep,
    timing: _Timing,
    ops: Sequence[DispatchedOp],
    times: dict[int, OpTime],
    method: str,
    peaks: Peaks,
    name: str,
    precision: Precision | None,
    graph: bool,
) -> Measurement:
    whole_s = statistics.median(timing.step_s)
    resource = "cpu" if step.device.type == "cpu" else "gpu"
    keys: dict[tuple[str, str, str], list[float]] = {}
    for number, op in enumerate(ops):
        seconds = times[number].seconds if number in times else 0.0
        for layer, share in op.layers:
            cell = keys.setdefault((op.name, layer, str(op.phase)), [0.0, 0.0])
            cell[0] += seconds * share
            cell[1] += op.macs * share
    unattributed_s = times[-1].seconds if -1 in times else 0.0
    if unattributed_s:
        keys[("outside every op", "", str(Phase.COPY))] = [unattributed_s, 0.0]
    busy = np.array([round(seconds / PICOSECOND) for seconds, _ in keys.values()] + [0], np.int64)
    macs = np.array([round(count) for _, count in keys.values()] + [0], np.int64)
    exposed, note = _exposed(busy, round(whole_s / PICOSECOND))
    rows = measured_rows(list(keys), resource)
    energy = {}
    if timing.energy_j is not None:
        energy["board"] = timing.energy_j * exposed / max(1, int(exposed.sum()))
    machine, facts = _machine(step.device)
    notes = (
        f"measured, the batch being on the device: median of {len(timing.step_s)} steps, "
        f"{min(timing.step_s):.4g} to {max(timing.step_s):.4g} s",
        f"device time by layer: {method}, median of {INSTRUMENTED_STEPS} steps",
        *facts,
        *([f"SM clock at the end of the timed steps: {timing.clock_hz / 1e6:.0f} MHz"] if timing.clock_hz else []),
        *([note] if note else []),
    )
    result = Result(
        workload=name,
        machine=machine,
        batch=step.batch,
        samples=step.batch,
        rows=rows,
        columns=Columns(exposed, busy, macs, energy, {}),
        peaks=peaks,
        clock_hz=timing.clock_hz,
        peak_memory_bytes={} if timing.peak_bytes is None else {"dram": timing.peak_bytes},
        notes=notes,
        config={"measured": True, "machine": machine, "precision": precision, "graph": graph, "torch": torch.__version__},
        seed=0,
    )
    measured = tuple(MeasuredOp(op, times.get(number, OpTime(0.0, ()))) for number, op in enumerate(ops))
    return Measurement(result=result, step_s=timing.step_s, host_s={}, ops=measured, unattributed_s=unattributed_s, method=method)


def _exposed(busy: np.ndarray[Any, np.dtype[np.int64]], whole_ps: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], str]:
    """Exposed times that sum to the whole step: device times and an idle rest, or, if there is no rest, device times scaled."""
    total = int(busy.sum())
    exposed = busy.copy()
    if total <= whole_ps:
        exposed[-1] = whole_ps - total
        return exposed, ""
    edges = np.rint(np.cumsum(busy) * (whole_ps / total)).astype(np.int64)
    edges[-1] = whole_ps
    return np.diff(edges, prepend=0), f"instrumented device times are {total / whole_ps:.3f} of the step: scaled to it"


def _machine(device: torch.device) -> tuple[str, tuple[str, ...]]:
    if device.type == "cpu":
        return f"CPU ({torch.get_num_threads()} threads)", (f"torch {torch.__version__}",)
    properties = torch.cuda.get_device_properties(device)
    facts = [f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"]
    facts.append(f"{properties.multi_processor_count} SMs, {properties.total_memory / 2**30:.1f} GiB")
    return properties.name, tuple(facts)


def _peaks(device: torch.device, precision: Precision | None) -> Peaks:
    """What this machine really reaches: a large product in the step's type, and a large copy."""
    gpu = device.type == "cuda"
    size, count = (8192, 2**28) if gpu else (512, 2**23)
    operand = torch.randn(size, size, device=device).to(narrow_type(precision) or torch.float32)
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    product_s = _best_time(lambda: torch.mm(operand, operand), device)
    copy_s = _best_time(lambda: target.copy_(source), device)
    return Peaks(macs_per_s=size**3 / product_s, dram_bytes_per_s=2 * 4 * count / copy_s)


def _best_time(work: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    spans = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            spans.append(start.elapsed_time(end) * 1e-3)
        else:
            began = time.perf_counter()
            work()
            spans.append(time.perf_counter() - began)
    return float(min(spans))
