"""The MRAM that a step takes on one DPU, and its division among several DPUs if it does not fit.

Parameters, optimizer state, buffers, the batch and a worker's data set are resident; activations and gradients are allocated and
released in program order. A split keeps one shard of every parameter, of its state and of its gradient on each DPU of a group: the
parameters of a layer are gathered for its forward and backward pass and released after it, and its gradient is reduced into shards
as soon as it is complete (S. Rajbhandari et al.: ZeRO, SC 2020, stage 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import Phase, Role, Step
from trainyard.mapping.precision import Precision, with_precision
from trainyard.units import show

SHARDED = (Role.PARAMETER, Role.STATE)
LARGEST = "mac-dpu"  # of the presets, the DPU with the most MRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of resident tensors, the peak of transient ones, and the data set; `sharded_bytes` of the residents can be split."""

    step: str
    batch: int
    resident_bytes: int
    transient_bytes: int
    sharded_bytes: int = 0
    data_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.resident_bytes + self.transient_bytes + self.data_bytes

    def require(self, capacity: int, name: str = "dpu") -> None:
        """Refuses a step that needs more than `capacity` bytes, with the remedies that would help."""
        if self.bytes <= capacity:
            return
        data = f", {show(self.data_bytes, 'B')} a data set" if self.data_bytes else ""
        resident = self.resident_bytes + self.data_bytes
        remedies = ["a DPU with more memory" if name == LARGEST else f"a DPU with more memory (dpu={LARGEST})"]
        if self.batch > 1 and resident < capacity:
            remedies.append("a smaller batch")
        if self.data_bytes and self.resident_bytes + self.transient_bytes <= capacity:
            remedies.append(f"at most {show(capacity - self.resident_bytes - self.transient_bytes, 'B')} of data per DPU")
        split = "split=true to share parameters and optimizer state among the DPUs of a cluster of 'direct'"
        if self.bytes - self.sharded_bytes <= capacity:
            remedies.append(split)
        elif self.batch > 1 and resident - self.sharded_bytes < capacity <= resident:
            remedies.append(f"{split}, with a smaller batch")
        raise BadInput(
            f"step {self.step!r} at batch {self.batch} needs {show(self.bytes, 'B')} of MRAM "
            f"({show(self.resident_bytes, 'B')} stay, {show(self.transient_bytes, 'B')} come and go{data}), "
            f"{name} has {show(capacity, 'B')}: give {', or '.join(remedies)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A step whose parameters are sharded over `shards` DPUs; all bytes are those of one DPU.

    In one step, `gathered_bytes` of parameters are received from other DPUs and `scattered_bytes` of gradients are sent to them.
    """

    shards: int
    resident_bytes: int
    peak_bytes: int
    gathered_bytes: int
    scattered_bytes: int


def step_memory(step: Step, precision: str | Precision | None = None, data_bytes: int = 0) -> MemoryUse:
    typed = with_precision(step, precision)
    return MemoryUse(
        step=step.name,
        batch=step.batch,
        resident_bytes=typed.resident_bytes,
        transient_bytes=max(_allocated(len(typed.ops), typed.transients), default=0),
        sharded_bytes=sum(spec.bytes for spec in typed.tensors if spec.view_of is None and spec.role in SHARDED),
        data_bytes=data_bytes,
    )


def _allocated(ops: int, lifetimes: Iterable[tuple[tuple[int, ...], int]]) -> list[int]:
    """Allocated bytes while each op runs."""
    change = [0] * (ops + 1)
    for users, size in lifetimes:
        change[min(users)] += size
        change[max(users) + 1] -= size
    return list(accumulate(change[:ops]))


def split_over(step: Step, shards: int, precision: str | Precision | None = None) -> Split:
    """A step on `shards` DPUs with one shard of its parameters each; every DPU has its own batch.

    >>> from trainyard.workloads import zoo
    >>> split = split_over(zoo.load("linear", batch=8), 4)
    >>> split.gathered_bytes, split.scattered_bytes  # 3/4 of 4096 weights for the forward pass; the first layer has no dX
    (12288, 12288)
    """
    require_positive("split_over", shards=shards)
    typed = with_precision(step, precision)
    own = [spec for spec in typed.tensors if spec.view_of is None and spec.role in SHARDED]
    sharded = sum(-(-spec.bytes // shards) for spec in own)
    gathered: dict[tuple[int, bool], int] = {}
    gradients: dict[int, int] = {}
    lifetimes: list[tuple[tuple[int, ...], int]] = []
    for index, op in enumerate(typed.ops):
        if op.phase is Phase.UPDATE:
            continue
        for base in dict.fromkeys(map(typed.base, op.inputs)):
            if typed.tensors[base].role is Role.PARAMETER:
                gathered[base, op.phase.backward] = typed.tensors[base].bytes
                lifetimes.append(((index,), _of_others(typed.tensors[base].bytes, shards)))
        for base in dict.fromkeys(map(typed.base, op.outputs)):
            if typed.tensors[base].role is Role.PARAMETER_GRADIENT:
                gradients[base] = typed.tensors[base].bytes
                lifetimes.append(((index,), _of_others(typed.tensors[base].bytes, shards)))
    without_gradients = tuple(
        replace(spec, shape=(0,), slope=()) if spec.role is Role.PARAMETER_GRADIENT else spec for spec in typed.tensors
    )
    others = replace(typed, tensors=without_gradients).transients
    resident = typed.resident_bytes - sum(spec.bytes for spec in own) + sharded
    shared = sum(-(-size // shards) for size in gradients.values())
    return Split(
        shards=shards,
        resident_bytes=resident,
        peak_bytes=resident + shared + max(_allocated(len(typed.ops), [*others, *lifetimes]), default=0),
        gathered_bytes=sum(_of_others(size, shards) for size in gathered.values()),
        scattered_bytes=sum(_of_others(size, shards) for size in gradients.values()),
    )


def _of_others(size: int, shards: int) -> int:
    """Bytes of a tensor in the shards of other DPUs."""
    return size - -(-size // shards)
