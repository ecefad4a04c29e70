"""Gated convolutional language model. Y. N. Dauphin, A. Fan, M. Auli, D. Grangier: Language Modeling with Gated Convolutional
Networks. ICML 2017. M. Mahmoud et al. (TensorDash, MICRO 2020, Sec. IV-D) call it GCN and train it on WikiText-2.

Decided here:
- GCNN-14, the paper's larger model for WikiText (Table 1): TensorDash does not say which. A residual connection around every
  layer, through a 1x1 convolution where the width changes.
- WikiText-2 has 33,278 words, few enough for a plain output layer in place of the paper's adaptive softmax.
- Sequences of 70 words, the customary cut of WikiText-2 (S. Merity et al., 2018).
- Weight normalisation is left out: the convolution's own weight stays the trained tensor, as the accelerator sees it.
- No publication prints this combination's parameter count.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 33_278  # WikiText-2
EMBEDDING = 280  # Table 1, WikiText-103
SEQUENCE = 70  # assumed: customary cut
DROPOUT = 0.1  # assumed: as in the public implementation of the paper's authors

# fmt: off
LAYERS = (              # Table 1, GCNN-14: (width, kernel)
    *[( 850, 6)] * 3,
    *[( 850, 1)] * 1,
    *[( 850, 5)] * 4,
    *[( 850, 1)] * 1,
    *[( 850, 4)] * 3,
    *[(1024, 4)] * 1,
    *[(2048, 4)] * 1,
)
# fmt: on


class GatedConvolution(nn.Module):
    """(X * W + b) x sigmoid(X * V + c), Eq. 1, W and V in one convolution; padded in front only, so that no word sees the next."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.dropout = nn.Dropout(DROPOUT)
        self.conv = nn.Conv1d(inputs, 2 * outputs, kernel)
        self.projection = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        padded = F.pad(self.dropout(hidden), (self.kernel - 1, 0))
        residual: Tensor = self.projection(hidden)
        return F.glu(self.conv(padded), dim=1) + residual


class GatedConvolutionLanguageModel(nn.Module):
    """Returns logits (batch, sequence, vocabulary)."""

    def __init__(self, vocabulary: int, layers: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.layers = nn.ModuleList()
        width = EMBEDDING
        for outputs, kernel in layers:
            self.layers.append(GatedConvolution(width, outputs, kernel))
            width = outputs
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.classifier(hidden.transpose(1, 2))
        return logits


def gcn(*, vocabulary: int = VOCABULARY, layers: tuple[tuple[int, int], ...] = LAYERS, sequence: int = SEQUENCE) -> Recipe:
    return token_recipe(lambda: GatedConvolutionLanguageModel(vocabulary, layers), vocabulary, (sequence,), sequence, adam)
