"""Tiles with their own zeros: what an array that looks at operands is shown, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainyard.errors import UnknownName
from trainyard.ir import DENSE, Array, Convolution, Letter, Masks, MaskView, MatMul, Op, Operand, Phase, Step, TensorKey
from trainyard.mapping.lowering import GradInput, lower, operand_order
from trainyard.mapping.views import unpacked
from trainyard.mapping.walk import Tile

Cut = tuple[int, int]
PLACES: dict[str, tuple[Letter, Letter]] = {"forward": ("A", "W"), "grad_input": ("G", "W"), "grad_weight": ("A", "G")}
"""What a and b of a convolution's product are to its geometry."""


def tile_cost(
    array: Array, step: Step, op: Op, grad_input: GradInput, masks: Masks, events: dict[str, float]
) -> Callable[[Tile], int]:
    """Cycles of a tile with the zeros that lie in it; its events are added up in `events`."""
    left, right = (_viewer(step, op, grad_input, masks, side) for side in (0, 1))

    def cycles(tile: Tile) -> int:
        cost = array.cost(tile.op, a=left(tile.product, tile.m, tile.k), b=right(tile.product, tile.k, tile.n))
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
        return cost.cycles

    return cycles


def _viewer(step: Step, op: Op, grad_input: GradInput, masks: Masks, side: int) -> Callable[[int, Cut, Cut], Operand]:
    """Operand a (side 0) or b (side 1) of a tile: which of the products, its rows, its columns. Dense where no mask is known."""
    body, letter = op.body, _letter(step, op, side)
    assert isinstance(body, MatMul | Convolution)
    if not letter or not _recorded(masks, (op.layer, op.call, letter)):
        return lambda item, rows, columns: DENSE
    product = lower(body, grad_input).product
    extent = (product.M, product.K) if side == 0 else (product.K, product.N)
    if isinstance(body, Convolution):
        dilated = body.product == "grad_input" and grad_input == "dilated"
        turned = (body.product, side) in (("forward", 1), ("grad_weight", 0))
        whole = MaskView(masks, (op.layer, op.call, letter), body, turned, place=PLACES[body.product][side], dilated=dilated)
    else:
        turned = _turned(step, op, side, letter, extent)
        height = body.count * (extent[1] if turned else extent[0])
        whole = MaskView(masks, (op.layer, op.call, letter), None, turned, height=height)

    def view(item: int, rows: Cut, columns: Cut) -> MaskView:
        offset = item * (extent[1] if turned else extent[0])  # products stand below each other before they are turned
        rows, columns = (rows, _moved(columns, offset)) if turned else (_moved(rows, offset), columns)
        return MaskView(whole.source, whole.key, whole.geometry, turned, rows, columns, whole.place, whole.dilated, whole.height)

    return view


def _recorded(masks: Masks, key: TensorKey) -> bool:
    """Recording may be limited to some layers, and unrolled ones (RNNs) have no mask for each call."""
    try:
        unpacked(masks, key)
    except UnknownName:
        return False
    return True


def _moved(cut: Cut, offset: int) -> Cut:
    return cut[0] + offset, cut[1] + offset


def _letter(step: Step, op: Op, side: int) -> Letter:
    """By the order of the lowered product; a convolution without letters has those of its geometry."""
    if isinstance(op.body, Convolution) and not op.letters:
        return PLACES[op.body.product][side]
    position = operand_order(step, op)[side]
    return op.letters[position] if len(op.letters) > position else ""


def _turned(step: Step, op: Op, side: int, letter: Letter, want: tuple[int, int]) -> bool:
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
