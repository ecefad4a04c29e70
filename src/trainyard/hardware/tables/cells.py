"""Cells and lines of simple logic, for parts that are bills of registers, muxes and wires: areas and joules by technology node.

Areas are those of the Nangate 45 nm Open Cell Library; a square micron of cells takes, when it switches, what one of the energy
table's int32 adder does. Lines take C V^2.
"""

from __future__ import annotations

from trainyard.hardware.tables.area import ADDER, SQUARE_MICRON
from trainyard.hardware.tables.energy import add_joules
from trainyard.hardware.tables.technology import area_factor

# fmt: off
FLIP_FLOP_UM2    = 4.522      # Nangate 45 nm Open Cell Library: DFF_X1
MUX_UM2          = 1.862      # Nangate 45 nm Open Cell Library: MUX2_X1
ADDER_UM2        = next(row.um2 for row in ADDER if row.name == "int32")
FARAD_PER_M      = 0.2e-9     # assumed: 0.2 pF/mm, which wires keep from node to node (R. Ho et al.: The Future of Wires. 2001)
SUPPLY_V         = 0.9        # hardware.tables.technology: 32 and 20 nm
TOGGLED          = 0.5        # assumed: bits of unrelated words differ half of the time
LEAKAGE_W_PER_M2 = 2e4        # assumed: 20 mW/mm2, the middle of what 28 nm logic of usual thresholds leaks when warm (10 to 40)
SRAM_LEAKAGE_W_PER_BIT = 3e-10  # assumed: 0.3 nW of a warm cell of low operating power, as tables.energy's RAMs have (0.1 to 1)
# fmt: on


def cells_m2(um2: float, nm: float) -> float:
    """Cells of so many square microns in 45 nm, at another node."""
    return um2 * area_factor(nm) * SQUARE_MICRON


def cells_joules(um2: float, nm: float) -> float:
    """Cells of so many square microns in 45 nm, switching once.

    >>> round(cells_joules(ADDER_UM2, 45) * 1e12, 3)  # the adder itself: Horowitz's 0.1 pJ
    0.1
    """
    return um2 * add_joules("int32", nm) / ADDER_UM2


def line_joules(metres: float) -> float:
    """One bit over a line that toggles every time; data does so half of the time (`TOGGLED`)."""
    return metres * FARAD_PER_M * SUPPLY_V**2 / 2
