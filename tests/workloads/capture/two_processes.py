"""Two processes of a real run over gloo: each trains one step of each script and writes down what torch exchanges.

    python two_processes.py FOLDER    # FOLDER/RANK.json: one JSON object, script -> [[kind, elements], ...]

The processes are forked when torch is imported, which takes most of the time.

What is written down is what torch's own profiler hooks and DDP's communication hook see; nothing of trainyard is imported.
"""

from __future__ import annotations

import json
import os
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

RANKS, WIDTH, HIDDEN, BATCH = 2, 16, 32, 4
Log = list[list[Any]]

# (kind, position of the whole tensor: what goes in, or what comes out)
SEEN = {
    "c10d._allgather_base_": ("all_gather", 0),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d.allreduce_": ("all_reduce", 0),
    "_c10d_functional.all_reduce": ("all_reduce", 0),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def data_parallel() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Net())


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (RANKS,)), nn.Sequential(Net(), Net())
    for part in model:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, model = init_device_mesh("cpu", (RANKS,)), nn.Sequential(Net(), Net())
    for part in model:
        parallelize_module(part, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


SCRIPTS = {"data_parallel": data_parallel, "sharded": sharded, "tensor_parallel": tensor_parallel}


class Listener(TorchDispatchMode):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).rpartition(".")[0]
        if name in SEEN:
            kind, position = SEEN[name]
            tensors = args[position] if isinstance(args[position], list) else [args[position]]
            self.log.append([kind, sum(tensor.numel() for tensor in tensors)])
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented
        return func(*args, **(kwargs or {}))


def exchanged(name: str) -> Log:
    """The exchanges of the second step: the first one of DDP has other buckets, and FSDP2 sets itself up in it."""
    torch.manual_seed(0)
    model = SCRIPTS[name]()
    log: Log = []
    if isinstance(model, nn.parallel.DistributedDataParallel):

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text
            log.append(["all_reduce", bucket.buffer().numel()])
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        log.clear()
        with Listener([] if isinstance(model, nn.parallel.DistributedDataParallel) else log):
            model(torch.randn(BATCH, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return log


def take_part(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=dist.FileStore(str(folder / "store"), RANKS))
    (folder / f"{rank}.json").write_text(json.dumps({name: exchanged(name) for name in SCRIPTS}))
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may abort the interpreter's own teardown under load


if __name__ == "__main__":
    import torch._dynamo  # DDP would import it in each process, and so on
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    ranks = [get_context("fork").Process(target=take_part, args=(rank, Path(sys.argv[1]))) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
