"""Which operand of a product is the weight, the activation or the gradient, in the forward pass and in the backward pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]  # missing from the stubs
from torch.autograd.function import BackwardCFunction

from trainyard.ir import Letter, Phase, Role
from trainyard.workloads.capture.frames import Frames
from trainyard.workloads.capture.tensor_table import Kind, TensorTable


@dataclass(slots=True)
class WeightProduct:
    """The operands of a forward product that has a weight, by the memory that they look into."""

    weight: int
    activation: int


class ProductLetters:
    """The letters of products' operands. Forward products are remembered by their autograd node, for the backward pass."""

    def __init__(self, frames: Frames, tensor_table: TensorTable) -> None:
        self._frames, self._tensor_table = frames, tensor_table
        self._weight_products: dict[int, WeightProduct | None] = {}

    def forward(self, inputs: Sequence[Tensor], kinds: Sequence[Kind]) -> tuple[Letter, ...]:
        """The operand that descends from a parameter is W; of two, the one that is a parameter's own memory, or else the second."""
        origins = [self._tensor_table.origin(t) for t in inputs[:2]]
        weights = [kind == "weight" for kind in kinds[:2]]
        weight_position = 1 if weights[1] else 0 if weights[0] else None
        if all(weights) and self._tensor_table.tensors[origins[1].base].role is not Role.PARAMETER:
            weight_position = 0 if self._tensor_table.tensors[origins[0].base].role is Role.PARAMETER else 1
        weight_product = (
            None if weight_position is None else WeightProduct(origins[weight_position].base, origins[1 - weight_position].base)
        )
        self._weight_products.setdefault(_get_sequence_nr() - 1, weight_product)
        if weight_position is None:
            return ("", "")
        return ("A", "W") if weight_position == 1 else ("W", "A")

    def backward(self, inputs: Sequence[Tensor], kinds: Sequence[Kind], sequence: int) -> tuple[tuple[Letter, ...], Phase]:
        """Gradient x weight is the input's gradient; gradient x the forward product's other operand is the weight's.

        `sequence` is the number of the autograd node that the product runs in.
        """
        weight_product = self._product_of_node(sequence)
        gradients = [kind == "gradient" for kind in kinds[:2]]
        if weight_product is None or sum(gradients) != 1:
            return ("", ""), Phase.GRAD_INPUT
        other_position = 1 if gradients[0] else 0
        base = self._tensor_table.origin(inputs[other_position]).base
        is_weight = base == weight_product.weight or (base != weight_product.activation and kinds[other_position] == "weight")
        letter: Letter = "W" if is_weight else "A"
        return ("G", letter) if other_position == 1 else (letter, "G"), Phase.GRAD_INPUT if is_weight else Phase.GRAD_WEIGHT

    def _product_of_node(self, sequence: int) -> WeightProduct | None:
        """The forward product of a node. A custom function may have counted further before it multiplied, in the same layer."""
        if sequence in self._weight_products or not isinstance(torch._C._current_autograd_node(), BackwardCFunction):
            return self._weight_products.get(sequence)
        numbers = list(self._weight_products)
        later = bisect_left(numbers, sequence)
        if later == len(numbers) or self._frames.of_node(numbers[later]) is not self._frames.of_node(sequence):
            return None
        return self._weight_products[numbers[later]]
