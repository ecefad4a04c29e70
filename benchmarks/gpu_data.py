"""The measurements that are kept: several runs of `gpu_roofline.py --measure` packed into one small file, and read again.

Device times are the last run's (steps that fill the GPU differ by less than 1 % between runs). Step times are kept for each run,
because hosts differ; a step's measured time is the median over runs.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent / "data" / "h200.json.gz"
FACTS = (
    "name", "torch", "cuda", "cudnn", "python", "processor", "multi_processor_count", "L2_cache_size", "total_memory",
    "clock_rate", "memory_clock_rate",
)  # fmt: skip


class Measured(NamedTuple):
    """One training step: its time in each run, what the host needs for its phases, its device time by layer and phase."""

    model: str
    batch: int
    precision: str | None
    keywords: Mapping[str, Any]
    step_s: tuple[float, ...]
    host_s: Mapping[str, float]
    cells: Mapping[tuple[str, str], float]

    @property
    def title(self) -> str:
        extras = "".join(f", {key}={value}" for key, value in self.keywords.items())
        return f"{self.model}, batch {self.batch}, {self.precision or 'fp32'}{extras}"

    @property
    def seconds(self) -> float:
        return statistics.median(self.step_s)


def records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json.gz")):
        with gzip.open(path, "rt") as stream:
            yield from (record for record in json.load(stream) if "error" not in record)


def _key(record: Mapping[str, Any]) -> str:
    return json.dumps([record["model"], record["batch"], record["precision"], record["keywords"]])


def pack(folders: Sequence[Path], target: Path = DATA) -> None:
    """Oldest run first."""
    runs = [{_key(record): record for record in records(folder)} for folder in folders]
    machines = [json.loads((folder / "machine.json").read_text(encoding="utf-8")) for folder in folders]
    steps = [_packed(key, record, runs) for key, record in runs[-1].items()]
    document = {
        "device": _device(machines[-1]),
        "runs": len(folders),
        "machines": [_micro(machine) for machine in machines],
        "steps": steps,
    }
    target.parent.mkdir(exist_ok=True)
    with target.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode())


def _packed(key: str, record: Mapping[str, Any], runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    hosts = [run[key]["host_s"] for run in runs if run.get(key, {}).get("host_s")]
    return {
        **{name: record[name] for name in ("model", "batch", "precision", "keywords")},
        "step_us": [round(statistics.median(run[key]["step_s"]) * 1e6) for run in runs if key in run],
        "host_us": [{phase: round(span * 1e6) for phase, span in host.items()} for host in hosts],
        "cells": [
            [layer, phase, round(busy * 1e6, 1)] for layer, phase, _, busy, _ in record["by_layer_and_phase"] if phase != "idle"
        ],
    }


def _device(machine: Mapping[str, Any]) -> dict[str, Any]:
    facts = machine["facts"][0]
    lines = facts["nvidia_smi"].splitlines()
    driver = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Driver Version")), "")
    return {"driver": driver, **{name: facts[name] for name in FACTS}}


def _micro(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The micro-benchmarks, rounded; kernel names and per-kernel times are left out."""
    return {
        "launches": [[row["work"], _short(row["seconds"])] for row in machine["launches"]],
        "streams": [[row["work"], row["bytes"], row["buffers"], _short(row["seconds"])] for row in machine["streams"]],
        "products": [
            [*(row[name] for name in ("type", "layout", "count", "M", "N", "K")), _short(row["seconds"])]
            for row in machine["products"]
        ],
        "calls": [[row["work"], _short(row["seconds"]), row["kernels"]] for row in machine.get("calls", ())],
        "kernels": [
            [row["op"], row["type"], row["shape"], _short(row["microseconds"] * 1e-6)] for row in machine.get("kernels", ())
        ],
    }


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def load(path: Path = DATA) -> tuple[dict[str, Any], list[Measured]]:
    """Everything but the steps, and the steps."""
    with gzip.open(path, "rt") as stream:
        document = json.load(stream)
    steps = [
        Measured(
            step["model"], step["batch"], step["precision"], step["keywords"],
            tuple(span * 1e-6 for span in step["step_us"]),
            {phase: statistics.median(host[phase] for host in step["host_us"]) * 1e-6 for phase in step["host_us"][-1]},
            {(layer, phase): span * 1e-6 for layer, phase, span in step["cells"]},
        )
        for step in document.pop("steps")
    ]  # fmt: skip
    return document, steps
