from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import BadInput
from trainyard.sweep import running
from trainyard.sweep.executors import Inline, LocalProcesses
from trainyard.sweep.metrics import shown
from trainyard.sweep.points import Materials
from trainyard.sweep.records import Record
from trainyard.sweep.store import Disk, Store
from trainyard.sweep.study import Point, Study

DEADLY = """
import os, signal
from dataclasses import fields
from trainyard.sweep.points import Materials

class Deadly(Materials):
    __slots__ = ()

    def run(self, point):
        if list(point.settings.values()) == [32, 32, 1e11, "sequential"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(point)

def deadly(materials):
    return Deadly(**{field.name: getattr(materials, field.name) for field in fields(Materials)})
"""


def test_any_number_of_workers_leaves_the_same_bytes(study: Study, tmp_path: Path) -> None:
    summaries = [
        running.sweep(study, tmp_path / "inline", Inline()),
        running.sweep(study, tmp_path / "two", LocalProcesses(2)),
    ]
    one, other = (summary.store for summary in summaries)
    for name in ("points.parquet", "manifest.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert summaries[0].front == summaries[1].front
    assert summaries[0].best == summaries[1].best
    again = running.sweep(study, tmp_path / "two", LocalProcesses(2))
    assert (again.computed, again.reused) == (0, 12)
    assert (one / "points.parquet").read_bytes() == (other / "points.parquet").read_bytes()


class Backwards(Inline):
    """Finishes the last point first."""

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]:
        return super().map(list(points)[::-1], materials)


def test_records_best_and_front_are_in_the_order_of_the_study_however_points_finish(study: Study, tmp_path: Path) -> None:
    one = running.sweep(study, tmp_path / "one", Inline())
    other = running.sweep(study, tmp_path / "other", Backwards())
    assert one.records == other.records
    assert one.best == other.best
    assert one.front == other.front


def test_a_worker_that_dies_costs_only_the_point_that_kills_it(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly_materials.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    from deadly_materials import deadly  # type: ignore[import-not-found]

    materials = Materials.of(study)
    points = list(materials.keyed(study.points()))
    executor = LocalProcesses(1)
    try:
        records = list(executor.map(points, deadly(materials)))
    finally:
        executor.close()
        sys.modules.pop("deadly_materials")
    assert sorted(record.key for record in records) == sorted(point.key for point in points)
    (failed,) = (record for record in records if record.failed)
    assert (failed.settings["dram_bytes_per_s"], failed.settings["order"]) == (1e11, "sequential")
    assert failed.error == "its process ended: killed by SIGKILL (out of memory?)"


def test_workers_with_other_code_are_refused(study: Study) -> None:
    materials = replace(Materials.of(study), code="other")
    executor = LocalProcesses(1)
    with pytest.raises(BadInput, match="other code of trainyard"):
        list(executor.map(study.points(), materials))
    assert not executor._team


def test_no_points_start_no_workers(study: Study) -> None:
    executor = LocalProcesses(2)
    assert list(executor.map([], Materials.of(study))) == []
    assert not executor._team
    with pytest.raises(BadInput, match="workers must be"):
        LocalProcesses(0)


class Interrupting(Inline):
    """A signal after some points."""

    def __init__(self, after: int, number: signal.Signals) -> None:
        self.after, self.number = after, number

    def map(self, points: Any, materials: Materials) -> Iterator[Record]:
        for number, record in enumerate(super().map(points, materials)):
            if number == self.after:
                os.kill(os.getpid(), self.number)
            yield record


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_goes_on_where_it_was(study: Study, tmp_path: Path, number: signal.Signals) -> None:
    whole = running.sweep(study, tmp_path / "whole", Inline())
    first = running.sweep(study, tmp_path / "cut", Interrupting(5, number))
    assert first.interrupted
    assert first.computed == 5
    assert len(Store(tmp_path / "cut")) == 5
    last = running.sweep(study, tmp_path / "cut", Inline())
    assert not last.interrupted
    assert (last.computed, last.reused) == (7, 5)
    assert (whole.store / "points.parquet").read_bytes() == (last.store / "points.parquet").read_bytes()


class Counting(Inline):
    """Remembers which points it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def map(self, points: Any, materials: Materials) -> Iterator[Record]:
        for point in points:
            self.ran.append(point.key)
            yield materials.run(point)


def test_failed_points_stay_until_they_are_tried_again(table: dict[str, Any], tmp_path: Path) -> None:
    table["axes"], table["tie"] = {"scratchpad": ["1 B", "8 MiB"]}, {}
    study = Study.from_table(table)
    first = running.sweep(study, tmp_path / "s", Inline())
    assert (first.points, first.computed, first.failed) == (2, 2, 1)
    assert first.best["time_s"].settings["scratchpad_bytes"] == 8 << 20
    counting = Counting()
    assert running.sweep(study, tmp_path / "s", counting).failed == 1
    assert not counting.ran
    again = running.sweep(study, tmp_path / "s", counting, retry_failed=True)
    assert (again.computed, again.reused, again.failed) == (1, 1, 1)
    assert len(counting.ran) == 1


def test_a_wider_study_runs_only_what_is_new(table: dict[str, Any], tmp_path: Path) -> None:
    running.sweep(Study.from_table(table), tmp_path / "s", Inline())
    table["axes"]["array.rows"] = [32, 64, 128]
    wider = running.sweep(Study.from_table(table), tmp_path / "s", Inline())
    assert (wider.points, wider.computed, wider.reused) == (18, 6, 12)


def test_progress_reports_points_done_and_the_best_value(study: Study, tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    summary = running.sweep(study, tmp_path / "s", Inline(), lambda *report: reports.append(report))
    assert reports[0] == (0, 12, "")
    assert reports[-1][:2] == (12, 12)
    best = min(record.metrics["time_s"] for record in summary.records)
    assert summary.best["time_s"].metrics["time_s"] == best
    assert f"best time_s {shown('time_s', best)}" in reports[-1][2]
    assert float(reports[-1][2].partition("/s")[0]) > 0


def test_a_metric_that_no_point_has_is_reported(table: dict[str, Any], tmp_path: Path) -> None:
    table["metrics"] = ["traffic_bytes.drum"]
    (note,) = running.sweep(Study.from_table(table), tmp_path / "s", Inline()).notes
    assert "no point has the metric traffic_bytes.drum (there are traffic_bytes.dram" in note


class FullAfter(Disk):
    """A disk that fills up."""

    def __init__(self, segments: int) -> None:
        self.left = segments

    def write(self, path: Path, content: bytes) -> None:
        if "parquet" in path.name:
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device")
        super().write(path, content)


def test_a_disk_that_fills_up_ends_the_sweep_and_spares_the_store(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "APPEND_S", 0.0)
    with pytest.raises(BadInput, match=r"cannot write .*000004.parquet: No space left on device"):
        running.sweep(study, tmp_path / "s", Inline(), disk=FullAfter(3))
    after = running.sweep(study, tmp_path / "s", Inline())
    assert (after.computed, after.reused) == (9, 3)


def test_the_room_is_the_function(study_file: Path) -> None:
    import trainyard.sweep as room

    summary = room(study_file, workers=1)  # type: ignore[operator]
    assert summary.points == 12
    assert summary.store == study_file.with_suffix(".sweep")
    with pytest.raises(BadInput, match="the executor has its own"):
        running.sweep(study_file, executor=Inline(), workers=2)


class Breaking(Inline):
    """Interrupted after three points, and its end goes wrong."""

    def map(self, points: Iterable[Point], materials: Materials) -> Iterator[Record]:
        yield from islice(Inline.map(self, points, materials), 3)
        raise KeyboardInterrupt

    def close(self) -> None:
        raise RuntimeError("no end")


def test_what_is_done_is_safe_before_an_executor_ends(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no end"):
        running.sweep(study, tmp_path / "s", Breaking())
    assert len(Store(tmp_path / "s")) == 3
