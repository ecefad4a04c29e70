"""Forward hooks on modules inside a block, as those with which transformers collects router logits for the loss, or attentions.

A replay runs no Python. So what such a hook is given is recorded as a further result of the block, and the hook is called with it
after the replay, when the whole block has been computed. A hook that returns something changes what its module returned: a block
with such a hook is not recorded. Nor is one that changes in place what a hook has seen, since the hook would see it too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from trainyard.live.paging.signature import tensors_of

_NAMES = ("_forward_hooks", "_forward_hooks_with_kwargs")
_FIRST, _LAST = "first", "last"
HookArguments = tuple[tuple[Any, ...], dict[str, Any], Any]
"""Arguments of a module by position and by name, and its result."""


class Seen:
    """What the hooks of a module are given in one call."""

    __slots__ = ("_versions", "is_changed", "module", "values")

    def __init__(self, module: nn.Module, values: HookArguments) -> None:
        self.module, self.values = module, values
        self.is_changed = False
        """Whether a hook made the module return something else."""
        self._versions = [(tensor, tensor._version) for tensor in tensors_of(values) if not tensor.is_inference()]

    @property
    def is_overwritten(self) -> bool:
        """Whether something of it was changed in place since."""
        return any(tensor._version != version for tensor, version in self._versions)


class ForwardHooks:
    """Of the modules inside a block; those of the block itself run around its call.

    >>> import torch
    >>> block, shapes = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), []
    >>> handle = block[0].register_forward_hook(lambda module, arguments, result: shapes.append(tuple(result.shape)))
    >>> hooks = ForwardHooks(block)
    >>> with hooks.watched(put_off=True) as seen:
    ...     result = block(torch.ones(4, 2))
    >>> shapes
    []
    >>> hooks.call([(one.module, one.values) for one in seen])
    >>> shapes
    [(4, 3)]
    """

    def __init__(self, block: nn.Module) -> None:
        self.modules = [module for module in block.modules() if module is not block and module._forward_hooks]

    @contextmanager
    def watched(self, *, put_off: bool) -> Iterator[list[Seen]]:
        """What hooks are given while the block runs is in the list. They are called as ever, or not at all."""
        found: list[Seen] = []
        before = [(module, [module.__dict__[name] for name in _NAMES]) for module in self.modules]
        for module, (hooks, with_keywords) in before:
            note, compare = partial(_note, found, bool(with_keywords)), partial(_compare, found)
            module.__dict__[_NAMES[0]] = {_FIRST: note} if put_off else {_FIRST: note, **hooks, _LAST: compare}
            module.__dict__[_NAMES[1]] = {_FIRST: True, **with_keywords}
        try:
            yield found
        finally:
            for module, values in before:
                module.__dict__.update(zip(_NAMES, values, strict=True))

    @staticmethod
    def call(seen: Sequence[tuple[nn.Module, HookArguments]]) -> None:
        """Calls the hooks of modules with what these were given and returned."""
        for module, (arguments, keywords, result) in seen:
            for number, hook in [*module._forward_hooks.items()]:
                with_keywords = number in module._forward_hooks_with_kwargs
                returned = hook(module, arguments, keywords, result) if with_keywords else hook(module, arguments, result)
                if returned is not None and returned is not result:
                    raise RuntimeError(
                        f"a forward hook of a {type(module).__name__} inside a replayed block returned something, as it did not "
                        "before: write replay=False to train with such a hook"
                    )


def _note(found: list[Seen], wants_keywords: bool, module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
    found.append(Seen(module, (arguments, keywords if wants_keywords else {}, result)))


def _compare(found: list[Seen], module: nn.Module, arguments: Any, result: Any) -> None:
    found[-1].is_changed = found[-1].values[2] is not result
