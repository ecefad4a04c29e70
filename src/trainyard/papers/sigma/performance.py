"""Fig. 12: speedup over the TPU and efficiency, dense and sparse.

The baseline is TPU_128x128, as the caption says, with either operand stationary (Sec. VI-C), whichever is faster; so is SIGMA's.
The paper names no mean: the geometric one of all cases is judged, both are said.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, geometric_mean

from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import (
    DENSE_CASES,
    MIRRORED,
    PES,
    RECTANGLES,
    SMALL,
    SPARSE_CASES,
    TURNED,
    Case,
    both,
    cost,
    efficiencies,
    label,
    means,
    speedups,
    tpu_cycles,
    tpu_efficiencies,
    unpruned_cycles,
)


def _other_baselines(cases: Sequence[Case]) -> str:
    return (
        f"over the best of three shapes, K along the columns of 256x64 and 512x32 {both(speedups(cases, shapes=RECTANGLES))}, "
        f"along their rows {both(speedups(cases, shapes=TURNED))}, over the best of all five "
        f"{both(speedups(cases, shapes=MIRRORED))}; with `limited` streaming, 128 words per cycle, "
        f"{both(speedups(cases, streaming='limited'))}"
    )


def _dense_speedup() -> Measured:
    found = speedups(DENSE_CASES)
    weights = [tpu_cycles(op, flows=("ws",)) / cost(op).cycles for op, _ in DENSE_CASES]
    idle = [tpu_cycles(op, load=False) / cost(op).cycles for op, _ in DENSE_CASES]
    return Measured(
        geometric_mean(found),
        note=f"over TPU_128x128 with the better stationary operand: {means(found)}; geometric / arithmetic otherwise: "
        f"{_other_baselines(DENSE_CASES)}; a TPU that keeps KN only {both(weights)}, one whose folds load for nothing {both(idle)}"
        ". 82 % over 59 % would be 1.39x",
    )


def sparse_speedup() -> Measured:
    found = speedups(SPARSE_CASES)
    held = [tpu_cycles(op) / unpruned_cycles(op, pair) for op, pair in SPARSE_CASES]
    idle = [tpu_cycles(op, load=False) / unpruned_cycles(op, pair) for op, pair in SPARSE_CASES]
    shares = fmean(efficiencies(SPARSE_CASES)) / fmean(tpu_efficiencies(SPARSE_CASES))
    whole = sum(tpu_cycles(op) for op, _ in SPARSE_CASES) / sum(cost(op, pair).cycles for op, pair in SPARSE_CASES)
    return Measured(
        geometric_mean(found),
        note=f"over TPU_128x128, MK and KN 80 % sparse with 10, 30 or 50 % in the other, a choice of ours: {means(found)}; mean "
        f"efficiency over mean efficiency {shares:.2f}, all cycles over all cycles {whole:.2f}; geometric / arithmetic otherwise: "
        f"{_other_baselines(SPARSE_CASES)}; without step ii (stationary' pruning) {both(held)}, and with a TPU whose folds load "
        f"for nothing as well {both(idle)}",
    )


def _dense_efficiency() -> Measured:
    wide, limited = (100 * fmean(efficiencies(DENSE_CASES, streaming)) for streaming in ("wide", "limited"))
    return Measured(wide, note=f"mean over the suite; with `limited` streaming {limited:.1f} %")


def _near_full() -> Measured:
    """Of all but the one GEMM that the text names."""
    found = {op: 100 * cost(op).overall_efficiency for op, _ in DENSE_CASES}
    rest = {op: value for op, value in found.items() if op != SMALL}
    large = [value for op, value in rest.items() if op.macs >= PES**2]
    lowest = min(rest, key=rest.__getitem__)
    return Measured(
        fmean(rest.values()),
        note=f"mean of all but {label(SMALL)} ({found[SMALL]:.1f} %); lowest {label(lowest)} with {rest[lowest]:.0f} %, highest "
        f"{max(rest.values()):.1f} %; of the {len(large)} that keep all multipliers busy for {PES} cycles or more "
        f"{fmean(large):.1f} %. Loading over 128 words per cycle is what is lost",
    )


def _sparse_efficiency() -> Measured:
    wide, limited = (100 * fmean(efficiencies(SPARSE_CASES, streaming)) for streaming in ("wide", "limited"))
    sparser = [100 * cost(op, pair).overall_efficiency for op, pair in SPARSE_CASES if op != SMALL]
    return Measured(
        wide,
        note=f"mean of ten GEMMs by six pairs of sparsity; without {label(SMALL)} {fmean(sparser):.1f} %; with `limited` streaming "
        f"{limited:.1f} %",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.dense.speedup_over_tpu":         _dense_speedup,
    "sigma.dense.efficiency.sigma":         _dense_efficiency,
    "sigma.dense.efficiency.near_full":     _near_full,
    "sigma.sparse.speedup_over_tpu":        sparse_speedup,
    "sigma.sparse.speedup_over_tpu.fig12b": sparse_speedup,
    "sigma.sparse.efficiency.sigma":        _sparse_efficiency,
}
# fmt: on
