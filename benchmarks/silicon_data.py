"""The measurements of models of others that are kept: runs of `silicon_models.py --measure` packed into one file, and read again.

Device times are the last run's that has the step; step times are kept for each run, and a step's time is the median over runs.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_data import FACTS

DATA = Path(__file__).parent / "data" / "h200_models.json.gz"


class MeasuredStep(NamedTuple):
    """One training step: its time in each run, device time by layer and phase and by aten op, and its peak memory."""

    title: str
    library: str
    step_s: tuple[float, ...]
    cells: Mapping[tuple[str, str], float]
    ops: Mapping[tuple[str, str], float]
    peak_bytes: int

    @property
    def seconds(self) -> float:
        return statistics.median(self.step_s)

    @property
    def kernels_s(self) -> float:
        return sum(self.cells.values())


def records(folder: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / "steps.json.gz", "rt") as stream:
        yield from (record for record in json.load(stream) if "error" not in record)


def title(record: Mapping[str, Any]) -> str:
    return f"{record['model']}, batch {record['batch']}, {record['precision'] or 'fp32'}"


def pack(folders: Sequence[Path], target: Path = DATA) -> None:
    """Oldest run first."""
    runs = [{title(record): record for record in records(folder)} for folder in folders]
    latest = {key: record for run in runs for key, record in run.items()}
    machines = []
    for folder in folders:
        with gzip.open(folder / "kernels.json.gz", "rt") as stream:
            machines.append(json.load(stream))
    rows = {(row["op"], row["type"], *row["shape"]): row for machine in machines for row in machine["kernels"]}
    facts = machines[-1]["facts"][0]
    document = {
        "device": {name: facts[name] for name in FACTS},
        "kernels": [[row["op"], row["type"], row["shape"], round(row["microseconds"], 2)] for row in rows.values()],
        "steps": [_packed(key, record, runs) for key, record in latest.items()],
    }
    with target.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode())


def _packed(key: str, record: Mapping[str, Any], runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    by_op: dict[tuple[str, str], float] = defaultdict(float)
    for op in record["ops"]:
        by_op[op["name"], op["phase"]] += op["us"]
    return {
        "title": key, "library": record["library"], "peak_bytes": record["peak_bytes"],
        "step_us": [round(statistics.median(run[key]["step_s"]) * 1e6) for run in runs if key in run],
        "cells": [
            [layer, phase, round(busy * 1e6, 1)] for layer, phase, _, busy, _ in record["by_layer_and_phase"] if phase != "idle"
        ],
        "ops": [[name, phase, round(us, 1)] for (name, phase), us in by_op.items()],
    }  # fmt: skip


def load(path: Path = DATA) -> tuple[dict[str, Any], dict[str, MeasuredStep]]:
    """Everything but the steps, and the steps by title."""
    with gzip.open(path, "rt") as stream:
        document = json.load(stream)
    steps = {
        step["title"]: MeasuredStep(
            step["title"], step["library"], tuple(span * 1e-6 for span in step["step_us"]),
            {(layer, phase): span * 1e-6 for layer, phase, span in step["cells"]},
            {(name, phase): span * 1e-6 for name, phase, span in step["ops"]}, step["peak_bytes"],
        )
        for step in document.pop("steps")
    }  # fmt: skip
    return document, steps
