"""What the fields of a part may hold, refused in one line otherwise."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from trainyard.errors import BadInput, TooLarge, UnknownKeyword, UnknownName, quoted

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
LARGEST_COUNT = 2**53
"""Of one dimension or count: floating point still has every whole number up to here."""
MOST_CYCLES_PER_BYTE, MOST_LATENCY_CYCLES = 1e8, 2e12
"""Of DRAM; a byte takes less than one cycle on every machine of the catalogue, the latency hundreds."""


def suggests_keywords(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The function, which answers a keyword that it does not take with the nearest one that it does.

    >>> suggests_keywords(lambda *, batch: batch)(bach=2)
    Traceback (most recent call last):
    trainyard.errors.UnknownKeyword: unknown keyword of <lambda> 'bach': did you mean 'batch'? (known: batch)
    """
    known = frozenset(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*values: Arguments.args, **named: Arguments.kwargs) -> Returned:
        for name in named:
            if name not in known:
                raise UnknownKeyword(f"keyword of {function.__name__}", name, known)
        return function(*values, **named)

    return checked


def require_positive(owner: str, **sizes: object) -> None:
    """Whole numbers of at least 1.

    >>> require_positive("Systolic", rows=0)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Systolic: rows must be a positive whole number, got 0
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadInput(f"{owner}: {name} must be a positive whole number, got {quoted(size)}")
        if size > LARGEST_COUNT:
            raise TooLarge(f"{owner}: {name} must be at most 2**53, got {quoted(size)}")


def require_quantity(owner: str, *, zero: bool = False, **quantities: object) -> None:
    """Finite numbers above 0, or from 0 where `zero` is allowed."""
    for name, number in quantities.items():
        least = "at least 0" if zero else "above 0"
        if isinstance(number, bool) or not isinstance(number, int | float) or not _is_finite(number):
            raise BadInput(f"{owner}: {name} must be a finite number {least}, got {quoted(number)}")
        if number < 0 or (number == 0 and not zero):
            raise BadInput(f"{owner}: {name} must be {least}, got {quoted(number)}")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that floating point does not have
        return False


def require_flag(owner: str, **flags: object) -> None:
    """True or False; a word such as "no" would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise BadInput(f"{owner}: {name} must be true or false, got {quoted(flag)}")


def require_count(owner: str, **counts: object) -> None:
    """Whole numbers of at least 0, such as a seed."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise BadInput(f"{owner}: {name} must be a whole number of at least 0, got {quoted(count)}")


def require_choice(owner: str, **choices: tuple[object, Sequence[str]]) -> None:
    """Each field as (value, allowed values); the error names the nearest allowed value.

    >>> require_choice("Systolic", dataflow=("wz", ("ws", "os", "is")))
    Traceback (most recent call last):
    trainyard.errors.UnknownName: unknown dataflow 'wz' in Systolic: did you mean 'ws'? (known: is, os, ws)
    """
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise UnknownName(name, value if isinstance(value, str) else quoted(value), allowed, where=owner)


def require_countable(owner: str, clock_hz: float, dram_bytes_per_s: float, dram_latency_s: float) -> None:
    """Refuses a bandwidth or a latency of DRAM that no machine has at this clock: cycles must remain numbers that can be compared.

    >>> require_countable("Accelerator", clock_hz=1e9, dram_bytes_per_s=1.0, dram_latency_s=0.0)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Accelerator: dram_bytes_per_s=1 is less than a byte in 1e+08 cycles at 1e+09 Hz: give faster DRAM
    """
    if clock_hz > MOST_CYCLES_PER_BYTE * dram_bytes_per_s:
        slowest = f"is less than a byte in {MOST_CYCLES_PER_BYTE:g} cycles at {clock_hz:g} Hz"
        raise BadInput(f"{owner}: dram_bytes_per_s={dram_bytes_per_s:g} {slowest}: give faster DRAM")
    if clock_hz * dram_latency_s > MOST_LATENCY_CYCLES:
        longest = f"is more than {MOST_LATENCY_CYCLES:g} cycles at {clock_hz:g} Hz"
        raise BadInput(f"{owner}: dram_latency_s={dram_latency_s:g} {longest}: give a shorter latency")
