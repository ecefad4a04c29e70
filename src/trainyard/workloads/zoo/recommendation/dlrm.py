"""DLRM. M. Naumov et al.: Deep Learning Recommendation Model for Personalization and Recommendation Systems. 2019.

Decided here:
- J. Kim et al. (Interleaved Gradient Order, MICRO 2023, Table 4) print 25 B parameters and nothing else. The public DLRM of
  that size is MLPerf's on Criteo Terabyte: 26 tables of width 128, rows capped at 40 million; it has 24.0 B.
- One row is looked up in each table (Criteo's features hold one value).
- Gradients of the tables are dense: on the meta device a sparse gradient loses its rows before the optimizer sees it. Plain SGD,
  as in MLPerf; the dense update touches 24 B parameters where a sparse one would touch 26 rows per sample.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import plain_sgd
from trainyard.workloads.zoo.recipe import Recipe

WIDTH = 128  # MLPerf: sparse feature size
DENSE_FEATURES = 13  # Criteo Terabyte
BOTTOM = (DENSE_FEATURES, 512, 256, WIDTH)  # MLPerf
TOP = (1024, 1024, 512, 256, 1)  # MLPerf; its input is the bottom's output and the pair products

# fmt: off
CRITEO_ROWS = (  # MLPerf: Criteo Terabyte, indices capped at 40 million
    39_884_406,     39_043,     17_289,      7_420,     20_263,          3,      7_120,      1_543,         63,
    38_532_951,  2_953_546,    403_346,         10,      2_208,     11_938,        155,          4,        976,
            14, 39_979_771, 25_641_295, 39_664_984,    585_935,     12_972,        108,         36,
)
# fmt: on


def perceptron(widths: tuple[int, ...], *, logit: bool) -> nn.Sequential:
    """Linear layers with a ReLU after each; a `logit` at the end stays linear."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if logit else layers))


class Dlrm(nn.Module):
    """Takes dense features (batch, 13) and one row number per table (batch, tables); returns logits (batch,)."""

    pairs: Tensor

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(count, WIDTH, mode="sum") for count in rows)
        self.bot_l = perceptron(BOTTOM, logit=False)
        vectors = len(rows) + 1
        first, second = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", first * vectors + second, persistent=False)
        self.top_l = perceptron((WIDTH + vectors * (vectors - 1) // 2, *TOP), logit=True)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        bottom = self.bot_l(dense)
        looked_up = [table(column) for table, column in zip(self.emb_l, indices.unsqueeze(-1).unbind(1), strict=True)]
        vectors = torch.stack([bottom, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self.pairs)
        logits: Tensor = self.top_l(torch.cat([bottom, interactions], dim=-1))
        return logits.squeeze(-1)


def dlrm(*, rows: tuple[int, ...] = CRITEO_ROWS) -> Recipe:
    return Recipe(
        model=lambda: Dlrm(rows),
        inputs=lambda batch: (
            torch.randn(batch, DENSE_FEATURES),
            torch.stack([torch.randint(count, (batch,)) for count in rows], dim=1),
        ),
        targets=lambda batch: (torch.randint(2, (batch,)).float(),),
        loss=F.binary_cross_entropy_with_logits,
        optimizer=plain_sgd,
    )
