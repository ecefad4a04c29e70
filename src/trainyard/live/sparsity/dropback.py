"""DropBack. M. Golub, G. Lemieux, M. Lis: DropBack: Continuous Pruning During Training. arXiv:1806.06949, 2018
(SysML 2019: Full Deep Neural Network Training on a Pruned Weight Budget).

Only k weights of the whole network are tracked: after each step, those that have moved farthest from their initial value, which is
the sum of all their updates. Every other weight forgets its update. In the paper it then *is* its initial value, regenerated from a
seed at each use so that it needs no memory; such weights are not zero, and `decay=1` does that. With `decay` below 1, the default,
the initial values (also inside tracked weights) shrink by that factor every step until they are gone: untracked weights are zero
(D. Yang et al.: Procrustes: a Dataflow and Accelerator for Sparse Deep Neural Network Training. MICRO 2020).

torch has initialised the model already, so initial values are kept here as a copy, until they have decayed. The paper trains with
plain SGD; what another optimizer remembers of untracked weights is cleared. No layer is exempt; the paper tracks biases and
normalisation under the same budget, here they stay dense, because a normalisation that decays to zero ends its channel. A network
without normalisation may not survive the decay either: its signal fades with the initial values before the gradients have replaced
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.errors import BadInput
from trainyard.live.sparsity.choice import largest
from trainyard.live.sparsity.recipe import SparseWeights

_GONE = 1e-6  # assumed: below this part of its start, an initial value is zero; 132 steps at a decay of 0.9


class DropBack(SparseWeights):
    """Tracks the share `density` of all weights; the tracked set is fixed after `freeze_after` epochs, if given."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        density: float,
        *,
        decay: float = 0.9,  # assumed: fast against the length of a training run
        freeze_after: int | None = None,
        weights: Sequence[str | nn.Parameter] | None = None,
        dense: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if not 0 <= decay <= 1:
            raise BadInput(f"decay must lie between 0 (zero at once) and 1 (the paper: initial values stay), got {decay!r}")
        super().__init__(model, optimizer, density, weights=weights, dense=dense, seed=seed)
        self.decay, self.freeze_after = decay, freeze_after
        self.initial = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.scale = 1.0

    @property
    def frozen(self) -> bool:
        return self.freeze_after is not None and self.epochs >= self.freeze_after

    def step(self) -> None:
        self.steps += 1
        before = {name: self.untracked(name) for name in self.weights}
        if not self.frozen:
            self._track({name: weight.detach() - before[name] for name, weight in self.weights.items()})
        self._decay()
        with torch.no_grad():
            for name, weight in self.weights.items():
                mask, after = self._mask(name), self.untracked(name)
                weight.copy_(torch.where(mask, weight - (before[name] - after), after))
                self._clear_state(weight, ~mask)

    def untracked(self, name: str) -> Tensor:
        """What untracked weights of a tensor are now: their initial values, as far as they have not decayed."""
        weight = self.weights[name]
        if self.scale == 0:
            return torch.zeros_like(weight)
        return self.initial[name].to(weight.device) * self.scale

    def apply(self) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(torch.where(self._mask(name), weight, self.untracked(name)))

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "scale": self.scale,
            "initial": {name: value.clone() for name, value in self.initial.items()},
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.scale = float(state["scale"])
        self.initial = {name: value.to(self.weights[name].device).clone() for name, value in state["initial"].items()}

    def _track(self, moved: Mapping[str, Tensor]) -> None:
        """One ranking over all tensors: the budget goes where the gradients have been."""
        device = next(iter(moved.values())).device
        chosen = largest(torch.cat([values.abs().float().flatten().to(device) for values in moved.values()]), self.budget)
        parts = chosen.split([values.numel() for values in moved.values()])
        for (name, values), part in zip(moved.items(), parts, strict=True):
            self.masks[name] = part.view(values.shape).to(values.device)

    def _decay(self) -> None:
        self.scale *= self.decay
        if self.scale < _GONE:
            self.scale, self.initial = 0.0, {}
