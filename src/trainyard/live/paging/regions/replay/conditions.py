"""What a recording took from Python, and must find unchanged: addresses of tensors, settings of modules, the mode of autocast.

A program may load other weights, freeze a layer, raise a dropout rate or a temperature, or put a hook on a module at any time. Each
replay is preceded by a look at all of these, some microseconds for a block. What modules keep in lists, dictionaries and objects
of their own is looked at as well, a few levels deep, and so is what their functions look up outside (`lookups`). A block that reads
something else is found by its `fingerprints`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.live.paging.regions.replay.lookups import OF_MODULES, Closure, Variables, attributes_of, lookups
from trainyard.live.paging.signature import autocast_modes

_PLAIN = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_FORWARD: Final = "_forward_hooks"
_HOOKS: Final = (_FORWARD, "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, type)
_SKIPPED = (nn.Module, Tensor, ModuleType)
_AS_STORED = (dict.__getitem__, list.__getitem__, tuple.__getitem__)
"""Other dictionaries may make what they are asked for, and something else each time."""
LEVELS = 3
"""How deep lists, dictionaries and objects are looked into."""
LARGEST = 256
"""Parts of a list, a dictionary or an object that are looked at."""
Parts = dict[Any, Any] | list[Any] | tuple[Any, ...]
Holder = Parts | Variables


class Conditions:
    """Of one block.

    >>> block = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    >>> block[0].scales = {"up": [1.0, 2.0]}
    >>> conditions = Conditions(block)
    >>> block[0].scales = {"up": [1.0, 2.0]}
    >>> conditions.hold()
    True
    >>> block[0].scales["up"][1] = 3.0
    >>> conditions.hold()
    False
    """

    __slots__ = ("autocast", "forward_hooks", "hooks", "objects", "settings", "storages", "tensors")

    def __init__(self, block: nn.Module) -> None:
        self.autocast = autocast_modes()
        self.tensors: list[tuple[Holder, Any, int, bool]] = []
        self.settings: list[tuple[Holder, Any, Any]] = []
        self.objects: list[tuple[Holder, Any, Any, Parts, int]] = []
        """Lists, dictionaries and objects whose parts are looked at one by one, with their number: they must be the same ones."""
        self.storages: dict[int, torch.device] = {}
        """Addresses of the memory of all these tensors."""
        self.hooks: list[dict[int, Any]] = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS]
        """Of all modules, and of those inside: those of the block itself run around its call. There must be none."""
        self.forward_hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        """Of modules inside that have some, now and as they were."""
        seen: set[int] = set()
        for module in block.modules():
            for holder in (module._parameters, module._buffers):
                self._add(holder, holder.items(), seen, 0)
            own = [(name, value) for name, value in module.__dict__.items() if name not in OF_MODULES]
            self._add(module.__dict__, own, seen, 0)
            if module is not block:
                self.hooks += [hooks for name in _HOOKS if not (hooks := getattr(module, name)) or name != _FORWARD]
                self.forward_hooks += [(module._forward_hooks, dict(module._forward_hooks))] if module._forward_hooks else []
        for variables, names in lookups(block):
            is_closure = isinstance(variables, Closure)
            self._add(variables, ((name, variables[name]) for name in names), seen, 1 if is_closure else LEVELS - 1, is_closure)

    def _add(self, holder: Holder, items: Iterable[tuple[Any, Any]], seen: set[int], level: int, with_objects: bool = True) -> None:
        """`with_objects`: all attributes of objects count, not those alone that a function names."""
        for name, value in items:
            if isinstance(value, Tensor):
                self.tensors.append((holder, name, _address(value), value.requires_grad))
                if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided:
                    self.storages[value.untyped_storage().data_ptr()] = value.device
            elif isinstance(value, _FUNCTIONS):
                self.settings.append((holder, name, value))
            elif _is_plain(value):
                self.settings.append((holder, name, deepcopy(value)))
            elif level < LEVELS and (parts := _parts(value, with_objects)) is not None:
                self.objects.append((holder, name, value, parts, len(parts)))
                if id(value) not in seen:
                    seen.add(id(value))
                    entries = parts.items() if isinstance(parts, dict) else enumerate(parts)
                    self._add(parts, entries, seen, level + 1, with_objects)

    def hold(self) -> bool:
        """Whether all is as it was."""
        if any(self.hooks) or self.autocast != autocast_modes() or any(now != before for now, before in self.forward_hooks):
            return False
        try:
            for holder, name, address, requires_grad in self.tensors:
                tensor = holder[name]
                if not isinstance(tensor, Tensor) or _address(tensor) != address or tensor.requires_grad is not requires_grad:
                    return False
            for holder, name, value in self.settings:
                present = holder[name]
                if present is not value and (type(present) is not type(value) or present != value):
                    return False
            return all(holder[name] is value and len(parts) == count for holder, name, value, parts, count in self.objects)
        except (KeyError, IndexError):
            return False


def _is_plain(value: Any, levels: int = LEVELS) -> bool:
    """Whether a value is compared as a whole: a number, a text, or some of these in lists and dictionaries."""
    if type(value) in _PLAIN or isinstance(value, np.generic | Enum):
        return True
    if not levels or type(value) not in (list, tuple, dict, torch.Size) or len(value) > LARGEST:
        return False
    return all(_is_plain(part, levels - 1) for part in (value.values() if isinstance(value, dict) else value))


def _address(tensor: Tensor) -> int:
    """Where it lies; for one without memory of its own, as one that wraps others, which object it is."""
    try:
        return tensor.data_ptr() or id(tensor)
    except RuntimeError:
        return id(tensor)


def _parts(value: Any, with_objects: bool) -> Parts | None:
    """What a list, a dictionary or an object consists of; None: too many parts, or something else."""
    if isinstance(value, _SKIPPED) or not (with_objects or isinstance(value, dict | list | tuple)):
        return None
    parts = value if isinstance(value, dict | list | tuple) else attributes_of(value)
    if not isinstance(parts, dict | list | tuple) or type(parts).__getitem__ not in _AS_STORED:
        return None
    return parts if len(parts) <= LARGEST else None


@contextmanager
def without_kept_casts() -> Iterator[None]:
    """Autocast keeps casts of parameters from one block to the next; in a replay they would be those of an earlier step."""
    before = torch.is_autocast_cache_enabled()
    if before and any(enabled for _, enabled, _ in autocast_modes()):
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
