"""MovieLens 20M. F. M. Harper, J. A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 2015.

ratings.csv (userId,movieId,rating,timestamp), plain or inside ml-20m.zip. Users and films are numbered without gaps, in the order
of their own numbers. A rating of 4 or more counts as liked.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.workloads.datasets.reading import lines, opened

Whole = npt.NDArray[np.int64]
HEADER = "userId,movieId,rating"
INSIDE = "ratings.csv"


@dataclass(frozen=True)
class MovieLens:
    """(users, items, liked as 0.0 or 1.0)."""

    file: Path
    liked_from: float = 4.0
    stand_in: bool = field(default=False, init=False)
    user_of: Whole = field(init=False, repr=False, compare=False)
    item_of: Whole = field(init=False, repr=False, compare=False)
    liked: npt.NDArray[np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = _table(Path(self.file))
        for name, column in (("user_of", 0), ("item_of", 1)):
            object.__setattr__(self, name, np.unique(table[:, column], return_inverse=True)[1].astype(np.int64))
        object.__setattr__(self, "liked", (table[:, 2] >= self.liked_from).astype(np.float32))

    @property
    def name(self) -> str:
        return f"MovieLens, {self.samples} ratings by {self.users} users of {self.items} films"

    @property
    def samples(self) -> int:
        return len(self.liked)

    @property
    def users(self) -> int:
        return int(self.user_of.max()) + 1

    @property
    def items(self) -> int:
        return int(self.item_of.max()) + 1

    def take(self, indices: Whole) -> tuple[Whole, Whole, npt.NDArray[np.float32]]:
        return self.user_of[indices], self.item_of[indices], self.liked[indices]


def _table(path: Path) -> npt.NDArray[np.float64]:
    with opened(path, INSIDE) as stream:
        header = stream.readline().strip()
        if not header.startswith(HEADER):
            raise BadInput(f"{path}, line 1: expected {HEADER},..., got {header[:60]!r}")
        try:
            with warnings.catch_warnings(action="ignore"):  # of a file without ratings, which is said below
                table = np.loadtxt(stream, delimiter=",", usecols=(0, 1, 2), ndmin=2)
        except ValueError:
            raise BadInput(_fault(path)) from None
    if not len(table):
        raise BadInput(f"{path} has no ratings")
    return table


def _fault(path: Path) -> str:
    """The first line that is no rating; looked for only when reading in one go has failed."""
    for number, line in lines(path, INSIDE):
        fields = line.split(",")
        try:
            if number > 1 and line and len([float(field) for field in fields[:3]]) < 3:
                return f"{path}, line {number}: {len(fields)} fields, expected {HEADER}"
        except ValueError:
            return f"{path}, line {number}: {line[:60]!r} is no rating ({HEADER})"
    return f"{path} cannot be read as {HEADER}"
