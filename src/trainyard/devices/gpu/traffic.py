"""Bytes of a call through DRAM and L2, and the longest of its times: what its kernels take before the host is looked at."""

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
    """Which tensors the L2 still holds: whole tensors, the least recently used leaves first."""

    room: float
    held: OrderedDict[int, int] = field(default_factory=OrderedDict)
    used: int = 0
    masks: set[int] = field(default_factory=set)  # tensors that a GPU keeps as one byte an element (what a dropout left)

    def holds(self, base: int) -> bool:
        return base in self.held

    def touch(self, base: int, count: int) -> None:
        if base in self.held:
            self.used -= self.held.pop(base)
        if count > self.room:
            return
        self.held[base] = count
        self.used += count
        while self.used > self.room:
            _, left = self.held.popitem(last=False)
            self.used -= left


class Kernel(NamedTuple):
    """What the kernels of one call take on the device, and what the host does for them.

    `calls` are torch calls to issue, `launches` kernels to launch, `listed` entries that a foreach call walks in Python.
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
    """Bytes of one call's tensors: from DRAM, or from the L2 where it still holds them; tensors inside the call cost nothing."""

    def __init__(self, gpu: Gpu, step: Step, ops: Sequence[Op], cache: Cache) -> None:
        self.gpu, self.step, self.cache = gpu, step, cache
        made = {step.base(tensor) for op in ops for tensor in op.outputs}
        inner = made & {step.base(tensor) for op in ops for tensor in op.inputs} if len(ops) > 1 else set()
        self.read = self._sizes((tensor for op in ops for tensor in op.inputs), inner)
        last = {step.base(tensor) for tensor in ops[-1].outputs}
        self.written = self._sizes((tensor for op in ops for tensor in op.outputs), inner - last)
        self.bytes: dict[tuple[str, Direction], int] = {}
        self.l2_bytes = 0.0

    def _sizes(self, tensors: Iterable[int], without: set[int]) -> dict[int, int]:
        """By base tensor; a view counts what it shows, never more than there is (a broadcast reads its source once)."""
        sizes: dict[int, int] = {}
        for tensor in tensors:
            base = self.step.base(tensor)
            if base in without:
                continue
            shown = min(self._bytes(tensor, base), self._bytes(base, base))
            sizes[base] = max(sizes.get(base, 0), shown)
        return sizes

    def _bytes(self, tensor: int, base: int) -> int:
        spec = self.step.tensors[tensor]
        return spec.elements if base in self.cache.masks else self.gpu.bytes_of(spec)

    def _book(self, role: Role, direction: Direction, count: float) -> None:
        key = (str(role), direction)
        self.bytes[key] = self.bytes.get(key, 0) + round(count)

    def reads(self, times: float = 1.0, only: int | None = None) -> None:
        """Reads every input (or one) `times`: again and again from the L2 if it fits there, else from DRAM."""
        for base, size in self.read.items():
            if only is not None and base != only:
                continue
            first = 0.0 if self.cache.holds(base) else float(size) * min(times, 1.0)
            again = 0.0 if size <= self.cache.room else max(0.0, times - 1.0) * size
            self._book(self.step.tensors[base].role, "read", first + again)
            self.l2_bytes += times * size - first - again

    def writes(self, times: float = 1.0) -> None:
        for base, size in self.written.items():
            self._book(self.step.tensors[base].role, "write", times * size)

    def all_through_dram(self, times: float) -> None:
        """Every input and output `times` over, whatever the L2 holds: a list of all parameters is walked before it comes round."""
        directions: tuple[tuple[Direction, dict[int, int]], ...] = (("read", self.read), ("write", self.written))
        for direction, sizes in directions:
            for base, size in sizes.items():
                self._book(self.step.tensors[base].role, direction, times * size)

    def moves(self, read: float, written: float, role: Role = Role.ACTIVATION) -> None:
        """Bytes of tensors that the step does not have: a layout's copy, a mask, what a flash kernel reads instead."""
        self._book(role, "read", read)
        self._book(role, "write", written)

    @property
    def dram_s(self) -> float:
        return sum(self.bytes.values()) / (self.gpu.dram_bytes_per_s * self.gpu.copy_fraction)

    @property
    def l2_s(self) -> float:
        """All bytes pass through the L2, those that stay in it included."""
        return (sum(self.bytes.values()) + self.l2_bytes) / (self.gpu.l2_bytes_per_s * self.gpu.l2_fraction)

    def leave(self) -> None:
        """What the next call finds in the L2."""
        for base, size in (*self.read.items(), *self.written.items()):
            self.cache.touch(base, size)


def finish(
    gpu: Gpu, traffic: Traffic, *, compute_s: float, launches: float, l2_s: float = 0.0, macs: int = 0, serial_s: float = 0.0,
    calls: float = 1.0, listed: float = 0.0,
) -> Kernel:  # fmt: skip
    """The longest of compute, L2 and DRAM, then what cannot overlap (`serial_s`), then each kernel's start and pause."""
    bounds = {"compute": compute_s, "dram": traffic.dram_s, "l2": max(l2_s, traffic.l2_s)}
    bound = max(bounds, key=lambda name: bounds[name])
    busy = bounds[bound] + serial_s
    overhead = launches * (gpu.ramp_s + gpu.gap_s)
    name = "launch" if overhead > busy else bound
    return Kernel(busy + overhead, compute_s + serial_s, launches, name, traffic.bytes, macs, calls, listed)


def element_type(gpu: Gpu, step: Step, op: Op) -> tuple[str, int]:
    """Name and bytes of the type that an op computes in: its first input's, on this device."""
    dtype = gpu.dtype(step.tensors[op.inputs[0]]) if op.inputs else (gpu.precision or "fp32")
    return dtype, DTYPE_BYTES[dtype]
