"""Handwritten digits, small enough to train on anywhere: the real ones that come with scikit-learn, or drawn ones.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits. UCI 1998: 1797 digits of 13 writers, 8 x 8 pixels of 17 shades.
scikit-learn (extra `knn`) brings them along, nothing is downloaded. `strokes` draws its own, at any size
and in any number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.workloads.datasets.batches import Source
from trainyard.workloads.datasets.strokes import Strokes

Reals = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
SOURCES = ("auto", "sklearn", "generated")
REAL_SIZE = 8
SHADES = 16  # Alpaydin, Kaynak: 0 to 16 set pixels of a 4 x 4 block


@dataclass(frozen=True)
class Digits:
    """(images [n, 1, 8, 8] from 0 to 1, digits [n])."""

    stand_in: bool = field(default=False, init=False)
    name: str = field(default="handwritten digits, 8 x 8", init=False)
    images: Reals = field(init=False, repr=False, compare=False)
    labels: Whole = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError:
            raise MissingExtra("scikit-learn", "knn", "the real handwritten digits (or source='generated')") from None
        bunch = load_digits()
        object.__setattr__(self, "images", (bunch.images / SHADES).astype(np.float32)[:, None])
        object.__setattr__(self, "labels", bunch.target.astype(np.int64))

    @property
    def samples(self) -> int:
        return len(self.labels)

    def take(self, indices: Whole) -> tuple[Reals, Whole]:
        return self.images[indices], self.labels[indices]


def digits(
    source: Literal["auto", "sklearn", "generated"] = "auto", *, samples: int = 1797, size: int = REAL_SIZE, seed: int = 0
) -> Source:
    """The real digits where scikit-learn is installed and 8 x 8 will do, else drawn ones; the source's name says which it is.

    `samples`, `size` and `seed` are those of drawn digits; the real ones are 1797 of 8 x 8.

    >>> digits("generated", samples=20, size=16).take(np.arange(3))[0].shape
    (3, 1, 16, 16)
    """
    if source not in SOURCES:
        raise UnknownName("source of digits", source, SOURCES)
    if source == "sklearn" and size != REAL_SIZE:
        raise BadInput(f"digits: the real ones are {REAL_SIZE} x {REAL_SIZE}, got size={size}: ask for source='generated'")
    if source == "sklearn" or (source == "auto" and size == REAL_SIZE):
        try:
            return Digits()
        except MissingExtra:
            if source == "sklearn":
                raise
    return Strokes(samples=samples, size=size, seed=seed)
