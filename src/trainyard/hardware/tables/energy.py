"""Energy of operations, on-chip memories and DRAM, by technology node, from public tables.

Two tables are published: 45 nm (M. Horowitz: Computing's Energy Problem. ISSCC 2014) and 7 nm (N. Jouppi et al.: Ten Lessons From
Three Generations Shaped Google's TPUv4i. ISCA 2021, Table 2). Nodes between them lie on a curve through both that follows
Stillmaker's gate energies; above 45 nm the gate energies alone scale. Gates shrink faster than whole units did (15x against about
3x from 45 to 7 nm), which is why the published 7 nm row is an anchor.

On chip, a RAM answers a known address: no tags, no ways that are read and thrown away. A cache access, as the public tables have
it, costs two to three times as much. RAM rows are those of CACTI 7 (HP Labs) for one port of 64 bits, cells of low operating power,
no error correction. Neither kind scales with gates above 45 nm, since bit lines and wires do not: RAMs lie on a line through 45 and
65 nm, and a cache grows as a RAM of its size does. Below 45 nm a RAM shrinks by one factor, the mean of the three published sizes:
64 bits of 1 MB take 14.8 pJ at 7 nm by it, next to the 14 that are published; of 8 and 32 KB 1.1 and 2.6 pJ, where the published
rows, which are of caches at 45 nm, have 7.5 and 8.5. A RAM never costs more than a cache of its size: the rows end at 1 MB, and on
their line one bank of many megabytes would.

Measurements of a paper's own parts are rows of `Component`: joules of one event at the node of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from trainyard.checks import require_quantity
from trainyard.errors import UnknownName
from trainyard.hardware.tables.technology import between, gate_energy, line_through, on_line, require_node

PICO = 1e-12
Access = Literal["read", "write"]
CACHED_NODES = 256
"""Operations and nodes whose energy is kept: a sweep may come with any number of nodes."""


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
    Row("fp8_e4m3", 0.20, 0.070, "assumed: as int8, its significand is no wider"),
    Row("fp8_e5m2", 0.20, 0.070, "assumed: as int8, its significand is no wider"),
    Row("fp16",  1.10, 0.340, BOTH),
    Row("bf16",  0.68, 0.210, BF16),
    Row("tf32",  1.10, 0.340, "assumed: as fp16, the same significand"),
    Row("fp32",  3.70, 1.310, BOTH),
    Row("fp64", 14.80, 5.240, "assumed: four times fp32, as the square of the significand"),
)


@dataclass(frozen=True, slots=True)
class Dram:
    """Energy of one bit read from or written to DRAM; Jouppi's rows count the interface only, as their footnote says."""

    name: str
    pj_per_bit: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Currents:
    """Currents of one DRAM channel under back-to-back bursts, on each of its supplies."""

    read_ma: tuple[float, ...]
    write_ma: tuple[float, ...]
    supply_v: tuple[float, ...]
    bits_per_s: float

    @property
    def pj_per_bit(self) -> float:
        """As many bits read as written; opening a row is less than 1 % of it where all of the row is used."""
        rows = zip(self.read_ma, self.write_ma, self.supply_v, strict=True)
        drawn = sum((read + write) / 2 * volts for read, write, volts in rows)
        return drawn * 1e-3 / self.bits_per_s / PICO


# supplies VDD1, VDD2, VDDQ; IDD4R and IDD4W of Micron's 6 Gb LPDDR4-3200, one channel of 16 pins, as DRAMSys' memspec quotes them
LPDDR4 = Currents(read_ma=(2.25, 275.0, 150.0), write_ma=(2.25, 210.0, 55.0), supply_v=(1.8, 1.1, 1.1), bits_per_s=16 * 3.2e9)

DRAM: tuple[Dram, ...] = (
    Dram("ddr4",   1300 / 64, "Jouppi, ISCA 2021, Table 2: DDR3/4, 1300 pJ for 64 bits, interface"),
    Dram("gddr6",   415 / 64, "Jouppi, ISCA 2021, Table 2: 350-480 pJ for 64 bits, interface, the middle"),
    Dram("hbm2",    350 / 64, "Jouppi, ISCA 2021, Table 2: 250-450 pJ for 64 bits, interface, the middle"),
    Dram("lpddr4",  LPDDR4.pj_per_bit, "Micron 6 Gb LPDDR4-3200: currents above; Accelergy (Wu, ICCAD 2019) has 8 pJ/bit"),
)
# fmt: on

ACCUMULATE = {"int8": "int32", "int32": "int32", "fp64": "fp64"}
"""The format that products are accumulated in, fp32 where not listed."""


def row_joules(row: Row, nm: float) -> float:
    """A published operation at any node, in joules."""
    gates, exponent = _scaling(nm)
    if nm >= 45:
        return row.pj_45nm * gates * PICO
    return row.pj_45nm * math.pow(row.pj_7nm / row.pj_45nm, exponent) * PICO


@lru_cache(maxsize=CACHED_NODES)
def _scaling(nm: float) -> tuple[float, float]:
    """Gate energy relative to 45 nm, and its logarithm relative to that of 7 nm."""
    gates = gate_energy(nm)
    return gates, math.log(gates) / math.log(gate_energy(7))


ADDERS, MULTIPLIERS = ({row.name: row for row in table} for table in (ADD, MULTIPLY))


def _row(table: Mapping[str, Row], kind: str, name: str) -> Row:
    if name not in table:
        raise UnknownName(kind, name, table)
    return table[name]


@lru_cache(maxsize=CACHED_NODES)
def add_joules(number: str, nm: float) -> float:
    return row_joules(_row(ADDERS, "adder", number), nm)


@lru_cache(maxsize=CACHED_NODES)
def multiply_joules(number: str, nm: float) -> float:
    return row_joules(_row(MULTIPLIERS, "multiplier", number), nm)


def mac_joules(number: str, nm: float) -> float:
    """One multiply-accumulate: the product in its format, the sum in the wider one.

    >>> round(mac_joules("fp32", 45) * 1e12, 3), round(mac_joules("bf16", 7) * 1e12, 3)
    (4.6, 0.59)
    """
    return multiply_joules(number, nm) + add_joules(ACCUMULATE.get(number, "fp32"), nm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """An access of 64 bits to a RAM, in picojoules, at two nodes."""

    size_bytes: int
    read_65nm: float
    write_65nm: float
    read_45nm: float
    write_45nm: float
    source: str

    def picojoules(self, access: Access, nm: float) -> float:
        at_65, at_45 = (self.read_65nm, self.read_45nm) if access == "read" else (self.write_65nm, self.write_45nm)
        return between([(45.0, at_45), (65.0, at_65)], nm) if nm >= 45 else at_45 * shrinking(nm)


CACTI = "CACTI 7 (HP Labs): RAM, one port of 64 bits, low operating power, no ECC"
# fmt: off
RAM_64_BITS: tuple[Ram, ...] = (
    Ram(size_bytes=512,       read_65nm= 1.25, write_65nm= 1.89, read_45nm= 0.64, write_45nm= 0.95, source=CACTI),
    Ram(size_bytes=8 * 2**10, read_65nm= 5.9,  write_65nm= 6.5,  read_45nm= 3.16, write_45nm= 3.24, source=CACTI),
    Ram(size_bytes=32*2**10,  read_65nm=13.8,  write_65nm=11.4,  read_45nm= 7.23, write_45nm= 5.62, source=CACTI),
    Ram(size_bytes=128*2**10, read_65nm=30.0,  write_65nm=21.7,  read_45nm=15.5,  write_45nm=10.5,  source=CACTI),
    Ram(size_bytes=2**20,     read_65nm=83.9,  write_65nm=63.4,  read_45nm=41.8,  write_45nm=29.7,  source=CACTI),
)
CACHE_64_BITS: tuple[tuple[int, Row], ...] = (
    (8 * 1024,    Row("8 KB",   10.0,  7.5, BOTH)),
    (32 * 1024,   Row("32 KB",  20.0,  8.5, BOTH)),
    (1024 * 1024, Row("1 MB",  100.0, 14.0, BOTH)),
)
# fmt: on
RAM_SIZES, CACHE_SIZES = [row.size_bytes for row in RAM_64_BITS], [size for size, _ in CACHE_64_BITS]


@lru_cache(maxsize=CACHED_NODES)
def shrinking(nm: float) -> float:
    """Energy of a RAM access below 45 nm relative to 45 nm: the geometric mean of the published sizes.

    >>> round(shrinking(7), 3)
    0.355
    """
    ratios = [row_joules(row, nm) / row_joules(row, 45) for _, row in CACHE_64_BITS]
    return math.prod(ratios) ** (1 / len(ratios))


@lru_cache(maxsize=CACHED_NODES)
def ram_joules_per_byte(access: Access, size_bytes: float, nm: float) -> float:
    """A byte read from or written to a RAM of that size: between the rows on logarithmic axes, at most that of a cache.

    >>> round(ram_joules_per_byte("read", 128 * 1024, 65) * 1e12, 2), round(ram_joules_per_byte("write", 128 * 1024, 65) * 1e12, 2)
    (3.75, 2.71)
    """
    return min(_ram(access, size_bytes, nm), cache_joules_per_byte(size_bytes, nm))


def _ram(access: Access, size_bytes: float, nm: float) -> float:
    require_node(nm)
    points, right = _ram_points(access, nm), line_through(RAM_SIZES, size_bytes)
    return on_line(points[right - 1], points[right], size_bytes) / 8 * PICO


@lru_cache(maxsize=CACHED_NODES)
def _ram_points(access: Access, nm: float) -> list[tuple[float, float]]:
    """Sizes of RAMs, and picojoules of an access, at a node."""
    return [(row.size_bytes, row.picojoules(access, nm)) for row in RAM_64_BITS]


@lru_cache(maxsize=CACHED_NODES)
def cache_joules_per_byte(size_bytes: float, nm: float) -> float:
    """A byte read from or written to a cache of that size.

    >>> round(cache_joules_per_byte(32 * 1024, 45) * 8e12, 6)
    20.0
    """
    require_node(nm)
    points, right = _cache_points(min(nm, 45.0)), line_through(CACHE_SIZES, size_bytes)
    joules = on_line(points[right - 1], points[right], size_bytes) / 8
    if nm <= 45:
        return joules
    both: tuple[Access, Access] = ("read", "write")
    grown, plain = (sum(_ram(access, size_bytes, node) for access in both) for node in (nm, 45.0))
    return joules * grown / plain


@lru_cache(maxsize=CACHED_NODES)
def _cache_points(nm: float) -> list[tuple[float, float]]:
    """Sizes of caches, and joules of an access, at a node."""
    return [(size, row_joules(row, nm)) for size, row in CACHE_64_BITS]


@lru_cache(maxsize=CACHED_NODES)
def dram_joules_per_byte(kind: str) -> float:
    for row in DRAM:
        if row.name == kind:
            return row.pj_per_bit * 8 * PICO
    raise UnknownName("DRAM", kind, [row.name for row in DRAM])


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """The energy of one `event` of an array in a part that a paper measured: `joules` at `nm`.

    `component` is the name it is booked under. Arithmetic says the `number` format that its joules are of; an array with such a row
    is charged for it in place of the table's multiply-accumulates.
    """

    event: str
    component: str
    joules: float
    nm: float
    source: str
    number: str | None = None

    def __post_init__(self) -> None:
        require_quantity(f"Component {self.component}", zero=True, joules=self.joules)
        require_node(self.nm)

    def at(self, nm: float, number: str) -> float:
        """Joules at another node, and of arithmetic in another format: in proportion to the table's multiply-accumulate.

        >>> core = Component(event="core_slot", component="core", joules=2e-12, nm=45, source="assumed: an example", number="fp16")
        >>> round(core.at(45, "fp16") * 1e12, 6), round(core.at(45, "bf16") * 1e12, 6)
        (2.0, 1.58)
        """
        if nm == self.nm and self.number in (None, number):
            return self.joules
        reference = self.number or "fp16"
        return self.joules * mac_joules(number if self.number else reference, nm) / mac_joules(reference, self.nm)


class Prices(NamedTuple):
    """Joules by which tilings of equal time and traffic are compared: of a byte of DRAM traffic, of a byte read from the scratchpad
    and written to it, of a byte through a local scratchpad, and of a busy cycle of the array beyond its multiplications."""

    dram: float
    read: float
    write: float
    local: float = 0.0
    cycle: float = 0.0

    @property
    def row(self) -> tuple[float, ...]:
        """For compiled loops: what moves between DRAM and scratchpad is written there, or read."""
        return (self.dram + (self.read + self.write) / 2, self.read, self.write, self.local, self.cycle)


REFERENCE = Prices(
    dram=dram_joules_per_byte("hbm2"), read=ram_joules_per_byte("read", 2**20, 16), write=ram_joules_per_byte("write", 2**20, 16)
)
"""HBM2 beside a scratchpad of 1 MiB at 16 nm."""
