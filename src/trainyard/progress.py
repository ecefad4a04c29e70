"""How a long call reports its progress.

A loop deep inside of a run counts what it goes through (`counted`, or `report` where nobody knows how much there is); who shows
progress of the run listens to it (`listening`), and nobody does otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class ProgressCallback(Protocol):
    """Called with how many of how many pieces of work are done, and a line on what is under way."""

    def __call__(self, done: int, total: int, message: str = "", /) -> None: ...


def no_progress(done: int, total: int, message: str = "", /) -> None:
    """Report nothing."""


def with_message(on_progress: ProgressCallback, message: str) -> ProgressCallback:
    """A callback that adds a fixed message to what a callee counts."""
    return lambda done, total, _="", /: on_progress(done, total, message)


_LISTENER: ContextVar[ProgressCallback] = ContextVar("search progress", default=no_progress)


@contextmanager
def listening(on_progress: ProgressCallback) -> Iterator[None]:
    """Loops inside report to `on_progress`; a total of 0 is unknown."""
    token = _LISTENER.set(on_progress)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report(done: int, what: str) -> None:
    """Says how much of a work of unknown size is done: operations recorded, for example."""
    _LISTENER.get()(done, 0, what)


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items that a loop goes through, each reported before it is looked at; what is counted inside of it is not reported.

    >>> with listening(lambda done, total, message="", /: print(done, total, message)):
    ...     sizes = [[len(part) for part in counted(name.split("."), "parts")] for name in counted(["a.b", "fc"], "products")]
    0 2 products
    1 2 products
    """
    on_progress = _LISTENER.get()
    if len(items) < 2 or on_progress is no_progress:
        yield from items
        return
    token = _LISTENER.set(no_progress)
    try:
        for number, item in enumerate(items):
            on_progress(number, len(items), what)
            yield item
    finally:
        _LISTENER.reset(token)
