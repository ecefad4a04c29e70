"""Tiles and join of a chain of two layers that take the fewest cycles.

Candidates are those of `search`, along m, n, k of the upper layer and k of the lower one (whose m and n are the upper's m and k),
with either join of `chain`. As there, each has a lower bound, candidates are simulated in the order of their bounds, and the search
ends when no bound is below the best cycles, or below those of the layers apart: most chains that do not pay cost few simulations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from trainyard.ir import Array, MatMul
from trainyard.mapping.gradient_order.chain import JOINS, Chain, ChainCost, Join, chain_cost
from trainyard.mapping.gradient_order.scratchpad import SLACK, Policy
from trainyard.mapping.gradient_order.search import MOST_STEPS, all_tiles, best_candidate, doublings, granule
from trainyard.mapping.gradient_order.tile_streams import Size, grid
from trainyard.mapping.tiling import Supply

if TYPE_CHECKING:
    from trainyard.mapping.tile_descent import CountedTiles

DY, W, X, BETWEEN, DW, LOWER_W, LOWER_X, LOWER_DX, LOWER_DW = range(9)


def fastest(
    chain: Chain,
    array: Array,
    supply: Supply,
    *,
    policy: Policy = "lru",
    most_cycles: float = math.inf,
    tile: Size | None = None,
) -> ChainCost | None:
    """The fastest chain of at most `most_cycles`; of equally fast ones the one with the least traffic. None if there is none.

    A fixed `tile` is both layers'; if the upper's k and the lower's n are then cut differently, there is no chain.
    """
    from trainyard.mapping.tile_descent import CountedTiles

    cached = CountedTiles.of(array)
    candidates: list[tuple[float, Callable[[], ChainCost]]] = []
    for upper, lower in _candidates(chain, array, supply.resident_bytes) if tile is None else _fixed_tile(chain, tile, supply):
        compute = _compute(chain, upper, lower, cached, supply)
        for join in JOINS:
            reloaded = _reloaded_bytes(chain, upper, lower, join, supply.resident_bytes, policy)
            moved = chain.compulsory_bytes + chain.upper.op.count * reloaded
            evaluate = partial(
                chain_cost, chain, tile_upper=upper, tile_lower=lower, array=cached, supply=supply, policy=policy, join=join
            )
            candidates.append((max(compute, moved / supply.bytes_per_cycle), evaluate))
    return best_candidate(candidates, most_cycles)


def _fixed_tile(chain: Chain, tile: Size, supply: Supply) -> list[tuple[Size, Size]]:
    _, n, k = tile
    same = min(k, chain.upper.op.K) == min(n, chain.lower.op.N)
    return [(tile, tile)] if same and chain.needed(tile, tile) <= supply.resident_bytes * SLACK else []


def _candidates(chain: Chain, array: Array, room: float) -> list[tuple[Size, Size]]:
    """Pairs of tiles that fit, of whole granules, few operations first."""
    upper, lower = chain.upper.op, chain.lower.op
    above, below = granule(chain.upper, array), granule(chain.lower, array)
    smallest = max(above[0], below[0]), above[1], max(above[2], below[1]), below[2]
    menus = [doublings(extent, size) for extent, size in zip((upper.M, upper.N, upper.K, lower.K), smallest, strict=True)]
    tiles = [((m, n, k), (m, k, j)) for m, n, k, j in itertools.product(*menus)]
    fitting = [tiles_pair for tiles_pair in tiles if chain.needed(*tiles_pair) <= room * SLACK]
    few = [tiles_pair for tiles_pair in fitting if _operations(chain, *tiles_pair) <= MOST_STEPS]
    return sorted(few or fitting, key=lambda tiles_pair: (_operations(chain, *tiles_pair), tiles_pair))


def _counts(op: MatMul, tile: Size) -> Size:
    m, n, k = (-(-extent // size) for extent, size in zip((op.M, op.N, op.K), tile, strict=True))
    return m, n, k


def _operations(chain: Chain, upper: Size, lower: Size) -> int:
    return 2 * math.prod(_counts(chain.upper.op, upper)) + (1 + chain.lower_dx) * math.prod(_counts(chain.lower.op, lower))


def _compute(chain: Chain, upper: Size, lower: Size, array: CountedTiles, supply: Supply) -> float:
    """Cycles of all tiles, the first loads and the last write, which nothing hides."""
    above, below = grid(chain.upper.op, upper), grid(chain.lower.op, lower)
    total = all_tiles(chain.upper, above, ("dX", "dW"), array)
    total += all_tiles(chain.lower, below, ("dX", "dW") if chain.lower_dx else ("dW",), array)
    rates = chain.rates[:, 1]
    m, n, k = above.m[0], above.n[0], above.k[0]
    seen = m * n * rates[DY] + k * n * rates[W] + below.k[-1] * above.k[-1] * rates[LOWER_DW]
    return float(total * chain.upper.op.count + seen / supply.bytes_per_cycle + 2 * supply.latency_cycles)


def _reloaded_bytes(chain: Chain, upper: Size, lower: Size, join: Join, room: float, policy: Policy) -> float:
    """A lower bound on the bytes that one chain loads more than once: loops over tensors that do not all fit, as in `search`.

    Every block of rows uses both W and dW, every k of a block the rows of dY, and with `join="tile"` the lower X and dX; every j of
    a block the rows between the layers.
    """
    op, below, rates = chain.upper.op, chain.lower.op, chain.rates
    blocks, _, k_tiles = _counts(op, upper)
    j_tiles, rows, whole_blocks = -(-below.K // lower[2]), min(upper[0], op.M), op.M // min(upper[0], op.M)
    counts = (rows * op.N, op.K * op.N, 0, rows * op.K, op.K * op.N, below.K * op.K, rows * below.K, rows * below.K, below.K * op.K)
    resident = [float(rate) * elements for rate, elements in zip(rates[:, 0], counts, strict=True)]
    moved = [float(rate) * elements for rate, elements in zip(rates[:, 1], counts, strict=True)]
    for result in (DW, LOWER_DX, LOWER_DW):  # a spilled sum is written and read back
        moved[result] = 2 * float(rates[result, 2]) * counts[result]
    resident[BETWEEN], moved[BETWEEN] = (float(rates[BETWEEN, kind]) * counts[BETWEEN] for kind in (3, 4))

    def loop(tensors: tuple[int, ...], turns: int) -> float:
        there = [tensor for tensor in tensors if resident[tensor]]
        needed = sum(resident[tensor] for tensor in there)
        if needed <= room * SLACK:
            return 0.0
        if policy == "farthest":
            return turns * (needed - room) * min(moved[tensor] / resident[tensor] for tensor in there)
        return turns * sum(moved[tensor] for tensor in there)

    weights = (W, DW, LOWER_W, LOWER_DW) if chain.lower_dx else (W, DW, LOWER_DW)
    lower_inputs = (LOWER_X, LOWER_DX) if chain.lower_dx else (LOWER_X,)
    reloaded = loop(lower_inputs, k_tiles - 1) if join == "tile" else loop((BETWEEN,), j_tiles - 1)
    return loop(weights, blocks - 1) + whole_blocks * (loop((DY,), k_tiles - 1) + reloaded)
