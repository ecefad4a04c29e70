"""Models of others held against a real GPU: measure there, predict anywhere.

python benchmarks/silicon_models.py --measure FOLDER             on a machine with a CUDA GPU and the libraries: about eight minutes
python benchmarks/silicon_models.py --pack FOLDER [FOLDER ...]   anywhere: runs, oldest first, into data/h200_models.json.gz
python benchmarks/silicon_models.py --predict [--only NAME]      anywhere, with the libraries: predicted, measured, ratio; the page
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coverage_cases.torchvision_ops import provide
from silicon_cases import CASES, HELD_OUT, Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", metavar="FOLDER", type=Path, help="where the measurements go")
    parser.add_argument("--pack", metavar="FOLDER", type=Path, nargs="+", help="folders of measurements, oldest first")
    parser.add_argument("--predict", action="store_true", help="predict and compare; of all cases, writes docs/gpu_models.md")
    parser.add_argument("--only", default="", help="beginnings of titles, separated by semicolons")
    parser.add_argument("--seconds", type=float, default=450.0, help="no model is begun after this time")
    parser.add_argument("--kernel-seconds", type=float, default=150.0, help="micro-benchmarks stop after this time")
    parser.add_argument("--repeats", type=int, default=30, help="timed steps of each model")
    parser.add_argument("--device", default="cuda", help="'cpu' tries the measuring itself, at batch 2")
    chosen = parser.parse_args()
    provide()
    if chosen.measure is None and chosen.pack is None and not chosen.predict:
        parser.error("give --measure FOLDER, --pack FOLDER ... or --predict")
    if chosen.measure is not None:
        measure(chosen)
    if chosen.pack is not None:
        from silicon_data import pack

        pack(chosen.pack)
    if chosen.predict:
        from silicon_predictions import predict

        predict(list(selected(chosen.only)), target=None if chosen.only else Path("docs/gpu_models.md"))


def selected(only: str) -> Iterator[Case]:
    names = tuple(name.strip() for name in only.split(";") if name.strip())
    yield from (case for case in (*CASES, *HELD_OUT) if not names or case.title.startswith(names))


def measure(chosen: argparse.Namespace) -> None:
    begun = time.perf_counter()
    chosen.measure.mkdir(parents=True, exist_ok=True)
    if chosen.device == "cuda":
        micro(chosen.measure, begun + chosen.kernel_seconds)
    steps(chosen, begun + chosen.seconds)


def micro(folder: Path, deadline: float) -> None:
    """The facts of the machine and the micro-benchmarks of single calls."""
    from gpu_machine import machine_facts, say
    from silicon_kernels import kernels

    document: dict[str, Any] = {"facts": [machine_facts()], "kernels": []}
    try:
        for row in kernels() if time.perf_counter() < deadline else ():
            document["kernels"].append(row)
            if time.perf_counter() > deadline:
                say("out of time: the remaining micro-benchmarks are left out")
                break
    except Exception:
        document["error"] = traceback.format_exc()
        say(f"micro-benchmarks failed: {document['error'].strip().splitlines()[-1]}")
    say(f"{len(document['kernels'])} micro-benchmarks")
    with gzip.open(folder / "kernels.json.gz", "wt") as stream:
        json.dump(document, stream, default=str)


def steps(chosen: argparse.Namespace, deadline: float) -> None:
    from gpu_machine import free, say

    saved: list[dict[str, Any]] = []
    for case in selected(chosen.only):
        if time.perf_counter() > deadline:
            say("out of time: the remaining models are left out")
            return
        begun = time.perf_counter()
        entry: dict[str, Any] = {"model": case.model, "library": case.library, "batch": case.batch, "precision": case.precision}
        try:
            entry |= one_step(case, chosen.device, chosen.repeats)
            say(f"{case.title}: {entry['headline']}, took {time.perf_counter() - begun:.1f} s")
        except Exception:
            entry["error"] = traceback.format_exc()
            say(f"{case.title} failed: {entry['error'].strip().splitlines()[-1]}")
        saved.append(entry)
        with gzip.open(chosen.measure / "steps.json.gz", "wt") as stream:
            json.dump(saved, stream, default=str)
        if chosen.device == "cuda":
            free()


def one_step(case: Case, device: str, repeats: int) -> dict[str, Any]:
    import torch
    from gpu_measurements import as_record

    from trainyard.live.measurement.measure import observe

    torch.manual_seed(0)
    with torch.device(device):
        example = case.build(case.batch if device == "cuda" else 2)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    measurement = observe(
        example.model, example.inputs, example.targets, loss=example.loss, optimizer=example.optimizer, device=device,
        repeats=repeats, warmup=5, precision=case.precision, name=case.model,  # type: ignore[arg-type]  # a Literal, in a table
    )  # fmt: skip
    result = measurement.result
    idle = result.by_class["idle"].time_s
    headline = f"{result.time_s * 1e3:.2f} ms, idle {idle * 1e3:.2f} ms"
    memory = max(result.peak_memory_bytes.values(), default=0)
    return {"headline": headline, "peak_bytes": memory, "parameters": sum(p.numel() for p in example.model.parameters()),
            **as_record(measurement)}  # fmt: skip


if __name__ == "__main__":
    main()
