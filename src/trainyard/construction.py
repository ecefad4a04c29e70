"""One way to build a part: its annotations say which quantity, which check and which default each field has.

`@part` makes a frozen, slotted, keyword-only dataclass of a class and reads its annotations:

| annotation                       | what the constructor takes                                                              |
|----------------------------------|-----------------------------------------------------------------------------------------|
| `scratchpad_bytes: int`          | a number in the unit that the name ends in, or a quantity: `scratchpad_bytes="8 MiB"`,   |
|                                  | also under the name without its unit: `scratchpad="8 MiB"`                              |
| `rows: int`                      | a positive whole number; from 0 as `NonNegativeInt`                                     |
| `clock_hz: float`                | a finite quantity above 0, of times also 0; numbers without a unit as `Positive`, ...    |
| `dataflow: Literal["ws", "os"]`  | one of these words; the error offers the nearest                                        |
| `pipelined: bool`                | true or false, no word that would count as true                                         |

The default stands where nothing is given. What concerns several fields at once, or parts
inside parts (`require_parts`), is checked in the class's own `__post_init__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, lru_cache, wraps
from inspect import get_annotations
from math import inf
from sys import modules
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

import trainyard.ir
from trainyard.checks import require_choice, require_count, require_flag, require_positive, require_quantity
from trainyard.errors import BadInput, TooLarge, TrainyardError, UnknownKeyword, quoted
from trainyard.units import FIELD_UNITS, PLAUSIBLE, parse, require_likely, show, unit_of_field

T = TypeVar("T")
Range = Literal["positive", "from 0", "share", "any"]
NonNegativeInt = Annotated[int, "from 0"]
Positive = Annotated[float, "positive"]
NonNegative = Annotated[float, "from 0"]
Share = Annotated[float, "share"]
"""Above 0 and at most 1."""
EXAMPLES = {"B": "8 MiB", "B/s": "150 GB/s", "Hz": "1 GHz", "s": "100 ns"}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """A frozen, slotted, keyword-only dataclass whose constructor converts and checks its arguments by the annotations.

    >>> @part
    ... class Buffer:
    ...     buffer_bytes: int
    ...     banks: int = 1
    ...     policy: Literal["lru", "fifo"] = "lru"
    >>> Buffer(buffer="2 KiB", policy="fifo")
    Buffer(buffer_bytes=2048, banks=1, policy='fifo')
    >>> Buffer(buffer_bytes=64, banks=0)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Buffer: banks must be a positive whole number, got 0
    """
    made: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    plain = made.__init__

    @wraps(plain)
    def __init__(self: Any, **values: Any) -> None:
        plain(self, **arguments(made, values))

    made.__init__ = __init__
    return made  # type: ignore[no-any-return]  # the same class


class FieldRule(NamedTuple):
    """What a field takes, read off its annotation."""

    hint: Any
    unit: str | None
    range: Range | None
    optional: bool


@cache
def settable(cls: type) -> Mapping[str, Field[Any]]:
    """The fields that a part's constructor takes."""
    return {known.name: known for known in fields(cls) if known.init}


@cache
def hints(cls: type) -> Mapping[str, Any]:
    """Each field's type without its range; Any where its name is only known to type checkers."""
    return {name: _without_range(hint)[0] for name, hint in _annotations(cls).items()}


@cache
def rules(cls: type) -> Mapping[str, FieldRule]:
    return {name: _rule(name, hint) for name, hint in _annotations(cls).items() if name in settable(cls)}


def _annotations(cls: type) -> dict[str, Any]:
    resolved: dict[str, Any] = {}
    for known in fields(cls):
        resolved[known.name] = known.type
        if isinstance(known.type, str):
            owner = next(base for base in cls.__mro__ if known.name in get_annotations(base))
            names = {**vars(trainyard.ir), **vars(modules[owner.__module__])}
            try:
                resolved[known.name] = eval(known.type, names)  # the class's own annotation
            except NameError:
                resolved[known.name] = Any
    return resolved


def _without_range(hint: Any) -> tuple[Any, Range | None]:
    if get_origin(hint) is Annotated:
        plain, bounds = get_args(hint)[:2]
        return plain, bounds
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_without_range(option)[0] for option in get_args(hint))], None  # noqa: UP007  # made of a tuple
    return hint, None


def _rule(name: str, hint: Any) -> FieldRule:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    others = tuple(option for option in options if option is not type(None))
    plain, bounds = _without_range(others[0]) if len(others) == 1 else (Any, None)
    return FieldRule(plain, unit_of_field(name), bounds, len(others) < len(options))


def stem(name: str) -> str:
    """A field's name without its unit: what a user types.

    >>> stem("dram_bytes_per_s"), stem("scratchpad_bytes"), stem("clock_hz"), stem("rows")
    ('dram', 'scratchpad', 'clock', 'rows')
    """
    for ending in sorted(FIELD_UNITS, key=len, reverse=True):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def arguments(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments by field name, converted and checked; an unknown name is refused with its nearest neighbour.

    A copy with one field changed (`replace`) passes all fields: values that were accepted before are not checked again.
    """
    free, quantities, needed, accepted = _constructor(cls)
    for name, value in values.items():
        if accepted.get(name, _NO_VALUE) is value or name in free:
            continue
        kind = type(value)
        if kind is float and name in quantities and quantities[name][0] < value < quantities[name][1]:
            continue
        if kind not in _PLAIN_VALUES or not _accepts(cls, name, value):
            return _converted_arguments(cls, values)
        accepted[name] = value
    return values if needed <= values.keys() else _converted_arguments(cls, values)


_PLAIN_VALUES = frozenset({int, float, str, bool, type(None)})
_NO_VALUE = object()


class ConstructorChecks(NamedTuple):
    """What the constructor of a class looks at: fields that take anything, quantities with their ranges, fields that must be given;
    and the value of each field that was accepted last, which never changes: the same object is accepted again."""

    free: frozenset[str]
    quantities: Mapping[str, tuple[float, float]]
    needed: frozenset[str]
    accepted: dict[str, Any]


@cache
def _constructor(cls: type) -> ConstructorChecks:
    return ConstructorChecks(_unchecked(cls), _quantities(cls), _needed(cls), {})


@cache
def _unchecked(cls: type) -> frozenset[str]:
    """Fields that take anything: parts, tables, and what the class itself checks."""
    return frozenset(
        name
        for name, rule in rules(cls).items()
        if rule.unit is None and rule.range is None and rule.hint not in (int, bool) and get_origin(rule.hint) is not Literal
    )


@cache
def _quantities(cls: type) -> Mapping[str, tuple[float, float]]:
    """Fields that take every plausible number above 0, each with the numbers between which all are."""
    return {
        name: PLAUSIBLE.get(rule.unit or "", (0.0, inf))
        for name, rule in rules(cls).items()
        if rule.hint is float and rule.range != "share" and name not in _unchecked(cls)
    }


@cache
def _needed(cls: type) -> frozenset[str]:
    """Quantities without a default."""
    return frozenset(name for name, rule in rules(cls).items() if rule.unit in EXAMPLES and not known_default(cls, name))


@lru_cache(maxsize=4096, typed=True)  # 1, 1.0 and True are equal, but not all of them are accepted
def _accepts(cls: type, name: str, value: Any) -> bool:
    """Whether a field takes a value as it is."""
    rule = rules(cls).get(name)
    if rule is None or (value is None and not rule.optional):
        return False
    try:
        converted = _converted(cls.__name__, name, name, rule, value)
    except TrainyardError:
        return False
    return type(converted) is type(value) and bool(converted == value)


def _converted_arguments(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    owner, known = cls.__name__, rules(cls)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        name = key if key in known else _field_of_stem(cls, key, value)
        rule = known.get(name)
        if rule is None and name not in settable(cls):
            raise UnknownKeyword(f"keyword of {owner}", key, {stem(field) for field in settable(cls)})
        if rule is None or (value is None and not rule.optional and key != name):
            converted.update({} if rule else {key: value})
            continue
        if value is None and not rule.optional and rule.unit is not None and known_default(cls, name):
            continue
        if key != name and values.get(name) is not None:
            raise BadInput(f"{owner}: give {key} or {name}, not both")
        converted[name] = _converted(owner, key, name, rule, value)
    for name in known:
        if name in _needed(cls) and name not in converted:
            short = stem(name)
            raise BadInput(f"{owner} needs {short} (such as {short}={EXAMPLES[known[name].unit or '']!r}) or {name}")
    return converted


def known_default(cls: type, name: str) -> bool:
    known = settable(cls)[name]
    return known.default is not MISSING or known.default_factory is not MISSING


def _field_of_stem(cls: type, key: str, value: Any) -> str:
    """The field that a name without its unit stands for; between two of them the value's unit decides."""
    candidates = [name for name, rule in rules(cls).items() if rule.unit is not None and stem(name) == key]
    if len(candidates) > 1 and isinstance(value, str):
        candidates = [name for name in candidates if _is_quantity(value, rules(cls)[name].unit or "")]
    if len(candidates) > 1:
        raise BadInput(f"{cls.__name__}: {key}={quoted(value)} may be {' or '.join(candidates)}: write the whole name or a unit")
    return candidates[0] if candidates else key


def _is_quantity(text: str, unit: str) -> bool:
    try:
        parse(text, unit)
    except BadInput:
        return False
    return True


def _converted(owner: str, key: str, name: str, rule: FieldRule, value: Any) -> Any:
    """A number in the field's unit, then the check of its annotation."""
    if value is None and rule.optional:
        return None
    if rule.unit is not None and rule.hint in (int, float):
        number = parse(value, rule.unit, f"{owner}: {key}")
        if key != name and not isinstance(value, str):
            require_likely(number, rule.unit, key, name)
        if rule.hint is int and number != int(number):
            raise BadInput(f"{owner}: {quoted(value)} bytes is not a whole number of bytes")
        value = int(number) if rule.hint is int else value if isinstance(value, int | float) else number
    _check(owner, key, rule, value)
    return value


def _check(owner: str, name: str, rule: FieldRule, value: Any) -> None:
    hint, bounds = rule.hint, rule.range
    if get_origin(hint) is Literal:
        require_choice(owner, **{name: (value, get_args(hint))})
    elif hint is bool:
        require_flag(owner, **{name: value})
    elif hint is int and rule.unit is None:
        (require_count if bounds == "from 0" else require_positive)(owner, **{name: value})
    elif hint in (int, float) and (bounds or rule.unit):
        require_quantity(owner, zero=bounds == "from 0" or (bounds is None and rule.unit == "s"), **{name: value})
        if bounds == "share" and value > 1.0:
            raise BadInput(f"{owner}: {name} is a share and cannot exceed 1, got {quoted(value)}")
        least, most = PLAUSIBLE.get(rule.unit or "", (0.0, inf))
        if value and not least <= value <= most:
            unit = rule.unit or ""
            raise TooLarge(f"{owner}: {name} must be between {show(least, unit)} and {most:g} {unit}, got {value:g} {unit}")


def require_parts(whole: Any) -> None:
    """Refuses a field that is declared as a part of some class and holds something else."""
    cls: type = type(whole)
    owner = cls.__name__
    for name, rule in rules(cls).items():
        value, kind = getattr(whole, name), rule.hint
        if isinstance(kind, type) and is_dataclass(kind) and not isinstance(value, kind) and not (value is None and rule.optional):
            raise BadInput(f"{owner}: {name} must be a {kind.__name__}, got {quoted(value)}: write {name}={kind.__name__}(...)")
