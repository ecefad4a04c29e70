"""Neural collaborative filtering (NeuMF). X. He, L. Liao, H. Zhang, L. Nie, X. Hu, T.-S. Chua. WWW 2017.

Three sizes:
- `ncf`: eight predictive factors, layers 64-32-16-8 and the prediction: the four fully connected layers of TensorDash (MICRO
  2020, Sec. IV-A), the first the largest, on MovieLens 20M.
- `ncf_sigma`: 64 factors, layers 256-256-128-64 (MLPerf's NCF). At batch 2048 its products hold SIGMA's 2048-1-128 (the
  prediction) and 256-256-2048 (the first layer's weight gradient).
- `ncf_3b`: the 3 B parameters of Table 4 of J. Kim et al. (Interleaved Gradient Order, MICRO 2023), which prints nothing else.

Decided here:
- `ncf_3b` is `ncf_sigma` five times as wide over MovieLens 20M expanded 16-fold in users and 32-fold in items, MLPerf's
  synthetic data set: 2.95 B.
- Gradients of the tables are dense: on the meta device a sparse gradient loses its rows, and Adam refuses it.
- The tables train, so the first fully connected layer has an input gradient; TensorDash leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam
from trainyard.workloads.zoo.recipe import Recipe

USERS = 138_493  # MovieLens 20M
ITEMS = 26_744  # MovieLens 20M, films with a rating


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`layers`: the width of the joined embeddings, then of each layer's output."""

    factors: int
    layers: tuple[int, ...]
    users: int = USERS
    items: int = ITEMS


# fmt: off
SMALL       = Size(factors=8,   layers=(64, 32, 16, 8))                                            # the authors' code, defaults
SIGMA       = Size(factors=64,  layers=(256, 256, 128, 64))                                        # MLPerf v0.5
THREE_B     = Size(factors=320, layers=(1280, 1280, 640, 320), users=16 * USERS, items=32 * ITEMS)  # assumed: 3 B
# fmt: on


class NeuMf(nn.Module):
    """Matrix factorisation and a multi-layer perceptron, joined by one prediction layer; returns logits (batch,)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        joined = size.layers[0]
        self.mf_user_embed = nn.Embedding(size.users, size.factors)
        self.mf_item_embed = nn.Embedding(size.items, size.factors)
        self.mlp_user_embed = nn.Embedding(size.users, joined // 2)
        self.mlp_item_embed = nn.Embedding(size.items, joined // 2)
        self.mlp = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(size.layers))
        self.final = nn.Linear(size.factors + size.layers[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        factorised = self.mf_user_embed(users) * self.mf_item_embed(items)
        hidden = torch.cat([self.mlp_user_embed(users), self.mlp_item_embed(items)], dim=-1)
        for layer in self.mlp:
            hidden = layer(hidden).relu()
        logits: Tensor = self.final(torch.cat([factorised, hidden], dim=-1))
        return logits.squeeze(-1)


def recipe(size: Size) -> Recipe:
    return Recipe(
        model=lambda: NeuMf(size),
        inputs=lambda batch: (torch.randint(size.users, (batch,)), torch.randint(size.items, (batch,))),
        targets=lambda batch: (torch.randint(2, (batch,)).float(),),
        loss=F.binary_cross_entropy_with_logits,
        optimizer=adam,
    )


ncf = partial(recipe, SMALL)
ncf_sigma = partial(recipe, SIGMA)
ncf_3b = partial(recipe, THREE_B)
