"""Dynamic sparse reparameterisation. H. Mostafa, X. Wang: Parameter Efficient Training of Deep Convolutional Neural Networks by
Dynamic Sparse Reparameterization. ICML 2019.

Every so many steps, all weights below one global threshold H are removed, K of them. H doubles when K fell short of the wanted
number by more than a tolerance, and halves when it was above it by more: no sorting, and H finds its level in a few rounds. The K
weights come back at random free places, at zero, each layer's part in proportion to the weights that survived there. So the total
never changes, and weights wander to the layers whose weights stay large.

Dense: biases, normalisation and the first layer; the authors keep a ResNet's shortcut convolutions dense too: name them in `dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainyard.errors import BadInput
from trainyard.live.sparsity.choice import largest, random_places, share_out
from trainyard.live.sparsity.recipe import SparseWeights, first_layer


class DynamicReparameterisation(SparseWeights):
    """Aims at moving `share` of the present weights every `every` steps, until `until` steps are done."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        density: float,
        *,
        every: int = 100,  # assumed: often against an epoch, seldom against the cost of a step
        share: float = 0.05,  # assumed: the paper gives a number for each network; this is of its order
        threshold: float = 1e-3,  # assumed: it doubles or halves to its level, so the start hardly matters
        tolerance: float = 0.1,  # assumed: well inside the factor of two of one adaptation
        until: int | None = None,
        weights: Sequence[str | nn.Parameter] | None = None,
        dense: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if every < 1 or not 0 < share < 1 or threshold <= 0 or not 0 <= tolerance < 1:
            raise BadInput(
                f"every={every!r} must be at least 1, share={share!r} inside (0, 1), threshold={threshold!r} above 0, "
                f"tolerance={tolerance!r} inside [0, 1)"
            )
        super().__init__(model, optimizer, density, weights=weights, dense=dense, seed=seed)
        self.every, self.share, self.tolerance, self.until = every, share, tolerance, until
        self.threshold = float(threshold)
        self.draw_masks()
        self.apply()

    @classmethod
    def stays_dense(cls, model: nn.Module) -> set[str]:
        return first_layer(model)

    def step(self) -> None:
        self.steps += 1
        self.apply()
        if self.steps % self.every == 0 and (self.until is None or self.steps <= self.until):
            self.reallocate()

    def reallocate(self) -> None:
        """Removes weights below the threshold, adapts the threshold, and regrows the same number of weights."""
        target = self.share * self.nonzeros
        removed = 0
        for name, weight in self.weights.items():
            mask = self._mask(name)
            magnitude = weight.detach().abs()
            survivors = mask & (magnitude >= self.threshold)
            if not bool(survivors.any()):  # a layer without survivors could never grow again: its largest weight stays
                survivors = largest(torch.where(mask, magnitude, -1.0), 1)
            removed += int(mask.sum()) - int(survivors.sum())
            self.masks[name] = survivors
        if removed < (1 - self.tolerance) * target:
            self.threshold *= 2
        elif removed > (1 + self.tolerance) * target:
            self.threshold /= 2
        self.apply()
        surviving = [int(mask.sum()) for mask in self.masks.values()]
        room = [mask.numel() - count for mask, count in zip(self.masks.values(), surviving, strict=True)]
        for (name, mask), count in zip(list(self.masks.items()), share_out(removed, surviving, room), strict=True):
            self.masks[name] = mask | random_places(~mask, count, self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "threshold": self.threshold}

    def _load(self, state: Mapping[str, Any]) -> None:
        self.threshold = float(state["threshold"])
