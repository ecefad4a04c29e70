"""What is kept of arrays: within a bound of bytes, those asked for last, and never fewer than a product needs at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.caches import AROUND, LEAST, Kept, Remembered
from trainyard.ir import TensorKey

Octets = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def asked(remembered: Remembered[Octets], names: list[str], size: int = 1000) -> list[str]:
    """The names that had to be made."""
    made: list[str] = []

    def make(name: str) -> Octets:
        made.append(name)
        return np.zeros(size, np.uint8)

    for name in names:
        remembered.of(name, lambda name=name: make(name))  # type: ignore[misc]
    return made


@pytest.mark.unit
def test_the_one_asked_for_longest_ago_goes_first() -> None:
    room = Remembered[Octets](6 * (1000 + AROUND))
    assert asked(room, list("abcdef")) == list("abcdef")
    assert asked(room, list("afg")) == ["g"]  # takes the place of b
    assert asked(room, list("afgcdeb")) == ["b"]


@pytest.mark.unit
def test_what_a_product_needs_stays_however_large() -> None:
    small = Remembered[Octets](10)
    names = [str(number) for number in range(LEAST)]
    assert asked(small, names * 3) == names
    assert asked(small, [*names, "more", *names[1:]]) == ["more"]
    assert asked(small, names[:1]) == names[:1]


@pytest.mark.oracle
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4000)), max_size=40), st.integers(0, 30_000))
def test_it_holds_what_a_plain_list_would(asks: list[tuple[int, int]], bound: int) -> None:
    sizes = dict(reversed(asks))  # the first ask of a name decides its size
    order: list[int] = []  # the oldest first
    remembered = Remembered[Octets](bound)
    for name, _ in asks:
        known = name in order
        made: list[int] = []
        remembered.of(name, lambda name=name, made=made: made.append(name) or np.zeros(sizes[name], np.uint8))  # type: ignore[misc]
        assert (not made) == known
        order = [*(other for other in order if other != name), name]
        while sum(sizes[other] + AROUND for other in order) > bound and len(order) > LEAST:
            order.pop(0)


@dataclass
class Source:
    """Sources that are equal, and are not the same."""

    digest: str = ""

    def bits(self, key: TensorKey) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        raise AssertionError("nobody asks")


@pytest.mark.unit
def test_a_source_is_itself_alone_and_lives_as_long_as_its_arrays() -> None:
    kept = Kept[Octets](most_bytes=1_000_000)
    first = kept.of(Source(), "name", lambda: np.zeros(1, np.uint8))
    for number in range(100):  # an id of a source that is gone would come back here
        made = kept.of(Source(), "name", lambda number=number: np.full(1, number, np.uint8))  # type: ignore[misc]
        assert (made is not first, made[0]) == (True, number)
    one = Source()
    assert kept.of(one, "name", lambda: first) is kept.of(one, "name", lambda: np.ones(1, np.uint8)) is first
