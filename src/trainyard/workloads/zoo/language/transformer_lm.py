"""Transformer language model. A. Vaswani et al.: Attention Is All You Need. NeurIPS 2017; Tensor2Tensor for Neural Machine
Translation. AMTA 2018. E. Qin et al.: SIGMA. HPCA 2020, Sec. II: "a 324 Million parameter model" on LM1B.

Decided here, as SIGMA prints neither shape nor depth:
- Its suite holds 31999-1024-84 and 84-1024-4096 (Fig. 1b, Fig. 12): vocabulary 31,999, width 1024, feed-forward 4096, 84
  tokens. All of them appear in this model's step at batch 1 with sequences of 84 tokens.
- Decoder only, as a language model is in Tensor2Tensor: normalisation before each half, no biases in the attention, sinusoidal
  positions, ReLU, output matrix tied to the embeddings.
- 23 layers: the whole depth that comes nearest to 324 M (322.4 M; a layer has 12.6 M).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 31_999  # SIGMA, suite: 31999-1024-84
WIDTH = 1024  # SIGMA, suite: 84-1024-4096
FEED_FORWARD = 4096  # SIGMA, suite: 84-1024-4096
SEQUENCE = 84  # SIGMA, suite: 84-1024-4096
HEADS = 16  # Vaswani et al., Table 3, "big"
DROPOUT = 0.1  # Tensor2Tensor, language models
LAYERS = 23  # assumed: nearest to 324 M


def sinusoids(sequence: int, width: int) -> Tensor:
    """Sines in the first half of the channels, cosines in the second; wavelengths up to 10,000 x 2 pi (Sec. 3.5)."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(sequence)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class SelfAttention(nn.Module):
    """Causal, without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.output_transform = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            projection(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.q, self.k, self.v)
        )
        dropout = DROPOUT if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.output_transform(context.transpose(1, 2).flatten(2))
        return projected


class Layer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.self_attention_norm = nn.LayerNorm(width)
        self.self_attention = SelfAttention(width, heads)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, feed_forward), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(feed_forward, width))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.self_attention(self.self_attention_norm(hidden)))
        closed: Tensor = hidden + self.dropout(self.ffn(self.ffn_norm(hidden)))
        return closed


class TransformerLanguageModel(nn.Module):
    """Returns logits (batch, sequence, vocabulary)."""

    positions: Tensor

    def __init__(self, vocabulary: int, layers: int, sequence: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.register_buffer("positions", sinusoids(sequence, WIDTH), persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS, FEED_FORWARD) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.softmax = nn.Linear(WIDTH, vocabulary, bias=False)
        self.softmax.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens) * WIDTH**0.5  # Sec. 3.4
        hidden = self.dropout(embedded + self.positions[: tokens.shape[1]])
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.softmax(self.norm(hidden))
        return logits


def transformer_324m(*, vocabulary: int = VOCABULARY, layers: int = LAYERS, sequence: int = SEQUENCE) -> Recipe:
    return token_recipe(lambda: TransformerLanguageModel(vocabulary, layers, sequence), vocabulary, (sequence,), sequence, adam)
