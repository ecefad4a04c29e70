"""What remembers a call: a checkpointed block is called twice, and the second call must find and leave it as the first one did.

A key-value cache of transformers grows with every call of a decoder layer. Where it has nothing for the layer yet, training has no
use for it, and it is left out, as transformers' own checkpointing does: keys and values would live until backward otherwise. Of
any other object, list or dictionary a copy is kept for the second call; tensors and modules in it are shared.

Batch normalisation counts every batch into its running statistics. The second call must not: it writes to others, for in training
they are written and not read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_SHARED = (
    Tensor, nn.Module, str, bytes, int, float, complex, NoneType, type, Enum, FunctionType, MethodType, BuiltinFunctionType,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
)  # fmt: skip
"""What a call does not change, or what is not copied on purpose."""


def copied(item: Any) -> Any:
    """An argument as it is now: lists, dictionaries and objects are copied, with all that they refer to.

    >>> seen = [torch.ones(2)]
    >>> before = copied({"seen": seen})
    >>> seen.append(3)
    >>> before["seen"] == seen[:1], before["seen"][0] is seen[0]
    (True, True)
    """
    return _copied(item, {})


def _copied(item: Any, done: dict[int, Any]) -> Any:
    if isinstance(item, _SHARED):
        return item
    if id(item) in done:
        return done[id(item)]
    if isinstance(item, tuple):
        parts = [_copied(part, done) for part in item]
        if all(part is one for part, one in zip(parts, item, strict=True)):
            return item
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    try:
        twin = copy(item)
    except Exception:  # not made to be copied: then it is shared
        return item
    done[id(item)] = twin
    if isinstance(twin, list):
        twin[:] = [_copied(part, done) for part in twin]
    elif isinstance(twin, dict):
        for name, part in [*twin.items()]:
            twin[name] = _copied(part, done)
    attributes = getattr(twin, "__dict__", None)
    if attributes is not None and attributes is not getattr(item, "__dict__", None):
        for name, part in [*attributes.items()]:
            attributes[name] = _copied(part, done)
    return twin


def without_empty_caches(
    call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a block's call, with None for caches that have nothing for it yet."""
    if not any(map(_is_cache, (*arguments, *keywords.values()))):
        return arguments, keywords
    layer = _layer_of(getattr(call, "__self__", None))
    return (
        tuple(None if _is_empty(value, layer) else value for value in arguments),
        {name: None if _is_empty(value, layer) else value for name, value in keywords.items()},
    )


def _is_cache(value: Any) -> bool:
    """Whether it is a cache of transformers, which is not imported for this."""
    return not isinstance(value, _SHARED) and any(
        base.__name__ == "Cache" and base.__module__.startswith("transformers.") for base in type(value).__mro__
    )


def _is_empty(value: Any, layer: int | None) -> bool:
    if layer is None or not _is_cache(value):
        return False
    try:
        return int(value.get_seq_length(layer)) == 0
    except Exception:  # a kind of cache that does not tell
        return False


def _layer_of(block: object) -> int | None:
    """The number by which a decoder layer of transformers asks for its part of a cache."""
    if not isinstance(block, nn.Module):
        return None
    numbers = {number for module in block.modules() if isinstance(number := getattr(module, "layer_idx", None), int)}
    return numbers.pop() if len(numbers) == 1 else None


_Buffer = tuple[dict[str, Tensor | None], str, Tensor | None]


def set_statistics_aside(call: Callable[..., Any]) -> list[_Buffer]:
    """The running statistics that the block of a call would write; others that nobody reads take their place."""
    block = getattr(call, "__self__", None)
    aside: list[_Buffer] = []
    for module in block.modules() if isinstance(block, nn.Module) else ():
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            aside += [(module._buffers, name, value) for name, value in module._buffers.items()]
    for buffers, name, value in aside:
        if value is not None:
            buffers[name] = torch.empty_like(value) if value.is_floating_point() else torch.zeros_like(value)
    return aside


def put_back(aside: list[_Buffer]) -> None:
    for buffers, name, value in aside:
        buffers[name] = value
