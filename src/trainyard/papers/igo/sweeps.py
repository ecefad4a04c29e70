"""Figs. 14 to 16: all three steps on more cores, with less bandwidth, with larger batches; large NPU.

Scratchpad, bandwidth and batch grow with the cores, which share the scratchpad (Sec. 6.3). The baseline of several cores gives
each a part of the batch and computes dX before dW.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trainyard.papers.igo.baselines import LARGE, Case
from trainyard.papers.igo.measuring import Networks, faster, layers, listed, mean, ran, reductions
from trainyard.papers.igo.partitioning import TWO_CORES, by_ideal, by_knn, evaluation, told
from trainyard.papers.igo.performance import JOINT, assumed, said
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
    """Against searched tiles: order and tile together; the partition too on several cores, and on the machine of Table 3."""
    joint = JOINT if case.cores > 1 or case == LARGE else {"order": JOINT["order"]}
    return reductions(case, "searched", **joint)


def beside(case: Case, found: Networks) -> str:
    """What a row's note says: networks, the other selection, the other baseline."""
    other = searched(case)
    return (
        f"fixed tall tile: {listed(found)}; {told(case)}. Tiles searched, with the fastest order"
        f"{' and partition' if case.cores > 1 or case == LARGE else ''}: {mean(other):.1f} % ({listed(other)}), on a baseline "
        f"{mean(faster(case)):.2f} times faster. {assumed(case)}."
    )


def _all(case: Case, more: str = "") -> Measured:
    found = by_knn(case)
    return Measured(mean(found), note=beside(case, found) + more)


def _two_cores(select: Callable[[Case], Networks]) -> Measured:
    found, lost = select(TWO_CORES), evaluation(TWO_CORES).lost_performance
    points = mean(by_ideal(TWO_CORES)) - mean(by_knn(TWO_CORES))
    said_points = said("cores.2.partitioning_ideal") - said("cores.2.partitioning_knn")
    return Measured(
        mean(found),
        note=f"{beside(TWO_CORES, found)} Wrong choices cost {100 * lost:.2f} % of the gradients' time and {points:.2f} points of "
        f"the reduction; paper {said_points:.1f} points",
    )


def _mobilenet() -> Measured:
    case = with_cores(8)
    return Measured(
        by_knn(case)["mob"],
        note=f"fixed tall tile, nearest neighbours; the cheapest partition {by_ideal(case)['mob']:.1f} %, tiles searched "
        f"{searched(case)['mob']:.1f} %. Gradients of depthwise convolutions, many small products that keep only a few of the "
        f"array's cells busy, are {_depthwise(case):.0f} % of the baseline's time, and no order makes them shorter. "
        f"{assumed(case)}",
    )


def _depthwise(case: Case) -> float:
    """Per cent of mobilenet's step that the gradients of its depthwise convolutions take."""
    one = ran(case, "mob")
    many = [layer for layer in layers(case, "mob") if layer.op.count > 1]
    return 100 * sum(layer.repeats * one.layers[layer.path, layer.call].backward for layer in many) / one.cycles


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
        note=f"{which}; fixed tall tile. With the cheapest partition: {best}, {ideal[best]:.1f} %. Tiles searched: {last}, "
        f"{other[last]:.1f} %. {assumed(LARGE)}",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    **{f"igo.cores.{cores}": partial(_all, with_cores(cores)) for cores in CORES},
    **{f"igo.bandwidth.{name}": partial(_all, with_bandwidth(share)) for name, share in BANDWIDTHS.items()},
    **{f"igo.batch.{batch}": partial(_all, with_batch(batch)) for batch in BATCHES},
    "igo.cores.2.partitioning_ideal": partial(_two_cores, by_ideal),
    "igo.cores.2.partitioning_knn":   partial(_two_cores, by_knn),
    "igo.cores.8.mobilenet":     _mobilenet,
    "igo.cores.min_improvement": _smallest,
}
# fmt: on
