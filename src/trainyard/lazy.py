"""Packages whose public names are imported when first used (PEP 562), so that a run loads only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainyard.errors import MissingExtra, nearest_name


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
        try:
            module = import_module(f"{package}.{home}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra("torch", "torch", f"{package}.{name}") from None
        value = getattr(module, name) if name in named else module
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
