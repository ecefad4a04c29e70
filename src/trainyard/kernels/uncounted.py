"""How the innermost compiled loops are compiled: they neither make arrays nor count references to them.

A compiled function counts references to an array whenever it is passed on or a part of it is taken, by atomic instructions, and an
array is passed as seven to nine numbers. Where a function runs for a tenth of a microsecond, both take longer than its own work:
the tile search took 1.4 times as long with references counted, and 1.4 times as long again with its small functions called. Arrays
that such a function uses must be held by its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def uncounted(loop: Loop) -> Loop:
    """Compiles a loop that makes no arrays and counts no references."""
    compiled: Loop = njit(cache=True, error_model="numpy", _nrt=False)(loop)  # type: ignore[call-overload]  # option without a stub
    return compiled


def inlined(loop: Loop) -> Loop:
    """The same for a loop that is copied into each loop that calls it: for short ones, and those that are called in one place."""
    compiled: Loop = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)(loop)  # type: ignore[call-overload]
    return compiled
