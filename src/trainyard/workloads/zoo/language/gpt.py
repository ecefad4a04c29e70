"""GPT-2. A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever: Language Models are Unsupervised Multitask Learners. 2019.

Decided here:
- 124 M is what the smallest model counts with the output matrix tied to the word embeddings; the paper's Table 2 prints
  117 M, which its authors later corrected to 124 M in the released code's notes.
- Sequences of 1024 tokens, the model's whole context.
- `gpt_26b` is the same architecture in 32 layers of width 8192, 64 heads of 128, without dropout: the size that the
  capture benchmark builds, on the meta device only. It is no published model.
- Attention is the fused kernel that torch takes on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adamw, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 50_257  # Sec. 2.2
CONTEXT = 1024  # Sec. 2.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What tells one GPT from another."""

    layers: int
    width: int
    heads: int
    dropout: float = 0.1


# fmt: off
SMALL         = Size(layers=12, width=768,  heads=12)               # Table 2, first row
TWENTY_SIX_B  = Size(layers=32, width=8192, heads=64, dropout=0.0)  # assumed: 12 x layers x width^2 is about 26 B
# fmt: on


class Attention(nn.Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = size.dropout
        self.c_attn = nn.Linear(size.width, 3 * size.width)
        self.c_proj = nn.Linear(size.width, size.width)
        self.resid_dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(hidden).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.resid_dropout(self.c_proj(context.transpose(1, 2).flatten(2)))
        return projected


class FeedForward(nn.Module):
    """Four times as wide inside."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.c_fc = nn.Linear(size.width, 4 * size.width)
        self.c_proj = nn.Linear(4 * size.width, size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        narrowed: Tensor = self.dropout(self.c_proj(F.gelu(self.c_fc(hidden), approximate="tanh")))
        return narrowed


class Block(nn.Module):
    """Attention and MLP, each with a normalisation before it (Sec. 2.3)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width)
        self.attn = Attention(size)
        self.ln_2 = nn.LayerNorm(size.width)
        self.mlp = FeedForward(size)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden))
        closed: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return closed


class Transformer(nn.Module):
    """The decoder stack."""

    def __init__(self, size: Size, vocabulary: int, context: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, size.width)
        self.wpe = nn.Embedding(context, size.width)
        self.drop = nn.Dropout(size.dropout)
        self.h = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            hidden = block(hidden)
        normalised: Tensor = self.ln_f(hidden)
        return normalised


class Gpt(nn.Module):
    """The stack and its tied output matrix; returns logits (batch, sequence, vocabulary)."""

    def __init__(self, size: Size, vocabulary: int = VOCABULARY, context: int = CONTEXT) -> None:
        super().__init__()
        self.transformer = Transformer(size, vocabulary, context)
        self.lm_head = nn.Linear(size.width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.transformer(tokens))
        return logits


def recipe(size: Size, *, vocabulary: int = VOCABULARY, sequence: int = CONTEXT) -> Recipe:
    built = token_recipe(lambda: Gpt(size, vocabulary, sequence), vocabulary, (sequence,), sequence, adamw)
    return replace(built, attention="sdpa")


gpt2_small = partial(recipe, SMALL)
gpt_26b = partial(recipe, TWENTY_SIX_B)
