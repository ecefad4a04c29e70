"""The DSC on the engine's clock: cluster agents ask for tokens and wait at barriers with the hardware's latencies.

A request, a grant and a release travel; the arbiter takes its time and chooses among all that have come when it begins. Requests
that arrive at the same instant stand in line by the clusters' numbers. Who lets a token go does not wait until the DSC has it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.engine import Get, Put, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.errors import BadInput
from trainyard.hardware.dsc.barriers import Barrier
from trainyard.hardware.dsc.token_arbiter import Order
from trainyard.hardware.dsc.unit import Dsc, Mode


@dataclass(slots=True)
class TokenUse:
    """One acquisition on the cluster's own side; -1 where it has not come to that."""

    cluster: int
    asked_ps: int
    granted_ps: int = -1
    released_ps: int = -1


def picoseconds(seconds: float) -> int:
    """On the engine's clock, which is whole."""
    return round(seconds * 1e12)


class TokenDesk:
    """Tokens for cluster agents.

    >>> simulation = Simulation()
    >>> dsc = Dsc(clock_hz=1e9, levels=1, hop_cycles=10, arbiter_fan_in=4, entries=4)  # 10 ns each way, 1 ns for a choice
    >>> desk = TokenDesk(simulation, dsc, clusters=2)
    >>> def cluster(number):
    ...     yield from desk.acquire(number)
    ...     yield Wait(5_000)
    ...     yield from desk.release(number)
    >>> agents = [simulation.spawn(cluster(number)) for number in range(2)]
    >>> timeline = simulation.run()
    >>> desk.log[1]
    TokenUse(cluster=1, asked_ps=0, granted_ps=47000, released_ps=52000)
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
        """As the DSC sees it: from its choice until it has the token back."""
        return self._state.holders

    def acquire(self, cluster: int, priority: int = 0) -> Script:
        """Ends with the grant in the cluster's hands."""
        self._rules.arbiter.rank(priority)  # refused here, where who asks can be named
        if cluster in self._open:
            what = "holds a token" if self._open[cluster].granted_ps >= 0 else "has asked already"
            raise BadInput(f"TokenDesk: cluster {cluster} asks for a token and {what}: one request at a time, then release")
        self._rules.staleness(self._state, cluster)  # refuses an unknown cluster
        use = self._open[cluster] = TokenUse(cluster, self._simulation.now_ps)
        self.log.append(use)
        yield Wait(self._hop_ps)
        self._arrived.append((self._simulation.now_ps, cluster, priority))
        self._wake_arbiter()
        yield Get(self._grants[cluster])
        use.granted_ps = self._simulation.now_ps

    def release(self, cluster: int) -> Script:
        """Sends the token back; the cluster goes on at once."""
        use = self._open.get(cluster)
        if use is None or use.granted_ps < 0:
            raise BadInput(f"TokenDesk: cluster {cluster} releases a token that it does not hold: acquire it first")
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
        """One choice after another, while there is a token and somebody who waits for it."""
        while True:
            yield Wait(0)  # all that reaches the DSC at this instant is seen
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


class BarrierDesk:
    """A barrier for agents, of a cluster's DPUs or of all clusters.

    >>> simulation = Simulation()
    >>> dsc = Dsc(clock_hz=1e9, levels=1, hop_cycles=10)
    >>> desk = BarrierDesk(simulation, dsc, participants=3)
    >>> def worker(number):
    ...     yield Wait(1_000 * number)
    ...     yield from desk.arrive(number)
    >>> agents = [simulation.spawn(worker(number)) for number in range(3)]
    >>> timeline = simulation.run()
    >>> simulation.now_ps - 2_000 == round(dsc.barrier_s(3) * 1e12)
    True
    """

    def __init__(self, simulation: Simulation, dsc: Dsc, participants: int, mode: Mode = "global") -> None:
        self._simulation = simulation
        self._barrier = Barrier(participants, dsc.barrier_fan_in)
        self._state = self._barrier.start()
        through_ps = picoseconds(dsc.barrier_s(participants, mode))
        self._down_ps = picoseconds(dsc.hop_s) if mode == "global" else through_ps // 2
        self._up_ps = through_ps - self._down_ps
        self._gates = [simulation.channel(f"barrier of participant {number}") for number in range(participants)]
        self.passed = 0  # times that all have arrived

    def arrive(self, participant: int) -> Script:
        """Ends when all have arrived and the release is here."""
        yield Wait(self._up_ps)
        sense = self._state.sense
        self._state = self._barrier.arrive(self._state, participant)
        if self._state.sense != sense:
            self.passed += 1
            self._simulation.spawn(self._open(), name="barrier")
        yield Get(self._gates[participant])

    def _open(self) -> Script:
        yield Wait(self._down_ps)
        for gate in self._gates:
            yield Put(gate)
