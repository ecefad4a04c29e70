"""GNMT. Y. Wu et al.: Google's Neural Machine Translation System: Bridging the Gap between Human and Machine Translation. 2016.

Decided here, as E. Qin et al. (SIGMA, HPCA 2020, Sec. II) say only "8-layer", about 210 M parameters, WMT German-English:
- Eight layers are four of the encoder and four of the decoder, width 1024: with the vocabulary of SIGMA's suite
  (1632-36548-1024) that gives 210.9 M. Eight and eight would give 295 M.
- 1632 = 32 sentences of 51 target steps (50 words and the end mark); sources have 50 words. Hence batch 32.
- As in the paper: the first encoder layer reads both ways, residual connections begin at the third layer of each side,
  additive attention is asked by the bottom decoder layer's last output, its context goes to every decoder layer (Fig. 1, Sec. 3).
  So the bottom decoder layer is a cell stepped together with the attention; all other layers are whole-sequence LSTMs.
- Source and target have tables of their own; the output matrix has no bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam, token_recipe
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 36_548  # SIGMA, suite: 1632-36548-1024
WIDTH = 1024  # Wu et al.: 1024 nodes in every layer
LAYERS = 4  # assumed: of each side, see above
SOURCE_TOKENS = 50  # assumed: customary cut of WMT sentences
TARGET_TOKENS = 51  # SIGMA, suite: 1632 = 32 x 51
DROPOUT = 0.2  # Wu et al., training on WMT


class Encoder(nn.Module):
    """One bidirectional layer, then unidirectional ones."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedder = nn.Embedding(vocabulary, width)
        self.rnn_layers = nn.ModuleList([nn.LSTM(width, width, batch_first=True, bidirectional=True)])
        self.rnn_layers.append(nn.LSTM(2 * width, width, batch_first=True))
        self.rnn_layers.extend(nn.LSTM(width, width, batch_first=True) for _ in range(layers - 2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor) -> Tensor:
        hidden = self.embedder(source)
        for depth, layer in enumerate(self.rnn_layers):
            output, _ = layer(self.dropout(hidden))
            hidden = output + hidden if depth >= 2 else output
        encoded: Tensor = hidden
        return encoded


class AdditiveAttention(nn.Module):
    """Score of each source position: v . tanh(W_q query + W_k key) (Eq. 4 names it a feed-forward network)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_q = nn.Linear(width, width, bias=False)
        self.linear_k = nn.Linear(width, width, bias=False)
        self.linear_att = nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """Context (batch, width); `keys` is `linear_k(memory)`, the same at every step."""
        scores = self.linear_att(torch.tanh(self.linear_q(query)[:, None] + keys))
        context: Tensor = (scores.softmax(1).transpose(1, 2) @ memory).squeeze(1)
        return context


class Decoder(nn.Module):
    """A cell with attention at the bottom, and above it LSTMs that read its output and the attention contexts."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedder = nn.Embedding(vocabulary, width)
        self.attention = AdditiveAttention(width)
        self.bottom = nn.LSTMCell(2 * width, width)
        self.rnn_layers = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.classifier = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        embedded = self.dropout(self.embedder(target))
        keys = self.attention.linear_k(memory)
        output, cell = torch.zeros_like(memory[:, 0]), torch.zeros_like(memory[:, 0])
        outputs, contexts = [], []
        for word in embedded.unbind(1):
            context = self.attention(output, keys, memory)
            output, cell = self.bottom(torch.cat([word, context], dim=-1), (output, cell))
            outputs.append(output)
            contexts.append(context)
        hidden, context = torch.stack(outputs, dim=1), torch.stack(contexts, dim=1)
        for depth, layer in enumerate(self.rnn_layers, start=1):
            output, _ = layer(torch.cat([self.dropout(hidden), context], dim=-1))
            hidden = output + hidden if depth >= 2 else output
        logits: Tensor = self.classifier(hidden)
        return logits


class Gnmt(nn.Module):
    """Takes source and target words, returns logits (batch, target words, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, width, layers)
        self.decoder = Decoder(vocabulary, width, layers)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self.decoder(target, self.encoder(source))
        return logits


def gnmt(
    *,
    vocabulary: int = VOCABULARY,
    width: int = WIDTH,
    layers: int = LAYERS,
    source_tokens: int = SOURCE_TOKENS,
    target_tokens: int = TARGET_TOKENS,
) -> Recipe:
    return token_recipe(lambda: Gnmt(vocabulary, width, layers), vocabulary, (source_tokens, target_tokens), target_tokens, adam)
