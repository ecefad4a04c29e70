"""What is kept of arrays: within a bound of bytes, those asked for last, and never fewer than a product needs at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.caches import ALWAYS_KEPT, ENTRY_BYTES, BoundedCache, ByIdentity
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
