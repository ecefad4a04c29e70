"""`trainyard sweep` as a process: killed, interrupted, started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trainyard import cli
from trainyard.sweep import running
from trainyard.sweep.executors import Inline
from trainyard.sweep.store import Store

LONG = """
name = "long"
workloads = ["linear"]
machine = "npu"
objectives = { time_s = "min", energy_j = "min" }
[axes]
"array.rows" = { from = 8, to = 128, step = 8 }
dram = { from = "50 GB/s", to = "200 GB/s", steps = 6, scale = "log" }
"""
POINTS = 16 * 6
PROGRAM = """
import sys, time
from trainyard import cli
from trainyard.sweep import running

taken = running.Run._take

def slowly(run, record):  # however fast the computer, there is time to kill it between two segments
    time.sleep(0.01)
    taken(run, record)

running.APPEND_S, running.Run._take = 0.03, slowly
sys.exit(cli.main())
"""
PATIENCE_S = 60


@pytest.fixture
def long_study(tmp_path: Path) -> Path:
    path = tmp_path / "long.toml"
    path.write_text(LONG)
    return path


def started(study: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, "sweep", str(study), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def segments(store: Path) -> list[Path]:
    return sorted((store / "segments").glob("*.parquet")) if (store / "segments").is_dir() else []


def children(process: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_kill_at_several_moments_and_start_again_to_the_end(long_study: Path, tmp_path: Path) -> None:
    whole = running.sweep(long_study, tmp_path / "whole", Inline())
    store = tmp_path / "long.sweep"
    for moment, workers in ((1, "1"), (6, "2")):
        before = len(segments(store))
        process = started(long_study, "--workers", workers)
        until(
            lambda before=before, moment=moment, process=process: len(segments(store)) >= before + moment or not alive(process.pid)
        )  # type: ignore[misc]
        team = children(process.pid)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was done before it was killed"
        until(lambda team=team: not any(map(alive, team)))  # type: ignore[misc]  # nobody is left behind
        assert not (store / "points.parquet").exists()
    keys = [key for file in segments(store) for key in _keys(file)]
    assert 0 < len(keys) < POINTS
    assert len(keys) == len(set(keys))  # none was run again that was safe
    end = started(long_study, "--workers", "1", "--json", "-")
    out, err = end.communicate(timeout=PATIENCE_S)
    assert end.returncode == 0, err
    said = json.loads(out)
    assert (said["points"], said["reused"], said["computed"]) == (POINTS, len(keys), POINTS - len(keys))
    assert (store / "points.parquet").read_bytes() == (whole.store / "points.parquet").read_bytes()
    assert (store / "manifest.json").read_bytes() == (whole.store / "manifest.json").read_bytes()
    assert sorted(entry.name for entry in store.iterdir()) == ["lock", "manifest.json", "points.parquet"]


def _keys(segment: Path) -> list[str]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(segment)["key"].to_pylist()  # type: ignore[no-any-return]


def test_an_interruption_leaves_a_usable_store_and_says_how_to_go_on(long_study: Path) -> None:
    store = long_study.with_suffix(".sweep")
    process = started(long_study, "--workers", "1", "--json", "-")
    until(lambda: len(segments(store)) >= 2 or not alive(process.pid))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    said = json.loads(out)
    assert said["interrupted"]
    assert 0 < said["computed"] < POINTS
    assert f"{said['computed']} of {POINTS} points are in {store}; the same command goes on from there" in err
    assert len(Store(store)) == said["computed"]
    assert not segments(store)  # compacted


@pytest.fixture
def trainyard(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: Any) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_what_the_command_says_and_writes(trainyard: Callable[..., tuple[int, str, str]], study_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "small.sweep"
    code, out, _ = trainyard("sweep", study_file, "--dry-run")
    assert (code, out) == (0, f"small: 12 points, 0 of them in {store}, 12 to run\n")
    assert not store.exists()
    page, lines = tmp_path / "p.html", tmp_path / "p.csv"
    code, out, err = trainyard("sweep", study_file, "--workers", 1, "--html", page, "--csv", lines)
    assert code == 0, err
    assert "small: 12 points, 12 computed, 0 from before" in out
    assert "Pareto front of time_s (min), energy_j (min)" in out
    assert f"store: {store}" in out
    assert len(lines.read_text().splitlines()) == 13
    text = page.read_text()
    assert 'data-figure="scatter"' in text
    assert 'data-figure="parallel"' in text
    assert text.count("<tr>") == 13
    assert "is not finished" not in text
    assert Store(store).manifest["points"] == 12
    assert "src=" not in text.partition("<script>")[0]  # nothing is fetched
    code, out, _ = trainyard("sweep", study_file, "--dry-run", "--json", "-")
    assert json.loads(out) == {"points": 12, "settings": 12, "stored": 12, "store": str(store)}
    code, out, _ = trainyard("sweep", study_file, "--workers", 1, "--json", "-")
    said = json.loads(out)
    assert (said["computed"], said["reused"], said["failed"]) == (0, 12, 0)
    assert {record["key"] for record in said["front"]} <= Store(store).keys()


def test_the_size_of_a_search(trainyard: Callable[..., tuple[int, str, str]], study_file: Path, tmp_path: Path) -> None:
    study_file.write_text(f"{study_file.read_text()}[search]\ntrials = 30\n")
    _, out, _ = trainyard("sweep", study_file, "--dry-run", "--json", "-")
    assert json.loads(out) == {"trials": 30, "workloads": 1, "store": str(tmp_path / "small.sweep")}


def test_errors_are_one_line(trainyard: Callable[..., tuple[int, str, str]], study_file: Path, tmp_path: Path) -> None:
    code, out, err = trainyard("sweep", study_file, "--limit", 11)
    assert (code, out) == (2, "")
    assert err == f"trainyard: {study_file}: 12 points are more than the limit of 11: take fewer values, or raise --limit\n"
    code, _, err = trainyard("sweep", study_file, "--store", study_file)
    assert code == 2
    assert "is a file; name a folder" in err
    assert trainyard("sweep", tmp_path / "none.toml")[0] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_may_not_be_written(trainyard: Callable[..., tuple[int, str, str]], study_file: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    code, _, err = trainyard("sweep", study_file, "--workers", 1, "--store", tmp_path / "closed" / "s")
    assert code == 2
    assert "cannot make the store" in err
