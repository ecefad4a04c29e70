"""Packages whose public names are imported when first used (PEP 562), so that a run loads only what it needs; torch among that."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainyard.errors import MissingExtra, nearest_name

OLDEST_TORCH = (2, 11)
"""The first version with which everything works; pyproject.toml asks for it."""


def exports(package: str, homes: Mapping[str, str] | None = None, modules: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` gives the submodule of each public name, `modules` the one that a name stands for.

    Other submodules are found by their own names. What needs PyTorch says so where it is not installed.

    >>> from trainyard import mapping
    >>> mapping.gradient_order.traffic.__name__
    'traffic'
    >>> mapping.__all__
    Traceback (most recent call last):
    AttributeError: module 'trainyard.mapping' has no attribute '__all__'
    """
    named, renamed = homes or {}, modules or {}

    def unknown(name: str) -> AttributeError:
        public = {*named, *renamed, *vars(sys.modules[package]).get("__all__", ())}
        nearest = None if name.startswith("_") else nearest_name(name, public)
        return AttributeError(f"module {package!r} has no attribute {name!r}" + (f": did you mean {nearest!r}?" if nearest else ""))

    def __getattr__(name: str) -> Any:
        home = named.get(name) or renamed.get(name, name)
        if name.startswith("_") or (name not in named and find_spec(f"{package}.{home}") is None):
            raise unknown(name)
        with _needs_torch(f"{package}.{name}"):
            module = import_module(f"{package}.{home}")
        value = getattr(module, name) if name in named else module
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def require_torch(what: str) -> None:
    """Refuses to go on without torch, and warns of one that is older than `OLDEST_TORCH`: pip does not look at it again."""
    with _needs_torch(what):
        torch = import_module("torch")
    _warn_of_old_torch(torch.__version__)


@contextmanager
def _needs_torch(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("torch", "torch", what) from None


@cache
def _warn_of_old_torch(version: str) -> None:
    """
    >>> with warnings.catch_warnings(record=True) as found:
    ...     _warn_of_old_torch("2.13.0+cpu"), _warn_of_old_torch("2.8.0")
    (None, None)
    >>> print(*(one.message for one in found))
    this is torch 2.8.0, and some of trainyard needs 2.11 or newer: pip install -U 'trainyard[torch]'
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and tuple(map(int, numbers.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        warnings.warn(
            f"this is torch {version}, and some of trainyard needs {oldest} or newer: pip install -U 'trainyard[torch]'",
            stacklevel=4,
        )
