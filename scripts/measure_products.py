"""Measures on a GPU what SIGMA's Figs. 2 and 3 show of a V100: products of its suite, dense and sparse, and their share of steps.

python scripts/measure_products.py FILE        one or two minutes on one H200; writes JSON

Efficiency is multiplications of two non-zeros over those that the device could do in the time, as SIGMA's Fig. 3 has it. The sparse
product is torch's CSR product (cuSPARSE), fp32, with the sparse operand on the left as the library wants it. A time is that of one
product in a queue of equal ones, so that the host's launches are not in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.live.measurement.measure import observe
from trainyard.live.measurement.training_step import Precision, torch_device
from trainyard.papers.sigma.suite import SUITE
from trainyard.workloads import zoo

REGULAR = MatMul(2048, 2048, 2048)  # SIGMA, Sec. III-A
SPARSITIES = (0.5, 0.8)  # SIGMA, Sec. III-A
DENSE = ("fp32", "fp16", "bf16", "tf32")
MODELS: tuple[tuple[str, int, Precision | None], ...] = (
    ("transformer-324m", 1, None), ("transformer-324m", 32, None), ("transformer-324m", 32, "fp16"),
    ("gnmt", 32, None), ("gnmt", 128, None), ("gnmt", 128, "fp16"),
)  # fmt: skip
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
    nonzeros = int((left.values() if library == "csr" else left).count_nonzero())
    return TimedProduct(op=op, precision=precision, nonzero=nonzeros / (op.M * op.K), library=library, seconds=seconds)


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
    target = torch_device(device)
    generator = torch.Generator(target).manual_seed(seed)
    left = torch.randn(op.M, op.K, device=target, generator=generator)
    if nonzero < 1:
        left *= torch.rand(op.M, op.K, device=target, generator=generator) < nonzero
    right = torch.randn(op.K, op.N, device=target, generator=generator).to(TYPES[precision])
    left = left.to(TYPES[precision])
    return left.to_sparse_csr() if library == "csr" else left, right


def _seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Of one call, in the fastest of several queues of calls."""
    for _ in range(3):
        work()
    once = max(_queue(work, device, 1), 1e-7)
    calls = max(1, min(1000, round(LEAST_S / once)))
    return min(_queue(work, device, calls) for _ in range(repeats)) / calls


def _queue(work: Callable[[], Any], device: torch.device, calls: int) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def products() -> list[dict[str, Any]]:
    rows = []
    for op in (REGULAR, *SUITE):
        runs = [(precision, 0.0, "dense") for precision in DENSE] + [("fp32", zeros, "csr") for zeros in SPARSITIES]
        for precision, zeros, library in runs:
            timed = time_product(op, precision=precision, nonzero=1 - zeros, library=library)
            row = {"M": op.M, "N": op.N, "K": op.K, "precision": precision, "sparsity": zeros, "library": library}
            rows.append({**row, "nonzero": timed.nonzero, "seconds": timed.seconds})
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
    return rows


def breakdowns() -> list[dict[str, Any]]:
    rows = []
    for model, batch, precision in MODELS:
        try:
            measurement = observe(zoo.build(model), batch=batch, precision=precision, repeats=10, name=model)
        except Exception as error:  # the others still count
            print(f"{model} {batch} {precision}: {type(error).__name__}: {error}", flush=True)
            continue
        spent: dict[str, float] = {}
        for measured in measurement.ops:
            kind = "product" if measured.op.macs else measured.op.name
            spent[kind] = spent.get(kind, 0.0) + measured.time.seconds
        spent = dict(sorted(spent.items(), key=lambda item: -item[1]))
        about = {"model": model, "batch": batch, "precision": precision or "fp32", "step_s": median(measurement.step_s)}
        rows.append({**about, "device_s": spent})
        print({**about, "device_s": dict(list(spent.items())[:6])}, flush=True)
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    document = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "products": products(),
        "breakdowns": breakdowns(),
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
