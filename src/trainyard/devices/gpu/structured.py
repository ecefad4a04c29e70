"""Weights of 2:4 structure on a GPU with sparse tensor cores (A100 and later): twice the rate, bytes of values and indices.

A. Mishra et al.: Accelerating Sparse Deep Neural Networks. 2021. Matrix products alone (cuSPARSELt has no convolutions), and of
those the ones that run on tensor cores; forward, and dX where the mask is transposable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.devices.accelerator.structured import pattern_of
from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.costs import kernel_of
from trainyard.devices.gpu.traffic import Cache, Kernel
from trainyard.hardware.formats.structured import stored_bytes
from trainyard.ir import DTYPE_BYTES, Masks, MatMul, Step, TensorSpec
from trainyard.ir.protocols import KnowsStructure
from trainyard.ir.step import operand_order

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu

SPEEDUP = 2
"""NVIDIA A100 paper, 2020: 624 TFLOP/s sparse over 312 dense in fp16; so in every type and on every board since."""
_PRODUCTS = BoundedCache(entries=16)  # by board, step and digest of the masks


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Ops with a structured weight, and the step with its weights in their compressed size."""

    ops: frozenset[int]
    step: Step

    def applies_to(self, ops: tuple[int, ...]) -> bool:
        return len(ops) == 1 and ops[0] in self.ops

    def kernel(self, gpu: Gpu, call: Call, cache: Cache) -> Kernel:
        rates = {name: SPEEDUP * getattr(gpu, name) for name in ("tf32_macs", "half_macs", "fp8_macs", "int8_macs")}
        kernel = kernel_of(replace(gpu, **rates), self.step, call, cache)
        return kernel._replace(macs=kernel.macs // SPEEDUP)


def sparse_products(gpu: Gpu, step: Step, masks: Masks | None) -> Sparse | None:
    """The products with structured weights; None without any, or without sparse tensor cores."""
    if masks is None or not gpu.structured or not isinstance(masks, KnowsStructure):
        return None
    return _PRODUCTS.get((gpu, ByIdentity(step), masks.digest), lambda: _sparse_products(gpu, step, masks))


def _sparse_products(gpu: Gpu, step: Step, masks: Masks) -> Sparse | None:
    tensors, ops = list(step.tensors), set[int]()
    for number, op in enumerate(step.ops):
        if not isinstance(op.body, MatMul) or len(op.inputs) < 2:
            continue
        for side in (0, 1):
            pattern = pattern_of(step, op, side, masks)
            weight = op.inputs[operand_order(step, op)[side]]
            dtype = gpu.dtype(step.tensors[weight])
            if pattern is None or (pattern.kept, pattern.of) != (2, 4) or gpu.kind(dtype, convolution=False) in ("fp32", "fp64"):
                continue
            ops.add(number)
            width = DTYPE_BYTES[dtype]
            for tensor in (weight, step.base(weight)):
                spec: TensorSpec = step.tensors[tensor]
                tensors[tensor] = replace(spec, shape=(-(-stored_bytes(spec.elements, width, pattern) // width),), slope=())
    return Sparse(frozenset(ops), replace(step, tensors=tuple(tensors))) if ops else None
