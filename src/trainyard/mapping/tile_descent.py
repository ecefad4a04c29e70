"""Tiles for an array whose cycles are known one tile at a time: a descent over sizes that asks for few of them.

Where cycles have a closed form, the compiled search (`mapping.tiling`) looks at every size. Expected cycles of sparse arrays are
asked for tile by tile, so that thousands of sizes would take too long. The descent starts from a few tiles that fill the
scratchpad, each of which spares another axis, and from those that the caller knows of; it then moves to the fastest neighbour until
none is faster, from each of the fastest starts. A neighbour has one axis longer or shorter; where it would not fit, another axis is
shortened. Fixed sizes of a product stay. The loop order of every tile is the best of all, and a tile has the same cycles wherever
it lies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from trainyard.ir import DENSE, Array, ArrayCost, MatMul, Operand, Product, one_after_another
from trainyard.ir.protocols import HasTileCycles
from trainyard.mapping.loop_orders import LoopOrders, OrderedTile
from trainyard.mapping.tiling import NO_TILE, Problem, Size, Supply, Tiled

MOST_TILES = 96
"""Tiles that one descent evaluates at most."""
MOST_PARTS = 12
"""An axis is cut into 1, 2, 3, ... up to so many equal parts, and into twice, four times, ... as many."""
DESCENTS = 2
"""Starts that a descent begins from: the fastest ones."""
STRIDES = (1, 3, 8)
"""Sizes of the menu that a move goes up or down."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedTiles:
    """An array whose tiles take `cycles_of` (m, n, k); each size is asked for once."""

    array: Array
    cycles_of: Callable[[int, int, int], int]
    known: dict[Size, int] = field(default_factory=dict)

    @staticmethod
    def of(array: Array) -> CountedTiles:
        """Cycles are the array's own: without the closing -1 of a whole op where it counts tiles itself."""
        if isinstance(array, HasTileCycles):
            return CountedTiles(array, array.tile_cycles)
        return CountedTiles(array, lambda m, n, k: array.cost(MatMul(m, n, k)).cycles)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.array.peak_macs_per_cycle

    def granule(self) -> Size:
        return self.array.granule()

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        cycles = self.known.get((m, n, k))
        if cycles is None:
            cycles = self.known[m, n, k] = self.cycles_of(m, n, k)
        return cycles

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        return ArrayCost(cycles=self.tile_cycles(op.M, op.N, op.K) * op.count)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)


def sizes_of(extent: int, granule: int) -> list[int]:
    """Sizes along an axis: equal parts of it, and doublings of the granule.

    >>> sizes_of(100, 16)
    [1, 2, 3, 5, 9, 10, 12, 13, 15, 16, 17, 20, 25, 32, 34, 50, 64, 100]
    """
    sizes, parts = {-(-extent // number) for number in range(1, MOST_PARTS + 1)}, 2 * MOST_PARTS
    while parts < 2 * extent:
        sizes.add(-(-extent // parts))
        parts *= 2
    size = granule
    while size < extent:
        sizes.add(size)
        size *= 2
    return sorted(sizes)


def descend(
    problem: Problem, counted: CountedTiles, supply: Supply, starts: Sequence[Size] = (), most: int = MOST_TILES
) -> list[Tiled]:
    """The `most` fastest tiles of those that were evaluated, each in its best loop order; empty where no tile fits."""
    op, rates = problem.op, problem.sram_rates
    extents = (op.M, op.N, op.K)
    fixed = [min(size, extent) for size, extent in zip(problem.tile, extents, strict=True)]
    menus = [[own] if own else sizes_of(*sides) for own, *sides in zip(fixed, extents, counted.granule(), strict=True)]
    evaluated: dict[Size, OrderedTile] = {}
    orders = LoopOrders.of(problem, supply)

    def fits(size: Size) -> bool:
        m, n, k = size
        return m * k * rates[0] + k * n * rates[1] + m * n * rates[2] <= supply.resident_bytes

    def fastest(sizes: Sequence[Size]) -> Size:
        for size in dict.fromkeys(sizes):
            if size not in evaluated and len(evaluated) < MOST_TILES and fits(size):
                tile = orders.best(size, counted.tile_cycles)
                if tile is not None:
                    evaluated[size] = tile
        return min((size for size in sizes if size in evaluated), key=lambda size: _speed(evaluated[size]), default=NO_TILE)

    given = [(fixed[0] or min(m, op.M), fixed[1] or min(n, op.N), fixed[2] or min(k, op.K)) for m, n, k in starts]
    fastest([*given, *_filling(extents, menus, fits)])
    for start in sorted(evaluated, key=lambda size: _speed(evaluated[size]))[:DESCENTS]:
        current, better = NO_TILE, start
        while better != current:
            current = better
            better = fastest([current, *_neighbours(current, menus, fits)])
    return [orders.tiled(tile) for tile in sorted(evaluated.values(), key=_speed)[:most]]


def _speed(tile: OrderedTile) -> tuple[int, float]:
    return tile.cycles, tile.dram_bytes


def _filling(extents: Size, menus: Sequence[list[int]], fits: Callable[[Size], bool]) -> Iterator[Size]:
    """Tiles that fill the scratchpad: from the whole product, the axis in most granules shrinks; the spared axis shrinks last."""
    for spared in (None, 0, 1, 2):
        places = [len(menu) - 1 for menu in menus]
        while not fits(_at(menus, places)):
            open_axes = [axis for axis in range(3) if places[axis] > 0 and axis != spared] or [
                axis for axis in range(3) if places[axis] > 0
            ]
            if not open_axes:
                return
            longest = max(open_axes, key=lambda axis: menus[axis][places[axis]])
            places[longest] -= 1
        yield _at(menus, places)


def _neighbours(size: Size, menus: Sequence[list[int]], fits: Callable[[Size], bool]) -> Iterator[Size]:
    """One axis longer or shorter; where a longer one does not fit, each of the others is shortened until it does."""
    places = [bisect_left(menu, side) for menu, side in zip(menus, size, strict=True)]
    for axis in range(3):
        for stride in STRIDES:
            shorter, longer = max(0, places[axis] - stride), min(len(menus[axis]) - 1, places[axis] + stride)
            yield _with(size, axis, menus[axis][shorter])
            grown = _with(size, axis, menus[axis][longer])
            if fits(grown):
                yield grown
                continue
            for other in range(3):
                smaller = places[other]
                while other != axis and smaller > 0 and not fits(_with(grown, other, menus[other][smaller])):
                    smaller -= 1
                if other != axis:
                    yield _with(grown, other, menus[other][smaller])


def _at(menus: Sequence[list[int]], places: Sequence[int]) -> Size:
    return menus[0][places[0]], menus[1][places[1]], menus[2][places[2]]


def _with(size: Size, axis: int, side: int) -> Size:
    sides = [*size]
    sides[axis] = side
    return sides[0], sides[1], sides[2]
