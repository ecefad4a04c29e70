"""A machine's `Rates` as whole picoseconds, and how long groups wait for each other.

What an exchange costs, from when a group asks (its steps done) to when it goes on:

| between    | all that matters                                                                                               |
|------------|----------------------------------------------------------------------------------------------------------------|
| all, server| wait for the slowest, `exchange_s`                                                                             |
| centre     | served one after another, first come first served over all rounds, `update_s` each; then on, without a barrier |
| neighbours | wait for the two neighbours, `update_s`                                                                        |
| clusters   | averaging: the token goes round, `token_s` each; when the last has given it back, `exchange_s`                 |
|            | literal: the token is held for `token_s` and `exchange_s`; nobody else waits                                   |

Without rates the clock is a unit clock: every step takes 1 s and exchanges are free, so that the numbers can be studied alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import priority_of
from trainyard.hardware.dsc.token_arbiter import Arbiter, Request
from trainyard.hardware.formats.qsgd import Qsgd
from trainyard.mapping.algorithms import Algorithm, Direct, Rates
from trainyard.units import PICOSECONDS_PER_SECOND

Whole = npt.NDArray[np.int64]
WORD_BYTES = 4


def unit_rates(algorithm: Algorithm, parameters: int, workers: int, cluster_size: int) -> Rates:
    """A step takes 1 s and exchanges nothing; bytes are those of every group sending and receiving one model.

    Compressed, averaging sends and receives what QSGD packs; literal receives words.
    """
    clustered = isinstance(algorithm, Direct)
    groups = workers // cluster_size if clustered else workers
    message = parameters * WORD_BYTES
    sent = received = message
    if isinstance(algorithm, Direct) and algorithm.compression_bits is not None:
        sent = Qsgd(bits=algorithm.compression_bits).packed_bytes(parameters)
        received = message if algorithm.update == "literal" else sent
    return Rates(
        workers=workers,
        cluster_size=cluster_size,
        step_s=(1.0,) * groups,
        reduce_s=0.0,
        exchange_s=0.0,
        update_s=0.0,
        token_s=0.0,
        message_bytes=message,
        exchange_bytes=groups * (sent + received) if groups > 1 else 0,
        reduce_bytes=2 * workers * message if clustered and cluster_size > 1 else 0,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Durations in picoseconds; `step_ps` of each group holds its reduction too."""

    step_ps: Whole
    exchange_ps: int
    update_ps: int
    token_ps: int
    exchange_bytes: int
    reduce_bytes: int

    @classmethod
    def of(cls, rates: Rates, groups: int) -> Clock:
        """Fewer entries of `step_s` than groups stand for equal shares of them, in order."""
        if groups % rates.groups:
            raise BadInput(
                f"Rates: step_s has {rates.groups} entries for {groups} groups: give one for each, or a number that divides them"
            )
        if min(rates.step_s) <= 0:
            raise BadInput(f"Rates: every step_s must be above 0, got {min(rates.step_s)!r}")
        steps = np.repeat([_ps(step + rates.reduce_s) for step in rates.step_s], groups // rates.groups)
        return cls(
            step_ps=steps.astype(np.int64),
            exchange_ps=_ps(rates.exchange_s),
            update_ps=_ps(rates.update_s),
            token_ps=_ps(rates.token_s),
            exchange_bytes=rates.exchange_bytes,
            reduce_bytes=rates.reduce_bytes,
        )

    def local_bytes(self, steps: int) -> int:
        """Inside clusters, over that many steps of single groups."""
        return self.reduce_bytes * steps // len(self.step_ps)


def _ps(seconds: float) -> int:
    return round(seconds * PICOSECONDS_PER_SECOND)


def served(step_ps: Whole, rounds: Sequence[int], service: int) -> Iterator[Whole]:
    """Round by round, when each worker has been served by the one centre; a round is so many steps of a worker, then its request.

    First come first served, ties by number. A worker goes on as soon as it was served and may be back before others of the same
    round have come: its next request is in the queue with theirs.

    >>> [done.tolist() for done in served(np.array([1, 1, 9]), [1, 1], 3)]
    [[4, 7, 16], [10, 13, 28]]
    """
    steps = step_ps.tolist()
    coming = [(step * rounds[0], worker) for worker, step in enumerate(steps)]
    heapq.heapify(coming)
    turns, missing = [0] * len(steps), [len(steps)] * len(rounds)
    done: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(steps))
    free = 0
    for number in range(len(rounds)):
        while missing[number]:
            asked, worker = coming[0]
            free = max(free, asked) + service
            turn = turns[worker]
            done[turn][worker] = free
            missing[turn] -= 1
            turns[worker] += 1
            if turn + 1 < len(rounds):
                heapq.heapreplace(coming, (free + steps[worker] * rounds[turn + 1], worker))
            else:
                heapq.heappop(coming)
        yield np.array(done.pop(number), np.int64)


def entered(arbiter: Arbiter, arrivals: Whole, staleness: Whole, tau: float, token: int, turn: int) -> tuple[Whole, int]:
    """When each group gets the token, if each takes it once and holds it for `token`; and whose turn it is afterwards.

    >>> entered(Arbiter(order="round_robin"), np.array([0, 0, 0]), np.ones(3, int), tau=0, token=2, turn=1)
    (array([4, 0, 2]), 1)
    """
    groups = len(arrivals)
    granted = np.empty_like(arrivals)
    if (arrivals == arrivals[0]).all() and (staleness == staleness[0]).all():
        turns = np.arange(groups) if arbiter.order != "round_robin" else (np.arange(groups) - turn) % groups
        granted[:] = arrivals[0] + turns * token
        return granted, (int(np.argmax(turns)) + 1) % groups
    coming = sorted((int(arrivals[group]), group) for group in range(groups))
    waiting: tuple[Request, ...] = ()
    free, seen = 0, 0
    for _ in range(groups):
        free = free if waiting else max(free, coming[seen][0])
        while seen < groups and coming[seen][0] <= free:
            waiting += (request(arbiter, coming[seen][1], int(staleness[coming[seen][1]]), tau),)
            seen += 1
        one = arbiter.choose(waiting, turn)
        waiting = arbiter.aged(tuple(other for other in waiting if other is not one))
        granted[one.cluster] = free
        free += token
        turn = (one.cluster + 1) % groups
    return granted, turn


def request(arbiter: Arbiter, group: int, staleness: int, tau: float) -> Request:
    """The stalest have the highest priority: one more for each tau above tau. Both in steps, or both in picoseconds.

    >>> arbiter = Arbiter(order="priority", levels=4)
    >>> [request(arbiter, 0, steps, tau=8).rank for steps in (9, 15, 16, 25)]
    [0, 0, 1, 2]
    """
    return Request(group, arbiter.rank(priority_of(staleness, tau, arbiter.levels)))
