"""Packages whose public names are imported when first used (PEP 562), so that a run loads only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def exports(package: str, homes: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` gives the submodule of each public name; submodules are found by their own names.

    >>> from trainyard import mapping
    >>> mapping.gradient_order.traffic.__name__
    'traffic'
    """
    known = homes or {}

    def __getattr__(name: str) -> Any:
        if name in known:
            value = getattr(import_module(f"{package}.{known[name]}"), name)
        elif name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
