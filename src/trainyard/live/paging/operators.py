"""What decides whether an aten op may be repeated: what it writes, and whether it draws random numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

# Running statistics, which these ops change (some without saying so in their schemas), by place of the argument.
_STATISTICS = {
    "native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4),
    "_native_batch_norm_legit": (3, 4), "_batch_norm_with_update": (3, 4),
}  # fmt: skip
# Their results depend on more than their arguments, or they change what a storage is.
_NEVER = {"set_", "resize_", "resize_as_", "_cudnn_rnn", "_cudnn_init_dropout_state", "record_stream", "_local_scalar_dense"}


@cache
def written_arguments(function: Any) -> tuple[int | str, ...]:
    """Places and names of the arguments that the op writes to, by its schema.

    >>> written_arguments(torch.ops.aten.relu_.default), written_arguments(torch.ops.aten.relu.default)
    ((0,), ())
    """
    arguments: list[int | str] = []
    for position, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            arguments.append(argument.name if argument.kwarg_only else position)
    return tuple(arguments)


@cache
def preserved_arguments(function: Any) -> frozenset[int]:
    """Positions of arguments that a second call must not change: running statistics."""
    return frozenset(_STATISTICS.get(function._schema.name.partition("::")[2], ()))


@cache
def uses_random_numbers(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


@cache
def is_repeatable(function: Any) -> bool:
    """Only torch's own ops, whose results depend on their arguments and the generator alone."""
    room, _, name = function._schema.name.partition("::")
    return room == "aten" and name not in _NEVER


def has_own_generator(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether the call passes its own generator, whose state is not tracked."""
    return any(isinstance(item, torch.Generator) for item in (*arguments, *keywords.values()))


def generator_of(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


def is_movable(tensor: Tensor) -> bool:
    """Whether the overlay can move a tensor: dense, strided, not a subclass, on CPU or CUDA."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_inference()
        and tensor.device.type in ("cpu", "cuda")
    )
