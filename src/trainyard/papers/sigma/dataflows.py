"""Fig. 10: MK stationary, KN stationary, or no local reuse, over the sparse suite: cycles, utilisation, efficiencies (Table II).

Which sparsity the figure has is not printed: everything is over the six pairs of Fig. 12b.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, geometric_mean
from typing import Literal

from trainyard.arrays.sigma.array import SigmaCost
from trainyard.ir import MatMul
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import SPARSE_CASES, SPARSITIES, cost, held_still

Flow = Literal["a", "b", "none"]
FLOWS: Mapping[Flow, str] = {"a": "MK-sta,KN-str", "b": "MK-str,KN-sta", "none": "MK-str,KN-str"}
PARTS: tuple[Literal["loading", "streaming", "add"], ...] = ("loading", "streaming", "add")


def costs(op: MatMul, flow: Flow) -> list[SigmaCost]:
    """With each pair of sparsity."""
    return [held_still(op, pair, flow) for pair in SPARSITIES]


def breakdown(op: MatMul, flow: Flow) -> dict[str, float]:
    """Mean cycles of loading, streaming and add, over those of the better stationary dataflow."""
    best = [cost(op, pair).cycles for pair in SPARSITIES]
    return {part: fmean(getattr(one, part) / least for one, least in zip(costs(op, flow), best, strict=True)) for part in PARTS}


def _no_reuse() -> Measured:
    found = [held_still(op, pair, "none") for op, pair in SPARSE_CASES]
    slower = [one.cycles / cost(op, pair).cycles for one, (op, pair) in zip(found, SPARSE_CASES, strict=True)]
    worse = [
        one.cycles / max(held_still(op, pair, flow).cycles for flow in ("a", "b"))
        for one, (op, pair) in zip(found, SPARSE_CASES, strict=True)
    ]  # fmt: skip
    return Measured(
        100 * fmean(one.utilisation for one in found),
        note="multipliers that get a pair of non-zeros, over all of a wave, mean of the sparse suite; both elements of every pair "
        f"over 128 words per cycle make it slower than the better stationary dataflow {geometric_mean(slower):.1f}x (geometric) / "
        f"{fmean(slower):.1f}x, and than both in {sum(ratio > 1 for ratio in worse)} of {len(worse)} cases. Utilisation of the "
        f"stationary ones: {100 * fmean(cost(op, pair).utilisation for op, pair in SPARSE_CASES):.1f} %",
    )


EXPERIMENTS: Experiments = {"sigma.nlr.compute_utilisation": _no_reuse}
