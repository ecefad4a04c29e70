"""Stand-in for COCO's captions: a sentence that names palette, texture and shape of the one object of a picture.

Each of these is said by one of several words, frequent and rare; small words stand between, so that captions differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.pictures import CLASSES, KINDS, Pictures, factors
from stand_ins.randomness import integers, lengths, normal, numbered, uniform, zipf

PADDING, BEGIN, END = 0, 1, 2
SMALL_WORDS = 50  # numbers 3 to 52
SYNONYMS = 40
MEAN_WORDS, SPREAD_WORDS = 10.5, 2.4  # X. Chen et al.: Microsoft COCO Captions, 2015, ask for at least 8 words; assumed: the mean
IGNORED = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """(images, words [n, words], next words [n, words]); padding is word 0 and no target."""

    samples: int
    size: int = 224
    words: int = 20
    vocabulary: int = 12_000
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: pictures and their captions, {self.size} x {self.size}, for COCO captions"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        samples = numbered(indices, self.device)
        labels = integers(uniform(self.seed, 1, samples, 1)[:, 0], CLASSES)
        pictures = Pictures(samples=self.samples, size=self.size, seed=self.seed, device=self.device)
        caption = self._caption(samples, labels)
        words, following = caption[:, :-1], caption[:, 1:]
        return pictures.drawn(samples, labels), words, torch.where(following == PADDING, IGNORED, following)

    def _caption(self, samples: Tensor, labels: Tensor) -> Tensor:
        """[n, words + 1]: begin, caption, end, padding."""
        chosen = uniform(self.seed, 302, samples, 3)
        small = 3 + zipf(uniform(self.seed, 303, samples, self.words + 1), SMALL_WORDS)
        concepts = torch.stack(factors(labels), dim=1) + KINDS * torch.arange(3, device=samples.device)
        room = (self.vocabulary - 3 - SMALL_WORDS) // (3 * KINDS)
        naming = 3 + SMALL_WORDS + concepts * room + zipf(chosen, min(SYNONYMS, room))
        length = lengths(normal(self.seed, 301, samples, 1)[:, 0], MEAN_WORDS, SPREAD_WORDS, 6, self.words - 1)
        caption = small.clone()
        caption[:, 0] = BEGIN
        for order, at in enumerate((2, 3, 5)):  # "a red striped thing-like star ..."
            caption[:, at] = naming[:, order]
        position = torch.arange(self.words + 1, device=samples.device)
        caption = torch.where(position > length[:, None], PADDING, caption)
        return torch.where(position == length[:, None] + 1, END, caption)
