"""What the fields of a part may hold, refused in one line otherwise."""

from __future__ import annotations

import math

from trainyard.errors import BadInput


def require_positive(owner: str, **sizes: object) -> None:
    """Whole numbers of at least 1.

    >>> require_positive("Systolic", rows=0)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Systolic: rows must be a positive whole number, got 0
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadInput(f"{owner}: {name} must be a positive whole number, got {size!r}")


def require_quantity(owner: str, *, zero: bool = False, **quantities: object) -> None:
    """Finite numbers above 0, or from 0 where `zero` is allowed."""
    for name, number in quantities.items():
        least = "at least 0" if zero else "above 0"
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BadInput(f"{owner}: {name} must be a finite number {least}, got {number!r}")
        if number < 0 or (number == 0 and not zero):
            raise BadInput(f"{owner}: {name} must be {least}, got {number!r}")


def require_flag(owner: str, **flags: object) -> None:
    """True or False; a word such as "no" would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise BadInput(f"{owner}: {name} must be true or false, got {flag!r}")
