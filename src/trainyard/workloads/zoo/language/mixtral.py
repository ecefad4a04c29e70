"""Mixtral 8x7B. A. Q. Jiang et al.: Mixtral of Experts. arXiv:2401.04088, 2024.

Decided here:
- Sequences of 4096 tokens; the paper's context is 32,768.
- bf16, as the weights were released: parameters, gradients and AdamW's state.
- The two rows of a token are sorted by expert and multiplied by grouped products, so that no token is dropped. The loss that
  balances the router's load is left out: the paper does not print its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adamw, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 32_000  # Table 1
SEQUENCE = 4096  # assumed: an eighth of the context
ROTATION_BASE = 1e6  # released configuration: rope_theta


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What tells one mixture from another."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    experts: int
    chosen: int


# fmt: off
EIGHT_BY_SEVEN = Size(layers=32, width=4096, heads=32, key_heads=8, head_width=128, hidden=14336, experts=8, chosen=2)  # Table 1
# fmt: on


def rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding: the halves of each head turn against each other."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.key_heads = size.heads, size.key_heads
        self.wq = nn.Linear(size.width, size.heads * size.head_width, bias=False)
        self.wk = nn.Linear(size.width, size.key_heads * size.head_width, bias=False)
        self.wv = nn.Linear(size.width, size.key_heads * size.head_width, bias=False)
        self.wo = nn.Linear(size.heads * size.head_width, size.width, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query = self.wq(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = (layer(hidden).unflatten(-1, (self.key_heads, -1)).transpose(1, 2) for layer in (self.wk, self.wv))
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        mixed: Tensor = self.wo(context.transpose(1, 2).flatten(2))
        return mixed


class Experts(nn.Module):
    """Gated feed-forward experts; `w1` gates `w3`, `w2` goes back to the width."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.empty(size.experts, size.width, size.hidden)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(size.experts, size.hidden, size.width))
        for weight in (self.w1, self.w2, self.w3):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """`rows` are sorted by expert; `ends` are the numbers of rows up to and with each."""
        gate = F.grouped_mm(rows, self.w1, offs=ends)
        return F.grouped_mm(F.silu(gate) * F.grouped_mm(rows, self.w3, offs=ends), self.w2, offs=ends)


class Mixture(nn.Module):
    """Each token goes to its `chosen` experts, weighed by the softmax of their scores (Sec. 2.1)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.chosen, self.count = size.chosen, size.experts
        self.gate = nn.Linear(size.width, size.experts, bias=False)
        self.experts = Experts(size)

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        scores, experts = self.gate(tokens).topk(self.chosen, dim=-1)
        order = experts.flatten().argsort()
        ends = torch.histc(experts.flatten().float(), self.count, 0, self.count - 1).cumsum(0).to(torch.int32)
        rows = self.experts(tokens[order // self.chosen], ends) * scores.softmax(-1).flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.chosen, rows).view_as(hidden)


class Block(nn.Module):
    """Attention and mixture, each with a normalisation before it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.mixture = Mixture(size)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), cosine, sine)
        closed: Tensor = hidden + self.mixture(self.ffn_norm(hidden))
        return closed


class Mixtral(nn.Module):
    """The decoder stack; returns logits (batch, sequence, vocabulary)."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, size: Size, vocabulary: int = VOCABULARY, sequence: int = SEQUENCE) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.output = nn.Linear(size.width, vocabulary, bias=False)
        frequencies = ROTATION_BASE ** (-torch.arange(0, size.head_width, 2) / size.head_width)
        angles = torch.outer(torch.arange(sequence), frequencies).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.layers:
            hidden = block(hidden, self.cosine, self.sine)
        logits: Tensor = self.output(self.norm(hidden))
        return logits


def recipe(size: Size, *, vocabulary: int = VOCABULARY, sequence: int = SEQUENCE, dtype: torch.dtype = torch.bfloat16) -> Recipe:
    built = token_recipe(lambda: Mixtral(size, vocabulary, sequence).to(dtype), vocabulary, (sequence,), sequence, adamw)
    return replace(built, attention="sdpa")


mixtral_8x7b = partial(recipe, EIGHT_BY_SEVEN)
