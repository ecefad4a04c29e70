"""Compiled: what a tiling moves and holds, and how far the tile of an unfolded convolution reaches (`spread`; plain Python:
`mapping.halo.Halo.spread`, the same numbers).

In an order (outer, middle, inner) the tensor without the inner loop stays by itself. The tensor without the middle loop is read
again in each of its steps, or kept: all of its tiles along the inner loop then lie in the scratchpad. The tensor without the outer
loop is read again in each step of that, or kept whole.
"""

from __future__ import annotations

from numba import njit

from trainyard.kernels.mapping.tiles import Ints, Real
from trainyard.kernels.uncounted import inlined, uncounted

BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
HALO = 16
"""The place of a halo's kind behind the numbers of its row (`mapping.halo.COLUMNS`)."""
TIME, ENERGY, EDP, TRAFFIC = range(4)
"""Objectives."""
KEPT_MIDDLE = 6
"""`allowed` has a bit for each order with nothing kept, then for each with the second tensor kept, then for each with both."""
EVERYTHING = 2**18 - 1
FIRST_AXIS, PER_AXIS = 4, 4
"""A halo is a row of numbers: how many axes (0: no halo), positions, positions in one place, weight; then of each axis, from the
innermost, extent, revisits of an element, mean gap, mean distance from its first to its last window (`mapping.halo.Halo.row`)."""


@uncounted
def _greatest_common_divisor(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@uncounted
def spread(size: int, row: Real) -> float:
    """Rows of the matrix whose share of the image a tile of `size` consecutive rows takes, overlapping windows included.

    The mean over the tiles that start at 0, size, 2 * size, ...: never below `size`, and all of them for the whole dimension.
    """
    axes = int(row[0])
    if axes == 0:
        return float(size)
    positions, unit = int(row[1]), int(row[2])
    step = min(size * unit, positions)
    starts = (positions - 1) // step  # of tiles, without the first
    if starts == 0:
        return float(size)
    chances = 0.0, 0.0, 0.0  # that a tile starts between two neighbours along an axis, by axis
    inside, left, around = 1, starts, positions
    for axis in range(axes):
        extent = int(row[FIRST_AXIS + PER_AXIS * axis])
        inside *= extent
        aligned = starts // (inside // _greatest_common_divisor(step, inside))
        around //= extent
        if extent > 1:
            chance = float(left - aligned) / float(around * (extent - 1))
            chances = chance if axis == 0 else chances[0], chance if axis == 1 else chances[1], chance if axis == 2 else chances[2]
        left = aligned
    again = 0.0
    for axis in range(axes):
        at = FIRST_AXIS + PER_AXIS * axis
        steps = row[at + 2]
        cut = steps * chances[axis]
        for inner in range(axis - 1, -1, -1):
            below = FIRST_AXIS + PER_AXIS * inner
            finer = steps * row[below] - row[below + 3]
            cut += (finer - steps) * chances[inner]
            steps = finer
        again += row[at + 1] * (1.0 if steps >= step else min(1.0, cut))
    extra = min(again * positions / float(starts + 1), float(positions - step))
    return float(float(size) + row[3] * extra / float(unit))


@njit(cache=True, error_model="numpy", inline="always")
def without(axis: int) -> int:
    """The tensor (A, B, sums) that lacks an axis."""
    return 1 if axis == 0 else (0 if axis == 1 else 2)


@njit(cache=True, error_model="numpy", inline="always")
def value_of(objective: int, cycles: float, moved: float, joules: Real) -> float:
    """What is to be small; `joules` are those of a byte of DRAM traffic, and all others."""
    if objective == 0:
        return cycles
    if objective == 3:
        return moved
    spent = joules[0] * moved + joules[1]
    return float(spent if objective == 1 else spent * cycles)


@inlined
def passes_of(steps: Ints, order: Ints, keep: int, passes: Ints) -> None:
    """How often A, B and the sums are moved: once for each step of the loop that they lack, if there are steps inside that loop."""
    inner, middle = steps[order[2]] > 1, steps[order[1]] > 1
    for place in range(3):
        tensor = without(order[place])
        again = (inner or middle) if place == 0 else (inner if place == 1 else False)
        passes[tensor] = steps[order[place]] if again and not keep >> tensor & 1 else 1


@inlined
def needed_bytes(tile: Ints, spans: Real, dims: Ints, order: Ints, keep: int, rates: Real) -> float:
    """Bytes of the scratchpad: one tile of each tensor, or all tiles that a kept one has inside the loop that it lacks."""
    total = 0.0
    for place in range(3):
        tensor = without(order[place])
        first, second = (1, 2) if place == 0 else ((0, 2) if place == 1 else (0, 1))
        elements = 1.0
        for within in (first, second):
            axis = order[within]
            side = float(tile[axis, 0])
            if tensor == 0:  # with its halo
                side = spans[0, 0] if axis == 0 else spans[1, 0]
            if keep >> tensor & 1 and place < 2 and (place == 0 or within == 2):
                side = float(dims[axis])
            elements *= side
        total += elements * (rates[4] if tensor == 0 else (rates[5] if tensor == 1 else rates[3]))
    return total


@inlined
def spans_of(tile: Ints, halo: Real, spans: Real) -> None:
    """Sides of a full and of the edge tile that bytes are counted by: of A along m and k, of finished sums along m.

    Of `halo`, the last number says whose it is: A's along m or along k, or the sums' (1, 2, 3; 0: there is none).
    """
    for which in range(3):
        axis = 2 if which == 1 else 0
        spans[which, 0], spans[which, 1] = tile[axis, 0], tile[axis, 2]
        if halo[HALO] == which + 1:
            more = spread(tile[axis, 0], halo) - tile[axis, 0]
            spans[which, 0] += more
            spans[which, 1] += more


@uncounted
def totals_of(dims: Ints, rates: Real, totals: Real) -> None:
    """Bytes of A, B and finished sums that move in any case, and of moving A, B or unfinished sums once more."""
    many = float(dims[3])
    left, right, out = many * dims[0] * dims[2], many * dims[2] * dims[1], many * dims[0] * dims[1]
    totals[0], totals[1], totals[2] = left * rates[0], right * rates[1], out * rates[2]
    totals[3], totals[4], totals[5] = totals[0], totals[1], 2.0 * out * rates[3]


@inlined
def moved_bytes(tile: Ints, spans: Real, passes: Ints, totals: Real, halo: Real) -> float:
    """DRAM bytes of a tiling."""
    a, sums = 1.0, 1.0
    if halo[HALO] > 0.0:
        which = int(halo[HALO]) - 1
        axis = 2 if which == 1 else 0
        extent = float((tile[axis, 1] - 1) * tile[axis, 0] + tile[axis, 2])
        more = ((tile[axis, 1] - 1) * spans[which, 0] + spans[which, 1]) / extent
        a, sums = (1.0, more) if which == 2 else (more, 1.0)
    return float(
        (totals[0] + (passes[0] - 1) * totals[3]) * a + totals[1] + (passes[1] - 1) * totals[4] + totals[2] * sums
        + (passes[2] - 1) * totals[5]
    )  # fmt: skip
