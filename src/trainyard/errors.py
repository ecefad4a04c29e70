"""What can go wrong for a user: one line that says what, where and what to write instead.

The command line prints the line and exits with code 2; no error here needs a traceback to be understood.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TrainyardError(Exception):
    """Base of every error a user can cause."""


class BadInput(TrainyardError, ValueError):
    """A value, a file or a shape that cannot be meant."""


class UnknownName(TrainyardError, LookupError):
    """A name that is not known; the nearest known one is offered, `nearest` where the caller knows a better one.

    >>> raise UnknownName("machine", "TPI", ["tpu", "npu"])
    Traceback (most recent call last):
    trainyard.errors.UnknownName: unknown machine 'TPI': did you mean 'tpu'? (known: npu, tpu)
    """

    def __init__(self, kind: str, given: str, known: Iterable[str], where: str = "", *, nearest: str | None = None) -> None:
        names = sorted(known)
        by_small_letters = {name.lower(): name for name in names}
        near = difflib.get_close_matches(given.lower(), by_small_letters, n=1, cutoff=0.5)
        nearest = nearest or (by_small_letters[near[0]] if near else None)
        offer = f": did you mean '{nearest}'?" if nearest else ""
        listed = ", ".join(names) if len(names) <= 40 else f"{', '.join(names[:40])}, ... {len(names)} in all"
        location = f" in {where}" if where else ""
        super().__init__(f"unknown {kind} '{given}'{location}{offer} (known: {listed})")
        self.kind, self.given, self.nearest = kind, given, nearest


class CaptureError(TrainyardError):
    """A training step that cannot be captured, with the way out."""


class MaskError(TrainyardError):
    """Masks that are damaged or do not fit the step."""


class NotModelled(TrainyardError):
    """Something a machine does not model; never answered with a zero."""


class MissingExtra(TrainyardError, ImportError):
    """An optional dependency is not installed; says which extra brings it."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'trainyard[{extra}]'")
