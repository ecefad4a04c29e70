"""Compiled: whether a cell (a range of tile sizes) may hold something better than what a search has found.

It may if, at any of the bandwidths that are searched side by side, a loop order with what is kept in it (a *way*) can be faster by
more than the slack, or, within the tolerance of the fastest, move fewer bytes, or, at equal bytes, spend less energy. Ways that
cannot are struck from the cell, and what they take at least is among the `floors`: no tiling takes less.

A cell whose sizes all make the same numbers of tiles is looked at once more (`strike`): the kinds of its steps are then known, and
how many there are of each (`tiles.step_kinds`). A step of a kind computes no less than one with the least sizes, and moves no more
than one with the largest: where the first takes longer, the DRAM idles for the difference. All transfers and these idle cycles are
one after the other, so they bound the time from below. For a single tile that is its time, but for parts of cycles.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.cell_bounds import (
    ARRAY,
    BUSY,
    COUNT,
    EDGE_FOLDS,
    EXTENT,
    FILLED,
    HELD,
    HIGH,
    LOW,
    LOW_FOLDS,
    MOST,
    OVER,
    PRODUCT,
    RATE,
    idle_cycles,
    inner_axis,
    way_cycles,
    way_traffic,
)
from trainyard.kernels.mapping.tile_bounds import BELOW, KEPT_MIDDLE, value_of, without
from trainyard.kernels.mapping.tile_energy import MOVED, least_joules
from trainyard.kernels.mapping.tile_leaf import keep_bits
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, step_kinds
from trainyard.kernels.uncounted import inlined, uncounted

NEARLY, SAVING = 1.01, 1.05
"""Bytes, and joules, within these factors are not worth a search."""
NARROW = 1.5
"""Steps are looked at by kind where the largest tile of a cell has less than so many times the elements of its least one: in wider
cells they seldom say more (seen on steps of ResNet-50)."""
KEPT_NONE_OR_ONE = 1 | 1 << KEPT_MIDDLE
"""Bits of the ways of the first order that keep no tensor, or one."""
CYCLE, LIMIT, ALONE, OWN, LEAST, IDLE = range(6)
PACE = IDLE + 3
"""Columns by bandwidth: cycles of a byte, cycles from which on a tiling is out of the tolerance, cycles of a cell's compute with
its first fill and last drain; what one way, and what the ways that could only save energy, take at least; idle cycles of the DRAM
by the innermost loop (negative: not known yet)."""


@uncounted
def begin(speeds: Real, pace: Real, turns: Ints) -> None:
    """Writes the cycles of a byte at each bandwidth, and the turns in which they are looked at: the ends, then the middles between
    what came before."""
    many = speeds.shape[0]
    for at in range(many):
        pace[at, CYCLE], pace[at, LIMIT], turns[at] = BELOW / speeds[at], np.inf, -1
    stride, place = max(1, many - 1), 0
    while place < many:
        for at in range(0, many, stride):
            seen = False
            for turn in range(place):
                seen = seen or turns[turn] == at
            if not seen:
                turns[place] = at
                place += 1
        stride = max(1, stride // 2)


@uncounted
def latest(pace: Real) -> float:
    """Cycles from which on a tiling is out of the tolerance at all bandwidths."""
    limit = 0.0
    for at in range(pace.shape[0]):
        limit = max(limit, pace[at, LIMIT])
    return limit


@inlined
def undominated(ways: int, cell: Real) -> int:
    """The ways of a cell without those that keep less than another one of the same order that fits with all sizes of the cell: what
    is kept is moved less often, and no step gets longer."""
    if cell[BUSY, 2] > 0.0:  # overlapping windows take more room
        return ways
    room = cell[PRODUCT, 2]
    for order in range(KEPT_MIDDLE):
        rest = ways >> order & KEPT_NONE_OR_ONE
        if rest == 0:
            continue
        x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
        last, again, stays = without(x), without(y), without(z)
        panel = cell[HIGH, x] * (cell[HIGH, y] * cell[HELD, stays] + cell[EXTENT, z] * cell[HELD, again])
        if ways >> order + 2 * KEPT_MIDDLE & 1 and panel + cell[EXTENT, y] * cell[EXTENT, z] * cell[HELD, last] <= room:
            ways &= ~(KEPT_NONE_OR_ONE << order)
        elif ways >> order + KEPT_MIDDLE & 1 and panel + cell[HIGH, y] * cell[HIGH, z] * cell[HELD, last] <= room:
            ways &= ~(1 << order)
    return ways


@inlined
def _start(cell: Real, burst: float, pace: Real) -> bool:
    """Whether compute, and moving everything once, leave a cell within the tolerance at any bandwidth."""
    filled, everything, within = cell[FILLED, 0] + cell[FILLED, 1] + cell[FILLED, 2], cell[PRODUCT, 1], False
    for at in range(pace.shape[0]):
        cycle = pace[at, CYCLE]
        alone = max(cell[BUSY, 0] + filled * cycle + burst, everything * cycle)
        pace[at, ALONE], pace[at, LEAST] = alone, np.inf
        pace[at, IDLE], pace[at, IDLE + 1], pace[at, IDLE + 2] = -1.0, -1.0, -1.0
        within = within or alone < pace[at, LIMIT]
    return within


@njit(cache=True, error_model="numpy", inline="always")
def _cycles(order: int, kept: int, moved: float, loads: float, axis: int, cell: Real, burst: float, at: int, pace: Real) -> float:
    """Cycles at least of a way at one of the bandwidths; the cheap bounds first."""
    cycle, limit = pace[at, CYCLE], pace[at, LIMIT]
    own = float(max(pace[at, ALONE], moved * cycle + burst * loads))
    if own >= limit or cell[BUSY, 1] == 0.0:
        return own
    if pace[at, IDLE + axis] < 0.0:
        pace[at, IDLE + axis] = idle_cycles(axis, cell, cycle, burst)
    own = float(max(own, moved * cycle + burst * loads + pace[at, IDLE + axis]))
    return own if own >= limit else float(max(own, way_cycles(order, kept, moved, cell, cycle, burst)))


@njit(cache=True, error_model="numpy", inline="always")
def _implied(step: int, at: int, moved: float, objective: int, joules: Real, turns: Ints, pace: Real) -> float:
    """What a way's cycles at the bandwidths before it in turn say of those at this one: with less bandwidth no fewer, with more of
    it fewer by no more than the bandwidth grows."""
    own, cycle = pace[at, ALONE], pace[at, CYCLE]
    for turn in range(step):
        other = turns[turn]
        own = max(own, pace[other, OWN] if other < at else pace[other, OWN] * cycle / pace[other, CYCLE])
    pace[at, OWN] = own
    return value_of(objective, own, moved, joules)


@inlined
def examine(
    ways: int, first: int, every: bool, cell: Real, burst: float, objective: int, joules: Real, band: float, slack: float,
    tolerance: float, floor: float, dims: Ints, rates: Real, forms: Ints, prices: Real, stand: Real, turns: Ints, pace: Real,
    floors: Real,
) -> tuple[int, int, float]:  # fmt: skip
    """The `ways` of a cell that may hold something better (0: none), one of them, and the least value that was seen.

    The `first` way is looked at first. One that may be better is enough: the others are then left as they are, unless `every` one
    is asked for. `floor` are joules that no tiling undercuts.
    """
    if not _start(cell, burst, pace):
        return 0, first, np.inf
    many, ways = pace.shape[0], undominated(ways, cell)
    left, sparing, spared, bound, likely, opened = ways, 0, np.inf, np.inf, first, False
    for place in range(-1, 3 * KEPT_MIDDLE):
        way = first if place < 0 else place
        if not ways >> way & 1 or place == first:
            continue
        order, kept = way % KEPT_MIDDLE, way // KEPT_MIDDLE
        moved, loads = way_traffic(order, kept, cell)
        better, spares, axis = False, False, inner_axis(order, cell)
        for step in range(many if moved < np.inf else 0):
            at = turns[step]
            best, traffic = stand[at, 0], stand[at, 1]
            gains = moved * NEARLY < traffic
            value = _implied(step, at, moved, objective, joules, turns, pace)
            if value * slack < best or (gains and value < best * band):
                own = _cycles(order, kept, moved, loads, axis, cell, burst, at, pace)
                pace[at, OWN], value = own, value_of(objective, own, moved, joules)
            if value >= best * band:
                continue
            if value < bound:
                bound, likely = value, way
            if value * slack < best or gains:
                better = True
                break
            spares = spares or (floor * SAVING < stand[at, 2] and moved <= traffic * (1.0 + tolerance))
        if better:
            opened = True
            if not every:
                return left, likely, bound
        elif moved == np.inf:
            left &= ~(1 << way)
        elif spares:
            sparing, spared = sparing | 1 << way, min(spared, moved)
            for at in range(pace.shape[0]):
                pace[at, LEAST] = min(pace[at, LEAST], value_of(objective, pace[at, OWN], moved, joules))
        else:
            left &= ~(1 << way)
            for at in range(pace.shape[0]):
                floors[at] = min(floors[at], value_of(objective, pace[at, OWN], moved, joules))
    if sparing and not opened and not _spares(cell, spared, dims, rates, forms, prices, stand):
        left &= ~sparing
        for at in range(pace.shape[0]):
            floors[at] = min(floors[at], pace[at, LEAST])
    return left, likely, bound


@uncounted
def _spares(cell: Real, moved: float, dims: Ints, rates: Real, forms: Ints, prices: Real, stand: Real) -> bool:
    """Whether a cell may hold a tiling with notably less energy."""
    least = least_joules(
        cell[LOW, 0], cell[LOW, 1], cell[LOW, 2], cell[COUNT, 0], cell[COUNT, 1], cell[COUNT, 2], dims, rates, forms, prices,
        cell[BUSY, 0],
    )  # fmt: skip
    most = 0.0
    for at in range(stand.shape[0]):
        most = max(most, stand[at, 2])
    return bool((least + prices[MOVED] * moved) * SAVING < most)


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
