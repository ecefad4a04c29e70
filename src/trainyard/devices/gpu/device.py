"""A GPU: a roofline with tiles and waves, an L2 cache, launch overhead, and a host that issues op by op.

Every efficiency is one named number for the device, calibrated on copies, products and launches; none is specific to a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from trainyard.caches import ByIdentity
from trainyard.construction import NonNegative, NonNegativeInt, Positive, Share, part
from trainyard.devices.gpu.calls import Call, calls_of, is_exchange
from trainyard.devices.gpu.costs import kernel_of
from trainyard.devices.gpu.host import HostTime, hooks_s, host_time, issue_s, reads_value, waiting_times, waits
from trainyard.devices.gpu.products import Limits
from trainyard.devices.gpu.structured import SPEEDUP, Sparse, sparse_products
from trainyard.devices.gpu.traffic import Cache, Kernel
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DTYPE_BYTES, Convolution, DeviceCost, Masks, Step, TensorSpec, Work, assumed
from trainyard.ir.protocols import IssuedWork
from trainyard.mapping.precision import FLOATING
from trainyard.results.result import Peaks

Kind = Literal["fp64", "fp32", "tf32", "half", "fp8", "int8"]
# fmt: off
TILES = ((256, 128, 32), (128, 128, 32), (128, 64, 32), (64, 64, 32), (64, 32, 32), (32, 32, 32))
# fmt: on


@part
class Gpu:
    """One board. MACs are per multiprocessor and cycle: `fp32_macs` of the vector lanes, the others of the tensor cores.

    A tensor core that the board does not have is 0: TF32 products then run on the vector lanes, as torch does it.
    """

    name: str
    sms: int
    clock_hz: float
    fp32_macs: int
    tf32_macs: NonNegativeInt
    half_macs: NonNegativeInt
    fp64_macs: NonNegativeInt
    bf16: bool
    l2_bytes: int
    l2_bytes_per_s: float
    on_chip_bytes: int
    dram_bytes_per_s: float
    dram_capacity_bytes: int
    idle_w: NonNegative
    mac_j: NonNegative
    dram_byte_j: NonNegative
    technology: str = ""
    die_m2: NonNegative | None = None
    tiles: tuple[tuple[int, int, int], ...] = TILES
    fp8_macs: NonNegativeInt = 0
    int8_macs: NonNegativeInt = 0
    structured: bool = False
    """Tensor cores that take weights of 2:4 structure at twice their rate."""

    tensor_fraction: Share = assumed(0.75, "share of the tensor cores' peak that a large product sustains", 0.6, 0.9)
    vector_fraction: Share = assumed(0.75, "share of the vector lanes' peak that a large product sustains", 0.65, 0.9)
    attention_fraction: Share = assumed(
        1.0, "share of a plain product's rate that the products of a fused attention in 16 bits reach", 0.6
    )
    copy_fraction: Share = assumed(0.89, "share of the DRAM bandwidth that a large copy reaches", 0.8, 0.95)
    l2_fraction: Share = assumed(0.65, "share of the L2 bandwidth that a copy inside it reaches", 0.9)
    l2_share: Share = assumed(0.5, "share of the L2 in which a tensor survives until its next reader", 0.25, 0.8)
    block_share: Share = assumed(0.7, "share of a multiprocessor's lanes that one block alone keeps busy", 0.5, 1.0)
    loads_per_cycle: Positive = assumed(2.8, "loads of a multiprocessor in a cycle, where bulk copies cannot feed a product", 4.0)
    heavy_instructions: NonNegative = assumed(
        60.0, "instructions for an element that is summed, exponentiated, drawn or turned", 45.0
    )
    strided_instructions: NonNegative = assumed(110.0, "instructions to copy one element from a place of its own", 80.0)
    window_instructions: NonNegative = assumed(300.0, "instructions of a thread that walks a window, less its taps", 370.0)
    score_instructions: NonNegative = assumed(10.0, "instructions for a score of a fused attention in 16 bits, forward", 15.0)
    ramp_s: float = assumed(1.2e-6, "time a kernel takes beyond its work: start, first loads, last stores", 2e-6)
    gap_s: float = assumed(0.6e-6, "pause of the device between two queued kernels", 0.3e-6, 1e-6)
    fill_s: float = assumed(1.5e-6, "time a block takes beyond its work: its first loads and last stores", 1.0e-6, 2.0e-6)
    call_s: float = assumed(39e-6, "host time of one forward call: Python of its module, views, dispatcher, graph", 25e-6, 55e-6)
    node_s: float = assumed(34e-6, "host time of one call outside modules: autograd's nodes, the loss", 20e-6, 45e-6)
    launch_s: float = assumed(9.4e-6, "host time to launch one kernel", 5e-6)
    list_s: float = assumed(2.6e-6, "host time for one entry of a foreach optimizer's list, in each of its kernels", 1.5e-6)
    step_s: float = assumed(0.25e-3, "host time of a step outside its calls: clearing gradients, starting autograd", 0.0)
    queue: int = assumed(1024, "kernels that the host may run ahead of the device", 512)
    graphs: bool = assumed(False, "the step is replayed as a CUDA graph: the host issues nothing", True, choice=True)
    fusion: Literal["none", "epilogue"] = assumed(
        "none",
        "element-wise ops ride on the product before them (a compiler), or are kernels of their own (eager)",
        "epilogue",
        choice=True,
    )
    matmul_fp32: Literal["simt", "tf32"] = assumed(
        "simt", "how fp32 matrix products run; torch's default is simt", "tf32", choice=True
    )
    convolution_fp32: Literal["simt", "tf32"] = assumed(
        "tf32", "how fp32 convolutions run; torch's default is tf32", "simt", choice=True
    )
    layout: Literal["transformed", "native"] = assumed(
        "transformed", "NCHW maps are turned to NHWC for tensor cores and back, or kept in NHWC throughout", "native", choice=True
    )
    optimizer: Literal["foreach", "single", "fused"] = assumed(
        "foreach", "torch's optimizer: kernels over many parameters (its default), over one, or one kernel for the whole update",
        "single", "fused", choice=True,
    )  # fmt: skip
    precision: Literal["bf16", "fp16", "fp32", "tf32", "fp8"] | None = None

    def __post_init__(self) -> None:
        if not self.tiles or any(len(tile) != 3 or min(tile) < 1 for tile in self.tiles):
            raise BadInput(f"Gpu: tiles must be a menu of (m, n, k) of positive whole numbers, got {self.tiles!r}")

    @property
    def peaks(self) -> Peaks:
        """Rates for products of `precision` (fp32 unless it is set); those of a step are `peak_macs_per_s`."""
        kinds = {self.kind(dtype, convolution) for dtype in [self.precision or "fp32"] for convolution in (False, True)}
        rate = max(self._macs(kind) for kind in kinds)
        return Peaks(macs_per_s=self.sms * rate * self.clock_hz, dram_bytes_per_s=self.dram_bytes_per_s, technology=self.technology)

    def peak_macs_per_s(self, step: Step, masks: Masks | None = None) -> float:
        """MACs of the step over the time that they take at the peak rate of each product's element type.

        Products that a kernel leaves out cost nothing: half of the scores of a causal attention, the zeros of 2:4 weights.
        """
        sparse = sparse_products(self, step, masks)
        seconds = 0.0
        for call in calls_of(step, self.fusion):
            done = 0.5 if call.causal else 1.0 / SPEEDUP if sparse is not None and sparse.applies_to(call.ops) else 1.0
            for op in (step.ops[index] for index in call.ops if step.ops[index].macs):
                dtype = self.dtype(step.tensors[op.inputs[0]]) if op.inputs else self.precision or "fp32"
                kind = self.kind(dtype, isinstance(op.body, Convolution))
                seconds += done * op.macs / (self.sms * self._macs(kind) * self.clock_hz)
        return step.macs / seconds if seconds else 0.0

    def area(self) -> dict[str, float]:
        """The printed size of the die; empty where none is printed."""
        return {} if self.die_m2 is None else {"die": self.die_m2}

    @property
    def static_w(self) -> float:
        """Watts at rest."""
        return self.idle_w

    @property
    def masks_note(self) -> str:
        """The note of a result with masks."""
        if self.structured:
            return "a GPU computes zeros like any other number: masks change nothing but for 2:4 weights of matrix products"
        return "a GPU computes zeros like any other number: masks change nothing"

    def works(self, step: Step) -> Sequence[Work]:
        """One Work for each torch call; with `fusion="epilogue"`, a product and its epilogue are one."""
        calls = calls_of(step, self.fusion)
        return [Work(ops=call.ops, grouping="single" if len(call.ops) == 1 else "chain") for call in calls]

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost:
        """The cost of a Work of `works(step)` within the step: with the state of the L2 and of the host at that point.

        Any other Work (a recomputed op) is costed alone: with an empty L2, and without waiting for the host. A collective between
        devices is refused: its cost is the system's, which has the links.
        """
        schedule = _schedule(self, ByIdentity(step), sparse_products(self, step, masks))
        return schedule.get(work.ops) or _cost_alone(self, step, work)

    def issued_s(self, step: Step, works: Sequence[IssuedWork]) -> float:
        """Seconds of a step whose Works are issued in this order, in the steady state; a Work is the same kernels every time.

        What is repeated in backward, a checkpointed forward, costs the host what it did in forward.
        """
        kernels = _kernels(self, ByIdentity(step))
        issued = [kernels[each.work.ops] for each in works]
        phases = [step.ops[each.work.ops[0]].phase for each in works]
        host = [
            issue_s(self, kernel, phase) + hooks_s(self, each.packed, each.unpacked)
            for kernel, phase, each in zip(issued, phases, works, strict=True)
        ]
        reads = [reads_value(step, each.work.ops) for each in works]
        return sum(waits(self, issued, host, reads)) + sum(kernel.seconds for kernel in issued)

    def host_time(self, step: Step) -> HostTime:
        """Host time of a step that begins with an idle device, as a stopwatch around one call of a training step has it."""
        return host_time(self, step, _kernels(self, ByIdentity(step)))

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component: MACs, DRAM bytes, and idle power over the time."""
        return {
            "mac": events.get("mac", 0.0) * self.mac_j,
            "dram": (events.get("dram_read", 0.0) + events.get("dram_write", 0.0)) * self.dram_byte_j,
            "static": events.get("second", 0.0) * self.idle_w,
        }

    def dtype(self, spec: TensorSpec) -> str:
        """The element type of a tensor on this device: `precision` replaces every floating type."""
        if self.precision is None or spec.dtype not in FLOATING:
            return spec.dtype
        return "fp32" if self.precision == "tf32" else self.precision

    def bytes_of(self, spec: TensorSpec) -> int:
        return spec.elements * DTYPE_BYTES[self.dtype(spec)]

    def kind(self, dtype: str, convolution: bool) -> Kind:
        """The arithmetic units of a product with this element type."""
        if dtype in ("fp32", "tf32"):
            unit = "tf32" if "tf32" in (dtype, self.precision) else self.convolution_fp32 if convolution else self.matmul_fp32
            return "tf32" if unit == "tf32" and self.precision != "fp32" and self.tf32_macs else "fp32"
        if dtype == "bf16" and not self.bf16:
            raise NotModelled(f"{self.name} has no bf16 tensor cores: write precision='fp16' or 'fp32'")
        if dtype in ("bf16", "fp16"):
            return "half"
        if dtype.startswith("fp8"):
            if not self.fp8_macs:
                raise NotModelled(f"{self.name} has no fp8 tensor cores: write precision='bf16', 'fp16' or 'fp32'")
            return "fp8"
        if dtype == "fp64":
            return "fp64"
        if dtype == "int8" and self.int8_macs:
            return "int8"
        raise NotModelled(f"products of {dtype} are not modelled on a GPU: write precision='bf16', 'fp16' or 'fp32'")

    def _macs(self, kind: Kind) -> int:
        rates = {"fp64": self.fp64_macs, "fp32": self.fp32_macs, "tf32": self.tf32_macs, "half": self.half_macs}
        return {**rates, "fp8": self.fp8_macs, "int8": self.int8_macs}[kind]

    def instructions_s(self, count: float) -> float:
        """Seconds for `count` instructions of one lane each on all lanes of the device."""
        return count / (self.sms * self.fp32_macs * self.clock_hz)

    def product_macs_per_s(self, width: int) -> float:
        """MACs per second that a large product on the tensor cores sustains, by bytes of an element; fp32 in TF32."""
        rate = self.half_macs if width < 4 else self.tf32_macs or self.fp32_macs
        return self.sms * rate * self.clock_hz * self.tensor_fraction

    def limits(self, kind: Kind) -> Limits:
        fraction = self.vector_fraction if kind == "fp32" else self.tensor_fraction
        return Limits(
            sms=self.sms,
            macs_per_sm=self._macs(kind) * self.clock_hz * fraction,
            loads_per_sm=self.loads_per_cycle * self.clock_hz,
            l2_per_sm=64 * self.clock_hz,  # 64 B a cycle between a multiprocessor and the L2, as in every generation from V100 on
            l2=self.l2_bytes_per_s,
            dram=self.dram_bytes_per_s * self.copy_fraction,
            l2_room=self.l2_share * self.l2_bytes,
            tiles=self.tiles,
            fill_s=self.fill_s,
            ramp_s=self.ramp_s,
        )


@lru_cache(maxsize=16)
def _schedule(gpu: Gpu, same: ByIdentity[Step], sparse: Sparse | None = None) -> Mapping[tuple[int, ...], DeviceCost]:
    """The cost of every call of the step, simulated in order with the L2 and the host in the steady state.

    Collectives are left out: while a device waits for one, the host gets further ahead than modelled here.
    """
    step = same.value
    kernels = _kernels(gpu, same, sparse)
    timed = zip(kernels.items(), waiting_times(gpu, step, kernels), strict=True)
    return {ops: _device_cost(gpu, step, ops, kernel, wait) for (ops, kernel), wait in timed}


@lru_cache(maxsize=16)
def _kernels(gpu: Gpu, same: ByIdentity[Step], sparse: Sparse | None = None) -> Mapping[tuple[int, ...], Kernel]:
    """The kernels of every call of the step but collectives, by its ops and in order, with the state of the L2 at that point."""
    step = same.value
    calls = [call for call in calls_of(step, gpu.fusion) if not is_exchange(step.ops[call.ops[0]])]
    cache = Cache(gpu.l2_share * gpu.l2_bytes)
    return {
        call.ops: kernel_of(gpu, step, call, cache)
        if sparse is None or not sparse.applies_to(call.ops)
        else sparse.kernel(gpu, call, cache)
        for call in calls
    }


def _cost_alone(gpu: Gpu, step: Step, work: Work) -> DeviceCost:
    call = Call(work.ops, "op" if len(work.ops) == 1 else "fused")
    return _device_cost(gpu, step, work.ops, kernel_of(gpu, step, call, Cache(0.0)), 0.0)


def _device_cost(gpu: Gpu, step: Step, ops: tuple[int, ...], kernel: Kernel, wait: float) -> DeviceCost:
    seconds = kernel.seconds + wait
    cycles = max(1, math.ceil(seconds * gpu.clock_hz))
    events = {
        "mac": float(kernel.macs),
        "dram_read": float(sum(count for (_, direction), count in kernel.bytes.items() if direction == "read")),
        "dram_write": float(sum(count for (_, direction), count in kernel.bytes.items() if direction == "write")),
        "second": cycles / gpu.clock_hz,
    }
    return DeviceCost(
        cycles=cycles,
        compute_cycles=min(cycles, math.ceil(kernel.compute_s * gpu.clock_hz)),
        bytes=kernel.bytes,
        share=_shares(step, ops),
        events=events,
        bound="host" if wait > 0.5 * kernel.seconds else kernel.bound,
    )


def _shares(step: Step, ops: tuple[int, ...]) -> tuple[float, ...]:
    """Shares of the ops by MACs if the Work has any, else equal."""
    weights = [float(step.ops[index].macs) for index in ops]
    total = sum(weights)
    return tuple(weight / total for weight in weights) if total else (1.0 / len(ops),) * len(ops)
