"""Weights of 2:4 structure on a GPU with sparse tensor cores (A100 and later): twice the rate, bytes of values and places.

A. Mishra et al.: Accelerating Sparse Deep Neural Networks. 2021. Matrix products alone (cuSPARSELt has no convolutions), and of
those the ones that run on tensor cores; forward, and dX where the mask is transposable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from trainyard.caches import ByIdentity
from trainyard.devices.accelerator.structured import pattern_of
from trainyard.devices.gpu.calls import Call
from trainyard.devices.gpu.costs import kernel_of
from trainyard.devices.gpu.traffic import Cache, Kernel
from trainyard.hardware.formats.structured import stored_bytes
from trainyard.ir import DTYPE_BYTES, Masks, MatMul, Step, TensorSpec
from trainyard.ir.letters import operand_order
from trainyard.ir.protocols import KnowsStructure

if TYPE_CHECKING:
    from trainyard.devices.gpu.device import Gpu

FASTER = 2
"""NVIDIA A100 paper, 2020: 624 TFLOP/s sparse over 312 dense in fp16; so in every type and on every board since."""


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Ops with a structured weight, and the step as they see it: with weights as small as they are stored."""

    ops: frozenset[int]
    step: Step

    def takes(self, ops: tuple[int, ...]) -> bool:
        return len(ops) == 1 and ops[0] in self.ops

    def kernel(self, gpu: Gpu, call: Call, cache: Cache) -> Kernel:
        rates = {name: FASTER * getattr(gpu, name) for name in ("tf32_macs", "half_macs", "fp8_macs")}
        found = kernel_of(replace(gpu, **rates), self.step, call, cache)
        return found._replace(macs=found.macs // FASTER)


def sparse_products(gpu: Gpu, step: Step, masks: Masks | None) -> Sparse | None:
    """None where the board or the masks have nothing of the kind."""
    if masks is None or not gpu.structured or not isinstance(masks, KnowsStructure):
        return None
    known = _remembered(gpu, ByIdentity(step), masks.digest)
    if not known:
        known.append(_look(gpu, step, masks))
    return known[0]


@lru_cache(maxsize=16)
def _remembered(gpu: Gpu, same: ByIdentity[Step], digest: str) -> list[Sparse | None]:
    """A place for what was found; the digest stands for the masks."""
    return []


def _look(gpu: Gpu, step: Step, masks: Masks) -> Sparse | None:
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
