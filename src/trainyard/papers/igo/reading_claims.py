"""The claims as a reading gives them: those of one core, which a search sees, and those that are held out for its candidates.

A claim counts as reached within 15 % of the printed figure; a lower bound also above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.mapping.demand import Im2col
from trainyard.mapping.gradient_order.partition import KnnSelector, splits
from trainyard.mapping.gradient_order.scratchpad import Integers
from trainyard.papers.igo.baselines import CASES, LARGE, Case, stated
from trainyard.papers.igo.networks import ABBREVIATIONS
from trainyard.papers.igo.readings import DY, READ, TIMINGS, TileWalk, WalkCosts, walk_costs, workload
from trainyard.papers.ledger import NEAR

Real = npt.NDArray[np.float64]
SPEEDS = (1.0, 0.5, 0.25)  # Fig. 15
REPETITIONS, SPLIT = 1000, 0.8  # Sec. 5
FUSED = ("interleaved", "dx_major", "dw_major")

# fmt: off
SEARCHED: tuple[str, ...] = (
    "small.interleaving", "small.rearrangement", "small.rearrangement_ideal", "small.all", "potential.small",
    "large.interleaving", "large.rearrangement", "large.rearrangement_ideal", "large.all", "potential.large",
    "dy_share.all_traffic", "dy_share.reads", "dy_share.reads.dlrm", "bandwidth.half", "bandwidth.quarter",
)
"""Of one core; the search sees these alone."""
HELD_OUT: tuple[str, ...] = (
    "batch.16", "batch.32", "cores.2.partitioning_ideal", "cores.2.partitioning_knn", "cores.4", "cores.8",
    "cores.8.mobilenet", "cores.min_improvement",
)
# fmt: on
FIG_5 = ("dy_share.all_traffic", "dy_share.reads")
LOWER_BOUNDS = ("cores.min_improvement",)
Values = Mapping[str, Real]
"""By claim, a value for each timing."""


def reached(claim: str, value: float) -> bool:
    """Within 15 % of the paper's figure."""
    printed = stated(claim)
    return value >= printed * (1 - NEAR) if claim in LOWER_BOUNDS else abs(value / printed - 1) <= NEAR


def contradicted(writes: bool, im2col: str, values: Mapping[str, float]) -> tuple[str, ...]:
    """What of the paper a reading contradicts; one that contradicts nothing is defensible.

    >>> contradicted(False, "materialised", {"dy_share.all_traffic": 39.0, "dy_share.reads": 51.0})
    ('Sec. 4.3 (its writes take no time)',)
    """
    tests = {
        "Sec. 4.3 (its writes take no time)": writes,
        "Sec. 6.1 (its im2col is not written out)": im2col == "materialised",
        "Fig. 5 (other shares of dY)": all(reached(claim, values[claim]) for claim in FIG_5),
    }
    return tuple(what for what, holds in tests.items() if not holds)


def count(values: Mapping[str, float]) -> int:
    return sum(reached(claim, value) for claim, value in values.items())


def deviation(values: Mapping[str, float]) -> float:
    """Mean distance from the paper's figures as a share of them, at most 1 for each claim."""
    return float(np.mean([min(1.0, abs(value / stated(claim) - 1)) for claim, value in values.items()]))


def _by_network(costs: WalkCosts, rows: Real) -> Real:
    """Cycles of a step [network, timing, bandwidth], with those of the layers' gradients as given [row, timing, bandwidth]."""
    total: Real = np.einsum("np,ptb->ntb", costs.work.single_counts, costs.single_cycles)
    np.add.at(total, costs.work.row_networks, rows)
    return total


def steps(costs: WalkCosts, name: str) -> Real:
    return _by_network(costs, costs.pair_cycles[name][costs.work.row_pairs])


def _reductions(before: Real, after: Real) -> Real:
    """Mean over the networks, per cent [timing, bandwidth]."""
    means: Real = (100 * (1 - after / before)).mean(axis=0)
    return means


def _fastest(costs: WalkCosts, names: tuple[str, ...]) -> Real:
    """Steps with the fastest of several variants for each layer."""
    fastest: Real = np.min([costs.pair_cycles[name] for name in names], axis=0)
    return _by_network(costs, fastest[costs.work.row_pairs])


def _rearranged(costs: WalkCosts) -> Real:
    """Steps with Algorithm 1's order, layers whole."""
    return steps(costs, "none")


class Choices(NamedTuple):
    """The classifier's choices, equal ones once: for a network's layers with a pair, the pairs of the nearest known layers.

    A layer's choices weigh 1 in all.
    """

    network: Integers
    pair: Integers
    nearest: Integers
    weight: Real


@lru_cache(maxsize=32)
def _choices(case: Case, element_bytes: int, sum_bytes: int, im2col: Im2col) -> Choices:
    """Over the random parts of Sec. 5: layers with both gradients, equal ones singly."""
    work = workload(case, element_bytes, sum_bytes, im2col)
    networks = tuple(ABBREVIATIONS[row.network] for row in work.rows)
    parts = splits(tuple(row.op for row in work.rows), networks, KnnSelector(), repetitions=REPETITIONS, split=SPLIT)
    rows, near = np.concatenate([test for test, _ in parts]), np.concatenate([nearest for _, nearest in parts])
    pairs = np.sort(np.where(near >= 0, work.row_pairs[near], -1), axis=1)
    times = np.bincount(rows, minlength=len(work.rows))
    assert times.all()  # every layer is held out at some time
    keys = np.column_stack([work.row_networks[rows], work.row_pairs[rows], pairs])
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    weight: Real = np.bincount(which.ravel(), weights=1 / times[rows]).astype(np.float64)
    return Choices(distinct[:, 0], distinct[:, 1], np.ascontiguousarray(distinct[:, 2:]), weight)


def _chosen_by_neighbours(costs: WalkCosts, tile_walk: TileWalk, case: Case) -> Real:
    """Steps with the partition that the classifier chooses for layers it has not learned from [network, timing, bandwidth]."""
    choices = _choices(case, tile_walk.element_bytes, tile_walk.sum_bytes, tile_walk.im2col)
    cycles = np.stack([costs.pair_cycles[name] for name in _schemes(case)])
    cheapest = cycles.argmin(axis=0)
    neighbours = np.where(choices.nearest[..., None, None] >= 0, cheapest[choices.nearest], -1)
    votes = np.stack([(neighbours == scheme).sum(axis=1) for scheme in range(len(cycles))])
    chosen = np.take_along_axis(cycles[:, choices.pair], votes.argmax(axis=0)[None], axis=0)[0]
    total: Real = np.einsum("np,ptb->ntb", costs.work.single_counts, costs.single_cycles)
    np.add.at(total, choices.network, chosen * choices.weight[:, None, None])
    return total


def _schemes(case: Case) -> tuple[str, ...]:
    return ("m", "n", "k") if case.cores > 1 else ("none", "m", "n", "k")


def _shares(costs: WalkCosts, network: int | None = None) -> tuple[float, float]:
    """Per cent that dY is of all bytes of the gradients and of those read; mean of the networks, or of one."""
    work = costs.work
    moved = np.zeros((len(ABBREVIATIONS), 5, 4))
    np.add.at(moved, work.row_networks, costs.pair_moved["sequential"][work.row_pairs])
    for place, one in enumerate(work.singles):
        if one.dy >= 0:  # dY in the place of another operand
            order = [one.dy, 1 - one.dy, 2, 3, 4]
            moved += work.single_counts[:, place, None, None] * costs.single_moved[place][order]
    every, reads = moved[:, DY].sum(axis=1) / moved.sum(axis=(1, 2)), moved[:, DY, READ] / moved[:, :, READ].sum(axis=1)
    chosen = slice(None) if network is None else network
    return 100 * float(every[chosen].mean()), 100 * float(reads[chosen].mean())


def searched(tile_walk: TileWalk) -> Values:
    """The claims of one core, for every timing."""
    values: dict[str, Real] = {}
    for npu, case in CASES.items():
        costs = walk_costs(tile_walk, case, SPEEDS if npu == "large" else SPEEDS[:1])
        before = steps(costs, "sequential")
        whole = _chosen_by_neighbours(costs, tile_walk, case)
        values[f"{npu}.interleaving"] = _reductions(before, steps(costs, "interleaved"))[:, 0]
        values[f"{npu}.rearrangement"] = _reductions(before, _rearranged(costs))[:, 0]
        values[f"{npu}.rearrangement_ideal"] = _reductions(before, _fastest(costs, FUSED))[:, 0]
        values[f"{npu}.all"], *slower = _reductions(before, whole).T
        values[f"potential.{npu}"] = (before / steps(costs, "no_second_dy")).mean(axis=0)[:, 0]
        if npu == "large":
            values["bandwidth.half"], values["bandwidth.quarter"] = slower
            alike = np.ones(len(TIMINGS))
            all_traffic, reads = _shares(costs)
            values["dy_share.all_traffic"], values["dy_share.reads"] = all_traffic * alike, reads * alike
            values["dy_share.reads.dlrm"] = _shares(costs, ABBREVIATIONS.index("dlrm"))[1] * alike
    return {claim: values[claim] for claim in SEARCHED}


def _all_steps(tile_walk: TileWalk, case: Case) -> tuple[Real, Real, Real]:
    """Steps [network, timing]: sequential, by the classifier, with the cheapest partition of each layer."""
    costs = walk_costs(tile_walk, case)
    chosen = _chosen_by_neighbours(costs, tile_walk, case)
    return steps(costs, "sequential")[..., 0], chosen[..., 0], _fastest(costs, _schemes(case))[..., 0]


def held_out(tile_walk: TileWalk) -> Values:
    """The claims that no search has seen, for every timing."""
    values: dict[str, Real] = {}
    for batch in (16, 32):
        before, chosen, _ = _all_steps(tile_walk, replace(LARGE, batch=batch))
        values[f"batch.{batch}"] = _reductions(before, chosen)
    smallest = []
    for cores in (1, 2, 4, 8):
        before, chosen, ideal = _all_steps(tile_walk, replace(LARGE, cores=cores))
        smallest.append((100 * (1 - chosen / before)).min(axis=0))
        if cores == 2:
            values["cores.2.partitioning_ideal"] = _reductions(before, ideal)
            values["cores.2.partitioning_knn"] = _reductions(before, chosen)
        elif cores > 1:
            values[f"cores.{cores}"] = _reductions(before, chosen)
        if cores == 8:
            mobilenet = ABBREVIATIONS.index("mob")
            values["cores.8.mobilenet"] = 100 * (1 - chosen[mobilenet] / before[mobilenet])
    values["cores.min_improvement"] = np.min(smallest, axis=0)
    return {claim: values[claim] for claim in HELD_OUT}
