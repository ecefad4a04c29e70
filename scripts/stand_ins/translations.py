"""Stand-in for WMT German-English: every word has one translation, and neighbours change places by a rule that a word decides.

Source words are by Zipf's law, sentences of log-normal length, padded. A third of the words are of a kind that stands behind its
successor in the target language, so that a model has to look, not only to list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.randomness import lengths, normal, numbered, uniform, zipf

PADDING, BEGIN, END = 0, 1, 2
WORDS = 3  # the first number of a word
MEAN_WORDS, SPREAD_WORDS = 26.0, 13.0  # assumed: sentences of news in word pieces
MOVED = 3  # every third word changes places with its successor
TURN = 7919  # a word's translation is this many numbers on: the frequent words of one language are not those of the other
IGNORED = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Translations:
    """(source [n, source_words], target [n, target_words], next target words [n, target_words]); word 0 is padding."""

    samples: int
    source_words: int = 50
    target_words: int = 51
    vocabulary: int = 36_548
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: sentences and their translation word by word, {self.vocabulary} words, for WMT German-English"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        samples = numbered(indices, self.device)
        longest = min(self.source_words, self.target_words - 1)
        length = lengths(normal(self.seed, 701, samples, 1)[:, 0], MEAN_WORDS, SPREAD_WORDS, 4, longest)
        words = WORDS + zipf(uniform(self.seed, 702, samples, self.source_words), self.vocabulary - WORDS)
        position = torch.arange(self.source_words, device=samples.device)
        source = torch.where(position < length[:, None], words, PADDING)
        said = torch.full((len(samples), self.target_words + 1), PADDING, device=samples.device)
        said[:, 0] = BEGIN
        said[:, 1 : longest + 1] = self._translated(source, length)[:, :longest]
        said.scatter_(1, length[:, None] + 1, END)
        target, following = said[:, :-1], said[:, 1:]
        return source, target, torch.where(following == PADDING, IGNORED, following)

    def _translated(self, source: Tensor, length: Tensor) -> Tensor:
        """Pairs (0, 1), (2, 3), ... change places where the first is a moved word and both are there."""
        moved = source.clone()
        first, second = source[:, 0:-1:2], source[:, 1::2]
        position = torch.arange(1, source.shape[1], 2, device=source.device)
        swapped = (first % MOVED == 0) & (position < length[:, None])
        moved[:, 0:-1:2] = torch.where(swapped, second, first)
        moved[:, 1::2] = torch.where(swapped, first, second)
        span = self.vocabulary - WORDS
        return torch.where(moved == PADDING, PADDING, (moved - WORDS + TURN) % span + WORDS)
