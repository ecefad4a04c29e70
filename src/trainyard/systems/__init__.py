"""Systems: devices with links and memory pools, each making a Plan of a Step.

In reading order: `single` is one device alone; `step_columns` books its Works at once, `work_rows` one by one; `node` is a node of
several devices (MC-DLA and its baselines); `scale_out` has replicas, many nodes and switched planes; `pim` has DPUs that exchange
through the host (PIM-Opt) or with each other (DIRECT). May import everything up to devices. A new system is one file with a class
that has `plan(step, masks)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.systems.node.systems import DeviceCentric, HostCentric, MemoryCentric, Wired
    from trainyard.systems.pim.systems import DpuToDpu, HostMediated
    from trainyard.systems.scale_out.cluster import Cluster
    from trainyard.systems.scale_out.plane import Plane, Switched
    from trainyard.systems.scale_out.replicas import Replicas
    from trainyard.systems.single import Single

__all__ = [
    "Cluster", "DeviceCentric", "DpuToDpu", "HostCentric", "HostMediated", "MemoryCentric", "Plane", "Replicas",
    "Single", "Switched", "Wired",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "Cluster": "scale_out.cluster",
        "DeviceCentric": "node.systems",
        "DpuToDpu": "pim.systems",
        "HostCentric": "node.systems",
        "HostMediated": "pim.systems",
        "MemoryCentric": "node.systems",
        "Plane": "scale_out.plane",
        "Replicas": "scale_out.replicas",
        "Single": "single",
        "Switched": "scale_out.plane",
        "Wired": "node.systems",
    },
)
