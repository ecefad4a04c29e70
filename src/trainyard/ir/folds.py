"""Closed forms for the cycles of dense arrays: a product is cut into folds, and each fold streams one dimension.

    folds  = the product, over the two dimensions mapped onto the array, of ceil(dimension / extent), divided among `units`
    steps  = ceil(streamed dimension / width)
    cycles = (folds - 1) * interval + fixed + steps

`interval` is `fixed + steps` when folds follow each other, `max(steps, floor)` when fill and drain overlap. Where an array is made
of several equal units that take folds one by one, its folds are those of the busiest unit: ceil(folds / units).

A fabric without a fixed shape (`Pooled`) stores any `pool` elements of the stationary operand, whatever their rows and columns:

    folds  = ceil(stationary elements / pool)
    cycles = ceil(stationary elements / load) + passes * streamed vectors + drain * folds

where a pass is a fold, or, if only `chunk` elements of a vector arrive in a cycle, ceil(elements in a chunk of k / pool) per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

Axis = Literal["m", "n", "k"]
Integer = TypeVar("Integer", int, npt.NDArray[np.int64])
AXES: tuple[Axis, ...] = ("m", "n", "k")
SEQUENTIAL = -1
COLUMNS = 14
"""Integers of a closed form in `row`: extents and cycles, three of `Pooled`, four of what crosses the scratchpad's ports."""
SHARE_ONE = 1 << 20
"""A share of 1 in the fixed-point units of the compiled loops."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The dimensions of many products as columns, for formulas that accept these or a `MatMul`."""

    M: Any
    N: Any
    K: Any
    count: Any

    @property
    def macs(self) -> Any:
        return self.M * self.N * self.K * self.count


def elementwise_min(first: Any, second: Any) -> Any:
    """The minimum of two numbers, or of two columns element by element."""
    return np.minimum(first, second) if isinstance(first, np.ndarray) or isinstance(second, np.ndarray) else min(first, second)


def elementwise_max(first: Any, second: Any) -> Any:
    """The maximum of two numbers, or of two columns element by element."""
    return np.maximum(first, second) if isinstance(first, np.ndarray) or isinstance(second, np.ndarray) else max(first, second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Extents of the array along m, n and k; one of the three is streamed, its extent is the width of the stream.

    The tile search takes the least energy among tiles that are equal otherwise, so it asks how often operands cross the
    scratchpad's ports. What is stationary is read once, a streamed operand once for each fold across it, and sums are written for
    each fold along k. An array with buffers says more: `columns_per_read` elements along n are served by one read of A
    (0: all of them), `rows_per_read` along m by one of B, and with `shared_by` units these form a grid that shares reads.

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
    floor: int = SEQUENTIAL
    units: int = 1
    columns_per_read: int | None = None
    rows_per_read: int | None = None
    shared_by: int = 0

    @property
    def row(self) -> tuple[int, ...]:
        """Integers for compiled loops: extents, axis of the stream, fixed, floor, units, what one read or write serves (0: all)."""
        columns = (0 if self.stream == "n" else self.n) if self.columns_per_read is None else self.columns_per_read
        rows = (0 if self.stream == "m" else self.m) if self.rows_per_read is None else self.rows_per_read
        ports = (columns, rows, 0 if self.stream == "k" else self.k, self.shared_by)
        return (self.m, self.n, self.k, AXES.index(self.stream), self.fixed, self.floor, self.units, 0, 0, 0, *ports)

    def count(self, m: Integer, n: Integer, k: Integer) -> Integer:
        """Folds of an (m,k) x (k,n) product on the busiest unit."""
        if self.stream == "m":
            folds = -(-n // self.n) * -(-k // self.k)
        elif self.stream == "n":
            folds = -(-m // self.m) * -(-k // self.k)
        else:
            folds = -(-m // self.m) * -(-n // self.n)
        return -(-folds // self.units)

    def cycles(self, m: Integer, n: Integer, k: Integer, repeats: int = 1) -> Integer:
        """Cycles of `repeats` such products one after the other, for integers or arrays of them."""
        folds = self.count(m, n, k) * repeats
        steps = -(-m // self.m) if self.stream == "m" else -(-n // self.n) if self.stream == "n" else -(-k // self.k)
        if self.floor == SEQUENTIAL:
            return folds * (self.fixed + steps)
        interval = np.maximum(steps, self.floor) if isinstance(steps, np.ndarray) else max(steps, self.floor)
        return (folds - 1) * interval + self.fixed + steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """`stream` is m (the second operand is stationary) or n (the first); each fold or each pass ends with a drain (`drained`).

    `share` is the expected share of the stationary operand's elements that is stored (its non-zeros), for choosing tiles. A vector
    crosses the scratchpad's port in each pass that it belongs to, and so do unfinished sums; where the elements have memories for
    them (`buffered`), all do once.

    >>> Pooled(pool=16, load=4, stream="m", drain=4).cycles(8, 3, 7)  # 21 elements: 6 cycles to load, 2 folds of 8 vectors
    30
    """

    pool: int
    load: int
    stream: Literal["m", "n"]
    drain: int
    chunk: int | None = None
    drained: Literal["fold", "pass"] = "fold"
    share: float = 1.0
    buffered: bool = False

    @property
    def _fixed_point_share(self) -> int:
        return max(1, round(self.share * SHARE_ONE))

    @property
    def row(self) -> tuple[int, ...]:
        """In the columns of `Folds`: k has the chunk (0 for none), the floor the flag for passes."""
        flag = int(self.drained == "pass")
        share = self._fixed_point_share
        return (
            1,
            1,
            self.chunk or 0,
            AXES.index(self.stream),
            self.drain,
            flag,
            1,
            self.pool,
            self.load,
            share,
            int(self.buffered),
            0,
            0,
            0,
        )

    def _stored(self, across: Integer, k: Integer) -> Integer:
        return -(-across * k * self._fixed_point_share // SHARE_ONE)

    def passes(self, across: Integer, k: Integer) -> Integer:
        """Passes of all vectors of the streamed operand over `across` rows of the stationary one."""
        if self.chunk is None:
            return -(-self._stored(across, k) // self.pool)
        chunks, rest = k // self.chunk, k % self.chunk
        return chunks * -(-self._stored(across, chunks * 0 + self.chunk) // self.pool) + -(-self._stored(across, rest) // self.pool)

    def count(self, m: Integer, n: Integer, k: Integer) -> Integer:
        return -(-self._stored(n if self.stream == "m" else m, k) // self.pool)

    def cycles(self, m: Integer, n: Integer, k: Integer, repeats: int = 1) -> Integer:
        across, vectors = (n, m) if self.stream == "m" else (m, n)
        passes = self.passes(across, k)
        drains = passes if self.drained == "pass" else self.count(m, n, k)
        return (-(-self._stored(across, k) // self.load) + passes * vectors + self.drain * drains) * repeats
