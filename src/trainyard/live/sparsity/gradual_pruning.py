"""Gradual magnitude pruning. M. Zhu, S. Gupta: To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression.
arXiv:1710.01878, 2017.

The sparsity of every layer follows a cubic from s_i to s_f over n prunings, one every dt steps from step t0 on (Eq. 1):
s_t = s_f + (s_i - s_f) (1 - (t - t0) / (n dt))^3: fast at first, while there is much to spare. Each pruning removes the smallest
weights of each layer; what is gone stays gone. Dense, as in the paper's MobileNet: the first layer and depthwise convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from trainyard.errors import BadInput
from trainyard.live.sparsity.choice import largest
from trainyard.live.sparsity.recipe import SparseWeights, first_layer


class GradualPruning(SparseWeights):
    """Prunes to `density` in `prunings` rounds, one `every` steps, from step `begin` on."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        density: float,
        *,
        initial_density: float = 1.0,  # Eq. 1: s_i is usually 0
        begin: int = 0,
        every: int = 100,  # assumed: the lower end of what the paper tries
        prunings: int = 100,
        weights: Sequence[str | nn.Parameter] | None = None,
        dense: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if not density <= initial_density <= 1:
            raise BadInput(f"initial_density={initial_density!r} must lie between the final density {density!r} and 1")
        if begin < 0 or every < 1 or prunings < 1:
            raise BadInput(f"begin={begin!r} must be at least 0, every={every!r} and prunings={prunings!r} at least 1")
        super().__init__(model, optimizer, density, weights=weights, dense=dense, seed=seed)
        self.initial_density, self.begin, self.every, self.prunings = initial_density, begin, every, prunings
        if begin == 0:
            self._prune()

    @classmethod
    def stays_dense(cls, model: nn.Module) -> set[str]:
        depthwise = {p for p, m in model.named_modules() if isinstance(m, _ConvNd) and m.groups == m.in_channels > 1}
        return first_layer(model) | depthwise

    def density_at(self, step: int) -> float:
        """Eq. 1 in terms of density; before `begin` nothing is pruned."""
        if step < self.begin:
            return 1.0
        remaining = max(0.0, 1 - (step - self.begin) / (self.prunings * self.every))
        return self.target_density + (self.initial_density - self.target_density) * remaining**3

    def step(self) -> None:
        self.steps += 1
        since = self.steps - self.begin
        if 0 <= since <= self.prunings * self.every and since % self.every == 0:
            self._prune()
        else:
            self.apply()

    def _prune(self) -> None:
        for name, weight in self.weights.items():
            mask = self._mask(name)
            count = min(max(1, round(self.density_at(self.steps) * mask.numel())), int(mask.sum()))
            self.masks[name] = largest(torch.where(mask, weight.detach().abs(), -1.0), count)
        self.apply()
