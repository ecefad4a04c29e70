"""Show and Tell. O. Vinyals, A. Toshev, S. Bengio, D. Erhan: Show and Tell: A Neural Image Caption Generator. CVPR 2015.

The encoder is this zoo's GoogLeNet trunk (the 2016 journal version uses a later Inception). Embeddings and the LSTM
have 512 units (Sec. 4.3.1); dropout, the vocabulary of 12 000 words and captions of 20 words are ours: the paper keeps
words seen five times and does not print how many. All weights train, as in the paper's final fine-tuning.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.googlenet import FEATURES, InceptionTrunk
from trainyard.workloads.zoo.vision.imagenet import he_initialised, images, sgd

UNITS = 512
VOCABULARY = 12_000
WORDS = 20


class ShowAndTell(nn.Module):
    """The image is the LSTM's first input, the words follow (Eq. 10-12). Returns [batch, word, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = he_initialised(InceptionTrunk())
        self.image_embedding = nn.Linear(FEATURES, UNITS)
        self.word_embedding = nn.Embedding(VOCABULARY, UNITS)
        self.lstm = nn.LSTM(UNITS, UNITS, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.vocabulary = nn.Linear(UNITS, VOCABULARY)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        picture = self.image_embedding(self.encoder(images))
        sequence = torch.cat([picture.unsqueeze(1), self.word_embedding(words)], dim=1)
        hidden, _ = self.lstm(sequence)
        scores: Tensor = self.vocabulary(self.dropout(hidden[:, 1:]))
        return scores


def caption_loss(scores: Tensor, words: Tensor) -> Tensor:
    """Cross entropy of the next word, averaged over all words (Eq. 13)."""
    return functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def show_and_tell(size: int = 224) -> Recipe:
    return Recipe(
        model=ShowAndTell,
        inputs=lambda batch: (images(batch, size, size), torch.randint(0, VOCABULARY, (batch, WORDS))),
        targets=lambda batch: (torch.randint(0, VOCABULARY, (batch, WORDS)),),
        loss=caption_loss,
        optimizer=sgd,
    )
