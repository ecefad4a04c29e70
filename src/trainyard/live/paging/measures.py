"""Time, memory and link of the device that the plan is for: CUDA events and allocator counters, or the host's clock."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainyard.live.paging.stores import Store

WAITING = -1
LINK_BYTES = 32 << 20
LINK_REPEATS = 5


class Clock(Protocol):
    """Moments of the computation, as the device sees them."""

    def moment(self) -> Any: ...

    def seconds(self, start: Any, end: Any) -> float: ...

    def finish(self) -> None: ...


class HostClock:
    """For the CPU, where an op returns when it is done."""

    def moment(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        pass


class EventClock:
    """CUDA events on the stream of the computation; read after `finish`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def moment(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) * 1e-3

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)


def clock_of(device: torch.device) -> Clock:
    return EventClock(device) if device.type == "cuda" else HostClock()


class Laps:
    """Assigns the time between two marks to a position; time spent waiting for copies belongs to none."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.marks: list[tuple[Any, int]] = []

    def mark(self, position: int) -> None:
        self.marks.append((self.clock.moment(), position))

    def durations(self, positions: int) -> list[float]:
        self.clock.finish()
        durations = [0.0] * positions
        for (start, position), (end, _) in zip(self.marks, self.marks[1:], strict=False):
            if position != WAITING:
                durations[position] += self.clock.seconds(start, end)
        return durations


class Meter:
    """Peak of the device's allocated memory in each position; 0 on the CPU, where it is not counted."""

    def __init__(self, device: torch.device) -> None:
        self.device = device if device.type == "cuda" else None
        self.peaks: dict[int, int] = {}
        self.position = 0
        self.overall = 0
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self.device)

    def enter(self, position: int) -> None:
        if self.device is None:
            return
        peak = torch._C._cuda_memoryStats(self.device.index)["allocated_bytes"]["all"]["peak"]
        torch._C._cuda_resetPeakMemoryStats(self.device.index)
        self.peaks[self.position] = max(peak, self.peaks.get(self.position, 0))
        self.overall = max(self.overall, peak)
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Measured bandwidth to the store and back, and the latency of one copy."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_s: float


def measure_link(store: Store, device: torch.device, size: int = LINK_BYTES) -> Link:
    """Medians over a few copies of `size` bytes in each direction, and of one byte."""
    clock = clock_of(device)
    large, small = (torch.zeros(count, dtype=torch.uint8, device=device).untyped_storage() for count in (size, 1))
    out: list[float] = []
    back: list[float] = []
    tiny: list[float] = []
    for turn in range(LINK_REPEATS + 1):
        for storage, spans in ((large, (out, back)), (small, (tiny, tiny))):
            start = clock.moment()
            ticket = store.put(storage)
            ticket.wait_for_copy_out()
            middle = clock.moment()
            fetched = ticket.fetch()
            ticket.wait_for_copy_in()
            end = clock.moment()
            clock.finish()
            del fetched
            ticket.release()
            if turn:  # the first makes the buffers
                spans[0].append(clock.seconds(start, middle))
                spans[1].append(clock.seconds(middle, end))
    latency = statistics.median(tiny)
    rates = [size / max(statistics.median(spans) - latency, 1e-9) for spans in (out, back)]
    return Link(out_bytes_per_s=rates[0], in_bytes_per_s=rates[1], latency_s=latency)
