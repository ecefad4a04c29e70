"""Compiled: lower bounds for ranges of tile sizes (cells) that all make the same numbers of tiles, from their steps by kind.

With the numbers of tiles, the kinds of steps and how many there are of each are known (`tiles.step_kinds`). A step of a kind
computes no less than one with the least sizes, and moves no more than one with the largest: where the first takes longer, the DRAM
idles for the difference. All transfers and these idle cycles are one after the other, so they bound the time from below. For a
single tile that is its time, but for parts of cycles.
"""

from __future__ import annotations

import numpy as np

from trainyard.kernels.mapping.cell_bounds import (
    ARRAY,
    BUSY,
    COUNT,
    EDGE_FOLDS,
    EXTENT,
    HIGH,
    LOW,
    LOW_FOLDS,
    MOST,
    OVER,
    PRODUCT,
    RATE,
    way_traffic,
)
from trainyard.kernels.mapping.cell_pruning import CYCLE, NEARLY, OWN, SAVING
from trainyard.kernels.mapping.tile_bounds import BELOW, KEPT_MIDDLE
from trainyard.kernels.mapping.tile_leaf import keep_bits
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, step_kinds
from trainyard.kernels.uncounted import inlined

NARROW = 1.5
"""Steps are looked at by kind where the largest tile of a cell has less than so many times the elements of its least one: in wider
cells they seldom say more (seen on steps of ResNet-50)."""


@inlined
def has_kinds(cell: Real) -> bool:
    """Whether the kinds of a cell's steps are known, and may say more than sums over all steps: all sizes make the same numbers of
    tiles, several along two loops, on an array that takes the same time for each of its folds; both operands move, and windows that
    overlap are not counted apart."""
    same = cell[COUNT, 0] == cell[MOST, 0] and cell[COUNT, 1] == cell[MOST, 1] and cell[COUNT, 2] == cell[MOST, 2]
    if not same or cell[ARRAY, 0] == 0.0 or cell[BUSY, 2] > 0.0 or cell[RATE, 0] == 0.0 or cell[RATE, 1] == 0.0:
        return False
    several = int(cell[COUNT, 0] > 1.0) + int(cell[COUNT, 1] > 1.0) + int(cell[COUNT, 2] > 1.0)
    largest, least = cell[HIGH, 0] * cell[HIGH, 1] * cell[HIGH, 2], cell[LOW, 0] * cell[LOW, 1] * cell[LOW, 2]
    return bool(several > 1 and largest < NARROW * least)


@inlined
def write_extremes(cell: Real, tile: Ints, spans: Real, kinds: Ints) -> None:
    """Writes the largest tile of a cell with its numbers of tiles and its largest last tile, and the least compute by kind."""
    for axis in range(3):
        count, high = cell[COUNT, axis], np.floor(cell[HIGH, axis] * OVER)
        last = min(high, cell[EXTENT, axis] - (count - 1.0) * cell[LOW, axis])
        tile[axis, 0], tile[axis, 1], tile[axis, 2] = int(high), int(count), int(last)
    spans[0, 0], spans[0, 1], spans[1, 0], spans[1, 1] = tile[0, 0], tile[0, 2], tile[2, 0], tile[2, 2]
    spans[2, 0], spans[2, 1] = tile[0, 0], tile[0, 2]
    fixed, streams = cell[ARRAY, 1], int(cell[ARRAY, 2])
    for em in range(2):
        m = cell[EDGE_FOLDS if em else LOW_FOLDS, 0]
        for en in range(2):
            n = cell[EDGE_FOLDS if en else LOW_FOLDS, 1]
            for ek in range(2):
                k = cell[EDGE_FOLDS if ek else LOW_FOLDS, 2]
                streamed = m if streams == 0 else (n if streams == 1 else k)
                kinds[em, en, ek] = int(m * n * k / streamed * (fixed + streamed))


@inlined
def idle_in_steps(rows: Real, many: int, cycle: float, burst: float) -> float:
    """Cycles at least in which steps compute and nothing is moved: `many` kinds, with the least compute and the most bytes."""
    idle, late = 0.0, burst + 1.0
    for row in range(many):
        idle += rows[row, 0] * max(0.0, rows[row, 1] - (rows[row, 2] * cycle * OVER + late if rows[row, 2] > 0.0 else 0.0))
    return idle


@inlined
def kinds_of_way(way: int, cell: Real, rates: Real, tile: Ints, spans: Real, kinds: Ints, rows: Real) -> int:
    """Writes the steps of a way by kind, after `write_extremes`; returns how many kinds there are."""
    order = ORDERS[way % KEPT_MIDDLE]
    return int(step_kinds(tile, spans, order, keep_bits(order, way // KEPT_MIDDLE), int(cell[PRODUCT, 0]), rates, kinds, rows))


@inlined
def strike(
    ways: int, first: int, cell: Real, burst: float, band: float, slack: float, tolerance: float, floor: float, rates: Real,
    stand: Real, pace: Real, floors: Real, tile: Ints, spans: Real, kinds: Ints, rows: Real,
) -> int:  # fmt: skip
    """The `ways` of a cell that may still be better in time, traffic or energy, the `first` one looked at first. Once one may, the
    others are left as they are. What the struck ones take at least is among the `floors`."""
    write_extremes(cell, tile, spans, kinds)
    for place in range(-1, 3 * KEPT_MIDDLE):
        way = first if place < 0 else place
        if not ways >> way & 1:
            continue
        moved, loads = way_traffic(way % KEPT_MIDDLE, way // KEPT_MIDDLE, cell)
        many = kinds_of_way(way, cell, rates, tile, spans, kinds, rows) if moved < np.inf else 0
        for at in range(pace.shape[0] if moved < np.inf else 0):
            best, traffic, cycle = stand[at, 0], stand[at, 1], pace[at, CYCLE]
            own = (moved * cycle + burst * loads + idle_in_steps(rows, many, cycle, burst)) * BELOW
            pace[at, OWN] = own
            if own < best * band:
                spares = floor * SAVING < stand[at, 2] and moved <= traffic * (1.0 + tolerance)
                if own * slack < best or moved * NEARLY < traffic or spares:
                    return ways
        ways &= ~(1 << way)
        for at in range(pace.shape[0] if moved < np.inf else 0):
            floors[at] = min(floors[at], pace[at, OWN])
    return ways
