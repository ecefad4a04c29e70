"""The best loop order of given tiles of one product: for arrays whose cycles are known one tile at a time.

What a product and a memory system decide is put together once; each tile then takes one compiled call. The plain twin is
`mapping.tiling.evaluate` of every order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.mapping.tiling import (
    FASTEST,
    OBJECTIVES,
    ORDERS,
    TENSORS,
    Goal,
    Problem,
    ProblemTable,
    Size,
    Supply,
    Tiled,
    Tiling,
    closed_form,
    passes,
    single_table,
)

CyclesOf = Callable[[int, int, int], int]
"""Cycles of one tile (m, n, k) on an array."""


class OrderedTile(NamedTuple):
    """A tile in its best loop order: cycles, DRAM bytes, and what the search makes small."""

    tiling: Tiling
    cycles: int
    compute_cycles: int
    value: float
    dram_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class LoopOrders:
    """One product behind one memory system; `table` is the product as the compiled search has it."""

    problem: Problem
    supply: Supply
    table: ProblemTable
    machine: tuple[npt.NDArray[np.float64], int]
    goal: tuple[int, npt.NDArray[np.float64], float]
    """Objective, joules, and the factor of what counts as equal."""

    @classmethod
    def of(cls, problem: Problem, supply: Supply, goal: Goal = FASTEST) -> LoopOrders:
        machine = np.array([supply.bytes_per_cycle, supply.resident_bytes], np.float64), supply.latency_cycles
        wanted = OBJECTIVES.index(goal.objective), np.array(goal.joules(problem.op)), 1.0 + goal.tolerance
        return cls(problem, supply, single_table(problem), machine, wanted)

    def best(self, size: Size, cycles_of: CyclesOf) -> OrderedTile | None:
        """None where the tile does not fit, or takes more cycles than are counted exactly."""
        from trainyard.kernels.mapping.fixed_tiles import LONGEST, best_order

        op, table, sides = self.problem.op, self.table, []
        for side, extent in zip(size, (op.M, op.N, op.K), strict=True):
            count = -(-extent // side)
            sides.append((side, count, extent - (count - 1) * side))
        kinds, compute = [0] * len(EDGES), 0
        for kind, (em, en, ek) in enumerate(EDGES):
            many = (1 if em else sides[0][1] - 1) * (1 if en else sides[1][1] - 1) * (1 if ek else sides[2][1] - 1)
            if many:
                kinds[kind] = cycles_of(sides[0][2 * em], sides[1][2 * en], sides[2][2 * ek])
                compute += many * kinds[kind]
        if not len(table.dims) or compute * op.count >= LONGEST:
            return None
        objective, joules, band = self.goal
        order, keep, cycles, value, moved = best_order(
            table.dims[0], table.rates[0], table.halos[0], np.array(sides, np.int64), table.allowed[0],
            np.array(kinds, np.int64).reshape(2, 2, 2), *self.machine, objective, joules, band,
        )  # fmt: skip
        if order < 0:
            return None
        return OrderedTile(_tiling(size, order, keep), cycles, compute * op.count, value, moved)

    def tiled(self, tile: OrderedTile) -> Tiled:
        """With its DRAM bytes by tensor."""
        moves = passes(self.problem.op, tile.tiling)
        return closed_form(self.problem, tile.tiling, tile.cycles, tile.compute_cycles, moves)


EDGES = tuple(itertools.product((0, 1), repeat=3))
"""Kinds of tile: along m, n and k a full one or the clipped one at the end."""


def _tiling(size: Size, order: int, keep: int) -> Tiling:
    kept = tuple(tensor for number, tensor in enumerate(TENSORS) if keep >> number & 1)
    return Tiling(m=size[0], n=size[1], k=size[2], order=ORDERS[order], keep=kept)
