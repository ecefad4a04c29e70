"""Energy of operations, SRAM and DRAM, by technology node, from public tables.

Two tables are published: 45 nm (M. Horowitz: Computing's Energy Problem. ISSCC 2014) and 7 nm (N. Jouppi et al.: Ten Lessons From
Three Generations Shaped Google's TPUv4i. ISCA 2021, Table 2). Nodes between them lie on a curve through both that follows
Stillmaker's gate energies; above 45 nm the gate energies alone scale. Gates shrink faster than whole units did (15x against about
3x from 45 to 7 nm), which is why the published 7 nm row is an anchor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from trainyard.errors import UnknownName
from trainyard.parts.nodes import between, gate_energy, require_node

PICO = 1e-12


@dataclass(frozen=True, slots=True)
class Row:
    """One operation at the two published nodes, in picojoules."""

    name: str
    pj_45nm: float
    pj_7nm: float
    source: str


BOTH = "Horowitz, ISSCC 2014 (45 nm); Jouppi, ISCA 2021, Table 2 (7 nm)"
BF16 = "Jouppi, ISCA 2021, Table 2 (7 nm); assumed: 45 nm as fp16 scales"
# fmt: off
ADD: tuple[Row, ...] = (
    Row("int8",  0.03, 0.007, BOTH),
    Row("int32", 0.10, 0.030, BOTH),
    Row("fp16",  0.40, 0.160, BOTH),
    Row("bf16",  0.28, 0.110, BF16),
    Row("fp32",  0.90, 0.380, BOTH),
    Row("fp64",  1.80, 0.760, "assumed: twice fp32, as the width of the significand"),
)
MULTIPLY: tuple[Row, ...] = (
    Row("int8",  0.20, 0.070, BOTH),
    Row("int32", 3.10, 1.480, BOTH),
    Row("fp8",   0.20, 0.070, "assumed: as int8, its significand is no wider"),
    Row("fp16",  1.10, 0.340, BOTH),
    Row("bf16",  0.68, 0.210, BF16),
    Row("tf32",  1.10, 0.340, "assumed: as fp16, the same significand"),
    Row("fp32",  3.70, 1.310, BOTH),
    Row("fp64", 14.80, 5.240, "assumed: four times fp32, as the square of the significand"),
)
SRAM_64_BITS: tuple[tuple[int, Row], ...] = (
    (8 * 1024,    Row("8 KB",   10.0,  7.5, BOTH)),
    (32 * 1024,   Row("32 KB",  20.0,  8.5, BOTH)),
    (1024 * 1024, Row("1 MB",  100.0, 14.0, BOTH)),
)


@dataclass(frozen=True, slots=True)
class Dram:
    """Energy of one bit read from or written to DRAM; Jouppi's rows count the interface only, as their footnote says."""

    name: str
    pj_per_bit: float
    source: str


DRAM: tuple[Dram, ...] = (
    Dram("ddr4",   1300 / 64, "Jouppi, ISCA 2021, Table 2: DDR3/4, 1300 pJ for 64 bits, interface"),
    Dram("gddr6",   415 / 64, "Jouppi, ISCA 2021, Table 2: 350-480 pJ for 64 bits, interface, the middle"),
    Dram("hbm2",    350 / 64, "Jouppi, ISCA 2021, Table 2: 250-450 pJ for 64 bits, interface, the middle"),
    Dram("lpddr4",  4.0,      "assumed: the order usually given for LPDDR4; no public table has it"),
)
# fmt: on

ACCUMULATE = {"int8": "int32", "int32": "int32", "fp64": "fp64"}
"""What a product of a format is added into, fp32 where not said."""


def _at(row: Row, nm: float) -> float:
    """A published operation at any node, in joules."""
    require_node(nm)
    if nm >= 45:
        return row.pj_45nm * gate_energy(nm) * PICO
    way = math.log(gate_energy(nm)) / math.log(gate_energy(7))
    return row.pj_45nm * math.pow(row.pj_7nm / row.pj_45nm, way) * PICO


def _row(table: tuple[Row, ...], kind: str, name: str) -> Row:
    for row in table:
        if row.name == name:
            return row
    raise UnknownName(kind, name, [row.name for row in table])


@cache
def add_joules(number: str, nm: float) -> float:
    return _at(_row(ADD, "adder", number), nm)


@cache
def multiply_joules(number: str, nm: float) -> float:
    return _at(_row(MULTIPLY, "multiplier", number), nm)


def mac_joules(number: str, nm: float) -> float:
    """One multiply-accumulate: the product in its format, the sum in the wider one.

    >>> round(mac_joules("fp32", 45) * 1e12, 3), round(mac_joules("bf16", 7) * 1e12, 3)
    (4.6, 0.59)
    """
    return multiply_joules(number, nm) + add_joules(ACCUMULATE.get(number, "fp32"), nm)


@cache
def sram_joules_per_byte(capacity_bytes: float, nm: float) -> float:
    """A byte read from or written to an SRAM of that size: between the published sizes on logarithmic axes.

    >>> round(sram_joules_per_byte(32 * 1024, 45) * 8e12, 6)
    20.0
    """
    return between([(size, _at(row, nm)) for size, row in SRAM_64_BITS], capacity_bytes) / 8


@cache
def dram_joules_per_byte(kind: str) -> float:
    for row in DRAM:
        if row.name == kind:
            return row.pj_per_bit * 8 * PICO
    raise UnknownName("DRAM", kind, [row.name for row in DRAM])
