"""Order, tiles and partition of a pair of gradients, searched together.

Tile sizes are doublings of the array's granule along each axis, up to its extent; all of them that fit are candidates. Each has a
lower bound on its cycles: what the array needs for all its tiles, or the bytes that must move, each tensor once and what loops must
reload (`_reloaded_bytes`). Candidates are simulated exactly (`scratchpad.cost`) in the order of their bounds, until no bound is
below the fastest one: that is the best of all candidates. So more bandwidth never costs time; more room may, where the same bytes
arrive at a worse moment (0.2 % in one of 600 random layers).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import itemgetter
from typing import Protocol, TypeVar

from trainyard.errors import BadInput
from trainyard.ir import DENSE, Array, ArrayCost, MatMul, Operand, Product
from trainyard.ir.folds import AXES
from trainyard.mapping.gradient_order.scratchpad import SLACK, OrderCost, Pair, Policy, cost, tile_cycles, tile_product
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS, Gradient, Grid, Order, Partition, Size, grid
from trainyard.mapping.tiling import Supply

MOST_STEPS = 1 << 18
"""Tiles with more operations than this are tried only if all have more."""
DY, W, X, DX, DW = range(5)
RESIDENT, MOVED = range(2)


def granule(pair: Pair, array: Array) -> Size:
    """The array's natural tile in the forward product's m, n, k; the larger of the two roles of an axis."""
    gm, gn, gk = array.granule()
    if pair.alone:
        return gm, gk, gn
    dw_k, dw_n = (gn, gm) if pair.dw_transposed else (gm, gn)
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
) -> OrderCost:
    """The fastest order, tile and partition; of equally fast ones the one with the least traffic.

    A given tile is fixed, but for sizes of 0, which are searched.
    """
    cached = CachedTileCycles(array)
    evaluations: list[tuple[float, Callable[[], OrderCost]]] = []
    for partition in partitions:
        if tile is not None and all(tile):
            tiles = [tile]
        else:
            tiles = candidates(pair, granule(pair, array), supply.resident_bytes, partition, tile)
        for size in tiles:
            compute = _compute(pair, size, cached, supply, partition)
            latency = _bursts(pair, size, partition) * supply.latency_cycles
            for order in orders[:1] if pair.alone else orders:
                moved = _least_bytes(pair, size, order, supply.resident_bytes, policy, partition) / supply.bytes_per_cycle
                evaluate = partial(
                    cost, pair, tile=size, order=order, array=cached, supply=supply, policy=policy, partition=partition
                )
                evaluations.append((max(compute, moved + latency), evaluate))
    fastest = fastest_candidate(evaluations)
    if fastest is None:
        raise BadInput(
            f"no tile of {pair.op} finds room: one element of each tensor needs {pair.needed((1, 1, 1)):g} bytes, half of the "
            f"scratchpad holds {supply.resident_bytes:g}: give a larger scratchpad"
        )
    return fastest


class _Traffic(Protocol):
    @property
    def total_bytes(self) -> int: ...


class _Cost(Protocol):
    @property
    def cycles(self) -> int: ...
    @property
    def traffic(self) -> _Traffic: ...


C = TypeVar("C", bound=_Cost)


def fastest_candidate(candidates: Sequence[tuple[float, Callable[[], C]]], most_cycles: float = math.inf) -> C | None:
    """The fastest of candidates (lower bound on its cycles, function that computes its cost), None if all exceed `most_cycles`.

    They are evaluated in the order of their bounds, until no bound is below the fastest; of equally fast ones the one with the
    least traffic is returned.
    """
    fastest: C | None = None
    for bound, evaluate in sorted(candidates, key=itemgetter(0)):
        if bound > most_cycles or (fastest is not None and bound >= fastest.cycles):
            break
        evaluated = evaluate()
        if evaluated.cycles > most_cycles:
            continue
        if fastest is None or (evaluated.cycles, evaluated.traffic.total_bytes) < (fastest.cycles, fastest.traffic.total_bytes):
            fastest = evaluated
    return fastest


def candidates(
    pair: Pair, smallest: Size, room: float, partition: Partition | None = None, fixed: Size | None = None
) -> list[Size]:
    """Tiles that fit, fewest operations first; tiles below the granule only if no other fits. `fixed` sizes stay (0: free)."""
    cores = partition.parts if partition is not None and partition.cores else 1
    extents = (pair.op.M, pair.op.N, pair.op.K)
    resident = _bytes_per_element(pair, RESIDENT)
    stay = [min(size, extent) for size, extent in zip(fixed or (0, 0, 0), extents, strict=True)]
    menus = [(own,) if own else doublings(extent, size) for extent, size, own in zip(extents, smallest, stay, strict=True)]
    sizes = ((m, n, k) for m in menus[0] for n in menus[1] for k in menus[2])
    fitting = [size for size in sizes if _needed(resident, size) * cores <= room]
    if not fitting:
        halved = ((stay[0] or m, stay[1] or n, stay[2] or k) for m, n, k in _halvings(extents, smallest))
        fitting = [size for size in halved if _needed(resident, size) * cores <= room][:1]
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


def _bytes_per_element(pair: Pair, kind: int) -> list[float]:
    """Bytes of an element of each tensor."""
    return [float(rate) for rate in pair.rates[:, kind]]


def _needed(resident: Sequence[float], tile: Size) -> float:
    """Bytes of the larger of the two operations; one that is left out has none."""
    m, n, k = tile
    first, second = m * k * resident[DX] + k * n * resident[W], m * k * resident[X] + k * n * resident[DW]
    return m * n * resident[DY] + max(first, second)


def _steps(extents: Size, tile: Size) -> int:
    counts = [-(-extent // size) for extent, size in zip(extents, tile, strict=True)]
    return counts[0] * counts[1] * counts[2]


def _compute(pair: Pair, tile: Size, array: CachedTileCycles, supply: Supply, partition: Partition | None) -> float:
    """Cycles of all tiles, spread evenly over the cores, and of the first loads and the last write, which nothing hides."""
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    gradients: tuple[Gradient, ...] = ("dX",) if pair.alone else ("dX", "dW")
    dy, w, _, dx, dw = _bytes_per_element(pair, MOVED)
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
    """Fewest transfers: a step loads no more than two operand tiles on each core, and the last result is written by itself."""
    cut = grid(pair.op, tile, partition)
    cores = len(cut.parts) if partition is not None and partition.cores else 1
    m, n, k = len(cut.m), len(cut.n), len(cut.k)
    operands = m * n + k * n + (0 if pair.alone else m * k)
    return pair.op.count * -(-operands // (2 * cores)) + 1


def _least_bytes(pair: Pair, tile: Size, order: Order, room: float, policy: Policy, partition: Partition | None) -> float:
    """A lower bound on the bytes moved: every tensor once, and what each part (on several cores: one of them) reloads."""
    sides, parts = {"m": pair.op.M, "n": pair.op.N, "k": pair.op.K}, 1
    is_lru = policy == "lru"
    if partition is not None:
        parts = min(partition.parts, sides[partition.axis])
        sides[partition.axis] //= parts  # the smallest
        if partition.cores:  # one core may load what another has evicted
            parts, is_lru = 1, False
    sizes = {axis: min(side, size) for (axis, side), size in zip(sides.items(), tile, strict=True)}
    return pair.compulsory_bytes + pair.op.count * parts * _reloaded_bytes(pair, sides, sizes, order, room, is_lru)


def _reloaded_bytes(
    pair: Pair, sides: Mapping[str, int], sizes: Mapping[str, int], order: Order, room: float, is_lru: bool
) -> float:
    """A lower bound on the bytes that are loaded more than once.

    A loop that uses tensors in each of its turns needs them again in all turns but the first; what does not fit is then reloaded.
    An LRU scratchpad (`is_lru`) always evicts what is needed next: if the tensors do not fit together, all of them are reloaded,
    unless other operations touch them in between, or finished sums free room.
    """
    m, n, k = (sides[axis] for axis in AXES)
    resident = [
        rate * elements
        for rate, elements in zip(_bytes_per_element(pair, RESIDENT), (m * n, k * n, m * k, m * k, k * n), strict=True)
    ]
    moved = (*pair.moved[:DX], 2 * pair.sums[0], 2 * pair.sums[1])  # a spilled sum is written and read back
    rates = [size / resident_bytes if resident_bytes else 0.0 for size, resident_bytes in zip(moved, pair.resident, strict=True)]

    def loop(tensors: tuple[int, ...], axis: str, outside: str = "", seeing: int = 0) -> float:
        """Reloaded bytes of tensors that each turn of `axis` uses, a slice at a time inside an `outside` loop.

        In `seeing` turns only what does not fit is sure to be reloaded.
        """
        slices, part = (sides[outside] // sizes[outside], sizes[outside] / sides[outside]) if outside else (1, 1.0)
        needed = part * sum(resident[tensor] for tensor in tensors)
        if needed <= room * SLACK:
            return 0.0
        overflow = (needed - room) * min(rates[tensor] for tensor in tensors)
        everything = part * sum(resident[tensor] * rates[tensor] for tensor in tensors)
        turns = -(-sides[axis] // sizes[axis]) - 1
        seeing = min(turns, seeing) if is_lru else turns
        return slices * (seeing * overflow + (turns - seeing) * everything)

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
    return w + x + dy + loop((DY,), "k") + max(0.0, resident[DY] - room) * rates[DY]


@dataclass(frozen=True, slots=True)
class CachedTileCycles:
    """An array with the cycles of each size of tile cached."""

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
