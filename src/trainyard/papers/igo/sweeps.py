"""Figs. 14 to 16: all three steps on more cores, with less bandwidth, with larger batches; large NPU.

Scratchpad, bandwidth and batch grow with the cores, which share the scratchpad (Sec. 6.3). The baseline of several cores gives
each a part of the batch and computes dX before dW.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trainyard.papers.igo.baselines import LARGE, Case, stated
from trainyard.papers.igo.judging import judged
from trainyard.papers.igo.measuring import Networks, faster, layers, listed, mean, reductions, step_cost
from trainyard.papers.igo.partitioning import TWO_CORES, by_ideal, by_knn, evaluation, other_selections
from trainyard.papers.igo.performance import JOINT, assumed
from trainyard.papers.ledger import Experiments, Measured

CORES = (1, 2, 4, 8)  # Fig. 14
BANDWIDTHS = {"full": 1.0, "half": 0.5, "quarter": 0.25}  # Fig. 15: 150, 75 and 37.5 GB/s
BATCHES = (8, 16, 32)  # Fig. 16


def with_cores(cores: int) -> Case:
    return Case(cores=cores)


def with_bandwidth(share: float) -> Case:
    return Case(bandwidth=share)


def with_batch(batch: int) -> Case:
    return LARGE if batch == BATCHES[0] else Case(batch=batch)


def searched(case: Case) -> Networks:
    """Reductions against searched tiles; the partition is searched too on several cores and on the machine of Table 3."""
    joint = JOINT if case.cores > 1 or case == LARGE else {"order": JOINT["order"]}
    return reductions(case, "searched", **joint)


def _all(case: Case, select: Callable[[Case], Networks] = by_knn, more: str = "") -> Measured:
    """All three steps; both baselines are in the note."""
    tall, other = select(case), searched(case)
    searched_for = "order and partition" if case.cores > 1 or case == LARGE else "order"
    return Measured(
        mean(tall),
        note=f"Mean with the fixed tall tile; against a baseline with searched tiles it is {mean(other):.1f} %.",
        details=f"Tall tile: {listed(tall)}. {other_selections(case)} Tiles searched, with the fastest {searched_for}: "
        f"{listed(other)}, on a baseline {mean(faster(case)):.2f} times faster.{more} {assumed(case)}",
    )


def _two_cores(select: Callable[[Case], Networks]) -> Measured:
    lost = 100 * evaluation(TWO_CORES).lost_performance
    points = mean(by_ideal(TWO_CORES)) - mean(by_knn(TWO_CORES))
    printed = stated("cores.2.partitioning_ideal") - stated("cores.2.partitioning_knn")
    more = (
        f" Wrong choices cost {lost:.2f} % of the gradients' time and {points:.2f} points of the reduction (paper {printed:.1f})."
    )
    return _all(TWO_CORES, select, more)


def _mobilenet() -> Measured:
    case = with_cores(8)
    return Measured(
        by_knn(case)["mob"],
        note=f"With the fixed tall tile; gradients of depthwise convolutions, which no order shortens, are {_depthwise(case):.0f} "
        "% of the baseline's time.",
        details="Depthwise convolutions are many small products that keep few of the array's cells busy. The cheapest partition "
        f"gives {by_ideal(case)['mob']:.1f} %, searched tiles {searched(case)['mob']:.1f} %. {assumed(case)}",
    )


def _depthwise(case: Case) -> float:
    """Per cent of mobilenet's step that the gradients of its depthwise convolutions take."""
    mobilenet = step_cost(case, "mob")
    depthwise = [layer for layer in layers(case, "mob") if layer.op.count > 1]
    return 100 * sum(layer.repeats * mobilenet.layers[layer.path, layer.call].backward for layer in depthwise) / mobilenet.cycles


def counted(cores: int) -> str:
    """
    >>> counted(1), counted(8)
    ('1 core', '8 cores')
    """
    return f"{cores} core{'s' if cores > 1 else ''}"


def smallest() -> tuple[float, str]:
    """The smallest bar of Fig. 14, and which it is."""
    bars = {f"{network}, {counted(cores)}": value for cores in CORES for network, value in by_knn(with_cores(cores)).items()}
    which = min(bars, key=bars.__getitem__)
    return bars[which], which


def _smallest() -> Measured:
    value, which = smallest()
    ideal = {f"{network}, {counted(cores)}": v for cores in CORES for network, v in by_ideal(with_cores(cores)).items()}
    best = min(ideal, key=ideal.__getitem__)
    other = {f"{network}, {counted(cores)}": v for cores in CORES for network, v in searched(with_cores(cores)).items()}
    last = min(other, key=other.__getitem__)
    return Measured(
        value,
        note=f"The smallest bar with the fixed tall tile is {which}.",
        details=f"With the cheapest partition it is {best}, {ideal[best]:.1f} %; with searched tiles {last}, {other[last]:.1f} %. "
        f"{assumed(LARGE)}",
    )


# fmt: off
EXPERIMENTS: Experiments = judged({
    **{f"igo.cores.{cores}": partial(_all, with_cores(cores)) for cores in CORES},
    **{f"igo.bandwidth.{name}": partial(_all, with_bandwidth(share)) for name, share in BANDWIDTHS.items()},
    **{f"igo.batch.{batch}": partial(_all, with_batch(batch)) for batch in BATCHES},
    "igo.cores.2.partitioning_ideal": partial(_two_cores, by_ideal),
    "igo.cores.2.partitioning_knn":   partial(_two_cores, by_knn),
    "igo.cores.8.mobilenet":     _mobilenet,
    "igo.cores.min_improvement": _smallest,
})
# fmt: on
