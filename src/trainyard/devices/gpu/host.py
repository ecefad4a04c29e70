"""The host of a GPU: eager torch issues call by call, and the device waits when its queue is empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.devices.gpu.traffic import Kernel
from trainyard.ir import Phase

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu


def issue_s(gpu: Gpu, kernel: Kernel, phase: Phase) -> float:
    """Host time of one call: of a module in forward, else of an autograd node; its launches; the entries of a foreach list."""
    call_s = gpu.call_s if phase is Phase.FORWARD else gpu.node_s
    return kernel.calls * call_s + kernel.launches * gpu.launch_s + kernel.listed * gpu.list_s


def waiting_times(gpu: Gpu, kernels: Sequence[Kernel], phases: Sequence[Phase]) -> list[float]:
    """Seconds that the device waits for the host before each call, in the steady state of many steps.

    The host may be `queue` kernels ahead; the device runs them in order. Each step begins with `step_s` of Python.
    """
    waited = [0.0] * len(kernels)
    if gpu.graphs:
        return waited
    issues = [issue_s(gpu, kernel, phase) for kernel, phase in zip(kernels, phases, strict=True)]
    issued = finished = 0.0
    ends: list[tuple[float, float]] = []  # (kernels issued so far, when the device finished them)
    count, oldest = 0.0, 0
    for _ in range(3):
        issued += gpu.step_s
        for index, kernel in enumerate(kernels):
            count += kernel.launches
            issued += issues[index]
            while oldest < len(ends) and ends[oldest][0] <= count - gpu.queue:
                issued = max(issued, ends[oldest][1])
                oldest += 1
            start = max(issued, finished)
            waited[index] = start - finished
            finished = start + kernel.seconds
            ends.append((count, finished))
    return waited
