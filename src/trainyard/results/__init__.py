"""The cost of a step. `result` is the value that a user gets; `booking` divides the time of tasks among the rows of ops;
`metrics` are its numbers by name, `tables` its tables by layer, phase or component; `chip` is the area and static power of its
machine, `training` the time to train; `loop_nests` are the mappings behind it, `savings` what tensors that stay on chip between
layers save; `memory` says which memories a step does not fit, `ranges` is the range of its time."""

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
