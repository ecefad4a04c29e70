"""A barrier in hardware: a tree of counters, and a sense bit that flips each time all participants have arrived.

DIRECT, Sec. III-B: barrier primitives with local and global modes; no design is printed. This one is the combining tree with sense
reversal (J. Mellor-Crummey, M. Scott: Algorithms for Scalable Synchronization on Shared-Memory Multiprocessors. TOCS 1991, Sec. 3).

An arrival counts in the leaf of its participant; the last one of a node clears it and counts in the node above; the last one of the
root flips the common sense. Every participant has a sense of its own, which flips as it arrives: it waits while the two differ.
A fast participant may therefore arrive for the next barrier before a slow one has read the release of this one: the common sense
does not flip again before the slow one has arrived too, so it cannot miss the flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from trainyard.checks import require_positive
from trainyard.errors import BadInput


class BarrierState(NamedTuple):
    """`own` are the participants' senses, `counts` the arrivals in each node, leaves first."""

    sense: bool
    own: tuple[bool, ...]
    counts: tuple[int, ...]


def tree_depth(participants: int, fan_in: int) -> int:
    """Levels of counters, at least one.

    >>> tree_depth(8, 8), tree_depth(9, 8), tree_depth(1, 8)
    (1, 2, 1)
    """
    depth, reached = 1, fan_in
    while reached < participants:
        depth, reached = depth + 1, reached * fan_in
    return depth


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier of the DPUs of a cluster (local) or of all clusters (global).

    >>> barrier = Barrier(3, fan_in=2)
    >>> state = barrier.start()
    >>> for participant in (2, 0):
    ...     state = barrier.arrive(state, participant)
    >>> barrier.waits(state, 0), barrier.waits(state, 1)
    (True, False)
    >>> state = barrier.arrive(state, 1)
    >>> barrier.waits(state, 0), state.counts
    (False, (0, 0, 0))
    """

    participants: int
    fan_in: int = 8

    def __post_init__(self) -> None:
        require_positive("Barrier", participants=self.participants, fan_in=self.fan_in)
        if self.fan_in < 2:
            raise BadInput("Barrier: fan_in must be at least 2: a tree of one input for each counter never ends")

    @property
    def widths(self) -> tuple[int, ...]:
        """Counters of each level, leaves first."""
        counters = [-(-self.participants // self.fan_in)]
        while counters[-1] > 1:
            counters.append(-(-counters[-1] // self.fan_in))
        return tuple(counters)

    def start(self) -> BarrierState:
        return BarrierState(False, (False,) * self.participants, (0,) * sum(self.widths))

    def waits(self, state: BarrierState, participant: int) -> bool:
        """Whether a participant has arrived and some others have not."""
        return state.own[self._require_participant(participant)] != state.sense

    def arrive(self, state: BarrierState, participant: int) -> BarrierState:
        if self.waits(state, participant):
            raise BadInput(f"Barrier: participant {participant} has arrived already and waits: it arrives again after the release")
        own = (*state.own[:participant], not state.own[participant], *state.own[participant + 1 :])
        counts = list(state.counts)
        sense = state.sense
        child, children = participant, self.participants
        for first, width in zip(accumulate(self.widths, initial=0), self.widths, strict=False):
            node = child // self.fan_in
            counts[first + node] += 1
            if counts[first + node] < _inputs(node, children, self.fan_in):
                break
            counts[first + node] = 0
            child, children = node, width
        else:
            sense = not sense
        return BarrierState(sense, own, tuple(counts))

    def arrived(self, state: BarrierState) -> Sequence[int]:
        """The participants that wait now."""
        return [participant for participant, own in enumerate(state.own) if own != state.sense]

    def _require_participant(self, participant: int) -> int:
        if isinstance(participant, bool) or not isinstance(participant, int) or not 0 <= participant < self.participants:
            raise BadInput(f"Barrier: participant must be a whole number of 0 to {self.participants - 1}, got {participant!r}")
        return participant


def _inputs(node: int, children: int, fan_in: int) -> int:
    """Inputs of a node; the last one of a level may have fewer."""
    return min(fan_in, children - node * fan_in)
