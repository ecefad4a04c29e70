"""The only clock in the project, in whole picoseconds. Two faces: `run(plan)` for what is known, `Simulation` for agents.

Both give a Timeline, and the same one for the same work. Imports ir and timeline; numba only when a plan is run.
Identical devices that share nothing need not all be planned: one of them ends when all do, with the same exposed times.
"""

from trainyard.engine.commands import (
    Acquire,
    Agent,
    Channel,
    Compute,
    Get,
    Join,
    Put,
    Release,
    Resource,
    Transfer,
    Wait,
)
from trainyard.engine.reference import schedule_reference
from trainyard.engine.simulation import Deadlock, Simulation
from trainyard.engine.static import run

__all__ = [
    "Acquire", "Agent", "Channel", "Compute", "Deadlock", "Get", "Join", "Put", "Release", "Resource", "Simulation", "Transfer",
    "Wait", "run", "schedule_reference",
]  # fmt: skip
