"""Measures on a GPU what SIGMA's Figs. 2 and 3 show of a V100: products of its suite, dense and sparse, and their share of steps.

python scripts/measure_products.py FILE        one or two minutes on one H200; writes JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch

from trainyard.ir import MatMul
from trainyard.live.measure import observe
from trainyard.live.products import time_product
from trainyard.live.training_step import Precision
from trainyard.papers.sigma import SUITE
from trainyard.workloads import zoo

REGULAR = MatMul(2048, 2048, 2048)  # SIGMA, Sec. III-A
SPARSITIES = (0.5, 0.8)  # SIGMA, Sec. III-A
DENSE = ("fp32", "fp16", "bf16", "tf32")
MODELS: tuple[tuple[str, int, Precision | None], ...] = (
    ("transformer-324m", 1, None), ("transformer-324m", 32, None), ("transformer-324m", 32, "fp16"),
    ("gnmt", 32, None), ("gnmt", 128, None), ("gnmt", 128, "fp16"),
)  # fmt: skip


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
            found = observe(zoo.build(model), batch=batch, precision=precision, repeats=10, name=model)
        except Exception as error:  # the others still count
            print(f"{model} {batch} {precision}: {type(error).__name__}: {error}", flush=True)
            continue
        spent: dict[str, float] = {}
        for measured in found.ops:
            kind = "product" if measured.op.macs else measured.op.name
            spent[kind] = spent.get(kind, 0.0) + measured.time.seconds
        spent = dict(sorted(spent.items(), key=lambda item: -item[1]))
        about = {"model": model, "batch": batch, "precision": precision or "fp32", "step_s": median(found.step_s)}
        rows.append({**about, "device_s": spent})
        print({**about, "device_s": dict(list(spent.items())[:6])}, flush=True)
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    found = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "products": products(),
        "breakdowns": breakdowns(),
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
