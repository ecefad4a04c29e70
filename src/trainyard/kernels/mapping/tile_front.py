"""Compiled: the tilings that a search keeps, and which of them it takes: least time, then least traffic, then least energy.

What is to be least is `value` (time, by default). Of the tilings within the tolerance of the least value (`band` is a factor),
those within the `tolerance` of the least traffic of these are equally good, and the one with the least energy is taken.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tiles import Ints, Real

FRONT, ENTRY = 16, 9
"""Tilings kept while searching: of those within the tolerance, none with less traffic, less energy and less time than another; and
columns of one: value, bytes, cycles, m, n, k, order, keep, joules."""


@njit(cache=True, error_model="numpy")
def pick(front: Real, entries: int, band: float, tolerance: float) -> int:
    """Of the tilings within the tolerance of the best those within the tolerance of the least traffic, and of these the one with
    the least energy, then the least traffic, then the least value, then the first."""
    best, least = np.inf, np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    for entry in range(entries):
        if front[entry, 0] <= best * band:
            least = min(least, front[entry, 1])
    choice = -1
    for entry in range(entries):
        if front[entry, 0] > best * band or front[entry, 1] > least * (1.0 + tolerance):
            continue
        own = front[entry, 8], front[entry, 1], front[entry, 0]
        if choice < 0 or own < (front[choice, 8], front[choice, 1], front[choice, 0]):
            choice = entry
    return choice


@njit(cache=True, error_model="numpy")
def offer(
    front: Real, entries: int, value: float, moved: float, joules: float, cycles: float, tile: Ints, order: int, keep: int,
    band: float, tolerance: float,
) -> int:  # fmt: skip
    """Adds a tiling to those kept; drops what is beaten in all, and what has left the tolerance. Returns how many there are."""
    best = value
    for entry in range(entries):
        best = min(best, front[entry, 0])
        if front[entry, 0] <= value and front[entry, 1] <= moved and front[entry, 8] <= joules:
            return entries
    if value > best * band:
        return entries
    kept = 0
    for entry in range(entries):
        beaten = front[entry, 0] >= value and front[entry, 1] >= moved and front[entry, 8] >= joules
        if not beaten and front[entry, 0] <= best * band:
            if kept != entry:
                front[kept] = front[entry]
            kept += 1
    if kept == FRONT:  # full of trade-offs: of those that are neither the fastest nor the choice, the one with most bytes goes
        fastest, choice, worst = pick(front, kept, 1.0, 0.0), pick(front, kept, band, tolerance), -1
        for entry in range(kept):
            if entry != fastest and entry != choice and (worst < 0 or front[entry, 1] > front[worst, 1]):
                worst = entry
        kept -= 1
        front[worst] = front[kept]
    front[kept, 0], front[kept, 1], front[kept, 2], front[kept, 8] = value, moved, cycles, joules
    for axis in range(3):
        front[kept, 3 + axis] = tile[axis, 0]
    front[kept, 6], front[kept, 7] = order, keep
    return kept + 1


@njit(cache=True, error_model="numpy")
def standing(front: Real, entries: int, band: float, tolerance: float) -> tuple[float, float, float]:
    """The best value so far, the least traffic within the tolerance of it, and the energy of what would be picked."""
    best, least = np.inf, np.inf
    if entries == 0:
        return best, least, np.inf
    for entry in range(entries):
        best = min(best, front[entry, 0])
    for entry in range(entries):
        if front[entry, 0] <= best * band:
            least = min(least, front[entry, 1])
    return best, least, front[pick(front, entries, band, tolerance), 8]
