"""Models wrapped for data parallelism, made fit for a capture.

DistributedDataParallel keeps its parameters inside a C++ reducer, so a capture gives it a reducer of its own, over the stand-ins.
FSDP2 refuses parameters without values: such a model is captured with values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether FSDP2's `fully_shard` was applied to any of them."""
    return any("FSDPModule" in {base.__name__ for base in type(module).__mro__} for module in modules)


def _all_reduce(group: Any, bucket: Any) -> Any:
    """One all-reduce for each bucket, as by default; the fake process group's own future carries no tensor."""
    dist.all_reduce(bucket.buffer(), group=group)
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def renew_reducers(modules: Iterable[nn.Module]) -> bool:
    """Every DistributedDataParallel among them reduces the parameters it has now; False if there is none.

    `objects_kept` gives the old reducer back. A new one puts all gradients into one bucket until it has seen them arrive once.
    """
    from torch.nn.parallel import DistributedDataParallel

    wrappers: list[Any] = [module for module in modules if isinstance(module, DistributedDataParallel)]
    for wrapper in wrappers:
        parameters, sparse = wrapper._build_params_for_reducer()
        names = wrapper._build_debug_param_to_name_mapping(parameters)
        wrapper._ddp_init_helper(parameters, sparse, names, wrapper.static_graph)
        dist._register_comm_hook(wrapper.reducer, wrapper.process_group, _all_reduce)  # type: ignore[attr-defined]  # C++ binding
    return bool(wrappers)


def fill_buckets(modules: Iterable[nn.Module]) -> None:
    """Gradients are grouped in the order in which they arrived; without this the next forward pass would do it, and exchange it."""
    for module in modules:
        if isinstance(getattr(module, "reducer", None), dist.Reducer):  # type: ignore[attr-defined]  # C++ binding
            module.reducer._rebuild_buckets()  # type: ignore[union-attr,operator]  # the same
