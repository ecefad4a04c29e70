"""Table IV and Sec. IV-C, IV-D: area and power, by arithmetic over the paper's rows (`arrays.tensordash.components`).

Other geometries and formats are predicted: each row is divided by how many of its units the chip has, bfloat16 multipliers are
scaled as our tables scale multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trainyard.arrays import TensorCore, TensorDash
from trainyard.arrays.tensordash.components import MEMORIES_M2, NM
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash.sweeps import PAPER, WIDE

CLOCK_HZ = TENSORDASH.clock_hz
PRINTED_TOTALS_MW = (26_144.0, 23_793.0)  # Table IV
COMPUTE = ("core", "transposer", "scheduler", "mux", "staging")


def areas(array: TensorDash | TensorCore, number: str = "fp16") -> dict[str, float]:
    """Square millimetres by component: compute logic, scratchpads (`local`), and the shared memories (`memories`)."""
    return {**{row.component: row.at(NM, number) * 1e6 for row in array.component_areas}, "memories": MEMORIES_M2 * 1e6}


def powers(array: TensorDash | TensorCore, number: str = "fp16") -> dict[str, float]:
    """Milliwatts by component of compute logic, every unit busy in every cycle."""
    from trainyard.arrays.tensordash.components import TRANSPOSERS

    slots = array.peak_macs_per_cycle
    units = {"core_slot": slots, "transposer_cycle": TRANSPOSERS, "mux_slot": slots}
    if isinstance(array, TensorDash):
        elements = array.tiles * array.rows * array.columns
        one = array.sides == "one"
        units["scheduler_cycle"] = array.tiles * array.rows if one else elements
        units["staging_slot"] = (array.tiles * (array.rows + array.columns) if one else 2 * elements) * array.lanes * array.depth
    return {row.component: row.at(NM, number) * units[row.event] * CLOCK_HZ * 1e3 for row in array.components}


def overhead(array: TensorDash, what: Callable[..., dict[str, float]], number: str = "fp16", *, chip: bool = False) -> float:
    """By which factor the chip, or its compute logic, grows."""
    after, before = (
        sum(value for component, value in what(which, number).items() if chip or component in COMPUTE)
        for which in (array, array.baseline)
    )
    return after / before


def percent(
    array: TensorDash, what: Callable[..., dict[str, float]], note: str, number: str = "fp16", *, chip: bool = False
) -> Measured:
    grown = 100 * (overhead(array, what, number, chip=chip) - 1)
    return Measured(grown, note=note, details=WIDE_DETAILS if array == WIDE else "")


def factor(what: Callable[..., dict[str, float]], note: str) -> Measured:
    return Measured(overhead(PAPER, what, "bf16"), note=note)


def printed_total() -> Measured:
    after, before = (sum(powers(which).values()) for which in (PAPER, PAPER.baseline))
    total, baseline = PRINTED_TOTALS_MW
    return Measured(
        100 * (after / before - 1),
        verdict="contradicted",
        proof=f"The rows of Table IV add up to {after:,.1f} and {before:,.1f} mW, the totals below them are {total:,.0f} and "
        f"{baseline:,.0f}.",
        details="Ours is from the rows; the normalised line has 1.09.",
    )


ROWS_NOTE = "Arithmetic on the rows of Table IV."
SRAM_NOTE = "Arithmetic on the paper's rows, with 3 x 58.6 mm2 of memories and scratchpads of 3.95 and 5.9 mm2."
BFLOAT_NOTE = "Cores scale like bf16 multiply-accumulates to fp16 ones in our tables; added parts stay."
WIDE_NOTE = "Predicted by scaling the rows of Table IV; the paper laid the wide array out and does not print its rows."
WIDE_DETAILS = (
    "64 tiles of 16 lanes have as many eight-input muxes as before and as much of schedulers (one encoder a lane); only the "
    "buffers shrink with the depth."
)

# fmt: off
EXPERIMENTS: Experiments = {
    "tensordash.area_overhead.core":         partial(percent, PAPER, areas, ROWS_NOTE),
    "tensordash.area_overhead.chip":         partial(percent, PAPER, areas, SRAM_NOTE, chip=True),
    "tensordash.area_overhead.chip_below":   partial(percent, PAPER, areas, SRAM_NOTE, chip=True),
    "tensordash.power_overhead.core":        partial(percent, PAPER, powers, ROWS_NOTE),
    "tensordash.power_overhead.core_total":  printed_total,
    "tensordash.wide16.area_overhead.core":  partial(percent, WIDE, areas, WIDE_NOTE),
    "tensordash.wide16.area_overhead.chip":  partial(percent, WIDE, areas, WIDE_NOTE, chip=True),
    "tensordash.bfloat16.area.core":         partial(factor, areas, BFLOAT_NOTE),
    "tensordash.bfloat16.power.core":        partial(factor, powers, BFLOAT_NOTE),
    "tensordash.bfloat16.area_overhead.chip": partial(percent, PAPER, areas, BFLOAT_NOTE, "bf16", chip=True),
}
# fmt: on
