"""A machine's `Rates` in integer picoseconds, and how long groups wait for each other.

The time of an exchange, from a group's request (after its local steps) to its next step:

| between    | time                                                                                                           |
|------------|----------------------------------------------------------------------------------------------------------------|
| all, server| wait for the slowest group, then `exchange_s`                                                                  |
| centre     | one request at a time, first come first served over all rounds, `update_s` each; no barrier                    |
| neighbours | wait for the two neighbours, then `update_s`                                                                   |
| clusters   | averaging: every cluster takes the token for `token_s`; after the last one, `exchange_s`                       |
|            | literal: the token is held for `token_s` + `exchange_s`; the other clusters go on                              |

Without rates a step takes 1 s and exchanges are free, so that convergence can be studied alone.
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
    """Rates of the unit clock: a step takes 1 s, an exchange 0 s; in an exchange every group sends and receives one model.

    With compression, `averaging` sends and receives models packed by QSGD; `literal` receives unpacked ones.
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
    """Durations in picoseconds; `step_ps` of each group includes its local reduction."""

    step_ps: Whole
    exchange_ps: int
    update_ps: int
    token_ps: int
    exchange_bytes: int
    reduce_bytes: int

    @classmethod
    def of(cls, rates: Rates, groups: int) -> Clock:
        """With fewer entries of `step_s` than groups, each entry holds for an equal number of consecutive groups."""
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
        """Bytes inside clusters; `steps` are summed over groups."""
        return self.reduce_bytes * steps // len(self.step_ps)


def _ps(seconds: float) -> int:
    return round(seconds * PICOSECONDS_PER_SECOND)


def service_times(step_ps: Whole, rounds: Sequence[int], service: int) -> Iterator[Whole]:
    """For each round, the time at which the centre has served each worker; `rounds` are the local steps before each request.

    First come first served, ties by worker number. A worker goes on as soon as it is served: its request of the next round may be
    in the queue together with requests of this one.

    >>> [done.tolist() for done in service_times(np.array([1, 1, 9]), [1, 1], 3)]
    [[4, 7, 16], [10, 13, 28]]
    """
    steps = step_ps.tolist()
    requests = [(step * rounds[0], worker) for worker, step in enumerate(steps)]
    heapq.heapify(requests)
    rounds_done, unserved = [0] * len(steps), [len(steps)] * len(rounds)
    ends: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(steps))
    centre_free = 0
    for number in range(len(rounds)):
        while unserved[number]:
            requested, worker = requests[0]
            centre_free = max(centre_free, requested) + service
            own_round = rounds_done[worker]
            ends[own_round][worker] = centre_free
            unserved[own_round] -= 1
            rounds_done[worker] += 1
            if own_round + 1 < len(rounds):
                heapq.heapreplace(requests, (centre_free + steps[worker] * rounds[own_round + 1], worker))
            else:
                heapq.heappop(requests)
        yield np.array(ends.pop(number), np.int64)


def grant_times(arbiter: Arbiter, arrivals: Whole, staleness: Whole, tau: float, token: int, turn: int) -> tuple[Whole, int]:
    """When each group is granted the token, if each takes it once and holds it for `token`; and the group whose turn is next.

    >>> grant_times(Arbiter(order="round_robin"), np.array([0, 0, 0]), np.ones(3, int), tau=0, token=2, turn=1)
    (array([4, 0, 2]), 1)
    """
    groups = len(arrivals)
    granted = np.empty_like(arrivals)
    if (arrivals == arrivals[0]).all() and (staleness == staleness[0]).all():
        turns = np.arange(groups) if arbiter.order != "round_robin" else (np.arange(groups) - turn) % groups
        granted[:] = arrivals[0] + turns * token
        return granted, (int(np.argmax(turns)) + 1) % groups
    by_arrival = sorted((int(arrivals[group]), group) for group in range(groups))
    waiting: tuple[Request, ...] = ()
    now, arrived = 0, 0
    for _ in range(groups):
        now = now if waiting else max(now, by_arrival[arrived][0])
        while arrived < groups and by_arrival[arrived][0] <= now:
            group = by_arrival[arrived][1]
            waiting += (request(arbiter, group, int(staleness[group]), tau),)
            arrived += 1
        chosen = arbiter.choose(waiting, turn)
        waiting = arbiter.aged(tuple(other for other in waiting if other is not chosen))
        granted[chosen.cluster] = now
        now += token
        turn = (chosen.cluster + 1) % groups
    return granted, turn


def request(arbiter: Arbiter, group: int, staleness: int, tau: float) -> Request:
    """A request whose priority grows by one for each tau of staleness above tau; both in steps, or both in picoseconds.

    >>> arbiter = Arbiter(order="priority", levels=4)
    >>> [request(arbiter, 0, steps, tau=8).rank for steps in (9, 15, 16, 25)]
    [0, 0, 1, 2]
    """
    return Request(group, arbiter.rank(priority_of(staleness, tau, arbiter.levels)))
