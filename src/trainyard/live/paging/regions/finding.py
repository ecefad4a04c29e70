"""Which modules of a model are regions: the members of its stacks of layers.

A region is a module with submodules, member of an `nn.ModuleList`, `nn.Sequential` or `nn.ModuleDict`, of a class that occurs at
least twice. Of nested ones the outer is taken if its stack is long (`LONG` of a class side by side: then each is a small part of
the model) or if it holds no stack itself; otherwise the inner ones are. Where a model has no stacks, as one that has a name for
each of its blocks (`self.down1, self.down2`), the outermost modules of a class that occurs at least twice are regions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

LONG = 8
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One module of a stack. Regions of equal `kind` have the same class and parameters of the same shapes."""

    name: str
    module: nn.Module
    kind: tuple[Any, ...]


def regions_of(model: nn.Module) -> list[Region]:
    """The regions of a model, in the order of its modules.

    >>> layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2)))
    >>> regions_of(layers), [region.name for region in regions_of(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2))]
    ([], ['layers.0', 'layers.1'])
    """
    if is_compiled(model):
        return []  # the compiler has seen through the boundaries between its modules
    classes = Counter(type(module) for module in model.modules())
    members = list(_members(model, "", classes)) or list(_repeated(model, "", classes))
    regions = [Region(name, module, kind_of(module)) for name, module in members]
    distinct = {id(region.module): region for region in regions}
    return list(distinct.values())


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` replaced the module's call as a whole."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def kind_of(module: nn.Module) -> tuple[Any, ...]:
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in module.named_parameters())
    return (type(module), module.training, shapes)


def _members(module: nn.Module, path: str, classes: Counter[type[nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    in_stack = isinstance(module, _CONTAINERS)
    siblings = Counter(type(child) for child in module.children())
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        is_member = in_stack and _is_repeated(child, classes)
        if is_member and (siblings[type(child)] >= LONG or not _has_stack(child, classes)):
            yield where, child
        else:
            yield from _members(child, where, classes)


def _repeated(module: nn.Module, path: str, classes: Counter[type[nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if _is_repeated(child, classes):
            yield where, child
        else:
            yield from _repeated(child, where, classes)


def _is_repeated(module: nn.Module, classes: Counter[type[nn.Module]]) -> bool:
    return classes[type(module)] > 1 and not isinstance(module, _CONTAINERS) and any(module.children())


def _has_stack(module: nn.Module, classes: Counter[type[nn.Module]]) -> bool:
    """Whether a module holds two members of one stack that could be regions."""
    return sum(1 for _ in _members(module, "", classes)) > 1
