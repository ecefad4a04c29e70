"""DDR4 modules of a memory-node, and their speeds.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018, Table IV. The paper
gives the power at DDR4-2400, which is PC4-19200, but 256 GB/s from ten modules (Table II) need PC4-25600, DDR4-3200. Both are kept
as printed: a module's power does not depend on its speed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ModuleName = Literal["8 GB RDIMM", "16 GB RDIMM", "32 GB LRDIMM", "64 GB LRDIMM", "128 GB LRDIMM"]
Speed = Literal["PC4-17000", "PC4-19200", "PC4-25600"]


@dataclass(frozen=True, slots=True)
class Module:
    """One DIMM; GB is a power of ten, as in the paper's GB/W."""

    capacity_bytes: int
    tdp_w: float


# fmt: off
MODULES: dict[ModuleName, Module] = {
    "8 GB RDIMM":    Module(8 * 10**9,    2.9),  # Table IV
    "16 GB RDIMM":   Module(16 * 10**9,   6.6),  # Table IV
    "32 GB LRDIMM":  Module(32 * 10**9,   8.7),  # Table IV
    "64 GB LRDIMM":  Module(64 * 10**9,  10.2),  # Table IV
    "128 GB LRDIMM": Module(128 * 10**9, 12.7),  # Table IV
}
BYTES_PER_S: dict[Speed, float] = {
    "PC4-17000": 17.0e9,  # Sec. III-A: ten of them give 170 GB/s
    "PC4-19200": 19.2e9,  # JESD79-4: DDR4-2400, the speed that Table IV's power is printed for
    "PC4-25600": 25.6e9,  # Sec. III-A: ten of them give 256 GB/s
}
# fmt: on
