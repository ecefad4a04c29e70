"""What every array's `execute` shares: its result, and the check of its operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The product of two small matrices, and the cycles until its last element is complete."""

    product: npt.NDArray[np.float64]
    cycles: int


def require_product_shapes(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    """Refuses operands that are no [M, K] and [K, N] matrices, or are empty."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or not a.size or not b.size:
        raise BadInput(f"execute: shapes {a.shape} and {b.shape} do not multiply")
