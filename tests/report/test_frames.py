"""Rows as data: what is written is what is read."""

from __future__ import annotations

import csv
import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from trainyard.errors import BadInput, MissingExtra
from trainyard.report import frames
from trainyard.results.result import Result

NAMES = ["op", "layer", "phase", "resource", "kind", "bound", "time_s", "busy_s", "energy_j", "macs",
         "dram_read_bytes", "dram_spill_bytes", "dram_write_bytes", "ring_write_bytes"]  # fmt: skip


def test_a_frame_has_a_line_for_each_row_and_sums_to_the_result(result: Result) -> None:
    frame = result.to_frame()
    assert set(frame.columns) == set(NAMES)
    assert len(frame) == len(result.rows)
    assert frame["time_s"].sum() == pytest.approx(result.time_s)
    assert frame["energy_j"].sum() == pytest.approx(result.energy_j)
    assert frame["macs"].sum() == result.macs
    moved = frame[[name for name in NAMES if name.startswith("dram_")]].to_numpy().sum()
    assert moved == result.traffic_bytes["dram"]
    assert frame["macs"].dtype.kind == "i"


def test_several_steps_are_reported_per_step(result: Result) -> None:
    frame = replace(result, steps=4).to_frame()
    assert frame["time_s"].sum() == pytest.approx(result.time_s / 4)
    assert frame["dram_read_bytes"].sum() == pytest.approx(result.to_frame()["dram_read_bytes"].sum() / 4)


def test_parquet_comes_back_with_its_origin(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    result.to_parquet(path)
    pd.testing.assert_frame_equal(pd.read_parquet(path), result.to_frame())
    metadata = pq.read_schema(path).metadata
    assert metadata[b"machine"] == b"npu"
    assert metadata[b"config_hash"] == result.config_hash.encode()


def test_csv_comes_back_exactly(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    result.to_csv(path)
    with path.open(newline="") as stream:
        read = list(csv.DictReader(stream))
    frame = result.to_frame()
    assert list(read[0]) == list(frame.columns)
    assert [float(line["time_s"]) for line in read] == frame["time_s"].tolist()
    assert [line["layer"] for line in read] == list(result.rows.layer)
    assert [int(line["dram_write_bytes"]) for line in read] == frame["dram_write_bytes"].tolist()


def test_equal_results_write_equal_bytes(make_result: Callable[..., Result], tmp_path: Path) -> None:
    for number in (1, 2):
        made = make_result(layers=4)
        made.to_csv(tmp_path / f"{number}.csv")
        made.to_parquet(tmp_path / f"{number}.parquet")
    for ending in ("csv", "parquet"):
        assert (tmp_path / f"1.{ending}").read_bytes() == (tmp_path / f"2.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("package", "use"), [("pandas", frames.frame), ("pyarrow", lambda r: frames.write_parquet(r, "r.parquet"))]
)
def test_a_missing_package_names_the_extra(
    result: Result, package: str, use: Callable[[Result], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'trainyard\[report\]'"):
        use(result)


@pytest.mark.parametrize("method", ["to_csv", "to_parquet", "to_html", "to_perfetto"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    result: Result, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    path = tmp_path / "out.file"
    with pytest.raises(BadInput, match=r"cannot write .*out\.file: No space left on device"):
        getattr(result, method)(path)
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_survives_a_full_disk(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.csv"
    path.write_text("old")

    class Full:
        def __init__(self, *_: object, **__: object) -> None: ...

        def writerow(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("csv.writer", Full)
    with pytest.raises(BadInput, match="No space left"):
        result.to_csv(path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
