"""A product simulated tile by tile: the reference of the closed form, and the path for arrays that use operand values.

On such arrays every tile has different cycles. `walk` asks `compute` for those of one tile after the other; `walk_counted` is its
compiled twin for cycles that are known already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.ir import MatMul
from trainyard.ir.folds import AXES
from trainyard.mapping.tiling import Integers, Problem, Supply, Tiled, Tiling, cut

Sums = tuple[tuple[object, ...], tuple[float, float], bool]
"""A tile of sums: its position, its elements, as unfinished and as finished sums, and whether they are finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile step: the number of the product (of `count`) and the ranges along m, n and k."""

    product: int
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]

    @property
    def op(self) -> MatMul:
        return MatMul(self.m[1] - self.m[0], self.n[1] - self.n[0], self.k[1] - self.k[0])


def steps(op: MatMul, tiling: Tiling) -> Iterator[Tile]:
    """Every tile step in loop order."""
    extents = dict(zip(AXES, (op.M, op.N, op.K), strict=True))
    for product in range(op.count):
        loops: list[range] = [range(0, extents[axis], tiling.size(axis)) for axis in tiling.order]  # type: ignore[arg-type, index]
        for starts in itertools.product(*loops):
            ranges: dict[str, Any] = {
                axis: (start, min(start + tiling.size(axis), extents[axis]))  # type: ignore[arg-type, index]  # loops are axes
                for axis, start in zip(tiling.order, starts, strict=True)
            }
            yield Tile(product=product, **ranges)


@dataclass(slots=True)
class _Resident:
    """The scratchpad: one tile of each operand, or all so far of a kept one, the sums that were spilled, and the bytes moved."""

    kept: frozenset[str] = frozenset()
    tiles: dict[str, object] = field(default_factory=dict)
    seen: set[tuple[str, object]] = field(default_factory=set)
    spilled: set[object] = field(default_factory=set)
    moved: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("a", "b", "out", "spill_write", "spill_read"), 0.0))

    def load(self, name: str, tile: object, size: float) -> float:
        """Bytes that loading a tile moves: none if it is there already."""
        if self.tiles.get(name) == tile or (name in self.kept and (name, tile) in self.seen):
            return 0.0
        self.seen.add((name, tile))
        self.tiles[name] = tile
        self.moved[name] += size
        return size


def walk(problem: Problem, tiling: Tiling, supply: Supply, compute: Callable[[Tile], int]) -> Tiled:
    """Cycles and bytes of a product in the given tiles and loop order."""
    rates, depth = problem.rates, problem.op.K
    resident = _Resident(frozenset(tiling.keep))
    spans = _spans(problem, tiling)
    loads, stores, busy = [], [], []
    current: Sums | None = None
    for tile in steps(problem.op, tiling):
        m, n, k = (end - start for start, end in (tile.m, tile.n, tile.k))
        load = resident.load("a", (tile.product, tile.m, tile.k), spans("a", m, k) * rates[0])
        load += resident.load("b", (tile.product, tile.k, tile.n), k * n * rates[1])
        sums, store = (tile.product, tile.m, tile.n), 0.0
        if current is None or current[0] != sums:
            store = _evict(current, resident, rates)
            if sums in resident.spilled:
                resident.moved["spill_read"] += m * n * rates[3]
                load += m * n * rates[3]
        current = (sums, (m * n, spans("out", m, n)), tile.k[1] == depth)
        loads.append(load)
        stores.append(store)
        busy.append(compute(tile))
    last = _evict(current, resident, rates)

    def dram_cycles(moved: float) -> int:
        return 0 if moved <= 0 else supply.latency_cycles + math.ceil(moved / supply.bytes_per_cycle)

    cycles = dram_cycles(loads[0]) + dram_cycles(last)
    for index, cycles_of_step in enumerate(busy):
        ahead = loads[index + 1] if index + 1 < len(loads) else 0.0
        cycles += max(cycles_of_step, dram_cycles(ahead + stores[index]))
    moved = {name: round(size) for name, size in resident.moved.items()}
    return Tiled(
        tiling=tiling,
        cycles=cycles,
        compute_cycles=sum(busy),
        a_read=moved["a"],
        b_read=moved["b"],
        out_moved=moved["out"],
        spill_write=moved["spill_write"],
        spill_read=moved["spill_read"],
    )


def walk_counted(problem: Problem, tiling: Tiling, supply: Supply, cycles: Integers) -> Tiled:
    """`walk` where the cycles of every tile are known, in loop order."""
    from trainyard.kernels.mapping.fixed_tiles import walked

    tile, _ = cut(problem, tiling)
    order = np.array([AXES.index(axis) for axis in tiling.order], dtype=np.int64)
    total, moved = walked(
        tile, _halo_sides(problem, tiling), order, tiling.keep_bits, problem.op.count, np.array(problem.rates),
        float(supply.bytes_per_cycle), supply.latency_cycles, cycles,
    )  # fmt: skip
    a_read, b_read, out_moved, spill_write, spill_read = (round(size) for size in moved.tolist())
    return Tiled(
        tiling=tiling,
        cycles=int(total),
        compute_cycles=int(cycles.sum()),
        a_read=a_read,
        b_read=b_read,
        out_moved=out_moved,
        spill_write=spill_write,
        spill_read=spill_read,
    )


def _halo_sides(problem: Problem, tiling: Tiling) -> npt.NDArray[np.float64]:
    """What a halo adds to the sides of a tile: of A along m and k, of finished sums along m."""
    more, halo = np.zeros(3), problem.halo
    if halo is not None:
        size = min(tiling.size(halo.axis), problem.op.M if halo.axis == "m" else problem.op.K)
        more[2 if halo.operand == "out" else 0 if halo.axis == "m" else 1] = halo.spread(size) - size
    return more


def _evict(current: Sums | None, resident: _Resident, rates: tuple[float, float, float, float]) -> float:
    """Bytes written when a tile of sums leaves the scratchpad: finished sums are written once, others spill."""
    if current is None:
        return 0.0
    sums, elements, finished = current
    if finished:
        resident.spilled.discard(sums)
        resident.moved["out"] += elements[1] * rates[2]
        return elements[1] * rates[2]
    if "out" in resident.kept:
        return 0.0
    resident.spilled.add(sums)
    resident.moved["spill_write"] += elements[0] * rates[3]
    return elements[0] * rates[3]


def _spans(problem: Problem, tiling: Tiling) -> Callable[[str, int, int], float]:
    """Elements of a tile of A or of finished sums with the halo of a convolution."""
    halo = problem.halo
    if halo is None:
        return lambda operand, first, second: first * second
    size = min(tiling.size(halo.axis), problem.op.M if halo.axis == "m" else problem.op.K)
    more = halo.spread(size) - size

    def elements(operand: str, first: int, second: int) -> float:
        if operand != halo.operand:
            return first * second
        return (first + more) * second if halo.axis == "m" else first * (second + more)

    return elements
