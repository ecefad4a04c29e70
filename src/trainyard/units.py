"""Quantities with units, in and out. KB, MB, GB are powers of ten; KiB, MiB, GiB powers of two; 'b' is bit, 'B' is byte.

>>> parse("900 GB/s", "B/s")
900000000000.0
>>> parse("8 MiB", "B")
8388608.0
>>> show(0.0091, "s"), show(9e11, "B/s"), show(8388608, "B", binary=True)
('9.1 ms', '900 GB/s', '8 MiB')
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from trainyard.errors import BadInput, quoted

LEAST = 1e-300
"""A number nearer to zero is not scaled exactly: decimal arithmetic ends where exponents have too many digits."""
# fmt: off
PICOSECONDS_PER_SECOND = 10**12
"""The engine's clock counts whole picoseconds."""
_DECIMAL = {"": 1.0, "f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3,
            "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

# base unit -> spellings that may carry a prefix, with their size in the base unit
_UNITS = {
    "B":     {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 0.125, "bit": 0.125, "bits": 0.125},
    "B/cycle": {"B/cycle": 1.0, "byte/cycle": 1.0, "bytes/cycle": 1.0, "b/cycle": 0.125, "bit/cycle": 0.125, "bits/cycle": 0.125},
    "B/s":   {"B/s": 1.0, "Bps": 1.0, "b/s": 0.125, "bit/s": 0.125, "bps": 0.125},
    "s":     {"s": 1.0, "sec": 1.0},
    "Hz":    {"Hz": 1.0, "hz": 1.0},
    "W":     {"W": 1.0},
    "J":     {"J": 1.0},
    "J s":   {"J s": 1.0, "Js": 1.0},
    "m2":    {"m2": 1.0},
    "FLOP/s": {"FLOP/s": 1.0, "FLOPS": 1.0, "flops": 1.0},
    "":      {"": 1.0},
}
_UNPREFIXED = {
    "s": {"min": 60.0, "h": 3600.0, "hours": 3600.0, "days": 86400.0},
    "m2": {"mm2": 1e-6, "mm^2": 1e-6, "um2": 1e-12, "um^2": 1e-12},
}

# ending of a field's name -> its base unit: `scratchpad_bytes`, `dram_bytes_per_s`, `clock_hz`
FIELD_UNITS = {
    "_bytes_per_s": "B/s", "_bytes_per_cycle": "B/cycle", "_bytes": "B", "_hz": "Hz", "_s": "s", "_w": "W", "_j": "J", "_m2": "m2",
    "_js": "J s", "_flop_per_s": "FLOP/s",
}

# base unit -> what any machine of any time has of it; beyond, whole numbers of 64 bits cannot count its cycles and bytes
PLAUSIBLE = {"Hz": (1e-3, 1e15), "B/s": (1e-3, 1e30), "B": (0.0, 2.0**62), "s": (0.0, 1e9)}

# base unit -> the least that a machine has of it, and the unit in which it is usually written
_LIKELY = {"B/s": (1e6, "GB/s"), "Hz": (1e3, "GHz")}
# fmt: on

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*", re.ASCII)


def parse(value: str | float, unit: str, name: str = "value") -> float:
    """`value` in the base `unit`; a plain number is taken to be in it already.

    >>> parse("1.05 GHz", "Hz"), parse("100 ns", "s"), parse(5, "B")
    (1050000000.0, 1e-07, 5.0)
    >>> parse("8 MB/s", "B", "scratchpad")
    Traceback (most recent call last):
    trainyard.errors.BadInput: scratchpad: '8 MB/s' is not a quantity in B (write it like '8 MiB')
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{name}: expected a number or a quantity in {unit or 'plain numbers'}, got {quoted(value)}")
    if not isinstance(value, str):
        number = _floating(value)
    else:
        match = _QUANTITY.fullmatch(value)
        scale = _scale(match.group(2) or "", unit) if match else None
        if match is None or scale is None:
            examples = {"B": "8 MiB", "B/s": "150 GB/s", "B/cycle": "256 B/cycle", "Hz": "1.05 GHz", "s": "100 ns"}
            example = examples.get(unit, f"1 {unit}".strip())
            raise BadInput(f"{name}: {quoted(value)} is not a quantity in {unit or 'plain numbers'} (write it like '{example}')")
        number = _scaled(match.group(1), scale)
    if not math.isfinite(number):
        raise BadInput(f"{name}: {quoted(value)} is not a finite number: expected one up to 1e308")
    return number


def _floating(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def _scaled(digits: str, scale: float) -> float:
    """The number in the base unit, exact: '100 ns' is 1e-07, not its neighbour; infinite where floating point ends.

    >>> _scaled("1e99999999999999999999", 1e9), _scaled("1e-99999999999999999999", 1e9)
    (inf, 0.0)
    """
    plain = float(digits)  # any exponent is within its reach: it ends at infinity and at zero
    if not math.isfinite(plain) or abs(plain) < LEAST:
        return plain * scale
    return float(Decimal(digits) * Decimal(repr(scale)))


def _scale(text: str, unit: str) -> float | None:
    if text in ("", unit):
        return 1.0
    if text in _UNPREFIXED.get(unit, {}):
        return _UNPREFIXED[unit][text]
    for spelling, size in _UNITS[unit].items():
        if text.endswith(spelling):
            prefix = text[: len(text) - len(spelling)] if spelling else text
            if prefix in _BINARY and unit in ("B", "B/s", "B/cycle"):
                return _BINARY[prefix] * size
            if prefix in _DECIMAL:
                return _DECIMAL[prefix] * size
    return None


def unit_of_field(field: str) -> str | None:
    """The base unit that a field's name ends in, or None; a rate of things that have none, such as samples, is no time.

    >>> unit_of_field("dram_bytes_per_s"), unit_of_field("rows"), unit_of_field("samples_per_s")
    ('B/s', None, None)
    """
    for ending in sorted(FIELD_UNITS, key=len, reverse=True):
        if field.endswith(ending):
            return None if ending == "_s" and field.endswith("_per_s") else FIELD_UNITS[ending]
    return None


def require_likely(number: float, unit: str, name: str, field: str) -> None:
    """Refuses a number that was written without a unit and is too small for the base unit: `dram=75` is meant in GB/s.

    >>> require_likely(75.0, "B/s", "dram", "dram_bytes_per_s")
    Traceback (most recent call last):
    trainyard.errors.BadInput: dram=75 has no unit: write dram='75 GB/s', or dram_bytes_per_s=75 if 75 B/s is meant
    """
    least, usual = _LIKELY.get(unit, (0.0, ""))
    if 0 < number < least:
        raise BadInput(
            f"{name}={number:g} has no unit: write {name}='{number:g} {usual}', or {field}={number:g} if {number:g} {unit} is meant"
        )


def show(value: float, unit: str, *, binary: bool = False, digits: int = 3) -> str:
    """`value` with the prefix that suits it.

    >>> show(0, "s"), show(1234.5, "J"), show(0.9996, "s")
    ('0 s', '1.23 kJ', '1 s')
    >>> show(2.5e-5, "m2"), show(0.0021, "J s")
    ('25 mm2', '2.1 mJ s')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    if unit == "m2":  # a prefix would be squared
        return f"{_plain(value * 1e6, digits)} mm2"
    steps = (
        [("Pi", 2.0**50), ("Ti", 2.0**40), ("Gi", 2.0**30), ("Mi", 2.0**20), ("Ki", 2.0**10), ("", 1.0)]
        if binary
        else [("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)]
    )
    if not binary and unit not in ("B", "B/s", ""):
        steps += [("m", 1e-3), ("µ", 1e-6), ("n", 1e-9), ("p", 1e-12)]
    rounded = float(f"{value:.{digits}g}")
    prefix, size = next(((p, s) for p, s in steps if abs(rounded) >= s), steps[-1])
    return f"{_plain(value / size, digits)} {prefix}{unit}".strip()


def _plain(number: float, digits: int) -> str:
    text = f"{number:.{digits}g}"
    return f"{float(text):.0f}" if "e" in text else text
