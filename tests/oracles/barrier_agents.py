"""A barrier of the DSC for agents on the engine's clock; `Dsc.barrier_s` has its time in closed form."""

from __future__ import annotations

from trainyard.engine import Get, Put, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.hardware.dsc.barriers import Barrier
from trainyard.hardware.dsc.token_service import picoseconds
from trainyard.hardware.dsc.unit import Dsc, Mode


class BarrierService:
    """A barrier for agents, of a cluster's DPUs or of all clusters.

    >>> simulation = Simulation()
    >>> dsc = Dsc(clock_hz=1e9, levels=1, hop_cycles=10)
    >>> desk = BarrierService(simulation, dsc, participants=3)
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
