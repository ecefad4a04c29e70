"""Tiles with their own zeros: what an array that looks at operands is shown, tile by tile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainyard.caches import ByIdentity
from trainyard.ir import (
    DENSE,
    Array,
    ArrayCost,
    Convolution,
    Density,
    Masks,
    MaskView,
    MatMul,
    Op,
    Operand,
    Step,
    Work,
)
from trainyard.ir.folds import AXES, Pooled
from trainyard.ir.protocols import HasDensityGuides, KnowsOperands, KnowsStructure
from trainyard.ir.step import CONVOLUTION_LETTERS, is_transposed, letter_of, matrix_extent
from trainyard.mapping.lowering import GradInput, lower
from trainyard.mapping.walk import Tile
from trainyard.masks.lookup import mask_of, share

if TYPE_CHECKING:
    from trainyard.mapping.tiling import Tiling

Cut = tuple[int, int]
Viewer = Callable[[int, Cut, Cut], Operand]
SUMS_READ = "scratchpad_read_out"


@dataclass(slots=True)
class TileCosts:
    """Cycles of a tile with the zeros that lie in it; what all tiles together did is added up in `events`.

    Where an array samples outputs, the errors of tiles that share the operand looked at are the same, those of others independent.
    The array does not say which operand it was, so the larger of both readings counts.
    """

    array: Array
    left: Viewer
    right: Viewer
    events: dict[str, float]
    _shared: tuple[dict[Any, float], dict[Any, float]] = field(default_factory=lambda: ({}, {}))
    _alike: dict[Any, ArrayCost] = field(default_factory=dict)

    def fresh(self) -> TileCosts:
        """The same views with nothing counted yet; tiles known by shares alone are not costed again."""
        return TileCosts(self.array, self.left, self.right, {}, _alike=self._alike)

    def __call__(self, tile: Tile) -> int:
        a, b = self.left(tile.product, tile.m, tile.k), self.right(tile.product, tile.k, tile.n)
        cost = self._cost(tile.op, a, b)
        add_events(self.events, cost.events, tile.op, begun=tile.k[0] > 0)
        if cost.uncertainty:
            for shared, place in zip(self._shared, ((tile.product, tile.m, tile.k), (tile.product, tile.k, tile.n)), strict=True):
                shared[place] = shared.get(place, 0.0) + cost.uncertainty
        return cost.cycles

    @property
    def known_by_shares(self) -> bool:
        """Whether every tile of one size has the same zeros, since no operand is a view of bits."""
        return not any(isinstance(view(0, (0, 1), (0, 1)), MaskView) for view in (self.left, self.right))

    def of_sizes(self, op: MatMul, tiling: Tiling) -> npt.NDArray[np.int64]:
        """The cycles of all tiles in loop order where zeros are known by shares: each size is costed once, not each tile."""
        m_sizes, n_sizes, k_sizes = (_sizes(*axis) for axis in ((op.M, tiling.m), (op.N, tiling.n), (op.K, tiling.k)))
        a, b = self.left(0, (0, 1), (0, 1)), self.right(0, (0, 1), (0, 1))
        table = np.zeros((2, 2, 2), np.int64)
        for (row, m, rows), (column, n, columns), (deep, k, depth) in itertools.product(m_sizes, n_sizes, k_sizes):
            tile = MatMul(m, n, k)
            cost, times = self._cost(tile, a, b), rows * columns * op.count
            table[row, column, deep] = cost.cycles
            first = int((deep, k) == k_sizes[0][:2])  # the first tile of a reduction begins its sums
            for begun, many in ((False, first), (True, depth - first)):
                if many:
                    add_events(self.events, cost.events, tile, begun=begun, times=times * many)
            if cost.uncertainty:  # tiles that share an operand err alike: their sum counts, as often as there are such operands
                for shared, place, alike, others in zip(
                    self._shared, ((m, k), (k, n)), (columns, rows), (rows * depth, depth * columns), strict=True
                ):
                    weight = math.sqrt(others * op.count)
                    shared[place] = shared.get(place, 0.0) + cost.uncertainty * alike * weight
        kinds = [np.repeat([kind for kind, _, _ in sizes], [times for *_, times in sizes]) for sizes in (m_sizes, n_sizes, k_sizes)]
        cycles = table[np.ix_(*kinds)].transpose([AXES.index(axis) for axis in tiling.order]).ravel()
        return np.tile(cycles, op.count)

    def of_size(self, op: MatMul) -> int:
        """The cycles of a tile of this size where zeros are known by shares; its events are not counted."""
        return self._cost(op, self.left(0, (0, 1), (0, 1)), self.right(0, (0, 1), (0, 1))).cycles

    def _cost(self, op: MatMul, a: Operand, b: Operand) -> ArrayCost:
        """Tiles of one size that are known by shares alone cost the same."""
        if isinstance(a, MaskView) or isinstance(b, MaskView):
            return self.array.cost(op, a=a, b=b)
        cost = self._alike.get((op, a, b))
        if cost is None:
            cost = self._alike[op, a, b] = self.array.cost(op, a=a, b=b)
        return cost

    @property
    def uncertainty(self) -> float:
        """Half-width of the 95 % interval of all cycles so far."""
        return max(math.sqrt(sum(half * half for half in shared.values())) for shared in self._shared)


def _sizes(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Kinds of pieces along an axis: (0, size, how many) of whole ones, (1, size, 1) of a rest.

    >>> _sizes(10, 4), _sizes(3, 4)
    ([(0, 4, 2), (1, 2, 1)], [(1, 3, 1)])
    """
    many, rest = divmod(extent, size)
    return [(0, size, many)] * (many > 0) + [(1, rest, 1)] * (rest > 0)


def add_events(events: dict[str, float], counted: Mapping[str, float], op: MatMul, *, begun: bool, times: int = 1) -> None:
    """What `times` equal tiles did. Sums that an earlier tile of the reduction has `begun` are read from the scratchpad first."""
    for name, count in counted.items():
        events[name] = events.get(name, 0.0) + count * times
    if begun and SUMS_READ in counted:
        events[SUMS_READ] += op.M * op.N * op.count * times


def viewer(step: Step, op: Op, grad_input: GradInput, masks: Masks, side: int) -> Viewer:
    """Operand a (side 0) or b (side 1) of a tile: which of the products, its rows, its columns. Dense where no mask is known."""
    body, letter = op.body, letter_of(step, op, side)
    assert isinstance(body, MatMul | Convolution)
    mask = mask_of(step, op, side, letter, masks) if letter else None
    if mask is None:
        return lambda item, rows, columns: DENSE
    source, key = mask
    dilated = isinstance(body, Convolution) and body.product == "grad_input" and grad_input == "dilated"
    if isinstance(source, KnowsOperands):  # shares alone: every tile has the same
        operand = source.operand(key, op.phase)
        if dilated and side == 0 and isinstance(body, Convolution) and isinstance(operand, Density):  # zeros that a stride inserts
            operand = replace(operand, nonzero=operand.nonzero / math.prod(body.stride))
        return lambda item, rows, columns: operand
    if isinstance(body, Convolution):
        product = lower(body, grad_input).product
        extent = matrix_extent(product, side)
        turn = (body.product, side) in (("forward", 1), ("grad_weight", 0))
        whole = MaskView(source, key, body, turn, place=CONVOLUTION_LETTERS[body.product][side], dilated=dilated)
    else:
        extent = matrix_extent(body, side)
        turn = is_transposed(step, op, side, letter, extent)
        whole = MaskView(source, key, None, turn, height=body.count * (extent[1] if turn else extent[0]))
    below = extent[1] if turn else extent[0]  # products stand below each other before they are turned
    seen: dict[tuple[int, Cut, Cut], MaskView] = {}

    def view(item: int, rows: Cut, columns: Cut) -> MaskView:
        """Tiles with the same rows and columns see one and the same view."""
        place = (item, rows, columns)
        known = seen.get(place)
        if known is None:
            offset = item * below
            cut = (rows, _moved(columns, offset)) if turn else (_moved(rows, offset), columns)
            known = seen[place] = MaskView(source, key, whole.geometry, turn, *cut, whole.place, whole.dilated, whole.height)
        return known

    return view


def what_is_seen(step: Step, work: Work, masks: Masks) -> tuple[object, ...]:
    """What an array may see of the zeros of a Work, to compare by: layers and their masks, or shares where it sees these alone."""
    ops = [step.ops[number] for number in work.ops]
    if not isinstance(masks, KnowsOperands) or isinstance(masks, KnowsStructure):
        return ByIdentity(masks), *((op.layer, op.call, op.phase, op.inputs, op.letters) for op in ops)
    products = [op for op in ops if op.is_product]
    shares = ((viewer(step, op, "col2im", masks, side)(0, (0, 1), (0, 1)) for side in (0, 1)) for op in products)
    return tuple((op.body, op.phase, *seen) for op, seen in zip(products, shares, strict=True))


def guides(array: Array, step: Step, op: Op, masks: Masks) -> tuple[Pooled, ...]:
    """Closed forms to choose the tiles of an op by, from the shares of its operands that are not zero; none where an array has no
    use for them (`guided`)."""
    if not isinstance(array, HasDensityGuides):
        return ()
    return array.guided(share(step, op, masks, 0), share(step, op, masks, 1))


def _moved(cut: Cut, offset: int) -> Cut:
    return cut[0] + offset, cut[1] + offset
