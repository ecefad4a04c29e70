"""The closed form that every dense array here follows: a product is cut into folds, a fold streams one dimension.

    folds  = the product, over the two dimensions that lie on the array, of ceil(dimension / extent), dealt out over `units`
    steps  = ceil(streamed dimension / width)
    cycles = (folds - 1) * interval + fixed + steps

`interval` is `fixed + steps` when folds follow each other, `max(steps, floor)` when fill and drain overlap. Where an array is made
of several equal units that take folds one by one, its folds are those of the busiest unit: ceil(folds / units).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

Axis = Literal["m", "n", "k"]
Whole = TypeVar("Whole", int, npt.NDArray[np.int64])
AXES: tuple[Axis, ...] = ("m", "n", "k")
APART = -1
COLUMNS = 7
"""Numbers of a form in `row`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Extents of the array along m, n and k; one of the three is streamed, its extent is the width of the stream.

    >>> Folds(m=1, n=4, k=4, stream="m", fixed=10).cycles(8, 4, 5)  # weight-stationary 4 x 4: 2 folds of 2R + C - 2 + M
    36
    >>> Folds(m=4, n=4, k=4, stream="k", units=256).cycles(64, 68, 16)  # 16 x 17 blocks on 256 tiles: two rounds of 4 steps
    8
    """

    m: int
    n: int
    k: int
    stream: Axis
    fixed: int = 0
    floor: int = APART
    units: int = 1

    @property
    def row(self) -> tuple[int, ...]:
        """As numbers, for compiled loops: extents, axis of the stream, fixed, floor, units."""
        return (self.m, self.n, self.k, AXES.index(self.stream), self.fixed, self.floor, self.units)

    def count(self, m: Whole, n: Whole, k: Whole) -> Whole:
        """Folds of an (m,k) x (k,n) product, those of the busiest unit."""
        if self.stream == "m":
            folds = -(-n // self.n) * -(-k // self.k)
        elif self.stream == "n":
            folds = -(-m // self.m) * -(-k // self.k)
        else:
            folds = -(-m // self.m) * -(-n // self.n)
        return -(-folds // self.units)

    def cycles(self, m: Whole, n: Whole, k: Whole, repeats: int = 1) -> Whole:
        """Cycles of `repeats` such products one after the other; whole numbers or arrays of them."""
        folds = self.count(m, n, k) * repeats
        steps = -(-m // self.m) if self.stream == "m" else -(-n // self.n) if self.stream == "n" else -(-k // self.k)
        if self.floor == APART:
            return folds * (self.fixed + steps)
        interval = np.maximum(steps, self.floor) if isinstance(steps, np.ndarray) else max(steps, self.floor)
        return (folds - 1) * interval + self.fixed + steps
