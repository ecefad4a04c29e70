"""Sec. III-B, VI-B and VI-C: what the 128x128 systolic array makes of irregular products, and what zeros cost it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, median

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.papers.ledger import Measured
from trainyard.papers.sigma import MIRRORED, NARROW, RECTANGLES, SQUARE, SUITE, TPU_ARRAY, efficiency, stationary_utilisation
from trainyard.papers.sigma.suite import DENSE_CASES, SPARSE_CASES, tpu_efficiencies

IRREGULAR = tuple(op for op in SUITE if min(op.M, op.N, op.K) < min(TPU_ARRAY.rows, TPU_ARRAY.columns))
"""Sec. VI-B: the array is underutilised where a side is shorter than its own."""


def _narrow_utilisation() -> Measured:
    percent = 100 * stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(percent, note=f"1024-16-500000 with KN stationary fills {percent:.2f} % of 128x128 over all folds")


def _narrow_drop() -> Measured:
    full = stationary_utilisation(TPU_ARRAY, MatMul(NARROW.M, TPU_ARRAY.columns, NARROW.K))
    narrow = stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(100 * (1 - narrow / full), note="against the same GEMM with N = 128")


def utilisation(op: MatMul) -> float:
    """Of the 128x128 array with the stationary operand that makes it faster."""
    arrays = [Systolic(rows=TPU_ARRAY.rows, columns=TPU_ARRAY.columns, dataflow=flow) for flow in ("ws", "is")]
    return stationary_utilisation(max(arrays, key=lambda array: array.utilisation(op)), op)


def _irregular() -> Measured:
    """`Common` is taken to be more than half of the irregular products: their median has to lie below."""
    found, every = ([100 * utilisation(op) for op in ops] for ops in (IRREGULAR, SUITE))
    overall = [100 * efficiency(op, SQUARE) for op in SUITE]
    return Measured(
        median(found),
        note=f"how common is not printed: the median over the {len(IRREGULAR)} GEMMs with a side below 128 (mean "
        f"{fmean(found):.0f} %, {sum(value < 50 for value in found)} of them below 50 %), share of cells that hold an element. Of "
        f"all ten GEMMs {sum(value < 50 for value in every)} are below 50 %, mean {fmean(every):.0f} %; by overall efficiency "
        f"{sum(value < 50 for value in overall)}, mean {fmean(overall):.0f} %",
    )


def _dense_efficiency() -> Measured:
    square, printed, mirrored = (100 * fmean(tpu_efficiencies(DENSE_CASES, s)) for s in (SQUARE, RECTANGLES, MIRRORED))
    return Measured(
        printed,
        note=f"mean over the suite, best of the three shapes that Sec. VI-C names; 128x128 alone gives {square:.1f} %; mirrored "
        f"shapes too would give {mirrored:.1f} %, but 'and vice versa' is said in Fig. 11, of SIGMA_FI, not of the TPU",
    )


def _sparse_efficiency() -> Measured:
    square, printed, mirrored = (100 * fmean(tpu_efficiencies(SPARSE_CASES, s)) for s in (SQUARE, RECTANGLES, MIRRORED))
    return Measured(
        printed,
        note="counted on masks, weights 80 % and inputs 10, 30, 50 % sparse, none of the zeros skipped; best of three shapes "
        f"(128x128 alone {square:.1f} %, with mirrored shapes {mirrored:.1f} %)",
    )


# fmt: off
EXPERIMENTS: Mapping[str, Callable[[], Measured]] = {
    "sigma.tpu.utilisation_16_wide":         _narrow_utilisation,
    "sigma.tpu.utilisation_drop_n16":        _narrow_drop,
    "sigma.tpu.utilisation_irregular_below": _irregular,
    "sigma.dense.efficiency.tpu":            _dense_efficiency,
    "sigma.sparse.efficiency.tpu_below":     _sparse_efficiency,
}
# fmt: on
