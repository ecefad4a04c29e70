"""Words: the simple tokenizer of the text loaders. Small letters; runs of letters and digits are words, every other sign is one.

The vocabulary is built from the training file: most frequent first, equal ones in alphabetical order, after the special words. What
it does not hold is the unknown word. (BERT's own word pieces need its published vocabulary; a sentence has more pieces than words.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

PADDING, UNKNOWN, BEGIN, END, SEPARATOR = "<pad>", "<unk>", "<begin>", "<end>", "<sep>"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END, SEPARATOR)
_WORD = re.compile(r"\w+|[^\w\s]")


def split(text: str) -> list[str]:
    """
    >>> split("A man's hat, 2 of them.")
    ['a', 'man', "'", 's', 'hat', ',', '2', 'of', 'them', '.']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Words by number; 0 is padding, 1 the unknown word."""

    words: tuple[str, ...]
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {word: number for number, word in enumerate(self.words)})

    @classmethod
    def built(cls, sentences: Iterable[Sequence[str]], size: int | None = None) -> Vocabulary:
        """From sentences of words; `size` counts the special words too.

        >>> Vocabulary.built([["b", "a", "b"], ["c", "a"]], size=7).words[5:]
        ('a', 'b')
        """
        if size is not None and size <= len(SPECIAL):
            raise BadInput(f"a vocabulary of {size} has no room beside its {len(SPECIAL)} special words")
        counts = Counter(word for sentence in sentences for word in sentence)
        ordered = sorted((word for word in counts if word not in SPECIAL), key=lambda word: (-counts[word], word))
        return cls((*SPECIAL, *ordered)[:size])

    def __len__(self) -> int:
        return len(self.words)

    def encoded(self, sentence: Iterable[str]) -> list[int]:
        unknown = self.numbers[UNKNOWN]
        return [self.numbers.get(word, unknown) for word in sentence]


def padded(rows: Sequence[Sequence[int]], length: int) -> npt.NDArray[np.int64]:
    """[row, length]: cut or filled with padding."""
    table = np.zeros((len(rows), length), dtype=np.int64)
    for place, row in enumerate(rows):
        kept = row[:length]
        table[place, : len(kept)] = kept
    return table
