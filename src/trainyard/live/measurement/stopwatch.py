"""Three methods to time the ops of a real step: the profiler's kernel records, CUDA events, the host's clock.

Each runs an op inside `timer(number)` and returns the device time and the kernels of every op of every step.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from trainyard.ir.step import Phase

PREFIX = "trainyard:"
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_HOST_OPS = ("cpu_op", "user_annotation")


@dataclass(frozen=True, slots=True)
class OpTime:
    """Device time of one op; `kernels` are the names of its kernels (one unnamed where the method does not see them)."""

    seconds: float
    kernels: tuple[str, ...] = ("",)


class Stopwatch(Protocol):
    """Times ops by number; `step` encloses one whole training step."""

    @property
    def method(self) -> str: ...

    def step(self) -> AbstractContextManager[None]: ...

    def timer(self, number: int) -> AbstractContextManager[Any]: ...

    def times(self) -> list[dict[int, OpTime]]:
        """For each step, the ops that took device time; number -1 is work outside every op."""
        ...


class HostStopwatch:
    """For the CPU, where an op returns when it is done."""

    method = "host clock around each op"

    def __init__(self) -> None:
        self._steps: list[dict[int, OpTime]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        self._steps.append({})
        yield

    @contextmanager
    def timer(self, number: int) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self._steps[-1][number] = OpTime((time.perf_counter_ns() - start) * 1e-9)

    def times(self) -> list[dict[int, OpTime]]:
        return self._steps


class PhaseStopwatch:
    """What the host needs for each phase of a step until it has issued all of it; the device is idle when a phase begins."""

    def __init__(self, device: torch.device) -> None:
        self.spans: dict[Phase, list[float]] = {}
        self._device = device

    @contextmanager
    def phase(self, phase: Phase, *, backward: bool = False) -> Iterator[None]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        yield
        self.spans.setdefault(phase, []).append(time.perf_counter() - start)

    def index_graph(self, loss: torch.Tensor) -> None:
        """Nothing to index: phases are enough here."""


class EventStopwatch:
    """CUDA events around each op, behind a short pause of the device in which the host queues all of the op's kernels.

    The time of an empty pair of events is measured the same way and taken off.
    """

    method = "CUDA events around each op"
    PAUSE_CYCLES = 200_000  # 0.1 ms at 2 GHz: longer than the host needs to queue one op

    def __init__(self) -> None:
        self._steps: list[dict[int, tuple[torch.cuda.Event, torch.cuda.Event]]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        self._steps.append({})
        yield
        torch.cuda.synchronize()

    @contextmanager
    def timer(self, number: int) -> Iterator[None]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(self.PAUSE_CYCLES)
        start.record()
        yield
        end.record()
        self._steps[-1][number] = (start, end)

    def times(self) -> list[dict[int, OpTime]]:
        with self.step():
            for number in range(20):
                with self.timer(number):
                    pass
        seconds = [{number: start.elapsed_time(end) * 1e-3 for number, (start, end) in events.items()} for events in self._steps]
        empty = statistics.median(seconds.pop().values())
        self._steps.pop()
        return [{number: OpTime(max(0.0, span - empty)) for number, span in step.items() if span > 1.2 * empty} for step in seconds]


class ProfilerStopwatch:
    """Kernel times from the profiler, matched to ops through the annotation that each op runs in."""

    method = "profiler (kernel records)"

    def __init__(self) -> None:
        self._count = 0
        self._times: list[dict[int, OpTime]] = []

    @contextmanager
    def profile(self) -> Iterator[None]:
        """Encloses all steps; the records are read when it ends."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        with profile(activities=activities) as profiler:
            yield
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self._times = kernel_times(json.loads(path.read_text())["traceEvents"], self._count)

    @contextmanager
    def step(self) -> Iterator[None]:
        yield
        self._count += 1

    def timer(self, number: int) -> AbstractContextManager[Any]:
        return torch.autograd.profiler.record_function(f"{PREFIX}{self._count}:{number}")

    def times(self) -> list[dict[int, OpTime]]:
        return self._times


def kernel_times(events: Iterable[Mapping[str, Any]], steps: int) -> list[dict[int, OpTime]]:
    """Device work of a Chrome trace by (step, op): kernel -> the host op that launched it -> the annotation around that op.

    The profiler links kernel and host op by number, not by time; where it did not, the launch call's own time is used.
    """
    annotations: list[tuple[float, float, int, int]] = []
    started: dict[int, float] = {}
    launched: dict[int, float] = {}
    work: list[Mapping[str, Any]] = []
    for event in events:
        category, arguments = event.get("cat"), event.get("args", {})
        if category in _DEVICE_WORK:
            work.append(event)
        elif category in _LAUNCHES and "correlation" in arguments:
            launched[arguments["correlation"]] = event["ts"]
        elif category in _HOST_OPS:
            if "External id" in arguments:
                started.setdefault(arguments["External id"], event["ts"])
            if str(event.get("name", "")).startswith(PREFIX):
                step, number = map(int, event["name"][len(PREFIX) :].split(":"))
                annotations.append((event["ts"], event["ts"] + event["dur"], step, number))
    annotations.sort()
    starts = [start for start, *_ in annotations]
    kernels: list[dict[int, tuple[float, list[str]]]] = [{} for _ in range(steps)]
    for event in work:
        arguments = event["args"]
        moments = (started.get(arguments.get("External id")), launched.get(arguments.get("correlation")))
        step, number = _enclosing(annotations, starts, [moment for moment in moments if moment is not None])
        if step >= 0:
            seconds, names = kernels[step].setdefault(number, (0.0, []))
            names.append(str(event["name"]))
            kernels[step][number] = (seconds + event["dur"] * 1e-6, names)
    return [{number: OpTime(seconds, tuple(names)) for number, (seconds, names) in step.items()} for step in kernels]


def _enclosing(
    annotations: Sequence[tuple[float, float, int, int]], starts: Sequence[float], moments: Sequence[float]
) -> tuple[int, int]:
    """(step, op) of the annotation around the first moment that has one; work between two ops is the step's, op -1."""
    nearest = (-1, -1)
    for moment in moments:
        index = bisect_right(starts, moment) - 1
        if index < 0:
            continue
        _, end, step, number = annotations[index]
        if moment <= end:
            return step, number
        if nearest[0] < 0 and index + 1 < len(annotations) and annotations[index + 1][2] == step:
            nearest = (step, -1)
    return nearest


def median_times(steps: Sequence[Mapping[int, OpTime]]) -> dict[int, OpTime]:
    """Op by op over equal steps; an op seen in a minority of them (a lazy initialisation) is left out."""
    numbers = dict.fromkeys(number for step in steps for number in step)
    medians: dict[int, OpTime] = {}
    for number in numbers:
        op_times = [step[number] for step in steps if number in step]
        if 2 * len(op_times) > len(steps):
            medians[number] = OpTime(statistics.median(time.seconds for time in op_times), op_times[-1].kernels)
    return medians
