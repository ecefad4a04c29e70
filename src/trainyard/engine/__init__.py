"""The only clock in the project, in integer picoseconds. `run(plan)` times a plan of tasks, `Simulation` runs agents.

Both return a Timeline, and the same one for the same work. In reading order: `timeline` is the result, `static` runs a plan
(`compiled` calls the kernel), `commands` are what agents yield, `simulation` runs them, `network` shares links between flows.
Imports ir; numba only when a plan is run. Of identical devices that share nothing, one needs to be planned: all end with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.engine.commands import Acquire, Agent, Channel, Compute, Get, Join, Put, Release, Resource, Transfer, Wait
    from trainyard.engine.simulation import Deadlock, Simulation
    from trainyard.engine.static import run
    from trainyard.engine.timeline import Timeline

__all__ = [
    "Acquire", "Agent", "Channel", "Compute", "Deadlock", "Get", "Join", "Put", "Release", "Resource", "Simulation",
    "Timeline", "Transfer", "Wait", "run",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "Acquire": "commands",
        "Agent": "commands",
        "Channel": "commands",
        "Compute": "commands",
        "Deadlock": "simulation",
        "Get": "commands",
        "Join": "commands",
        "Put": "commands",
        "Release": "commands",
        "Resource": "commands",
        "Simulation": "simulation",
        "Timeline": "timeline",
        "Transfer": "commands",
        "Wait": "commands",
        "run": "static",
    },
)
