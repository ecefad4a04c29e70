"""S2VT. S. Venugopalan et al.: Sequence to Sequence - Video to Text. ICCV 2015; end to end, as MC-DLA's Sec. V-E asks.

The paper takes VGG-16's lower layers as they are; here every frame's convolutions train, which takes more than 16 GB at
the default batch, the reason MC-DLA gives why practitioners freeze, shorten or crop. Two LSTMs of 1000 units, frames
and words embedded in 500 dimensions, 80 time steps (Sec. 3 and 4), split here into 60 frames and 20 words. While frames
are read the words are padding, while words are written the frames are padding. The vocabulary of 12 594 words, about
that of its MSVD corpus, is ours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.language.show_and_tell import caption_loss
from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import he_initialised, sgd
from trainyard.workloads.zoo.vision.vgg import CONFIGURATION_D, convolutions

FRAMES = 60
WORDS = 20
UNITS = 1000
EMBEDDING = 500
VOCABULARY = 12_594


class FrameEncoder(nn.Module):
    """VGG-16 up to fc7."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.features = convolutions(CONFIGURATION_D)
        self.classifier = nn.Sequential(
            nn.Linear(512 * (size // 32) ** 2, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
        )

    def forward(self, frames: Tensor) -> Tensor:
        features: Tensor = self.classifier(self.features(frames).flatten(1))
        return features


class VideoCaptioner(nn.Module):
    """Frames [batch, frame, 3, height, width] and words [batch, word] to scores [batch, word, vocabulary]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = he_initialised(FrameEncoder(size))
        self.frame_embedding = nn.Linear(4096, EMBEDDING)
        self.word_embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.video_lstm = nn.LSTM(EMBEDDING, UNITS, batch_first=True)
        self.text_lstm = nn.LSTM(UNITS + EMBEDDING, UNITS, batch_first=True)
        self.vocabulary = nn.Linear(UNITS, VOCABULARY)

    def forward(self, frames: Tensor, words: Tensor) -> Tensor:
        length, sentence = frames.shape[1], words.shape[1]
        frame_features = torch.unflatten(self.frame_embedding(self.encoder(frames.flatten(0, 1))), 0, (-1, length))
        video, _ = self.video_lstm(functional.pad(frame_features, (0, 0, 0, sentence)))
        word_features = functional.pad(self.word_embedding(words), (0, 0, length, 0))
        text, _ = self.text_lstm(torch.cat([video, word_features], dim=2))
        scores: Tensor = self.vocabulary(text[:, length:])
        return scores


def video_captioning(frames: int = FRAMES, size: int = 224) -> Recipe:
    return Recipe(
        model=lambda: VideoCaptioner(size),
        inputs=lambda batch: (torch.randn(batch, frames, 3, size, size), torch.randint(0, VOCABULARY, (batch, WORDS))),
        targets=lambda batch: (torch.randint(0, VOCABULARY, (batch, WORDS)),),
        loss=caption_loss,
        optimizer=sgd,
    )
