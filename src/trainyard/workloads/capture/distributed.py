"""Models wrapped by DDP or FSDP2: preparing them for a capture, and the number of data-parallel ranks.

DistributedDataParallel keeps its parameters inside a C++ reducer, so a capture gives it a reducer of its own, over the stand-ins.
FSDP2 refuses parameters without values: such a model is captured with values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from trainyard.errors import CaptureError
from trainyard.ir import Collective, Phase, Role
from trainyard.workloads.capture.frames import Frame

if TYPE_CHECKING:
    from trainyard.workloads.capture.recorder import RawOp
    from trainyard.workloads.capture.tensor_table import RawTensor


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether FSDP2's `fully_shard` was applied to any of them."""
    return any("FSDPModule" in {base.__name__ for base in type(module).__mro__} for module in modules)


def replicas(modules: Iterable[nn.Module], parameters: Iterable[Any], ops: Iterable[Any]) -> int:
    """The number of data-parallel ranks: those among which DDP or FSDP2 reduces gradients.

    Without such a wrapper: the world divided by the ranks that share a DTensor parameter, or take part in a collective of forward.
    """
    from torch.nn.parallel import DistributedDataParallel

    world = dist.get_world_size()
    sizes = [module.process_group.size() for module in modules if isinstance(module, DistributedDataParallel)]
    for module in modules if not sizes else ():
        if is_sharded([module]):
            group = module._get_fsdp_state()._fsdp_param_group  # type: ignore[operator]  # FSDP2's own
            sizes += [group.mesh_info.mesh.size()] if group is not None else []
    if sizes:
        return max(sizes)
    group_sizes = [parameter.device_mesh.size() for parameter in parameters if hasattr(parameter, "_local_tensor")]
    group_sizes = group_sizes or [op.body.ranks for op in ops if isinstance(op.body, Collective) and op.phase is Phase.FORWARD]
    return world // max(group_sizes, default=1)


def settle_layers(ops: Iterable[RawOp], tensors: Sequence[RawTensor]) -> None:
    """Assigns FSDP2's collectives, and the copies around them, to the module whose parameters they gather or reduce.

    FSDP2 gathers a module's parameters while another one runs. The module is the common parent of all parameters whose shards are
    copied in; gradients belong to the module of their parameters.
    """
    owners: dict[str, Frame] = {}
    carries: dict[int, Frame] = {}

    def base(tensor: int) -> int:
        view_of = tensors[tensor].view_of
        return tensor if view_of is None else view_of

    for op in ops:
        read = [tensors[base(tensor)] for tensor in op.inputs]
        names = [tensor.name for tensor in read if tensor.role in (Role.PARAMETER, Role.BUFFER) and tensor.name]
        frame = next((carries[base(tensor)] for tensor in op.inputs if base(tensor) in carries), None)
        if op.name == "fsdp.all_gather_copy_in" and names:
            frame = Frame(_common(names))
            owners.update(dict.fromkeys(names, frame))
        elif isinstance(op.body, Collective) and frame is None:
            written = [tensors[base(tensor)] for tensor in op.outputs]
            frame = next(
                (owners[tensor.name] for tensor in written if tensor.role is Role.PARAMETER_GRADIENT and tensor.name in owners),
                None,
            )
        elif op.name != "fsdp.split_with_sizes_copy" and not isinstance(op.body, Collective):
            continue
        if frame is not None:
            op.frame = frame
            if op.name != "fsdp.split_with_sizes_copy":
                carries.update(dict.fromkeys(map(base, op.outputs), frame))


def _common(names: Sequence[str]) -> str:
    """The path that all parameters have in common.

    >>> _common(["blocks.0.up.weight", "blocks.0.down.bias"])
    'blocks.0'
    """
    paths = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _all_reduce(group: Any, bucket: Any) -> Any:
    """One all-reduce for each bucket, as by default; the fake process group's own future carries no tensor."""
    dist.all_reduce(bucket.buffer(), group=group)
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def rebuild_reducers(modules: Iterable[nn.Module]) -> bool:
    """Every DistributedDataParallel among them reduces the parameters it has now; False if there is none.

    `restored_objects` gives the old reducer back. A new one puts all gradients into one bucket until it has seen them arrive once.
    With a static graph it would reduce everything after the first backward; from the second on, a static graph makes no difference.
    """
    from torch.nn.parallel import DistributedDataParallel

    wrappers: list[Any] = [module for module in modules if isinstance(module, DistributedDataParallel)]
    for wrapper in wrappers:
        if wrapper._comm_hooks:
            raise CaptureError(
                "a communication hook of DistributedDataParallel works on tensors that the fake process group does not have: "
                "leave register_comm_hook out, or make the exchange in the training step itself"
            )
        wrapper.static_graph = False
        parameters, sparse = wrapper._build_params_for_reducer()
        names = wrapper._build_debug_param_to_name_mapping(parameters)
        wrapper._ddp_init_helper(parameters, sparse, names, False)
        dist._register_comm_hook(wrapper.reducer, wrapper.process_group, _all_reduce)  # type: ignore[attr-defined]  # C++ binding
    return bool(wrappers)


def fill_buckets(modules: Iterable[nn.Module]) -> None:
    """Groups gradients into buckets in the order of their arrival; otherwise the next forward pass would, with a broadcast."""
    for module in modules:
        if isinstance(getattr(module, "reducer", None), dist.Reducer):  # type: ignore[attr-defined]  # C++ binding
            module.reducer._rebuild_buckets()  # type: ignore[union-attr,operator]  # the same
