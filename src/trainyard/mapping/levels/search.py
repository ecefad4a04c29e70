"""Tiles of the scratchpad for an array behind levels: the candidate of the least lower bound is evaluated first.

A candidate's bound is the time of its DRAM bytes, or of the array alone in its tiles, which no level makes faster. Only candidates
that could still win are searched through the levels inside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from trainyard.ir.folds import AXES
from trainyard.mapping.levels.array import LeveledArray
from trainyard.mapping.tiling import NO_TILE, ORDERS, Problem, Size, Supply, Tiled, Tiling, candidates, evaluate, passes


def search(problems: Sequence[Problem], array: LeveledArray, supply: Supply, tile: Size | None = None) -> list[Tiled]:
    """The fastest tile and loop order of each product; of equally fast ones that of fewest DRAM bytes."""
    return [_best(problem, array, supply, tile) for problem in problems]


def _best(problem: Problem, array: LeveledArray, supply: Supply, tile: Size | None) -> Tiled:
    op, rates = problem.op, problem.sram_rates
    fixed = [own or given for own, given in zip(problem.tile, tile or NO_TILE, strict=True)]
    sizes = dict.fromkeys((fixed[0] or m, fixed[1] or n, fixed[2] or k) for m, n, k in candidates(op, array.granule()))
    ranked: list[tuple[float, int, Tiling]] = []
    for m, n, k in sizes:
        if m * k * rates[0] + k * n * rates[1] + m * n * rates[2] > supply.resident_bytes:
            continue
        compute = _array_cycles(array, problem, (m, n, k))
        for order in problem.orders or ORDERS:
            tiling = Tiling(m=m, n=n, k=k, order=order)
            over_n, over_m, over_k = passes(op, tiling)
            moved = over_n * problem.a_bytes + over_m * problem.b_bytes + problem.out_bytes + 2 * (over_k - 1) * problem.sum_bytes
            ranked.append((max(compute, moved / supply.bytes_per_cycle), len(ranked), tiling))
    ranked.sort()
    best: Tiled | None = None
    for bound, _, tiling in ranked:
        if best is not None and bound * (1 - 1e-9) > best.cycles:
            break
        tiled = evaluate(problem, tiling, array, supply)
        if best is None or (tiled.cycles, tiled.dram_bytes) < (best.cycles, best.dram_bytes):
            best = tiled
    assert best is not None
    return best


def _array_cycles(array: LeveledArray, problem: Problem, tile: Size) -> float:
    """A lower bound on the cycles of all tiles: of the array alone, by its closed forms or its peak."""
    op = problem.op
    parts = []
    for _, extent, size in zip(AXES, (op.M, op.N, op.K), tile, strict=True):
        count = -(-extent // size)
        parts.append(((min(size, extent), count - 1), (extent - (count - 1) * size, 1)))
    total = 0.0
    for (m, rows), (n, columns), (k, deep) in itertools.product(*parts):
        if rows * columns * deep:
            forms = array.lower_bounds
            cycles = min((form.cycles(m, n, k) for form in forms), default=math.ceil(m * n * k / array.peak_macs_per_cycle))
            total += rows * columns * deep * cycles
    return total * op.count
