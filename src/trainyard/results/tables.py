"""Tables of a result by name: a key that is not there is answered with the nearest one that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeVar

from trainyard.errors import UnknownKey

Value = TypeVar("Value")


class NamedTable(dict[str, Value]):
    """A dictionary by `kind` of name (a layer, a phase, a level of memory).

    >>> NamedTable("layer", {"conv1": 1, "fc": 2})["conv2"]
    Traceback (most recent call last):
    trainyard.errors.UnknownKey: unknown layer 'conv2': did you mean 'conv1'? (known: conv1, fc)
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str, entries: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, key: str) -> NoReturn:
        raise UnknownKey(self.kind, str(key), filter(None, map(str, self)))

    def __reduce__(self) -> tuple[type[NamedTable[Value]], tuple[str, dict[str, Value]]]:
        return NamedTable, (self.kind, dict(self))
