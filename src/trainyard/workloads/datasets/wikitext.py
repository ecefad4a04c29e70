"""WikiText-2. S. Merity, C. Xiong, J. Bradbury, R. Socher: Pointer Sentinel Mixture Models. ICLR 2017.

wiki.train.tokens (words separated by spaces, <unk> among them), plain or inside wikitext-2-v1.zip; valid and test likewise. The end
of a line is the word <eos>. The words of the training file are the vocabulary. The text is cut into sequences one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.reading import lines

Whole = npt.NDArray[np.int64]
SPLITS = ("train", "valid", "test")
LINE_END, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True)
class WikiText:
    """(words [n, sequence], next words [n, sequence]). `root` is the folder of the token files, or the .zip."""

    root: Path
    split: str = "train"
    sequence: int = 70
    stand_in: bool = field(default=False, init=False)
    vocabulary: tuple[str, ...] = field(init=False, repr=False)
    text: Whole = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UnknownName("split of WikiText", self.split, SPLITS)
        numbers: dict[str, int] = {}
        for word in _words(Path(self.root), "train"):
            numbers.setdefault(word, len(numbers))
        found = [numbers.get(word, numbers.get(UNKNOWN, -1)) for word in _words(Path(self.root), self.split)]
        if -1 in found:
            raise BadInput(
                f"{self.root}: wiki.{self.split}.tokens has words that wiki.train.tokens has not, and no {UNKNOWN} there"
            )
        if len(found) <= self.sequence:
            raise BadInput(
                f"{self.root}: wiki.{self.split}.tokens has {len(found)} words, too few for a sequence of {self.sequence}"
            )
        object.__setattr__(self, "vocabulary", tuple(numbers))
        object.__setattr__(self, "text", np.array(found, dtype=np.int64))

    @property
    def name(self) -> str:
        return f"WikiText-2 {self.split}, sequences of {self.sequence} words"

    @property
    def samples(self) -> int:
        return (len(self.text) - 1) // self.sequence

    def take(self, indices: Whole) -> tuple[Whole, Whole]:
        places = np.asarray(indices)[:, None] * self.sequence + np.arange(self.sequence)
        return self.text[places], self.text[places + 1]


def _words(root: Path, split: str) -> list[str]:
    name = f"wiki.{split}.tokens"
    path = root if root.suffix == ".zip" else root / name
    return [word for _, line in lines(path, name) for word in (*line.split(), LINE_END)]
