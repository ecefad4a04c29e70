"""What remembers a call: a checkpointed block is called twice, and the second call must find and leave it as the first one did.

A key-value cache of transformers grows with every call of a decoder layer. A model in training makes one that has nothing for the
layer yet, and seldom uses it: it is left out, as transformers' own checkpointing does, since keys and values would live until
backward otherwise. A program that gives such a cache to a later call is told so. One that the program gives to the model by itself
is filled. Of any other object, list or dictionary a copy is kept for the second call; tensors and modules in it are shared.

Batch normalisation counts every batch into its running statistics. The second call must not: it writes to others, for in training
they are written and not read.

Other modules keep what they write and read it in the same call: a recurrent state, a codebook that follows its inputs, the vectors
of spectral normalisation, a counter. The first calls of a block show which buffers and attributes those are (`ModuleState`). From
then on their values before a call are kept for its repetition, after which they are put back as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.errors import BadInput

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


_LEFT_EMPTY: WeakSet[Any] = WeakSet()
"""Caches that were left out of a call."""
_GIVEN: WeakSet[Any] = WeakSet()
"""Caches that a program has called a model with."""


def without_empty_caches(
    block: object, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a block's call, with None for caches of the model's own that have nothing for it yet."""
    caches = [value for value in (*arguments, *keywords.values()) if _is_cache(value) and value not in _GIVEN]
    if not caches:
        return arguments, keywords
    layer = _layer_of(block)
    empty = {id(cache) for cache in caches if _is_empty(cache, layer)}
    _LEFT_EMPTY.update(cache for cache in caches if id(cache) in empty)
    return (
        tuple(None if id(value) in empty else value for value in arguments),
        {name: None if id(value) in empty else value for name, value in keywords.items()},
    )


def note_given_caches(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Before a call of the model. A cache that an earlier call should have filled would change what is computed: it is refused."""
    caches = [value for value in (*arguments, *keywords.values()) if _is_cache(value)]
    if any(cache in _LEFT_EMPTY for cache in caches):
        raise BadInput(
            "the model is called with a cache of keys and values that it has made itself in an earlier call and left empty, since "
            "blocks that an overlay checkpoints or replays do not fill such a one: give the first call a cache of your own "
            "(past_key_values=DynamicCache()), or write unit='tensors'"
        )
    _GIVEN.update(caches)


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
    """The running statistics that a block, or the block of a call, would write; others that nobody reads take their place."""
    block = call if isinstance(call, nn.Module) else getattr(call, "__self__", None)
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


_ABSENT = object()
WATCHED = 2
"""Calls of a block after which it is known what a call writes."""


class Slot(NamedTuple):
    """A buffer or an attribute of a module inside a block."""

    path: str
    place: Literal["_buffers", "__dict__"]
    name: str
    in_place: bool
    """Whether its tensor is written, or another value takes its place."""


class _Knowledge:
    """What the calls of a block have written so far."""

    def __init__(self) -> None:
        self.calls = 0
        self.slots: dict[tuple[str, str, str], Slot] = {}

    def add(self, slot: Slot) -> None:
        """A slot that one call writes in place and another replaces is copied."""
        known = self.slots.get(slot[:3], slot)
        self.slots[slot[:3]] = slot._replace(in_place=slot.in_place or known.in_place)


_KNOWN: WeakKeyDictionary[nn.Module, _Knowledge] = WeakKeyDictionary()


def writes_state(block: nn.Module) -> bool:
    """Whether a checkpointed call of the block has written buffers or attributes, other than running statistics."""
    knowledge = _KNOWN.get(block)
    return knowledge is not None and bool(knowledge.slots)


class _Value(NamedTuple):
    """What a slot held before a call."""

    slot: Slot
    holder: dict[str, Any]
    value: Any
    version: int
    content: Tensor | None
    """A copy, where the tensor may be written in place."""


class ModuleState:
    """What the modules of a block held before a call, as far as the call writes it. Made before the call; `keep_written` after."""

    __slots__ = ("knowledge", "modules", "values")

    def __init__(self, call: Callable[..., Any]) -> None:
        block = getattr(call, "__self__", None)
        self.values: list[_Value] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.knowledge: _Knowledge | None = None
        if isinstance(block, nn.Module):
            self.knowledge = _KNOWN.setdefault(block, _Knowledge())
            if self.knowledge.calls < WATCHED:
                self.modules = list(block.named_modules())
                self.values = [value for path, module in self.modules for value in _values_of(path, module)]
            elif self.knowledge.slots:
                self.values = [_without_history(_value_of(block, slot)) for slot in self.knowledge.slots.values()]

    def keep_written(self) -> None:
        """Called after the call: forgets what it has not written."""
        if not self.modules or self.knowledge is None:
            return
        before = {value.slot[:3] for value in self.values}
        written = [value for value in map(_written, self.values) if value is not None]
        for path, module in self.modules:
            for value in _values_of(path, module):  # attributes that the call made
                if value.slot[:3] not in before:
                    written.append(_Value(value.slot._replace(in_place=False), value.holder, _ABSENT, 0, None))
        self.modules, self.values = [], [_without_history(value) for value in written]
        self.knowledge.calls += 1
        for value in written:
            self.knowledge.add(value.slot)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Everything that the call wrote as it was before; afterwards, as it is now."""
        present = [(value.holder, value.slot.name, value.holder.get(value.slot.name, _ABSENT)) for value in self.values]
        for slot, holder, value, _, content in self.values:
            _put(holder, slot.name, value if content is None else content.clone())
        try:
            yield
        finally:
            for holder, name, now in present:
                _put(holder, name, now)


def _put(holder: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        holder.pop(name, None)
    else:
        holder[name] = value


def _written(value: _Value) -> _Value | None:
    """The value, if its tensor was changed in place or the slot has another one now."""
    if isinstance(value.value, Tensor) and not value.value.is_inference() and value.value._version != value.version:
        return value
    if value.holder.get(value.slot.name, _ABSENT) is value.value:
        return None
    return value._replace(slot=value.slot._replace(in_place=False), content=None)


def _without_history(value: _Value) -> _Value:
    """A tensor of an earlier step would hold all that its graph has saved, and a repetition makes no graph that is used."""
    held = value.value
    if isinstance(held, Tensor) and held.grad_fn is not None:
        return value._replace(value=held.detach().requires_grad_())
    return value


def _values_of(path: str, module: nn.Module) -> Iterator[_Value]:
    """Buffers, and attributes that are tensors, numbers or not there yet."""
    buffers = {} if isinstance(module, _NormBase) else module._buffers
    for name, value in buffers.items():
        yield _value(Slot(path, "_buffers", name, in_place=True), module._buffers, value)
    for name, value in module.__dict__.items():
        if isinstance(value, Tensor | int | float | NoneType):
            yield _value(Slot(path, "__dict__", name, in_place=True), module.__dict__, value)


def _value_of(block: nn.Module, slot: Slot) -> _Value:
    module = block.get_submodule(slot.path)
    holder = module._buffers if slot.place == "_buffers" else module.__dict__
    return _value(slot, holder, holder.get(slot.name, _ABSENT))


def _value(slot: Slot, holder: dict[str, Any], value: Any) -> _Value:
    if not isinstance(value, Tensor) or value.is_inference() or not slot.in_place:
        return _Value(slot, holder, value, 0, None)
    with torch.no_grad(), _disable_current_modes():  # it is nothing that the block computes
        return _Value(slot, holder, value, value._version, value.detach().clone())
