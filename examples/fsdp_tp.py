"""A script for eight ranks, run on nodes that nobody has built.

    trainyard run examples/fsdp_tp.py:data_parallel   --on mcdla-b
    trainyard run examples/fsdp_tp.py:sharded         --on dc-dla
    trainyard run examples/fsdp_tp.py:tensor_parallel --on mcdla-b
    trainyard run examples/fsdp_tp.py:both            --on mcdla-b

Each function makes its process group as a script does under torchrun, but torch's fake one: this process is rank 0 of WORLD and
the exchanges that it starts are written down, not done. The batch is that of one rank. For another number of ranks:

    trainyard run examples/fsdp_tp.py:sharded --world 4 --on "dc-dla(devices=4)"
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WORLD, WIDTH, TOKENS = 8, 512, 128
Built = tuple[nn.Module, Tensor, Tensor, Any, torch.optim.Optimizer]


class Block(nn.Module):
    """A transformer's feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network(blocks: int = 4) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(blocks)))


def data_parallel(batch: int = 4) -> Built:
    """Every rank has the model; gradients are averaged in buckets of 25 MB while backward goes on."""
    ranks()
    return training(DistributedDataParallel(network()), batch)


def sharded(batch: int = 4) -> Built:
    """Every rank has its part of every parameter; blocks are gathered when they are used."""
    mesh = ranks(1)
    model = network()
    for block in model:
        fully_shard(block, mesh=mesh)
    return training(fully_shard(model, mesh=mesh), batch)


def tensor_parallel(batch: int = 4) -> Built:
    """Every rank has its part of the features between `up` and `down`; two all-reduces a block, one forward, one backward."""
    return training(split(network(), ranks(1)), batch)


def both(batch: int = 4) -> Built:
    """Half of the ranks share a block's features, both halves share the parameters: of eight, a 2 x 4 mesh."""
    mesh = ranks(2)
    model = split(network(), mesh["tensor"])
    for block in model:
        fully_shard(block, mesh=mesh["data"])
    return training(fully_shard(model, mesh=mesh["data"]), batch)


def ranks(groups: int = 0) -> DeviceMesh | None:
    """The process group that there is (`--world`), else one of WORLD; as a mesh of so many groups, or as it is."""
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=WORLD)
    if groups < 2:
        return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",)) if groups else None
    return init_device_mesh("cpu", (groups, dist.get_world_size() // groups), mesh_dim_names=("data", "tensor"))


def split(model: nn.Sequential, mesh: DeviceMesh | None) -> nn.Sequential:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def training(model: nn.Module, batch: int) -> Built:
    x = torch.randn(batch, TOKENS, WIDTH)
    return model, x, x, nn.functional.mse_loss, torch.optim.AdamW(model.parameters())
