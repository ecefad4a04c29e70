"""Parts of machines: a folder for each mechanism, under its paper's own word.

`tables` (energy, area, technology), `formats` (sparse matrices, narrow numbers, QSGD),
`benes` and `reduction` (SIGMA's networks), `topology`, `collectives` and `memory_node` (MC-DLA), `dpu`, `crossbar`, `agau` and
`dsc` (DIRECT). Imports ir, engine and kernels. A table carries the source of each row on its line.
"""

from __future__ import annotations

from trainyard.lazy import exports

__getattr__ = exports(__name__)
