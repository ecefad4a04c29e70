"""The host beside a GPU: eager torch issues call by call, and the device waits where it has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.devices.gpu.traffic import Kernel
from trainyard.ir import Phase

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu


def issue_s(gpu: Gpu, kernel: Kernel, phase: Phase) -> float:
    """Host time of one call: a module's in forward, a node's elsewhere; each launch; the entries of a foreach list."""
    one = gpu.call_s if phase is Phase.FORWARD else gpu.node_s
    return kernel.calls * one + kernel.launches * gpu.launch_s + kernel.listed * gpu.list_s


def waits(gpu: Gpu, kernels: Sequence[Kernel], phases: Sequence[Phase]) -> list[float]:
    """How long the device waits for the host before each call, once steps follow each other.

    The host may be `queue` kernels ahead; the device takes them in order. Each step begins with `step_s` of Python of its own.
    """
    waited = [0.0] * len(kernels)
    if gpu.graphs:
        return waited
    issues = [issue_s(gpu, kernel, phase) for kernel, phase in zip(kernels, phases, strict=True)]
    issued = finished = 0.0
    ends: list[tuple[float, float]] = []  # (kernels issued so far, when the device was done with them)
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
