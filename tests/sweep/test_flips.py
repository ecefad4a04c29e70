"""A bit that has changed anywhere in a store is said: the store, or the segment, "is damaged"."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trainyard.errors import BadInput
from trainyard.sweep import seals, store
from trainyard.sweep.records import Record
from trainyard.sweep.store import Store

STUDY = {"name": "flips", "axes": {"array.rows": [1, 2]}, "note": f"a study may even say {seals.OPEN}"}
FILES = ("manifest.json", "points.parquet", "segments/000001.parquet")


def records(first: int) -> list[Record]:
    return [
        Record(
            key=f"{number:064x}",
            workload="linear",
            machine="npu",
            settings={"array.rows": number, "order": "interleaved"},
            metrics={"time_s": number * 1e-3, "energy_j": 2.0**-number},
        )
        for number in range(first, first + 6)
    ]


def written(folder: Path) -> list[Record]:
    """A store with all three kinds of files."""
    made = Store.begin(folder, STUDY)
    with made.writing():
        made.append(records(0))
        made.compact()
        made.append(records(6))
    return records(0) + records(6)


def is_reported(folder: Path) -> bool:
    """Whether the store says that it is damaged, or that a segment of it is."""
    try:
        opened = Store(folder)
        opened.records()
    except BadInput as error:
        return "is damaged" in str(error)
    return any("is damaged" in note for note in opened.notes)


def flip_all(folder: Path, name: str, bits: list[int]) -> None:
    path = folder / name
    content = path.read_bytes()
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert is_reported(folder), f"{name}: byte {bit // 8}, bit {bit % 8}"
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_bits_drawn_at_random_are_each_reported(tmp_path: Path, name: str) -> None:
    expected = written(tmp_path)
    bits = range(8 * (tmp_path / name).stat().st_size)
    flip_all(tmp_path, name, random.Random(23).sample(bits, 100))
    assert Store(tmp_path).records() == expected  # and put back, nothing is


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_thousands_of_bits_are_each_reported(tmp_path: Path, name: str) -> None:
    """Every bit of all three files was tried once: five minutes."""
    written(tmp_path)
    bits = range(8 * (tmp_path / name).stat().st_size)
    flip_all(tmp_path, name, random.Random(7).sample(bits, 3000))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("length", [0, 1, -1, -70])
def test_a_file_that_was_cut_is_reported(tmp_path: Path, name: str, length: int) -> None:
    written(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:length])
    assert is_reported(tmp_path)


def test_a_store_without_seals_of_an_earlier_release_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(store, "FORMAT_VERSION", store.UNSEALED_VERSION)
        earlier.setattr(seals, "OPEN", "")
        earlier.setattr(seals, "seal", bytes)
        earlier.setitem(STUDY, "note", "")
        expected = written(tmp_path)
    assert not any(seals.is_sealed((tmp_path / name).read_bytes()) for name in FILES)
    assert Store(tmp_path).records() == expected


def test_without_its_manifest_a_sweep_begins_it_anew_and_keeps_the_points(tmp_path: Path) -> None:
    expected = written(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert Store.begin(tmp_path, STUDY).records() == expected
