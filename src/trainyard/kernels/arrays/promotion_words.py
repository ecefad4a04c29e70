"""Zero skipping, compiled, for units too wide for a table: lanes of a level and rows of a tile in one word; and any width.

Plain Python: `arrays.tensordash.scheduler`. Up to 64 lanes, a word holds one step of as many rows as fit (four of 16 lanes).
Rows in lockstep stay aligned, so one shift and mask tries an option for all of them, and for all lanes of a level. A schedule is
then a list of such moves, the same for every tile: 32 words of independent tiles go through it together, in vector registers. A
tile that is done gives its slot to the next. Wider units, and all traces, go lane by lane (`walk`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.arrays.promotion import Ints, Word, Words, read

Bits = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int16] | npt.NDArray[np.int64]
WORD_BITS = 64
TOGETHER = 32
"""Words that go through the moves together: longer vector loops were no faster."""


def fit(rows: int, lanes: int) -> bool:
    """Whether a tile's rows fit the words that are processed together."""
    return lanes <= WORD_BITS and -(-rows // (WORD_BITS // lanes)) <= TOGETHER


def moves(options: tuple[tuple[int, int], ...], levels: tuple[tuple[int, ...], ...], lanes: int) -> tuple[Ints, bool]:
    """A pattern as word operations in the order in which they happen, level by level, option by option: (step, shift, lanes).

    A move takes step +step, shifted down by `shift` lanes (up where negative), for `lanes`: a mask over all fields of a word, its
    64 bits as a signed number. Lanes whose option goes around the ring shift the other way: a move of their own. The second result:
    step +0 is read by its own lane only, which takes it before all moves; there are no moves for it then.
    """
    repeat = sum(1 << (field * lanes) for field in range(WORD_BITS // lanes))
    dense_first = all(step > 0 for step, _ in options[1:])
    rows = []
    for level in levels:
        for step, offset in options[1:] if dense_first else options:
            shifts = {lane: (lane + offset) % lanes - lane for lane in level}
            for shift in sorted(set(shifts.values())):
                mask = sum(1 << lane for lane in level if shifts[lane] == shift) * repeat
                rows.append((step, shift, mask - (mask >> 63 << 64)))
    return np.array(rows, dtype=np.int64).reshape(-1, 3), dense_first


@njit(nogil=True, cache=True)
def choose(state: Words, free: Words, moves: Ints, dense_first: bool) -> None:
    """One cycle of all words: every lane takes the first of its options that is left. `state[s]` is step +s; `free` is scratch."""
    free[:] = ~Word(0)
    if dense_first:
        rest = Word(0)
        for step in range(1, len(state)):
            for word in range(TOGETHER):
                rest |= state[step, word]
        for word in range(TOGETHER):
            free[word] = ~state[0, word]
            state[0, word] = Word(0)
        if not rest:
            return
    for move in range(len(moves)):
        step, shift, lanes = moves[move, 0], moves[move, 1], Word(moves[move, 2])
        if shift >= 0:
            down = Word(shift)
            for word in range(TOGETHER):
                taken = (state[step, word] >> down) & lanes & free[word]
                free[word] ^= taken
                state[step, word] ^= taken << down
        else:
            up = Word(-shift)
            for word in range(TOGETHER):
                taken = (state[step, word] << up) & lanes & free[word]
                free[word] ^= taken
                state[step, word] ^= taken >> up


@njit(nogil=True, cache=True)
def step_of(flat: Words, start: int, stride: int, rows: int, step: int, lanes: int) -> Word:
    """One step of `rows` streams that begin at byte `start` and every `stride` bytes after it, packed into a word."""
    bit = Word(step * lanes)
    byte, shift, field, bits_of_step = Word(start) + (bit >> Word(3)), bit & Word(7), Word(0), Word(0)
    mask = ~Word(0) >> Word(64 - lanes)
    for _ in range(rows):
        bits = read(flat, byte) >> shift
        if lanes > 57:  # eight bytes from a bit inside the first one are 57 bits at least
            bits |= (read(flat, byte + Word(1)) >> shift) << Word(8)
        bits_of_step |= (bits & mask) << field
        byte += Word(stride)
        field += Word(lanes)
    return bits_of_step


@njit(nogil=True, cache=True)
def refill(
    state: Words,
    word: int,
    held: int,
    advance: int,
    flat: Words,
    start: int,
    stride: int,
    rows: int,
    position: int,
    new: int,
    lanes: int,
) -> None:
    """Move one word's buffer on by `advance` and bring in steps up to `new`; what has not arrived is empty."""
    for step in range(held):
        state[step, word] = state[step + advance, word]
    for step in range(held, new):
        state[step, word] = step_of(flat, start, stride, rows, position + step, lanes)
    for step in range(max(held, new), len(state)):
        state[step, word] = Word(0)


@njit(nogil=True, cache=True)
def lockstep(words: Words, steps: int, lanes: int, depth: int, banks: int, moves: Ints, dense_first: bool, cycles: Ints) -> None:
    """Tiles of rows that advance together; the rows of a tile fit TOGETHER words. A slot without a tile has group -1."""
    groups, rows, fields = len(cycles), words.shape[0] // len(cycles), WORD_BITS // lanes
    flat, stride = words.reshape(-1), 8 * words.shape[1]
    parts = (rows + fields - 1) // fields
    slots = TOGETHER // parts
    state, free = np.zeros((depth, TOGETHER), np.uint64), np.zeros(TOGETHER, np.uint64)
    group, position = np.full(slots, -1, np.int64), np.full(slots, steps, np.int64)
    held, advanced, count = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    following = active = 0
    while True:
        for slot in range(slots):
            if position[slot] >= steps:
                if group[slot] >= 0:
                    cycles[group[slot]] = count[slot]
                    group[slot] = -1
                    active -= 1
                if following < groups:
                    group[slot], position[slot], held[slot], count[slot] = following, 0, 0, 0
                    following += 1
                    active += 1
            if group[slot] >= 0:
                arrived = min(depth, held[slot] + (banks if count[slot] else depth))
                new = min(arrived, steps - position[slot])
                for part in range(parts):
                    start, inside = (rows * group[slot] + part * fields) * stride, min(fields, rows - part * fields)
                    word = slot * parts + part
                    refill(state, word, held[slot], advanced[slot], flat, start, stride, inside, position[slot], new, lanes)
                held[slot] = arrived
                count[slot] += 1
        if not active:
            return
        choose(state, free, moves, dense_first)
        for slot in range(slots):
            advance, left = 1, Word(0)
            while advance < held[slot]:
                for part in range(parts):
                    left |= state[advance, slot * parts + part]
                if left:
                    break
                advance += 1
            advanced[slot] = advance
            position[slot] += advance
            held[slot] -= advance


@njit(nogil=True, cache=True)
def independent(
    words: Words, steps: int, lanes: int, depth: int, banks: int, moves: Ints, dense_first: bool, length: int, cycles: Counts
) -> None:
    """Rows cut into pieces of `length` steps that advance independently, one in each field. `cycles` is [rows, pieces].

    Before its first cycle the first piece of a row has `depth` steps, a later one what the banks bring.
    """
    fields, pieces, flat, stride = WORD_BITS // lanes, cycles.shape[1], words.reshape(-1), 8 * words.shape[1]
    lane_bits, slots = ~Word(0) >> Word(64 - lanes), TOGETHER * fields
    state, free = np.zeros((depth, TOGETHER), np.uint64), np.zeros(TOGETHER, np.uint64)
    task, position, end = np.full(slots, -1, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    held, advanced, count = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    following = active = 0
    while True:
        for slot in range(slots):
            if position[slot] >= end[slot]:
                if task[slot] >= 0:
                    cycles[task[slot] // pieces, task[slot] % pieces] = count[slot]
                    task[slot] = -1
                    active -= 1
                if following < cycles.size:
                    task[slot], position[slot], held[slot], count[slot] = following, following % pieces * length, 0, 0
                    end[slot] = min(steps, position[slot] + length)
                    following += 1
                    active += 1
            if task[slot] >= 0:
                arrived = min(depth, held[slot] + (banks if count[slot] or task[slot] % pieces else depth))
                word, field = slot // fields, Word(slot % fields * lanes)
                for step in range(depth):
                    bits = Word(0)
                    if step < held[slot]:
                        bits = (state[step + advanced[slot], word] >> field) & lane_bits
                    elif step < arrived and position[slot] + step < end[slot]:
                        bits = step_of(flat, task[slot] // pieces * stride, stride, 1, position[slot] + step, lanes)
                    state[step, word] = (state[step, word] & ~(lane_bits << field)) | (bits << field)
                held[slot] = arrived
                count[slot] += 1
        if not active:
            return
        choose(state, free, moves, dense_first)
        for slot in range(slots):
            mine, advance = lane_bits << Word(slot % fields * lanes), 1
            while advance < held[slot] and not state[advance, slot // fields] & mine:
                advance += 1
            advanced[slot] = advance
            position[slot] += advance
            held[slot] -= advance


@njit(nogil=True, cache=True)
def blocks(words: Words, steps: int, lanes: int, depth: int, banks: int, moves: Ints, dense_first: bool, cycles: Ints) -> None:
    """Tiles whose rows refill together once all have drained their whole buffer."""
    rows = words.shape[0] // len(cycles)
    taken = np.empty((words.shape[0], (steps + depth - 1) // depth), np.int16)
    independent(words, steps, lanes, depth, banks, moves, dense_first, depth, taken)
    for group in range(len(cycles)):
        cycles[group] = 0
        for block in range(taken.shape[1]):
            longest = taken[rows * group, block]
            for row in range(rows * group + 1, rows * (group + 1)):
                longest = max(longest, taken[row, block])
            cycles[group] += longest


@njit(nogil=True, cache=True)
def choose_lane(todo: Bits, row: int, first: int, filled: int, order: Ints, options: Ints, chosen: Ints) -> None:
    """One cycle of one row, lane by lane, from step `first` on; `chosen[lane]` gets the number of the option it takes."""
    lanes = todo.shape[2]
    for turn in range(len(order)):
        lane = order[turn]
        for number in range(len(options)):
            step, other = options[number, 0], (lane + options[number, 1]) % lanes
            if step < filled and todo[row, first + step, other]:
                todo[row, first + step, other] = False
                chosen[lane] = number
                break


@njit(nogil=True, cache=True)
def drained(todo: Bits, row: int, first: int, filled: int) -> int:
    """AS: leading steps with nothing left, of those that have arrived."""
    for step in range(filled):
        for lane in range(todo.shape[2]):
            if todo[row, first + step, lane]:
                return step
    return filled


@njit(nogil=True, cache=True)
def unpacked(words: Words, steps: int, depth: int, lanes: int) -> Bits:
    """Rows as [rows, steps + depth, lanes]: a window past the end is empty."""
    bits = np.zeros((words.shape[0], steps + depth, lanes), np.bool_)
    for row in range(words.shape[0]):
        for step in range(steps):
            for lane in range(lanes):
                bit = step * lanes + lane
                bits[row, step, lane] = (words[row, bit >> 6] >> Word(bit & 63)) & Word(1)
    return bits


@njit(nogil=True, cache=True)
def walk(
    todo: Bits,
    steps: int,
    depth: int,
    banks: int,
    block: bool,
    order: Ints,
    options: Ints,
    first_step: Ints,
    advance: Ints,
    select: Ints,
) -> int:
    """Cycles of one tile, lane by lane, whatever its width; `todo` [rows, steps + depth, lanes] is used up.

    `block` refills when all rows have drained all `depth` steps, else all rows advance by the smallest AS. What every row did goes
    to `first_step` (of its window) and `advance` (AS), both [cycles, rows], and `select` (MS, -1 for none), [.., lanes], as far as
    they have room; `steps` cycles always suffice.
    """
    rows, chosen = todo.shape[0], np.empty(todo.shape[2], np.int64)
    position = np.zeros(rows, np.int64)  # of each row
    first, filled, count = 0, depth, 0  # of the block; the fetch pointer
    while first < steps:
        last, smallest, behind = min(first + depth, steps), depth, False
        for row in range(rows):
            here, drop = position[row], 0
            chosen.fill(-1)
            if not block or here < last:
                arrived = min(here + depth, filled) - here
                choose_lane(todo, row, here, arrived, order, options, chosen)
                drop = drained(todo, row, here, arrived)
                smallest = min(smallest, drop)
            if count < len(first_step):
                first_step[count, row], advance[count, row] = here, drop
                for lane in range(len(chosen)):
                    select[count, row, lane] = chosen[lane]
            if block:
                position[row] = here + drop
                behind |= position[row] < last
        count += 1
        if not block:
            first += smallest
            position.fill(first)
            filled = min(first + depth, filled + banks)
        elif behind:
            filled = min(first + depth, filled + banks)
        else:
            first += depth
            position.fill(first)
            filled = first + min(depth, banks)
    return count


@njit(nogil=True, cache=True)
def walk_all(
    words: Words, steps: int, lanes: int, depth: int, banks: int, block: bool, order: Ints, options: Ints, cycles: Ints
) -> None:
    """Cycles of every tile of packed streams, one unpacked tile at a time."""
    rows, none = words.shape[0] // len(cycles), np.empty((0, 0), np.int64)
    nothing = np.empty((0, 0, 0), np.int64)
    for group in range(len(cycles)):
        todo = unpacked(words[rows * group : rows * (group + 1)], steps, depth, lanes)
        cycles[group] = walk(todo, steps, depth, banks, block, order, options, none, none, nothing)
