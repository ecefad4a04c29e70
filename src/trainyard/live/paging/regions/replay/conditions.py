"""What a recording took from Python, and must find unchanged: addresses of parameters, settings of modules, the mode of autocast.

A program may load other weights, freeze a layer, raise a dropout rate or a temperature, or put a hook on a module at any time. Each
replay is preceded by a look at all of these, a few microseconds for a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainyard.live.paging.signature import autocast_modes

_PLAIN = (NoneType, bool, int, float, str)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Conditions:
    """Of one block.

    >>> block = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    >>> conditions = Conditions(block)
    >>> conditions.hold()
    True
    >>> block[1].p = 0.2
    >>> conditions.hold()
    False
    """

    __slots__ = ("autocast", "hooks", "settings", "tensors")

    def __init__(self, block: nn.Module) -> None:
        self.autocast = autocast_modes()
        self.tensors: list[tuple[dict[str, Any], str, int, bool]] = []
        self.settings: list[tuple[dict[str, Any], str, Any]] = []
        self.hooks: list[dict[int, Any]] = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS]
        """Of all modules, and of those inside: those of the block itself run around its call."""
        seen: set[int] = set()
        for module in block.modules():
            for holder in (module._parameters, module._buffers, module.__dict__):
                self._add(holder)
            for value in module.__dict__.values():
                if type(value).__name__.endswith("Config") and hasattr(value, "__dict__") and id(value) not in seen:
                    seen.add(id(value))
                    self._add(value.__dict__)
            if module is not block:
                self.hooks += [getattr(module, name) for name in _HOOKS]

    def _add(self, holder: dict[str, Any]) -> None:
        for name, value in holder.items():
            if isinstance(value, Tensor):
                self.tensors.append((holder, name, value.data_ptr(), value.requires_grad))
            elif type(value) in _PLAIN:
                self.settings.append((holder, name, value))

    def hold(self) -> bool:
        """Whether all is as it was."""
        if any(self.hooks) or self.autocast != autocast_modes():
            return False
        for holder, name, address, requires_grad in self.tensors:
            tensor = holder.get(name)
            if not isinstance(tensor, Tensor) or tensor.data_ptr() != address or tensor.requires_grad is not requires_grad:
                return False
        return all(holder.get(name, self) == value for holder, name, value in self.settings)


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
