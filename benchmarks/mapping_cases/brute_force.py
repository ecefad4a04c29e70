"""The least cycles and the least DRAM traffic of a product, over all useful tile sizes, loop orders and resident tensors.

Written apart from trainyard's search, from the description of its machine: half of the scratchpad holds one tile of A, of B and of
sums, or all tiles of a tensor that is kept while a loop runs that it lacks. While the array computes a step, the DRAM writes what
the step before left and reads what the next one needs; the first fill and the last drain are seen in full. `walk` goes step by
step; `grouped` visits one of each group of steps that look alike, and is compared with it.

Useful sizes of a dimension D are the least ones for each number of tiles, and multiples of the array's own size: a tile between
two of them fills more room for the same number of tiles, and folds the array as often.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

ORDERS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], dtype=np.int64)
"""Axes m, n, k = 0, 1, 2 from the outer loop to the inner one."""
LACKS = np.array([1, 0, 2], dtype=np.int64)
"""The axis that A, B and the sums lack."""
SIDES = np.array([(0, 2), (2, 1), (0, 1)], dtype=np.int64)
RESOLUTION = 0.999
"""A tiling counts as better from 0.1 % on: the least is known to that."""
WS, OS, IS = range(3)


@njit(cache=True)
def fold_cycles(m: int, n: int, k: int, array: Ints) -> int:
    """Cycles of one tile on a systolic array (rows, columns, dataflow), folds one after the other."""
    rows, columns, dataflow = array
    if dataflow == WS:
        return -(-k // rows) * -(-n // columns) * (2 * rows + columns + m - 2)
    if dataflow == IS:
        return -(-k // rows) * -(-m // columns) * (2 * rows + columns + n - 2)
    return -(-m // rows) * -(-n // columns) * (rows + columns + k - 2)


@njit(cache=True)
def burst(size: float, speed: float, latency: float) -> float:
    return 0.0 if size <= 0.0 else latency + np.ceil(size / speed)


@njit(cache=True)
def extent(dims: Ints, size: Ints, axis: int, index: int) -> int:
    return min(size[axis], dims[axis] - index * size[axis])


@njit(cache=True)
def fits(dims: Ints, size: Ints, order: Ints, keep: int, held: Reals, room: float) -> bool:
    """`keep` has a bit for each tensor (A, B, sums) that stays while the loop that it lacks runs."""
    total = 0.0
    for tensor in range(3):
        bytes_held = held[tensor]
        place = 0
        while order[place] != LACKS[tensor]:
            place += 1
        for side in SIDES[tensor]:
            inside = False
            for later in range(place + 1, 3):
                inside = inside or order[later] == side
            bytes_held *= dims[side] if keep >> tensor & 1 and inside else size[side]
        total += bytes_held
    return total <= room


@njit(cache=True)
def step_bytes(
    dims: Ints, size: Ints, steps: Ints, now: Ints, before: Ints, first: bool, keep: int, rates: Reals
) -> tuple[float, float]:
    """Bytes that a step reads, and that its predecessor leaves to be written."""
    m, n, k = extent(dims, size, 0, now[0]), extent(dims, size, 1, now[1]), extent(dims, size, 2, now[2])
    read, written = 0.0, 0.0
    if (first or now[0] != before[0] or now[2] != before[2]) and not (keep & 1 and now[1] > 0):
        read += m * k * rates[0]
    if (first or now[2] != before[2] or now[1] != before[1]) and not (keep & 2 and now[0] > 0):
        read += k * n * rates[1]
    if first or now[0] != before[0] or now[1] != before[1]:
        if now[2] > 0 and not keep & 4:
            read += m * n * rates[3]
        if not first:
            area = extent(dims, size, 0, before[0]) * extent(dims, size, 1, before[1])
            if before[2] == steps[2] - 1:
                written = area * rates[2]
            elif not keep & 4:
                written = area * rates[3]
    return read, written


@njit(cache=True)
def walk(
    dims: Ints, size: Ints, order: Ints, keep: int, rates: Reals, array: Ints, supply: Reals, count: int
) -> tuple[float, float]:
    """Cycles and bytes of `count` equal products, step by step."""
    steps = np.empty(3, np.int64)
    for axis in range(3):
        steps[axis] = -(-dims[axis] // size[axis])
    speed, latency = supply[1], supply[2]
    now, before = np.zeros(3, np.int64), np.zeros(3, np.int64)
    cycles, moved, busy, leaving = 0.0, 0.0, 0.0, 0.0
    drain = extent(dims, size, 0, steps[0] - 1) * extent(dims, size, 1, steps[1] - 1) * rates[2]
    for product in range(count):
        first = True
        for x in range(steps[order[0]]):
            for y in range(steps[order[1]]):
                for z in range(steps[order[2]]):
                    now[order[0]], now[order[1]], now[order[2]] = x, y, z
                    read, written = step_bytes(dims, size, steps, now, before, first, keep, rates)
                    if first and product:
                        written = drain
                    moved += read + written
                    # the step before ends: its compute, or what it left behind and what this one reads
                    cycles += (
                        burst(read, speed, latency) if first and not product else max(busy, burst(read + leaving, speed, latency))
                    )
                    busy = float(
                        fold_cycles(
                            extent(dims, size, 0, now[0]), extent(dims, size, 1, now[1]), extent(dims, size, 2, now[2]), array
                        )
                    )
                    leaving, first = written, False
                    for axis in range(3):
                        before[axis] = now[axis]
    cycles += max(busy, burst(leaving, speed, latency)) + burst(drain, speed, latency)
    return cycles, moved + drain


@njit(cache=True)
def _stand_in(which: int, steps: int) -> tuple[int, int]:
    """An index of a loop for each group that looks alike (0, 1, the middle, the last two), and how many it stands for."""
    if steps <= 5:
        return which, 1
    if which < 2:
        return which, 1
    if which == 2:
        return 2, steps - 4
    return steps - 5 + which, 1


@njit(cache=True)
def grouped(dims: Ints, size: Ints, order: Ints, keep: int, rates: Reals, array: Ints, supply: Reals, count: int) -> float:
    """The cycles of `walk`, each step taken once for all that look like it."""
    steps, now, after, before = np.empty(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    for axis in range(3):
        steps[axis] = -(-dims[axis] // size[axis])
    speed, latency = supply[1], supply[2]
    drain = extent(dims, size, 0, steps[0] - 1) * extent(dims, size, 1, steps[1] - 1) * rates[2]
    fill, _ = step_bytes(dims, size, steps, now, before, True, keep, rates)
    cycles = burst(fill, speed, latency) + burst(drain, speed, latency)
    outer, middle, inner = order
    for i in range(min(steps[outer], 5)):
        now[outer], weight_i = _stand_in(i, steps[outer])
        for j in range(min(steps[middle], 5)):
            now[middle], weight_j = _stand_in(j, steps[middle])
            for h in range(min(steps[inner], 5)):
                now[inner], weight_h = _stand_in(h, steps[inner])
                is_first, is_last = True, True
                for axis in range(3):
                    is_first, is_last = is_first and now[axis] == 0, is_last and now[axis] == steps[axis] - 1
                    after[axis] = before[axis] = now[axis]
                read, written = fill, drain
                if not is_last:
                    for place in (2, 1, 0):
                        after[order[place]] += 1
                        if after[order[place]] < steps[order[place]]:
                            break
                        after[order[place]] = 0
                    read, _ = step_bytes(dims, size, steps, after, now, False, keep, rates)
                if not is_first:
                    for place in (2, 1, 0):
                        before[order[place]] -= 1
                        if before[order[place]] >= 0:
                            break
                        before[order[place]] = steps[order[place]] - 1
                    _, written = step_bytes(dims, size, steps, now, before, False, keep, rates)
                busy = float(
                    fold_cycles(extent(dims, size, 0, now[0]), extent(dims, size, 1, now[1]), extent(dims, size, 2, now[2]), array)
                )
                both = max(busy, burst(read + written, speed, latency))
                if is_first and is_last:
                    ends = max(busy, burst(read, speed, latency)) + max(busy, burst(written, speed, latency))
                    cycles += busy if count == 1 else ends + (count - 2) * both
                elif is_first:
                    cycles += max(busy, burst(read, speed, latency)) + (count - 1) * both
                elif is_last:
                    cycles += max(busy, burst(written, speed, latency)) + (count - 1) * both
                else:
                    cycles += float(weight_i * weight_j * weight_h) * count * both
    return cycles


@njit(cache=True)
def traffic(dims: Ints, size: Ints, order: Ints, keep: int, rates: Reals, count: int) -> float:
    """DRAM bytes: each tensor once; one that is not kept once for each step of the loop that it lacks, if anything moves inside."""
    m, n, k = float(dims[0]), float(dims[1]), float(dims[2])
    total = m * k * rates[0] + k * n * rates[1] + m * n * rates[2]
    for tensor in range(3):
        moves, seen = False, False
        for axis in order:
            if seen and size[axis] < dims[axis]:
                moves = True
            if axis == LACKS[tensor]:
                seen = True
        if moves and not keep >> tensor & 1:
            again = -(-dims[LACKS[tensor]] // size[LACKS[tensor]]) - 1
            total += again * (m * k * rates[0] if tensor == 0 else (k * n * rates[1] if tensor == 1 else 2.0 * m * n * rates[3]))
    return total * count


@njit(cache=True)
def computing(dims: Ints, size: Ints, array: Ints) -> float:
    """Cycles of the array alone."""
    m, n, k = size
    rows, columns, deep = -(-dims[0] // m), -(-dims[1] // n), -(-dims[2] // k)
    total = 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                many = float(1 if a else rows - 1) * (1 if b else columns - 1) * (1 if c else deep - 1)
                if many:
                    edges = dims[0] - (rows - 1) * m, dims[1] - (columns - 1) * n, dims[2] - (deep - 1) * k
                    total += many * fold_cycles(edges[0] if a else m, edges[1] if b else n, edges[2] if c else k, array)
    return total


def sizes(dimension: int, granule: int, every: bool = False) -> Ints:
    """Useful sizes of a tile along a dimension; `every` is all of them."""
    if every:
        return np.arange(1, dimension + 1)
    least = {-(-dimension // tiles) for tiles in range(1, int(dimension**0.5) + 2)} | set(range(1, int(dimension**0.5) + 2))
    return np.array(sorted(size for size in least | {*range(granule, dimension, granule), dimension} if size <= dimension))


@njit(cache=True)
def least(
    dims: Ints, rates: Reals, held: Reals, array: Ints, supply: Reals, count: int, ms: Ints, ns: Ints, ks: Ints, known: Reals,
    band: float,
) -> Reals:  # fmt: skip
    """The least traffic; the least cycles, not above those known of a tiling; and the least traffic within `band` of these.

    Tilings whose bound (the array's cycles and the first fill, or the bytes with the latency of their bursts) is no better are not
    walked.
    """
    best_moved, best_cycles, at_equal_time = known[1], known[0], known[1]
    compulsory = count * (dims[0] * dims[2] * rates[0] + dims[2] * dims[1] * rates[1] + dims[0] * dims[1] * rates[2])
    size = np.empty(3, np.int64)
    for turn in range(2):  # first the least cycles, then the least bytes within the band
        for m in ms:
            for n in ns:
                for k in ks:
                    size[0], size[1], size[2] = m, n, k
                    if m * k * held[0] + k * n * held[1] + m * n * held[2] > supply[0]:
                        break
                    busy = computing(dims, size, array) * count + (m * k * rates[0] + k * n * rates[1]) / supply[1]
                    slow = busy >= RESOLUTION * best_cycles if turn == 0 else busy > band * best_cycles
                    if (slow and turn == 1) or (slow and compulsory >= best_moved):
                        continue
                    if turn == 1 and compulsory >= RESOLUTION * at_equal_time:
                        continue
                    steps = float(-(-dims[0] // m)) * -(-dims[1] // n) * -(-dims[2] // k)
                    bursts = supply[2] * count * steps if rates[0] > 0.0 and rates[1] > 0.0 else 0.0  # each step brings A or B
                    for number in range(6):
                        order = ORDERS[number]
                        for keep in range(8):
                            if keep and not fits(dims, size, order, keep, held, supply[0]):
                                continue
                            moved = traffic(dims, size, order, keep, rates, count)
                            bound = max(busy, moved / supply[1] + (0.0 if keep else bursts))
                            if turn == 0:
                                best_moved = min(best_moved, moved)
                                if bound >= RESOLUTION * best_cycles:
                                    continue
                            elif moved >= RESOLUTION * at_equal_time or bound > band * best_cycles:
                                continue
                            cycles = grouped(dims, size, order, keep, rates, array, supply, count)
                            if turn == 0:
                                best_cycles = min(best_cycles, cycles)
                            elif cycles <= band * best_cycles:
                                at_equal_time = moved
    return np.array([best_moved, best_cycles, at_equal_time])
