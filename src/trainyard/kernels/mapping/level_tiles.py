"""Compiled: a product cut into the tiles of one on-chip level. Plain Python: `tests/oracles/level_walk.py`, step after step.

Axes are numbered m, n, k = 0, 1, 2, operands a, b, out = 0, 1, 2; operand a has no axis n, b no axis m, out no axis k. A size is
stored with its edge: `tile[axis] = (full, count, edge)`. `rates` are bytes per element of each operand over the wire outside of the
level, 0 for those that do not use it; `speeds` are the bytes per cycle of that wire and of its second port (0: there is none).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real

BELOW = 1.0 - 1e-9
"""Factor that keeps a lower bound valid in spite of rounding."""
LONGEST = 2.0**62
"""Cycles beyond what 64 bits count."""
CROSSED = 4
"""What crosses a stage's outer edge, in elements: a, b, sums outward, and sums read where the arriving ones are added to them."""


@njit(cache=True, error_model="numpy", inline="always")
def wire_cycles(inward: float, outward: float, speeds: Real) -> float:
    """Whole cycles that a wire is busy: both ways share it, or sums have a port of their own."""
    if speeds[1] > 0.0:
        return max(np.ceil(inward / speeds[0]), np.ceil(outward / speeds[1]))  # type: ignore[no-any-return]
    return np.ceil((inward + outward) / speeds[0])  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy", inline="always")
def _side(tile: Ints, axis: int, index: int) -> int:
    return tile[axis, 2] if index == tile[axis, 1] - 1 else tile[axis, 0]  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy", inline="always")
def _class(which: int, many: int) -> tuple[int, int]:
    """Positions of a loop that look alike: the first, the last two, all others. The index that stands for them, and how many."""
    if many <= 3:
        return which, 1
    if which == 1:
        return 1, many - 3
    return (0 if which == 0 else many - 4 + which), 1


@njit(cache=True, error_model="numpy")
def _loaded(tile: Ints, at: Ints, after: Ints, rates: Real) -> float:
    """Bytes of operand tiles that step `after` needs and step `at` did not."""
    load = 0.0
    if after[0] != at[0] or after[2] != at[2]:
        load += _side(tile, 0, after[0]) * _side(tile, 2, after[2]) * rates[0]
    if after[2] != at[2] or after[1] != at[1]:
        load += _side(tile, 2, after[2]) * _side(tile, 1, after[1]) * rates[1]
    return load


@njit(cache=True, error_model="numpy")
def _stored(tile: Ints, at: Ints, before: Ints, rates: Real) -> float:
    """Bytes of the tile of sums that step `before` left for step `at` to write."""
    if before[0] == at[0] and before[1] == at[1]:
        return 0.0
    return float(_side(tile, 0, before[0]) * _side(tile, 1, before[1]) * rates[2])


@njit(cache=True, error_model="numpy")
def step_cycles(
    tile: Ints, order: Ints, rates: Real, speeds: Real, double: bool, cycles: Real, streams: Real, most: float, at: Ints
) -> float:  # fmt: skip
    """Cycles of all steps of a product through one level.

    `cycles[em, en, ek]` is what one tile takes inside of the level, e = 1 at the edge; `streams[em, en, ek]` the bytes that go past
    the level in that time, inward and outward. A double-buffered level moves the next tiles and the last sums meanwhile, any
    other one before the step begins. `at` has room for three steps. What is more than `most` is not counted to its end.
    """
    first, second, third = tile[order[0], 1], tile[order[1], 1], tile[order[2], 1]
    here, after, before = at[0], at[1], at[2]
    load = tile[0, 0] * tile[2, 0] * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
    total = (wire_cycles(load, 0.0, speeds) if double else 0.0) + wire_cycles(0.0, tile[0, 2] * tile[1, 2] * rates[2], speeds)
    for c0 in range(min(first, 4)):
        here[order[0]], w0 = _class(c0, first)
        for c1 in range(min(second, 4)):
            here[order[1]], w1 = _class(c1, second)
            for c2 in range(min(third, 4)):
                here[order[2]], w2 = _class(c2, third)
                em, en, ek = int(here[0] == tile[0, 1] - 1), int(here[1] == tile[1, 1] - 1), int(here[2] == tile[2, 1] - 1)
                for axis in range(3):
                    after[axis], before[axis] = here[axis], here[axis]
                has_after, has_before = False, False
                for place in range(2, -1, -1):  # as an odometer
                    if after[order[place]] < tile[order[place], 1] - 1:
                        after[order[place]] += 1
                        has_after = True
                        break
                    after[order[place]] = 0
                for place in range(2, -1, -1):
                    if before[order[place]] > 0:
                        before[order[place]] -= 1
                        has_before = True
                        break
                    before[order[place]] = tile[order[place], 1] - 1
                store = _stored(tile, here, before, rates) if has_before else 0.0
                inward, outward = streams[em, en, ek, 0], streams[em, en, ek, 1]
                if double:
                    load = _loaded(tile, here, after, rates) if has_after else 0.0
                    took = max(cycles[em, en, ek], wire_cycles(load + inward, store + outward, speeds))
                else:
                    load = _loaded(tile, before, here, rates)
                    if not has_before:
                        load = tile[0, 0] * tile[2, 0] * rates[0] + tile[2, 0] * tile[1, 0] * rates[1]
                    took = wire_cycles(load, store, speeds) + max(cycles[em, en, ek], wire_cycles(inward, outward, speeds))
                total += float(w0) * w1 * w2 * took
        if total > most:
            return total
    return total


@njit(cache=True, error_model="numpy", inline="always")
def _passes(tile: Ints, order: Ints, axis: int) -> float:
    """How often an operand without `axis` is moved: once for each step of that loop if there are steps inside of it."""
    if order[2] == axis:
        return 1.0
    inside = tile[order[2], 1] > 1 or (order[0] == axis and tile[order[1], 1] > 1)
    return float(tile[axis, 1]) if inside else 1.0


@njit(cache=True, error_model="numpy")
def _least(m: float, n: float, k: float, forms: Ints, peak: float) -> float:
    """A lower bound on the cycles of a tile: the best closed form of the array, or all multipliers busy."""
    best = -1.0
    for form in range(forms.shape[0]):
        fm, fn, fk = np.ceil(m / max(forms[form, 0], 1)), np.ceil(n / max(forms[form, 1], 1)), np.ceil(k / max(forms[form, 2], 1))
        stream, fixed, floor = forms[form, 3], float(forms[form, 4]), float(forms[form, 5])
        folds, steps = (fn * fk, fm) if stream == 0 else ((fm * fk, fn) if stream == 1 else (fm * fn, fk))
        if forms[form, 6] > 1:
            folds = np.ceil(folds / forms[form, 6])
        interval = fixed + steps if floor < 0.0 else max(steps, floor)
        cycles = (folds - 1.0) * interval + fixed + steps
        best = cycles if best < 0.0 or cycles < best else best
    return max(best, 1.0 if best >= 0.0 else m * n * k / peak)


@njit(cache=True, error_model="numpy")
def _array_total(tile: Ints, forms: Ints, peak: float) -> float:
    """A lower bound on the cycles of the array in all tiles."""
    total = 0.0
    for em in range(2):
        for en in range(2):
            for ek in range(2):
                weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                if weight > 0.0:
                    total += weight * _least(float(tile[0, 2 * em]), float(tile[1, 2 * en]), float(tile[2, 2 * ek]), forms, peak)
    return total


@njit(cache=True, error_model="numpy", inline="always")
def _share(inward: float, outward: float, speeds: Real) -> float:
    """Cycles of a wire for all bytes at once, not rounded."""
    return float(max(inward / speeds[0], outward / speeds[1]) if speeds[1] > 0.0 else (inward + outward) / speeds[0])


@njit(cache=True, error_model="numpy")
def _bound(
    tile: Ints, elements: Real, element_bytes: Real, held: Ints, wired: Ints, speeds: Real, inner: Real, double: bool, array: float
) -> tuple[float, float]:
    """Lower bounds of the cycles, and of the bytes over the outer edge, of one tile in any loop order.

    A held operand crosses the edge as its loops say, one that goes past at least once in every step. Over the level's own port
    (`inner`) every tile of a held operand goes at least once in every step.
    """
    rows, columns, deep = float(tile[0, 1]), float(tile[1, 1]), float(tile[2, 1])
    a, b, out = elements[0] * element_bytes[0], elements[1] * element_bytes[1], elements[2] * element_bytes[2]
    inside = max(array, _share(a * columns * held[0] + b * rows * held[1], out * deep * held[2], inner))
    scale_a, scale_b = float(tile[0, 0]) * tile[2, 0] / elements[0], float(tile[2, 0]) * tile[1, 0] / elements[1]
    fill = a * scale_a * held[0] * wired[0] + b * scale_b * held[1] * wired[1]
    drain = float(tile[0, 2] * tile[1, 2]) * element_bytes[2] * held[2] * wired[2]
    fill_drain = wire_cycles(fill, 0.0, speeds) + wire_cycles(0.0, drain, speeds)
    best, least, single = np.inf, np.inf, rows * columns * deep == 1.0
    for inner_loop in range(3):  # the innermost loop of more than one step: the operand without its axis stays
        if tile[inner_loop, 1] == 1 and not (single and inner_loop == 0):
            continue
        a_moved = a * (1.0 if inner_loop == 1 and held[0] else columns)
        b_moved = b * (1.0 if inner_loop == 0 and held[1] else rows)
        out_moved = out * (1.0 if inner_loop == 2 and held[2] else deep)
        wire = _share(a_moved * wired[0] + b_moved * wired[1], out_moved * wired[2], speeds)
        cycles = max(inside + fill_drain, wire)
        if not double:
            loads = a_moved * held[0] * wired[0] + b_moved * held[1] * wired[1]
            cycles = max(inside + _share(loads, out_moved * held[2] * wired[2], speeds), wire)
        best, least = min(best, cycles), min(least, a_moved + b_moved + out_moved)
    return best * BELOW, least


@njit(cache=True, error_model="numpy")
def bounds(
    dims: Ints, sizes: Ints, ends: Ints, forms: Ints, peak: float, element_bytes: Real, subsets: Ints, wired: Ints, room: float,
    speeds: Real, inner: Real, double: bool, deepest: int, bound: Real, moved: Real, chosen: Ints,
) -> int:  # fmt: skip
    """Lower bounds of the cycles and of the bytes over the outer edge of each tile that fits; returns how many do.

    `subsets` are the sets of operands that the level may hold at a time, `wired` those that come from the level just outside. Of
    the sizes of k, the `deepest` largest that fit are looked at. `chosen` gets the sizes of a tile and the number of its subset.
    """
    tile, elements, count = np.empty((3, 3), np.int64), np.empty(3), 0
    elements[0], elements[1], elements[2] = float(dims[0]) * dims[2], float(dims[2]) * dims[1], float(dims[0]) * dims[1]
    kept = np.empty(subsets.shape[0], np.int64)
    for i in range(ends[0]):
        for j in range(ends[1]):
            kept[:] = 0
            for last in range(ends[2] - 1, -1, -1):
                for axis in range(3):
                    size = sizes[axis, i if axis == 0 else (j if axis == 1 else last)]
                    many = (dims[axis] + size - 1) // size
                    tile[axis, 0], tile[axis, 1], tile[axis, 2] = size, many, dims[axis] - (many - 1) * size
                a, b = float(tile[0, 0]) * tile[2, 0] * element_bytes[0], float(tile[2, 0]) * tile[1, 0] * element_bytes[1]
                out, array = float(tile[0, 0]) * tile[1, 0] * element_bytes[2], -1.0
                for subset in range(subsets.shape[0]):
                    held = subsets[subset]
                    if kept[subset] == deepest or a * held[0] + b * held[1] + out * held[2] > room:
                        continue
                    if not held.any() and tile[0, 1] * tile[1, 1] * tile[2, 1] > 1:
                        continue  # what goes past in any case is not cut
                    kept[subset] += 1
                    array = _array_total(tile, forms, peak) if array < 0.0 else array
                    bound[count], moved[count] = _bound(tile, elements, element_bytes, held, wired, speeds, inner, double, array)
                    chosen[count, 0], chosen[count, 1], chosen[count, 2] = tile[0, 0], tile[1, 0], tile[2, 0]
                    chosen[count, 3] = subset
                    count += 1
    return count


@njit(cache=True, error_model="numpy")
def evaluate(
    dims: Ints, tiles: Ints, subsets: Ints, element_bytes: Real, wired: Ints, speeds: Real, double: bool, cycles: Real,
    crossed: Real, adds: bool, limit: float, orders: Ints, results: Real, bytes_moved: Real, crossing: Real,
) -> None:  # fmt: skip
    """The best loop order of each tile: the fastest, and of those within `limit` cycles the one that moves fewest bytes.

    `subsets` [tile, operand] is what the level holds with each tile. `cycles` [tile, 2, 2, 2] and `crossed`
    [tile, 2, 2, 2, CROSSED] are what its kinds take and move inside of the level. `adds`: the array counts sums that
    it reads to add to them.
    """
    tile, at, streams, passes = np.empty((3, 3), np.int64), np.empty((3, 3), np.int64), np.zeros((2, 2, 2, 2)), np.empty(3)
    elements, rates, inside = np.empty(3), np.empty(3), np.empty(CROSSED)
    elements[0], elements[1], elements[2] = float(dims[0]) * dims[2], float(dims[2]) * dims[1], float(dims[0]) * dims[1]
    for which in range(tiles.shape[0]):
        held = subsets[which]
        for operand in range(3):
            rates[operand] = element_bytes[operand] * held[operand] * wired[operand]
        for axis in range(3):
            size = tiles[which, axis]
            many = (dims[axis] + size - 1) // size
            tile[axis, 0], tile[axis, 1], tile[axis, 2] = size, many, dims[axis] - (many - 1) * size
        inside[:] = 0.0
        for em in range(2):
            for en in range(2):
                for ek in range(2):
                    weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                    streams[em, en, ek, 0], streams[em, en, ek, 1] = 0.0, 0.0
                    for operand in range(3):
                        past = crossed[which, em, en, ek, operand]
                        inside[operand] += weight * past
                        if not held[operand] and wired[operand]:
                            streams[em, en, ek, 0 if operand < 2 else 1] += past * element_bytes[operand]
                    inside[3] += weight * crossed[which, em, en, ek, 3]
        results[which], bytes_moved[which], orders[which] = LONGEST, np.inf, -1
        for order in range(6):
            total = 0.0
            for operand in range(3):
                passes[operand] = _passes(tile, ORDERS[order], 1 - operand if operand < 2 else 2)
                total += element_bytes[operand] * (passes[operand] * elements[operand] if held[operand] else inside[operand])
            most = max(limit, results[which])
            took = step_cycles(tile, ORDERS[order], rates, speeds, double, cycles[which], streams, most, at)
            enough, before = took <= limit, results[which] <= limit
            better = total < bytes_moved[which] or (total == bytes_moved[which] and took < results[which])
            if (enough and (not before or better)) or (not before and took < results[which]):
                results[which], bytes_moved[which], orders[which] = took, total, order
                for operand in range(3):
                    crossing[which, operand] = passes[operand] * elements[operand] if held[operand] else inside[operand]
                begun = passes[2] - 1.0 if held[2] else float(tile[2, 1] - 1)
                crossing[which, 3] = begun * elements[2] * adds + (0.0 if held[2] else inside[3])
