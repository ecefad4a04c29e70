"""Collectives on one ring: every rank sends to the next, one chunk a round, all at once.

All-reduce is reduce-scatter followed by all-gather (P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of
workstations. JPDC 2009): of n chunks, each rank sends n - 1 in either half, so a link carries 2 (n - 1) / n of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.errors import NotModelled

HALVES = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
KINDS = (*HALVES, "broadcast")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective on a ring: `rounds` of `chunk` elements in sequence, in `idle` of which a link carries nothing.

    A broadcast does not use the link back to its root: `links` of the ring's links carry it.
    """

    rounds: int
    chunk: int
    links: int
    idle: int = 0

    @property
    def elements(self) -> int:
        """Elements that each link carries."""
        return (self.rounds - self.idle) * self.chunk


def exchange(kind: str, elements: int, ranks: int) -> Exchange:
    """The traffic of a collective over `elements` (the whole tensor) on each link; chunks are padded to one size.

    >>> exchange("all_reduce", 10, ranks=4)
    Exchange(rounds=6, chunk=3, links=4, idle=0)
    """
    if kind not in KINDS:
        raise NotModelled(f"{kind} on a ring is not modelled (known: {', '.join(KINDS)})")
    chunk = -(-elements // ranks)
    if kind == "broadcast" and ranks > 1:  # the last chunk leaves in round `ranks` and has ranks - 2 more links to go
        return Exchange(2 * ranks - 2, chunk, links=ranks - 1, idle=ranks - 2)
    return Exchange(HALVES.get(kind, 0) * (ranks - 1), chunk, links=ranks)
