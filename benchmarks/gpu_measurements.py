"""What a GPU really does: whole training steps of the zoo, by layer and phase.

Needs a CUDA GPU, torch and numpy. Writes `fp32-default.json.gz`, `bf16.json.gz`, ... into a folder, after every model.
"""

from __future__ import annotations

import gc
import gzip
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_machine import free, say

from trainyard.live.measurement.measure import Measurement, observe
from trainyard.workloads import zoo

# fmt: off
# model, batch, precision, keywords of observe: large batches that fill the device first, then the zoo's own small batches, which
# the host bounds, then graphs, autocast and one launch per parameter.
STEPS: tuple[tuple[str, int, str | None, dict[str, Any]], ...] = (
    ("resnet50",     64, None,         {}), ("resnet50",     64, "bf16",       {}),
    ("bert-base",    64, None,         {}), ("bert-base",    64, "bf16",       {}),
    ("vgg16",        64, None,         {}), ("vgg16",        64, "bf16",       {}),
    ("gpt2-small",    8, None,         {}), ("gpt2-small",    8, "bf16",       {}),
    ("mobilenet",   128, None,         {}), ("mobilenet",   128, "bf16",       {}),
    ("alexnet",     256, None,         {}), ("alexnet",     256, "bf16",       {}),
    ("squeezenet",  128, None,         {}), ("squeezenet",  128, "bf16",       {}),
    ("t5-small",     32, None,         {}), ("t5-small",     32, "bf16-mixed", {}),
    ("lstm-1024",   128, None,         {}), ("lstm-1024",   128, "bf16",       {}),
    ("resnet50",      8, None,         {}), ("bert-base",     8, None,         {}),
    ("alexnet",       8, None,         {}), ("resnet50",      8, None,         {"graph": True}),
    ("resnet50",     64, None,         {"foreach": False}),
    ("bert-base",    64, "tf32",       {}), ("resnet50",     64, "bf16-mixed", {}),
    ("bert-base",    64, "bf16-mixed", {}), ("googlenet",    64, None,         {}),
    ("yolov5l",       8, None,         {}), ("gnmt",         32, None,         {}),
    ("resnet18",    128, None,         {}), ("resnet34",     64, "bf16",       {}),
    ("vgg19",        32, "bf16",       {}), ("googlenet",    64, "bf16",       {}),
    ("bert-large",   16, "bf16",       {}), ("bert-large",   16, "tf32",       {}),
    ("yolov2-tiny",  32, None,         {}), ("gpt2-small",    2, "bf16",       {}),
    ("mobilenet",    16, None,         {}), ("squeezenet",    8, None,         {}),
)

# fmt: on


def as_record(measurement: Measurement) -> dict[str, Any]:
    kernels: dict[str, int] = {}
    rows = []
    for measured in measurement.ops:
        op, spent = measured.op, measured.time
        if not spent.kernels:
            continue
        rows.append(
            {
                "name": op.name,
                "layers": op.layers,
                "phase": str(op.phase),
                "operands": op.operands if len(op.operands) <= 24 else len(op.operands),
                "results": op.results if len(op.results) <= 24 else len(op.results),
                "macs": op.macs,
                "us": round(spent.seconds * 1e6, 3),
                "kernels": [kernels.setdefault(name, len(kernels)) for name in spent.kernels],
            }
        )
    result = measurement.result
    return {
        "step_s": measurement.step_s, "host_s": measurement.host_s,
        "dispatched": Counter(str(measured.op.phase) for measured in measurement.ops),
        "method": measurement.method, "unattributed_s": measurement.unattributed_s,
        "result": result.as_dict(),
        "by_layer_and_phase": [[*key, cost.time_s, cost.busy_s, cost.macs] for key, cost in result.group("layer", "phase").items()],
        "ops": rows, "kernels": list(kernels),
    }  # fmt: skip


Training = tuple[str, int, str | None, dict[str, Any]]


def models(folder: Path, deadline: float, device: str, steps: Iterable[Training], repeats: int) -> None:
    """Measures one after the other; a model that fails leaves its traceback in its place."""
    saved: dict[str, list[dict[str, Any]]] = {}
    for name, batch, precision, keywords in steps:
        if time.perf_counter() > deadline:
            say("out of time: the remaining models are left out")
            return
        begun = time.perf_counter()
        kind = precision or "fp32-default"
        entry: dict[str, Any] = {"model": name, "batch": batch, "precision": precision, "keywords": keywords}
        try:
            entry |= one_model(name, batch, precision, keywords, device, repeats)
            say(f"{name} batch {batch} {kind} {keywords or ''}: {entry['headline']}, took {time.perf_counter() - begun:.1f} s")
        except Exception:
            entry["error"] = traceback.format_exc()
            say(f"{name} batch {batch} {kind} failed: {entry['error'].strip().splitlines()[-1]}")
        saved.setdefault(kind, []).append(entry)
        with gzip.open(folder / f"{kind}.json.gz", "wt") as stream:
            json.dump(saved[kind], stream, default=str)
        if device == "cuda":
            free()


def one_model(name: str, batch: int, precision: Any, keywords: dict[str, Any], device: str, repeats: int) -> dict[str, Any]:
    gc.collect()
    gc.freeze()  # what earlier models left on the heap must not be searched again and again while this one is timed
    # The zoo asks for one update per parameter; torch's own default on a GPU is one kernel over many.
    options = {"foreach": True if device == "cuda" else None, **keywords}
    measurement = observe(
        zoo.build(name), batch=batch, device=device, repeats=repeats, warmup=5, precision=precision, name=name, **options
    )
    result = measurement.result
    idle = result.by_class["idle"].time_s
    headline = f"{result.time_s * 1e3:.2f} ms, idle {idle * 1e3:.2f} ms, {measurement.method}"
    return {"headline": headline, **as_record(measurement)}
