"""Tiles with their own zeros: what an array that looks at operands is shown, tile by tile."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.ir import DENSE, Array, Convolution, Masks, MaskView, MatMul, Op, Operand, Step
from trainyard.mapping.lowering import lower
from trainyard.mapping.walk import Tile


def tile_cost(array: Array, step: Step, op: Op, masks: Masks, events: dict[str, float]) -> Callable[[Tile], int]:
    """Cycles of a tile with the zeros that lie in it; its events are added up in `events`."""

    def cycles(tile: Tile) -> int:
        left = _view(step, op, masks, 0, tile.product, tile.m, tile.k)
        right = _view(step, op, masks, 1, tile.product, tile.k, tile.n)
        cost = array.cost(tile.op, a=left, b=right)
        for name, count in cost.events.items():
            events[name] = events.get(name, 0.0) + count
        return cost.cycles

    return cycles


def _view(step: Step, op: Op, masks: Masks, side: int, item: int, rows: tuple[int, int], columns: tuple[int, int]) -> Operand:
    """Operand A (side 0) or B (side 1) of one tile; dense where the op has no letter for it or the product is batched."""
    letter = _letter(op, side)
    body = op.body
    if not letter or (isinstance(body, MatMul) and body.count > 1):
        return DENSE
    turned = _turned(step, op, side)
    if isinstance(body, Convolution):
        product = lower(body).product
        extent = {0: (product.M, product.K), 1: (product.K, product.N)}[side]
        offset = item * (extent[1] if turned else extent[0])  # groups stand below each other before they are turned
        rows, columns = (rows, _moved(columns, offset)) if turned else (_moved(rows, offset), columns)
    key = (op.layer, op.call, letter)
    geometry = body if isinstance(body, Convolution) else None
    return MaskView(masks, key, geometry, transposed=turned, rows=rows, columns=columns)


def _moved(cut: tuple[int, int], offset: int) -> tuple[int, int]:
    return cut[0] + offset, cut[1] + offset


def _letter(op: Op, side: int) -> str:
    """A convolution's operands have a fixed place, whatever the order of its inputs."""
    if isinstance(op.body, Convolution):
        return {"forward": "AW", "grad_input": "GW", "grad_weight": "AG"}[op.body.product][side]
    return op.letters[side] if len(op.letters) > side else ""


def _turned(step: Step, op: Op, side: int) -> bool:
    """Whether the matrix is the transpose of its tensor (rows by last dimension)."""
    body = op.body
    if isinstance(body, Convolution):
        return (body.product, side) in (("forward", 1), ("grad_weight", 0))
    want = (body.M, body.K) if side == 0 else (body.K, body.N)  # type: ignore[union-attr]  # a product's body
    if len(op.inputs) > side:
        owner = step.tensors[step.base(op.inputs[side])]
        have = (owner.elements // max(1, owner.shape[-1]), owner.shape[-1]) if owner.shape else (1, 1)
        if have != have[::-1]:
            return have != want
    forward_weight = side == 1 and op.letters[side : side + 1] == ("W",) and not op.phase.backward
    return forward_weight or (side == 0 and str(op.phase) == "grad_weight")
