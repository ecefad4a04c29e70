"""Sec. 5: each layer's gradients cut along M, N or K, the cheapest by measurement, and as nearest neighbours choose it.

As Sec. 5 has it the classifier learns from the layers of all nine networks on the machine at hand, 80 % of them, and chooses for
the rest, 1000 times. Equal layers of a network are one, as everywhere here. A network's time with the classifier has for each
layer the mean of the choices made while it was held out. What else is not printed (neighbours, distance, scale of the dimensions)
is as scikit-learn has it by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from trainyard.mapping.gradient_order.partition import SCHEMES, Evaluation, KnnSelector, LayerCosts, Scheme, evaluate
from trainyard.papers.igo import measuring
from trainyard.papers.igo.baselines import SMALL, Case
from trainyard.papers.igo.measuring import Networks, Ran, ahead, each, layers, limits, mean, ran, reduction
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, layers_of
from trainyard.papers.ledger import Experiments, Measured

REPETITIONS = 1000  # Sec. 5
SPLIT = 0.8  # Sec. 5
TWO_CORES = Case(cores=2)  # Sec. 5: a dual-core NPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Steps of the nine networks in cycles: the cheapest scheme of each layer, and the classifier's."""

    ideal: Networks
    knn: Networks
    shares: Mapping[Scheme, float]
    """Of layers, each scheme as the cheapest."""


def schemes(case: Case, network: str) -> Mapping[Scheme, Ran]:
    """Algorithm 1 chooses the order of a part."""
    return {scheme: ran(case, network, order="paper", partition=scheme) for scheme in SCHEMES}


def table(case: Case) -> tuple[tuple[Layer, LayerCosts], ...]:
    """Distinct layers with both gradients, and what their gradients cost with each scheme."""
    ahead(case, "tall", {}, *({"order": "paper", "partition": scheme} for scheme in SCHEMES))
    found = []
    for network in ABBREVIATIONS:
        runs = schemes(case, network)
        for layer in layers(case, network):
            if layer.paired:
                cycles = {scheme: float(one.layers[layer.path, layer.call].backward) for scheme, one in runs.items()}
                found.append((layer, LayerCosts(op=layer.op, cycles=cycles, network=network, repeats=layer.repeats)))
    return tuple(found)


@cache
def evaluation(case: Case, selector: KnnSelector | None = None, unit: str = "layers") -> Evaluation:
    rows = [costs for _, costs in table(case)]
    return evaluate(rows, selector, repetitions=REPETITIONS, split=SPLIT, unit=unit)  # type: ignore[arg-type]  # one of two


@cache
def chosen(case: Case) -> Chosen:
    rows = table(case)
    expected = evaluation(case).expected_cycles
    ideal, knn = {}, {}
    for network in ABBREVIATIONS:
        first = schemes(case, network)["m"]
        mine = [(costs, likely) for (layer, costs), likely in zip(rows, expected, strict=True) if layer.network == network]
        rest = first.cycles - sum(costs.repeats * costs.cycles["m"] for costs, _ in mine)
        ideal[network] = rest + sum(costs.repeats * min(costs.cycles.values()) for costs, _ in mine)
        knn[network] = rest + sum(costs.repeats * likely for costs, likely in mine)
    cheapest = [min(SCHEMES, key=costs.cycles.__getitem__) for _, costs in rows]
    return Chosen(
        ideal=ideal,
        knn=knn,
        shares={scheme: cheapest.count(scheme) / len(cheapest) for scheme in SCHEMES},
    )


def reductions(case: Case, which: Callable[[Chosen], Networks]) -> Networks:
    """Held against the sequential order, tiles fixed, several cores each with a part of the batch."""
    found = which(chosen(case))
    return each(lambda network: reduction(ran(case, network).cycles, found[network]))


def by_knn(case: Case) -> Networks:
    return reductions(case, lambda found: found.knn)


def by_ideal(case: Case) -> Networks:
    return reductions(case, lambda found: found.ideal)


def by_cost(case: Case) -> Networks:
    """The fastest order and partition of each layer, either left out where that is best: what any selection can reach."""
    return measuring.reductions(case, order="cost", partition="cost")


def told(case: Case) -> str:
    """Beside the classifier's mean: other selections with the same tile, and what no selection could exceed."""
    found = chosen(case)
    cheapest = ", ".join(f"{scheme} {100 * share:.0f} %" for scheme, share in found.shares.items())
    known = reductions(case, lambda one: {n: SPLIT * one.ideal[n] + (1 - SPLIT) * one.knn[n] for n in one.ideal})
    limit = ""
    if case.cores == 1:
        limit = (
            f". No order of such tiles can bring more than {mean(limits(case)):.1f} %: the array's time, and bytes that must move"
        )
    return (
        f"{mean(known):.1f} % where the 80 % that were learned from keep their cheapest partition; {mean(by_ideal(case)):.1f} % "
        f"with the cheapest of m, n, k for each layer ({cheapest} of the layers); {mean(by_cost(case)):.1f} % with the fastest "
        f"order and partition for each layer{limit}"
    )


def _accuracy() -> Measured:
    """On the two cores of which Sec. 5 gives the loss."""
    found, others = evaluation(TWO_CORES), {}
    for neighbours, scale in ((1, "raw"), (3, "raw"), (9, "raw"), (5, "log")):
        selector = KnnSelector(neighbours=neighbours, scale=scale)  # type: ignore[arg-type]  # one of the two
        others[f"{neighbours} neighbours, {scale} dimensions"] = evaluation(TWO_CORES, selector)
    others["whole networks held out"] = evaluation(TWO_CORES, unit="networks")
    others["on one small core"] = evaluation(SMALL)
    told_others = "; ".join(f"{name}: {100 * one.accuracy:.1f} %" for name, one in others.items())
    every = sum(len(layers_of(network)) for network in ABBREVIATIONS)
    return Measured(
        100 * found.accuracy,
        note=f"{len(found.expected_cycles)} distinct layers of nine networks on two cores of the large NPU (equal layers counted "
        f"singly, there would be {every}, and most of those held out would be known). {found}. Assumed: 5 neighbours, Euclidean, "
        f"raw dimensions; {told_others}",
    )


EXPERIMENTS: Experiments = {
    "igo.knn.accuracy": _accuracy,
}
