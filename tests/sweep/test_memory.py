"""Points that do not fit their machine's memory: kept with their numbers, ranked only where a study asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard import cli
from trainyard.errors import BadInput
from trainyard.sweep import page, running
from trainyard.sweep.executors import Inline
from trainyard.sweep.study import Study

TEXT = """
name = "batches"
workloads = ["linear"]
machine = "npu(dram_capacity=1 MB)"
objectives = { samples_per_s = "max" }
[axes]
batch = [1, 8, 4096]
"""
"""A batch of 4096 is the fastest by far, and its inputs alone take 67 MB."""


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    path = tmp_path / "batches.toml"
    path.write_text(TEXT)
    return path


def test_a_point_that_does_not_fit_is_not_the_best(capsys: pytest.CaptureFixture[str], batches: Path) -> None:
    assert cli.main(["sweep", str(batches), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 point needs more memory than the machine has (up to 67" in out
    assert "--any-memory" in out
    assert [line.split()[0] for line in out.splitlines() if line.split()[0].isdigit()] == ["8", "1"]  # the table, then the warning
    summary = running.sweep(Study.load(batches), batches.with_suffix(".sweep"), Inline())
    assert (summary.overfull, summary.reused) == (1, 3)
    assert [record.settings["batch"] for record in summary.front] == [8]
    share = max(record.metrics["memory_share"] for record in summary.records)
    assert share == pytest.approx(max(record.metrics["peak_memory_bytes.device memory"] for record in summary.records) / 1e6)
    assert "too large for their memory" in page.page(Study.load(batches), summary.records)


def test_a_study_may_ask_for_all_points(capsys: pytest.CaptureFixture[str], batches: Path) -> None:
    assert cli.main(["sweep", str(batches), "--workers", "1", "--any-memory", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["front"][0]["settings"]["batch"] == 4096
    asked = Study.from_table({**Study.load(batches).table, "any_memory": True})
    summary = running.sweep(asked, batches.with_suffix(".other"), Inline())
    assert summary.best["samples_per_s"].settings["batch"] == 4096
    with pytest.raises(BadInput, match="any_memory must be true or false, got 'yes'"):
        Study.from_table({**Study.load(batches).table, "any_memory": "yes"})


def test_a_search_takes_no_point_that_does_not_fit_for_a_good_one(batches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bool, int]] = []
    study = Study.from_table({**Study.load(batches).table, "search": {"trials": 6, "sampler": "random", "generation": 6}})

    class Trials:
        """Asks for each batch in turn, and writes down what it is told."""

        def __init__(self) -> None:
            self.asked = -1

        def ask(self) -> Trials:
            trial = Trials()
            self.asked = trial.asked = self.asked + 1
            return trial

        def suggest_int(self, name: str, low: int, high: int) -> int:
            return self.asked % (high + 1)

        def tell(self, trial: Trials, values: list[float] | None = None, state: object = None) -> None:
            told.append((values is not None, trial.asked % 3))

    monkeypatch.setattr("trainyard.sweep.search._study", lambda *_: Trials())
    running.sweep(study, batches.with_suffix(".searched"), Inline())
    assert sorted(set(told)) == [(False, 2), (True, 0), (True, 1)]
