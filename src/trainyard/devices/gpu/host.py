"""The host of a GPU: eager torch issues call by call, and the device waits when its queue is empty."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trainyard.devices.gpu.traffic import Kernel
from trainyard.ir import Phase, Step, Work
from trainyard.mapping.overlay.by_blocks import saved_tensors

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu

Ops = tuple[int, ...]

# fmt: off
# Host time of a saved tensor under `live.overlay`'s checkpoint, in forward calls of the same process. measured: 24 layers of a ViT
# of transformers with tiny tensors on a CPU, 28 saved tensors each: forward 5.1 ms, checkpointed 7.2, backward 5.9 and 20.5. Of the
# 14.7 ms that backward takes longer, 5.1 are the repeated forward. A layer has 12 calls, of 17.7 us each.
PACKED_CALLS   = 0.17
UNPACKED_CALLS = 0.80
# fmt: on


def issue_s(gpu: Gpu, kernel: Kernel, phase: Phase) -> float:
    """Host time of one call: of a module in forward, else of an autograd node; its launches; the entries of a foreach list."""
    call_s = gpu.call_s if phase is Phase.FORWARD else gpu.node_s
    return kernel.calls * call_s + kernel.launches * gpu.launch_s + kernel.listed * gpu.list_s


def reads_value(step: Step, ops: Ops) -> bool:
    """Whether the program reads a value from the device before this call: the host waits for it."""
    return any(step.ops[op].host_waits for op in ops)


def hooks_s(gpu: Gpu, packed: float, unpacked: float) -> float:
    """Host time of Python hooks on saved tensors."""
    return gpu.call_s * (PACKED_CALLS * packed + UNPACKED_CALLS * unpacked)


def waiting_times(gpu: Gpu, step: Step, kernels: Mapping[Ops, Kernel]) -> list[float]:
    """Seconds that the device waits for the host before each call of a step, in the steady state of many steps."""
    issues = [issue_s(gpu, kernel, step.ops[ops[0]].phase) for ops, kernel in kernels.items()]
    hooks = checkpoint_hooks(step, kernels)
    return waits(
        gpu,
        [*kernels.values()],
        [issue + hooks_s(gpu, *hooks.get(ops, (0.0, 0.0))) for issue, ops in zip(issues, kernels, strict=True)],
        [reads_value(step, ops) for ops in kernels],
    )


def checkpoint_hooks(step: Step, calls: Iterable[Ops]) -> dict[Ops, tuple[float, float]]:
    """Saved tensors that hooks pack and unpack at calls of layers that were captured under a checkpoint."""
    layers: dict[str, tuple[list[Ops], list[Ops]]] = {}
    for ops in calls:
        op = step.ops[ops[0]]
        if op.phase is Phase.FORWARD:
            layers.setdefault(op.layer, ([], []))[op.recompute].append(ops)
    layers = {layer: both for layer, both in layers.items() if both[1]}
    counts = saved_tensors(step, [Work(ops=ops) for ops in calls], {layer: layer for layer in layers}) if layers else {}
    return {
        ops: (0.0, counts[layer] / len(group)) if is_repeated else (counts[layer] / len(group), 0.0)
        for layer, groups in layers.items()
        for is_repeated, group in enumerate(groups)
        for ops in group
    }


class HostTime(NamedTuple):
    """Seconds in which the host issues one step, and for how many of them it waits for a full queue."""

    issue_s: float
    blocked_s: float


def host_time(gpu: Gpu, step: Step, kernels: Mapping[Ops, Kernel]) -> HostTime:
    """Of a step that begins with an idle device."""
    issued = finished = blocked = count = 0.0
    ends: deque[tuple[float, float]] = deque()
    for ops, kernel in kernels.items():
        count += kernel.launches
        if reads_value(step, ops):
            issued = max(issued, finished)
        issued += issue_s(gpu, kernel, step.ops[ops[0]].phase)
        while ends and ends[0][0] <= count - gpu.queue:
            blocked += max(0.0, ends[0][1] - issued)
            issued = max(issued, ends.popleft()[1])
        finished = max(issued, finished) + kernel.seconds
        ends.append((count, finished))
    return HostTime(issued + gpu.step_s, blocked)


def waits(gpu: Gpu, kernels: Sequence[Kernel], issues: Sequence[float], reads: Sequence[bool] = ()) -> list[float]:
    """The same, given the host time of each call, and before which of them the host reads a value.

    The host may be `queue` kernels ahead; the device runs them in order. Each step begins with `step_s` of Python. To read a value
    the host waits until the device has done everything before it.
    """
    waited = [0.0] * len(kernels)
    if gpu.graphs:
        return waited
    issued = finished = 0.0
    ends: list[tuple[float, float]] = []  # (kernels issued so far, when the device finished them)
    count, oldest = 0.0, 0
    for _ in range(3):
        issued += gpu.step_s
        for index, kernel in enumerate(kernels):
            count += kernel.launches
            if reads and reads[index]:
                issued = max(issued, finished)
            issued += issues[index]
            while oldest < len(ends) and ends[oldest][0] <= count - gpu.queue:
                issued = max(issued, ends[oldest][1])
                oldest += 1
            start = max(issued, finished)
            waited[index] = start - finished
            finished = start + kernel.seconds
            ends.append((count, finished))
    return waited
