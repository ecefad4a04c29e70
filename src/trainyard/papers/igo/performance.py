"""Figs. 5, 6 and 12: the share of dY in the traffic, the gain of not reading it twice, and the gain of the paper's three steps.

A step's time is that of the forward and backward pass, products only. Every note has both baselines (`baselines`): the result with
the fixed tall tile is judged, since the paper does not print its tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from trainyard.papers.igo.baselines import CASES, LARGE, MACHINES, SMALL, TILES, Case, Tile, height, stated, tall_tile, text
from trainyard.papers.igo.judging import judged
from trainyard.papers.igo.measuring import (
    FUSED,
    Networks,
    by_network,
    faster,
    ideal_cycles,
    listed,
    mean,
    prefetch,
    reduction,
    reductions,
    step_cost,
)
from trainyard.papers.igo.networks import ABBREVIATIONS, Npu
from trainyard.papers.igo.partitioning import by_knn, other_selections
from trainyard.papers.ledger import Experiments, Measured

# fmt: off
STEPS: Mapping[str, Mapping[str, Any]] = {  # Sec. 6.2, each on top of the one before
    "interleaving":  {"order": "interleaved"},
    "rearrangement": {"order": "paper"},
}
# fmt: on
JOINT: Mapping[str, Any] = {"order": "cost", "partition": "cost"}


def assumed(case: Case) -> str:
    npu = MACHINES[case.npu]
    high = case.high or height(npu)
    tile = " x ".join(map(str, tall_tile(npu, high)))
    return f"Assumed: tile {tile} (m, n, k; {high} arrays high), fp32, im2col written out, products only."


def _shortened(case: Case, tall: Networks, searched: Networks, more: str) -> Measured:
    """A mean reduction over the nine networks, with both baselines in its note."""
    return Measured(
        mean(tall),
        note=f"Arithmetic mean with the fixed tall tile; against a baseline with searched tiles it is {mean(searched):.1f} %.",
        details=f"Tall tile: {listed(tall)}. Tiles searched for each order and layer: {listed(searched)}, on a sequential baseline "
        f"that is {mean(faster(case)):.2f} times faster than the tall one. {more} {assumed(case)}",
    )


def _step(npu: Npu, name: str) -> Measured:
    case, order = CASES[npu], STEPS[name]
    worse = [network for network, value in reductions(case, **order).items() if value < 0]
    more = f"The step is longer than the baseline's in {', '.join(worse)}. " if worse else ""
    more += f"dXmajor in every layer gives {mean(reductions(case, order='dx_major')):.1f} %. "
    more += f"`trainyard run MODEL --on '{text(case.machine(**order))}'`."
    return _shortened(case, reductions(case, **order), reductions(case, "searched", **order), more)


def ideal(case: Case) -> Networks:
    prefetch(case, "tall", {}, *({"order": order} for order in FUSED))
    return by_network(lambda network: reduction(step_cost(case, network).cycles, ideal_cycles(case, network)))


def _ideal(npu: Npu) -> Measured:
    case = CASES[npu]
    lost = mean(ideal(case)) - mean(reductions(case, order="paper"))
    printed = stated(f"{npu}.rearrangement_ideal") - stated(f"{npu}.rearrangement")
    return _shortened(
        case, ideal(case), reductions(case, "searched", order="cost"),
        f"Algorithm 1 is {lost:.1f} points below it (paper {printed:.1f}): its test knows neither tiles nor scratchpad. With "
        "searched tiles a layer may also stay sequential.",
    )  # fmt: skip


def _all(npu: Npu) -> Measured:
    case = CASES[npu]
    return _shortened(
        case, by_knn(case), reductions(case, "searched", **JOINT),
        f"The partition is chosen by nearest neighbours that have not seen the layer. {other_selections(case)} {case.parts} parts "
        "are assumed. With searched tiles, order, tile and partition are searched together, and a layer may stay sequential.",
    )  # fmt: skip


def dy_share(case: Case, network: str, tile: Tile = "tall", reads: bool = False) -> float:
    """Per cent that dY is of the bytes of all gradients of layers with weights, or of those read (spills not among them)."""
    moved = step_cost(case, network, tile).moved
    counted = {key: size for key, size in moved.items() if not reads or key[1] == "read"}
    return 100 * sum(size for (tensor, _), size in counted.items() if tensor == "dY") / sum(counted.values())


def shares(case: Case, tile: Tile = "tall", reads: bool = False) -> Networks:
    return by_network(lambda network: dy_share(case, network, tile, reads))


def _share(reads: bool) -> Measured:
    tall, searched = shares(LARGE, reads=reads), shares(LARGE, "searched", reads)
    return Measured(
        mean(tall),
        note=f"Sequential gradients on the large NPU with the fixed tall tile; with searched tiles it is {mean(searched):.1f} %.",
        details=f"Layers with weights. Tall tile: {listed(tall)}. Searched tiles: {listed(searched)}. dX reads dY once for each "
        "column of tiles of W, dW once for each row of tiles of X: with tiles one array wide dY is read more often than anything "
        f"else. {assumed(LARGE)}",
    )


def _share_dlrm() -> Measured:
    tall, searched = (dy_share(LARGE, "dlrm", tile, reads=True) for tile in TILES)
    eight = dy_share(Case(recommender_batch=1), "dlrm", reads=True)
    return Measured(
        tall,
        note=f"With the fixed tall tile and an assumed 2048 samples for a batch of 8; with searched tiles it is {searched:.1f} %.",
        details=f"With 8 samples it is {eight:.1f} %. {assumed(LARGE)}",
    )


def potential(case: Case, network: str, tile: Tile = "tall") -> float:
    """Speedup of a step whose dW reads dY at no cost."""
    return step_cost(case, network, tile).cycles / step_cost(case, network, tile, order="no_second_dy").cycles


def second_reading(case: Case, network: str, tile: Tile = "tall") -> float:
    """The bytes of dY that dW reads, as a share of the gradients' bytes."""
    before, after = step_cost(case, network, tile).moved, step_cost(case, network, tile, order="no_second_dy").moved
    return (sum(before.values()) - sum(after.values())) / sum(before.values())


def bound(case: Case, network: str, tile: Tile = "tall") -> float:
    """No step can get faster than this by not moving some bytes of its gradients.

    Bytes that do not move save their transfer at most, and the gradients take no less time than all their bytes: a share s of
    these saves a share s of the backward pass b, and the step is 1 / (1 - b s) times faster at most.
    """
    return 1 / (1 - step_cost(case, network, tile).backward_share * second_reading(case, network, tile))


def most_at(read_share: float, backward: float, half: bool = False) -> float:
    """The largest mean speedup of nine networks whose mean share of dY is `read_share`, however it is distributed.

    1 / (1 - b s) is convex in s: its mean is largest with as many networks as can at the largest share (that of dlrm's reads, which
    the text singles out; of all traffic it is less), one with the rest, the others with none. `half`: both readings of dY are
    equal, one of them goes.
    """
    most, total = stated("dy_share.reads.dlrm") / 100, len(ABBREVIATIONS) * read_share
    full = int(total // most)
    spread = [most] * full + [total - full * most] + [0.0] * (len(ABBREVIATIONS) - full - 1)
    return sum(1 / (1 - backward * share * (0.5 if half else 1.0)) for share in spread) / len(ABBREVIATIONS)


GPU_BACKWARD = 56.5 / (27.6 + 56.5)  # Fig. 3: backward of forward and backward, on a GPU


def _potential(npu: Npu) -> Measured:
    case = CASES[npu]
    for tile in TILES:
        prefetch(case, tile, {}, {"order": "no_second_dy"})
    tall, searched = (by_network(partial(potential, case, tile=tile)) for tile in TILES)
    bounds = by_network(partial(bound, case))
    share = stated("dy_share.all_traffic") / 100
    at_mean = 1 / (1 - GPU_BACKWARD * share)
    uneven, halved, alone = most_at(share, GPU_BACKWARD), most_at(share, GPU_BACKWARD, half=True), most_at(share, 1.0, half=True)
    printed = (
        f"The printed shares alone do not exclude {stated('potential.large'):g}: with {100 * share:.0f} % of dY in every network "
        f"and {100 * GPU_BACKWARD:.0f} % backward (Fig. 3, a GPU) even all of dY would give {at_mean:.2f}, but as unevenly as the "
        f"mean and dlrm's 68.3 % allow {uneven:.2f}. If no more than half of dY's bytes are the second reading, it is {halved:.2f} "
        f"at most, and {alone:.2f} even if the backward pass were the whole step: then the printed figures exclude each other."
        if npu == "large"
        else "The paper prints no shares of the small NPU to compare with."
    )
    return Measured(
        mean(tall),
        note=f"With the fixed tall tile, where at most {mean(bounds):.2f} is possible; with searched tiles it is "
        f"{mean(searched):.2f}.",
        details=f"Tall tile: {listed(tall, 2)}. Tiles searched, one for both gradients: {listed(searched, 2)}. At most, by the "
        f"bytes of the second reading and the backward share of each network here: {listed(bounds, 2)}. {printed} {assumed(case)}",
    )


def _square() -> Measured:
    """The threshold is a field of the machine."""
    others = {
        f"{npu} NPU, below {other:g}": mean(reductions(_with_threshold(case, other), order="paper"))
        for npu, case in CASES.items()
        for other in (1.0, 2.0, 4.0, 8.0)
    }
    return Measured(
        LARGE.machine().square_below,
        note="Field `square_below` of the machine.",
        details=f"Reduction by Algorithm 1 with other thresholds, fixed tall tile, in per cent: {listed(others)}.",
    )


def _with_threshold(case: Case, square_below: float) -> Case:
    return replace(case, changes=(*case.changes, ("square_below", square_below)))


# fmt: off
EXPERIMENTS: Experiments = judged({
    **{f"igo.{npu}.{name}": partial(_step, npu, name) for npu, name in product(CASES, STEPS)},
    **{f"igo.{npu}.rearrangement_ideal": partial(_ideal, npu) for npu in CASES},
    **{f"igo.{npu}.all": partial(_all, npu) for npu in CASES},
    "igo.dy_share.all_traffic": partial(_share, False),
    "igo.dy_share.reads":       partial(_share, True),
    "igo.dy_share.reads.dlrm":  _share_dlrm,
    "igo.potential.small":      partial(_potential, SMALL.npu),
    "igo.potential.large":      partial(_potential, LARGE.npu),
    "igo.square_threshold":     _square,
})
# fmt: on
