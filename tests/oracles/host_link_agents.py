"""Exchanges through the host by agents on the engine's clock; `hardware.dpu.host_link` has them in closed form."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.engine import Acquire, Release, Simulation, Transfer, Wait
from trainyard.engine.commands import Script
from trainyard.hardware.dpu.host_link import HostExchange, HostLink, Transfers, _Job

PICOSECONDS_PER_SECOND = 1e12


def simulate(
    link: HostLink,
    dpus: int,
    size_bytes: int,
    *,
    transfers: Transfers = "serial",
    broadcast: bool = True,
    arrivals_s: Sequence[float] | None = None,
) -> HostExchange:
    """The same by agents on the engine's clock: every transfer a message that waits for a free thread or channel.

    Ranks on different channels share the host's memory from instant to instant; `exchange` takes the longer of the time that
    their channels and that the memory would take alone, and so is never longer.
    """
    return _Job(link, dpus, size_bytes, transfers, broadcast, arrivals_s).exchange_by(_simulated)


def _simulated(job: _Job, arrivals: Sequence[float], way: str) -> tuple[float, list[float]]:
    simulation, link = Simulation(), job.link
    host = simulation.semaphore("host", job.servers)
    memory = simulation.link("memory", link.memory_bytes_per_s)
    waits = [0.0] * len(job.groups)

    def group_agent(number: int, group: int, bus: int) -> Script:
        yield Wait(round(arrivals[number] * PICOSECONDS_PER_SECOND))
        requested_ps = simulation.now_ps
        yield Acquire(host)
        waits[number] = (simulation.now_ps - requested_ps) / PICOSECONDS_PER_SECOND
        path = [bus, memory] if job.through_memory(way) else [bus]
        yield Transfer([(path, round(group * job.size_bytes))])
        yield Release(host)

    buses = [
        simulation.link(f"bus {number}", job.bytes_per_s(way, group), link.latency_s) for number, group in enumerate(job.groups)
    ]
    order = sorted(range(len(job.groups)), key=lambda number: arrivals[number])
    for number in order:  # of those who come at the same time, the first spawned is served first
        simulation.spawn(group_agent(number, job.groups[number], buses[number]), name=f"group {number}")
    simulation.run()
    return simulation.now_ps / PICOSECONDS_PER_SECOND, waits
