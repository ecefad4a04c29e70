"""Order, tiles and partition of a pair of gradients, searched together.

Tile sizes are doublings of the array's granule along each axis, up to the whole of it; all of them that find room are candidates.
Each has a bound on its cycles from below: what the array needs for all its tiles, or the bytes that cannot but move, each tensor
once and what loops bring in again (`_again`). The lowest bound is counted first, exactly (`gradient_order.cost`), until no bound
lies below the fastest found: that is the best of all candidates. So more bandwidth never costs time; more room may, where the same
bytes come at a worse moment (0.2 % in one of 600 random layers).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from trainyard.errors import BadInput
from trainyard.ir import DENSE, Array, ArrayCost, MatMul, Operand, Product
from trainyard.ir.folds import AXES
from trainyard.mapping.gradient_order.scratchpad import SLACK, Ordered, Pair, Policy, cost, tile_cycles, tile_product
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS, Gradient, Grid, Order, Partition, Size, grid
from trainyard.mapping.tiling import Supply

MOST_STEPS = 1 << 18
"""Tiles that make more operations than this are tried only where none makes fewer."""
DY, W, X, DX, DW = range(5)
HELD, MOVED = range(2)


def granule(pair: Pair, array: Array) -> Size:
    """The array's natural tile in the forward product's m, n, k; of two roles that an axis has, the larger."""
    gm, gn, gk = array.granule()
    if pair.alone:
        return gm, gk, gn
    dw_k, dw_n = (gn, gm) if pair.turned else (gm, gn)
    return max(gm, gk), max(gk, dw_n), max(gn, dw_k)


def best(
    pair: Pair,
    array: Array,
    supply: Supply,
    *,
    orders: Sequence[Order] = FUSED_ORDERS,
    partitions: Sequence[Partition | None] = (None,),
    policy: Policy = "lru",
    tile: Size | None = None,
) -> Ordered:
    """The fastest way; of equally fast ones that with the least traffic found, then the first. A given tile is kept."""
    asked = CachedTileCycles(array)
    ways: list[tuple[float, int, Order, Size, Partition | None]] = []
    for partition in partitions:
        tiles = [tile] if tile is not None else candidates(pair, granule(pair, array), supply.resident_bytes, partition)
        for size in tiles:
            compute, latency = (
                _compute(pair, size, asked, supply, partition),
                _bursts(pair, size, partition) * supply.latency_cycles,
            )
            for order in orders[:1] if pair.alone else orders:
                moved = _least_bytes(pair, size, order, supply.resident_bytes, policy, partition) / supply.bytes_per_cycle
                ways.append((max(compute, moved + latency), len(ways), order, size, partition))
    found: Ordered | None = None
    for least, _, order, size, partition in sorted(ways, key=lambda way: way[:2]):
        if found is not None and least >= found.cycles:
            break
        one = cost(pair, tile=size, order=order, array=asked, supply=supply, policy=policy, partition=partition)
        if found is None or (one.cycles, one.traffic.total_bytes) < (found.cycles, found.traffic.total_bytes):
            found = one
    if found is None:
        raise BadInput(
            f"no tile of {pair.op} finds room: one element of each tensor needs {pair.needed((1, 1, 1)):g} bytes, half of the "
            f"scratchpad holds {supply.resident_bytes:g}: give a larger scratchpad"
        )
    return found


def candidates(pair: Pair, smallest: Size, room: float, partition: Partition | None = None) -> list[Size]:
    """Tiles that find room, largest products first; below the granule only where no other does."""
    cores = partition.parts if partition is not None and partition.cores else 1
    extents = (pair.op.M, pair.op.N, pair.op.K)
    held = _each(pair, HELD)
    menus = [doublings(extent, size) for extent, size in zip(extents, smallest, strict=True)]
    sizes = ((m, n, k) for m in menus[0] for n in menus[1] for k in menus[2])
    fitting = [size for size in sizes if _needed(held, size) * cores <= room]
    if not fitting:
        fitting = [size for size in _halvings(extents, smallest) if _needed(held, size) * cores <= room][:1]
    few = [size for size in fitting if _steps(extents, size) <= MOST_STEPS]
    return sorted(few or fitting, key=lambda size: (_steps(extents, size), size))


@lru_cache(maxsize=4096)
def doublings(extent: int, smallest: int) -> tuple[int, ...]:
    doubled = itertools.takewhile(lambda size: size < extent, (smallest << power for power in range(extent.bit_length() + 1)))
    return (*doubled, extent)


def _halvings(extents: Size, smallest: Size) -> Iterator[Size]:
    size = [min(extent, unit) for extent, unit in zip(extents, smallest, strict=True)]
    while max(size) > 1:
        size = [max(1, side // 2) for side in size]
        yield size[0], size[1], size[2]


def _each(pair: Pair, kind: int) -> list[float]:
    """Bytes of an element of each tensor."""
    return [float(rate) for rate in pair.rates[:, kind]]


def _needed(held: Sequence[float], tile: Size) -> float:
    """Of the larger of both steps; one that is left out holds nothing."""
    m, n, k = tile
    first, second = m * k * held[DX] + k * n * held[W], m * k * held[X] + k * n * held[DW]
    return m * n * held[DY] + max(first, second)


def _steps(extents: Size, tile: Size) -> int:
    counts = [-(-extent // size) for extent, size in zip(extents, tile, strict=True)]
    return counts[0] * counts[1] * counts[2]


def _compute(pair: Pair, tile: Size, array: CachedTileCycles, supply: Supply, partition: Partition | None) -> float:
    """Cycles of all tiles, dealt evenly over the cores, between the first operands and the last result, which nothing hides."""
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    gradients: tuple[Gradient, ...] = ("dX",) if pair.alone else ("dX", "dW")
    dy, w, _, dx, dw = _each(pair, MOVED)
    m, n, k = cut.m[0], cut.n[0], cut.k[0]
    seen = m * n * dy + k * n * w
    m, n, k = cut.m[-1], cut.n[-1], cut.k[-1]
    seen += m * k * dx if pair.alone else k * n * dw
    return (
        all_tiles(pair, cut, gradients, array) * pair.op.count / cores + seen / supply.bytes_per_cycle + 2 * supply.latency_cycles
    )


def all_tiles(pair: Pair, cut: Grid, gradients: Sequence[Gradient], array: CachedTileCycles) -> int:
    """Cycles of the array for every tile of some gradients, one after the other."""
    total = 0
    for (m, rows), (n, columns), (k, deep) in itertools.product(*(Counter(cut.sizes(axis)).items() for axis in AXES)):
        products = (tile_product(pair, gradient, m, n, k) for gradient in gradients)
        total += rows * columns * deep * sum(array.tile_cycles(product.M, product.N, product.K) for product in products)
    return total


def _bursts(pair: Pair, tile: Size, partition: Partition | None) -> int:
    """Transfers at least: a step brings in no more than two tiles of operands on each core, and the last result leaves alone."""
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    m, n, k = len(cut.m), len(cut.n), len(cut.k)
    operands = m * n + k * n + (0 if pair.alone else m * k)
    return pair.op.count * -(-operands // (2 * cores)) + 1


def _least_bytes(pair: Pair, tile: Size, order: Order, room: float, policy: Policy, partition: Partition | None) -> float:
    """A bound on what moves: every tensor once, and what comes again in each part (on several cores: in one of them)."""
    sides, parts = {"m": pair.op.M, "n": pair.op.N, "k": pair.op.K}, 1
    blind = policy == "lru"
    if partition is not None:
        parts = min(partition.parts, sides[partition.axis])
        sides[partition.axis] //= parts  # the smallest
        if partition.cores:  # one may bring in what another has let go
            parts, blind = 1, False
    sizes = {axis: min(side, size) for (axis, side), size in zip(sides.items(), tile, strict=True)}
    return pair.compulsory_bytes + pair.op.count * parts * _again(pair, sides, sizes, order, room, blind)


def _again(pair: Pair, sides: Mapping[str, int], sizes: Mapping[str, int], order: Order, room: float, blind: bool) -> float:
    """What comes more than once, at least.

    A loop that goes through tensors in each of its turns needs them again in all turns but the first; what finds no room then comes
    again. Who lets go of the least recent (`blind`) always lets go of what is needed next: if they have no room beside each other,
    all of them come again, unless something else touches them in between, or sums that end make room.
    """
    m, n, k = (sides[axis] for axis in AXES)
    held = [rate * many for rate, many in zip(_each(pair, HELD), (m * n, k * n, m * k, m * k, k * n), strict=True)]
    whole = (*pair.moved[:DX], 2 * pair.sums[0], 2 * pair.sums[1])  # a sum goes out and comes back
    rates = [size / there if there else 0.0 for size, there in zip(whole, pair.held, strict=True)]

    def loop(tensors: tuple[int, ...], axis: str, outside: str = "", seeing: int = 0) -> float:
        """Bytes of tensors that each turn of `axis` goes through, a slice at a time where another loop is outside of it; in so many
        turns only what finds no room is sure to come."""
        slices, part = (sides[outside] // sizes[outside], sizes[outside] / sides[outside]) if outside else (1, 1.0)
        needed = part * sum(held[tensor] for tensor in tensors)
        if needed <= room * SLACK:
            return 0.0
        some = (needed - room) * min(rates[tensor] for tensor in tensors)
        everything = part * sum(held[tensor] * rates[tensor] for tensor in tensors)
        turns = -(-sides[axis] // sizes[axis]) - 1
        seeing = min(turns, seeing) if blind else turns
        return slices * (seeing * some + (turns - seeing) * everything)

    if order == "dx_major" and not pair.alone:  # m, k, n; in the last m, sums of dW end
        return loop((W, DW), "m", seeing=1) + loop((DY,), "k", "m")
    if order == "dw_major" and not pair.alone:  # n, k, m; in the last n, sums of dX end
        return loop((X, DX), "n", seeing=1) + loop((DY,), "k", "n")
    w, dy = loop((W,), "m"), loop((DY,), "k", "m")  # m, k, n
    if pair.alone:
        return w + dy
    x = loop((X,), "n", "k")  # k, n, m
    if order == "interleaved":  # both touch dY
        return w + x + max(loop((DY,), "k", "m", seeing=k), loop((DY,), "k", seeing=k))
    if order == "no_second_dy":
        return w + x + dy
    return w + x + dy + loop((DY,), "k") + max(0.0, held[DY] - room) * rates[DY]


@dataclass(frozen=True, slots=True)
class CachedTileCycles:
    """An array that is asked once for each size of tile."""

    array: Array
    known: dict[Size, int] = field(default_factory=dict)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.array.peak_macs_per_cycle

    def granule(self) -> Size:
        return self.array.granule()

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        size = (m, n, k)
        if size not in self.known:
            self.known[size] = tile_cycles(self.array, MatMul(m, n, k))
        return self.known[size]

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        return self.array.cost(op, a=a, b=b)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return self.array.concurrent(products)
