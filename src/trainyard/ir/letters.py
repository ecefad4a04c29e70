"""The operands of a product: their letters (A, W, G), tensors and shapes.

The key of a mask is (layer, call, letter). A layer that multiplies several operands of one letter in one call (an unrolled LSTM)
has no mask under that key; the letter of such an operand's own mask carries its tensor number: `A#43`.
"""

from __future__ import annotations

import math

from trainyard.ir import Convolution, Letter, MatMul, Op, Phase, Step

CONVOLUTION_LETTERS: dict[str, tuple[Letter, Letter]] = {"forward": ("A", "W"), "grad_input": ("G", "W"), "grad_weight": ("A", "G")}
"""Letters of the operands a and b of each product of a convolution."""


def operand_order(step: Step, op: Op) -> tuple[int, int]:
    """The positions, among an op's inputs, of operands a and b of the lowered product.

    A captured weight gradient reads (dY, X), its product is X times dY. The sizes decide, or the letters where sizes are equal.
    """
    body = op.body
    if not isinstance(body, Convolution) or body.product != "grad_weight":
        return 0, 1
    if len(op.inputs) > 1 and body.input_elements != body.output_elements:
        first, second = (step.tensors[t].elements for t in op.inputs[:2])
        return (1, 0) if first != body.input_elements and second == body.input_elements else (0, 1)
    return (1, 0) if op.letters[:2] == ("G", "A") else (0, 1)


def letter_of(step: Step, op: Op, side: int) -> Letter:
    """The letter of operand a (side 0) or b (1) of the lowered product; by geometry for a convolution without letters."""
    if isinstance(op.body, Convolution) and not op.letters:
        return CONVOLUTION_LETTERS[op.body.product][side]
    position = operand_order(step, op)[side]
    return op.letters[position] if len(op.letters) > position else ""


def tensor_of(step: Step, op: Op, side: int) -> int | None:
    """The tensor of an operand, or its base tensor if it is a view of all elements (transposed, reshaped); None if unknown."""
    position = operand_order(step, op)[side]
    if len(op.inputs) <= position:
        return None
    tensor = op.inputs[position]
    base = step.base(tensor)
    return base if step.tensors[base].elements == step.tensors[tensor].elements else tensor


def tensor_letter(step: Step, op: Op, side: int) -> str:
    """The letter of the mask of this operand's own tensor (`A#43`); '' where the step does not name its tensors."""
    tensor = tensor_of(step, op, side)
    return "" if tensor is None else f"{letter_of(step, op, side)}#{tensor}"


def matrix_extent(body: MatMul, side: int) -> tuple[int, int]:
    """Rows and columns of one operand of a matrix product."""
    return (body.M, body.K) if side == 0 else (body.K, body.N)


def is_transposed(step: Step, op: Op, side: int, letter: str, extent: tuple[int, int]) -> bool:
    """Whether an operand of a matrix product, `extent` rows and columns, is the transpose of its tensor (rows by last dimension).

    The rows of A and G are samples: M or N of the product, or K where a weight gradient sums over them. The shape of the parameter
    decides for W.
    """
    if letter != "W":
        return (side == 0) == (op.phase is Phase.GRAD_WEIGHT)
    shape = step.tensors[step.base(op.inputs[side])].shape if len(op.inputs) > side else ()
    for matrix in (shape[-2:], (*shape[:1], math.prod(shape[1:]))):  # one weight for each product, or a flattened weight
        if matrix[0:1] != matrix[1:2] and matrix in (extent, extent[::-1]):
            return matrix != extent
    return (side == 1) != op.phase.backward  # nn.Linear stores W as (out, in)


def operand_shape(step: Step, op: Op, side: int) -> tuple[int, ...]:
    """The shape of an operand's tensor: NC... or OI... for a convolution, (rows, features) for a matrix product."""
    body = op.body
    if isinstance(body, Convolution):
        letter = CONVOLUTION_LETTERS[body.product][side]
        if letter == "W":
            return (body.out_channels, body.in_channels // body.groups, *body.kernel)
        return (body.batch, body.in_channels, *body.size) if letter == "A" else (body.batch, body.out_channels, *body.out_size)
    assert isinstance(body, MatMul)
    extent = matrix_extent(body, side)
    rows, columns = extent[::-1] if is_transposed(step, op, side, letter_of(step, op, side), extent) else extent
    if body.count > 1 and len(op.inputs) > side and step.tensors[op.inputs[side]].elements == rows * columns:
        return rows, columns  # one matrix for all products
    return body.count * rows, columns
