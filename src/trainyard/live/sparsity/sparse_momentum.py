"""Sparse momentum. T. Dettmers, L. Zettlemoyer: Sparse Networks from Scratch: Faster Training without Losing Performance.
arXiv:1907.04840, 2019.

Training starts at the target density with random masks. After each epoch, every layer loses the same share of its weights, the
smallest; all that was lost is given back to the layers in proportion to the mean momentum magnitude of the weights they had; inside
a layer, the absent weights with the largest momentum magnitude return, at zero. The number of weights never changes.

Momentum is the optimizer's (`momentum_buffer`, `exp_avg`), that of absent weights included: it is what ranks them, so it is never
cleared, and a weight that returns moves at once. An optimizer without one gets a running mean of the gradients beside it.
Dense: biases, normalisation and the first layer, as in the authors' partly dense ImageNet models, which leave the shortcut
convolutions dense as well: name those in `dense`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainyard.errors import BadInput
from trainyard.live.sparsity.choice import largest, share_out
from trainyard.live.sparsity.recipe import SparseWeights, first_layer

Decay = Literal["cosine", "linear", "constant"]
_OWN_MOMENTUM = 0.9  # assumed: the usual momentum of SGD


class SparseMomentum(SparseWeights):
    """`rate` of each layer's weights moves after the first epoch, less later: it decays to zero over `epochs`."""

    keeps_absent_momentum = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        density: float,
        *,
        rate: float = 0.2,  # assumed: the paper finds its result insensitive to the rate
        decay: Decay = "cosine",
        epochs: int = 100,  # assumed: an ImageNet run
        weights: Sequence[str | nn.Parameter] | None = None,
        dense: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if not 0 <= rate < 1:
            raise BadInput(f"rate is the share of weights that moves each epoch, at least 0 and below 1, got {rate!r}")
        if decay not in ("cosine", "linear", "constant"):
            raise BadInput(f"decay must be 'cosine', 'linear' or 'constant', got {decay!r}")
        if epochs < 1:
            raise BadInput(f"epochs must be at least 1, got {epochs!r}")
        super().__init__(model, optimizer, density, weights=weights, dense=dense, seed=seed)
        self.first_rate, self.decay, self.decay_epochs = rate, decay, epochs
        self._running: dict[str, Tensor] = {}
        self.draw_masks()
        self.apply()

    @classmethod
    def stays_dense(cls, model: nn.Module) -> set[str]:
        return first_layer(model)

    @property
    def rate(self) -> float:
        """Share of each layer's weights that the coming `end_epoch` moves."""
        if self.decay == "constant":
            return self.first_rate
        done = min(1.0, self.epochs / self.decay_epochs)
        return self.first_rate * ((1 + math.cos(math.pi * done)) / 2 if self.decay == "cosine" else 1 - done)

    def step(self) -> None:
        self.steps += 1
        for name, weight in self.weights.items():
            if weight.grad is None or self._of_optimizer(weight) is not None:
                continue
            gradient = weight.grad.detach()
            if name in self._running:
                self._running[name].lerp_(gradient, 1 - _OWN_MOMENTUM)
            else:
                self._running[name] = gradient * (1 - _OWN_MOMENTUM)
        self.apply()

    def end_epoch(self) -> None:
        """Prune, redistribute, regrow (the paper's three steps)."""
        momentum = {name: self.momentum(name).abs() for name in self.weights}
        means = [float(momentum[name][self._mask(name)].double().mean()) for name in self.weights]
        removed = 0
        for name, weight in self.weights.items():
            mask = self._mask(name)
            present = int(mask.sum())
            kept = present - int(self.rate * present)
            self.masks[name] = largest(torch.where(mask, weight.detach().abs(), -1.0), kept)
            removed += present - kept
        room = [mask.numel() - int(mask.sum()) for mask in self.masks.values()]
        self.apply()
        for (name, mask), count in zip(list(self.masks.items()), share_out(removed, means, room), strict=True):
            self.masks[name] = mask | largest(torch.where(mask, -1.0, momentum[name]), count)
        super().end_epoch()

    def momentum(self, name: str) -> Tensor:
        """The smoothed gradient of every weight of a tensor, present or absent."""
        weight = self.weights[name]
        momentum = self._of_optimizer(weight)
        if momentum is None:
            momentum = self._running.get(name)
        if momentum is None:
            raise BadInput(
                f"{name!r} has no momentum yet: the optimizer keeps none, so step() must be called after each optimizer step, "
                "before gradients are cleared"
            )
        return momentum.to(weight.device)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "running": {name: mean.clone() for name, mean in self._running.items()}}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._running = {name: mean.to(self.weights[name].device).clone() for name, mean in state["running"].items()}

    def _of_optimizer(self, weight: nn.Parameter) -> Tensor | None:
        state = self.optimizer.state.get(weight, {})
        for key in ("momentum_buffer", "exp_avg"):
            value = state.get(key)
            if isinstance(value, Tensor) and value.shape == weight.shape:
                return value
        return None
