"""A machine as a nested plain dict: what a result keeps of it, what a file holds, what a hash is taken of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from trainyard.machines.fields import settable
from trainyard.machines.registry import type_name

PLAIN = frozenset({int, float, str, bool, type(None)})


def describe(machine: object) -> dict[str, Any]:
    """Every field of every part, SI numbers, the part's type under `type`; `from_table` reads it back."""
    part: type = type(machine)
    table: dict[str, Any] = {"type": type_name(part)}
    if hasattr(machine, "to_table"):  # a part with a table of its own, such as a graph
        return {**table, **machine.to_table()}
    for name in settable(part):
        table[name] = _plain(getattr(machine, name))
    return table


def _plain(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return describe(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(_plain(item) for item in value)
    return value
