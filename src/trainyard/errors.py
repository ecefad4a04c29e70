"""What can go wrong for a user: one line that says what, where and what to write instead.

The command line prints the line and exits with code 2; no error here needs a traceback to be understood.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_BITS = 512
"""Of a whole number that an error repeats."""
MOST_LISTED, LIKELY = 48, 8
"""Names that an error lists: all, or those that are most like what was written where there are more."""


def nearest_names(given: str, known: Iterable[str], most: int, cutoff: float = 0.0) -> list[str]:
    """The known names that are spelled most alike, the nearest first; capital letters do not count."""
    by_small_letters = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_small_letters, n=most, cutoff=cutoff)
    return [by_small_letters[name] for name in near]


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most alike; None where none is near.

    >>> nearest_name("enrgy_j", ["time_s", "energy_j"]), nearest_name("xyz", ["time_s"])
    ('energy_j', None)
    """
    return next(iter(nearest_names(given, known, most=1, cutoff=0.5)), None)


def quoted(value: object, most: int = 80) -> str:
    """A value as an error repeats it: its first characters, or the number of its digits where there are too many to print.

    >>> quoted("wz"), quoted(10**5000), quoted("9" * 500, most=5)
    ("'wz'", 'a whole number of about 5001 digits', "'9999...")
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number inside, or lists too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


class TrainyardError(Exception):
    """Base of every error a user can cause."""


class BadInput(TrainyardError, ValueError):
    """A value, a file or a shape that cannot be meant."""


class TooLarge(BadInput):
    """A step that takes longer, or counts more, than whole numbers of 64 bits can say."""


class UnknownName(TrainyardError, LookupError):
    """A name that is not known; the nearest known one is offered, `nearest` where the caller knows a better one.

    >>> raise UnknownName("machine", "TPI", ["tpu", "npu"])
    Traceback (most recent call last):
    trainyard.errors.UnknownName: unknown machine 'TPI': did you mean 'tpu'? (known: npu, tpu)
    """

    def __init__(self, kind: str, given: str, known: Iterable[str], where: str = "", *, nearest: str | None = None) -> None:
        names = sorted(known)
        nearest = nearest or nearest_name(given, names)
        offer = f": did you mean '{nearest}'?" if nearest else ""
        if len(names) > MOST_LISTED:
            listed = f"{', '.join(nearest_names(given, names, most=LIKELY))}, ... {len(names)} in all"
        else:
            listed = ", ".join(names)
        location = f" in {where}" if where else ""
        super().__init__(f"unknown {kind} '{given}'{location}{offer} (known: {listed})")
        self.kind, self.given, self.nearest, self.known = kind, given, nearest, tuple(names)


class UnknownKey(UnknownName, KeyError):
    """A key that a table of a result does not have."""

    __str__ = Exception.__str__  # a KeyError would put quotation marks around the sentence


class UnknownKeyword(UnknownName, TypeError):
    """A keyword that a function or a part does not take."""


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
