"""A point that takes longer than its time limit is stopped, recorded and shown; the others are run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import main
from trainyard.errors import BadInput
from trainyard.sweep import running
from trainyard.sweep.executors import Inline, LocalProcesses
from trainyard.sweep.points import Materials
from trainyard.sweep.study import Study

ENDLESS = """
import ctypes
from dataclasses import fields
from trainyard.sweep.points import Materials

class Endless(Materials):
    __slots__ = ()

    def run(self, point):
        if list(point.settings.values()) == [32, 32, 1e11, "sequential"]:
            ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock held, as a compiled loop does
        return super().run(point)

def endless(materials):
    return Endless(**{field.name: getattr(materials, field.name) for field in fields(Materials)})
"""
LIMIT_S = 5.0
"""Much more than a point of the small study takes, its first imports included."""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "endless_materials.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    import endless_materials  # type: ignore[import-not-found]

    yield endless_materials.endless
    sys.modules.pop("endless_materials")


def test_a_point_over_the_limit_is_recorded_and_the_others_are_run(
    study: Study, tmp_path: Path, endless: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Materials.of
    with monkeypatch.context() as slow:
        slow.setattr(Materials, "of", lambda study: endless(original(study)))
        first = running.sweep(study, tmp_path / "s", workers=1, point_timeout_s=LIMIT_S)
    assert (first.points, first.computed, first.failed, first.timed_out) == (12, 12, 1, 1)
    (stopped,) = [record for record in first.records if record.failed]
    assert (stopped.settings["dram_bytes_per_s"], stopped.settings["order"]) == (1e11, "sequential")
    assert stopped.error == "took longer than 5 s (--point-timeout): --retry-failed runs it again"
    again = running.sweep(study, tmp_path / "s", Inline())
    assert (again.computed, again.timed_out, again.as_dict()["timed_out"]) == (0, 1, 1)
    last = running.sweep(study, tmp_path / "s", Inline(), retry_failed=True)
    assert (last.computed, last.failed, last.timed_out) == (1, 0, 0)
    whole = running.sweep(study, tmp_path / "whole", Inline())
    assert (whole.store / "points.parquet").read_bytes() == (last.store / "points.parquet").read_bytes()


def test_the_command_counts_points_over_the_limit(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    from trainyard.cli.sweep import _show

    record = Materials.of(study).record(next(iter(study.points())), {}, "took longer than 1 s (--point-timeout)")
    counts = {"points": 3, "computed": 3, "reused": 0, "failed": 2, "timed_out": 1, "overfull": 0}
    _show(study, running.Summary(**counts, store=Path("s"), best={}, front=[], records=[record]))  # type: ignore[arg-type]
    assert "2 failed (1 over the time limit)" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_limit_that_is_no_time_is_refused(limit: Any) -> None:
    with pytest.raises(BadInput, match="time limit of a point"):
        LocalProcesses(1, point_s=limit)


def test_a_limit_and_an_executor_are_refused_together(study: Study, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give it to the executor"):
        running.sweep(study, tmp_path / "s", Inline(), point_timeout_s=1.0)


def test_the_command_refuses_a_limit_that_is_no_time(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(study_file), "--point-timeout", "3 apples"]) == 2
    assert "--point-timeout: '3 apples' is not a quantity in s" in capsys.readouterr().err
    assert main(["sweep", str(study_file), "--point-timeout", "0 s"]) == 2
    assert "a number of seconds above 0" in capsys.readouterr().err
