"""What is kept of arrays: within a bound of bytes, those asked for last, and never fewer than a product needs at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.caches import ALWAYS_KEPT, ENTRY_BYTES, BoundedCache, ByIdentity, DiskCache
from trainyard.ir import TensorKey

Octets = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def asked(cache: BoundedCache, names: list[str], size: int = 1000) -> list[str]:
    """The names that had to be made."""
    made: list[str] = []

    def make(name: str) -> Octets:
        made.append(name)
        return np.zeros(size, np.uint8)

    for name in names:
        cache.get(name, lambda name=name: make(name))  # type: ignore[misc]
    return made


@pytest.mark.unit
def test_the_one_asked_for_longest_ago_goes_first() -> None:
    room = BoundedCache(max_bytes=6 * (1000 + ENTRY_BYTES))
    assert asked(room, list("abcdef")) == list("abcdef")
    assert asked(room, list("afg")) == ["g"]  # takes the place of b
    assert asked(room, list("afgcdeb")) == ["b"]


@pytest.mark.unit
def test_what_a_product_needs_stays_however_large() -> None:
    small = BoundedCache(max_bytes=10)
    names = [str(number) for number in range(ALWAYS_KEPT)]
    assert asked(small, names * 3) == names
    assert asked(small, [*names, "more", *names[1:]]) == ["more"]
    assert asked(small, names[:1]) == names[:1]


@pytest.mark.oracle
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4000)), max_size=40), st.integers(0, 30_000))
def test_it_holds_what_a_plain_list_would(asks: list[tuple[int, int]], bound: int) -> None:
    sizes = dict(reversed(asks))  # the first ask of a name decides its size
    order: list[int] = []  # the oldest first
    cache = BoundedCache(max_bytes=bound)
    for name, _ in asks:
        known = name in order
        made: list[int] = []
        cache.get(name, lambda name=name, made=made: made.append(name) or np.zeros(sizes[name], np.uint8))  # type: ignore[misc]
        assert (not made) == known
        order = [*(other for other in order if other != name), name]
        while sum(sizes[other] + ENTRY_BYTES for other in order) > bound and len(order) > ALWAYS_KEPT:
            order.pop(0)


@dataclass
class Source:
    """Sources that are equal, and are not the same."""

    digest: str = ""

    def bits(self, key: TensorKey) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        raise AssertionError("nobody asks")


@pytest.mark.unit
def test_a_source_is_itself_alone_and_lives_as_long_as_its_arrays() -> None:
    kept = BoundedCache(max_bytes=1_000_000)
    first = kept.get((ByIdentity(Source()), "name"), lambda: np.zeros(1, np.uint8))
    for number in range(100):  # an id of a source that is gone would come back here
        made = kept.get((ByIdentity(Source()), "name"), lambda number=number: np.full(1, number, np.uint8))  # type: ignore[misc]
        assert (made is not first, made[0]) == (True, number)
    one = Source()
    assert (
        kept.get((ByIdentity(one), "name"), lambda: first)
        is kept.get((ByIdentity(one), "name"), lambda: np.ones(1, np.uint8))
        is first
    )


@pytest.mark.unit
def test_a_pickled_or_copied_cache_is_empty_and_keeps_its_bound() -> None:
    import copy
    import pickle

    cache = BoundedCache(entries=2)
    asked(cache, list("abc"))
    for other in (pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)):
        assert len(other) == 0
        assert asked(other, list("abcc")) == list("abc")
        assert len(other) == 2


@pytest.mark.unit
@pytest.mark.parametrize("name", ["npu", "mcdla-b", "h200"])
def test_a_machine_pickles_to_the_same_bytes_before_and_after_a_run(name: str) -> None:
    import pickle

    import trainyard as ty

    machine = ty.machine(name)
    before = pickle.dumps(machine)
    ty.run("resnet18", on=machine, batch=8)
    assert pickle.dumps(machine) == before


def table_of(cache: DiskCache, key: tuple[object, ...], made: list[object]) -> list[list[int]]:
    """What the cache has of `key`; the table depends on it."""

    def make() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        made.append(key)
        return np.arange(6, dtype=np.int64).reshape(2, 3) + len(repr(key))

    return cache.get(key, make).tolist()  # type: ignore[no-any-return]  # lists of lists


@pytest.mark.unit
def test_tables_on_disk_are_found_again_by_another_process(tmp_path: Path) -> None:
    made: list[object] = []
    keys: list[tuple[object, ...]] = [(b"a", 1, 0.1), (b"a", 1, 0.2), (b"a", 1, np.nextafter(0.1, 1).item())]
    first = [table_of(DiskCache(tmp_path / "kept", 8, ["ir"]), key, made) for key in keys]
    again = [table_of(DiskCache(tmp_path / "kept", 8, ["ir"]), key, made) for key in keys]
    assert made == keys
    assert first == again
    kept = DiskCache(tmp_path / "kept", 8, ["ir"]).get(keys[0], lambda: np.zeros((0, 0), np.int64))
    assert not kept.flags.writeable
    assert kept.dtype == np.int64
    table_of(DiskCache(tmp_path / "kept", 8, ["ir", "mapping"]), keys[0], made)  # other sources, other tables
    assert made == [*keys, keys[0]]


@pytest.mark.unit
def test_an_empty_table_on_disk(tmp_path: Path) -> None:
    for _ in range(2):
        kept = DiskCache(tmp_path, 8, ["ir"]).get((1,), lambda: np.zeros((0, 10), np.int64))
        assert kept.shape == (0, 10)


@pytest.mark.unit
@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 40, b"0" * 4000])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: bytes) -> None:
    made: list[object] = []
    cache = DiskCache(tmp_path, 8, ["ir"])
    right = table_of(cache, (1,), made)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for content in (damage, whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(content)
        assert table_of(cache, (1,), made) == right
    assert len(made) == 4


@pytest.mark.unit
def test_files_on_disk_stay_within_a_bound_and_those_used_last_are_kept(tmp_path: Path) -> None:
    made: list[object] = []
    cache = DiskCache(tmp_path, 3, ["ir"])
    for number in range(3):
        table_of(cache, (number,), made)
        for file in tmp_path.iterdir():
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 100))
    table_of(cache, (0,), made)
    table_of(cache, (3,), made)
    assert len(list(tmp_path.iterdir())) == 3
    made.clear()
    for number in (0, 3, 2):
        table_of(cache, (number,), made)
    assert made == []


@pytest.mark.unit
def test_a_folder_that_cannot_be_written_to_costs_time_alone(tmp_path: Path) -> None:
    made: list[object] = []
    (tmp_path / "file").write_text("no folder")
    cache = DiskCache(tmp_path / "file", 3, ["ir"])
    assert table_of(cache, (1,), made) == table_of(cache, (1,), made)
    assert len(made) == 2
