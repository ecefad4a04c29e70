"""SNLI. S. R. Bowman, G. Angeli, C. Potts, C. D. Manning: A Large Annotated Corpus for Learning Natural Language Inference. 2015.

snli_1.0_train.jsonl (an object a line) or snli_1.0_train.txt (tab-separated with a header), also inside snli_1.0.zip. Pairs without
a gold label ("-") are left out, as the corpus says. Word 0 is padding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.workloads.datasets.reading import columns, lines
from trainyard.workloads.datasets.words import Vocabulary, padded, split

Whole = npt.NDArray[np.int64]
LABELS = ("entailment", "contradiction", "neutral")
WITHOUT = "-"
FIELDS = ("gold_label", "sentence1", "sentence2")


@dataclass(frozen=True)
class Snli:
    """(premise [n, words], hypothesis [n, words], label [n]). `inside` names the file of a .zip; the vocabulary is this file's."""

    file: Path
    inside: str = "snli_1.0_train.jsonl"
    premise_words: int = 38
    hypothesis_words: int = 21
    vocabulary: Vocabulary | int = 37_027
    stand_in: bool = field(default=False, init=False)
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = field(init=False, repr=False)
    labels: Whole = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = [(LABELS.index(label), split(first), split(second)) for label, first, second in self._rows()]
        if not rows:
            raise BadInput(f"{self.file} has no pair with a gold label")
        if isinstance(self.vocabulary, int):
            built = Vocabulary.built((words for _, *texts in rows for words in texts), self.vocabulary)
            object.__setattr__(self, "vocabulary", built)
        assert isinstance(self.vocabulary, Vocabulary)
        encoded = self.vocabulary.encoded
        object.__setattr__(self, "pairs", tuple((tuple(encoded(first)), tuple(encoded(second))) for _, first, second in rows))
        object.__setattr__(self, "labels", np.array([label for label, _, _ in rows], dtype=np.int64))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        path = Path(self.file)
        kind = Path(self.inside).suffix if path.suffix == ".zip" else path.suffix
        if kind not in (".jsonl", ".txt"):
            raise BadInput(f"SNLI: {path} is neither .jsonl nor .txt nor a .zip of them")
        for number, label, first, second in (_objects if kind == ".jsonl" else _table)(path, self.inside):
            if label == WITHOUT:
                continue
            if label not in LABELS:
                raise BadInput(f"{path}, line {number}: label {label!r} is none of {', '.join((*LABELS, WITHOUT))}")
            yield label, first, second

    @property
    def name(self) -> str:
        return f"SNLI, {self.premise_words} and {self.hypothesis_words} words"

    @property
    def samples(self) -> int:
        return len(self.pairs)

    def take(self, indices: Whole) -> tuple[Whole, Whole, Whole]:
        chosen = [self.pairs[index] for index in indices]
        premise = padded([first for first, _ in chosen], self.premise_words)
        return premise, padded([second for _, second in chosen], self.hypothesis_words), self.labels[indices]


Rows = Iterator[tuple[int, str, str, str]]


def _objects(path: Path, inside: str) -> Rows:
    for number, line in lines(path, inside):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            label, first, second = (str(row[key]) for key in FIELDS)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise BadInput(f"{path}, line {number}: no object with {', '.join(FIELDS)} ({type(error).__name__}: {error})") from None
        yield number, label, first, second


def _table(path: Path, inside: str) -> Rows:
    places: list[int] = []
    for number, fields in columns(path, inside):
        if not places:
            missing = [name for name in FIELDS if name not in fields]
            if missing:
                raise BadInput(f"{path}, line 1: no column {missing[0]!r} (it has {', '.join(fields)})")
            places = [fields.index(name) for name in FIELDS]
            continue
        label, first, second = (fields[place] for place in places)
        yield number, label, first, second
