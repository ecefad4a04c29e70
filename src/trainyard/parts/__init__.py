"""What machines are made of: folds of an array, views and streams of masks, energy and area tables, checks of fields.

Imports ir, kernels (inside functions), units and errors. A new part is one file; a table carries the source of each row on its
line.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    """`ty.parts.benes` without an import of its own (PEP 562)."""
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
