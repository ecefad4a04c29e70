"""SNLI classifier. S. R. Bowman, G. Angeli, C. Potts, C. D. Manning: A Large Annotated Corpus for Learning Natural Language
Inference. EMNLP 2015. M. Mahmoud et al.: TensorDash. MICRO 2020, Sec. IV-A: two projections, two LSTMs, four classifier layers.

Decided here:
- Widths of the well-known PyTorch example of this classifier, which has the ReLUs that TensorDash sees: GloVe vectors of 100,
  projection to 300, bidirectional LSTM of 300, classifier of three layers of 1200 and one of three classes.
- A projection and an encoder for each sentence, as TensorDash counts them; the example calls one of each twice.
- 38 premise and 21 hypothesis words: the corpus means (14.1 and 8.3) padded so that 63 % and 60 % of the projections' inputs
  are zero, which is what TensorDash measured there.
- Word vectors are frozen, word 0 is padding and is all zero. 37,026 words (Bowman et al., ignoring case) and the padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam, token_batch
from trainyard.workloads.zoo.recipe import Recipe

VOCABULARY = 37_027  # Bowman et al., Sec. 2.3: 37,026 words; and padding
EMBEDDING = 100  # PyTorch example: glove.6B.100d
WIDTH = 300  # PyTorch example: projection and hidden
DROPOUT = 0.2  # PyTorch example
PREMISE_WORDS = 38  # assumed: 14.1 / (1 - 0.63)
HYPOTHESIS_WORDS = 21  # assumed: 8.3 / (1 - 0.60)
CLASSES = 3  # entailment, contradiction, neutral


class SentenceEncoder(nn.Module):
    """Projection, then the last state of an LSTM in both directions: (batch, 2 x width)."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(EMBEDDING, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    def forward(self, embedded: Tensor) -> Tensor:
        _, (last, _) = self.rnn(self.projection(embedded).relu())
        return torch.cat([last[0], last[1]], dim=-1)


class SnliClassifier(nn.Module):
    """Takes premise and hypothesis words, returns logits (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, EMBEDDING, padding_idx=0)
        self.embed.weight.requires_grad_(False)
        self.premise = SentenceEncoder()
        self.hypothesis = SentenceEncoder()
        joined = 4 * WIDTH
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(joined, joined), nn.ReLU(), nn.Dropout(DROPOUT)]
        self.out = nn.Sequential(*layers, nn.Linear(joined, CLASSES))

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        sentences = [self.premise(self.embed(premise)), self.hypothesis(self.embed(hypothesis))]
        logits: Tensor = self.out(torch.cat(sentences, dim=-1))
        return logits


def snli(*, premise_words: int = PREMISE_WORDS, hypothesis_words: int = HYPOTHESIS_WORDS) -> Recipe:
    return Recipe(
        model=SnliClassifier,
        inputs=lambda batch: (
            token_batch(batch, premise_words, VOCABULARY),
            token_batch(batch, hypothesis_words, VOCABULARY),
        ),
        targets=lambda batch: (torch.randint(CLASSES, (batch,)),),
        loss=F.cross_entropy,
        optimizer=adam,
    )
