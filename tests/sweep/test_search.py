"""Searches: the same for any number of workers, resumed without running anything twice, better than chance."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import TrainyardError
from trainyard.sweep.executors import Inline, LocalProcesses
from trainyard.sweep.points import Materials
from trainyard.sweep.records import Record
from trainyard.sweep.running import Summary, sweep
from trainyard.sweep.search import objective
from trainyard.sweep.study import Point, Study

TABLE: dict[str, Any] = {
    "name": "found",
    "workloads": ["linear"],
    "machine": "npu",
    "objectives": {"time_s": "min", "energy_j": "min"},
    "axes": {
        "array.rows": [32, 64, 128],
        "dram": {"from": "50 GB/s", "to": "800 GB/s", "scale": "log"},
        "order": ["sequential", "interleaved"],
    },
    "search": {"trials": 18, "generation": 6, "seed": 3},
}


class Counting(Inline):
    """Runs points here, and counts them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def map(self, points: Any, materials: Materials) -> Any:
        for point in points:
            self.keys.append(point.key)
            yield materials.run(point)


def found(tmp_path: Path, name: str, table: dict[str, Any] = TABLE, **options: Any) -> tuple[Summary, str]:
    summary = sweep(Study.from_table(table), tmp_path / f"{name}.sweep", **options)
    return summary, hashlib.sha256((tmp_path / f"{name}.sweep" / "points.parquet").read_bytes()).hexdigest()


def test_any_number_of_workers_gives_the_same_store_and_a_second_run_computes_nothing(tmp_path: Path) -> None:
    executor = Counting()
    first, digest = found(tmp_path, "one", executor=executor)
    assert len(executor.keys) == len(set(executor.keys)) == first.computed
    assert first.points == 18
    assert found(tmp_path, "two", executor=LocalProcesses(2))[1] == digest
    again, same = found(tmp_path, "one", executor=(second := Counting()))
    assert not second.keys
    assert again.reused == first.computed
    assert same == digest


def test_a_search_that_was_stopped_walks_the_same_way(tmp_path: Path) -> None:
    class Stopping(Counting):
        def map(self, points: Any, materials: Materials) -> Any:
            for point in points:
                if len(self.keys) == 8:
                    raise KeyboardInterrupt
                self.keys.append(point.key)
                yield materials.run(point)

    stopped, _ = found(tmp_path, "stopped", executor=Stopping())
    assert stopped.interrupted
    assert stopped.computed == 8
    rest = Counting()
    whole, digest = found(tmp_path, "stopped", executor=rest)
    assert not whole.interrupted
    assert whole.reused == 8
    assert digest == found(tmp_path, "whole", executor=Inline())[1]


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_seeds_decide_and_ranges_are_kept(tmp_path: Path, sampler: str) -> None:
    table = {**TABLE, "search": {**TABLE["search"], "sampler": sampler}}
    summary, digest = found(tmp_path, "a", table, executor=Inline())
    for record in summary.records:
        assert 50e9 <= record.settings["dram_bytes_per_s"] <= 800e9
        assert record.settings["array.rows"] in (32, 64, 128)
    other = {**table, "search": {**table["search"], "seed": 4}}
    assert found(tmp_path, "b", other, executor=Inline())[1] != digest


class Valley(Inline):
    """Answers with a made-up landscape: one objective, lowest at 400 GB/s, 128 rows, interleaved."""

    def map(self, points: Any, materials: Materials) -> Any:
        return (self.record(point, materials) for point in points)

    def record(self, point: Point, materials: Materials) -> Record:
        told = point.settings
        far = abs(told["dram_bytes_per_s"] / 400e9 - 1) + abs(told["array.rows"] / 128 - 1) + (told["order"] == "sequential")
        return materials.record(point, {"time_s": 1.0 + far})


def test_a_search_gets_closer_than_chance(tmp_path: Path) -> None:
    best = {}
    for sampler in ("tpe", "random"):
        search = {"trials": 60, "generation": 10, "seed": 0, "sampler": sampler}
        table = {**TABLE, "objectives": {"time_s": "min"}, "search": search}
        summary, _ = found(tmp_path, sampler, table, executor=Valley())
        best[sampler] = summary.best["time_s"].metrics["time_s"]
    assert best["tpe"] < best["random"]
    assert best["tpe"] < 1.1


def test_failed_points_are_recorded_as_failed_and_the_search_goes_on(tmp_path: Path) -> None:
    class Broken(Valley):
        def record(self, point: Point, materials: Materials) -> Record:
            if point.settings["order"] == "sequential":
                return materials.record(point, {}, "no such order today")
            return super().record(point, materials)

    table = {**TABLE, "objectives": {"time_s": "min"}, "search": {"trials": 30, "generation": 5, "seed": 0}}
    summary, _ = found(tmp_path, "broken", table, executor=Broken())
    assert 0 < summary.failed < 30
    assert summary.best["time_s"].settings["order"] == "interleaved"


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=4))
def test_the_objective_is_the_geometric_mean(times: list[float]) -> None:
    records = [
        Record(key=str(number), workload="w", machine="m", settings={}, metrics={"time_s": time})
        for number, time in enumerate(times)
    ]
    (mean,) = objective(records, ["time_s"]) or [0.0]
    assert min(times) * (1 - 1e-9) <= mean <= max(times) * (1 + 1e-9)
    product = 1.0
    for time in times:
        product *= time
    assert mean ** len(times) == pytest.approx(product)
    failed = Record(key="f", workload="w", machine="m", settings={}, error="no")
    assert objective([*records, failed], ["time_s"]) is None
    assert objective(records, ["time_s", "energy_j"]) is None


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"trails": 3}, "did you mean 'trials'"),
        ({"trials": 0}, "from 1 to"),
        ({"trials": True}, "from 1 to"),
        ({"trials": 2.5}, "from 1 to"),
        ({"sampler": "nsga"}, "did you mean 'nsga2'"),
        ({"generation": 1}, "at least 2"),
        ({"seed": -1}, "from 0 to"),
    ],
)
def test_bad_searches_are_reported(search: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainyardError, match=said):
        Study.from_table({**TABLE, "search": search})


def test_a_search_needs_axes_and_lists_of_what_must_be_loaded_before() -> None:
    with pytest.raises(TrainyardError, match="nothing to choose"):
        Study.from_table({**TABLE, "axes": {}})
    with pytest.raises(TrainyardError, match=r"axes\.batch"):
        Study.from_table({**TABLE, "axes": {"batch": {"from": 1, "to": 8}}})
    assert Study.from_table({**TABLE, "axes": {"batch": {"from": 1, "to": 8, "steps": 4}}}).plan is not None
