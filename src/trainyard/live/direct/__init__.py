"""DIRECT for real: PyTorch processes that train together, and what the simulated machine would have taken for it.

Importing this registers the backend `direct` of `torch.distributed`. In reading order:

- group: the process group, which wraps gloo; work: the handle of one collective
- pricing: the time and energy of a collective on the simulated machine; collective_log: their sums, as a report
- heartbeat: notices dead workers
- averager, clusters, tokens: the parts of DIRECT's Algorithm 1; checkpoint: saves and resumes a run
- networks: torch networks as models of `trainyard.training`

    dist.init_process_group("direct", pg_options=direct.Options(machine=ty.machine("direct(dpus=256)"), report=True))
    model = DistributedDataParallel(network)
    model.register_comm_hook(direct.clusters(), direct.cluster_hook)
    averager = direct.StalenessAverager(tau=31)
    ...                                                  # after each optimizer.step():
    averager.average_parameters(model.parameters())
"""

from __future__ import annotations

from trainyard.live.direct.averager import StalenessAverager
from trainyard.live.direct.checkpoint import load, save
from trainyard.live.direct.clusters import Cluster, cluster_hook, clusters
from trainyard.live.direct.collective_log import Report, Row
from trainyard.live.direct.group import DirectGroup, Options, charge_step, register, report
from trainyard.live.direct.heartbeat import WorkerLost
from trainyard.live.direct.pricing import Machine, Price
from trainyard.live.direct.tokens import StoreWords, TokenLost, Tokens, TokenTimeout

__all__ = [
    "Cluster", "DirectGroup", "Machine", "Options", "Price", "Report", "Row", "StalenessAverager", "StoreWords", "TokenLost",
    "TokenTimeout", "Tokens", "WorkerLost", "charge_step", "cluster_hook", "clusters", "load", "register", "report", "save",
]  # fmt: skip

register()
