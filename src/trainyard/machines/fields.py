"""The fields of a part as a user may write them: keys without their unit, values with one, types checked with the path named."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from trainyard.construction import hints, settable, stem
from trainyard.errors import BadInput, TrainyardError, UnknownName, quoted
from trainyard.machines.grammar import Call, parse_value
from trainyard.units import parse, require_likely, unit_of_field

__all__ = ["field_named", "fit", "hints", "members", "settable", "stem"]
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


def field_named(part: type, key: str, value: Any, path: str, nearest: str | None = None) -> str:
    """The field that `key` means: its name, or its name without the unit; between two of them the value's unit decides."""
    fields_of_part = settable(part)
    word = key.replace("-", "_")
    if word in fields_of_part:
        return word
    candidates = [name for name in fields_of_part if stem(name) == word]
    if len(candidates) > 1:
        candidates = [name for name in candidates if isinstance(value, str) and _is_quantity(value, name)]
        if len(candidates) != 1:
            meant = " or ".join(name for name in fields_of_part if stem(name) == word)
            raise BadInput(f"{path}{key}: {quoted(value)} may be {meant}: write the whole name or a unit")
    if not candidates:
        raise UnknownName(
            f"key of {part.__name__}", key, {stem(name) for name in fields_of_part}, path.rstrip(":. "), nearest=nearest
        )
    (name,) = candidates
    _require_unit(key, name, value, path)
    return name


def _require_unit(key: str, field: str, value: Any, path: str) -> None:
    """A bare number under a key without a unit must at least be likely."""
    unit = unit_of_field(field) or ""
    if isinstance(value, str) and _is_quantity(value, field):
        return
    try:
        number = parse(value, unit)
    except BadInput:
        return  # what is no number is refused where the field's type is checked
    require_likely(number, unit, f"{path}{key}", field)


def _is_quantity(value: str, field: str) -> bool:
    with suppress(BadInput):
        parse(value, unit_of_field(field) or "")
        return not value.strip()[-1].isdigit()
    return False


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, text last because everything reads as text."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(sorted(options, key=lambda option: option is str))


def fit(value: Any, hint: Any, unit: str | None, path: str) -> Any:
    """`value` as the type of a field; text is read as what the field needs."""
    options = members(hint)
    if len(options) == 1:
        return _fit_one(value, options[0], unit, path)
    problems = []
    for option in options:
        try:
            return _fit_one(value, option, unit, path)
        except TrainyardError as error:
            problems.append(str(error))
    raise BadInput(f"{path}: {quoted(value)} is none of {', '.join(_spoken(option, unit) for option in options)}")


def _fit_one(value: Any, hint: Any, unit: str | None, path: str) -> Any:
    origin = get_origin(hint)
    if hint is None or hint is type(None):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        raise _wrong(value, hint, unit, path)
    if origin is Literal:
        return _choice(value, get_args(hint), path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_choice(value, tuple(member.value for member in hint), path))
    if origin is tuple:
        return _tuple(value, get_args(hint), unit, path)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(value, get_args(hint), path)
    if isinstance(hint, type) and issubclass(hint, Mapping) and isinstance(value, Mapping):
        return hint(value)  # type: ignore[call-arg]  # a mapping type of a part's own, made from a plain one
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping | Call):
        return _part_of_list(dict(value.arguments) if isinstance(value, Call) else value, hint, path)
    reader = _READERS.get(hint)
    if reader is not None:
        return reader(value, unit, path)
    if isinstance(hint, type) and not is_dataclass(hint) and not getattr(hint, "_is_protocol", False):
        if isinstance(value, hint):
            return value
        raise _wrong(value, hint, unit, path)
    return tuple(value) if isinstance(value, list) else value


def _part_of_list(value: Mapping[str, Any], part: type, path: str) -> Any:
    """A small part inside a list (a unit, a wire), from its table; its type is the list's."""
    named = {field_named(part, key, item, f"{path}."): item for key, item in value.items() if key != "type"}
    types = hints(part)
    try:
        return part(**{name: fit(item, types[name], unit_of_field(name), f"{path}.{name}") for name, item in named.items()})
    except TypeError as error:  # the constructor names what is missing
        raise BadInput(f"{path}: {part.__name__} {str(error).partition(' ')[2]}") from None


def _choice(value: Any, options: tuple[Any, ...], path: str) -> Any:
    for option in options:
        if type(option) is type(value) and option == value:
            return option
        if isinstance(value, str) and not isinstance(option, str) and str(option).lower() == value.lower():
            return option
    raise UnknownName("value", value if isinstance(value, str) else quoted(value), map(str, options), path)


def _tuple(value: Any, arguments: tuple[Any, ...], unit: str | None, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) and value.lstrip().startswith("("):
        value = parse_value(value)
    if not isinstance(value, list | tuple):
        raise BadInput(f"{path}: expected a list such as (1,2,3), got {quoted(value)}")
    if arguments[-1:] == (Ellipsis,):
        arguments = arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise BadInput(f"{path}: expected {len(arguments)} values, got {len(value)}: {quoted(value)}")
    return tuple(fit(item, hint, unit, f"{path}[{i}]") for i, (item, hint) in enumerate(zip(value, arguments, strict=True)))


def _mapping(value: Any, arguments: tuple[Any, ...], path: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{path}: expected a table, got {quoted(value)}")
    key_hint, value_hint = arguments or (Any, Any)
    return {
        fit(key, key_hint, None, f"{path} key"): fit(item, value_hint, unit_of_field(str(key)), f"{path}.{key}")
        for key, item in value.items()
    }


def _boolean(value: Any, unit: str | None, path: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise _wrong(value, bool, unit, path)


def _float(value: Any, unit: str | None, path: str) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"{path}: {value} is not a finite number")
    number = parse(value, unit or "", path)
    if unit is not None and number < 0:
        raise BadInput(f"{path}: {quoted(value)} is negative")
    return number


def _integer(value: Any, unit: str | None, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and (unit is None or value >= 0):
        return value
    if isinstance(value, str) and unit is None:
        with suppress(ValueError):
            return int(value)
    number = _float(value, unit, path)
    if not number.is_integer():
        raise BadInput(f"{path}: {quoted(value)} is not a whole number")
    return int(number)


def _text(value: Any, unit: str | None, path: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(value, str, unit, path)


_READERS: Mapping[Any, Callable[[Any, str | None, str], Any]] = {bool: _boolean, int: _integer, float: _float, str: _text}


def _wrong(value: Any, hint: Any, unit: str | None, path: str) -> BadInput:
    return BadInput(f"{path}: expected {_spoken(hint, unit)}, got {quoted(value)}")


def _spoken(hint: Any, unit: str | None) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        return f"a list of {len(get_args(hint))} such as {_example(hint)}"
    if get_origin(hint) is tuple:
        return f"a list such as {_example(hint)}"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    if hint in (int, float) and unit:
        return f"a quantity in {unit}"
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return "a table"
    return plain.get(hint) or str(getattr(hint, "__name__", hint))


def _example(hint: Any) -> str:
    """How a list is written.

    >>> _example(tuple[tuple[int, int], ...])
    '((1,1),(1,1))'
    """
    if get_origin(hint) is not tuple:
        return "1"
    arguments = get_args(hint)
    return f"({','.join(map(_example, arguments[:1] * 2 if Ellipsis in arguments else arguments))})"
