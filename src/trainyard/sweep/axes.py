"""Axes of a study: a list of values, or a range with a number of steps or a step, linear or logarithmic.

>>> values_of({"from": 32, "to": 512, "steps": 5, "scale": "log"}, None, True, "axes.rows")
(32, 64, 128, 256, 512)
>>> values_of({"from": "50 GB/s", "to": "200 GB/s", "step": "50 GB/s"}, "B/s", False, "axes.dram")
(50000000000.0, 100000000000.0, 150000000000.0, 200000000000.0)

A logarithmic range's `step` is a factor. Numbers of a range are rounded to twelve digits, so that every computer has the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from trainyard.errors import BadInput, UnknownName
from trainyard.units import parse

Scale = Literal["linear", "log"]
RANGE = ("from", "to", "steps", "step", "scale")
MOST_VALUES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `low` to `high`; `step` is None where the study gives none (a search then takes any number between them)."""

    low: float
    high: float
    scale: Scale = "linear"
    step: float | None = None
    integer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One thing that varies.

    `name` is what the study calls it, `path` the field's whole name (`dram_bytes_per_s` for `dram`). `values` are those of a grid
    and empty for a range that only a search can walk. `plain` values are numbers, words and flags, which are set without being
    read again; the others are parts and tables, as text. `followers` are tied to this axis.
    """

    name: str
    path: str
    values: tuple[Any, ...] = ()
    range: Range | None = None
    plain: bool = False
    followers: tuple[Axis, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: int) -> dict[str, Any]:
        """Settings of the value of that number, followers included."""
        return {self.path: self.values[index], **{follower.path: follower.values[index] for follower in self.followers}}

    def of(self, value: Any) -> dict[str, Any]:
        """Settings of any value: one of the list, or a number within the range (what follows takes the same)."""
        if value in self.values:
            return self.at(self.values.index(value))
        if self.range is None or isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"axis {self.name}: {value!r} is not one of its values")
        if not self.range.low <= value <= self.range.high:
            raise BadInput(f"axis {self.name}: {value!r} lies outside {self.range.low!r} to {self.range.high!r}")
        number = round(value) if self.range.integer else float(value)
        return {axis.path: number for axis in (self, *self.followers)}


def values_of(raw: object, unit: str | None, integer: bool, where: str) -> tuple[Any, ...]:
    """The values of a grid; a range without steps has none."""
    if isinstance(raw, Mapping):
        return _grid_values(range_of(raw, unit, integer, where), raw.get("steps"), where)
    if not isinstance(raw, list | tuple):
        raise BadInput(f"{where}: expected a list, or a range such as {{ from = 1, to = 8, steps = 4 }}, got {raw!r}")
    if not raw:
        raise BadInput(f"{where}: an axis without values")
    _require_different(raw, where)
    return tuple(raw)


def _require_different(values: Sequence[Any], where: str) -> None:
    seen: set[str] = set()
    for value in values:
        if (text := f"{type(value).__name__} {value!r}") in seen:
            raise BadInput(f"{where}: {value!r} is given twice")
        seen.add(text)


def range_of(raw: Mapping[str, Any], unit: str | None, integer: bool, where: str) -> Range:
    for key in raw:
        if key not in RANGE:
            raise UnknownName("key of a range", str(key), RANGE, where)
    for key in ("from", "to"):
        if key not in raw:
            raise BadInput(f"{where}: a range needs '{key}': write {{ from = 1, to = 8, steps = 4 }}")
    low, high = (parse(raw[key], unit or "", f"{where}.{key}") for key in ("from", "to"))
    scale = raw.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise UnknownName("scale", str(scale), ("linear", "log"), where)
    if low >= high:
        raise BadInput(f"{where}: from = {raw['from']!r} must be below to = {raw['to']!r}")
    if scale == "log" and low <= 0:
        raise BadInput(f"{where}: a logarithmic range starts above 0, not at {raw['from']!r}")
    if integer and not (low.is_integer() and high.is_integer()):
        raise BadInput(f"{where}: whole numbers are needed, got {raw['from']!r} to {raw['to']!r}")
    if "steps" in raw and "step" in raw:
        raise BadInput(f"{where}: give steps (how many values) or step (how far apart), not both")
    steps = raw.get("steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= MOST_VALUES):
        raise BadInput(f"{where}.steps: expected a whole number of values from 2 to {MOST_VALUES}, got {steps!r}")
    step = None if raw.get("step") is None else parse(raw["step"], "" if scale == "log" else unit or "", f"{where}.step")
    if step is not None and step <= (1 if scale == "log" else 0):
        raise BadInput(f"{where}.step: must be above {1 if scale == 'log' else 0}, got {raw['step']!r}")
    return Range(low=low, high=high, scale=scale, step=step, integer=integer)


def _grid_values(span: Range, steps: int | None, where: str) -> tuple[float, ...]:
    if steps is not None:
        numbers = [_between(span, index / (steps - 1)) for index in range(steps)]
    elif span.step is not None:
        numbers = _stepped(span, span.step, where)
    else:
        return ()
    if span.integer:
        return tuple(dict.fromkeys(round(number) for number in numbers))
    return tuple(dict.fromkeys(numbers))


def _between(span: Range, share: float) -> float:
    if share in (0.0, 1.0):
        return span.high if share else span.low
    if span.scale == "log":
        return _rounded(span.low * (span.high / span.low) ** share)
    return _rounded(span.low + (span.high - span.low) * share)


def _stepped(span: Range, step: float, where: str) -> list[float]:
    count = math.log(span.high / span.low, step) if span.scale == "log" else (span.high - span.low) / step
    if count >= MOST_VALUES:
        raise BadInput(f"{where}.step: {step!r} gives more than {MOST_VALUES} values")
    low, high, apart, numbers = Decimal(repr(span.low)), Decimal(repr(span.high)), Decimal(repr(step)), []
    while low <= high:
        numbers.append(_rounded(float(low)))
        low = low * apart if span.scale == "log" else low + apart
    return numbers


def _rounded(number: float) -> float:
    return float(f"{number:.12g}")
