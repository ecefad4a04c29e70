"""A stream of tile operations through a scratchpad of limited size, step by step. Plain Python:
`mapping.gradient_order.execution`.

Tensors are numbered dY, W, X, dX, dW = 0 to 4. A tile has one number over all of them; each result may have several copies, one
for each core. A tile operation is a row (gradient, m, n, k, core) with gradient 0 for dX and 1 for dW. Traffic is counted in bytes
by tensor and by kind: operands read, results written, unfinished sums spilled, and those read back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.mapping.tiles import transfer

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SEQUENTIAL, INTERLEAVED, DX_MAJOR, DW_MAJOR, NO_SECOND_DY, ALONE = range(6)
"""Orders as numbers; ALONE is the stream of dX without dW."""
DX_MAJOR_MNK, DW_MAJOR_NMK = 6, 7
"""dXmajor and dWmajor with k innermost; the compiled search does not have them."""
LRU, FARTHEST, WINDOW, OPERANDS = range(4)
DY, W, X, DX, DW = range(5)
READ, WRITE, LEFT, BACK = range(4)
LOADS, SPILLS, FINISHED = range(3)
"""Bytes that a stage moves: loads before it, spills to make room while it computes, finished results after it."""
NEVER = 1 << 60
_M, _N, _K = range(3)
NESTS = np.array([
    [(_M, _K, _N), (_M, _K, _N), (_M, _K, _N), (_N, _K, _M), (_M, _K, _N), (_M, _K, _N), (_M, _N, _K), (_N, _M, _K)],
    [(_K, _N, _M), (_K, _N, _M), (_M, _K, _N), (_N, _K, _M), (_K, _N, _M), (_K, _N, _M), (_M, _N, _K), (_N, _M, _K)],
])  # fmt: skip
"""The axes of a gradient's loops, outer to inner, by gradient and order."""


@njit(cache=True)
def _nest(ops: Ints, at: int, stride: int, gradient: int, first: Ints, last: Ints, axes: Ints) -> None:
    """Writes a loop nest over `axes`, outer to inner, into every `stride`th row from `at` on."""
    here = np.empty(3, dtype=np.int64)
    for outer in range(first[axes[0]], last[axes[0]]):
        here[axes[0]] = outer
        for middle in range(first[axes[1]], last[axes[1]]):
            here[axes[1]] = middle
            for inner in range(first[axes[2]], last[axes[2]]):
                here[axes[2]] = inner
                ops[at, 0] = gradient
                ops[at, 1], ops[at, 2], ops[at, 3] = here[0], here[1], here[2]
                at += stride


@njit(cache=True)
def stream(counts: Ints, order: int, axis: int, bounds: Ints) -> tuple[Ints, Ints]:
    """Tile operations part after part (axis m, n, k = 0, 1, 2; -1: one part), and where each part begins."""
    gradients = 1 if order == ALONE else 2
    stride = 1 if order in (ALONE, SEQUENTIAL, NO_SECOND_DY) else 2
    ops = np.zeros((gradients * counts[0] * counts[1] * counts[2], 5), dtype=np.int64)
    begins = np.zeros(len(bounds) + 1, dtype=np.int64)
    for part in range(len(bounds)):
        first, last = np.zeros(3, dtype=np.int64), counts.copy()
        if axis >= 0:
            first[axis], last[axis] = bounds[part, 0], bounds[part, 1]
        steps = (last[0] - first[0]) * (last[1] - first[1]) * (last[2] - first[2])
        for gradient in range(gradients):  # dW one row behind dX, or after all of it
            behind = gradient * (steps if stride == 1 else 1)
            _nest(ops, begins[part] + behind, stride, gradient, first, last, NESTS[gradient, order])
        begins[part + 1] = begins[part] + gradients * steps
    return ops, begins


@njit(cache=True)
def in_step(ops: Ints, begins: Ints) -> tuple[Ints, Ints]:
    """The parts' streams in lockstep, part p on core p: operations in order, and where each step begins."""
    parts = len(begins) - 1
    longest = 0
    for part in range(parts):
        longest = max(longest, begins[part + 1] - begins[part])
    interleaved, steps = np.empty_like(ops), np.zeros(longest + 1, dtype=np.int64)
    at = 0
    for step in range(longest):
        for part in range(parts):
            if begins[part] + step < begins[part + 1]:
                for column in range(ops.shape[1]):
                    interleaved[at, column] = ops[begins[part] + step, column]
                interleaved[at, 4] = part
                at += 1
        steps[step + 1] = at
    return interleaved, steps


@njit(cache=True)
def tiles_of(op: Ints, counts: Ints, copies: Ints, starts: Ints, touched: Ints) -> None:
    """The three tiles that an operation touches, in the order in which it does: dY, W, dX or X, dY, dW."""
    gradient, m, n, k, core = op[0], op[1], op[2], op[3], op[4]
    dy = starts[DY] + m * counts[1] + n
    if gradient == 0:
        touched[0], touched[1] = dy, starts[W] + k * counts[1] + n
        copy = core if copies[0] > 1 else 0
        touched[2] = starts[DX] + (m * counts[2] + k) * copies[0] + copy
    else:
        touched[0], touched[1] = starts[X] + m * counts[2] + k, dy
        copy = core if copies[1] > 1 else 0
        touched[2] = starts[DW] + (k * counts[1] + n) * copies[1] + copy


@njit(cache=True)
def next_uses(ops: Ints, counts: Ints, copies: Ints, starts: Ints) -> Ints:
    """For each touch of each operation, the number of the next touch of the same tile."""
    uses = np.empty((len(ops), 3), dtype=np.int64)
    ahead = np.full(starts[5], NEVER, dtype=np.int64)
    touched = np.empty(3, dtype=np.int64)
    for at in range(len(ops) - 1, -1, -1):
        tiles_of(ops[at], counts, copies, starts, touched)
        for which in range(2, -1, -1):
            tile = touched[which]
            uses[at, which] = ahead[tile]
            if ahead[tile] == NEVER and tile < starts[DX]:
                uses[at, which] = NEVER + 1  # an operand without further use is evicted before a waiting partial sum
            ahead[tile] = 3 * at + which
    return uses


@njit(cache=True)
def _unlink(links: Ints, tile: int) -> None:
    before, after = links[tile, 0], links[tile, 1]
    links[before, 1], links[after, 0] = after, before
    links[tile, 0] = -1


@njit(cache=True)
def _newest(links: Ints, tile: int) -> None:
    """Puts a tile at the recent end of the list; its ends meet in the last row."""
    end = len(links) - 1
    last = links[end, 0]
    links[last, 1], links[tile, 0], links[tile, 1], links[end, 0] = tile, last, end, tile


@njit(cache=True)
def _farthest(links: Ints, ahead: Ints, stamp: Ints, now: int) -> int:
    """The resident tile, not needed now, whose next use is farthest ahead."""
    end = len(links) - 1
    best, tile = -1, links[end, 1]
    while tile != end:
        if stamp[tile] != now and (best < 0 or ahead[tile] > ahead[best]):
            best = tile
        tile = links[tile, 1]
    return best


@njit(cache=True)
def _evict(
    policy: int, links: Ints, ahead: Ints, stamp: Ints, now: int, room: Real, sizes: Real, spilled: Flags, moved: Real,
    tensor: Ints, step: Real,
) -> None:  # fmt: skip
    """Evicts one tile; an unfinished sum is written."""
    tile = links[len(links) - 1, 1] if policy == LRU else _farthest(links, ahead, stamp, now)
    _unlink(links, tile)
    room[0] += sizes[tile, 0]
    if tensor[tile] >= DX:
        spilled[tile] = True
        moved[tensor[tile], LEFT] += sizes[tile, 2]
        step[SPILLS] += sizes[tile, 2]


@njit(cache=True)
def _bring(
    tile: int, policy: int, links: Ints, ahead: Ints, stamp: Ints, now: int, room: Real, sizes: Real, spilled: Flags,
    moved: Real, tensor: Ints, step: Real, free: bool,
) -> None:  # fmt: skip
    """Loads a tile that is not resident; a new sum costs nothing."""
    while room[0] < sizes[tile, 0]:
        _evict(policy, links, ahead, stamp, now, room, sizes, spilled, moved, tensor, step)
    room[0] -= sizes[tile, 0]
    _newest(links, tile)
    if tensor[tile] < DX:
        if not free:
            moved[tensor[tile], READ] += sizes[tile, 1]
            step[LOADS] += sizes[tile, 1]
    elif spilled[tile]:
        spilled[tile] = False
        moved[tensor[tile], BACK] += sizes[tile, 2]
        step[LOADS] += sizes[tile, 2]


@njit(cache=True)
def _leave(tile: int, links: Ints, room: Real, sizes: Real) -> None:
    _unlink(links, tile)
    room[0] += sizes[tile, 0]


@njit(cache=True)
def measure(lengths_m: Ints, lengths_n: Ints, lengths_k: Ints, copies: Ints, rates: Real) -> tuple[Ints, Real, Ints]:
    """The first tile of each tensor; for each tile the bytes resident, moved, and moved as an unfinished sum; its tensor.

    `rates` has, for each tensor, bytes an element held, moved, and moved unfinished.
    """
    rows = (lengths_m, lengths_k, lengths_m, lengths_m, lengths_k)
    columns = (lengths_n, lengths_n, lengths_k, lengths_k, lengths_n)
    starts = np.zeros(6, dtype=np.int64)
    for which in range(5):
        copies_of = copies[which - DX] if which >= DX else 1
        starts[which + 1] = starts[which] + len(rows[which]) * len(columns[which]) * copies_of
    sizes, tensor = np.empty((starts[5], 3)), np.empty(starts[5], dtype=np.int64)
    for which in range(5):
        copies_of, at = copies[which - DX] if which >= DX else 1, starts[which]
        for row in rows[which]:
            for column in columns[which]:
                for _ in range(copies_of):
                    tensor[at] = which
                    for kind in range(3):
                        sizes[at, kind] = row * column * rates[which, kind]
                    at += 1
    return starts, sizes, tensor


@njit(cache=True)
def _summed(
    tile: int, first: int, many: int, policy: int, links: Ints, ahead: Ints, stamp: Ints, now: int, room: Real, sizes: Real,
    spilled: Flags, moved: Real, tensor: Ints, step: Real, done: Flags,
) -> None:  # fmt: skip
    """Adds the partial sums of the other cores to this tile, the last one; the traffic counts after the step.

    A window, and a scratchpad that keeps operands alone, add a spilled one as it is read, without room for it.
    """
    after = np.zeros(3)
    stamp[tile] = now
    for other in range(first, first + many):
        if other == tile:
            continue
        done[other] = True
        if policy >= WINDOW:
            _read_back(other, spilled, moved, tensor, sizes, after)
            continue
        if links[other, 0] < 0:
            _bring(other, policy, links, ahead, stamp, now, room, sizes, spilled, moved, tensor, after, False)
        _leave(other, links, room, sizes)
    step[FINISHED] += after[LOADS] + after[SPILLS]


@njit(cache=True)
def _read_back(tile: int, spilled: Flags, moved: Real, tensor: Ints, sizes: Real, step: Real) -> None:
    """Reads a spilled sum while the stage computes that adds to it."""
    if spilled[tile]:
        spilled[tile] = False
        moved[tensor[tile], BACK] += sizes[tile, 2]
        step[SPILLS] += sizes[tile, 2]


@njit(cache=True)
def _spill_after(tile: int, spilled: Flags, moved: Real, tensor: Ints, sizes: Real, step: Real) -> None:
    """Writes an unfinished sum after its stage."""
    spilled[tile] = True
    moved[tensor[tile], LEFT] += sizes[tile, 2]
    step[FINISHED] += sizes[tile, 2]


@njit(cache=True)
def _clear(
    links: Ints, room: Real, sizes: Real, spilled: Flags, done: Flags, moved: Real, tensor: Ints, step: Real, policy: int
) -> None:
    """Empties the scratchpad: a window has ended; or its sums alone: a step of a scratchpad that keeps operands."""
    end = len(links) - 1
    tile = links[end, 1]
    while tile != end:
        after = links[tile, 1]
        if tensor[tile] >= DX or policy != OPERANDS:
            _leave(tile, links, room, sizes)
            if tensor[tile] >= DX and not done[tile]:
                _spill_after(tile, spilled, moved, tensor, sizes, step)
        tile = after


@njit(cache=True)
def _fits(
    ops: Ints, counts: Ints, copies: Ints, starts: Ints, sizes: Real, links: Ints, stamp: Ints, now: int, room: float
) -> bool:
    """Whether the missing tiles of a step fit beside those of the window so far."""
    touched = np.empty(3, dtype=np.int64)
    for at in range(len(ops)):
        tiles_of(ops[at], counts, copies, starts, touched)
        for tile in touched:
            if links[tile, 0] < 0 and stamp[tile] != now:
                stamp[tile] = now
                room -= sizes[tile, 0]
    return room >= 0.0


@njit(cache=True)
def walk(
    ops: Ints, steps: Ints, counts: Ints, copies: Ints, left: Ints, starts: Ints, sizes: Real, tensor: Ints,
    policy: int, free_dy: bool, room_bytes: float, uses: Ints,
) -> tuple[Real, Real, Ints]:  # fmt: skip
    """Bytes by tensor and kind of one product; bytes that each stage loads, spills and finishes; the step each stage begins with.

    A stage is one step, or under WINDOW as many as half of the scratchpad holds. `left` says how many operations a tile of dX and
    one of dW on each core take.
    """
    total, many = starts[5], len(steps) - 1
    moved, transfers, begins = np.zeros((5, 4)), np.zeros((many, 3)), np.full(many + 1, many, dtype=np.int64)
    spilled, done, stamp = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_), np.full(total, -1, dtype=np.int64)
    ahead, remaining = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    room, touched = np.full(1, room_bytes), np.empty(3, dtype=np.int64)
    ended_sums = np.empty(np.max(steps[1:] - steps[:-1]), dtype=np.int64)
    links = np.full((total + 1, 2), -1, dtype=np.int64)
    links[total] = total
    for tile in range(starts[DX], total):
        which = tensor[tile] - DX
        remaining[tile] = left[(tile - starts[DX + which]) % copies[which], which]
    stage = -1
    for number in range(many):
        now = 2 * number
        step_ops = ops[steps[number] : steps[number + 1]]
        if policy != WINDOW or stage < 0:
            stage += 1
            begins[stage] = number
        elif not _fits(step_ops, counts, copies, starts, sizes, links, stamp, now, room[0]):
            _clear(links, room, sizes, spilled, done, moved, tensor, transfers[stage], policy)
            room[0] = room_bytes
            stage += 1
            begins[stage] = number
        step, ended = transfers[stage], 0
        for at in range(steps[number], steps[number + 1]):
            tiles_of(ops[at], counts, copies, starts, touched)
            free = free_dy and ops[at, 0] == 1
            for which in range(3):
                stamp[touched[which]] = now
                if policy == FARTHEST:
                    ahead[touched[which]] = uses[at, which]
                if links[touched[which], 0] >= 0:
                    _unlink(links, touched[which])
                    _newest(links, touched[which])
            for which in range(3):
                tile = touched[which]
                if links[tile, 0] < 0:
                    if policy >= WINDOW and tensor[tile] >= DX:
                        _read_back(tile, spilled, moved, tensor, sizes, step)
                    _bring(tile, policy, links, ahead, stamp, now, room, sizes, spilled, moved, tensor, step, free and which == 1)
            remaining[touched[2]] -= 1
            if remaining[touched[2]] == 0:
                ended_sums[ended] = touched[2]
                ended += 1
        for which in range(ended):
            _finish(
                ended_sums[which], copies, policy, links, ahead, stamp, now + 1, room, sizes, spilled, moved, tensor, step, starts,
                remaining, ended_sums[which + 1 : ended], done,
            )  # fmt: skip
        if policy == OPERANDS:
            _clear(links, room, sizes, spilled, done, moved, tensor, step, policy)
    return moved, transfers[: stage + 1], begins[: stage + 2]


@njit(cache=True)
def stage_cycles(ops: Ints, steps: Ints, begins: Ints, compute: Ints, kinds: Ints) -> Ints:
    """Cycles of the array in each stage; a step takes as long as its longest operation."""
    busy = np.zeros(len(begins) - 1, dtype=np.int64)
    for stage in range(len(busy)):
        for number in range(begins[stage], begins[stage + 1]):
            longest = 0
            for at in range(steps[number], steps[number + 1]):
                op = ops[at]
                longest = max(longest, compute[op[0], kinds[0, op[1]], kinds[1, op[2]], kinds[2, op[3]]])
            busy[stage] += longest
    return busy


@njit(cache=True)
def clock(transfers: Real, busy: Ints, passes: int, latency: int, speed: float) -> Ints:
    """Cycles of one, two, ... products in a row.

    While the array computes a stage, the DRAM loads what the next one needs and writes what this one spilled and the one before
    finished.
    """
    cycles = np.zeros(passes, dtype=np.int64)
    at, working, stores, before = 0, 0, 0.0, 0.0
    for repetition in range(passes):
        for stage in range(len(busy)):
            at += max(working, transfer(transfers[stage, LOADS] + stores, speed, latency))
            working, stores, before = busy[stage], transfers[stage, SPILLS] + before, transfers[stage, FINISHED]
        cycles[repetition] = at + max(working, transfer(stores, speed, latency)) + transfer(before, speed, latency)
    return cycles


@njit(cache=True)
def _finish(
    tile: int, copies: Ints, policy: int, links: Ints, ahead: Ints, stamp: Ints, now: int, room: Real, sizes: Real,
    spilled: Flags, moved: Real, tensor: Ints, step: Real, starts: Ints, remaining: Ints, others: Ints, done: Flags,
) -> None:  # fmt: skip
    """A sum that got its last product is written once and evicted, after those of other cores have been added to it.

    Of several that end in one step (`others` come after this one), the last adds all. In a window it keeps its room to the end.
    """
    which = tensor[tile]
    many = copies[which - DX]
    first = tile - (tile - starts[which]) % many
    for other in others:
        if first <= other < first + many:
            return
    for other in range(first, first + many):
        if remaining[other] > 0:
            return
    if many > 1:
        _summed(tile, first, many, policy, links, ahead, stamp, now, room, sizes, spilled, moved, tensor, step, done)
    done[tile] = True
    if policy != WINDOW:
        _leave(tile, links, room, sizes)
    moved[which, WRITE] += sizes[tile, 1]
    step[FINISHED] += sizes[tile, 1]
