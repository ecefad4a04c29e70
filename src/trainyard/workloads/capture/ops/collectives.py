"""Handlers of the collectives of torch.distributed, in-place (`c10d`) and functional (`_c10d_functional`).

Any process group will do; torch's `fake` one needs no second process. `elements` always counts the full tensor: the output of an
all-gather, the input of a reduce-scatter. A group is identified by its ranks, whatever its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from trainyard.ir import Collective, Copy
from trainyard.workloads.capture.ops.registry import Call, Handler, Piece

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "send", "receive"]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def _group(call: Call) -> tuple[int, str]:
    """How many ranks take part, and which."""
    for argument in (*call.args, *call.kwargs.values()):
        if isinstance(argument, dist.ProcessGroup):
            return argument.size(), _ranks(argument)
        if type(argument).__name__ == "ScriptObject":
            try:
                group = dist.ProcessGroup.unbox(argument)
            except (RuntimeError, TypeError):
                continue
            return group.size(), _ranks(group)
    return dist.get_world_size(), "world"


def _ranks(group: dist.ProcessGroup) -> str:
    if group.size() == dist.get_world_size():
        return "world"
    return ",".join(map(str, sorted(dist.get_process_group_ranks(group))))


def _in_place(kind: Kind, written: int, read: int, counted: int) -> Handler:
    """`written`, `read` and `counted` are the argument positions of the output, of the input, and of the full tensor."""

    def handler(call: Call) -> Piece:
        ranks, group = _group(call)
        body = Collective(kind, _elements(_tensors(call.args[counted])), ranks, group)
        return Piece(body, inputs=tuple(_tensors(call.args[read])), outputs=tuple(_tensors(call.args[written])))

    return handler


def _one_sided(kind: Kind, receives: bool) -> Handler:
    def handler(call: Call) -> Piece:
        ranks, group = _group(call)
        tensors = tuple(_tensors(call.args[0]))
        body = Collective(kind, _elements(tensors), ranks, group)
        return Piece(body, inputs=() if receives else tensors, outputs=tensors if receives else ())

    return handler


def _functional(kind: Kind, counted: Callable[[Call], Iterable[Tensor]]) -> Handler:
    def handler(call: Call) -> Piece:
        from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]  # not exported

        name = call.args[-1]
        group = name if isinstance(name, dist.ProcessGroup) else _resolve_process_group(name)
        return Piece(Collective(kind, _elements(counted(call)), group.size(), _ranks(group)))

    return handler


def _gathered_input(call: Call) -> Piece:
    """FSDP2 copies its shards into one buffer, at the position where the all-gather expects this rank's."""
    shards = tuple(call.args[0])
    return Piece(Copy("all_gather_copy_in", _elements(shards)), inputs=shards, outputs=(call.outputs[0],))


def _sent(call: Call) -> list[Tensor]:
    return call.inputs


def _left(call: Call) -> list[Tensor]:
    return call.outputs


# fmt: off
_FUNCTIONAL: dict[str, Handler] = {
    "all_reduce":                       _functional("all_reduce", _sent),
    "all_reduce_":                      _functional("all_reduce", _sent),
    "all_reduce_coalesced":             _functional("all_reduce", _sent),
    "all_reduce_coalesced_":            _functional("all_reduce", _sent),
    "all_gather_into_tensor":           _functional("all_gather", _left),
    "all_gather_into_tensor_out":       _functional("all_gather", _left),
    "all_gather_into_tensor_coalesced": _functional("all_gather", _left),
    "reduce_scatter_tensor":            _functional("reduce_scatter", _sent),
    "reduce_scatter_tensor_coalesced":  _functional("reduce_scatter", _sent),
    "broadcast":                        _functional("broadcast", _sent),
    "broadcast_":                       _functional("broadcast", _sent),
    "all_to_all_single":                _functional("all_to_all", _sent),
}

COLLECTIVES: dict[str, Handler] = {                                     # written, read, counted
    "c10d.allreduce_":                        _in_place("all_reduce",     0, 0, 0),
    "c10d.allreduce_coalesced_":              _in_place("all_reduce",     0, 0, 0),
    "c10d.allgather_":                        _in_place("all_gather",     0, 1, 0),
    "c10d._allgather_base_":                  _in_place("all_gather",     0, 1, 0),
    "c10d.allgather_into_tensor_coalesced_":  _in_place("all_gather",     0, 1, 0),
    "c10d.reduce_scatter_":                   _in_place("reduce_scatter", 0, 1, 1),
    "c10d._reduce_scatter_base_":             _in_place("reduce_scatter", 0, 1, 1),
    "c10d.reduce_scatter_tensor_coalesced_":  _in_place("reduce_scatter", 0, 1, 1),
    "c10d.broadcast_":                        _in_place("broadcast",      0, 0, 0),
    "c10d.alltoall_":                         _in_place("all_to_all",     0, 1, 1),
    "c10d.alltoall_base_":                    _in_place("all_to_all",     0, 1, 1),
    "c10d.reduce_":                           _in_place("reduce",         0, 0, 0),
    "fsdp.all_gather_copy_in":                _gathered_input,
    "c10d.send":                              _one_sided("send", receives=False),
    "c10d.recv_":                             _one_sided("receive", receives=True),
    **{f"_c10d_functional.{name}":          handler for name, handler in _FUNCTIONAL.items()},
    **{f"_c10d_functional_autograd.{name}": handler for name, handler in _FUNCTIONAL.items()},
}
# fmt: on
