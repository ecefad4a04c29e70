"""Energy and area of a Tensor Core chip with TensorDash: a laid-out chip, as joules of one event and area of one unit.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020, Table IV and Sec. IV-C:
65 nm, 500 MHz, 256 tiles of 4 x 4 elements of 4 lanes. The rows are used, not their printed sum (26,144 mW; the rows add up to
25,902). Each row is divided by how many of its units the chip has, and by the clock, so that any other chip is predicted:

| component  | event              | one unit                            | of another geometry                                      |
|------------|--------------------|-------------------------------------|----------------------------------------------------------|
| core       | `core_slot`        | a multiplier lane and its adder     | the same; another number format shrinks it (`at`)        |
| transposer | `transposer_cycle` | a 4 x 4 transposer                  | the same                                                 |
| scheduler  | `scheduler_cycle`  | a row's scheduler with its B muxes  | the scheduler as lanes x options, the muxes as A's       |
| mux        | `mux_slot`         | an element's A-side mux of one lane | as options - 1 two-input muxes                           |
| staging    | `staging_slot`     | a value in a staging buffer         | the same: (rows + columns) x lanes x depth in each tile  |

Events are counted for the busy time of the array: one of each unit in each cycle. The added parts do not change with a number
format of the same width (Sec. IV-D); parts that a gated layer does not use have no events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.checks import require_positive
from trainyard.hardware.tables.area import ComponentArea
from trainyard.hardware.tables.energy import Component

# fmt: off
TILES, ROWS, COLUMNS, LANES, DEPTH = 256, 4, 4, 4, 4  # Table III
OPTIONS           = 8           # Sec. III-A: inputs of each multiplier's mux
CLOCK_HZ          = 500e6       # Table III
NM                = 65          # Table III
NUMBER            = "fp16"      # Sec. III: products in FP16
SCRATCHPADS_BYTES = 256 * 1024  # Table III: 256 KB in total
TRANSPOSERS       = 64          # assumed: one for each bank of a memory; 64 double buffers of 4 x 4 values at the staging
                                # buffers' area per value would fill 83 % of the printed area
MULTIPLIERS       = TILES * ROWS * COLUMNS * LANES
SCHEDULERS        = TILES * ROWS
STAGED            = TILES * (ROWS + COLUMNS) * LANES * DEPTH
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row of Table IV, and how many equal units it is made of."""

    component: str
    event: str
    milliwatts: float
    mm2: float
    units: int
    source: str

    @property
    def joules(self) -> float:
        return self.milliwatts * 1e-3 / self.units / CLOCK_HZ

    @property
    def m2(self) -> float:
        return self.mm2 * 1e-6 / self.units


# fmt: off
CORE       = Part(component="core",       event="core_slot",        milliwatts=23_748.0, mm2=68.74, units=MULTIPLIERS,
                  source="TensorDash, MICRO 2020, Table IV: compute cores")
TRANSPOSER = Part(component="transposer", event="transposer_cycle", milliwatts=44.4,     mm2=0.37,  units=TRANSPOSERS,
                  source="TensorDash, MICRO 2020, Table IV: transposers; assumed: 64 of them")
SCHEDULER  = Part(component="scheduler",  event="scheduler_cycle",  milliwatts=187.9,    mm2=1.37,  units=SCHEDULERS,
                  source="TensorDash, MICRO 2020, Table IV: schedulers + B-side muxes")
MUX        = Part(component="mux",        event="mux_slot",         milliwatts=283.8,    mm2=3.63,  units=MULTIPLIERS,
                  source="TensorDash, MICRO 2020, Table IV: A-side muxes")
STAGING    = Part(component="staging",    event="staging_slot",     milliwatts=1_638.4,  mm2=4.91,  units=STAGED,
                  source="TensorDash, MICRO 2020, Table IV: staging buffers")
MEMORIES_M2          = 3 * 58.6e-6  # Sec. IV-C: AM, BM and CM, 64 banks of 128 KB each
SCRATCHPADS_M2       = 3.95e-6      # Sec. IV-C: all scratchpads of the baseline
SCRATCHPADS_BANKED_M2 = 5.9e-6      # Sec. IV-C: all scratchpads of TensorDash, in as many banks as the buffers are deep
# fmt: on
SCRATCHPADS = "TensorDash, MICRO 2020, Sec. IV-C: scratchpads; assumed: in proportion to their bytes, and to their banks in between"


def transposers(tiles: int) -> int:
    """Transposers for `tiles` tiles: those of the laid-out chip, in proportion.

    >>> transposers(256), transposers(1024), transposers(1)
    (64, 256, 1)
    """
    return -(-tiles * TRANSPOSERS // TILES)


def core_components() -> tuple[Component, ...]:
    """The baseline's parts: energy of one event of each.

    >>> core, transposer = core_components()
    >>> round(core.joules * 1e12, 3), round(core.joules * MULTIPLIERS * CLOCK_HZ, 3)  # picojoules of a slot; watts of the chip
    (2.899, 23.748)
    """
    return _component(CORE, CORE.joules, NUMBER), _component(TRANSPOSER, TRANSPOSER.joules)


def tensordash_components(*, lanes: int, depth: int, rows: int, columns: int, options: int) -> tuple[Component, ...]:
    """Energy of one event of the baseline's parts and the added ones; rows, columns and depth set only the number of events."""
    require_positive("tensordash_components", lanes=lanes, depth=depth, rows=rows, columns=columns, options=options)
    mux = MUX.joules * _inputs(options)
    scheduler = _schedulers(SCHEDULER.joules, MUX.joules, lanes, options) + lanes * mux
    return (
        *core_components(),
        _component(SCHEDULER, scheduler),
        _component(MUX, mux),
        _component(STAGING, STAGING.joules),
    )


def core_areas(*, lanes: int, rows: int, columns: int, tiles: int, scratchpads_bytes: int) -> tuple[ComponentArea, ...]:
    """Areas of the baseline's parts on a chip of that geometry, with its scratchpads, without its shared memories."""
    require_positive("core_areas", lanes=lanes, rows=rows, columns=columns, tiles=tiles, scratchpads_bytes=scratchpads_bytes)
    local = SCRATCHPADS_M2 * scratchpads_bytes / SCRATCHPADS_BYTES
    return (
        _area(CORE, CORE.m2 * tiles * rows * columns * lanes, NUMBER),
        _area(TRANSPOSER, TRANSPOSER.m2 * transposers(tiles)),
        ComponentArea(component="local", m2=local, nm=NM, source=SCRATCHPADS, memory=True),
    )


def tensordash_areas(
    *,
    lanes: int,
    depth: int,
    rows: int,
    columns: int,
    tiles: int,
    options: int,
    scratchpads_bytes: int,
    sides: Literal["one", "two"] = "one",
) -> tuple[ComponentArea, ...]:
    """Areas with TensorDash: also schedulers, muxes, staging buffers, and scratchpads of `depth` banks.

    Two-sided skipping gives each element a scheduler and both staging buffers of its own.
    """
    require_positive("tensordash_areas", depth=depth, options=options)
    core, transposer, local = core_areas(lanes=lanes, rows=rows, columns=columns, tiles=tiles, scratchpads_bytes=scratchpads_bytes)
    elements = tiles * rows * columns
    schedulers = tiles * rows if sides == "one" else elements
    staged = (tiles * (rows + columns) if sides == "one" else 2 * elements) * lanes * depth
    mux = MUX.m2 * _inputs(options)
    scheduler = _schedulers(SCHEDULER.m2, MUX.m2, lanes, options) + lanes * mux
    banked = 1 + (SCRATCHPADS_BANKED_M2 / SCRATCHPADS_M2 - 1) * (depth - 1) / (DEPTH - 1)
    return (
        core,
        transposer,
        _area(SCHEDULER, scheduler * schedulers),
        _area(MUX, mux * elements * lanes),
        _area(STAGING, STAGING.m2 * staged),
        ComponentArea(component="local", m2=local.m2 * banked, nm=NM, source=SCRATCHPADS, memory=True),
    )


def _inputs(options: int) -> float:
    """A mux of n inputs is n - 1 muxes of two."""
    return (options - 1) / (OPTIONS - 1)


def _schedulers(row: float, mux: float, lanes: int, options: int) -> float:
    """A scheduler without its row's muxes: a priority encoder of `options` inputs for each lane."""
    return (row - LANES * mux) * (lanes * options) / (LANES * OPTIONS)


def _component(part: Part, joules: float, number: str | None = None) -> Component:
    return Component(event=part.event, component=part.component, joules=joules, nm=NM, source=part.source, number=number)


def _area(part: Part, m2: float, number: str | None = None) -> ComponentArea:
    return ComponentArea(component=part.component, m2=m2, nm=NM, source=part.source, number=number)
