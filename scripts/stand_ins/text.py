"""Stand-in for WikiText: more often than not a word is one of the few that its predecessor prefers; else it is by Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.randomness import integers, numbered, uniform, zipf

SUCCESSORS = 4
BOUND_SHARE = 0.6  # of the words that their predecessor decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """(words [n, sequence], next words [n, sequence])."""

    samples: int
    sequence: int = 70
    vocabulary: int = 33_278  # WikiText-2
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: text of a Markov chain over {self.vocabulary} words, for WikiText-2"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        samples = numbered(indices, self.device)
        bound, free, choice = uniform(self.seed, 601, samples, 3 * (self.sequence + 1)).chunk(3, dim=1)
        words = [zipf(free[:, 0], self.vocabulary)]
        for at in range(1, self.sequence + 1):
            edge = words[-1] * SUCCESSORS + integers(choice[:, at], SUCCESSORS)
            preferred = zipf(uniform(self.seed, 602, edge, 1)[:, 0], self.vocabulary)
            words.append(torch.where(bound[:, at] < BOUND_SHARE, preferred, zipf(free[:, at], self.vocabulary)))
        chain = torch.stack(words, dim=1)
        return chain[:, :-1], chain[:, 1:]
