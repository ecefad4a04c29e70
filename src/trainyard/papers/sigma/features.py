"""Fig. 11: a TPU, and SIGMA's three features added to it one by one, with the metrics of Table II.

    TPU        128x128, systolic
    Fl         the best of 128x128, 256x64, 512x32 and their mirror images, still systolic
    Fl+Sc      any shape; loading and sums over SIGMA's networks; zeros are held like other values
    Fl+Sc+Sp   SIGMA: only non-zeros are held

A systolic fold takes 128 cycles to load, streams S vectors and takes 128 to add (Table II, as in `suite`).
Which operand stays is given with the product, as in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt
from statistics import fmean
from typing import Literal

from trainyard.arrays import Systolic
from trainyard.ir import MatMul
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import ALL_SHAPES, NARROW, NO_ZEROS, PES, SQUARE, Pair, Shapes, stationary_cost

Feature = Literal["TPU", "Fl", "Fl+Sc", "Fl+Sc+Sp"]
FEATURES: tuple[Feature, ...] = ("TPU", "Fl", "Fl+Sc", "Fl+Sc+Sp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A product, its zeros, and which operand stays."""

    op: MatMul
    sparsity: Pair
    stationary: Literal["a", "b"]


# fmt: off
REGULAR = MatMul(2048, 2048, 2048)  # Sec. III-A: the regular GEMM of Fig. 3a; Fig. 11 prints no shape
WORKLOADS: Mapping[str, Workload] = {
    "dense regular":                Workload(op=REGULAR, sparsity=NO_ZEROS,   stationary="b"),
    "dense irregular":              Workload(op=NARROW,  sparsity=NO_ZEROS,   stationary="b"),  # Sec. VI-B: 16 x 500000 stays
    "sparse irregular M-str,N-sta": Workload(op=NARROW,  sparsity=(0.8, 0.3), stationary="b"),  # Sec. VI-B: MK larger, sparser
    "sparse irregular M-sta,N-str": Workload(op=NARROW,  sparsity=(0.8, 0.3), stationary="a"),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Table II."""

    loading: int
    streaming: int
    add: int
    utilisation: float
    useful: int

    @property
    def cycles(self) -> int:
        return self.loading + self.streaming + self.add

    @property
    def compute_efficiency(self) -> float:
        return self.useful / (PES * self.streaming)

    @property
    def overall_efficiency(self) -> float:
        return self.useful / (PES * self.cycles)


@cache
def metrics(workload: str, feature: Feature) -> Metrics:
    case = WORKLOADS[workload]
    cost = stationary_cost(case.op, case.sparsity, case.stationary)
    if feature in ("TPU", "Fl"):
        return _systolic(case, SQUARE if feature == "TPU" else ALL_SHAPES, cost.useful)
    if feature == "Fl+Sc":
        dense = stationary_cost(case.op, NO_ZEROS, case.stationary)
        filled = dense.utilisation * (1 - case.sparsity["ab".index(case.stationary)])
        return Metrics(
            loading=dense.loading, streaming=dense.streaming, add=dense.add, utilisation=filled, useful=cost.useful
        )  # fmt: skip
    return Metrics(
        loading=cost.loading, streaming=cost.streaming, add=cost.add, utilisation=cost.utilisation, useful=cost.useful
    )  # fmt: skip


def _systolic(case: Workload, shapes: Shapes, useful: int) -> Metrics:
    op, flow = case.op, {"a": "is", "b": "ws"}[case.stationary]
    vectors, stationary = (op.N, op.M * op.K) if case.stationary == "a" else (op.M, op.K * op.N)
    by_shape = []
    for rows, columns in shapes:
        array = Systolic(rows=rows, columns=columns, dataflow=flow)  # type: ignore[arg-type]  # one of the two above
        folds = int(array.cost(op).events["array_pass"])
        nonzero = 1 - case.sparsity["ab".index(case.stationary)]
        by_shape.append(
            Metrics(
                loading=folds * isqrt(rows * columns),
                streaming=folds * vectors,
                add=folds * isqrt(rows * columns),
                utilisation=nonzero * stationary / (folds * PES),
                useful=useful,
            )
        )
    return min(by_shape, key=lambda shape: shape.cycles)


def _stationary_utilisation() -> Measured:
    sparse = [name for name in WORKLOADS if name.startswith("sparse")]
    ours, tpu = ({name: 100 * metrics(name, feature).utilisation for name in sparse} for feature in (FEATURES[-1], FEATURES[0]))
    return Measured(
        fmean(ours.values()),
        note="Mean of both sparse bars (1024-16-500000, MK 80 % and KN 30 % sparse); only the last fold is not full.",
        details="; ".join(f"{name[17:]}: {value:.2f} %, TPU {tpu[name]:.1f} %" for name, value in ours.items()) + ".",
    )


EXPERIMENTS: Experiments = {"sigma.sparse.stationary_utilisation": _stationary_utilisation}
