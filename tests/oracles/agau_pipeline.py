"""The AGAU cycle by cycle, in plain Python: registers that hold values. The twin of `Agau.cycles`, `Agau.reduce` and `Agau.events`.

In one cycle the ports bring words of the next beat into the input registers, every register of the tree takes over what the stage
before it has, and a level's adders work as a beat enters their first register. What leaves the last adder is a sum, or a partial
sum: that goes to the buffer, and straight to leaf 0 where the input registers wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainyard.hardware.agau.unit import Agau, Words, scale

Lanes = tuple[Any, ...]  # one SIMD word of numpy scalars


@dataclass(slots=True)
class Beat:
    """One SIMD word of each contribution of a round, and what its adders have made of them."""

    start: int  # first element
    words: list[Lanes]
    first: bool
    last: bool


@dataclass(slots=True)
class Pipeline:
    """The registers of one reduction; `step` is one cycle."""

    agau: Agau
    rows: Words
    average: bool = False
    cycle: int = 0
    result: dict[int, Lanes] = field(default_factory=dict)  # by first element
    counts: Counter[str] = field(default_factory=Counter)
    _order: Iterator[Beat] = field(init=False)
    _loading: Beat | None = None
    _loaded: int = 0
    _waiting: Beat | None = None  # in the input registers, complete
    _tree: list[Beat | None] = field(init=False)
    _multiplier: list[Beat | None] = field(init=False)
    _buffer: dict[int, Lanes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._order = self._beats()
        self._loading = next(self._order)
        self._tree = [None] * self.agau.tree_cycles
        self._multiplier = [None] * (self.agau.multiplier_cycles if self.average else 0)

    @property
    def done(self) -> bool:
        return bool(len(self.result) == -(-self.rows.shape[1] // self.agau.lanes))

    @property
    def sums(self) -> Words:
        return np.array([value for start in sorted(self.result) for value in self.result[start]], self.rows.dtype)

    def step(self) -> None:
        self.cycle += 1
        if self.average:
            self._multiply()
        self._move()
        self._load()
        beat = self._multiplier[-1] if self.average else self._tree[-1]
        if beat is not None and beat.last:
            self.result[beat.start] = beat.words[0]

    def _beats(self) -> Iterator[Beat]:
        """In the order of the ports: pass by pass, round by round."""
        agau, (contributions, elements), begin = self.agau, self.rows.shape, 0
        shares = agau.shares(contributions)
        while begin < elements:
            end = min(elements, begin + agau.buffer_bytes // 4) if len(shares) > 1 else elements
            row = 0
            for number, share in enumerate(shares):
                for start in range(begin, end, agau.lanes):
                    stop = min(end, start + agau.lanes)
                    words = [tuple(line[start:stop]) for line in self.rows[row : row + share]]
                    yield Beat(start, words, number == 0, number == len(shares) - 1)
                row += share
            begin = end

    def _move(self) -> None:
        """The tree moves on by one register; a partial sum leaves it for the buffer."""
        agau = self.agau
        for at in reversed(range(agau.tree_cycles)):
            beat = self._tree[at - 1] if at else self._waiting
            if beat is not None and at % agau.adder_cycles == 0:
                beat.words = self._level(beat.words)
            if beat is not None:
                self.counts["agau_register"] += sum(map(len, beat.words))
            self._tree[at] = beat
        self._waiting = None
        beat = self._tree[-1]
        if beat is not None and not beat.last:
            self._buffer[beat.start] = beat.words[0]
            self.counts["agau_buffer_byte"] += 4 * len(beat.words[0])

    def _level(self, words: Sequence[Lanes]) -> list[Lanes]:
        with np.errstate(over="ignore"):  # 32-bit adders wrap around
            pairs = [tuple(a + b for a, b in zip(*words[at : at + 2], strict=True)) for at in range(0, len(words) - 1, 2)]
        self.counts["agau_add"] += sum(map(len, pairs))
        return pairs + list(words[2 * len(pairs) :])

    def _multiply(self) -> None:
        """The multiplier moves on by one register, and takes in what the tree's last register holds."""
        beat = self._tree[-1]
        if beat is not None and beat.last:
            mean = scale(np.array(beat.words[0], self.rows.dtype), len(self.rows))
            beat = Beat(beat.start, [tuple(mean)], first=False, last=True)
            self.counts["agau_multiply"] += len(mean)
        else:
            beat = None
        self._multiplier = [beat, *self._multiplier[:-1]]
        self.counts["agau_register"] += sum(len(beat.words[0]) for beat in self._multiplier if beat is not None)

    def _load(self) -> None:
        """Words of the next beat come in over the ports; with the last, and the partial sum, the input registers are complete."""
        beat = self._loading
        if beat is None:
            return
        self._loaded = min(len(beat.words), self._loaded + (self.agau.ports or self.agau.inputs))
        if self._loaded < len(beat.words) or not (beat.first or beat.start in self._buffer):
            return
        if not beat.first:
            beat.words.insert(0, self._buffer.pop(beat.start))
            self.counts["agau_buffer_byte"] += 4 * len(beat.words[0])
        self.counts["agau_register"] += sum(map(len, beat.words))
        self._waiting, self._loading, self._loaded = beat, next(self._order, None), 0
