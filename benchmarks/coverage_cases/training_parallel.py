"""Models on a process group of eight ranks: replicated, sharded, tensor parallel. The group is torch's fake one, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training
from coverage_cases.training_frameworks import language_model, tokens
from coverage_cases.training_loops import classifier, samples

RANKS = 8


def join() -> None:
    """This process becomes rank 0 of eight."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=RANKS)


def replicated(*, accumulation: bool = False) -> Training:
    import torch
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    join()
    model = DistributedDataParallel(classifier())
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()
    if not accumulation:
        return Training(model, x, y, F.cross_entropy, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with model.no_sync():
            (F.cross_entropy(model(x), y) / 2).backward()
        (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

    return Training(model, step=step)


def sharded(**keywords: Any) -> Training:
    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join()
    mesh = init_device_mesh("cpu", (RANKS,))
    model = classifier()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **keywords)
    fully_shard(model, mesh=mesh, **keywords)
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def sharded_language_model() -> Training:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join()
    mesh = init_device_mesh("cpu", (RANKS,))
    model = language_model(use_cache=False)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Training(model, tokens(), optimizer=torch.optim.AdamW(model.parameters()))


def replicated_language_model() -> Training:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    join()
    model = DistributedDataParallel(language_model(use_cache=False))
    return Training(model, tokens(), optimizer=torch.optim.AdamW(model.parameters()))


def tensor_parallel() -> Training:
    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    join()
    mesh = init_device_mesh("cpu", (RANKS,))
    model = parallelize_module(classifier(), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def hand_written_all_reduce() -> Training:
    """Gradients that the loop itself averages over the ranks."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()

    join()
    return Training(model, step=step)


def synchronized_batch_norm() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    wrapped = DistributedDataParallel(model)
    return Training(
        wrapped,
        torch.randn(4, 3, 16, 16),
        torch.randint(0, 4, (4,)),
        F.cross_entropy,
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
    )


PARALLEL: dict[str, Callable[[], Training]] = {
    "DistributedDataParallel": replicated,
    "DistributedDataParallel, accumulation without synchronisation": partial(replicated, accumulation=True),
    "DistributedDataParallel, batch norm": synchronized_batch_norm,
    "DistributedDataParallel, language model": replicated_language_model,
    "fully_shard": sharded,
    "fully_shard, parameters kept after forward": partial(sharded, reshard_after_forward=False),
    "fully_shard, language model": sharded_language_model,
    "tensor parallel": tensor_parallel,
    "all-reduce in the loop": hand_written_all_reduce,
}
