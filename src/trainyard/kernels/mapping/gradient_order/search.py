"""Compiled: order, tile and partition of a pair of gradients on one core, searched together (`mapping.gradient_order.search`).

First a coarse menu of sizes is searched, candidates in the order of their lower bounds; then finer sizes around the best ones are
tried; then all combinations of fine sizes whose bounds say that they could be faster by more than the gap: branches (an order and
the sizes of two axes) are left out as a whole where possible. If that ends within the effort, nothing in the menu is faster by more
than the gap.

A search for the least traffic goes the same way with the two exchanged: it looks for candidates that move fewer bytes, and, among
those within the tolerance of the fewest, for faster ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainyard.kernels.mapping.gradient_order.menus import (
    ROW,
    SIZE,
    TILES,
    Menus,
    PairTask,
    compute_table,
    cut,
    fits,
    least_bytes,
    least_compute,
    least_cycles,
)
from trainyard.kernels.mapping.gradient_order.scratchpad import ALONE, DW_MAJOR, Ints, Real
from trainyard.kernels.mapping.gradient_order.simulation import EXCEEDED, simulate

FRONT = 64
"""Most candidates that are compared in the end: each is faster than all that move fewer bytes."""
STARTS, WORTH_REFINING, FARTHEST = 3, 1.05, 4
"""Most candidates around which finer sizes are tried, how much slower than the fastest they may be, and how far apart sizes are."""
MOVES = np.array(
    [(0, 0, 1), (0, 0, -1), (0, 1, 0), (0, -1, 0), (1, 0, 0), (-1, 0, 0),
     (0, 1, -1), (0, -1, 1), (1, 0, -1), (-1, 0, 1), (1, -1, 0), (-1, 1, 0)], dtype=np.int64
)  # fmt: skip
"""Along one axis, or up one and down another."""
FEW_COMBINATIONS, SMALL_EFFORT = 65536.0, 262144.0
"""A search of so few combinations may take this effort at least."""
LEANER = 0.99
"""Bytes of a candidate that is looked for only because it moves fewer, over those of the leanest so far."""
WHICH, ORDER, AT_M, AT_N, AT_K = range(5)
CYCLES, BYTES, COMPUTE, PLACE = range(4)
"""Columns of the front: cycles of all products, bytes and the array's cycles of one, and from `PLACE` on the candidate."""
FASTEST, SPENT, WANTED, SLOWEST, LEAST, MOST, TOLERANCE, GAP, LEAN = range(9)
"""Numbers: cycles of the fastest; tile operations simulated; the goals: cycles below which a candidate is wanted, the most cycles
of one that moves fewer bytes, these bytes, and the most bytes of one that is faster; the tolerance and the gap; 1 where the least
traffic is searched for."""


class Search(NamedTuple):
    """Where a search is: the candidate at hand (partition, order, and places of the sizes in the menus), its rows of the menus, the
    array's cycles by kind of tile, bytes by tensor and kind; the numbers named above; the front, its length in `entries`; for each
    partition and order the best coarse candidate (`starts`; what is to be least of it, cycles or bytes, first).
    """

    place: Ints
    rows: Ints
    table: Ints
    moved: Real
    numbers: Real
    front: Real
    entries: Ints
    starts: Real


@njit(cache=True, error_model="numpy")
def _quickest(front: Real, entries: int, most_bytes: float) -> int:
    """The fastest of the front that moves at most so many bytes."""
    best = -1
    for index in range(entries):
        if front[index, BYTES] <= most_bytes and (best < 0 or front[index, CYCLES] < front[best, CYCLES]):
            best = index
    return best


@njit(cache=True, error_model="numpy")
def _set_goals(numbers: Real, front: Real, entries: int) -> None:
    fastest, tolerance, gap = numbers[FASTEST], numbers[TOLERANCE], numbers[GAP]
    numbers[MOST] = np.inf
    if numbers[LEAN]:
        leanest = front[:entries, BYTES].min() if entries else np.inf
        numbers[LEAST], numbers[MOST] = leanest / (1.0 + gap), leanest * max(1.0, (1.0 + tolerance) / (1.0 + gap))
        numbers[SLOWEST], numbers[WANTED] = np.inf, np.inf
        if entries:
            numbers[WANTED] = front[_quickest(front, entries, numbers[MOST]), CYCLES] / (1.0 + gap)
        return
    most, leanest = fastest * max(1.0, (1.0 + tolerance) / (1.0 + gap)), np.inf
    for index in range(entries):
        if front[index, CYCLES] <= most:
            leanest = min(leanest, front[index, BYTES])
    numbers[WANTED], numbers[SLOWEST] = fastest / (1.0 + gap), most
    numbers[LEAST] = leanest * LEANER if tolerance > 0.0 else 0.0


@njit(cache=True, error_model="numpy")
def _hopeless(cycles: float, least: float, numbers: Real) -> bool:
    """Whether lower bounds on cycles and bytes rule a candidate out."""
    return bool(cycles > numbers[SLOWEST] or (least >= numbers[LEAST] and (cycles >= numbers[WANTED] or least > numbers[MOST])))


@njit(cache=True, error_model="numpy")
def _offer(front: Real, entries: Ints, cycles: float, moved: float, compute: float, place: Ints, worst: int) -> None:
    """Adds a candidate to the front unless another is as fast and moves as few bytes; those that it beats leave.

    A full front gives up the one with the most cycles, or bytes (`worst`).
    """
    kept = 0
    for index in range(entries[0]):
        if front[index, CYCLES] <= cycles and front[index, BYTES] <= moved:
            return
    for index in range(entries[0]):
        if front[index, CYCLES] < cycles or front[index, BYTES] < moved:
            for column in range(PLACE + 5):
                front[kept, column] = front[index, column]
            kept += 1
    at = kept
    if kept == FRONT:
        for index in range(FRONT):
            at = index if at == FRONT or front[index, worst] > front[at, worst] else at
        kept -= 1
    front[at, CYCLES], front[at, BYTES], front[at, COMPUTE] = cycles, moved, compute
    for column in range(5):
        front[at, PLACE + column] = place[column]
    entries[0] = kept + 1


@njit(cache=True, error_model="numpy")
def _operations(menus: Menus, place: Ints) -> float:
    total = 1.0
    for axis in range(3):
        total *= float(menus.rows[place[WHICH], axis, place[AT_M + axis], TILES])
    return total


@njit(cache=True, error_model="numpy")
def _bounds(task: PairTask, menus: Menus, search: Search, most: float) -> tuple[float, float, float]:
    """Lower bounds on cycles and bytes of the candidate at hand, and the array's cycles; infinite if more cycles than `most`."""
    place, rows, count, cycles = search.place, search.rows, float(task.dims[3]), 0.0
    which, order = place[WHICH], place[ORDER]
    for product in range(2):
        folds = menus.folds[which, 0, place[AT_M], product] * menus.folds[which, 1, place[AT_N], product]
        cycles += folds * menus.folds[which, 2, place[AT_K], product] * count
    if cycles > most:
        return np.inf, np.inf, 0.0
    for axis in range(3):
        for column in range(ROW):
            rows[axis, column] = menus.rows[which, axis, place[AT_M + axis], column]
    least = least_bytes(task, menus, which, rows[0, SIZE], rows[1, SIZE], rows[2, SIZE], order)
    if least * count / task.limits[1] > most:
        return np.inf, np.inf, 0.0
    compute = compute_table(task, rows, search.table)
    return least_cycles(task, rows, order, compute, least, search.table), least, compute


@njit(cache=True, error_model="numpy")
def _cut_axes(task: PairTask, which: int, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Tiles of a candidate by axis: how many, their sizes, their kinds; and the tiles of each part."""
    counts, pieces, longest = np.empty(3, np.int64), np.ones(3, np.int64), 1
    for axis in range(3):
        counts[axis] = rows[axis, TILES]
        longest = max(longest, counts[axis])
        if task.parts[which, 0] == axis:
            pieces[axis] = task.parts[which, 1]
    lengths, kinds = np.empty((3, longest), np.int64), np.empty((3, longest), np.int64)
    bounds, whole = np.zeros((task.parts[which, 1], 2), np.int64), np.empty((1, 2), np.int64)
    for axis in range(3):
        cut(task.dims[axis], pieces[axis], rows, axis, lengths, kinds, bounds if task.parts[which, 0] == axis else whole)
    return counts, lengths, kinds, bounds


@njit(cache=True, error_model="numpy")
def simulated(
    task: PairTask, which: int, order: int, rows: Ints, table: Ints, compute: float, least: float, most: float, moved: Real
) -> float:
    """Cycles of all products of a candidate, EXCEEDED where they are more than `most`; `moved` gets the bytes of one."""
    counts, lengths, kinds, bounds = _cut_axes(task, which, rows)
    count, single = task.dims[3], order == ALONE and counts[0] * counts[1] * counts[2] == 1
    passes = min(count, 3 if single else 2)  # from there on each takes as long as the last of them
    limits = np.empty(3)
    limits[0], limits[1], limits[2] = task.limits[2], task.limits[1], least
    end, before = simulate(
        order, counts, lengths, kinds, table, task.parts[which, 0], bounds, task.rates, limits, task.latency, passes, int(compute),
        most - (count - passes) * compute, moved,
    )  # fmt: skip
    cycles = float(end + (count - passes) * (end - before))
    return float(EXCEEDED) if end == EXCEEDED or cycles > most else cycles


@njit(cache=True, error_model="numpy")
def _evaluate(task: PairTask, search: Search, least: float, compute: float, most: float) -> float:
    """Simulates the candidate at hand; what is to be least of it, or infinity where it takes more cycles than `most`."""
    place, numbers = search.place, search.numbers
    if numbers[LEAN] and least >= numbers[LEAST]:  # it can only be faster
        most = min(most, numbers[WANTED])
    cycles = simulated(task, place[WHICH], place[ORDER], search.rows, search.table, compute, least, most, search.moved)
    if cycles == EXCEEDED:
        return np.inf
    _offer(search.front, search.entries, cycles, search.moved.sum(), compute, place, BYTES if numbers[LEAN] else CYCLES)
    numbers[FASTEST] = min(numbers[FASTEST], cycles)
    _set_goals(numbers, search.front, search.entries[0])
    return float(search.moved.sum()) if numbers[LEAN] else cycles


@njit(cache=True, error_model="numpy")
def _attempt(task: PairTask, menus: Menus, search: Search, most: float) -> float:
    """Simulates the candidate at hand unless it does not fit or bounds rule it out: what is to be least of it, or infinity."""
    rows, place, numbers, which = menus.rows, search.place, search.numbers, search.place[WHICH]
    if not fits(
        task, rows[which, 0, place[AT_M], SIZE], rows[which, 1, place[AT_N], SIZE], rows[which, 2, place[AT_K], SIZE]
    ):  # fmt: skip
        return np.inf
    tiles = _operations(menus, place)
    if tiles > task.most_steps:
        return np.inf
    cycles, least, compute = _bounds(task, menus, search, most)
    if cycles > most or (most == numbers[SLOWEST] and _hopeless(cycles, least, numbers)):
        return np.inf
    numbers[SPENT] += 2.0 * tiles
    return _evaluate(task, search, least, compute, most)


@njit(cache=True, error_model="numpy", inline="always")
def _list_coarse(task: PairTask, menus: Menus, search: Search, bounds: Real, places: Ints) -> int:
    """Coarse candidates that fit and that no bound rules out: bounds and places; returns how many.

    Those of more tiles than are simulated are left out, unless all have more.
    """
    listed, place, fewest, most = 0, search.place, np.inf, search.numbers[SLOWEST]
    for allowed in (min(task.most_steps, task.most_tiles), task.most_tiles):
        for which in range(len(task.parts)):
            for i in range(menus.lengths[0]):
                for j in range(menus.lengths[1] if menus.coarse[0, i] else 0):
                    for h in range(menus.lengths[2] if menus.coarse[1, j] else 0):
                        rows = menus.rows
                        if not menus.coarse[2, h] or not fits(
                            task, rows[which, 0, i, SIZE], rows[which, 1, j, SIZE], rows[which, 2, h, SIZE]
                        ):
                            continue
                        place[WHICH], place[AT_M], place[AT_N], place[AT_K] = which, i, j, h
                        tiles = _operations(menus, place)
                        too_many = tiles > allowed or (allowed > task.most_steps and tiles > fewest)
                        fewest = min(fewest, tiles)
                        if too_many:
                            continue
                        for order in task.orders:
                            place[ORDER] = order
                            cycles, least, _ = _bounds(task, menus, search, most)
                            if cycles > most:
                                continue
                            bounds[listed, 0], bounds[listed, 1] = cycles, least
                            for column in range(5):
                                places[listed, column] = place[column]
                            listed += 1
        if fewest <= task.most_steps:
            break
    return listed


@njit(cache=True, error_model="numpy")
def _ties_faster(bounds: Real, one: int, other: int) -> bool:
    """Whether one candidate may move as few bytes as another and be faster."""
    return bool(bounds[one, 1] == bounds[other, 1] and bounds[one, 0] < bounds[other, 0])


@njit(cache=True, error_model="numpy", inline="always")
def _search_coarse(task: PairTask, menus: Menus, search: Search) -> None:
    """Simulates coarse candidates in the order of their bounds, as long as these leave hope."""
    total, numbers, starts = len(task.orders) * len(task.parts), search.numbers, search.starts
    for axis in range(3):
        total *= menus.coarse[axis].sum()
    bounds, places = np.empty((total, 2)), np.empty((total, 5), np.int64)
    listed, lean = _list_coarse(task, menus, search, bounds, places), numbers[LEAN] > 0.0
    by = 1 if lean else 0
    while True:
        first, left = -1, 0
        for index in range(listed):  # what has become hopeless leaves the list
            if _hopeless(bounds[index, 0], bounds[index, 1], numbers):
                continue
            bounds[left, 0], bounds[left, 1] = bounds[index, 0], bounds[index, 1]
            for column in range(5):
                places[left, column] = places[index, column]
            if first < 0 or bounds[left, by] < bounds[first, by] or (lean and _ties_faster(bounds, left, first)):
                first = left
            left += 1
        listed = left
        if first < 0:
            return
        for column in range(5):
            search.place[column] = places[first, column]
        bounds[first, 0], bounds[first, 1] = np.inf, np.inf
        _, least, compute = _bounds(task, menus, search, np.inf)
        value = _evaluate(task, search, least, compute, numbers[SLOWEST])
        start, order = 0, search.place[ORDER]
        while task.orders[start] != order:
            start += 1
        start += len(task.orders) * search.place[WHICH]
        if value < starts[start, 0]:
            starts[start, 0] = value
            for column in range(5):
                starts[start, 1 + column] = search.place[column]


@njit(cache=True, error_model="numpy", inline="always")
def _refine(task: PairTask, menus: Menus, search: Search, start: int, effort: float) -> None:
    """Moves from one candidate to the first neighbour that is better, at ever smaller distances."""
    place, numbers, here, own = search.place, search.numbers, np.empty(5, np.int64), search.starts[start, 0]
    for column in range(5):
        here[column] = int(search.starts[start, 1 + column])
    far = FARTHEST
    while far > 0:
        helped = False
        for move in range(len(MOVES)):
            if numbers[SPENT] >= effort:
                return
            inside, place[WHICH], place[ORDER] = True, here[WHICH], here[ORDER]
            for axis in range(3):
                place[AT_M + axis] = here[AT_M + axis] + MOVES[move, axis] * far
                inside = inside and 0 <= place[AT_M + axis] < menus.lengths[axis]
            if not inside:
                continue
            value = _attempt(task, menus, search, np.inf if numbers[LEAN] else own)
            if value < own:
                own, helped = value, True
                for column in range(5):
                    here[column] = place[column]
        if not helped:
            far //= 2


@njit(cache=True, error_model="numpy", inline="always")
def _search_all(task: PairTask, menus: Menus, search: Search, effort: float) -> bool:
    """All combinations that no bound rules out; False where the effort does not suffice.

    An order's bytes depend on k and on the axis of its outer loop: branches are these two sizes.
    """
    place, numbers, count, fewest = search.place, search.numbers, float(task.dims[3]), menus.fewest
    for which in range(len(task.parts)):
        for order in task.orders:
            outer, inner = (1, 0) if order == DW_MAJOR else (0, 1)
            for i in range(menus.lengths[outer]):
                for h in range(menus.lengths[2]):
                    cycles = 0.0
                    for product in range(2):
                        folds = menus.folds[which, outer, i, product] * menus.folds[which, 2, h, product]
                        cycles += folds * fewest[which, inner, product] * count
                    if cycles > numbers[SLOWEST]:
                        continue
                    m = menus.rows[which, 0, i, SIZE] if outer == 0 else task.dims[0]
                    n = menus.rows[which, 1, i, SIZE] if outer == 1 else task.dims[1]
                    least = least_bytes(task, menus, which, m, n, menus.rows[which, 2, h, SIZE], order)
                    if _hopeless(max(cycles, least * count / task.limits[1]), least, numbers):
                        continue
                    for j in range(menus.lengths[inner]):
                        numbers[SPENT] += 1.0
                        if numbers[SPENT] > effort:
                            return False
                        place[WHICH], place[ORDER], place[AT_K] = which, order, h
                        place[AT_M + outer], place[AT_M + inner] = i, j
                        _attempt(task, menus, search, numbers[SLOWEST])
    return True


@njit(cache=True, error_model="numpy", inline="always")
def _search_fine(task: PairTask, menus: Menus, search: Search, effort: float) -> bool:
    """Refines the best coarse candidates of different orders, then looks at all; whether nothing was left out."""
    numbers, starts = search.numbers, search.starts
    groups = float(len(task.parts) * len(task.orders))
    if effort > 0.0 and groups * menus.lengths[0] * menus.lengths[1] * menus.lengths[2] <= FEW_COMBINATIONS:
        effort = max(effort, SMALL_EFFORT)
    for _ in range(STARTS):
        start = int(np.argmin(starts[:, 0]))
        best = numbers[MOST] if numbers[LEAN] else numbers[FASTEST]
        if starts[start, 0] > best * WORTH_REFINING or numbers[SPENT] >= effort:
            break
        _refine(task, menus, search, start, effort)
        starts[start, 0] = np.inf
    floor = max(menus.compulsory * task.dims[3] / task.limits[1], least_compute(task, menus))
    if max(menus.lengths[0], menus.lengths[1], menus.lengths[2]) == 1 or _hopeless(floor, menus.compulsory, numbers):
        return True
    branches = groups * menus.lengths[2] * max(menus.lengths[0], menus.lengths[1])
    return bool(numbers[SPENT] + branches < effort and _search_all(task, menus, search, effort))


@njit(cache=True, error_model="numpy")
def search_pair(
    task: PairTask, menus: Menus, tolerance: float, gap: float, effort: float, most: float, lean: bool
) -> tuple[Ints, Real, float, float, bool]:
    """The best candidate (partition, order, m, n, k), bytes of one product, cycles, the array's for one; whether it is complete.

    Least cycles; within the tolerance of them the least bytes; the partition is -1 if none fits and takes at most `most` cycles.
    `lean`: least bytes; within the tolerance of them the least cycles, however many.
    `effort` is the number of tile operations to simulate after the coarse search; with an effort of 0 there is no more than that.
    A complete search has left out nothing that is faster (`lean`: moves fewer bytes) by more than the gap.
    """
    search = Search(
        np.zeros(5, np.int64), np.zeros((3, ROW), np.int64), np.zeros((2, 3, 3, 3), np.int64), np.zeros((5, 4)), np.zeros(9),
        np.empty((FRONT + 1, PLACE + 5)), np.zeros(1, np.int64), np.full((len(task.parts) * len(task.orders), 6), np.inf),
    )  # fmt: skip
    numbers, front, chosen = search.numbers, search.front, np.full(5, -1)
    numbers[FASTEST], numbers[TOLERANCE], numbers[GAP], numbers[LEAN] = most * WORTH_REFINING, tolerance, gap, 1.0 if lean else 0.0
    _set_goals(numbers, front, search.entries[0])
    _search_coarse(task, menus, search)
    numbers[FASTEST] = min(numbers[FASTEST], most)
    _set_goals(numbers, front, search.entries[0])
    proven, best = _search_fine(task, menus, search, effort), -1
    for index in range(search.entries[0]):
        if front[index, CYCLES] <= min(most, numbers[SLOWEST]) and (best < 0 or front[index, BYTES] < front[best, BYTES]):
            best = index
    if lean and best >= 0:
        best = _quickest(front, search.entries[0], front[best, BYTES] * (1.0 + tolerance))
    if best < 0:
        return chosen, search.moved, 0.0, 0.0, False
    for column in range(5):
        search.place[column] = int(front[best, PLACE + column])
    _, least, compute = _bounds(task, menus, search, np.inf)
    cycles = simulated(
        task, search.place[WHICH], search.place[ORDER], search.rows, search.table, compute, least, np.inf, search.moved
    )  # fmt: skip
    chosen[WHICH], chosen[ORDER] = search.place[WHICH], search.place[ORDER]
    for axis in range(3):
        chosen[AT_M + axis] = search.rows[axis, SIZE]
    return chosen, search.moved, cycles, compute, proven
