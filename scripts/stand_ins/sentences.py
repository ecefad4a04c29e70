"""Stand-ins for SNLI and GLUE: pairs of sentences of real lengths, padded, whose relation can be learned.

A premise is words of its topic, by Zipf's law. A hypothesis that follows from it repeats its words; one that contradicts it does so
with a negating word; a neutral one brings words of another topic and, often, a modifier. (The published pairs carry such telltale
words too: S. Gururangan et al.: Annotation Artifacts in Natural Language Inference Data. NAACL 2018.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stand_ins.randomness import integers, lengths, normal, numbered, uniform, zipf
from trainyard.errors import BadInput

ENTAILMENT, CONTRADICTION, NEUTRAL = 0, 1, 2
NEGATIONS = MODIFIERS = 16
COMMON = 64  # words of every topic
TOPICS = 24
COMMON_SHARE = 0.35
MODIFIED_SHARE = 0.7
IGNORED = -100
CLS, SEP, MASK, FIRST_WORD = 101, 102, 103, 1000  # BERT's released English vocabulary
MASKED_SHARE = 0.15  # Devlin et al., Sec. 3.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Mean and spread of the words of a sentence."""

    mean: float
    spread: float


# fmt: off
SNLI_PREMISE    = Lengths(mean=14.1, spread=6.0)   # Bowman et al., Sec. 2.2: mean 14.1; assumed: spread
SNLI_HYPOTHESIS = Lengths(mean=8.3,  spread=3.2)   # Bowman et al., Sec. 2.2: mean 8.3; assumed: spread
MNLI_PREMISE    = Lengths(mean=25.0, spread=14.0)  # assumed: about 20 words of MNLI in word pieces
MNLI_HYPOTHESIS = Lengths(mean=12.5, spread=4.5)   # assumed: about 10 words in word pieces
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """(premise [n, words], hypothesis [n, words], relation [n] of 3); word 0 is padding."""

    samples: int
    premise_words: int = 38
    hypothesis_words: int = 21
    vocabulary: int = 37_027
    premise: Lengths = SNLI_PREMISE
    hypothesis: Lengths = SNLI_HYPOTHESIS
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        if self.vocabulary < 1 + NEGATIONS + MODIFIERS + COMMON + 2 * TOPICS:
            raise BadInput(f"a vocabulary of {self.vocabulary} words is too small for {TOPICS} topics: give at least 200")

    @property
    def name(self) -> str:
        return "stand-in: sentence pairs with a relation, for SNLI"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        samples = numbered(indices, self.device)
        topic, kind, other, telling, telltale = uniform(self.seed, 401, samples, 5).unbind(1)
        relation = integers(kind, 3)
        topic_number = integers(topic, TOPICS)
        long, short = normal(self.seed, 402, samples, 2).unbind(1)
        premise_length = lengths(long, self.premise.mean, self.premise.spread, 4, self.premise_words)
        length = lengths(short, self.hypothesis.mean, self.hypothesis.spread, 3, self.hypothesis_words)
        premise = self._words(403, samples, topic_number, self.premise_words)
        foreign = self._words(404, samples, (topic_number + 1 + integers(other, TOPICS - 1)) % TOPICS, self.hypothesis_words)
        positions = uniform(self.seed, 405, samples, self.hypothesis_words)
        copied = premise.gather(1, (positions * premise_length[:, None]).long())
        strange = (relation == NEUTRAL)[:, None] & (uniform(self.seed, 406, samples, self.hypothesis_words) < 0.5)
        hypothesis = torch.where(strange, foreign, copied)
        sign = torch.where(
            relation == CONTRADICTION, 1 + integers(telling, NEGATIONS), 1 + NEGATIONS + integers(telling, MODIFIERS)
        )
        signed = (relation == CONTRADICTION) | ((relation == NEUTRAL) & (telltale < MODIFIED_SHARE))
        hypothesis[:, 1] = torch.where(signed, sign, hypothesis[:, 1])
        return _cut(premise, premise_length), _cut(hypothesis, length), relation

    def _words(self, stream: int, samples: Tensor, topic: Tensor, count: int) -> Tensor:
        """Words of a topic, and common ones between."""
        rank, common = uniform(self.seed, stream, samples, 2 * count).chunk(2, dim=1)
        first = 1 + NEGATIONS + MODIFIERS
        room = (self.vocabulary - first - COMMON) // TOPICS
        topical = first + COMMON + topic[:, None] * room + zipf(rank, room)
        return torch.where(common < COMMON_SHARE, first + zipf(rank, COMMON), topical)


def _cut(words: Tensor, length: Tensor) -> Tensor:
    return torch.where(torch.arange(words.shape[1], device=words.device) < length[:, None], words, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedPairs:
    """Pairs for BERT's two tasks, padded to `sequence` tokens.

    (tokens, segments, masked places, real tokens, masked words or -100, whether the second sentence follows from the first).
    """

    samples: int
    sequence: int = 128
    vocabulary: int = 30_522
    seed: int = 0
    device: str | None = None

    @property
    def name(self) -> str:
        return f"stand-in: sentence pairs padded to {self.sequence} tokens, for GLUE"

    @property
    def stand_in(self) -> bool:
        return True

    def take(self, indices: np.ndarray) -> tuple[Tensor, ...]:
        samples = numbered(indices, self.device)
        half = (self.sequence - 3) // 2
        pairs = Sentences(
            samples=self.samples, premise_words=self.sequence - 3 - half, hypothesis_words=half, premise=MNLI_PREMISE,
            hypothesis=MNLI_HYPOTHESIS, vocabulary=self.vocabulary - FIRST_WORD, seed=self.seed, device=self.device,
        )  # fmt: skip
        premise, hypothesis, relation = pairs.take(indices)
        first, second = (premise > 0).sum(1, keepdim=True), (hypothesis > 0).sum(1, keepdim=True)
        position = torch.arange(self.sequence, device=samples.device).expand(len(samples), -1)
        tokens = torch.full_like(position, SEP)
        inside = (position >= 1) & (position <= first)
        tokens = torch.where(inside, FIRST_WORD + premise.gather(1, (position - 1).clamp(0, premise.shape[1] - 1)), tokens)
        begin = first + 2
        later = (position >= begin) & (position < begin + second)
        second_words = FIRST_WORD + hypothesis.gather(1, (position - begin).clamp(0, hypothesis.shape[1] - 1))
        tokens = torch.where(later, second_words, tokens)
        tokens = torch.where(position == 0, CLS, tokens)
        real = position <= begin + second
        masked, words, hidden = self._masked(samples, tokens, inside | later)
        tokens = torch.where(real, torch.where(hidden, MASK, tokens), 0)
        segments = ((position >= begin) & real).long()
        return tokens, segments, masked, real, words, (relation == ENTAILMENT).long()

    def _masked(self, samples: Tensor, tokens: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which places are hidden, the words there, and the same as a table; an unused place points at token 0 and has no word."""
        slots = -int(-MASKED_SHARE * self.sequence // 1)
        count = (words.sum(1) * MASKED_SHARE).round().long().clamp(1, slots)
        score = torch.where(words, uniform(self.seed, 407, samples, self.sequence), -1.0)
        best = score.topk(slots, dim=1).indices
        used = torch.arange(slots, device=tokens.device) < count[:, None]
        targets = torch.where(used, tokens.gather(1, best), IGNORED)
        hidden = torch.zeros_like(words).scatter(1, best, used)
        return torch.where(used, best, 0), targets, hidden
