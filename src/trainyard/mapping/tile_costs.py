"""Tiles of a product on an array that has no closed form: it is asked for the cycles of the most promising tiles.

Candidates are doublings of the array's granule, the first near-divisors of each dimension, halvings below the granule, and the best
tile of an array that is as fast as the bounds. Each has a lower bound: from closed forms that the array's cycles never fall below
(`HasLowerBounds`), or from its multipliers alone. The array is asked for the tiles whose bounds are below the best so far, as often
as `effort` (or EVALUATIONS) allows: where there are more, the result says that it is not proven. First come those that promise
most, with the cycles of a single multiplication as what every tile costs at least.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainyard.ir import Array
from trainyard.ir.folds import Folds, Pooled
from trainyard.ir.protocols import HasLeastCycles, HasLowerBounds
from trainyard.mapping import tiling
from trainyard.mapping.bandwidths import search_tiles
from trainyard.mapping.loop_orders import LoopOrders, OrderedTile
from trainyard.mapping.tile_choice import best_of
from trainyard.mapping.tile_descent import CountedTiles, descend
from trainyard.mapping.tiling import Goal, Problem, Size, Supply, Tiled

FEW = 12
"""Dimensions up to here have every size."""
FIRST_CELLS = 64
"""Cells of the search for a first tile where nothing is known but the multipliers."""
NEAR_DIVISORS = 6
"""Counts of tiles along an axis, from 1, that are tried beside doublings."""


def candidate_sizes(extent: int, granule: int) -> list[int]:
    """
    >>> candidate_sizes(100, 8)
    [1, 2, 4, 8, 16, 17, 20, 25, 32, 34, 50, 64, 100]
    """
    if extent <= FEW:
        return list(range(1, extent + 1))
    doubled = itertools.takewhile(lambda size: size < extent, (granule << power for power in range(extent.bit_length() + 1)))
    halved = (granule >> power for power in range(1, granule.bit_length()))
    near = (-(-extent // count) for count in range(1, NEAR_DIVISORS + 1))
    return sorted({size for size in (*doubled, *halved, *near) if 0 < size <= extent})


def search_by_cost(problem: Problem, array: Array, supply: Supply, tile: Size | None, goal: Goal) -> Tiled:
    """The best tiling of one product among the candidates."""
    from trainyard.kernels.mapping import cell_bounds

    given = tuple(size or (tile or tiling.NO_TILE)[axis] for axis, size in enumerate(problem.tile))
    extents, granule = (problem.op.M, problem.op.N, problem.op.K), array.granule()
    counted, orders = CountedTiles.of(array), LoopOrders.of(problem, supply, goal)
    table = orders.table
    if all(given):
        only = orders.best(_clipped(given, extents), counted.tile_cycles)
        if only is not None:
            return orders.tiled(only)
    forms: Sequence[Folds | Pooled] = array.lower_bounds if isinstance(array, HasLowerBounds) else ()
    first = goal if forms else replace(goal, effort=FIRST_CELLS)
    likely = tiling.tiled(problem, search_tiles(table, forms, array, supply, tile, first)[0].tolist())
    cost = tiling.evaluate(problem, likely.tiling, array, supply)
    if cost.cycles <= likely.cycles and likely.proven:
        return cost  # as fast as its bound: nothing can be better
    menus = [
        [min(size, extent)] if size else candidate_sizes(extent, step)
        for size, extent, step in zip(given, extents, granule, strict=True)
    ]
    tiles = np.array([(likely.tiling.m, likely.tiling.n, likely.tiling.k), *itertools.product(*menus)], dtype=np.int64)
    bounds = cell_bounds.tile_bounds(
        table.dims[0], table.rates[0], tiles, table.allowed[0], tiling.form_rows(forms, array), *orders.machine, *orders.goal[:2]
    )
    if isinstance(array, HasLeastCycles) and goal.objective == "time":
        bounds = np.maximum(bounds, _least_totals(problem, array, tiles))
    best: OrderedTile | None = None
    candidates: list[OrderedTile] = []
    proven, asked, most = True, 0, goal.effort or tiling.EVALUATIONS
    enough = 1.0 + goal.tolerance if goal.objective == "time" else 1.0  # what may still be gained is within the tolerance
    steps = problem.op.count * np.prod(-(-np.array(extents) // tiles), axis=1, dtype=np.float64)
    promise = np.maximum(bounds, steps * counted.tile_cycles(1, 1, 1)) if goal.objective == "time" else bounds
    for place in np.lexsort((bounds, promise)).tolist():
        if bounds[place] == np.inf or (best is not None and bounds[place] * enough >= best.value):
            continue
        if asked >= most and best is not None:
            proven = False
            break
        asked += 1
        m, n, k = tiles[place].tolist()
        candidate = orders.best((m, n, k), counted.tile_cycles)
        if candidate is not None:
            candidates.append(candidate)
            if best is None or (candidate.value, candidate.dram_bytes) < (best.value, best.dram_bytes):
                best = candidate
    if best is None:
        raise tiling.nothing_fits(problem, supply, tile)
    if goal.objective != "time":
        return orders.tiled(best) if proven else tiling.unproven(orders.tiled(best))
    costs = [orders.tiled(candidate) for candidate in candidates if candidate.cycles <= best.cycles * (1 + goal.tolerance)]
    if not proven and not forms and tile is None and not problem.is_constrained:
        costs += descend(problem, counted, supply, [(best.tiling.m, best.tiling.n, best.tiling.k)])
    cost = best_of(costs, problem, array, goal.tolerance, goal.prices)
    return cost if proven else tiling.unproven(cost)


def beyond_guides(problem: Problem, guided: Tiled, array: Array, supply: Supply, tile: Size | None, goal: Goal) -> Tiled:
    """The best tile that a descent finds from the one that approximate closed forms have chosen: they may be wrong elsewhere."""
    cost = tiling.evaluate(problem, guided.tiling, array, supply)
    if tile is not None or problem.is_constrained:
        return cost
    start = (cost.tiling.m, cost.tiling.n, cost.tiling.k)
    costs = [cost, *descend(problem, CountedTiles.of(array), supply, [start])]
    return tiling.unproven(best_of(costs, problem, array, goal.tolerance, goal.prices))


def _least_totals(problem: Problem, array: HasLeastCycles, tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Lower bounds of the cycles of all tiles of a product, by what each kind of tile takes at least."""
    extents = np.array((problem.op.M, problem.op.N, problem.op.K))
    counts = -(-extents // tiles)
    sides = np.stack([tiles, extents - (counts - 1) * tiles]), np.stack([counts - 1, np.ones_like(counts)])
    total = np.zeros(len(tiles))
    for edges in itertools.product((0, 1), repeat=3):
        sizes = np.stack([sides[0][edge, :, axis] for axis, edge in enumerate(edges)], axis=1)
        weight = np.prod([sides[1][edge, :, axis] for axis, edge in enumerate(edges)], axis=0, dtype=np.float64)
        total += weight * array.least_cycles(sizes)
    return total * problem.op.count


def _clipped(sizes: Sequence[int], extents: Size) -> Size:
    return min(sizes[0], extents[0]), min(sizes[1], extents[1]), min(sizes[2], extents[2])
