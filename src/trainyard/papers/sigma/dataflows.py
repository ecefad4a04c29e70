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
from trainyard.papers.sigma.suite import SPARSE_CASES, SPARSITIES, cost, stationary_cost

Flow = Literal["a", "b", "none"]
FLOWS: Mapping[Flow, str] = {"a": "MK-sta,KN-str", "b": "MK-str,KN-sta", "none": "MK-str,KN-str"}
PARTS: tuple[Literal["loading", "streaming", "add"], ...] = ("loading", "streaming", "add")


def costs(op: MatMul, flow: Flow) -> list[SigmaCost]:
    return [stationary_cost(op, pair, flow) for pair in SPARSITIES]


def breakdown(op: MatMul, flow: Flow) -> dict[str, float]:
    """Mean cycles of loading, streaming and add, over those of the better stationary dataflow."""
    best = [cost(op, pair).cycles for pair in SPARSITIES]
    return {part: fmean(getattr(one, part) / least for one, least in zip(costs(op, flow), best, strict=True)) for part in PARTS}


def _no_reuse() -> Measured:
    no_reuse = [stationary_cost(op, pair, "none") for op, pair in SPARSE_CASES]
    slower, slower_than_both = [], 0
    for one, (op, pair) in zip(no_reuse, SPARSE_CASES, strict=True):
        slower.append(one.cycles / cost(op, pair).cycles)
        slower_than_both += one.cycles > max(stationary_cost(op, pair, flow).cycles for flow in ("a", "b"))
    return Measured(
        100 * fmean(one.utilisation for one in no_reuse),
        note="Share of the multipliers of a wave that get a pair of non-zeros, mean of the sparse suite.",
        details="Both elements of every pair come over 128 words per cycle, which makes it slower than the better stationary "
        f"dataflow, {geometric_mean(slower):.1f}x (geometric mean) or {fmean(slower):.1f}x (arithmetic), and slower than both in "
        f"{slower_than_both} of {len(slower)} cases. The stationary dataflows use "
        f"{100 * fmean(cost(op, pair).utilisation for op, pair in SPARSE_CASES):.1f} % of the multipliers.",
    )


EXPERIMENTS: Experiments = {"sigma.nlr.compute_utilisation": _no_reuse}
