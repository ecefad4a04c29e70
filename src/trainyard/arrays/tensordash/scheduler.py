"""The hardware scheduler of TensorDash: which pairs the lanes multiply in each cycle, and how far each row of a tile moves on.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-A, Fig. 5 to 7.

A staging buffer holds the next `depth` steps of a stream. Each cycle, level by level, every lane takes the first of its options
that is still effectual and removes it (MS, the select of its multiplexers). AS is how many leading steps of the buffer are then
empty; they are drained and the buffer is refilled. The current step is every lane's first option, so AS is at least 1. Nothing
crosses the end of a stream: steps past it are empty. Rows of a tile wait for each other (`sync`); the paper's one sentence on it
allows three readings:

- `lockstep`: each cycle all rows advance by the smallest AS of them;
- `output`: each row goes by itself, the tile is done with its slowest;
- `block`: buffers are refilled when all rows have drained all `depth` steps; until then each row moves on inside its own.

`banks`: at most that many steps arrive in a cycle (default: `depth`, which never stalls); lanes see the steps that have arrived.
Before the first cycle `depth` steps are there. Under `output` each row has its own banks; under `block` the first `banks` steps of
the next block arrive for the cycle after the last row drained.

The plain-Python definition comes first (`select`, `advance`, `tile_cycles`); `Scheduler.cycles` runs compiled loops that tests
compare with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.patterns import Levels, Options
from trainyard.checks import require_choice, require_positive
from trainyard.errors import BadInput

if TYPE_CHECKING:
    from trainyard.kernels.arrays.promotion import Table

Sync = Literal["lockstep", "output", "block"]
SYNCS: tuple[str, ...] = get_args(Sync)
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Zeros = list[list[bool]]
"""Z of a staging buffer, [step][lane]: true where a pair has a zero, or was multiplied already."""
Selects = list[int | None]
"""MS of each lane: the number of the option it takes, or none."""


def select(z: Zeros, options: Options, levels: Levels) -> Selects:
    """One cycle's MS of one row; what is taken is marked in `z` (Fig. 6).

    >>> z = [[False, True, True, True], [False, False, True, True]]
    >>> select(z, patterns.TWO_DEEP, patterns.levels(patterns.TWO_DEEP, lanes=4))  # lanes 2 and 3: nothing, and a neighbour's
    [0, 1, None, 3]
    >>> z
    [[True, True, True, True], [True, True, True, True]]
    """
    lanes = len(z[0])
    ms: Selects = [None] * lanes
    for level in levels:
        current = [list(step) for step in z]  # lanes of a level decide at once
        for lane in level:
            for number, (step, offset) in enumerate(options):
                if step < len(z) and not current[step][(lane + offset) % lanes]:
                    ms[lane] = number
                    z[step][(lane + offset) % lanes] = True
                    break
    return ms


def advance(z: Zeros) -> int:
    """AS: the leading steps of a staging buffer with nothing left to multiply.

    >>> advance([[True, True], [True, False], [True, True]])
    1
    """
    return next((step for step, zeros in enumerate(z) if not all(zeros)), len(z))


class Move(NamedTuple):
    """What a row does in one cycle: the first step of its window, MS of its lanes, and AS (0: it waits)."""

    position: int
    ms: Selects
    advance: int


def tile_cycles(rows: list[Zeros], scheduler: Scheduler, sync: str, banks: int) -> Iterator[list[Move]]:
    """Every cycle of a tile: what each of its rows does. `rows` are their Z, [step][lane], and are modified."""
    steps, depth = len(rows[0]), scheduler.depth
    streams = [row + [[True] * scheduler.lanes for _ in range(depth)] for row in rows]

    def cycle(row: int, position: int, fetched: int) -> Move:
        buffer = streams[row][position : min(position + depth, fetched)]
        ms = select(buffer, scheduler.options, scheduler.levels)
        return Move(position, ms, advance(buffer))

    if sync == "output":
        alone = [list(tile_cycles([row], scheduler, "lockstep", banks)) for row in rows]
        waits = [Move(steps, [None] * scheduler.lanes, 0)]
        for number in range(max(len(moves) for moves in alone)):
            yield [(moves[number] if number < len(moves) else waits)[0] for moves in alone]
    elif sync == "lockstep":
        position, fetched = 0, depth
        while position < steps:
            moves = [cycle(row, position, fetched) for row in range(len(rows))]
            yield moves
            position += min(move.advance for move in moves)
            fetched = min(position + depth, fetched + banks)
    else:
        for first in range(0, steps, depth):
            last, fetched = min(first + depth, steps), first + (depth if first == 0 else min(banks, depth))
            positions = [first] * len(rows)
            while min(positions) < last:
                moves = [
                    cycle(row, position, fetched) if position < last else Move(position, [None] * scheduler.lanes, 0)
                    for row, position in enumerate(positions)
                ]
                yield moves
                positions = [move.position + move.advance for move in moves]
                fetched = min(first + depth, fetched + banks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A tile, cycle by cycle: `position` (first step of a row's window), `advance` (AS) [cycles, rows], `select` (MS) [.., lanes].

    MS is the number of the option that a lane took, -1 where it had nothing to multiply; AS is 0 where a row waits.
    """

    position: Integers
    advance: Integers
    select: Integers

    @property
    def cycles(self) -> int:
        return len(self.position)

    @property
    def issued(self) -> int:
        """Pairs multiplied."""
        return int((self.select >= 0).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A promotion pattern and the order in which lanes choose. No options: the table's; no levels: lanes 0, 1, 2, .. one by one.

    >>> Scheduler(lanes=16, depth=3, levels=patterns.levels(patterns.THREE_DEEP_WIDE, 16)).plain(np.ones((4, 6, 16)))
    6
    >>> Scheduler().cycles(pack(np.zeros((8, 10, 4))), steps=10, rows=4)
    array([3, 3])
    """

    lanes: int = 4
    depth: int = 4
    options: Options = ()
    levels: Levels = ()

    def __post_init__(self) -> None:
        require_positive("Scheduler", lanes=self.lanes, depth=self.depth)
        options = patterns.checked(self.options or patterns.default_options(self.lanes, self.depth), self.lanes, self.depth)
        levels = self.levels or tuple((lane,) for lane in range(self.lanes))
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "levels", patterns.require_legal(levels, options, self.lanes))

    def cycles(self, words: Words, steps: int, rows: int, sync: str = "lockstep", banks: int | None = None) -> Integers:
        """Cycles of each group of `rows` packed streams (`pack`) of `steps` steps; rows missing at the end are empty."""
        banks = self._banks(sync, banks)
        words = _streams(words, steps, self.lanes, rows)
        full = len(words) // rows
        cycles = np.zeros(-(-len(words) // rows), dtype=np.int64)
        if not len(cycles) or not steps:
            return cycles
        if sync == "output":
            alone = np.zeros(len(words), dtype=np.int64)
            self._count(words, steps, "lockstep", banks, alone)
            return np.maximum.reduceat(alone, np.arange(0, len(words), rows))
        if full:
            self._count(words[: full * rows], steps, sync, banks, cycles[:full])
        if full < len(cycles):
            last = np.zeros((rows, words.shape[1]), dtype=np.uint64)
            last[: len(words) - full * rows] = words[full * rows :]
            self._count(last, steps, sync, banks, cycles[full:])
        return cycles

    def plain(self, nonzero: npt.ArrayLike, sync: str = "lockstep", banks: int | None = None) -> int:
        """Cycles of one tile by the plain definition; `nonzero` is [rows, steps, lanes], true where a pair is effectual."""
        banks = self._banks(sync, banks)
        zeros = (~_bits(nonzero, self.lanes)).tolist()
        return sum(1 for _ in tile_cycles(zeros, self, sync, banks))

    def trace(self, nonzero: npt.ArrayLike, sync: str = "lockstep", banks: int | None = None) -> Trace:
        """Every cycle of one tile: MS and AS of its rows."""
        from trainyard.kernels.arrays.promotion_words import walk

        banks = self._banks(sync, banks)
        bits = _bits(nonzero, self.lanes)
        rows, steps, _ = bits.shape
        todo = np.zeros((rows, steps + self.depth, self.lanes), dtype=np.bool_)
        todo[:, :steps] = bits
        recorded = _record(steps, rows, self.lanes)
        cycles = 0
        for part in [slice(row, row + 1) for row in range(rows)] if sync == "output" else [slice(rows)]:
            part_record = _record(steps, len(todo[part]), self.lanes)
            part_cycles = walk(todo[part], steps, self.depth, banks, sync == "block", *self._order_and_options(), *part_record)
            for target, source in zip(recorded, part_record, strict=True):
                target[:part_cycles, part] = source[:part_cycles]
            cycles = max(cycles, part_cycles)
        position, advance, select = (target[:cycles] for target in recorded)
        return Trace(position=position, advance=advance, select=select)

    def _banks(self, sync: str, banks: int | None) -> int:
        require_choice("Scheduler", sync=(sync, SYNCS))
        if banks is None:
            return self.depth
        require_positive("Scheduler", banks=banks)
        return min(banks, self.depth)

    def _order_and_options(self) -> tuple[Integers, Integers]:
        order = np.array([lane for level in self.levels for lane in level], dtype=np.int64)
        return order, np.array(self.options, dtype=np.int64)

    def _count(self, words: Words, steps: int, sync: str, banks: int, cycles: Integers) -> None:
        """Runs the compiled loop that suits the size: a table of states, words of lanes, or lane by lane."""
        from trainyard.kernels.arrays import promotion, promotion_words

        bits, rows = self.lanes * self.depth, len(words) // len(cycles)
        many = len(words) * steps * self.lanes >> bits  # a large table must pay for its construction
        if bits <= promotion.SMALL_STATE_BITS or (bits <= promotion.MOST_STATE_BITS and many):
            self._by_table(words, steps, sync, banks, cycles)
        elif promotion_words.fit(1 if sync == "block" else rows, self.lanes):
            shape = (words, steps, self.lanes, self.depth, banks, *_moves(self))
            if sync == "block":
                promotion_words.blocks(*shape, cycles)
            elif rows == 1:
                promotion_words.independent(*shape, steps, cycles.reshape(-1, 1))
            else:
                promotion_words.lockstep(*shape, cycles)
        else:
            promotion_words.walk_all(
                words, steps, self.lanes, self.depth, banks, sync == "block", *self._order_and_options(), cycles
            )

    def _by_table(self, words: Words, steps: int, sync: str, banks: int, cycles: Integers) -> None:
        from trainyard.kernels.arrays import promotion

        table, drain = _tables(self)
        shape = (words, steps, self.lanes, self.depth)
        stalls = banks < self.depth
        fast = {1: promotion.independent, 2: promotion.lockstep_two, 4: promotion.lockstep_four}
        if sync == "block":
            promotion.blocks_banked(*shape, banks, table, cycles) if stalls else promotion.blocks(*shape, drain, cycles)
        elif not stalls and (count := fast.get(len(words) // len(cycles))):
            count(*shape, table, cycles)
        else:
            promotion.lockstep(*shape, banks, table, cycles)


def _record(steps: int, rows: int, lanes: int) -> tuple[Integers, Integers, Integers]:
    """Arrays for a trace (position, AS, MS) in which every row waits at the end."""
    waiting = np.full((steps, rows), steps, dtype=np.int64)
    return waiting, np.zeros((steps, rows), dtype=np.int64), np.full((steps, rows, lanes), -1, dtype=np.int64)


@lru_cache(maxsize=16)
def _tables(scheduler: Scheduler) -> tuple[Table, npt.NDArray[np.uint8]]:
    """The state that a cycle leaves of each state, and the cycles to drain each; at most 5 MB for a scheduler."""
    from trainyard.kernels.arrays import promotion

    lanes, depth = scheduler.lanes, scheduler.depth
    order = [lane for level in scheduler.levels for lane in level]
    choices = [[1 << (step * lanes + (lane + offset) % lanes) for step, offset in scheduler.options] for lane in order]
    size = 1 << (lanes * depth)
    table: Table = np.empty(size, np.uint16) if lanes * (depth - 1) <= 16 else np.empty(size, np.uint32)
    promotion.fill_table(np.array(choices, dtype=np.uint64), lanes, table)
    drain = np.empty(size, dtype=np.uint8)
    promotion.fill_drain(table, lanes, drain)
    return table, drain


@lru_cache(maxsize=64)
def _moves(scheduler: Scheduler) -> tuple[Integers, bool]:
    from trainyard.kernels.arrays.promotion_words import moves

    return moves(scheduler.options, scheduler.levels, scheduler.lanes)


def width(steps: int, lanes: int) -> int:
    """Words of a packed stream: its bits, and a spare word of zeros."""
    return (steps * lanes + 63) // 64 + 1


def pack(nonzero: npt.ArrayLike) -> Words:
    """Streams [rows, steps, lanes] as words [rows, width]: step t, lane l is bit t * lanes + l, little-endian.

    >>> pack([[[1, 0], [0, 1]]])
    array([[9, 0]], dtype=uint64)
    """
    bits = _bits(nonzero)
    rows, steps, lanes = bits.shape
    packed = np.packbits(bits.reshape(rows, steps * lanes), axis=1, bitorder="little")
    words = np.zeros((rows, width(steps, lanes)), dtype="<u8")
    words.view(np.uint8)[:, : packed.shape[1]] = packed
    return words.astype(np.uint64, copy=False)


def _bits(nonzero: npt.ArrayLike, lanes: int | None = None) -> Bits:
    bits = np.asarray(nonzero)
    bits = bits if bits.dtype == np.bool_ else bits != 0
    if bits.ndim != 3 or bits.shape[0] < 1 or (lanes is not None and bits.shape[2] != lanes):
        wanted = "lanes" if lanes is None else lanes
        raise BadInput(f"streams of shape {bits.shape}: give [rows, steps, {wanted}], true where a pair is to be multiplied")
    return bits


def _streams(words: Words, steps: int, lanes: int, rows: int) -> Words:
    require_positive("Scheduler.cycles", rows=rows)
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise BadInput(f"Scheduler.cycles: steps must be a whole number of at least 0, got {steps!r}")
    if not isinstance(words, np.ndarray) or words.ndim != 2 or words.dtype != np.uint64:
        raise BadInput("Scheduler.cycles: streams are a uint64 array [rows, words] as `pack` makes it")
    if words.shape[1] < width(steps, lanes):
        raise BadInput(
            f"Scheduler.cycles: {steps} steps of {lanes} lanes need {width(steps, lanes)} words a row "
            f"(the last one spare), got {words.shape[1]}"
        )
    return np.ascontiguousarray(words)
