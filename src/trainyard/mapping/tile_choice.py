"""Which of a few evaluated tilings is taken: least time, then least traffic, then least energy by the array's own events.

The compiled search (`kernels.mapping.tile_front`) has the same three criteria, with closed forms of the events. Here the array is
asked for the events of the tilings that the first two leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, TypeVar

from trainyard.hardware.tables.energy import Prices
from trainyard.ir import Array, MatMul
from trainyard.mapping.tiling import Problem, Tiling

SUM_BYTES = 4
"""Bytes of a sum at the ports of scratchpads."""
MOST_ASKED = 8
"""Tilings of equal time and traffic whose events are asked for: those with the fewest tiles, which read their operands least."""


class Evaluated(Protocol):
    """A tiling with its cycles and its DRAM bytes."""

    @property
    def tiling(self) -> Tiling: ...

    @property
    def cycles(self) -> int: ...

    @property
    def dram_bytes(self) -> float: ...


T = TypeVar("T", bound=Evaluated)


def best_of(tilings: Sequence[T], problem: Problem, array: Array, tolerance: float, prices: Prices) -> T:
    """Of the tilings within the tolerance of the fewest cycles those within it of the least traffic, and of these the one with the
    least energy; of equal ones that with the least traffic, then the fewest cycles, then the first."""
    fastest = min(tiling.cycles for tiling in tilings)
    near = [tiling for tiling in tilings if tiling.cycles <= fastest * (1 + tolerance)]
    least = min(tiling.dram_bytes for tiling in near)
    near = [tiling for tiling in near if tiling.dram_bytes <= least * (1 + tolerance)]
    if len(near) == 1:
        return near[0]
    near = sorted(near, key=lambda tiling: _tiles(problem.op, tiling.tiling))[:MOST_ASKED]
    return min(
        near,
        key=lambda one: (
            on_chip_joules(problem, one.tiling, array, prices) + prices.row[0] * one.dram_bytes, one.dram_bytes, one.cycles
        ),
    )  # fmt: skip


def on_chip_joules(problem: Problem, tiling: Tiling, array: Array, prices: Prices) -> float:
    """Joules at the ports of the scratchpads, by the events of each size of tile; and of sums that an earlier tile has begun."""
    op, total = problem.op, 0.0
    a_bytes, b_bytes = problem.element_bytes or problem.sram_rates[:2]
    for (m, rows), (n, columns), (k, deep) in itertools.product(
        _sides(op.M, tiling.m), _sides(op.N, tiling.n), _sides(op.K, tiling.k)
    ):
        cost = array.cost(MatMul(m, n, k))
        joules = prices.cycle * cost.cycles
        for operand, size in (("a", a_bytes), ("b", b_bytes), ("out", SUM_BYTES)):
            joules += size * prices.read * cost.events.get(f"scratchpad_read_{operand}", 0.0)
            joules += size * prices.write * cost.events.get(f"scratchpad_write_{operand}", 0.0)
            joules += size * prices.local * cost.events.get(f"local_read_{operand}", 0.0)
        total += joules * rows * columns * deep
    begun = op.M * op.N * (-(-op.K // tiling.k) - 1)
    return (total + begun * SUM_BYTES * prices.read) * op.count


def _sides(extent: int, size: int) -> list[tuple[int, int]]:
    whole, rest = divmod(extent, min(size, extent))
    return [(min(size, extent), whole), *([(rest, 1)] if rest else [])]


def _tiles(op: MatMul, tiling: Tiling) -> int:
    return -(-op.M // tiling.m) * -(-op.N // tiling.n) * -(-op.K // tiling.k)
