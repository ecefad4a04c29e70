"""What a step takes of one DPU's MRAM, and how it is split over several where it does not fit.

Parameters, optimizer state, buffers, the batch and a worker's data set stay; activations and gradients come and go with the ops, in
program order. A split keeps one shard of every parameter, of its state and of its gradient on each DPU of a group: a layer's
parameters are gathered when its forward or backward pass needs them and dropped after, its gradient is summed into shards as soon
as it is there (S. Rajbhandari et al.: ZeRO, SC 2020, stage 3).
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
class Room:
    """Bytes: what stays, the most that comes and goes, and the data set; `sharded_bytes`, of what stays, a split would divide."""

    step: str
    batch: int
    resident_bytes: int
    transient_bytes: int
    sharded_bytes: int = 0
    data_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.resident_bytes + self.transient_bytes + self.data_bytes

    def require(self, there: int, name: str = "dpu") -> None:
        if self.bytes <= there:
            return
        data = f", {show(self.data_bytes, 'B')} a data set" if self.data_bytes else ""
        stay = self.resident_bytes + self.data_bytes
        ways = ["a DPU with more memory" if name == LARGEST else f"a DPU with more memory (dpu={LARGEST})"]
        if self.batch > 1 and stay < there:
            ways.append("a smaller batch")
        if self.data_bytes and self.resident_bytes + self.transient_bytes <= there:
            ways.append(f"at most {show(there - self.resident_bytes - self.transient_bytes, 'B')} of data per DPU")
        split = "split=true to share parameters and optimizer state among the DPUs of a cluster of 'direct'"
        if self.bytes - self.sharded_bytes <= there:
            ways.append(split)
        elif self.batch > 1 and stay - self.sharded_bytes < there <= stay:
            ways.append(f"{split}, with a smaller batch")
        raise BadInput(
            f"step {self.step!r} at batch {self.batch} needs {show(self.bytes, 'B')} of MRAM "
            f"({show(self.resident_bytes, 'B')} stay, {show(self.transient_bytes, 'B')} come and go{data}), "
            f"{name} has {show(there, 'B')}: give {', or '.join(ways)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A step whose parameters are shared by `shards` DPUs; bytes are those of one DPU.

    `resident_bytes` stay, `peak_bytes` is the most there is at a time. In one step `gathered_bytes` of other DPUs' shards come in,
    and `scattered_bytes` of gradients go out to them.
    """

    shards: int
    resident_bytes: int
    peak_bytes: int
    gathered_bytes: int
    scattered_bytes: int


def room(step: Step, precision: str | Precision | None = None, data_bytes: int = 0) -> Room:
    kept = with_precision(step, precision)
    return Room(
        step=step.name,
        batch=step.batch,
        resident_bytes=kept.resident_bytes,
        transient_bytes=max(_alive(len(kept.ops), kept.transients), default=0),
        sharded_bytes=sum(spec.bytes for spec in kept.tensors if spec.view_of is None and spec.role in SHARDED),
        data_bytes=data_bytes,
    )


def _alive(ops: int, lives: Iterable[tuple[tuple[int, ...], int]]) -> list[int]:
    """Bytes there are while each op runs."""
    change = [0] * (ops + 1)
    for users, size in lives:
        change[min(users)] += size
        change[max(users) + 1] -= size
    return list(accumulate(change[:ops]))


def split_over(step: Step, shards: int, precision: str | Precision | None = None) -> Split:
    """A step on `shards` DPUs that hold its parameters together; each still has its own batch.

    >>> from trainyard.workloads import zoo
    >>> split = split_over(zoo.load("linear", batch=8), 4)
    >>> split.gathered_bytes, split.scattered_bytes  # 3/4 of 4096 weights for the forward pass; the first layer has no dX
    (12288, 12288)
    """
    require_positive("split_over", shards=shards)
    kept = with_precision(step, precision)
    own = [spec for spec in kept.tensors if spec.view_of is None and spec.role in SHARDED]
    sharded = sum(-(-spec.bytes // shards) for spec in own)
    gathered: dict[tuple[int, bool], int] = {}
    gradients: dict[int, int] = {}
    lives: list[tuple[tuple[int, ...], int]] = []
    for index, op in enumerate(kept.ops):
        if op.phase is Phase.UPDATE:
            continue
        for base in dict.fromkeys(map(kept.base, op.inputs)):
            if kept.tensors[base].role is Role.PARAMETER:
                gathered[base, op.phase.backward] = kept.tensors[base].bytes
                lives.append(((index,), _away(kept.tensors[base].bytes, shards)))
        for base in dict.fromkeys(map(kept.base, op.outputs)):
            if kept.tensors[base].role is Role.PARAMETER_GRADIENT:
                gradients[base] = kept.tensors[base].bytes
                lives.append(((index,), _away(kept.tensors[base].bytes, shards)))
    apart = tuple(replace(spec, shape=(0,), slope=()) if spec.role is Role.PARAMETER_GRADIENT else spec for spec in kept.tensors)
    others = replace(kept, tensors=apart).transients
    resident = kept.resident_bytes - sum(spec.bytes for spec in own) + sharded
    shared = sum(-(-size // shards) for size in gradients.values())
    return Split(
        shards=shards,
        resident_bytes=resident,
        peak_bytes=resident + shared + max(_alive(len(kept.ops), [*others, *lives]), default=0),
        gathered_bytes=sum(_away(size, shards) for size in gathered.values()),
        scattered_bytes=sum(_away(size, shards) for size in gradients.values()),
    )


def _away(size: int, shards: int) -> int:
    """What the others hold of a tensor."""
    return size - -(-size // shards)
