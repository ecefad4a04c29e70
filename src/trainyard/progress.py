"""How a long call reports its progress."""

from __future__ import annotations

from typing import Protocol


class ProgressCallback(Protocol):
    """Called with how many of how many pieces of work are done, and a line on what is under way."""

    def __call__(self, done: int, total: int, message: str = "", /) -> None: ...


def no_progress(done: int, total: int, message: str = "", /) -> None:
    """Report nothing."""


def with_message(on_progress: ProgressCallback, message: str) -> ProgressCallback:
    """A callback that adds a fixed message to what a callee counts."""
    return lambda done, total, _="", /: on_progress(done, total, message)
