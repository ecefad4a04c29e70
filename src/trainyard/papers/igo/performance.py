"""Figs. 5, 6 and 12: what dY is of the traffic, what not reading it twice could bring, and what the paper's three steps bring.

A step's time is that of forward and backward pass, products alone. Every note has both baselines (`baselines`): the fixed tall tile
is judged, as the paper's own is not printed, and the searched one stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from trainyard.papers.igo.baselines import CASES, LARGE, MACHINES, SMALL, TILES, Case, Tile, height, tall_tile, text
from trainyard.papers.igo.measuring import (
    FUSED,
    Networks,
    ahead,
    each,
    faster,
    ideal_cycles,
    listed,
    mean,
    ran,
    reduction,
    reductions,
)
from trainyard.papers.igo.networks import ABBREVIATIONS, Npu
from trainyard.papers.igo.partitioning import by_knn, told
from trainyard.papers.ledger import Experiments, Measured, claims

# fmt: off
STEPS: Mapping[str, Mapping[str, Any]] = {  # Sec. 6.2, each on top of the one before
    "interleaving":  {"order": "interleaved"},
    "rearrangement": {"order": "paper"},
}
# fmt: on
JOINT: Mapping[str, Any] = {"order": "cost", "partition": "cost"}


def said(claim: str) -> float:
    """A figure that the paper prints."""
    value = next(one for one in claims() if one.id == f"igo.{claim}").value
    assert isinstance(value, float)
    return value


def assumed(case: Case) -> str:
    npu = MACHINES[case.npu]
    high = case.high or height(npu)
    tile = " x ".join(map(str, tall_tile(npu, high)))
    return f"Assumed: tile {tile} (m, n, k; {high} arrays high), fp32, im2col written out, products alone"


def _shortened(case: Case, found: Networks, searched: Networks, more: str = "") -> Measured:
    """A mean reduction over the nine networks with both baselines in its note."""
    return Measured(
        mean(found),
        note=f"fixed tall tile, arithmetic mean: {listed(found)}{more}. Tiles searched for each order and layer: "
        f"{mean(searched):.1f} % ({listed(searched)}), on a sequential baseline that is {mean(faster(case)):.2f} times faster than "
        f"the tall one. {assumed(case)}",
    )


def _step(npu: Npu, name: str) -> Measured:
    case, order = CASES[npu], STEPS[name]
    worse = [network for network, value in reductions(case, **order).items() if value < 0]
    more = f"; longer than the baseline in {', '.join(worse)}" if worse else ""
    machine = text(case.machine(**order))
    more += f". dXmajor in every layer: {mean(reductions(case, order='dx_major')):.1f} %. trainyard run MODEL --on '{machine}'"
    return _shortened(case, reductions(case, **order), reductions(case, "searched", **order), more)


def ideal(case: Case) -> Networks:
    ahead(case, "tall", {}, *({"order": order} for order in FUSED))
    return each(lambda network: reduction(ran(case, network).cycles, ideal_cycles(case, network)))


def _ideal(npu: Npu) -> Measured:
    case = CASES[npu]
    lost = mean(ideal(case)) - mean(reductions(case, order="paper"))
    printed = said(f"{npu}.rearrangement_ideal") - said(f"{npu}.rearrangement")
    return _shortened(
        case, ideal(case), reductions(case, "searched", order="cost"),
        f". Algorithm 1 is {lost:.1f} points below it (paper {printed:.1f}): its test knows neither tiles nor "
        "scratchpad. Searched: or sequential, where that is best",
    )  # fmt: skip


def _all(npu: Npu) -> Measured:
    case = CASES[npu]
    return _shortened(
        case, by_knn(case), reductions(case, "searched", **JOINT),
        f". Partition chosen by nearest neighbours that do not know the layer; {told(case)}. {case.parts} parts: assumed. "
        "Searched: order, tile and partition together, or sequential",
    )  # fmt: skip


def dy_share(case: Case, network: str, tile: Tile = "tall", reads: bool = False) -> float:
    """Per cent that dY is of the bytes of all gradients of layers with weights, or of those read (spills not among them)."""
    moved = ran(case, network, tile).moved
    counted = {key: size for key, size in moved.items() if not reads or key[1] == "read"}
    return 100 * sum(size for (tensor, _), size in counted.items() if tensor == "dY") / sum(counted.values())


def shares(case: Case, tile: Tile = "tall", reads: bool = False) -> Networks:
    return each(lambda network: dy_share(case, network, tile, reads))


def _share(reads: bool) -> Measured:
    found, searched = shares(LARGE, reads=reads), shares(LARGE, "searched", reads)
    return Measured(
        mean(found),
        note=f"gradients of the layers with weights, sequential, large NPU, fixed tall tile: {listed(found)}. Tiles searched: "
        f"{mean(searched):.1f} % ({listed(searched)}). {assumed(LARGE)}. dX goes through dY once for each column of tiles of W, dW "
        "once for each row of tiles of X: with tiles one array wide dY comes more often than anything else",
    )


def _share_dlrm() -> Measured:
    found, searched = dy_share(LARGE, "dlrm", reads=True), dy_share(LARGE, "dlrm", "searched", reads=True)
    alone = Case(recommender_batch=1)
    few = dy_share(alone, "dlrm", reads=True)
    return Measured(
        found,
        note=f"fixed tall tile; searched {searched:.1f} %. 2048 samples for a batch of 8: assumed; with 8 samples it is {few:.1f} "
        f"%. {assumed(LARGE)}",
    )


def potential(case: Case, network: str, tile: Tile = "tall") -> float:
    """Speedup of a step whose dW gets dY for nothing."""
    return ran(case, network, tile).cycles / ran(case, network, tile, order="no_second_dy").cycles


def second_reading(case: Case, network: str, tile: Tile = "tall") -> float:
    """Share of the gradients' bytes that dW reads of dY."""
    before, after = ran(case, network, tile).moved, ran(case, network, tile, order="no_second_dy").moved
    return (sum(before.values()) - sum(after.values())) / sum(before.values())


def bound(case: Case, network: str, tile: Tile = "tall") -> float:
    """No step can get faster than this by not moving some bytes of its gradients.

    Bytes that do not move save their transfer at most, and the gradients take no less time than all their bytes: a share s of
    these saves a share s of the backward pass b, and the step is 1 / (1 - b s) times faster at most.
    """
    return 1 / (1 - ran(case, network, tile).backward_share * second_reading(case, network, tile))


def most_at(read_share: float, backward: float, half: bool = False) -> float:
    """The largest mean speedup of nine networks whose mean share of dY is `read_share`, however unevenly it lies.

    1 / (1 - b s) is convex in s: its mean is largest with as many networks as can at the largest share (that of dlrm's reads, which
    the text singles out; of all traffic it is less), one with the rest, the others with none. `half`: both readings of dY are
    equal, one of them goes.
    """
    most, total = said("dy_share.reads.dlrm") / 100, len(ABBREVIATIONS) * read_share
    full = int(total // most)
    spread = [most] * full + [total - full * most] + [0.0] * (len(ABBREVIATIONS) - full - 1)
    return sum(1 / (1 - backward * share * (0.5 if half else 1.0)) for share in spread) / len(ABBREVIATIONS)


GPU_BACKWARD = 56.5 / (27.6 + 56.5)  # Fig. 3: backward of forward and backward, on a GPU


def _potential(npu: Npu) -> Measured:
    case = CASES[npu]
    for tile in TILES:
        ahead(case, tile, {}, {"order": "no_second_dy"})
    found, searched = each(partial(potential, case)), each(lambda network: potential(case, network, "searched"))
    bounds = each(partial(bound, case))
    share = said("dy_share.all_traffic") / 100
    at_mean = 1 / (1 - GPU_BACKWARD * share)
    uneven, halved, alone = most_at(share, GPU_BACKWARD), most_at(share, GPU_BACKWARD, half=True), most_at(share, 1.0, half=True)
    printed = (
        f" The printed shares alone do not exclude {said('potential.large'):g}: with {100 * share:.0f} % of dY in every network "
        f"and {100 * GPU_BACKWARD:.0f} % backward (Fig. 3, a GPU) even all of dY would give {at_mean:.2f}, but as unevenly as the "
        f"mean and dlrm's 68.3 % allow {uneven:.2f}. If no more than half of dY's bytes are the second reading, {halved:.2f} at "
        f"most, and {alone:.2f} even if the backward pass were the whole step: then the printed figures exclude each other"
        if npu == "large"
        else " The paper prints no shares of the small NPU to hold it against"
    )
    return Measured(
        mean(found),
        note=f"fixed tall tile: {listed(found, 2)}; tiles searched, one for both gradients: {mean(searched):.2f} "
        f"({listed(searched, 2)}). At most, by the bytes of the second reading and the backward share of each network here: "
        f"{mean(bounds):.2f} ({listed(bounds, 2)}). "
        f"{assumed(case)}.{printed}",
    )


def _square() -> Measured:
    """The threshold is a field of the machine; beside it what others give."""
    found = {
        f"{npu} NPU, below {other:g}": mean(reductions(_with_threshold(case, other), order="paper"))
        for npu, case in CASES.items()
        for other in (1.0, 2.0, 4.0, 8.0)
    }
    return Measured(
        LARGE.machine().square_below,
        note=f"square_below of the machine. Per cent by Algorithm 1 with other thresholds, fixed tall tile: {listed(found)}",
    )


def _with_threshold(case: Case, square_below: float) -> Case:
    return replace(case, changes=(*case.changes, ("square_below", square_below)))


# fmt: off
EXPERIMENTS: Experiments = {
    **{f"igo.{npu}.{name}": partial(_step, npu, name) for npu, name in product(CASES, STEPS)},
    **{f"igo.{npu}.rearrangement_ideal": partial(_ideal, npu) for npu in CASES},
    **{f"igo.{npu}.all": partial(_all, npu) for npu in CASES},
    "igo.dy_share.all_traffic": partial(_share, False),
    "igo.dy_share.reads":       partial(_share, True),
    "igo.dy_share.reads.dlrm":  _share_dlrm,
    "igo.potential.small":      partial(_potential, SMALL.npu),
    "igo.potential.large":      partial(_potential, LARGE.npu),
    "igo.square_threshold":     _square,
}
# fmt: on
