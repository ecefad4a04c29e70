"""What the parts of SIGMA take: each network as a bill of multipliers, adders, registers, muxes and lines, and the bill's prices.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-V.

The paper prints totals only, so the bills come from the topologies (N lanes in a Flex-DPE, D Flex-DPEs, W words a cycle):

| network | of what                                                                                   | grows as         |
|---------|-------------------------------------------------------------------------------------------|------------------|
| linear  | an adder and its register for each lane                                                   | N                |
| FAN     | N - 1 adders; two (L-1)-fold muxes and L(L-1) link registers at level L; bypass at level 0 | N                |
| ART     | N - 1 adders, of which all with a sibling link have three inputs: a second adder           | N                |
| Benes   | 2 log2 N + 1 levels of N switches of two muxes; diagonals of 1, 1, 2, 2, 4, ... lane pitches | N log N, N^1.5 |
| NoC     | a switch of five 4:1 muxes and four link registers, W words wide, for each Flex-DPE       | D W              |

Lanes lie folded in a square, so that a line over 2^b lanes is 2^(b // 2) pitches long, and an adder tree has 1.5 N pitches of line.

Prices: FP32 units as in `hardware.tables.energy` and `hardware.tables.area`; cells of an open library, a square micron of which
takes what one of the table's int32 adder does; lines by C V^2. These tables make the TPU's 128 x 128 cells 74 mm2 and 32 W at 28 nm
and 500 MHz; the paper says 47.3 mm2 and about 11.2 W. Three constants are therefore calibrated (`LAYOUT`, `REPEATERS`, `ACTIVITY`),
each on one printed total; what the networks add to each other, and SIGMA's power over the TPU's, is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.tables.area import ADDER, MULTIPLIER, ComponentArea, Unit
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, MUX_UM2, TOGGLED, cells_joules, line_joules
from trainyard.hardware.tables.energy import Component, add_joules, multiply_joules
from trainyard.hardware.tables.technology import area_factor

Reduction = Literal["linear", "art", "fan"]

# fmt: off
NM              = 28         # Fig. 8
CLOCK_HZ        = 500e6      # assumed: not printed; 16384 PEs make 16.4 TFLOPS with it, the base of which Fig. 8's 10.8 are 66 %
NUMBER          = "fp32"     # Sec. IV-A2, Fig. 6
WORD_BITS       = 32         # FP32 words on all networks
CONTROLLER_M2   = 1.4e-6     # Sec. V: 1024 AND gates, 1024 OR gates, 1024 counters, 128 SRC-DEST tables
LANES           = 128 * 128  # Fig. 8

LAYOUT          = 0.63543    # calibrated on sigma.area (65.1 mm2): the paper's cells over ours, one factor for all of them
REPEATERS       = 4.988      # calibrated on sigma.area_overhead_over_tpu (37.7 %; without it 30.7 %): square microns of 45 nm for
                             # a bit's line of 1 mm, as one buffer of the library (BUF_X4, 1.862) in 0.37 mm would take
ACTIVITY        = 0.36502    # calibrated on sigma.power (22.33 W): the paper's joules over ours, one factor for all of them
# fmt: on
TABLES = "a bill of parts of SIGMA, HPCA 2020, Sec. IV (parts.energy, parts.area, Nangate cells, C V^2 of lines)"
SOURCE = f"Fig. 8, shared out by {TABLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """How many units of each kind, words of 32 bits wide; `pitches` of line are counted in widths of a lane."""

    multipliers: float = 0.0
    adders: float = 0.0
    registers: float = 0.0
    muxes: float = 0.0
    pitches: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        return Bill(**{kind.name: getattr(self, kind.name) + getattr(other, kind.name) for kind in fields(self)})

    def __mul__(self, times: float) -> Bill:
        return Bill(**{kind.name: getattr(self, kind.name) * times for kind in fields(self)})

    @property
    def cells_m2(self) -> float:
        """Without lines."""
        units = self.multipliers * _um2(MULTIPLIER, NUMBER) + self.adders * _um2(ADDER, NUMBER)
        return (units + self._small_um2) * area_factor(NM) * LAYOUT * 1e-12

    @property
    def _small_um2(self) -> float:
        return WORD_BITS * (self.registers * FLIP_FLOP_UM2 + self.muxes * MUX_UM2)

    def m2(self, pitch_m: float) -> float:
        repeaters = self.pitches * pitch_m * 1e3 * WORD_BITS * REPEATERS
        return self.cells_m2 + repeaters * area_factor(NM) * LAYOUT * 1e-12

    def joules(self, pitch_m: float) -> float:
        """All of it at work once."""
        units = self.multipliers * multiply_joules(NUMBER, NM) + self.adders * add_joules(NUMBER, NM)
        line = WORD_BITS * TOGGLED * line_joules(self.pitches * pitch_m)
        return (units + cells_joules(self._small_um2, NM) + line) * ACTIVITY


def _um2(table: tuple[Unit, ...], name: str) -> float:
    return next(row.um2 for row in table if row.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A component of a chip: all that is `there`, what is at work in one `event`, and how many events a busy cycle has."""

    component: str
    event: str
    there: Bill
    moved: Bill
    busy: float
    number: str | None = None


def reduction_network(lanes: int, kind: Reduction = "fan") -> Bill:
    """The network that adds up the products of so many lanes; all of it is at work in each cycle.

    The select bits are set once a fold; they and FAN's comparators (log2 N gates an adder) are left out, and the muxes of ART.
    Only adders of level 0 bypass (Fig. 6c); were it all of them, FAN would take 13 % more area and 40 % more power than the chain
    at 512 lanes, in place of 10 and 31.

    >>> linear, fan = reduction_network(8, "linear"), reduction_network(8, "fan")
    >>> linear.adders, linear.registers, linear.muxes
    (8, 8, 0.0)
    >>> fan.adders, fan.registers, fan.muxes  # 7 + 4 for bypass + 2 on the links of level 2; 8 for bypass + 2 before level 2
    (7.0, 13.0, 10.0)
    """
    _require_power(lanes)
    if kind not in get_args(Reduction):
        raise UnknownName("reduction", str(kind), get_args(Reduction), where="reduction_network")
    if kind == "linear":
        return Bill(adders=lanes, registers=lanes, pitches=lanes)
    widths = [(level, lanes >> (level + 1)) for level in range(lanes.bit_length() - 1)]  # adders of each level
    tree = Bill(adders=lanes - 1, registers=lanes - 1, pitches=sum(many * 2 ** (level // 2) for level, many in widths))
    if kind == "art":
        return tree + Bill(adders=sum(many - 2 for _, many in widths if many > 2))  # the outer two of a level have no sibling link
    links = sum(
        many * level * (level - 1) for level, many in widths
    )  # two from each level below, a register for each level crossed
    muxes = sum(many * 2 * (level - 1) for level, many in widths if level)
    return tree + Bill(registers=links, muxes=muxes) + Bill(registers=lanes / 2, muxes=lanes)  # level 0 bypasses both its inputs


def benes_levels(lanes: int) -> int:
    """Sec. IV-A1: 2 log2 N + 1."""
    _require_power(lanes)
    return 2 * (lanes.bit_length() - 1) + 1


def _diagonals(lanes: int) -> int:
    """Pitches of a lane's diagonals through half of the network, one for each bit of its number."""
    return sum(2 ** (bit // 2) for bit in range(lanes.bit_length() - 1))


def sigma_parts(*, dpes: int, multipliers: int, bandwidth: int = 128, reduction: Reduction = "fan") -> tuple[Part, ...]:
    """SIGMA's compute array, without its controller and SRAM.

    | event             | one of                                                                   |
    |-------------------|--------------------------------------------------------------------------|
    | `multiplication`  | pairs that a multiplier gets                                             |
    | `addition`        | products that enter the reduction network                                |
    | `multiplier_slot` | multipliers in a cycle: registers of operand and product are clocked     |
    | `stationary_load` | elements written to a multiplier's buffer, which is not clocked after that |
    | `distribution`    | elements that leave a Benes network                                      |
    | `broadcast`       | elements that enter the NoC: like a bus, it passes them by all Flex-DPEs |

    assumed: a word moves the muxes and lines of its own way only; lines off the way are held.
    """
    require_positive("sigma_parts", dpes=dpes, multipliers=multipliers, bandwidth=bandwidth)
    lanes = dpes * multipliers
    tree = reduction_network(multipliers, reduction)
    levels, diagonals, side = benes_levels(multipliers), _diagonals(multipliers), math.sqrt(multipliers)
    adders = Bill(adders=tree.adders)
    rest = Bill(registers=tree.registers, muxes=tree.muxes, pitches=tree.pitches)
    switch = Bill(registers=4, muxes=15, pitches=4 * side)
    register = Bill(registers=1)
    # fmt: off
    return (
        Part(component="multiplier",   event="multiplication",  there=Bill(multipliers=lanes), moved=Bill(multipliers=1),
             busy=lanes, number=NUMBER),
        Part(component="adder",        event="addition",        there=adders * dpes, moved=adders * (1 / multipliers), busy=lanes),
        Part(component="reduction",    event="multiplier_slot", there=rest * dpes,   moved=rest * (1 / multipliers),   busy=lanes),
        Part(component="buffer",       event="multiplier_slot", there=register * (2 * lanes), moved=register * 2, busy=lanes),
        Part(component="stationary",   event="stationary_load", there=register * lanes,       moved=register,     busy=0),
        Part(component="distribution", event="distribution",
             there=Bill(muxes=2 * levels, pitches=2 * diagonals) * lanes,
             moved=Bill(muxes=levels, pitches=diagonals), busy=lanes),  # half of the levels' steps are diagonal
        Part(component="noc",          event="broadcast",
             there=switch * (dpes * bandwidth), moved=Bill(registers=1, muxes=3, pitches=side) * dpes, busy=bandwidth),
    )
    # fmt: on


def systolic_parts(cells: int) -> tuple[Part, ...]:
    """A weight-stationary systolic array in the same prices: registers for weight, input and sum, the two moving ones clocked."""
    require_positive("systolic_parts", cells=cells)
    there, moved = (Bill(multipliers=1, adders=1, registers=registers, pitches=2) for registers in (3, 2))
    return (Part(component="cell", event="multiplier_slot", there=there * cells, moved=moved, busy=cells, number=NUMBER),)


def pitch_m(parts: tuple[Part, ...]) -> float:
    """Side of a lane: all cells shared out over the multipliers."""
    lanes = sum(part.there.multipliers for part in parts)
    return math.sqrt(sum(part.there.cells_m2 for part in parts) / lanes)


def components(parts: tuple[Part, ...]) -> tuple[Component, ...]:
    """Joules of one event of each part."""
    pitch = pitch_m(parts)
    return tuple(
        Component(
            event=part.event, component=part.component, joules=part.moved.joules(pitch), nm=NM, source=SOURCE, number=part.number
        )
        for part in parts
    )


def areas(parts: tuple[Part, ...]) -> tuple[ComponentArea, ...]:
    pitch = pitch_m(parts)
    return tuple(
        ComponentArea(component=part.component, m2=part.there.m2(pitch), nm=NM, source=SOURCE, number=part.number) for part in parts
    )


def watts(parts: tuple[Part, ...]) -> dict[str, float]:
    """By component, every unit busy in every cycle."""
    return {part.component: row.joules * part.busy * CLOCK_HZ for part, row in zip(parts, components(parts), strict=True)}


def sigma_components(*, dpes: int, multipliers: int, bandwidth: int = 128, reduction: Reduction = "fan") -> tuple[Component, ...]:
    """Energy of one event of each part, for an accelerator: without ACTIVITY, since all else there is priced by the tables too.

    >>> rows = sigma_components(dpes=128, multipliers=128)
    >>> [(row.component, round(row.joules * 1e12, 2)) for row in rows if row.event in ("multiplication", "distribution")]
    [('multiplier', 2.87), ('distribution', 2.24)]
    """
    rows = components(sigma_parts(dpes=dpes, multipliers=multipliers, bandwidth=bandwidth, reduction=reduction))
    return tuple(replace(row, joules=row.joules / ACTIVITY, source=TABLES) for row in rows)


def sigma_areas(*, dpes: int, multipliers: int, bandwidth: int = 128, reduction: Reduction = "fan") -> tuple[ComponentArea, ...]:
    """Area of each part, likewise without LAYOUT; the controller is the paper's own estimate, in proportion to the multipliers."""
    source = "SIGMA, HPCA 2020, Sec. V: global controller of 16384 multipliers; assumed: in proportion to them"
    rows = areas(sigma_parts(dpes=dpes, multipliers=multipliers, bandwidth=bandwidth, reduction=reduction))
    controller = CONTROLLER_M2 * dpes * multipliers / LANES
    return (
        *(replace(row, m2=row.m2 / LAYOUT, source=TABLES) for row in rows),
        ComponentArea(component="controller", m2=controller, nm=NM, source=source),
    )


def _require_power(lanes: int) -> None:
    require_positive("Flex-DPE", lanes=lanes)
    if lanes & (lanes - 1):
        below = 1 << (lanes.bit_length() - 1)
        raise BadInput(f"Flex-DPE: networks are built by halving, {lanes} lanes are no power of two: write {below} or {2 * below}")
