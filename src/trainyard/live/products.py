"""What a real device makes of one matrix product: dense, or with one operand compressed and handed to the sparse library.

Efficiency is multiplications of two non-zeros over those that the device could do in the time, as SIGMA's Fig. 3 has it. On a GPU
the sparse product is torch's CSR product (cuSPARSE), fp32, the sparse operand on the left as the library wants it. The time is
that of a product in a queue of equal ones, so that the host's launches are not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.live.training_step import torch_device

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LIBRARIES = ("dense", "csr")
LEAST_S = 0.02
"""A queue of products is at least this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProduct:
    """`nonzero` is the share of the left operand that is not zero, `library` dense or csr; `seconds` are of the best queue."""

    op: MatMul
    precision: str
    nonzero: float
    library: str
    seconds: float

    @property
    def useful_macs(self) -> float:
        return self.op.macs * self.nonzero

    def efficiency(self, peak_macs_per_s: float) -> float:
        return self.useful_macs / self.seconds / peak_macs_per_s


def time_product(
    op: MatMul,
    *,
    precision: str = "fp32",
    nonzero: float = 1.0,
    library: str = "dense",
    device: str = "cuda",
    seed: int = 0,
    repeats: int = 5,
) -> TimedProduct:
    """Times (M,K) x (K,N); a share `nonzero` of the left operand is kept, at random places."""
    left, right = operands(op, precision=precision, nonzero=nonzero, library=library, device=device, seed=seed)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        seconds = _seconds(lambda: left @ right, right.device, repeats)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    kept = int((left.values() if library == "csr" else left).count_nonzero())
    return TimedProduct(op=op, precision=precision, nonzero=kept / (op.M * op.K), library=library, seconds=seconds)


def operands(op: MatMul, *, precision: str, nonzero: float, library: str, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """(M,K), compressed where `library` is csr, and (K,N), which is dense."""
    if precision not in TYPES:
        raise UnknownName("precision", precision, TYPES)
    if library not in LIBRARIES:
        raise UnknownName("library", library, LIBRARIES)
    if library == "csr" and precision == "tf32":
        raise BadInput("the sparse library has no TF32 products: write precision='fp32', 'bf16' or 'fp16', or library='dense'")
    if not 0 < nonzero <= 1:
        raise BadInput(f"nonzero is a share above 0 and at most 1, got {nonzero!r}")
    if op.count != 1:
        raise BadInput(f"one product is timed at a time, got {op.count}")
    place = torch_device(device)
    generator = torch.Generator(place).manual_seed(seed)
    left = torch.randn(op.M, op.K, device=place, generator=generator)
    if nonzero < 1:
        left *= torch.rand(op.M, op.K, device=place, generator=generator) < nonzero
    right = torch.randn(op.K, op.N, device=place, generator=generator).to(TYPES[precision])
    left = left.to(TYPES[precision])
    return left.to_sparse_csr() if library == "csr" else left, right


def _seconds(work: Callable[[], Any], place: torch.device, repeats: int) -> float:
    """Of one call, in the fastest of several queues of calls."""
    for _ in range(3):
        work()
    once = max(_queue(work, place, 1), 1e-7)
    calls = max(1, min(1000, round(LEAST_S / once)))
    return min(_queue(work, place, calls) for _ in range(repeats)) / calls


def _queue(work: Callable[[], Any], place: torch.device, calls: int) -> float:
    if place.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(place)
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
