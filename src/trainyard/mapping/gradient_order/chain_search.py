"""Tiles and join of a chain of two layers that take the fewest cycles, beside what the layers take apart.

Candidates are those of `gradient_search`, along m, n, k of the upper layer and k of the lower one (whose m and n are the upper's m
and k), with either join of `gradient_chain`. As there, each has a bound from below, the lowest is counted first, and the search
ends where no bound lies below what was found, or below what the layers take apart: most chains that do not pay cost few runs.
"""

from __future__ import annotations

import itertools
import math

from trainyard.ir import Array, MatMul
from trainyard.mapping.gradient_order.chain import JOINS, Chain, Join, OrderedChain, cost_across
from trainyard.mapping.gradient_order.scratchpad import SLACK, Policy
from trainyard.mapping.gradient_order.search import MOST_STEPS, CachedTileCycles, all_tiles, doublings, granule
from trainyard.mapping.gradient_order.tile_streams import Size, grid
from trainyard.mapping.tiling import Supply

DY, W, X, BETWEEN, DW, LOWER_W, LOWER_X, LOWER_DX, LOWER_DW = range(9)


def fastest(
    chain: Chain,
    array: Array,
    supply: Supply,
    *,
    policy: Policy = "lru",
    most_cycles: float = math.inf,
    tile: Size | None = None,
) -> OrderedChain | None:
    """The fastest chain of at most so many cycles; of equally fast ones that with the least traffic found. None: there is none.

    A given tile is both layers'; where the upper's k and the lower's n are then cut differently, there is no chain.
    """
    asked = CachedTileCycles(array)
    ways: list[tuple[float, int, Size, Size, Join]] = []
    for upper, lower in _candidates(chain, array, supply.resident_bytes) if tile is None else _given(chain, tile, supply):
        compute = _compute(chain, upper, lower, asked, supply)
        for join in JOINS:
            moved = chain.compulsory_bytes + chain.upper.op.count * _again(chain, upper, lower, join, supply.resident_bytes, policy)
            ways.append((max(compute, moved / supply.bytes_per_cycle), len(ways), upper, lower, join))
    found: OrderedChain | None = None
    for least, _, upper, lower, join in sorted(ways, key=lambda way: way[:2]):
        if least > most_cycles or (found is not None and least >= found.cycles):
            break
        one = cost_across(chain, tile_upper=upper, tile_lower=lower, array=asked, supply=supply, policy=policy, join=join)
        if one.cycles > most_cycles:
            continue
        if found is None or (one.cycles, one.traffic.total_bytes) < (found.cycles, found.traffic.total_bytes):
            found = one
    return found


def _given(chain: Chain, tile: Size, supply: Supply) -> list[tuple[Size, Size]]:
    _, n, k = tile
    same = min(k, chain.upper.op.K) == min(n, chain.lower.op.N)
    return [(tile, tile)] if same and chain.needed(tile, tile) <= supply.resident_bytes * SLACK else []


def _candidates(chain: Chain, array: Array, room: float) -> list[tuple[Size, Size]]:
    """Tiles that find room, of whole granules."""
    upper, lower = chain.upper.op, chain.lower.op
    above, below = granule(chain.upper, array), granule(chain.lower, array)
    smallest = max(above[0], below[0]), above[1], max(above[2], below[1]), below[2]
    menus = [doublings(extent, size) for extent, size in zip((upper.M, upper.N, upper.K, lower.K), smallest, strict=True)]
    tiles = [((m, n, k), (m, k, j)) for m, n, k, j in itertools.product(*menus)]
    fitting = [both for both in tiles if chain.needed(*both) <= room * SLACK]
    few = [both for both in fitting if _operations(chain, *both) <= MOST_STEPS]
    return sorted(few or fitting, key=lambda both: (_operations(chain, *both), both))


def _counts(op: MatMul, tile: Size) -> Size:
    m, n, k = (-(-extent // size) for extent, size in zip((op.M, op.N, op.K), tile, strict=True))
    return m, n, k


def _operations(chain: Chain, upper: Size, lower: Size) -> int:
    return 2 * math.prod(_counts(chain.upper.op, upper)) + (1 + chain.lower_dx) * math.prod(_counts(chain.lower.op, lower))


def _compute(chain: Chain, upper: Size, lower: Size, array: CachedTileCycles, supply: Supply) -> float:
    """Cycles of all tiles, between the first operands and the last result, which nothing hides."""
    above, below = grid(chain.upper.op, upper), grid(chain.lower.op, lower)
    total = all_tiles(chain.upper, above, ("dX", "dW"), array)
    total += all_tiles(chain.lower, below, ("dX", "dW") if chain.lower_dx else ("dW",), array)
    rates = chain.rates[:, 1]
    m, n, k = above.m[0], above.n[0], above.k[0]
    seen = m * n * rates[DY] + k * n * rates[W] + below.k[-1] * above.k[-1] * rates[LOWER_DW]
    return float(total * chain.upper.op.count + seen / supply.bytes_per_cycle + 2 * supply.latency_cycles)


def _again(chain: Chain, upper: Size, lower: Size, join: Join, room: float, policy: Policy) -> float:
    """What comes more than once in one chain, at least; as in `gradient_search`, loops whose tensors do not all find room.

    Every block of rows goes through both W and dW, every k of a block through the rows of dY, and, where a tile goes down at once,
    through the lower X and dX; every j of a block through the rows between the layers.
    """
    op, below, rates = chain.upper.op, chain.lower.op, chain.rates
    blocks, _, k_tiles = _counts(op, upper)
    j_tiles, rows, whole_blocks = -(-below.K // lower[2]), min(upper[0], op.M), op.M // min(upper[0], op.M)
    many = (rows * op.N, op.K * op.N, 0, rows * op.K, op.K * op.N, below.K * op.K, rows * below.K, rows * below.K, below.K * op.K)
    held = [float(rate) * elements for rate, elements in zip(rates[:, 0], many, strict=True)]
    moved = [float(rate) * elements for rate, elements in zip(rates[:, 1], many, strict=True)]
    for result in (DW, LOWER_DX, LOWER_DW):  # a sum goes out and comes back
        moved[result] = 2 * float(rates[result, 2]) * many[result]
    held[BETWEEN], moved[BETWEEN] = (float(rates[BETWEEN, kind]) * many[BETWEEN] for kind in (3, 4))

    def loop(tensors: tuple[int, ...], turns: int) -> float:
        there = [tensor for tensor in tensors if held[tensor]]
        needed = sum(held[tensor] for tensor in there)
        if needed <= room * SLACK:
            return 0.0
        if policy == "farthest":
            return turns * (needed - room) * min(moved[tensor] / held[tensor] for tensor in there)
        return turns * sum(moved[tensor] for tensor in there)

    weights = (W, DW, LOWER_W, LOWER_DW) if chain.lower_dx else (W, DW, LOWER_DW)
    under = (LOWER_X, LOWER_DX) if chain.lower_dx else (LOWER_X,)
    rest = loop(under, k_tiles - 1) if join == "tile" else loop((BETWEEN,), j_tiles - 1)
    return loop(weights, blocks - 1) + whole_blocks * (loop((DY,), k_tiles - 1) + rest)
