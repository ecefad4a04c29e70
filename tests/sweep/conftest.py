"""A small study: one linear layer, whose training step runs in a few milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.sweep.study import Study

TABLE: dict[str, Any] = {
    "name": "small",
    "workloads": ["linear"],
    "machine": "npu",
    "metrics": ["by_phase.forward"],
    "objectives": {"time_s": "min", "energy_j": "min"},
    "axes": {
        "array.rows": [32, 64],
        "dram": {"from": "50 GB/s", "to": "200 GB/s", "steps": 3, "scale": "log"},
        "order": ["sequential", "interleaved"],
    },
    "tie": {"array.columns": "array.rows"},
}
TEXT = """
name = "small"
workloads = ["linear"]
machine = "npu"
metrics = ["by_phase.forward"]
objectives = { time_s = "min", energy_j = "min" }
[axes]
"array.rows" = [32, 64]
dram = { from = "50 GB/s", to = "200 GB/s", steps = 3, scale = "log" }
order = ["sequential", "interleaved"]
[tie]
"array.columns" = "array.rows"
"""


@pytest.fixture
def table() -> dict[str, Any]:
    import copy

    return copy.deepcopy(TABLE)


@pytest.fixture
def study(table: dict[str, Any]) -> Study:
    return Study.from_table(table)


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path
