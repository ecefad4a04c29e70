"""Stacking: what each of the five ideas adds alone, and what they add together. The project's own study, no paper's claim.

Four places in a machine, each with the idea and without it, at equal peak MACs, bandwidth, scratchpad and node:

| place    | without                      | with                                                                                  |
|----------|------------------------------|---------------------------------------------------------------------------------------|
| array    | dense systolic               | TensorDash, or SIGMA: one array at a time, so these two exclude each other            |
| order    | dX, then dW                  | IGO: dX and dW of a layer together, in the order that is fastest for it               |
| memory   | DC-DLA: maps to the host     | MC-DLA(B): maps to memory-nodes in the rings                                          |
| exchange | gradients of all, every step | DIRECT's: every device steps for itself, models are averaged after tau + 1 steps      |

`study("resnet50")` runs all 24 machines; `Study.effects` takes the logarithm of their speed apart (`effects`). The exchange with
fewer synchronisations is another algorithm: samples per second compare, accuracy is not claimed to be equal (docs/direct.md).
"""

from __future__ import annotations

from stacking.effects import IDEAS, Effects, decomposed
from stacking.ideas import ARRAYS, Combination, Setting, combinations, machine, require_equal
from stacking.networks import NETWORKS, Network
from stacking.study import Measured, Sensitivity, Study, sensitivity, study

__all__ = [
    "ARRAYS", "IDEAS", "NETWORKS", "Combination", "Effects", "Measured", "Network", "Sensitivity", "Setting", "Study",
    "combinations", "decomposed", "machine", "require_equal", "sensitivity", "study",
]  # fmt: skip
