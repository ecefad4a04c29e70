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
from trainyard.papers.igo.measuring import Spent, layers, ran
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, layers_of
from trainyard.papers.igo.performance import JOINT, assumed
from trainyard.papers.ledger import Experiments, Measured

SHARE = 0.15  # Sec. 6.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One layer: what is left of its bytes and of its cycles."""

    layer: Layer
    before: Spent
    after: Spent

    @property
    def traffic(self) -> float:
        return _bytes(self.after) / _bytes(self.before)

    @property
    def time(self) -> float:
        return self.after.cycles / self.before.cycles

    @property
    def shallow(self) -> bool:
        return shallow(self.layer)


def _bytes(spent: Spent) -> int:
    return spent.forward_bytes + spent.backward_bytes


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
    runs = {network: (ran(LARGE, network, tile), ran(LARGE, network, tile, **order)) for network in ABBREVIATIONS}
    lengths = {layer.name: ran(LARGE, layer.network).layers[layer.path, layer.call].cycles for layer in paired}
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
    """Traffic and time that are left, of deep and shallow layers."""
    kinds = {"deep": [bar for bar in bars(tile) if not bar.shallow], "shallow": [bar for bar in bars(tile) if bar.shallow]}
    return {kind: (fmean(bar.traffic for bar in each), fmean(bar.time for bar in each)) for kind, each in kinds.items() if each}


def told(tile: Tile = "tall") -> str:
    return "; ".join(f"{kind}: traffic {traffic:.2f}, time {time:.2f}" for kind, (traffic, time) in means(tile).items())


def _layers() -> Measured:
    found = bars()
    every = sum(len(layers_of(network)) for network in ABBREVIATIONS)
    paired = sum(layer.paired for network in ABBREVIATIONS for layer in layers(LARGE, network))
    names = ", ".join(bar.layer.name for bar in found)
    return Measured(
        len(found),
        note=f"15 % of the {paired} distinct layers that have both gradients (24 are 15 % of 160; of all {every} layers of the "
        f"nine networks there would be {round(SHARE * every)}): {names}. {sum(bar.shallow for bar in found)} are shallow. Left of "
        f"the baseline's with +Rearrangement, fixed tall tile: {told()}. Order, tile and partition searched over searched tiles, "
        f"the same layers: {told('searched')}. {assumed(LARGE)}",
    )


EXPERIMENTS: Experiments = {"igo.fig13.layers": _layers}
