"""Secs. III-B, VI-B and VI-C: utilisation and efficiency of the 128x128 systolic array on irregular and on sparse products."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.machines.presets.sigma import TPU_ARRAY
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import (
    ALL_SHAPES,
    DENSE_CASES,
    K_ALONG_COLUMNS,
    K_ALONG_ROWS,
    NARROW,
    SPARSE_CASES,
    SQUARE,
    SUITE,
    Case,
    efficiency,
    stationary_utilisation,
    tpu_efficiencies,
)

IRREGULAR = tuple(op for op in SUITE if min(op.M, op.N, op.K) < min(TPU_ARRAY.rows, TPU_ARRAY.columns))
"""Sec. VI-B: the array is underutilised where a side is shorter than its own."""


def _narrow_utilisation() -> Measured:
    percent = 100 * stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(percent, note=f"1024-16-500000 with KN stationary fills {percent:.2f} % of the 128x128 cells, over all folds.")


def _narrow_drop() -> Measured:
    full = stationary_utilisation(TPU_ARRAY, MatMul(NARROW.M, TPU_ARRAY.columns, NARROW.K))
    narrow = stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(100 * (1 - narrow / full), note="Compared with the same GEMM with N = 128.")


def utilisation(op: MatMul) -> float:
    """Of the 128x128 array with the stationary operand that makes it faster."""
    arrays = [Systolic(rows=TPU_ARRAY.rows, columns=TPU_ARRAY.columns, dataflow=flow) for flow in ("ws", "is")]
    return stationary_utilisation(max(arrays, key=lambda array: array.utilisation(op)), op)


def _irregular() -> Measured:
    """`Common` is taken to be more than half of the irregular products: their median has to lie below."""
    irregular, suite = ([100 * utilisation(op) for op in ops] for ops in (IRREGULAR, SUITE))
    overall = [100 * efficiency(op, SQUARE) for op in SUITE]
    return Measured(
        median(irregular),
        note=f"The median over the {len(IRREGULAR)} GEMMs with a side below 128, by the share of cells that hold an element.",
        details=f"The paper does not say how common low utilisation is. Of the {len(IRREGULAR)} GEMMs "
        f"{sum(value < 50 for value in irregular)} are below 50 %, mean {fmean(irregular):.0f} %. Of all ten "
        f"{sum(value < 50 for value in suite)} are below 50 %, mean {fmean(suite):.0f} %; by overall efficiency "
        f"{sum(value < 50 for value in overall)}, mean {fmean(overall):.0f} %.",
    )


def _readings(cases: Sequence[Case]) -> tuple[float, str]:
    """Mean efficiency in per cent with K along the columns, as in Sec. VI-C, and a sentence on every reading of the shapes."""
    readings = (SQUARE, K_ALONG_COLUMNS, K_ALONG_ROWS, ALL_SHAPES)
    square, columns, rows, both = (100 * fmean(tpu_efficiencies(cases, shapes)) for shapes in readings)
    own, cited = (100 * fmean(tpu_efficiencies(cases, K_ALONG_COLUMNS, one)) for one in ("own rows", "SCALE-Sim 2018"))
    return columns, (
        f"128x128 alone reaches {square:.1f} %; the best of three shapes {columns:.1f} % with K along the columns of 256x64 and "
        f"512x32, {rows:.1f} % with K along their rows; the best of all five {both:.1f} %. If a fold loads and adds along the rows "
        f"of its shape (32 to 128) instead of 128 cycles each, the best of three reaches {own:.1f} %, by SCALE-Sim's form of 2018 "
        f"{cited:.1f} %."
    )


def _dense_efficiency() -> Measured:
    judged, readings = _readings(DENSE_CASES)
    return Measured(
        judged,
        note="Mean over the suite of the best of three TPU shapes, with K along the columns of 256x64 and 512x32 (Sec. VI-C).",
        details=f"{readings} In Sec. VI-C a K of 32 fits the columns of 512x32; 'and vice versa' is said in Fig. 11 of SIGMA_FI, "
        "not of the TPU.",
    )


def _sparse_efficiency() -> Measured:
    judged, readings = _readings(SPARSE_CASES)
    return Measured(
        judged,
        note="Counted on masks with weights 80 % and inputs 10, 30 or 50 % sparse; the TPU skips no zero.",
        details=f"{readings} The second figure is judged.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.tpu.utilisation_16_wide":         _narrow_utilisation,
    "sigma.tpu.utilisation_drop_n16":        _narrow_drop,
    "sigma.tpu.utilisation_irregular_below": _irregular,
    "sigma.dense.efficiency.tpu":            _dense_efficiency,
    "sigma.sparse.efficiency.tpu_below":     _sparse_efficiency,
}
# fmt: on
