"""Parameters that the paper states and our machine has: context, used and not met."""

from __future__ import annotations

from trainyard.machines.presets.direct import DIRECT
from trainyard.papers.direct.hardware import parts
from trainyard.papers.ledger import Experiments, Measured

# fmt: off
EXPERIMENTS: Experiments = {
    "direct.agau.simd":       lambda: Measured(parts()[0].width_bits, note="of each input of the reduction tree"),
    "direct.crossbar_levels": lambda: Measured(
        len(DIRECT.crossbar.levels),
        note="crossbars of a chip, a rank, a DIMM and the machine; exchanges inside clusters and between them use all four"),
    "direct.dpus":            lambda: Measured(DIRECT.dpus),
}
# fmt: on
