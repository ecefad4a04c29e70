"""Bytes of a call through DRAM and L2, and the time of its kernels without the host."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainyard.ir import DTYPE_BYTES, Direction, Op, Role, Step

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu


@dataclass(slots=True)
class Cache:
    """The L2 as a cache of complete tensors with least-recently-used replacement."""

    capacity: float
    tensors: OrderedDict[int, int] = field(default_factory=OrderedDict)
    used: int = 0
    masks: set[int] = field(default_factory=set)  # tensors with one byte per element: the masks of dropouts

    def touch(self, base: int, size: int) -> None:
        if base in self.tensors:
            self.used -= self.tensors.pop(base)
        if size > self.capacity:
            return
        self.tensors[base] = size
        self.used += size
        while self.used > self.capacity:
            _, evicted = self.tensors.popitem(last=False)
            self.used -= evicted


class Kernel(NamedTuple):
    """Time of the kernels of one call on the device, and the work of the host for them.

    The host issues `calls` torch calls, launches `launches` kernels, and visits `listed` entries of a foreach list in Python.
    """

    seconds: float
    compute_s: float
    launches: float
    bound: str
    bytes: Mapping[tuple[str, Direction], int]
    macs: int = 0
    calls: float = 1.0
    listed: float = 0.0


class Traffic:
    """Bytes of the tensors of one call, from DRAM or from the L2; tensors inside the call cost nothing."""

    def __init__(self, gpu: Gpu, step: Step, ops: Sequence[Op], cache: Cache) -> None:
        self.gpu, self.step, self.cache = gpu, step, cache
        produced = {step.base(tensor) for op in ops for tensor in op.outputs}
        inner = produced & {step.base(tensor) for op in ops for tensor in op.inputs} if len(ops) > 1 else set()
        self.read = self._sizes((tensor for op in ops for tensor in op.inputs), inner)
        last = {step.base(tensor) for tensor in ops[-1].outputs}
        self.written = self._sizes((tensor for op in ops for tensor in op.outputs), inner - last)
        self.bytes: dict[tuple[str, Direction], int] = {}
        self.l2_bytes = 0.0

    def _sizes(self, tensors: Iterable[int], without: set[int]) -> dict[int, int]:
        """Bytes by base tensor; a view counts its own elements, at most those of its base (a broadcast reads its source once)."""
        sizes: dict[int, int] = {}
        for tensor in tensors:
            base = self.step.base(tensor)
            if base in without:
                continue
            size = min(self._bytes(tensor, base), self._bytes(base, base))
            sizes[base] = max(sizes.get(base, 0), size)
        return sizes

    def distinct_bytes(self, ops: Sequence[Op]) -> int:
        """Bytes that the ops read from outside; views of one tensor (Q, K and V of one projection) are different parts of it."""
        sizes: dict[int, int] = {}
        for tensor in dict.fromkeys(tensor for op in ops for tensor in op.inputs):
            base = self.step.base(tensor)
            if base in self.read:
                sizes[base] = min(sizes.get(base, 0) + self._bytes(tensor, base), self._bytes(base, base))
        return sum(sizes.values())

    def _bytes(self, tensor: int, base: int) -> int:
        spec = self.step.tensors[tensor]
        return spec.elements if base in self.cache.masks else self.gpu.bytes_of(spec)

    def _count(self, role: Role, direction: Direction, size: float) -> None:
        key = (str(role), direction)
        self.bytes[key] = self.bytes.get(key, 0) + round(size)

    def reads(self, times: float = 1.0, only: int | None = None) -> None:
        """Reads every input (or one) `times`: repeatedly from the L2 if it fits there, else from DRAM."""
        for base, size in self.read.items():
            if only is not None and base != only:
                continue
            first = 0.0 if base in self.cache.tensors else float(size) * min(times, 1.0)
            repeated = 0.0 if size <= self.cache.capacity else max(0.0, times - 1.0) * size
            self._count(self.step.tensors[base].role, "read", first + repeated)
            self.l2_bytes += times * size - first - repeated

    def writes(self, times: float = 1.0) -> None:
        for base, size in self.written.items():
            self._count(self.step.tensors[base].role, "write", times * size)

    def all_through_dram(self, times: float) -> None:
        """Moves every input and output `times` without the L2: a list of all parameters evicts each before its next use."""
        directions: tuple[tuple[Direction, dict[int, int]], ...] = (("read", self.read), ("write", self.written))
        for direction, sizes in directions:
            for base, size in sizes.items():
                self._count(self.step.tensors[base].role, direction, times * size)

    def moves(self, read: float, written: float, role: Role = Role.ACTIVATION) -> None:
        """Adds bytes of tensors that are not in the step: a transposed copy, a mask, operands of a flash kernel."""
        self._count(role, "read", read)
        self._count(role, "write", written)

    @property
    def dram_s(self) -> float:
        return sum(self.bytes.values()) / (self.gpu.dram_bytes_per_s * self.gpu.copy_fraction)

    @property
    def l2_s(self) -> float:
        """All bytes pass through the L2, also those from and to DRAM."""
        return (sum(self.bytes.values()) + self.l2_bytes) / (self.gpu.l2_bytes_per_s * self.gpu.l2_fraction)

    def update_cache(self) -> None:
        """Puts the tensors of the call into the L2."""
        for base, size in (*self.read.items(), *self.written.items()):
            self.cache.touch(base, size)


def finish(
    gpu: Gpu, traffic: Traffic, *, compute_s: float, launches: float, l2_s: float = 0.0, macs: int = 0, serial_s: float = 0.0,
    calls: float = 1.0, listed: float = 0.0,
) -> Kernel:  # fmt: skip
    """The longest of compute, L2 and DRAM, plus what cannot overlap (`serial_s`), plus ramp and gap of each kernel."""
    bounds = {"compute": compute_s, "dram": traffic.dram_s, "l2": max(l2_s, traffic.l2_s)}
    bound = max(bounds, key=lambda name: bounds[name])
    busy = bounds[bound] + serial_s
    overhead = launches * (gpu.ramp_s + gpu.gap_s)
    name = "launch" if overhead > busy else bound
    return Kernel(busy + overhead, compute_s + serial_s, launches, name, traffic.bytes, macs, calls, listed)


def element_type(gpu: Gpu, step: Step, op: Op) -> tuple[str, int]:
    """Element type and its bytes of an op: those of its first input on this device."""
    dtype = gpu.dtype(step.tensors[op.inputs[0]]) if op.inputs else (gpu.precision or "fp32")
    return dtype, DTYPE_BYTES[dtype]
