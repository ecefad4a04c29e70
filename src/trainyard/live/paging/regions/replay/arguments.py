"""What a block is called with, or returns: tensors, and everything else as constants in a structure.

A tensor that occurs twice is one tensor: its gradients are added up inside of the block, in the order of plain training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

_CONSTANTS = (NoneType, bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class NotPlain(Exception):
    """A value that is no tensor in memory and no constant; the text says which."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything but the tensors.

    >>> structure, tensors = take_apart((1, {"x": torch.ones(2)}))
    >>> structure.put_together([torch.zeros(2)])
    (1, {'x': tensor([0., 0.])})
    """

    spec: TreeSpec
    constants: tuple[Any, ...]
    """By leaf; where a tensor is, None."""
    positions: tuple[tuple[int, int], ...]
    """Leaves that are tensors, and which one each is."""

    def put_together(self, tensors: Sequence[Tensor]) -> Any:
        leaves = list(self.constants)
        for position, number in self.positions:
            leaves[position] = tensors[number]
        return tree_unflatten(leaves, self.spec)

    def is_like(self, other: Structure) -> bool:
        same = self.positions == other.positions and self.constants == other.constants and self.spec == other.spec
        return same and all(type(one) is type(two) for one, two in zip(self.constants, other.constants, strict=True))


def take_apart(item: Any) -> tuple[Structure, list[Tensor]]:
    """The structure and the tensors of arguments or results, each tensor once."""
    leaves, spec = tree_flatten(item)
    tensors: dict[int, Tensor] = {}
    numbers: dict[int, int] = {}
    positions: list[tuple[int, int]] = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            _refuse_unusual(leaf)
            tensors[id(leaf)] = leaf
            positions.append((position, numbers.setdefault(id(leaf), len(numbers))))
            leaves[position] = None
        elif not isinstance(leaf, _CONSTANTS):
            raise NotPlain(f"a {type(leaf).__name__}")
    return Structure(spec, tuple(leaves), tuple(positions)), [*tensors.values()]


def is_to_be_computed(tensor: Tensor) -> bool:
    """Whether a tensor's values are those in memory with another sign, as those of a conjugate before somebody reads them.

    >>> is_to_be_computed(torch.tensor([1 + 2j]).conj()), is_to_be_computed(torch.tensor([1 + 2j]))
    (True, False)
    """
    return tensor.is_conj() or tensor.is_neg()


def _refuse_unusual(tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise NotPlain(f"a {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or is_to_be_computed(tensor):
        raise NotPlain("a tensor that is not plain numbers in memory")
    if tensor.numel() == 0:
        raise NotPlain("an empty tensor")
