"""Collectives on one ring: every rank sends to the next, one chunk a round, all at once.

All-reduce is reduce-scatter followed by all-gather (P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of
workstations. JPDC 2009): of n chunks, each rank sends n - 1 in either half, so a link carries 2 (n - 1) / n of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.errors import NotModelled

HALVES = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective on a ring, as every link sees it: `rounds` chunks of `chunk` elements, one after the other."""

    rounds: int
    chunk: int

    @property
    def elements(self) -> int:
        """Elements that each link carries."""
        return self.rounds * self.chunk


def exchange(kind: str, elements: int, ranks: int) -> Exchange:
    """What a collective over `elements` (the whole tensor) asks of each link; chunks are padded to one size.

    >>> exchange("all_reduce", 10, ranks=4)
    Exchange(rounds=6, chunk=3)
    """
    if kind not in HALVES:
        raise NotModelled(f"{kind} on a ring is not modelled (known: {', '.join(HALVES)})")
    return Exchange(HALVES[kind] * (ranks - 1), -(-elements // ranks))


def execute(kind: str, values: Sequence[npt.NDArray[np.float64]]) -> tuple[list[npt.NDArray[np.float64]], int]:
    """The collective itself, round by round: what each rank holds in the end, and the elements that each link carried.

    `values` are vectors of one length; for all_gather each rank brings its own chunk of the result.
    """
    ranks = len(values)
    carried = 0
    if kind == "all_gather":
        chunks = [[np.zeros_like(value) for _ in values] for value in values]
        for rank, value in enumerate(values):
            chunks[rank][rank] = value.copy()
        carried = _gather(chunks, first=0)
        return [np.concatenate(own) for own in chunks], carried
    size = exchange(kind, len(values[0]), ranks).chunk
    padded = [np.concatenate([value, np.zeros(size * ranks - len(value))]) for value in values]
    chunks = [list(value.reshape(ranks, size).copy()) for value in padded]
    carried = _reduce(chunks)
    if kind == "reduce_scatter":
        return [chunks[rank][(rank + 1) % ranks] for rank in range(ranks)], carried
    carried += _gather(chunks, first=1)
    return [np.concatenate(own)[: len(values[0])] for own in chunks], carried


def _reduce(chunks: list[list[npt.NDArray[np.float64]]]) -> int:
    """Each round, rank i sends chunk i - round; in the end it holds the whole sum of chunk i + 1."""
    ranks, carried = len(chunks), 0
    for turn in range(ranks - 1):
        sent = [(rank, (rank - turn) % ranks, chunks[rank][(rank - turn) % ranks].copy()) for rank in range(ranks)]
        for rank, number, chunk in sent:
            chunks[(rank + 1) % ranks][number] += chunk
        carried += len(sent[0][2])
    return carried


def _gather(chunks: list[list[npt.NDArray[np.float64]]], first: int) -> int:
    """Each round, rank i sends chunk i + first - round, which it has just received or held from the start."""
    ranks, carried = len(chunks), 0
    for turn in range(ranks - 1):
        sent = [(rank, (rank + first - turn) % ranks) for rank in range(ranks)]
        copies = [chunks[rank][number].copy() for rank, number in sent]
        for (rank, number), chunk in zip(sent, copies, strict=True):
            chunks[(rank + 1) % ranks][number] = chunk
        carried += len(copies[0])
    return carried
