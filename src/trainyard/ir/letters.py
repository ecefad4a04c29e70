"""Which tensor stands where in a product: letters, the tensor's own matrix, and names where one layer multiplies several times.

A mask lies under (layer, call, letter). A layer that multiplies several operands of one letter in one call (an unrolled LSTM) has
none under that key; where masks know such an operand by itself, it is named by its tensor in the step: `A#43`.
"""

from __future__ import annotations

import math

from trainyard.ir import Convolution, Letter, MatMul, Op, Phase, Step

CONVOLUTION_LETTERS: dict[str, tuple[Letter, Letter]] = {"forward": ("A", "W"), "grad_input": ("G", "W"), "grad_weight": ("A", "G")}
"""What a and b of a convolution's product are to its geometry."""


def operand_order(step: Step, op: Op) -> tuple[int, int]:
    """Which of an op's two operands is a of the lowered product, and which is b.

    A captured weight gradient reads (dY, X), its product is X times dY. Sizes tell them apart, letters where those are equal.
    """
    body = op.body
    if not isinstance(body, Convolution) or body.product != "grad_weight":
        return 0, 1
    if len(op.inputs) > 1 and body.input_elements != body.output_elements:
        first, second = (step.tensors[t].elements for t in op.inputs[:2])
        return (1, 0) if first != body.input_elements and second == body.input_elements else (0, 1)
    return (1, 0) if op.letters[:2] == ("G", "A") else (0, 1)


def letter_of(step: Step, op: Op, side: int) -> Letter:
    """By the order of the lowered product; a convolution without letters has those of its geometry."""
    if isinstance(op.body, Convolution) and not op.letters:
        return CONVOLUTION_LETTERS[op.body.product][side]
    position = operand_order(step, op)[side]
    return op.letters[position] if len(op.letters) > position else ""


def tensor_of(step: Step, op: Op, side: int) -> int | None:
    """The tensor of an operand: the one that owns the memory where it is seen whole (turned, reshaped); None where unknown."""
    position = operand_order(step, op)[side]
    if len(op.inputs) <= position:
        return None
    tensor = op.inputs[position]
    base = step.base(tensor)
    return base if step.tensors[base].elements == step.tensors[tensor].elements else tensor


def tensor_letter(step: Step, op: Op, side: int) -> str:
    """The letter of a mask that holds this operand alone; '' where the step does not tell its tensors apart."""
    tensor = tensor_of(step, op, side)
    return "" if tensor is None else f"{letter_of(step, op, side)}#{tensor}"


def matrix_extent(body: MatMul, side: int) -> tuple[int, int]:
    """Rows and columns of one operand of a matrix product."""
    return (body.M, body.K) if side == 0 else (body.K, body.N)


def is_transposed(step: Step, op: Op, side: int, letter: str, want: tuple[int, int]) -> bool:
    """Whether a matrix product's operand is the transpose of its tensor (rows by last dimension).

    Of A and G the rows are samples: M or N of the product, K where a weight gradient sums over them. W is as its parameter says.
    """
    if letter != "W":
        return (side == 0) == (op.phase is Phase.GRAD_WEIGHT)
    shape = step.tensors[step.base(op.inputs[side])].shape if len(op.inputs) > side else ()
    for have in (shape[-2:], (*shape[:1], math.prod(shape[1:]))):  # a weight of each product, or one whose rest is flattened
        if have[0:1] != have[1:2] and have in (want, want[::-1]):
            return have != want
    return (side == 1) != op.phase.backward  # nn.Linear keeps W as (out, in)


def operand_shape(step: Step, op: Op, side: int) -> tuple[int, ...]:
    """The shape of an operand's tensor: that of its place in a convolution; of a matrix product (rows, features)."""
    body = op.body
    if isinstance(body, Convolution):
        place = CONVOLUTION_LETTERS[body.product][side]
        if place == "W":
            return (body.out_channels, body.in_channels // body.groups, *body.kernel)
        return (body.batch, body.in_channels, *body.size) if place == "A" else (body.batch, body.out_channels, *body.out_size)
    assert isinstance(body, MatMul)
    extent = matrix_extent(body, side)
    rows, columns = extent[::-1] if is_transposed(step, op, side, letter_of(step, op, side), extent) else extent
    if body.count > 1 and len(op.inputs) > side and step.tensors[op.inputs[side]].elements == rows * columns:
        return rows, columns  # one matrix for all products
    return body.count * rows, columns
