"""Compiled: what a tiling moves and holds.

In an order (outer, middle, inner) the tensor without the inner loop stays by itself. The tensor without the middle loop is read
again in each of its steps, or kept: all of its tiles along the inner loop then lie in the scratchpad. The tensor without the outer
loop is read again in each step of that, or kept whole.
"""

from __future__ import annotations

from numba import njit

from trainyard.kernels.mapping.halos import spread
from trainyard.kernels.mapping.tiles import Ints, Real

BELOW = 1.0 - 1e-12
"""Factor that keeps a lower bound valid in spite of rounding."""
HALO = 16
"""The place of a halo's kind behind the numbers of its row (`mapping.halo.COLUMNS`)."""
TIME, ENERGY, EDP, TRAFFIC = range(4)
"""Objectives."""
KEPT_MIDDLE = 6
"""`allowed` has a bit for each order with nothing kept, then for each with the second tensor kept, then for each with both."""
EVERYTHING = 2**18 - 1


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


@njit(cache=True, error_model="numpy")
def passes_of(steps: Ints, order: Ints, keep: int, passes: Ints) -> None:
    """How often A, B and the sums are moved: once for each step of the loop that they lack, if there are steps inside that loop."""
    inner, middle = steps[order[2]] > 1, steps[order[1]] > 1
    for place in range(3):
        tensor = without(order[place])
        again = (inner or middle) if place == 0 else (inner if place == 1 else False)
        passes[tensor] = steps[order[place]] if again and not keep >> tensor & 1 else 1


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
def totals_of(dims: Ints, rates: Real, totals: Real) -> None:
    """Bytes of A, B and finished sums that move in any case, and of moving A, B or unfinished sums once more."""
    many = float(dims[3])
    left, right, out = many * dims[0] * dims[2], many * dims[2] * dims[1], many * dims[0] * dims[1]
    totals[0], totals[1], totals[2] = left * rates[0], right * rates[1], out * rates[2]
    totals[3], totals[4], totals[5] = totals[0], totals[1], 2.0 * out * rates[3]


@njit(cache=True, error_model="numpy")
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
