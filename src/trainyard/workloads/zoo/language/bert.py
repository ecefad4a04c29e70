"""BERT. J. Devlin, M.-W. Chang, K. Lee, K. Toutanova: BERT: Pre-training of Deep Bidirectional Transformers. NAACL 2019.

Small sizes: I. Turc et al.: Well-Read Students Learn Better. 2019 (BERT-tiny); X. Jiao et al.: TinyBERT. EMNLP 2020.

Decided here:
- The step is pre-training: masked-word head with the output matrix tied to the word embeddings, next-sentence head on the
  pooler. Of the printed sizes, 110 M and 14.5 M are met with these heads; 340 M is a rounding up of 336 M.
- Sequences of 128 tokens (90 % of the paper's steps, Appendix A.2); 15 % of the positions are predicted, rounded up (20).
- WordPiece vocabulary of 30,522 (the released English uncased models).
- Sequences are full; `attention_mask` (True where a token is real) is there for training on padded text.
- Distillation, by which TinyBERT is trained, is left out: only the student's own step is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adamw, token_batch, token_cross_entropy
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 30_522  # released English uncased models
POSITIONS = 512  # Sec. A.2
MASKED_SHARE = 0.15  # Sec. 3.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One row of the papers' size tables."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    dropout: float = 0.1


# fmt: off
TINY    = Size(layers=2,  width=128,  heads=2,  feed_forward=512)   # Turc et al.: 2 layers of width 128
TINY_4  = Size(layers=4,  width=312,  heads=12, feed_forward=1200)  # Jiao et al., Sec. 4.2
BASE    = Size(layers=12, width=768,  heads=12, feed_forward=3072)  # Devlin et al., Sec. 3
LARGE   = Size(layers=24, width=1024, heads=16, feed_forward=4096)  # Devlin et al., Sec. 3
# fmt: on


class Embeddings(nn.Module):
    """Word + position + segment."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, size.width)
        self.position_embeddings = nn.Embedding(POSITIONS, size.width)
        self.token_type_embeddings = nn.Embedding(2, size.width)
        self.LayerNorm = nn.LayerNorm(size.width, eps=1e-12)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        embedded = self.LayerNorm(embedded + self.position_embeddings(positions))
        dropped: Tensor = self.dropout(embedded)
        return dropped


class SelfAttention(nn.Module):
    """Heads side by side, no mask between tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = size.dropout
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = (
            projection(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.query, self.key, self.value)
        )
        mask = None if attention_mask is None else attention_mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return context.transpose(1, 2).flatten(2)


class ResidualOutput(nn.Module):
    """What closes both halves of a layer: dense, dropout, add, normalise."""

    def __init__(self, inputs: int, size: Size) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, size.width)
        self.LayerNorm = nn.LayerNorm(size.width, eps=1e-12)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        normalised: Tensor = self.LayerNorm(self.dropout(self.dense(hidden)) + residual)
        return normalised


class Layer(nn.Module):
    """One encoder layer; the paths are those of the released checkpoints (`attention.self.query`)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(size), "output": ResidualOutput(size.width, size)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size.width, size.feed_forward)})
        self.output = ResidualOutput(size.feed_forward, size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        attended = self.attention["output"](self.attention["self"](hidden, attention_mask), hidden)
        widened = F.gelu(self.intermediate["dense"](attended))
        closed: Tensor = self.output(widened, attended)
        return closed


class Bert(nn.Module):
    """The encoder and its pooler."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(size) for _ in range(size.layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(size.width, size.width)})

    def forward(self, tokens: Tensor, segments: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.embeddings(tokens, segments)
        for layer in self.encoder["layer"].children():
            hidden = layer(hidden, attention_mask)
        return hidden, torch.tanh(self.pooler["dense"](hidden[:, 0]))


class Transform(nn.Module):
    """The masked-word head's own layer, before the vocabulary."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.dense = nn.Linear(size.width, size.width)
        self.LayerNorm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.LayerNorm(F.gelu(self.dense(hidden)))
        return normalised


class BertForPreTraining(nn.Module):
    """Returns the logits of the masked words (batch, masked, vocabulary) and of the next sentence (batch, 2)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bert = Bert(size)
        decoder = nn.Linear(size.width, VOCABULARY)
        decoder.weight = self.bert.embeddings.word_embeddings.weight
        self.cls = nn.ModuleDict(
            {
                "predictions": nn.ModuleDict({"transform": Transform(size), "decoder": decoder}),
                "seq_relationship": nn.Linear(size.width, 2),
            }
        )

    def forward(
        self, tokens: Tensor, segments: Tensor, masked: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        hidden, pooled = self.bert(tokens, segments, attention_mask)
        chosen = hidden.gather(1, masked[:, :, None].expand(-1, -1, hidden.shape[-1]))
        predictions = self.cls.get_submodule("predictions")
        words = predictions.get_submodule("decoder")(predictions.get_submodule("transform")(chosen))
        return words, self.cls["seq_relationship"](pooled)


def pretraining_loss(output: tuple[Tensor, Tensor], words: Tensor, is_next: Tensor) -> Tensor:
    """Masked-word and next-sentence likelihood, added (Sec. A.2)."""
    return token_cross_entropy(output[0], words) + F.cross_entropy(output[1], is_next)


def recipe(size: Size, *, sequence: int = 128) -> Recipe:
    masked = math.ceil(MASKED_SHARE * sequence)
    return Recipe(
        model=lambda: BertForPreTraining(size),
        inputs=lambda batch: (
            token_batch(batch, sequence, VOCABULARY),
            token_batch(batch, sequence, 2),
            token_batch(batch, masked, sequence),
        ),
        targets=lambda batch: (token_batch(batch, masked, VOCABULARY), torch.randint(2, (batch,))),
        loss=pretraining_loss,
        optimizer=adamw,
    )


bert_tiny = partial(recipe, TINY)
tinybert_4 = partial(recipe, TINY_4)
bert_base = partial(recipe, BASE)
bert_large = partial(recipe, LARGE)
