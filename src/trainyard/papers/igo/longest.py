"""Fig. 13: the longest-running layers of the large NPU, their traffic and their time with +Rearrangement over the baseline's.

The longest 15 % of the layers (Sec. 6.2): of the distinct ones that have both gradients, as without dX there is nothing to
interleave. Time and traffic are those of forward and backward pass together, as everywhere in the evaluation. What the text calls
shallow (large feature maps, small weights) is here a convolution whose X has more elements than its W; all else is deep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from trainyard.ir import Convolution
from trainyard.papers.igo.baselines import LARGE, Tile
from trainyard.papers.igo.measuring import LayerCost, layers, step_cost
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, layers_of
from trainyard.papers.igo.performance import JOINT, assumed
from trainyard.papers.ledger import Experiments, Measured

SHARE = 0.15  # Sec. 6.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One layer: bytes and cycles with +Rearrangement over those of the baseline."""

    layer: Layer
    before: LayerCost
    after: LayerCost

    @property
    def traffic(self) -> float:
        return _bytes(self.after) / _bytes(self.before)

    @property
    def time(self) -> float:
        return self.after.cycles / self.before.cycles

    @property
    def shallow(self) -> bool:
        return shallow(self.layer)


def _bytes(cost: LayerCost) -> int:
    return cost.forward_bytes + cost.backward_bytes


def shallow(layer: Layer) -> bool:
    """Early convolutions: more feature map than weights."""
    body = layer.body
    if not isinstance(body, Convolution):
        return False
    weights = body.out_channels * body.in_channels // body.groups * math.prod(body.kernel)
    return body.batch * body.in_channels * math.prod(body.size) > weights


@cache
def bars(tile: Tile = "tall") -> tuple[Bar, ...]:
    """The longest first; always those that are longest with the tall tile."""
    order: Mapping[str, Any] = {"order": "paper"} if tile == "tall" else JOINT
    paired = [layer for network in ABBREVIATIONS for layer in layers(LARGE, network) if layer.paired]
    runs = {network: (step_cost(LARGE, network, tile), step_cost(LARGE, network, tile, **order)) for network in ABBREVIATIONS}
    lengths = {layer.name: step_cost(LARGE, layer.network).layers[layer.path, layer.call].cycles for layer in paired}
    chosen = sorted(paired, key=lambda layer: -lengths[layer.name])[: round(SHARE * len(paired))]
    return tuple(
        Bar(
            layer=layer,
            before=runs[layer.network][0].layers[layer.path, layer.call],
            after=runs[layer.network][1].layers[layer.path, layer.call],
        )
        for layer in chosen
    )


def means(tile: Tile = "tall") -> Mapping[str, tuple[float, float]]:
    """Mean traffic and time over the baseline's, of deep and shallow layers."""
    kinds = {"deep": [bar for bar in bars(tile) if not bar.shallow], "shallow": [bar for bar in bars(tile) if bar.shallow]}
    return {kind: (fmean(bar.traffic for bar in some), fmean(bar.time for bar in some)) for kind, some in kinds.items() if some}


def means_text(tile: Tile = "tall") -> str:
    return "; ".join(f"{kind}: traffic {traffic:.2f}, time {time:.2f}" for kind, (traffic, time) in means(tile).items())


def _layers() -> Measured:
    longest = bars()
    layer_count = sum(len(layers_of(network)) for network in ABBREVIATIONS)
    paired = sum(layer.paired for network in ABBREVIATIONS for layer in layers(LARGE, network))
    names = ", ".join(bar.layer.name for bar in longest)
    return Measured(
        len(longest),
        note=f"15 % of the {paired} distinct layers that have both gradients; 24 are 15 % of 160.",
        details=f"Of all {layer_count} layers of the nine networks, equal ones and those without dX included, it would be "
        f"{round(SHARE * layer_count)}. The layers: {names}; "
        f"{sum(bar.shallow for bar in longest)} are shallow. +Rearrangement over the baseline, fixed tall tile: {means_text()}. "
        f"Order, tile and partition searched together over searched tiles, the same layers: {means_text('searched')}. "
        f"{assumed(LARGE)}",
    )


EXPERIMENTS: Experiments = {"igo.fig13.layers": _layers}
