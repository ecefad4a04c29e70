"""Perfetto: the trace is JSON, slices of a track never overlap, and times are the timeline's."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard.engine.timeline import Timeline
from trainyard.errors import BadInput
from trainyard.report.traces import perfetto
from trainyard.results.result import Result

Make = Callable[..., Result]


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return json.load(stream)["traceEvents"]


@pytest.fixture
def trace(result: Result, tmp_path: Path) -> list[dict[str, Any]]:
    result.to_perfetto(tmp_path / "r.json.gz")
    return events(tmp_path / "r.json.gz")


def picoseconds(microseconds: float) -> int:
    return round(microseconds * 10**6)


def test_a_slice_for_every_task_with_its_own_times(result: Result, trace: list[dict[str, Any]]) -> None:
    assert result.timeline is not None
    slices = [event for event in trace if event["ph"] == "X"]
    told = sorted((picoseconds(event["ts"]), picoseconds(event["ts"] + event["dur"])) for event in slices)
    assert told == sorted(zip(result.timeline.starts_ps.tolist(), result.timeline.ends_ps.tolist(), strict=True))


def test_slices_of_a_track_do_not_overlap_though_transfers_do(trace: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            tracks[event["tid"]].append((picoseconds(event["ts"]), picoseconds(event["ts"] + event["dur"])))
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    names = [event["args"]["name"] for event in trace if event["name"] == "thread_name"]
    assert names[:2] == ["device 0", "ring"]
    assert "ring (2)" in names  # reductions share the ring, so they are under way together
    assert set(tracks) == set(range(1, len(names) + 1))


def test_slices_say_whose_work_they_are(trace: list[dict[str, Any]]) -> None:
    by_name = {event["name"]: event for event in trace if event["ph"] == "X"}
    pair = by_name["encoder.layer2.conv: dX + dW"]
    assert pair["args"]["phase"] == "grad_input + grad_weight"
    assert pair["args"]["dram bytes of the op"] == 2 * 4064
    assert by_name["sgd"]["args"]["layer"] == ""
    assert by_name["encoder.layer2.conv: all_reduce"]["cat"] == "synchronisation"


def test_memory_is_counted(result: Result, trace: list[dict[str, Any]]) -> None:
    counted = [event for event in trace if event["ph"] == "C"]
    assert {event["name"] for event in counted} == {"memory: hbm"}
    assert max(event["args"]["bytes"] for event in counted) == result.peak_memory_bytes["hbm"]
    assert counted[-1]["args"]["bytes"] == 0


def test_equal_results_give_equal_bytes_whatever_the_file_is_called(make_result: Make, tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        make_result(layers=5).to_perfetto(tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_tasks_nobody_booked_are_named_by_their_stream(result: Result, tmp_path: Path) -> None:
    replace(result, entries=()).to_perfetto(tmp_path / "r.gz")
    names = {event["name"] for event in events(tmp_path / "r.gz") if event["ph"] == "X"}
    assert names == {"device 0", "transfers"}


def test_no_timeline_is_refused(result: Result, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no timeline"):
        (result + result).to_perfetto(tmp_path / "r.gz")
    assert list(tmp_path.iterdir()) == []


def test_events_are_streamed(result: Result, tmp_path: Path) -> None:
    count = 60_000
    numbers = np.arange(count, dtype=np.int64)
    zeros = np.zeros(count, np.int64)
    long = Timeline(
        starts_ps=numbers * 10, ends_ps=numbers * 10 + 10, kinds=zeros, streams=zeros, tags=numbers % len(result.entries),
        after_ends=zeros, after=zeros[:0], stream_names=("device 0",),
    )  # fmt: skip
    tracemalloc.start()
    perfetto.write(replace(result, timeline=long), tmp_path / "r.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with gzip.open(tmp_path / "r.gz") as stream:
        size = len(stream.read())
    columns = 8 * count
    assert size > 10_000_000
    assert peak < 2_000_000 + 8 * columns  # a few columns to put the tasks in order, and one block of text
