"""Compiled: order, tile and partition of a pair of gradients on one core, searched together (`mapping.gradient_order.search`).

First a coarse menu of sizes is searched, candidates in the order of their lower bounds; then finer sizes around the best ones are
tried; then all combinations of fine sizes whose bounds say that they could be faster by more than the gap: branches (an order and
the sizes of two axes) are left out as a whole where possible. If that ends within the effort, nothing in the menu is faster by more
than the gap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from trainyard.kernels.mapping.gradient_menus import (
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
from trainyard.kernels.mapping.gradient_order import ALONE, DW_MAJOR, Ints, Real
from trainyard.kernels.mapping.gradient_simulation import EXCEEDED, simulate

RESULTS = 256
"""Most candidates of one search that are compared in the end."""
STARTS, WORTH_REFINING, FARTHEST = 3, 1.05, 4
"""Most candidates around which finer sizes are tried, how much slower than the fastest they may be, and how far apart sizes are."""
MOVES = np.array(
    [(0, 0, 1), (0, 0, -1), (0, 1, 0), (0, -1, 0), (1, 0, 0), (-1, 0, 0),
     (0, 1, -1), (0, -1, 1), (1, 0, -1), (-1, 0, 1), (1, -1, 0), (-1, 1, 0)], dtype=np.int64
)  # fmt: skip
"""Along one axis, or up one and down another."""
FEW_COMBINATIONS, SMALL_EFFORT = 65536.0, 262144.0
"""A search of so few combinations may take this effort at least."""
BRANCH_EFFORT = 1.0
"""Of a branch in tile operations: all combinations are looked at only where the effort suffices for all branches."""
LEANER = 0.99
"""Bytes of a candidate that is looked for only because it moves fewer, over those of the leanest so far."""
WHICH, ORDER, AT_M, AT_N, AT_K = range(5)
CYCLES, BYTES = range(2)
COARSE, REFINED, COMPLETE, ENDED = range(4)
PHASE, STARTED, FOUND_COARSE, PROVEN = range(4)
"""Counters: the phase, candidates refined, results of the coarse phase, whether the search was complete."""
FASTEST, OWN, SPENT, EFFORT, MOST = range(5)
"""Numbers: cycles of the fastest, of the one that is refined, tile operations simulated, and how many may be; the most cycles."""


class Results(NamedTuple):
    """Simulated candidates: cycles of all products and bytes of one; partition, order, and places of the sizes in the menu.

    `moved` are the bytes by tensor and kind, `array` the cycles of the array; `number` is how many there are; `goals` are cycles
    below which a candidate is wanted, the most cycles of one that moves fewer bytes, and these bytes.
    """

    costs: Real
    places: Ints
    moved: Real
    array: Real
    number: Ints
    goals: Real


class Progress(NamedTuple):
    """Where a search is: the counters and numbers named above, the positions of its loops, and coarse candidates already refined.

    `here` is the candidate that is being refined.
    """

    counters: Ints
    numbers: Real
    cursor: Ints
    here: Ints
    done: Ints


class Candidate(NamedTuple):
    """The candidate at hand: its place, the array's cycles by kind of tile, and all of them with a lower bound on its bytes."""

    place: Ints
    table: Ints
    numbers: Real


@njit(cache=True, error_model="numpy")
def _set_goals(results: Results, fastest: float, tolerance: float, gap: float) -> None:
    most, leanest = fastest * max(1.0, (1.0 + tolerance) / (1.0 + gap)), np.inf
    for index in range(results.number[0]):
        if results.costs[index, CYCLES] <= most:
            leanest = min(leanest, results.costs[index, BYTES])
    results.goals[0], results.goals[1] = fastest / (1.0 + gap), most
    results.goals[2] = leanest * LEANER if tolerance > 0.0 else 0.0


@njit(cache=True, error_model="numpy", inline="always")
def _hopeless(cycles: float, least: float, goals: Real) -> bool:
    """Whether lower bounds on cycles and bytes rule a candidate out."""
    return bool(cycles > goals[1] or (cycles >= goals[0] and least >= goals[2]))


@njit(cache=True, error_model="numpy")
def _operations(menus: Menus, place: Ints) -> float:
    total = 1.0
    for axis in range(3):
        total *= float(menus.rows[place[WHICH], axis, place[AT_M + axis], TILES])
    return total


@njit(cache=True, error_model="numpy")
def _coarse_list(task: PairTask, menus: Menus) -> tuple[Real, Ints, float]:
    """Coarse candidates that fit, least bounds on their cycles first: bound, bytes; place; the fewest tiles of any."""
    total = menus.coarse[0].sum() * menus.coarse[1].sum() * menus.coarse[2].sum() * len(task.orders) * len(task.parts)
    bounds, places = np.empty((total, 2)), np.empty((total, 5), np.int64)
    table, many, fewest = np.zeros((2, 3, 3, 3), np.int64), 0, np.inf
    for which in range(len(task.parts)):
        for i in range(menus.lengths[0]):
            for j in range(menus.lengths[1]):
                for h in range(menus.lengths[2]):
                    if not (menus.coarse[0, i] and menus.coarse[1, j] and menus.coarse[2, h]):
                        continue
                    rows, columns, deep = menus.rows[which, 0, i], menus.rows[which, 1, j], menus.rows[which, 2, h]
                    if not fits(task, rows[SIZE], columns[SIZE], deep[SIZE]):
                        continue
                    compute = compute_table(task, rows, columns, deep, table)
                    for order in task.orders:
                        least = least_bytes(task, menus, which, rows[SIZE], columns[SIZE], deep[SIZE], order)
                        bounds[many, 0] = least_cycles(task, rows, columns, deep, order, compute, least, table)
                        bounds[many, 1], place = least, places[many]
                        place[WHICH], place[ORDER], place[AT_M], place[AT_N], place[AT_K] = which, order, i, j, h
                        fewest = min(fewest, _operations(menus, place))
                        many += 1
    ascending = np.argsort(bounds[:many, 0], kind="mergesort")
    return bounds[ascending], places[ascending], fewest


@njit(cache=True, error_model="numpy")
def _next_coarse(
    task: PairTask, menus: Menus, results: Results, candidate: Candidate, bounds: Real, places: Ints, fewest: float, cursor: Ints
) -> bool:
    """The next coarse candidate that its bounds do not rule out."""
    while cursor[0] < len(bounds) and bounds[cursor[0], 0] <= results.goals[1]:
        at = cursor[0]
        cursor[0] += 1
        candidate.place[:] = places[at]
        many = _operations(menus, candidate.place)
        if not _hopeless(bounds[at, 0], bounds[at, 1], results.goals) and many <= min(
            max(fewest, task.most_steps), task.most_tiles
        ):
            rows = menus.rows[candidate.place[WHICH]]
            candidate.numbers[0] = compute_table(
                task, rows[0, places[at, AT_M]], rows[1, places[at, AT_N]], rows[2, places[at, AT_K]], candidate.table
            )  # fmt: skip
            candidate.numbers[1] = bounds[at, 1]
            return True
    return False


@njit(cache=True, error_model="numpy")
def _wanted(task: PairTask, menus: Menus, candidate: Candidate, goals: Real) -> bool:
    """Whether the candidate fits and its bounds do not rule it out; its table and numbers are made."""
    place, count = candidate.place, float(task.dims[3])
    which, order = place[WHICH], place[ORDER]
    rows, columns, deep = menus.rows[which, 0, place[AT_M]], menus.rows[which, 1, place[AT_N]], menus.rows[which, 2, place[AT_K]]
    if not fits(task, rows[SIZE], columns[SIZE], deep[SIZE]) or _operations(menus, place) > task.most_steps:
        return False
    cycles = 0.0
    for product in range(2):
        folds = menus.folds[which, 0, place[AT_M], product] * menus.folds[which, 1, place[AT_N], product]
        cycles += folds * menus.folds[which, 2, place[AT_K], product] * count
    if cycles > goals[1]:
        return False
    least = least_bytes(task, menus, which, rows[SIZE], columns[SIZE], deep[SIZE], order)
    if _hopeless(max(cycles, least * count / task.limits[1]), least, goals):
        return False
    candidate.numbers[0] = compute_table(task, rows, columns, deep, candidate.table)
    candidate.numbers[1] = least
    return not _hopeless(
        least_cycles(task, rows, columns, deep, order, candidate.numbers[0], least, candidate.table), least, goals
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _next_start(results: Results, coarse: int, done: Ints, fastest: float) -> int:
    """The best coarse candidate of an order and partition that is not refined yet and not much slower than the fastest, or -1."""
    start = -1
    for index in range(coarse):
        if done[index] == 0 and (start < 0 or results.costs[index, CYCLES] < results.costs[start, CYCLES]):
            start = index
    if start < 0 or results.costs[start, CYCLES] > fastest * WORTH_REFINING:
        return -1
    for index in range(coarse):
        same = results.places[index, WHICH] == results.places[start, WHICH]
        if same and results.places[index, ORDER] == results.places[start, ORDER]:
            done[index] = 1
    return start


@njit(cache=True, error_model="numpy")
def _next_move(task: PairTask, menus: Menus, candidate: Candidate, here: Ints, cursor: Ints, goals: Real) -> bool:
    """The next neighbour of `here` that could be faster; `cursor` is how far sizes are apart, the next move, whether one helped."""
    while cursor[0] > 0:
        while cursor[1] < len(MOVES):
            move = cursor[1]
            cursor[1] += 1
            inside = True
            candidate.place[:] = here
            for axis in range(3):
                candidate.place[AT_M + axis] += MOVES[move, axis] * cursor[0]
                inside = inside and 0 <= candidate.place[AT_M + axis] < menus.lengths[axis]
            if inside and _wanted(task, menus, candidate, goals):
                return True
        if cursor[2] == 0:
            cursor[0] //= 2
        cursor[1], cursor[2] = 0, 0
    return False


@njit(cache=True, error_model="numpy")
def _next_combination(task: PairTask, menus: Menus, candidate: Candidate, cursor: Ints, goals: Real, numbers: Real) -> bool:
    """The next of all combinations that no bound rules out; False at the end, or where the effort is spent.

    `cursor` are partition, order, the sizes of an outer axis, of k, and of an inner axis: an order's bytes depend on the outer two.
    """
    place, count = candidate.place, float(task.dims[3])
    while cursor[0] < len(task.parts):
        which, order = cursor[0], task.orders[cursor[1]]
        outer, inner = (1, 0) if order == DW_MAJOR else (0, 1)
        i, h, fewest = cursor[2], cursor[3], menus.fewest[which]
        folds, deep, left_out = menus.folds[which, outer, i], menus.folds[which, 2, h], False
        if cursor[4] == 0:  # a new branch
            cycles = (folds[0] * deep[0] * fewest[inner, 0] + folds[1] * deep[1] * fewest[inner, 1]) * count
            left_out = cycles > goals[1]
            if not left_out:
                m = menus.rows[which, 0, i, SIZE] if outer == 0 else task.dims[0]
                n = menus.rows[which, 1, i, SIZE] if outer == 1 else task.dims[1]
                least = least_bytes(task, menus, which, m, n, menus.rows[which, 2, h, SIZE], order)
                left_out = _hopeless(max(cycles, least * count / task.limits[1]), least, goals)
        place[WHICH], place[ORDER], place[AT_M + outer], place[AT_M + inner], place[AT_K] = which, order, i, cursor[4], h
        cursor[4] = menus.lengths[inner] if left_out else cursor[4] + 1
        if cursor[4] >= menus.lengths[inner]:
            cursor[4], cursor[3] = 0, h + 1
            if cursor[3] == menus.lengths[2]:
                cursor[3], cursor[2] = 0, i + 1
                if cursor[2] == menus.lengths[outer]:
                    cursor[2], cursor[1] = 0, cursor[1] + 1
                    if cursor[1] == len(task.orders):
                        cursor[1], cursor[0] = 0, which + 1
        if left_out:
            continue
        numbers[SPENT] += 1.0
        if numbers[SPENT] > numbers[EFFORT]:
            return False
        if _wanted(task, menus, candidate, goals):
            return True
    return False


@njit(cache=True, error_model="numpy")
def _cut_axes(task: PairTask, which: int, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Tiles of a candidate by axis: how many, their sizes, their kinds; and the tiles of each part."""
    axis, pieces = task.parts[which, 0], task.parts[which, 1]
    counts = rows[:, TILES].copy()
    lengths, kinds = np.zeros((3, counts.max()), np.int64), np.zeros((3, counts.max()), np.int64)
    bounds, whole = np.zeros((pieces, 2), np.int64), np.zeros((1, 2), np.int64)
    for one in range(3):
        if one == axis:
            cut(task.dims[one], pieces, rows[one], lengths[one], kinds[one], bounds)
        else:
            cut(task.dims[one], 1, rows[one], lengths[one], kinds[one], whole)
    return counts, lengths, kinds, bounds


@njit(cache=True, error_model="numpy")
def simulated(
    task: PairTask, which: int, order: int, rows: Ints, table: Ints, compute: float, least: float, most: float, moved: Real
) -> float:
    """Cycles of all products of a candidate, EXCEEDED where they are more than `most`; `moved` gets the bytes of one."""
    counts, lengths, kinds, bounds = _cut_axes(task, which, rows)
    count, single = task.dims[3], order == ALONE and counts[0] * counts[1] * counts[2] == 1
    passes = min(count, 3 if single else 2)  # from there on each takes as long as the last of them
    limits = np.array([task.limits[2], task.limits[1], least])
    end, before = simulate(
        order, counts, lengths, kinds, table, task.parts[which, 0], bounds, task.rates, limits, task.latency, passes, int(compute),
        most - (count - passes) * compute, moved,
    )  # fmt: skip
    cycles = float(end + (count - passes) * (end - before))
    return float(EXCEEDED) if end == EXCEEDED or cycles > most else cycles


@njit(cache=True, error_model="numpy")
def _stored(results: Results, candidate: Candidate, cycles: float, moved: Real) -> None:
    found = results.number[0]
    if found == RESULTS:  # in place of the slowest
        found = int(np.argmax(results.costs[:, CYCLES]))
    else:
        results.number[0] += 1
    results.costs[found, CYCLES], results.costs[found, BYTES] = cycles, moved.sum()
    results.array[found], results.moved[found], results.places[found] = candidate.numbers[0], moved, candidate.place


@njit(cache=True, error_model="numpy")
def _best(results: Results, most: float) -> int:
    """The result of the least bytes within the goals; of equal ones the fastest; -1 if there is none."""
    best = -1
    for index in range(results.number[0]):
        cycles, moved = results.costs[index, CYCLES], results.costs[index, BYTES]
        if cycles > most or cycles > results.goals[1]:
            continue
        if (
            best < 0
            or moved < results.costs[best, BYTES]
            or (moved == results.costs[best, BYTES] and cycles < results.costs[best, CYCLES])
        ):
            best = index
    return best


@njit(cache=True, error_model="numpy")
def _enter_phase(task: PairTask, menus: Menus, results: Results, progress: Progress) -> None:
    """What comes after a coarse search, after refining one candidate, or after all combinations."""
    counters, numbers = progress.counters, progress.numbers
    if counters[PHASE] == COARSE:
        counters[FOUND_COARSE], numbers[FASTEST] = results.number[0], min(numbers[FASTEST], numbers[MOST])
        combinations = float(len(task.parts) * len(task.orders)) * menus.lengths[0] * menus.lengths[1] * menus.lengths[2]
        if numbers[EFFORT] > 0.0 and combinations <= FEW_COMBINATIONS:
            numbers[EFFORT] = max(numbers[EFFORT], SMALL_EFFORT)
    may_go_on = numbers[SPENT] < numbers[EFFORT]
    if counters[PHASE] <= REFINED and counters[STARTED] < STARTS and may_go_on:
        start = _next_start(results, counters[FOUND_COARSE], progress.done, numbers[FASTEST])
        if start >= 0:
            counters[PHASE], counters[STARTED], numbers[OWN] = REFINED, counters[STARTED] + 1, results.costs[start, CYCLES]
            progress.here[:] = results.places[start]
            progress.cursor[0], progress.cursor[1], progress.cursor[2] = FARTHEST, 0, 0
            return
    if counters[PHASE] == COMPLETE:
        counters[PROVEN] = int(progress.cursor[0] == len(task.parts))
    else:
        floor = max(menus.compulsory * task.dims[3] / task.limits[1], least_compute(task, menus))
        counters[PROVEN] = int(menus.lengths.max() == 1 or _hopeless(floor, menus.compulsory, results.goals))
        branches = float(len(task.parts) * len(task.orders)) * menus.lengths[2] * max(menus.lengths[0], menus.lengths[1])
        if counters[PROVEN] == 0 and numbers[SPENT] + BRANCH_EFFORT * branches < numbers[EFFORT]:
            counters[PHASE] = COMPLETE
            progress.cursor[:] = 0
            return
    counters[PHASE] = ENDED


@njit(cache=True, error_model="numpy")
def search_pair(
    task: PairTask, menus: Menus, tolerance: float, gap: float, effort: float, most: float
) -> tuple[Ints, Real, float, float, bool]:
    """The best candidate (partition, order, m, n, k), bytes of one product, cycles, the array's for one; whether it is complete.

    Least cycles; within the tolerance of them the least bytes; the partition is -1 if none fits and takes at most `most` cycles.
    `effort` is the number of tile operations to simulate after the coarse search; with an effort of 0 there is no more than that.
    A complete search has left out nothing that is faster by more than the gap.
    """
    results = Results(
        np.empty((RESULTS, 2)), np.empty((RESULTS, 5), np.int64), np.empty((RESULTS, 5, 4)), np.empty(RESULTS),
        np.zeros(1, np.int64), np.zeros(3),
    )  # fmt: skip
    candidate = Candidate(np.zeros(5, np.int64), np.zeros((2, 3, 3, 3), np.int64), np.zeros(2))
    counters, numbers, cursor, here = np.zeros(4, np.int64), np.zeros(5), np.zeros(5, np.int64), np.zeros(5, np.int64)
    progress = Progress(counters, numbers, cursor, here, np.zeros(RESULTS, np.int64))
    numbers[FASTEST], numbers[EFFORT], numbers[MOST] = most * WORTH_REFINING, effort, most
    bounds, places, fewest = _coarse_list(task, menus)
    rows, moved, own_goals, goals, found = np.empty((3, ROW), np.int64), np.zeros((5, 4)), np.zeros(3), results.goals, False
    _set_goals(results, numbers[FASTEST], tolerance, gap)
    while counters[PHASE] != ENDED:
        if counters[PHASE] == COARSE:
            found = _next_coarse(task, menus, results, candidate, bounds, places, fewest, cursor)
        elif counters[PHASE] == REFINED:
            own_goals[0], own_goals[1] = numbers[OWN], numbers[OWN]  # only what is faster
            found = numbers[SPENT] < numbers[EFFORT] and _next_move(task, menus, candidate, here, cursor, own_goals)
        else:
            found = _next_combination(task, menus, candidate, cursor, goals, numbers)
        if not found:
            _enter_phase(task, menus, results, progress)
            _set_goals(results, numbers[FASTEST], tolerance, gap)
            continue
        for axis in range(3):
            rows[axis] = menus.rows[candidate.place[WHICH], axis, candidate.place[AT_M + axis]]
        numbers[SPENT] += 0.0 if counters[PHASE] == COARSE else 2.0 * _operations(menus, candidate.place)
        cycles = simulated(
            task, candidate.place[WHICH], candidate.place[ORDER], rows, candidate.table, candidate.numbers[0], candidate.numbers[1],
            numbers[OWN] if counters[PHASE] == REFINED else goals[1], moved,
        )  # fmt: skip
        if cycles == EXCEEDED:
            continue
        _stored(results, candidate, cycles, moved)
        numbers[FASTEST] = min(numbers[FASTEST], cycles)
        _set_goals(results, numbers[FASTEST], tolerance, gap)
        if counters[PHASE] == REFINED and cycles < numbers[OWN]:
            numbers[OWN], cursor[2], here[:] = cycles, 1, candidate.place
    best = _best(results, most)
    chosen = np.full(5, -1)
    if best < 0:
        return chosen, moved, 0.0, 0.0, False
    chosen[WHICH], chosen[ORDER] = results.places[best, WHICH], results.places[best, ORDER]
    for axis in range(3):
        chosen[AT_M + axis] = menus.rows[chosen[WHICH], axis, results.places[best, AT_M + axis], SIZE]
    return chosen, results.moved[best], results.costs[best, CYCLES], results.array[best], counters[PROVEN] == 1
