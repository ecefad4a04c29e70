"""Grouped products: each row is multiplied by the matrix of its own group, as in a mixture of experts.

Which rows go to which group is known only at run time. A step has the balanced routing: the rows are divided over the groups as
evenly as whole numbers allow, so that its multiply-accumulates are exact. With q, r = divmod(rows, groups), r groups have q + 1
rows and the others q; these are two products (one where r is 0, or q), each `count` equal ones, over slices of the operands. `axis`
is the dimension of the product that the rows are:

| product                                | axis | operand a    | operand b    | result       |
|----------------------------------------|------|--------------|--------------|--------------|
| Y = X W, dX = dY W (rows by groups)    | M    | rows         | groups       | rows         |
| W X with a column for each row         | N    | groups       | columns      | columns      |
| dW = X^T dY (each group sums its rows) | K    | columns      | rows         | groups       |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trainyard.errors import BadInput
from trainyard.ir.ops import MatMul

if TYPE_CHECKING:
    from trainyard.ir.step import Op, TensorSpec

BALANCED = "rows of grouped products are divided evenly over their groups: every expert gets its mean share of tokens"

Axis = Literal["M", "N", "K"]
PLACE: dict[Axis, int] = {"M": 0, "N": 1, "K": 2}
CUT: dict[Axis, tuple[tuple[int, bool], tuple[int, bool], tuple[int, bool]]] = {
    "M": ((0, True), (0, False), (0, True)),
    "N": ((0, False), (1, True), (1, True)),
    "K": ((1, True), (0, True), (0, False)),
}
"""For a, b and the result: the dimension that a part of the groups cuts, and whether it has rows (or one matrix for a group)."""


@dataclass(frozen=True, slots=True)
class Routing:
    """`rows` rows over `groups` groups along a dimension of the product; `slope` more rows with each sample.

    >>> Routing("M", rows=28, groups=8).parts(), Routing("M", rows=32, groups=8).parts(), Routing("K", rows=3, groups=8).parts()
    (((4, 4), (3, 4)), ((4, 8),), ((1, 3),))
    """

    axis: Axis
    rows: int
    groups: int
    slope: int = 0

    def __post_init__(self) -> None:
        if self.axis not in PLACE or min(self.rows, self.groups) < 1:
            raise BadInput(f"Routing: {self.rows!r} rows over {self.groups!r} groups along {self.axis!r}")

    def parts(self) -> tuple[tuple[int, int], ...]:
        """(rows of a group, groups with as many), the larger first."""
        each, rest = divmod(self.rows, self.groups)
        return tuple((rows, groups) for rows, groups in ((each + 1, rest), (each, self.groups - rest)) if rows and groups)

    def products(self, whole: MatMul) -> tuple[MatMul, ...]:
        """The products of the groups; in `whole` all rows stand along `axis`.

        >>> Routing("K", rows=5, groups=2).products(MatMul(8, 4, 5))
        (MatMul(M=8, N=4, K=3, count=1), MatMul(M=8, N=4, K=2, count=1))
        """
        return tuple(replace(whole, **{self.axis: rows}, count=groups) for rows, groups in self.parts())

    @property
    def even(self) -> bool:
        """Whether every batch divides evenly."""
        return self.rows % self.groups == self.slope % self.groups == 0


def divided(ops: Sequence[Op], tensors: Sequence[TensorSpec]) -> tuple[tuple[Op, ...], tuple[TensorSpec, ...]]:
    """Ops with the products of the groups instead of each grouped product, whose slices come behind the tensors.

    Grouped products that are divided already stay as they are.
    """
    if not any(op.routing for op in ops):
        return tuple(ops), tuple(tensors)
    parts: list[Op] = []
    specs = list(tensors)
    for op in ops:
        if op.routing is None or not _is_whole(op):
            parts.append(op)
            continue
        assert isinstance(op.body, MatMul)
        place = PLACE[op.routing.axis]
        routing = replace(op.routing, slope=op.slope[place] if op.slope else 0)
        slope = [0, 0, 0, 0]
        if routing.even:
            slope[place] = routing.slope // routing.groups
        first = len(parts)
        for body, (rows, groups) in zip(routing.products(op.body), routing.parts(), strict=True):
            numbers = [_slice(specs, t, side, routing, rows * groups, groups) for side, t in _operands(op)]
            parts.append(
                replace(
                    op,
                    body=body,
                    routing=routing,
                    slope=tuple(slope),
                    inputs=(*numbers[:2], *op.inputs[2:]),
                    outputs=(numbers[2], *op.outputs[1:]),
                    host_waits=op.host_waits and len(parts) == first,
                )
            )
    return tuple(parts), tuple(specs)


def joined(ops: Sequence[Op], tensors: Sequence[TensorSpec]) -> tuple[tuple[Op, ...], tuple[TensorSpec, ...]]:
    """The inverse of `divided`: one op for each grouped product, with all its rows."""
    if not any(op.routing for op in ops):
        return tuple(ops), tuple(tensors)
    whole: list[Op] = []
    parts_left = 0
    for op in ops:
        if op.routing is None:
            whole.append(op)
            continue
        if parts_left:
            parts_left -= 1
            continue
        parts_left = 0 if _is_whole(op) else len(op.routing.parts()) - 1
        routing = op.routing
        assert isinstance(op.body, MatMul)
        body = replace(op.body, **{routing.axis: routing.rows}, count=1)
        slope = [0, 0, 0, 0]
        slope[PLACE[routing.axis]] = routing.slope
        numbers = [_whole(tensors, t, side, routing, body) for side, t in _operands(op)]
        inputs, outputs = (*numbers[:2], *op.inputs[2:]), (numbers[2], *op.outputs[1:])
        whole.append(replace(op, body=body, slope=tuple(slope), inputs=inputs, outputs=outputs))
    used = max((t for op in whole for t in (*op.inputs, *op.outputs)), default=-1)
    count = len(tensors)
    while count > used + 1 and tensors[count - 1].view_of is not None:
        count -= 1
    return tuple(whole), tuple(tensors[:count])


def _is_whole(op: Op) -> bool:
    """Whether a grouped product has all its rows."""
    body, routing = op.body, op.routing
    assert isinstance(body, MatMul)
    assert routing is not None
    return (body.M, body.N, body.K)[PLACE[routing.axis]] == routing.rows


def _operands(op: Op) -> tuple[tuple[int, int], ...]:
    """(0, a), (1, b), (2, result)."""
    return ((0, op.inputs[0]), (1, op.inputs[1]), (2, op.outputs[0]))


def _slice(specs: list[TensorSpec], tensor: int, side: int, routing: Routing, rows: int, groups: int) -> int:
    """The part of a tensor that some groups use, as a new tensor; the tensor itself if they are all."""
    if groups == routing.groups:
        return tensor
    dimension, has_rows = CUT[routing.axis][side]
    extent = rows if has_rows else groups
    spec = specs[tensor]
    if spec.shape[dimension] == extent:
        return tensor
    shape = (*spec.shape[:dimension], extent, *spec.shape[dimension + 1 :])
    specs.append(replace(spec, shape=shape, slope=(), view_of=tensor))
    return len(specs) - 1


def _whole(tensors: Sequence[TensorSpec], tensor: int, side: int, routing: Routing, body: MatMul) -> int:
    """The tensor that an operand is a slice of; itself if it has all rows or groups."""
    dimension, has_rows = CUT[routing.axis][side]
    spec = tensors[tensor]
    complete = spec.shape[dimension] == (routing.rows if has_rows else routing.groups)
    return tensor if complete or spec.view_of is None else spec.view_of
