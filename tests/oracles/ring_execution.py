"""Collectives on one ring with real data, round by round; `hardware.collectives.ring.exchange` counts what moves here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainyard.hardware.collectives.ring import exchange


def execute(kind: str, values: Sequence[npt.NDArray[np.float64]]) -> tuple[list[npt.NDArray[np.float64]], int]:
    """The collective itself, round by round: what each rank holds in the end, and the elements that each link carried.

    `values` are vectors of one length; for all_gather each rank brings its own chunk of the result, a broadcast is rank 0's.
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
    if kind == "broadcast":
        carried = _pass_on(chunks)
        return [np.concatenate(own)[: len(values[0])] for own in chunks], carried
    carried = _reduce(chunks)
    if kind == "reduce_scatter":
        return [chunks[rank][(rank + 1) % ranks] for rank in range(ranks)], carried
    carried += _gather(chunks, first=1)
    return [np.concatenate(own)[: len(values[0])] for own in chunks], carried


def _pass_on(chunks: list[list[npt.NDArray[np.float64]]]) -> int:
    """Rank i sends chunk c in round i + c; all have all after 2 (n - 1) rounds."""
    ranks, carried = len(chunks), 0
    for turn in range(2 * (ranks - 1)):
        for rank in range(ranks - 1):
            if 0 <= turn - rank < ranks:
                chunks[rank + 1][turn - rank] = chunks[rank][turn - rank].copy()
                carried += len(chunks[0][0]) if rank == 0 else 0
    return carried


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
