"""Systems: devices with links and memory pools, each making a Plan of a Step.

May import everything up to devices. A new system is one file with a class that has `plan(step, masks)`.
"""

from trainyard.systems.cluster import Cluster
from trainyard.systems.node import DeviceCentric, HostCentric, MemoryCentric, Wired
from trainyard.systems.pim import DpuToDpu, HostMediated
from trainyard.systems.plane import Plane, Switched
from trainyard.systems.replicas import Replicas
from trainyard.systems.single import Single

__all__ = [
    "Cluster", "DeviceCentric", "DpuToDpu", "HostCentric", "HostMediated", "MemoryCentric", "Plane", "Replicas", "Single",
    "Switched", "Wired",
]  # fmt: skip
