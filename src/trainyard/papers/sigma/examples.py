"""Fig. 4: three small GEMMs on a systolic array of 4x4 cells and on a Flex-DPE of 16 multipliers.

Sizes are what Sec. III-C says of them: 16 elements of KN fill a regular 4x4; 16 of two rows and eight columns do not; and of a
sparse KN 16 are not zero. How many rows MK has and where the zeros lie is in the picture alone: ours are assumed. KN stays in both;
the Flex-DPE gets as many words per cycle as the systolic array has columns, so that both load alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trainyard.arrays import Sigma, Systolic
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import MatMul
from trainyard.papers.figures import Series, chart, panels
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

SYSTOLIC = Systolic(rows=4, columns=4, dataflow="ws")  # Fig. 4; Sec. III-C: KN stationary
FLEX_DPE = Sigma(dpes=1, multipliers=16, bandwidth=4)  # Fig. 4; assumed: 4 words per cycle, as the 4 columns of the array
RIGID, FLEXIBLE, PAIRED = "systolic, 4x4", "Flex-DPE of 16", "Flex-DPE, no local reuse"
COLOURS = {RIGID: SPARE[-1], FLEXIBLE: PHASES["forward"], PAIRED: PHASES["grad_input"]}


def bits(*rows: str) -> Bitmap:
    return Bitmap.of([[sign == "1" for sign in row] for row in rows])


def full(rows: int, columns: int) -> Bitmap:
    return bits(*["1" * columns] * rows)


# fmt: off
GEMMS: Mapping[str, tuple[Bitmap, Bitmap]] = {
    "dense regular":    (full(4, 4), full(4, 4)),  # Sec. III-C: all of KN lies in the array
    "dense irregular":  (full(4, 2), full(2, 8)),  # Sec. III-C: a.A + b.I beside a.E + b.M: two k's, eight columns
    "sparse irregular": (bits("1010", "0110", "1100", "0011"),  # assumed: half of each
                         bits("10110010", "01011001", "11000110", "00101101")),
}
# fmt: on
SHORT = dict(zip(GEMMS, ("reg.", "irreg.", "sparse"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One array on one GEMM; `utilisation` is the share of cells that hold a non-zero, over all folds (Table II)."""

    cycles: int
    folds: int
    utilisation: float


@cache
def results(gemm: str) -> Mapping[str, Bar]:
    """By array."""
    a, b = GEMMS[gemm]
    op = MatMul(a.rows, b.columns, a.columns)
    rigid = SYSTOLIC.cost(op)
    folds = int(rigid.events["array_pass"])
    shares = b.nonzeros / (folds * SYSTOLIC.peak_macs_per_cycle)
    bars = {RIGID: Bar(cycles=rigid.cycles, folds=folds, utilisation=shares)}
    for name, stays in ((FLEXIBLE, "b"), (PAIRED, "none")):
        cost = FLEX_DPE.cost(op, a=a, b=b, stationary=stays)  # type: ignore[arg-type]  # one of the two above
        bars[name] = Bar(cycles=cost.cycles, folds=cost.folds, utilisation=cost.utilisation)
    return bars


def _panel(names: Sequence[str], quantity: Callable[[Bar], float], digits: int = 0) -> go.Figure:
    bars = [
        Series(name=name, colour=COLOURS[name], values={SHORT[gemm]: quantity(results(gemm)[name]) for gemm in GEMMS})
        for name in names
    ]  # fmt: skip
    return chart(bars, digits=digits)


def figure_4() -> go.Figure:
    cycles = {gemm: " / ".join(str(results(gemm)[name].cycles) for name in COLOURS) for gemm in GEMMS}
    folds = _panel([RIGID, FLEXIBLE], lambda bar: bar.folds)
    folds.update_yaxes(dtick=1)
    return panels(
        {
            "cycles": _panel([*COLOURS], lambda bar: bar.cycles),
            "folds": folds,
            "utilisation [%]": _panel([*COLOURS], lambda bar: 100 * bar.utilisation, 1),
        },
        "Fig. 4: three GEMMs on both arrays",
        "KN stays; both get 4 words per cycle. Without local reuse nothing is held and every pair brings two words. Cycles of the "
        f"three: {'; '.join(f'{gemm} {by_array}' for gemm, by_array in cycles.items())}. Where the zeros lie is assumed.",
        columns=3,
        height=380,
    )


FIGURES: Figures = {"Fig. 4": figure_4}
