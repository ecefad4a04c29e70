"""The cluster reduction as DDP's communication hook: gradients are averaged inside a cluster, never between clusters.

DIRECT, Algorithm 1: `AGAU.Reduce` in every step, inside a cluster; what goes between clusters is the StalenessAverager's. A process
stands for a whole cluster, whose DPUs' gradients its own batch has summed already, so nothing is sent and only the price is noted;
or `processes` of them stand for one, and share their gradients over a subgroup.

(DDP compares the annotations of a hook with types, so this file must not turn them into text.)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.live.direct.group import DirectGroup, Options, size_of


@dataclass(frozen=True, slots=True)
class Cluster:
    """State of `cluster_hook`: which cluster this process belongs to, and the group of its processes (none if it is alone)."""

    number: int
    processes: int
    group: dist.ProcessGroup | None


def clusters(processes: int = 1) -> Cluster:
    """Divide all ranks into clusters of so many processes each; all ranks call it.

    Prices of the whole group are those of that many clusters from now on.
    """
    require_positive("clusters", processes=processes)
    world, size, rank = dist.group.WORLD, dist.get_world_size(), dist.get_rank()
    if size % processes:
        raise BadInput(f"{size} processes do not divide into clusters of {processes}: start a multiple of {processes}")
    direct = isinstance(world, DirectGroup)
    if isinstance(world, DirectGroup):
        world.session.processes_per_cluster = processes
    group = None
    if processes > 1:
        group, _ = dist.new_subgroups(group_size=processes, pg_options=Options(local=True) if direct else None)
    return Cluster(rank // processes, processes, group)


def cluster_hook(state: Cluster, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`model.register_comm_hook(clusters(), cluster_hook)`, with DDP or on its own."""
    gradients = bucket.buffer()
    if state.group is not None:
        work = dist.all_reduce(gradients.div_(state.processes), group=state.group, async_op=True)
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return reduced
    world = dist.group.WORLD
    if isinstance(world, DirectGroup):
        world.session.charge_reduction(size_of(gradients))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future
