"""Attributes of torch that are exchanged for the time of a capture."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Attribute = tuple[Any, str, Any]
"""An owner, a name and its value."""

_ABSENT: Any = object()
_READS_TORCH = "torch._dynamo"  # keeps references to many functions of torch when it is first imported


@contextmanager
def replaced(attributes: Iterable[Attribute]) -> Iterator[None]:
    """Sets each attribute while the block runs, then restores what the owner itself had under the name.

    A module that keeps references to torch's functions sees the original ones, even if it is first imported inside the block.
    """
    new = list(attributes)
    old = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in new]
    finder = _OriginalsAtImport(new, old)
    sys.meta_path.insert(0, finder)
    try:
        _set(new)
        yield
    finally:
        sys.meta_path.remove(finder)
        _set(old)


def _set(attributes: Iterable[Attribute]) -> None:
    for owner, name, value in attributes:
        if value is not _ABSENT:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)


class _OriginalsAtImport(MetaPathFinder):
    """Takes the replacements back while torch's compiler is imported."""

    def __init__(self, new: list[Attribute], old: list[Attribute]) -> None:
        self._new, self._old = new, old

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _READS_TORCH else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            _set(self._old)
            try:
                load(module)
            finally:
                _set(self._new)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this spec's own loader
        return spec
