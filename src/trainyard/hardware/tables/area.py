"""Area of arithmetic and SRAM, by technology node, from tables that are published or widely quoted.

What a paper laid out itself comes as rows of `ComponentArea`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainyard.checks import require_quantity
from trainyard.errors import UnknownName
from trainyard.hardware.tables.energy import ACCUMULATE
from trainyard.hardware.tables.technology import area_factor, between, require_node

SQUARE_MICRON = 1e-12


@dataclass(frozen=True, slots=True)
class Unit:
    """One arithmetic unit in 45 nm."""

    name: str
    um2: float
    source: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One SRAM bit cell of a foundry's node."""

    nm: int
    um2: float
    source: str


TUTORIAL = "assumed: as quoted from W. Dally, NIPS tutorial 2015 (45 nm, beside Horowitz's energies); the slides were not at hand"
# fmt: off
ADDER: tuple[Unit, ...] = (
    Unit("int8",    36.0, TUTORIAL),
    Unit("int32",  137.0, TUTORIAL),
    Unit("fp16",  1360.0, TUTORIAL),
    Unit("bf16",  1360.0, "assumed: as fp16"),
    Unit("fp32",  4184.0, TUTORIAL),
    Unit("fp64",  8368.0, "assumed: twice fp32"),
)
MULTIPLIER: tuple[Unit, ...] = (
    Unit("int8",   282.0, TUTORIAL),
    Unit("int32", 3495.0, TUTORIAL),
    Unit("fp8",    282.0, "assumed: as int8"),
    Unit("fp8_e4m3", 282.0, "assumed: as int8"),
    Unit("fp8_e5m2", 282.0, "assumed: as int8"),
    Unit("fp16",  1640.0, TUTORIAL),
    Unit("bf16",   868.0, "assumed: fp16 times (8 / 11)^2, the square of the significands"),
    Unit("tf32",  1640.0, "assumed: as fp16"),
    Unit("fp32",  7700.0, TUTORIAL),
    Unit("fp64", 30800.0, "assumed: four times fp32"),
)
SRAM_CELL: tuple[Cell, ...] = (
    Cell(90, 1.000, "T. Ghani et al., IEDM 2003 (Intel 90 nm)"),
    Cell(65, 0.570, "P. Bai et al., IEDM 2004 (Intel 65 nm)"),
    Cell(45, 0.346, "K. Mistry et al., IEDM 2007 (Intel 45 nm)"),
    Cell(32, 0.171, "S. Natarajan et al., IEDM 2008 (Intel 32 nm)"),
    Cell(22, 0.092, "C.-H. Jan et al., IEDM 2012 (Intel 22 nm)"),
    Cell(16, 0.070, "S.-Y. Wu et al., IEDM 2013 (TSMC 16 nm)"),
    Cell(7,  0.027, "J. Chang et al., ISSCC 2017 (TSMC 7 nm)"),
)
CELLS_SHARE_OF_MACRO = 0.5  # assumed: decoders, sense amplifiers and wiring take the other half of an SRAM macro
# fmt: on


def _unit(table: tuple[Unit, ...], kind: str, name: str) -> float:
    for row in table:
        if row.name == name:
            return row.um2
    raise UnknownName(kind, name, [row.name for row in table])


@cache
def mac_m2(number: str, nm: float) -> float:
    """A multiplier of that format with its accumulator's adder.

    >>> round(mac_m2("fp32", 45) * 1e12)
    11884
    """
    plain = _unit(MULTIPLIER, "multiplier", number) + _unit(ADDER, "adder", ACCUMULATE.get(number, "fp32"))
    return plain * area_factor(nm) * SQUARE_MICRON


@cache
def sram_m2(capacity_bytes: float, nm: float) -> float:
    """An SRAM of that size, cells and what surrounds them."""
    require_node(nm)
    cell = between([(row.nm, row.um2) for row in SRAM_CELL], nm)
    return capacity_bytes * 8 * cell / CELLS_SHARE_OF_MACRO * SQUARE_MICRON


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentArea:
    """The area of a part that a paper laid out: `m2` at `nm`, reported under the name `component`.

    Arithmetic says its `number` format, and stands in place of the table's multipliers; `memory` shrinks as SRAM cells do, all else
    as logic.
    """

    component: str
    m2: float
    nm: float
    source: str
    number: str | None = None
    memory: bool = False

    def __post_init__(self) -> None:
        require_quantity(f"ComponentArea {self.component}", zero=True, m2=self.m2)
        require_node(self.nm)

    def at(self, nm: float, number: str) -> float:
        """Square metres at another node, and of arithmetic in another format: in proportion to the table's units.

        >>> core = ComponentArea(component="core", m2=1e-6, nm=65, source="assumed: an example", number="fp16")
        >>> round(core.at(65, "bf16") * 1e6, 3)
        0.867
        """
        if nm == self.nm and self.number in (None, number):
            return self.m2
        if self.memory:
            return self.m2 * sram_m2(1, nm) / sram_m2(1, self.nm)
        reference = self.number or "fp16"
        return self.m2 * mac_m2(number if self.number else reference, nm) / mac_m2(reference, self.nm)
