"""T5. C. Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR 2020.

Decided here:
- The published model (later named 1.0): ReLU feed-forward, one matrix for both embeddings and the output (Sec. 2.1).
  The printed 60 M counts that matrix once; the printed 770 M counts it twice (737.7 M + 32.9 M).
- 512 encoder tokens (Sec. 3.1.2) and 114 decoder tokens: what span corruption at 15 % and mean span 3 makes of 512.
- Attention is written as product, bias, softmax, product: the relative position bias is learned. Logits are not scaled by the
  head width, as the initialisation absorbs it.
- Buckets of relative positions are a table made when the model is built, not recomputed in every step.
- Trained with AdamW (the paper: AdaFactor), so that the language models of the zoo update alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adamw, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 32_128  # 32,000 pieces, 100 sentinels, padded to a multiple of 128 (released models)
BUCKETS = 32  # Sec. 2.1
FARTHEST = 128  # Sec. 2.1: offset beyond which all positions share a bucket
ENCODER_TOKENS = 512  # Sec. 3.1.2
DECODER_TOKENS = 114  # Sec. 3.3.4: 15 % corrupted, mean span 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One row of the sizes; as many layers in the encoder as in the decoder."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    head_width: int = 64
    dropout: float = 0.1


# fmt: off
SMALL = Size(layers=6,  width=512,  heads=8,  feed_forward=2048)  # Sec. 3.7, "Small"
LARGE = Size(layers=24, width=1024, heads=16, feed_forward=4096)  # Sec. 3.7, "Large"
# fmt: on


def buckets(tokens: int, *, bidirectional: bool) -> Tensor:
    """Bucket of every (query, key) pair: exact for near offsets, logarithmic up to `FARTHEST`, one beyond (Sec. 2.1)."""
    positions = torch.arange(tokens)
    offset = positions[None, :] - positions[:, None]
    count, base = BUCKETS, torch.zeros_like(offset)
    if bidirectional:
        count //= 2
        base = (offset > 0) * count
        offset = offset.abs()
    else:
        offset = (-offset).clamp(min=0)
    exact = count // 2
    scale = (count - exact) / torch.log(torch.tensor(FARTHEST / exact))
    logarithmic = exact + (torch.log(offset.clamp(min=1) / exact) * scale).long()
    return base + torch.where(offset < exact, offset, logarithmic.clamp(max=count - 1))


class RelativeBias(nn.Module):
    """One learned scalar per head and bucket, shared by all layers of a stack."""

    table: Tensor

    def __init__(self, size: Size, tokens: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(BUCKETS, size.heads)
        self.register_buffer("table", buckets(tokens, bidirectional=bidirectional), persistent=False)

    def forward(self, tokens: int) -> Tensor:
        bias: Tensor = self.relative_attention_bias(self.table[:tokens, :tokens])
        return bias.permute(2, 0, 1)[None]


class Attention(nn.Module):
    """No biases in the projections; `bias` carries relative positions and, in the decoder, the causal mask."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner = size.heads * size.head_width
        self.heads = size.heads
        self.q = nn.Linear(size.width, inner, bias=False)
        self.k = nn.Linear(size.width, inner, bias=False)
        self.v = nn.Linear(size.width, inner, bias=False)
        self.o = nn.Linear(inner, size.width, bias=False)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = (
            projection(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection, source in ((self.q, hidden), (self.k, memory), (self.v, memory))
        )
        scores = query @ key.transpose(2, 3)
        if bias is not None:
            scores = scores + bias
        context = self.dropout(scores.softmax(-1)) @ value
        projected: Tensor = self.o(context.transpose(1, 2).flatten(2))
        return projected


class AttentionLayer(nn.Module):
    """Normalise, attend, add. `attention` names the inner module as the released checkpoints do."""

    def __init__(self, size: Size, attention: str) -> None:
        super().__init__()
        self.attention = attention
        self.layer_norm = nn.RMSNorm(size.width, eps=1e-6)
        self.add_module(attention, Attention(size))
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor, memory: Tensor | None, bias: Tensor | None) -> Tensor:
        normalised = self.layer_norm(hidden)
        attended = self.get_submodule(self.attention)(normalised, normalised if memory is None else memory, bias)
        closed: Tensor = hidden + self.dropout(attended)
        return closed


class FeedForwardLayer(nn.Module):
    """Normalise, widen, ReLU, narrow, add."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layer_norm = nn.RMSNorm(size.width, eps=1e-6)
        self.DenseReluDense = nn.ModuleDict(
            {
                "wi": nn.Linear(size.width, size.feed_forward, bias=False),
                "wo": nn.Linear(size.feed_forward, size.width, bias=False),
            }
        )
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        widened = self.DenseReluDense["wi"](self.layer_norm(hidden)).relu()
        closed: Tensor = hidden + self.dropout(self.DenseReluDense["wo"](self.dropout(widened)))
        return closed


class Block(nn.Module):
    """Self-attention, in the decoder attention to the encoder, feed-forward."""

    def __init__(self, size: Size, *, decoder: bool) -> None:
        super().__init__()
        attentions = ("SelfAttention", "EncDecAttention") if decoder else ("SelfAttention",)
        self.layer = nn.ModuleList([AttentionLayer(size, name) for name in attentions])
        self.layer.append(FeedForwardLayer(size))

    def forward(self, hidden: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        hidden = self.layer[0](hidden, None, bias)
        if memory is not None:
            hidden = self.layer[1](hidden, memory, None)
        closed: Tensor = self.layer[-1](hidden)
        return closed


class Stack(nn.Module):
    """Encoder or decoder."""

    def __init__(self, size: Size, tokens: int, *, decoder: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.position = RelativeBias(size, tokens, bidirectional=not decoder)
        self.block = nn.ModuleList(Block(size, decoder=decoder) for _ in range(size.layers))
        self.final_layer_norm = nn.RMSNorm(size.width, eps=1e-6)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, embedded: Tensor, memory: Tensor | None = None) -> Tensor:
        tokens = embedded.shape[1]
        bias = self.position(tokens)
        if self.decoder:
            bias = bias + torch.full((tokens, tokens), float("-inf"), device=embedded.device).triu(1)
        hidden = self.dropout(embedded)
        for block in self.block:
            hidden = block(hidden, memory, bias)
        closed: Tensor = self.dropout(self.final_layer_norm(hidden))
        return closed


class T5(nn.Module):
    """Takes encoder and decoder tokens, returns logits (batch, decoder tokens, vocabulary)."""

    def __init__(self, size: Size, encoder_tokens: int, decoder_tokens: int) -> None:
        super().__init__()
        self.scale = size.width**-0.5
        self.shared = nn.Embedding(VOCABULARY, size.width)
        self.encoder = Stack(size, encoder_tokens, decoder=False)
        self.decoder = Stack(size, decoder_tokens, decoder=True)
        self.lm_head = nn.Linear(size.width, VOCABULARY, bias=False)
        self.lm_head.weight = self.shared.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = self.decoder(self.shared(target), self.encoder(self.shared(source)))
        logits: Tensor = self.lm_head(hidden * self.scale)  # the tied matrix is not scaled down at its other end
        return logits


def recipe(size: Size, *, encoder_tokens: int = ENCODER_TOKENS, decoder_tokens: int = DECODER_TOKENS) -> Recipe:
    model = partial(T5, size, encoder_tokens, decoder_tokens)
    return token_recipe(model, VOCABULARY, (encoder_tokens, decoder_tokens), decoder_tokens, adamw)


t5_small = partial(recipe, SMALL)
t5_large = partial(recipe, LARGE)
