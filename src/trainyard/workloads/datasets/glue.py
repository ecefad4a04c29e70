"""GLUE. A. Wang et al.: GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding. ICLR 2019.

A folder for each task with train.tsv and dev.tsv (of MNLI dev_matched.tsv): tab-separated, no quoting, a header except in CoLA.
Pairs become <begin> first <sep> second <sep>, padded to `sequence` words; the vocabulary is that of train.tsv.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.reading import columns, folder
from trainyard.workloads.datasets.words import BEGIN, SEPARATOR, Vocabulary, padded, split

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """Columns of a task's file and its labels; () for a score. Without a header, columns are given by number."""

    sentences: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...]
    skip_short: bool = False


# fmt: off
TASKS = {
    "CoLA":  Task((3,),                        1,              ("0", "1")),
    "SST-2": Task(("sentence",),               "label",        ("0", "1")),
    "MRPC":  Task(("#1 String", "#2 String"),  "Quality",      ("0", "1")),
    "QQP":   Task(("question1", "question2"),  "is_duplicate", ("0", "1"), skip_short=True),  # a few published lines are broken
    "STS-B": Task(("sentence1", "sentence2"),  "score",        ()),
    "MNLI":  Task(("sentence1", "sentence2"),  "gold_label",   ("entailment", "contradiction", "neutral")),
    "QNLI":  Task(("question", "sentence"),    "label",        ("entailment", "not_entailment")),
    "RTE":   Task(("sentence1", "sentence2"),  "label",        ("entailment", "not_entailment")),
    "WNLI":  Task(("sentence1", "sentence2"),  "label",        ("0", "1")),
}
# fmt: on


@dataclass(frozen=True)
class Glue:
    """(tokens [n, sequence], segments, real tokens as True, labels [n]; of STS-B scores)."""

    root: Path
    task: str
    split: str = "train"
    sequence: int = 128
    vocabulary: Vocabulary | int = 30_522
    stand_in: bool = field(default=False, init=False)
    pairs: tuple[tuple[tuple[int, ...], int], ...] = field(init=False, repr=False)
    labels: npt.NDArray[np.int64 | np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UnknownName("task of GLUE", self.task, TASKS)
        place = folder(Path(self.root), "GLUE")
        place = place / self.task if (place / self.task).is_dir() else place
        if isinstance(self.vocabulary, int):
            sentences = (words for texts, _ in _rows(place / "train.tsv", TASKS[self.task]) for words in texts)
            object.__setattr__(self, "vocabulary", Vocabulary.built(sentences, self.vocabulary))
        rows = list(_rows(place / f"{self.split}.tsv", TASKS[self.task]))
        if not rows:
            raise BadInput(f"{place / f'{self.split}.tsv'} has no sentences")
        object.__setattr__(self, "pairs", tuple(self._pair(texts) for texts, _ in rows))
        kind = np.int64 if TASKS[self.task].labels else np.float32
        object.__setattr__(self, "labels", np.array([label for _, label in rows], dtype=kind))

    def _pair(self, texts: list[list[str]]) -> tuple[tuple[int, ...], int]:
        """Word numbers, and where the second sentence begins; the longer sentence is cut first where both do not fit."""
        room = self.sequence - 1 - len(texts)
        while sum(map(len, texts)) > room:
            longest = max(texts, key=len)
            del longest[max(0, len(longest) - max(1, sum(map(len, texts)) - room)) :]
        words = [BEGIN, *(word for text in texts for word in (*text, SEPARATOR))]
        assert isinstance(self.vocabulary, Vocabulary)
        return tuple(self.vocabulary.encoded(words)), 2 + len(texts[0])

    @property
    def name(self) -> str:
        return f"GLUE {self.task} {self.split}, {self.sequence} words"

    @property
    def samples(self) -> int:
        return len(self.pairs)

    def take(self, indices: Whole) -> tuple[Whole, Whole, npt.NDArray[np.bool_], npt.NDArray[np.int64 | np.float32]]:
        chosen = [self.pairs[index] for index in indices]
        tokens = padded([words for words, _ in chosen], self.sequence)
        real = tokens != 0
        second = np.arange(self.sequence) >= np.array([[begin] for _, begin in chosen])
        return tokens, (second & real).astype(np.int64), real, self.labels[indices]


def _rows(path: Path, task: Task) -> Iterator[tuple[list[list[str]], float]]:
    """Sentences in words, and the label as a number."""
    places: list[int] = [place for place in (*task.sentences, task.label) if isinstance(place, int)]
    for number, fields in columns(path, skip_short=task.skip_short):
        if not places:
            places = [_place(path, fields, str(name)) for name in (*task.sentences, task.label)]
            continue
        if max(places) >= len(fields):
            raise BadInput(f"{path}, line {number}: {len(fields)} fields, column {max(places) + 1} is missing")
        yield [split(fields[place]) for place in places[:-1]], _label(path, number, fields[places[-1]], task)


def _place(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise BadInput(f"{path}, line 1: no column {name!r} (it has {', '.join(header)})")
    return header.index(name)


def _label(path: Path, number: int, text: str, task: Task) -> float:
    if task.labels:
        if text not in task.labels:
            raise BadInput(f"{path}, line {number}: label {text!r} is none of {', '.join(task.labels)}")
        return task.labels.index(text)
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{path}, line {number}: {text!r} is no score") from None
