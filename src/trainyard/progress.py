"""How a long call says how far it is."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]
"""Called with how many of how many pieces of work are done."""


def no_progress(done: int, total: int) -> None:
    """Report nothing."""
