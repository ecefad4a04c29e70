"""Arrays that are asked for again and again, kept within a bound: those made or asked for last."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy.typing as npt

A = TypeVar("A", bound=npt.NDArray[Any])
LEAST = 4
"""Arrays that stay whatever their size: two operands of the product at hand, and those of the one before it."""

AROUND = 1024
"""assumed: bytes that a name and the objects around an array take; tiles of many small products have small arrays."""


class Remembered(Generic[A]):
    """By name, within a bound of bytes, or as many as `most`; the one asked for longest ago goes first."""

    def __init__(self, most_bytes: float = math.inf, most: float = math.inf) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._found: dict[Hashable, A] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, name: Hashable, make: Callable[[], A]) -> A:
        with self._lock:
            known = self._found.pop(name, None)
            if known is not None:
                self._found[name] = known
                return known
        made = make()
        with self._lock:
            if name in self._found:  # another thread was faster
                return self._found[name]
            self._found[name] = made
            self._bytes += made.nbytes + AROUND
            while len(self._found) > self._most or (self._bytes > self._most_bytes and len(self._found) > LEAST):
                self._bytes -= self._found.pop(next(iter(self._found))).nbytes + AROUND
        return made


class Kept(Generic[A]):
    """By source and name; a source is kept with its arrays, so that it stays the only one of its identity."""

    def __init__(self, most: float = math.inf, *, most_bytes: float = math.inf) -> None:
        self._remembered: Remembered[A] = Remembered(most_bytes, most)

    def of(self, source: object, name: Hashable, make: Callable[[], A]) -> A:
        return self._remembered.of((_Same(source), name), make)


class _Same:
    """A source as a name: itself, not what it is equal to."""

    __slots__ = ("source",)

    def __init__(self, source: object) -> None:
        self.source = source

    def __hash__(self) -> int:
        return id(self.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.source is self.source
