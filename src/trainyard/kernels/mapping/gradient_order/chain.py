"""Both gradients of two consecutive layers through one scratchpad. Plain Python: `tests/mapping/gradient_order/test_chain.py`.

Tensors are numbered, a tile has one number over all of them, row by row:

| upper layer    | dY (m,n) | W (k,n) | X (m,k) | dX (m,k), dY of the lower layer | dW (k,n) |
| lower layer    |          | W (j,k) | X (m,j) | dX (m,j)                        | dW (j,k) |

An operation is a row of four tile numbers (two operands, the sum, and the tile of X that masks a sum which ends here, or -1) and a
number that its cycles are looked up by: eight for each of the four gradients, 4, 2 and 1 added where its tile is the last along the
first, second and third axis (m, n, k of the upper layer; m, k, j of the lower).
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.mapping.tiles import transfer

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

UPPER_DY, UPPER_W, UPPER_X, BETWEEN, UPPER_DW, LOWER_W, LOWER_X, LOWER_DX, LOWER_DW = range(9)
READ, WRITE, LEFT, BACK = range(4)
LOADS, SPILLS, FINISHED = range(3)
"""Bytes that an operation moves: loads before it, spills to make room, finished results after it."""
HELD, MOVED, UNFINISHED, HELD_AFTER, MOVED_AFTER = range(5)
"""Bytes of a tile: resident, moved, moved unfinished; the last two of a tile between the layers that has become an operand."""
LRU, FARTHEST = range(2)
NEVER = 1 << 60


@njit(cache=True)
def _upper(rows: Ints, at: int, m: int, k: int, counts: Ints, starts: Ints, masked: bool) -> int:
    """dX and dW of the upper layer on one tile (m,k), for every n; the sum of dX ends here."""
    n_tiles, k_tiles = counts[1], counts[2]
    edge = 4 * (m == counts[0] - 1) + (k == k_tiles - 1)
    for n in range(n_tiles):
        dy, x = starts[UPPER_DY] + m * n_tiles + n, starts[UPPER_X] + m * k_tiles + k
        rows[at, 0], rows[at, 1], rows[at, 2] = dy, starts[UPPER_W] + k * n_tiles + n, starts[BETWEEN] + m * k_tiles + k
        if masked and n == n_tiles - 1:
            rows[at, 3] = x
        rows[at + 1, 0], rows[at + 1, 1], rows[at + 1, 2] = x, dy, starts[UPPER_DW] + k * n_tiles + n
        rows[at, 4] = edge + 2 * (n == n_tiles - 1)
        rows[at + 1, 4] = rows[at, 4] + 8
        at += 2
    return at


@njit(cache=True)
def _lower(rows: Ints, at: int, m: int, k: int, j: int, counts: Ints, starts: Ints, with_dx: bool) -> int:
    """dX and dW of the lower layer on one tile of each."""
    k_tiles, j_tiles = counts[2], counts[3]
    dy, edge = starts[BETWEEN] + m * k_tiles + k, 4 * (m == counts[0] - 1) + 2 * (k == k_tiles - 1) + (j == j_tiles - 1)
    if with_dx:
        rows[at, 0], rows[at, 1], rows[at, 2] = dy, starts[LOWER_W] + j * k_tiles + k, starts[LOWER_DX] + m * j_tiles + j
        rows[at, 4] = edge + 16
        at += 1
    rows[at, 0], rows[at, 1], rows[at, 2] = starts[LOWER_X] + m * j_tiles + j, dy, starts[LOWER_DW] + j * k_tiles + k
    rows[at, 4] = edge + 24
    return at + 1


@njit(cache=True)
def stream(counts: Ints, starts: Ints, masked: bool, with_dx: bool, at_once: bool) -> Ints:
    """All operations in order. `counts` are tiles along m, n, k, j; `at_once`: a tile goes down as soon as it is there."""
    m_tiles, n_tiles, k_tiles, j_tiles = counts[0], counts[1], counts[2], counts[3]
    products = 2 if with_dx else 1
    each = k_tiles * (2 * n_tiles + products * j_tiles)
    rows = np.full((m_tiles * each, 5), -1, dtype=np.int64)
    for m in range(m_tiles):
        at = m * each
        for k in range(k_tiles):
            at = _upper(rows, at, m, k, counts, starts, masked)
            if at_once:
                for j in range(j_tiles):
                    at = _lower(rows, at, m, k, j, counts, starts, with_dx)
        if not at_once:
            for j in range(j_tiles):
                for k in range(k_tiles):
                    at = _lower(rows, at, m, k, j, counts, starts, with_dx)
    return rows


@njit(cache=True)
def next_uses(rows: Ints, tiles: int) -> Ints:
    """For each touch, the number of the next touch of the same tile."""
    uses, ahead = np.full((len(rows), 4), NEVER), np.full(tiles, NEVER)
    for at in range(len(rows) - 1, -1, -1):
        for which in range(4):
            tile = rows[at, which]
            if tile >= 0:
                uses[at, which] = ahead[tile]
                ahead[tile] = 4 * at + which
    return uses


@njit(cache=True)
def _oldest(line: Ints, front: int, resident: Flags, key: Ints) -> int:
    """The position in the list of touches of the least recently used tile."""
    while not resident[line[front]] or key[line[front]] != front:
        front += 1
    return front


@njit(cache=True)
def _farthest(heap: list[int], rows: Ints, row: Ints, resident: Flags, key: Ints) -> int:
    """The tile whose next touch is farthest ahead, of those that the operation `row` does not touch.

    The heap has the negative number of a next touch, or of NEVER plus the tile; numbers that are no longer a tile's are passed.
    """
    skipped, victim = [0 for _ in range(0)], -1
    while victim < 0:
        number = -heapq.heappop(heap)
        tile = number - NEVER if number >= NEVER else rows[number // 4, number % 4]
        if not resident[tile] or key[tile] != number:
            continue
        if tile == row[0] or tile == row[1] or tile == row[2] or tile == row[3]:
            skipped.append(-number)
        else:
            victim = tile
    for number in skipped:
        heapq.heappush(heap, number)
    return victim


@njit(cache=True)
def run(
    rows: Ints, uses: Ints, sizes: Real, tensor: Ints, updates: Ints, settings: Ints, limits: Real, compute: Ints
) -> tuple[Real, Ints]:
    """Bytes by tensor and kind of one chain; cycles of one and of two in sequence, and those of the array alone.

    Kinds are operands read, results written (of the tensor between: what its epilogue moves), sums and tiles between the layers
    out, and back. `updates` are the operations that add to each tile; `settings` are how often a tile between the layers is read
    after them, then to be dropped, policy, latency, passes; `limits` the room and the DRAM's bytes a cycle. The DRAM works as in
    `scratchpad.run`: beside an operation, for the next one, and on what this one pushed out and the last one finished.
    """
    reads, policy, latency, passes = settings[0], settings[1], settings[2], settings[3]
    tiles = len(sizes)
    moved, key, cycles, step = np.zeros((9, 4)), np.zeros(tiles, dtype=np.int64), np.zeros(3, dtype=np.int64), np.zeros(3)
    line, clock, busy, stores, before = np.zeros(4 * len(rows) + 1, dtype=np.int64), 0, 0, 0.0, 0.0
    for repetition in range(passes):
        moved[:] = 0.0
        resident, changed, spilled = np.zeros(tiles, np.bool_), np.zeros(tiles, np.bool_), np.zeros(tiles, np.bool_)
        added, read = np.zeros(tiles, dtype=np.int64), np.zeros(tiles, dtype=np.int64)
        held, leaving, heap = sizes[:, HELD].copy(), sizes[:, UNFINISHED].copy(), [0 for _ in range(0)]
        used, front, touches = 0.0, 0, 0
        for at in range(len(rows)):
            row = rows[at]
            step[:] = 0.0
            for missing in (False, True):
                for which in range(4):
                    tile = row[which]
                    if tile < 0 or resident[tile] == missing:
                        continue
                    if missing:
                        while used + held[tile] > limits[0]:
                            if policy == LRU:
                                front = _oldest(line, front, resident, key)
                                victim = line[front]
                            else:
                                victim = _farthest(heap, rows, row, resident, key)
                            if changed[victim]:
                                moved[tensor[victim], LEFT] += leaving[victim]
                                step[SPILLS] += leaving[victim]
                                changed[victim], spilled[victim] = False, True
                            resident[victim] = False
                            used -= held[victim]
                        if updates[tile] == 0:
                            moved[tensor[tile], READ] += sizes[tile, MOVED]
                            step[LOADS] += sizes[tile, MOVED]
                        elif spilled[tile]:
                            moved[tensor[tile], BACK] += leaving[tile]
                            step[LOADS] += leaving[tile]
                        resident[tile] = True
                        used += held[tile]
                    if policy == LRU:
                        line[touches], key[tile] = tile, touches
                        touches += 1
                    else:
                        key[tile] = uses[at, which] + (tile if uses[at, which] == NEVER else 0)
                        heapq.heappush(heap, -int(key[tile]))
            added[row[2]] += 1
            changed[row[2]] = True
            for which in range(3):
                tile = row[which]
                if updates[tile] == 0:
                    continue
                between, ends = tensor[tile] == BETWEEN, which == 2 and added[tile] == updates[tile]
                read[tile] += 1 if which < 2 else 0
                if ends:
                    moved[tensor[tile], WRITE] += sizes[tile, MOVED]
                    step[FINISHED] += sizes[tile, MOVED]
                if ends and between:
                    used += sizes[tile, HELD_AFTER] - held[tile]
                    held[tile], leaving[tile] = sizes[tile, HELD_AFTER], sizes[tile, MOVED_AFTER]
                if ends if not between else read[tile] == reads:
                    resident[tile] = False
                    used -= held[tile]
            clock += max(busy, transfer(step[LOADS] + stores, limits[1], latency))
            busy, stores, before = compute[row[4]], step[SPILLS] + before, step[FINISHED]
            cycles[2] += busy
        cycles[repetition] = clock + max(busy, transfer(stores, limits[1], latency)) + transfer(before, limits[1], latency)
    cycles[2] //= passes
    return moved, cycles
