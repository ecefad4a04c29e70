"""Tokens of the DSC on the engine's clock: cluster agents request and release them with the hardware's latencies.

Requests, grants and releases take a hop each; the arbiter takes its time and chooses among all requests that have arrived when it
begins. Requests that arrive at the same instant are queued by cluster number. A cluster that releases a token does not wait until
the DSC has it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.engine import Get, Put, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.errors import BadInput
from trainyard.hardware.dsc.token_arbiter import Order
from trainyard.hardware.dsc.unit import Dsc


@dataclass(slots=True)
class TokenUse:
    """The times of one acquisition at the cluster; -1 for what has not happened yet."""

    cluster: int
    requested_ps: int
    granted_ps: int = -1
    released_ps: int = -1


def picoseconds(seconds: float) -> int:
    """Seconds as integer picoseconds of the engine's clock."""
    return round(seconds * 1e12)


class TokenService:
    """Tokens for cluster agents.

    >>> simulation = Simulation()
    >>> dsc = Dsc(clock_hz=1e9, levels=1, hop_cycles=10, arbiter_fan_in=4, entries=4)  # 10 ns each way, 1 ns for a choice
    >>> desk = TokenService(simulation, dsc, clusters=2)
    >>> def cluster(number):
    ...     yield from desk.acquire(number)
    ...     yield Wait(5_000)
    ...     yield from desk.release(number)
    >>> agents = [simulation.spawn(cluster(number)) for number in range(2)]
    >>> timeline = simulation.run()
    >>> desk.log[1]
    TokenUse(cluster=1, requested_ps=0, granted_ps=47000, released_ps=52000)
    >>> simulation.now_ps == round(dsc.rounds_s(2, enter_s=5e-9) * 1e12)
    True
    """

    def __init__(self, simulation: Simulation, dsc: Dsc, clusters: int, order: Order = "round_robin") -> None:
        self._simulation = simulation
        self._rules = dsc.rules(clusters, order)
        self._state = self._rules.start()
        self._hop_ps, self._arbiter_ps = picoseconds(dsc.hop_s), picoseconds(dsc.arbiter_s)
        self._grants = [simulation.channel(f"grant of cluster {cluster}") for cluster in range(clusters)]
        self._arrived: list[tuple[int, int, int]] = []  # time, cluster, priority: requests that the arbiter has not yet looked at
        self._choosing = False
        self._open: dict[int, TokenUse] = {}
        self.log: list[TokenUse] = []

    @property
    def holders(self) -> tuple[int, ...]:
        """Holders from the DSC's choice until the DSC has the token back."""
        return self._state.holders

    def acquire(self, cluster: int, priority: int = 0) -> Script:
        """Requests a token; ends when the grant has arrived at the cluster."""
        self._rules.arbiter.rank(priority)  # raises here, in the cluster's own agent, if the priority is out of range
        if cluster in self._open:
            what = "holds a token" if self._open[cluster].granted_ps >= 0 else "has asked already"
            raise BadInput(f"TokenService: cluster {cluster} asks for a token and {what}: one request at a time, then release")
        self._rules.staleness(self._state, cluster)  # raises for an unknown cluster
        use = self._open[cluster] = TokenUse(cluster, self._simulation.now_ps)
        self.log.append(use)
        yield Wait(self._hop_ps)
        self._arrived.append((self._simulation.now_ps, cluster, priority))
        self._wake_arbiter()
        yield Get(self._grants[cluster])
        use.granted_ps = self._simulation.now_ps

    def release(self, cluster: int) -> Script:
        """Sends the token back; the cluster continues at once."""
        use = self._open.get(cluster)
        if use is None or use.granted_ps < 0:
            raise BadInput(f"TokenService: cluster {cluster} releases a token that it does not hold: acquire it first")
        use.released_ps = self._simulation.now_ps
        del self._open[cluster]
        self._simulation.spawn(self._return(cluster), name=f"release of cluster {cluster}")
        yield Wait(0)

    def _return(self, cluster: int) -> Script:
        yield Wait(self._hop_ps)
        self._state = self._rules.release(self._state, cluster)
        self._wake_arbiter()

    def _wake_arbiter(self) -> None:
        if not self._choosing:
            self._choosing = True
            self._simulation.spawn(self._arbitrate(), name="arbiter")

    def _arbitrate(self) -> Script:
        """Grants tokens while one is free and a cluster waits for it."""
        while True:
            yield Wait(0)  # after all requests of this instant have arrived
            for _, cluster, priority in sorted(self._arrived):
                self._state = self._rules.request(self._state, cluster, priority)
            self._arrived.clear()
            if not self._rules.can_grant(self._state):
                break
            self._state = self._rules.grant(self._state)
            winner = self._state.holders[-1]
            yield Wait(self._arbiter_ps)
            self._simulation.spawn(self._carry(winner), name=f"grant of cluster {winner}")
        self._choosing = False

    def _carry(self, cluster: int) -> Script:
        yield Wait(self._hop_ps)
        yield Put(self._grants[cluster])
