"""Beyond the paper: order, tile and partition searched together against a searched baseline, and the distance to the least bytes.

For every layer with both gradients: the bytes of the searched sequential baseline, of the search over everything, and the least
bytes of any order (`mapping.gradient_order.bound`), with the operands that can stay in the scratchpad, on which the gain of fusing
depends. And the links between layers: where dX of one layer can be used by the gradients of the layer below without leaving the
scratchpad (`mapping.gradient_order.links`), and why other layers cannot be joined.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trainyard.mapping.gradient_order.bound import Regime, least_bytes, regime
from trainyard.mapping.gradient_order.chain import chosen_chains
from trainyard.mapping.gradient_order.links import gradient_links
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.papers.figures import chart, series_of, with_mean
from trainyard.papers.igo.baselines import CASES, ELEMENT_BYTES, Case
from trainyard.papers.igo.measuring import by_network, layers, least_cycles, listed, mean, reduction, reductions, step_cost
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, Npu, step
from trainyard.papers.igo.partitioning import by_knn
from trainyard.papers.igo.performance import JOINT
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

CHAINED: Mapping[str, str] = {"order": "cost", "across": "relu"}
"""Chains are of whole layers: the machine has them without a partition."""
BASELINE, FUSED, LEAST = "searched, sequential", "searched together", "least possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Bytes of a layer's gradients (all its repeats): baseline, searched together, and the bound."""

    layer: Layer
    regime: Regime
    baseline: int
    joint: int
    least: int

    @property
    def times(self) -> float:
        """How many times the least bytes are moved."""
        return self.joint / self.least


@cache
def distances(npu: Npu, network: str) -> tuple[Distance, ...]:
    case = CASES[npu]
    capacity = case.machine("searched").scratchpad_bytes / 2
    before, after = step_cost(case, network, "searched"), step_cost(case, network, "searched", **JOINT)
    rows = []
    for layer in layers(case, network):
        if layer.paired:
            pair, key = Pair.dense(layer.op, ELEMENT_BYTES), (layer.path, layer.call)
            rows.append(
                Distance(
                    layer=layer,
                    regime=regime(pair, capacity),
                    baseline=layer.repeats * before.layers[key].backward_bytes,
                    joint=layer.repeats * after.layers[key].backward_bytes,
                    least=layer.repeats * least_bytes(pair, capacity).total,
                )
            )
    return tuple(rows)


def totals(npu: Npu, network: str) -> tuple[int, int, int]:
    """Of a network: bytes of the baseline, searched together, least."""
    rows = distances(npu, network)
    return sum(row.baseline for row in rows), sum(row.joint for row in rows), sum(row.least for row in rows)


def regimes(npu: Npu, network: str) -> Mapping[Regime, int]:
    """Number of layers in each regime, equal ones counted singly."""
    counts: Counter[Regime] = Counter()
    for row in distances(npu, network):
        counts[row.regime] += row.layer.repeats
    return dict(counts.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step of a network against the searched sequential baseline of `milliseconds`, in per cent by which it is shorter.

    `rules` are IGO's own, Algorithm 1 and nearest neighbours, on searched tiles; `joint` the search of order, tile, partition and
    chain; `bound` what no order, tile or partition can pass (`measuring.least_cycles`).
    """

    milliseconds: float
    rules: float
    joint: float
    bound: float


@cache
def outcomes(npu: Npu) -> Mapping[str, Outcome]:
    """By network."""
    case = CASES[npu]
    rules, joint, chained = by_knn(case, "searched"), reductions(case, "searched", **JOINT), reductions(case, "searched", **CHAINED)
    rows = {}
    for network in ABBREVIATIONS:
        baseline = step_cost(case, network, "searched")
        rows[network] = Outcome(
            milliseconds=1e3 * baseline.seconds,
            rules=rules[network],
            joint=max(joint[network], chained[network]),
            bound=reduction(baseline.cycles, least_cycles(case, network)),
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a network: how many can fuse, how many of these are chosen, the bytes they save; why others cannot fuse."""

    every: int
    fusing: int
    chosen: int
    saved_bytes: int
    reasons: Mapping[str, int]


@cache
def links(npu: Npu, network: str) -> Links:
    case = CASES[npu]
    training_step = step(network, npu)
    every = gradient_links(training_step)
    taken = chosen_chains(
        training_step,
        capacity_bytes=case.machine("searched").scratchpad_bytes / 2,
        element_bytes=ELEMENT_BYTES,
        granule=max(case.machine("searched").array.granule()),
    )
    return Links(
        every=len(every),
        fusing=sum(link.fuses for link in every),
        chosen=len(taken),
        saved_bytes=sum(chained.saved_bytes for _, chained in taken),
        reasons=dict(Counter(kind for link in every if not link.fuses for kind in kinds(link.why)).most_common()),
    )


def kinds(why: str) -> frozenset[str]:
    """The reasons of a link without names and sizes.

    >>> sorted(kinds("a 3x3 convolution in 64 groups is many small products; add waits for the gradient of another reader (q)"))
    ['a convolution in groups is many small products', 'add waits for the gradient of another reader']
    """
    plain = re.sub(r" \([^)]*\)|\d+x\d+ |(?<=in )\d+ |(?<=over )\d+ times as many ", "", why)
    return frozenset(plain.split("; "))


def speedups(case: Case) -> Mapping[str, float]:
    """Of the step, over the searched sequential baseline."""
    return by_network(
        lambda network: step_cost(case, network, "searched").cycles / step_cost(case, network, "searched", **JOINT).cycles
    )


def figure_time() -> go.Figure:
    bars = {f"{npu} NPU": with_mean(reductions(case, "searched", **JOINT)) for npu, case in CASES.items()}
    means = {npu: mean(reductions(case, "searched", **JOINT)) for npu, case in CASES.items()}
    return chart(
        series_of(bars),
        "Beyond: order, tile, partition together",
        "Reduction of the step's time by the gradients' order, tile and partition searched together, against a sequential "
        "baseline whose tiles are searched as well. "
        f"Mean {means['small']:.1f} % (small NPU), {means['large']:.1f} % (large NPU).",
        y="% shorter", digits=1,
    )  # fmt: skip


def figure_distance() -> go.Figure:
    """Traffic of all gradients over the least possible."""
    bars: dict[str, dict[tuple[str, str], float]] = {BASELINE: {}, FUSED: {}}
    for npu in CASES:
        for network in ABBREVIATIONS:
            before, after, least = totals(npu, network)
            bars[BASELINE][f"{npu} NPU", network] = before / least
            bars[FUSED][f"{npu} NPU", network] = after / least
    colours = (SPARE[-1], PHASES["forward"])
    means = "; ".join(
        f"{npu}: {listed({network: bars[FUSED][f'{npu} NPU', network] for network in ABBREVIATIONS}, 2)}" for npu in CASES
    )
    return chart(
        series_of(bars, colours),
        "Beyond: bytes over the least possible",
        f"Bytes over a bound that no order, tile or partition gets below. Searched together, {means}.",
        y="times the least bytes", unity=True, height=430,
    )  # fmt: skip


def figure_links() -> go.Figure:
    """Links between layers by whether they fuse."""
    by_network = {network: links("large", network) for network in ABBREVIATIONS}
    kinds = {
        "joined, saves bytes": {network: one.chosen for network, one in by_network.items()},
        "can be joined, does not pay (or its neighbour is)": {n: one.fusing - one.chosen for n, one in by_network.items()},
        "kept apart": {network: one.every - one.fusing for network, one in by_network.items()},
    }
    colours = (PHASES["grad_weight"], PHASES["grad_input"], SPARE[-1])
    reasons: Counter[str] = Counter()
    for one in by_network.values():
        reasons.update(one.reasons)
    common = "; ".join(f"{why} ({count})" for why, count in reasons.most_common(4))
    figure = chart(
        series_of({name: {n: float(v) for n, v in values.items()} for name, values in kinds.items()}, colours),
        "Beyond: joined across layers",
        f"Large NPU: links from a layer's dX to the layer below. What keeps them apart most often: {common}.",
        y="links (log)", digits=0, stacked=False,
    )  # fmt: skip
    figure.update_yaxes(type="log", rangemode="normal")
    return figure
