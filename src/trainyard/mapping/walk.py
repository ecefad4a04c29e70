"""A product walked tile by tile with an explicit resident set: the twin of the closed form, and the way for tiles that differ.

Where an array looks at zeros, every tile has cycles of its own; `compute` is then asked for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainyard.ir import MatMul
from trainyard.ir.folds import AXES
from trainyard.mapping.tiling import Problem, Supply, Tiled, Tiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One step: which of the `count` products, and the ranges along m, n and k."""

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
            at: dict[str, Any] = {
                axis: (start, min(start + tiling.size(axis), extents[axis]))  # type: ignore[arg-type, index]  # loops are axes
                for axis, start in zip(tiling.order, starts, strict=True)
            }
            yield Tile(product=product, **at)


@dataclass(slots=True)
class _Resident:
    """One tile of each tensor, and the sums that are not finished."""

    held: dict[str, object] = field(default_factory=dict)
    begun: set[object] = field(default_factory=set)
    moved: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("a", "b", "out", "spill_write", "spill_read"), 0.0))

    def take(self, name: str, tile: object, size: float) -> float:
        if self.held.get(name) == tile:
            return 0.0
        self.held[name] = tile
        self.moved[name] += size
        return size


def walk(problem: Problem, tiling: Tiling, supply: Supply, compute: Callable[[Tile], int]) -> Tiled:
    """Cycles and bytes, tile after tile."""
    rates, depth = problem.rates, problem.op.K
    resident = _Resident()
    loads, stores, busy = [], [], []
    left: tuple[tuple[object, ...], float, bool] | None = None  # tile of sums in place, its elements, finished
    for tile in steps(problem.op, tiling):
        m, n, k = (end - start for start, end in (tile.m, tile.n, tile.k))
        load = resident.take("a", (tile.product, tile.m, tile.k), m * k * rates[0])
        load += resident.take("b", (tile.product, tile.k, tile.n), k * n * rates[1])
        sums, store = (tile.product, tile.m, tile.n), 0.0
        if left is None or left[0] != sums:
            store = _leave(left, resident, rates)
            if sums in resident.begun:
                resident.moved["spill_read"] += m * n * rates[3]
                load += m * n * rates[3]
        left = (sums, m * n, tile.k[1] == depth)
        loads.append(load)
        stores.append(store)
        busy.append(compute(tile))
    last = _leave(left, resident, rates)

    def dram(moved: float) -> int:
        return 0 if moved <= 0 else supply.latency_cycles + math.ceil(moved / supply.bytes_per_cycle)

    cycles = dram(loads[0]) + dram(last)
    for index, cycles_of_step in enumerate(busy):
        ahead = loads[index + 1] if index + 1 < len(loads) else 0.0
        cycles += max(cycles_of_step, dram(ahead + stores[index]))
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


def _leave(
    left: tuple[tuple[object, ...], float, bool] | None, resident: _Resident, rates: tuple[float, float, float, float]
) -> float:
    """The tile of sums that makes room: finished ones are written once, others spill."""
    if left is None:
        return 0.0
    sums, elements, finished = left
    if finished:
        resident.begun.discard(sums)
        resident.moved["out"] += elements * rates[2]
        return elements * rates[2]
    resident.begun.add(sums)
    resident.moved["spill_write"] += elements * rates[3]
    return elements * rates[3]
