"""How work is laid onto machines: lowering of convolutions, tiles and their order, dX with dW, partitions, groups of ops.

Sees arrays and devices through the protocols of `ir` alone; imports parts and kernels. A new policy is one file here, named by a
field of the part that it steers.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    """`ty.mapping.gradient_order` without an import of its own (PEP 562)."""
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
