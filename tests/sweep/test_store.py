from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.sweep.records import Record
from trainyard.sweep.store import Disk, Store

STUDY = {"name": "s", "axes": {"array.rows": [1, 2]}}


def record(number: int, *, error: str = "") -> Record:
    metrics = {} if error else {"time_s": number * 1e-3, f"traffic_bytes.l{number % 2}": 2.0**53}
    settings = {"array.rows": number, "order": "x", "tiling": [1, number] if number % 3 else "search"}
    return Record(
        key=hashlib.sha256(str(number).encode()).hexdigest(),
        workload="w",
        machine="npu",
        settings=settings,
        metrics=metrics,
        error=error,
    )


RECORDS = [record(number) for number in range(9)]


def filled(path: Path, chunks: list[list[Record]]) -> bytes:
    store = Store.begin(path, STUDY)
    with store.writing():
        for chunk in chunks:
            store.append(chunk)
        return store.compact().read_bytes()


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    filled(tmp_path / "s", [RECORDS[:4], RECORDS[4:], [record(10, error="it failed")]])
    store = Store(tmp_path / "s")
    expected = sorted([*RECORDS, record(10, error="it failed")], key=lambda r: r.key)
    assert store.records() == expected
    assert store.manifest["study"] == STUDY
    frame = store.frame()
    assert list(frame["key"]) == [r.key for r in expected]
    assert frame["array.rows"].dtype == "int64"
    assert frame["time_s"].isna().sum() == 1
    store.to_csv(tmp_path / "s.csv")
    head, *lines = (tmp_path / "s.csv").read_text().splitlines()
    assert head.startswith("key,workload,machine,array.rows,order,tiling,time_s")
    assert len(lines) == 10


@settings(max_examples=15)
@given(order=st.permutations(range(9)), cuts=st.sets(st.integers(1, 8)), again=st.integers(0, 8), compact_at=st.integers(0, 9))
def test_bytes_depend_on_the_records_alone(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: set[int], again: int, compact_at: int
) -> None:
    place = tmp_path_factory.mktemp("any")
    expected = filled(place / "a", [RECORDS])
    edges = [0, *sorted(cuts), 9]
    chunks = [[RECORDS[i] for i in order[a:b]] for a, b in pairwise(edges)]
    store = Store.begin(place / "b", STUDY)
    with store.writing():
        for number, chunk in enumerate([*chunks, [RECORDS[again]]]):
            store.append(chunk)
            if number == compact_at:
                store.compact()
        assert store.compact().read_bytes() == expected
    assert sorted(entry.name for entry in (place / "b").iterdir()) == ["lock", "manifest.json", "points.parquet"]
    shutil.rmtree(place)


class Crash(BaseException):
    """The process is gone."""


class Crashing(Disk):
    """Goes away at one step, before or after it, or in the middle of a write."""

    def __init__(self, at: int, after: bool) -> None:
        self.left, self.after, self.done = at, after, False

    def step(self, act: Callable[[], None], half: Callable[[], None] | None = None) -> None:
        if self.done:
            raise Crash
        self.left -= 1
        if self.left >= 0:
            act()
            return
        self.done = True
        if self.after:
            act()
        elif half is not None:
            half()
        raise Crash

    def write(self, path: Path, content: bytes) -> None:
        self.step(lambda: super(Crashing, self).write(path, content), lambda: _half(path, content))

    def rename(self, path: Path, target: Path) -> None:
        self.step(lambda: super(Crashing, self).rename(path, target))

    def synchronise(self, folder: Path) -> None:
        self.step(lambda: super(Crashing, self).synchronise(folder))

    def remove(self, path: Path) -> None:
        self.step(lambda: super(Crashing, self).remove(path))


def _half(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_step_loses_nothing_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    chunks = [RECORDS[:3], RECORDS[3:5], RECORDS[5:]]
    expected = filled(tmp_path / "whole", chunks)
    finished, at = False, 0
    while not finished:  # until no step is left to crash at
        place, disk, safe = tmp_path / f"crash{at}", Crashing(at, after), set()
        try:
            store = Store.begin(place, STUDY, disk=disk)
            with store.writing():
                for chunk in chunks:
                    store.append(chunk)
                    safe |= {r.key for r in chunk}
                store.compact()
            finished = True
        except Crash:
            pass
        store = Store.begin(place, STUDY)
        with store.writing():
            assert safe <= store.keys()
            assert len(store.records()) == len(store.keys())
            assert all(r in RECORDS for r in store.records())
            assert not store.notes
            there = store.keys()
            store.append([r for r in RECORDS if r.key not in there])
            assert store.compact().read_bytes() == expected
        assert not list(place.rglob("*.part"))
        at += 1
    assert at > 12  # a manifest, three segments and a file of points, each of three steps or more


class Full(Disk):
    """Fails as a full or a closed disk does, in one kind of step."""

    def __init__(self, step: str, number: int) -> None:
        self.failing, self.number = step, number

    def _fail(self, step: str) -> None:
        if step == self.failing:
            raise OSError(self.number, os.strerror(self.number))

    def write(self, path: Path, content: bytes) -> None:
        if self.failing == "write":
            _half(path, content)
        self._fail("write")
        super().write(path, content)

    def rename(self, path: Path, target: Path) -> None:
        self._fail("rename")
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._fail("remove")
        super().remove(path)


@pytest.mark.parametrize("step", ["write", "rename", "remove"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_full_or_closed_disk_is_one_line_and_the_store_stays(tmp_path: Path, step: str, number: int) -> None:
    expected = filled(tmp_path / "whole", [RECORDS])
    store = Store.begin(tmp_path / "s", STUDY)
    with store.writing():
        store.append(RECORDS[:4])
        store.disk = Full(step, number)
        act = store.compact if step == "remove" else lambda: store.append(RECORDS[4:])
        with pytest.raises(BadInput, match=f"cannot (write|tidy) .*segments.*: {os.strerror(number)}"):
            act()
    assert not list((tmp_path / "s").rglob("*.part"))
    store = Store.begin(tmp_path / "s", STUDY)
    with store.writing():
        assert {r.key for r in RECORDS[:4]} <= store.keys()
        store.append(RECORDS[4:])
        assert store.compact().read_bytes() == expected


def test_a_really_full_disk(tmp_path: Path) -> None:
    import resource
    import signal

    store = Store.begin(tmp_path / "s", STUDY)
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with store.writing():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
            with pytest.raises(BadInput, match=r"cannot write .*000001.parquet: File too large"):
                store.append(RECORDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert Store(tmp_path / "s").records() == []


def test_two_sweeps_do_not_write_at_once(tmp_path: Path) -> None:
    store, other = Store.begin(tmp_path, STUDY), Store.begin(tmp_path, STUDY)
    with store.writing():
        store.append(RECORDS[:2])
        with pytest.raises(BadInput, match="another sweep is writing to"), other.writing():
            pass
        assert len(Store(tmp_path).records()) == 2  # reading is free
    with other.writing():
        assert len(other) == 2


def damaged(tmp_path: Path) -> Path:
    store = Store.begin(tmp_path / "s", STUDY)
    with store.writing():
        store.append(RECORDS[:4])
        store.append(RECORDS[4:])
    segment = tmp_path / "s" / "segments" / "000002.parquet"
    segment.write_bytes(segment.read_bytes()[:-20])
    return segment


def test_a_damaged_segment_is_reported_and_not_counted(tmp_path: Path) -> None:
    segment, expected = damaged(tmp_path), filled(tmp_path / "whole", [RECORDS])
    (segment.parent / "notes.txt").write_text("mine")
    store = Store.begin(tmp_path / "s", STUDY)
    with store.writing():
        assert len(store) == 4
        store.append(RECORDS[4:])
        assert store.compact().read_bytes() == expected
    assert len(store.notes) == 2
    assert "000002.parquet is damaged and is not counted" in store.notes[0]
    assert "notes.txt is no segment" in store.notes[1]
    assert segment.exists()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "s", [RECORDS])
    points = tmp_path / "s" / "points.parquet"
    content = points.read_bytes()
    for wrong in (b"", content[:-30], b"PAR1" + bytes(50) + b"PAR1", content[:200] + bytes(40) + content[240:]):
        points.write_bytes(wrong)
        with pytest.raises(BadInput, match=r"points\.parquet is damaged"):
            Store(tmp_path / "s").records()
    (tmp_path / "s" / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match="its 'format' is not"):
        Store(tmp_path / "s")


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(BadInput, match=r"is no store, and not empty \(thesis.tex\)"):
        Store.begin(tmp_path, STUDY)
    with pytest.raises(BadInput, match="is no store of a sweep"):
        Store(tmp_path)
    Store.begin(tmp_path / "s", STUDY)
    with pytest.raises(BadInput, match="holds study 's', not 't'"):
        Store.begin(tmp_path / "s", {**STUDY, "name": "t"})
    with pytest.raises(BadInput, match="cannot make the store"):
        Store.begin(tmp_path / "thesis.tex", STUDY)


def test_a_result_counts_before_an_error(tmp_path: Path) -> None:
    store = Store.begin(tmp_path, STUDY)
    with store.writing():
        store.append([record(1, error="worker died"), record(2)])
        store.append([record(1), record(2, error="worker died")])
        store.compact()
    assert not any(r.failed for r in Store(tmp_path).records())
