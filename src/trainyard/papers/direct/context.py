"""The paper's parameters beside those of our machine: context, not judged."""

from __future__ import annotations

from trainyard.machines.presets.direct import DIRECT
from trainyard.papers.direct.hardware import parts
from trainyard.papers.ledger import Experiments, Measured

# fmt: off
EXPERIMENTS: Experiments = {
    "direct.agau.simd":       lambda: Measured(parts()[0].width_bits, note="Width of each input of the reduction tree."),
    "direct.crossbar_levels": lambda: Measured(
        len(DIRECT.crossbar.levels),
        note="Crossbars of a chip, a rank, a DIMM and the machine; exchanges inside and between clusters use all four."),
    "direct.dpus":            lambda: Measured(DIRECT.dpus),
}
# fmt: on
