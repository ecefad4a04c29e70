"""The cost of a step. `result` is the value that a user gets; `booking` divides the time of tasks among the rows of ops;
`loop_nests` are the mappings behind it, `savings` what tensors that stay on chip between layers save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.results.result import Cost, Peaks, Result

__all__ = [
    "Cost", "Peaks", "Result",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "Cost": "result",
        "Peaks": "result",
        "Result": "result",
    },
)
