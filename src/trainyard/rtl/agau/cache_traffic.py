"""The parameter cache as a design: operations and directory messages of several caches, in random order, reach one of them.

All other caches and the homes are the simulator's `hardware.agau.coherence`; messages may overtake each other. What the cache under
test receives in each cycle is the stimulus. What it answers is compared with the same functions: `ask`, `evict`, `receive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Literal, cast

import numpy as np

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.agau import coherence
from trainyard.hardware.agau.coherence import HOME, Line, Message, Operation
from trainyard.hardware.agau.parameter_cache import ParameterCache, SharedParameters
from trainyard.rtl.agau.parameter_cache import BITS, MESSAGE, OPERATION, OPERATIONS, RECEIVED, SENT, ParameterCacheControl
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register

CACHES = 3
"""Caches that share the lines of a random run; number 0 is the one under test."""


@dataclass(slots=True)
class Cached:
    """The lines as one cache of the simulator sees them, with its replacement: the least recently used of a set makes room."""

    cache: ParameterCache
    number: int
    lines: dict[int, Line]
    add: Any
    recent: dict[int, None] = field(default_factory=dict)
    pending: bool = False

    def written_back(self) -> int:
        """Lines that wait for their PutAck."""
        return sum(line.copies[self.number].state in ("MI", "II") for line in self.lines.values())

    def ask(self, number: int, operation: Operation) -> list[tuple[int, coherence.Outcome]] | None:
        """What an operation does to its line, and before it to a line that makes room; None: its line is being written back."""
        if self.lines[number].copies[self.number].state in ("MI", "II"):
            return None
        outcomes = []
        in_set = [line for line in self.recent if line % self.cache.sets == number % self.cache.sets]
        if number not in self.recent and len(in_set) == self.cache.ways:
            outcomes.append((in_set[0], coherence.evict(self.lines[in_set[0]], self.number)))
            self.lines[in_set[0]] = outcomes[0][1].line
            del self.recent[in_set[0]]
        outcome = coherence.ask(self.lines[number], self.number, operation, wrap=self.add)
        self.lines[number] = outcome.line
        self.recent.pop(number, None)
        self.recent[number] = None
        self.pending = outcome.performed is None
        return [*outcomes, (number, outcome)]

    def receive(self, number: int, message: Message) -> coherence.Outcome:
        outcome = coherence.receive(self.lines[number], message, wrap=self.add)
        self.lines[number] = outcome.line
        if outcome.line.copies[self.number].state == "I":
            self.recent.pop(number, None)
        self.pending = self.pending and outcome.performed is None
        return outcome


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCacheDesign(Design):
    """The parameter cache of one AGAU."""

    name: ClassVar[str] = "agau-cache"
    word: ClassVar[str] = "the parameter cache of an AGAU, its side of the coherence protocol (DIRECT, Sec. III-A)"

    # fmt: off
    cache_bytes: int = parameter(32 * 1024, "bytes of the cache")
    line_bytes: int  = parameter(64, "bytes of a line")
    ways: int        = parameter(4, "lines of a set")
    number: str      = parameter("fp32", "fp32 or int32")
    line_bits: int   = parameter(26, "bits of a line's number")
    writebacks: int  = parameter(4, "lines that can wait for the acknowledgement of their write-back")
    # fmt: on

    def __post_init__(self) -> None:
        require_positive(self.name, ways=self.ways, writebacks=self.writebacks, line_bits=self.line_bits)
        sets = self.cache.sets
        if sets & (sets - 1) or self.ways & (self.ways - 1) or self.line_bytes & (self.line_bytes - 1):
            raise BadInput(f"{self.name}: {sets} sets of {self.ways} ways and {self.line_bytes} bytes must be powers of two")
        if 1 << self.line_bits <= sets:
            raise BadInput(f"{self.name}: line_bits={self.line_bits} cannot tell lines of {sets} sets apart: give more")

    @property
    def cache(self) -> ParameterCache:
        return ParameterCache(
            cache_bytes=self.cache_bytes,
            line_bytes=self.line_bytes,
            ways=self.ways,
            number=cast(Literal["fp32", "int32"], self.number),
            caches=CACHES,
        )

    def build(self) -> ParameterCacheControl:
        return ParameterCacheControl(self.cache, line_bits=self.line_bits, writebacks=self.writebacks)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        return _Traffic(self, Random(seed)).commands(cycles)

    def add(self, old: Any, value: Any) -> Any:
        """fp32 rounds, int32 wraps around."""
        return SharedParameters(self.cache, [0]).add(old, value)

    def value_of(self, bits: int) -> Any:
        """The number of a bit pattern."""
        return np.uint32(bits).view(np.float32 if self.number == "fp32" else np.int32).item()

    def bits_of(self, value: Any) -> int:
        return int((np.float32(value) if self.number == "fp32" else np.int32(value)).view(np.uint32))

    def words_of(self, bits: int) -> tuple[Any, ...]:
        return tuple(self.value_of(bits >> (place * BITS) & 0xFFFFFFFF) for place in range(self.line_bytes // 4))

    def line_bits_of(self, words: Sequence[Any] | None) -> int:
        """The words of a message side by side; 0 where it has none."""
        return sum(self.bits_of(word) << (place * BITS) for place, word in enumerate(words or ()))

    def operation_of(self, row: Inputs) -> Operation:
        return Operation(OPERATIONS[row["kind"]], row["word"], self.value_of(row["value"]), self.value_of(row["expected"]))

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """By `coherence`, a cycle after each command."""
        one = _Lines(1, self.line_bytes // 4)
        cached = Cached(self.cache, 0, one, self.add)
        table: list[dict[str, int]] = [{"performed": 0, "retry": 0, "send": 0, "put": 0}]
        for row in stimulus:
            table.append({"performed": 0, "retry": 0, "send": 0, "put": 0})
            if row.get("command") == OPERATION:
                outcomes = cached.ask(row["line"], self.operation_of(row))
                table[-1]["retry"] = int(outcomes is None)
                for line, outcome in outcomes or ():
                    self._answer(table[-1], line, outcome)
            elif row.get("command") == MESSAGE:
                words = self.words_of(row["words"])
                outcome = cached.receive(row["line"], Message(RECEIVED[row["kind"]], HOME, 0, words))
                self._answer(table[-1], row["line"], outcome)
        return list(table[:-1])

    def _answer(self, outputs: dict[str, int], line: int, outcome: coherence.Outcome) -> None:
        if outcome.performed is not None:
            outputs |= {"performed": 1, "result": self.bits_of(outcome.performed[2])}
        for message in outcome.messages:
            words = self.line_bits_of(message.value)
            if message.kind == "PutM":
                outputs |= {"put": 1, "put_line": line, "put_words": words}
            else:
                outputs |= {"send": 1, "send_kind": SENT.index(message.kind), "send_flag": int(message.flag)}
                outputs |= {} if message.value is None else {"send_words": words}


class _Lines(dict[int, Line]):
    """Lines by number, all zero until they are written."""

    def __init__(self, caches: int, words: int) -> None:
        super().__init__()
        self.caches, self.words = caches, words

    def __missing__(self, number: int) -> Line:
        self[number] = coherence.fresh(self.caches, (0,) * self.words)
        return self[number]


class _Traffic:
    """All caches and homes of the simulator, with messages in flight."""

    def __init__(self, design: ParameterCacheDesign, rng: Random) -> None:
        self.design, self.rng = design, rng
        lines = _Lines(CACHES, design.line_bytes // 4)
        self.caches = [Cached(design.cache, number, lines, design.add) for number in range(CACHES)]
        self.flight: list[tuple[int, Message]] = []
        sets, ways = design.cache.sets, design.ways
        used = [(tag * sets + place) for place in range(min(sets, 3)) for tag in range(ways + 2)]
        self.numbers = [number for number in used if number < 1 << design.line_bits]

    def commands(self, cycles: int) -> list[Inputs]:
        table: list[Inputs] = []
        for _ in range(cycles):
            for _ in range(self.rng.randrange(6)):
                self._elsewhere()
            table.append(self._command())
        return table

    def _operation(self) -> Operation:
        kind = self.rng.choice(OPERATIONS)
        return Operation(kind, self.rng.randrange(self.design.line_bytes // 4), self._value(), self._value())

    def _value(self) -> Any:
        """Few values, so that comparisons succeed; among them zeros of both signs, and a sum that wraps around."""
        if self.design.number == "int32":
            return self.rng.choice((0, 1, -5, 2**31 - 1))
        return float(np.float32(self.rng.choice((0.0, -0.0, 1.0, -1.5, 3e-5))))

    def _command(self) -> Inputs:
        """What reaches the cache under test in this cycle."""
        own, acknowledges = self.caches[0], self.rng.random() < 0.05  # late, so that operations meet lines that are written back
        arrived = [entry for entry in self.flight if entry[1].target == 0 and (acknowledges or entry[1].kind != "PutAck")]
        if arrived and self.rng.random() < 0.6:
            number, message = entry = self.rng.choice(arrived)
            self.flight.remove(entry)
            self._send(number, own.receive(number, message))
            words = self.design.line_bits_of(message.value)
            return {"command": MESSAGE, "kind": RECEIVED.index(message.kind), "line": number, "words": words}
        if own.pending or own.written_back() == self.design.writebacks or self.rng.random() < 0.2:
            return {"line": self.rng.choice(self.numbers)}
        leaving = [number for number in self.numbers if own.lines[number].copies[0].state in ("MI", "II")]
        number = self.rng.choice(leaving if leaving and self.rng.random() < 0.2 else self.numbers)
        operation = self._operation()
        for line, outcome in own.ask(number, operation) or ():
            self._send(line, outcome)
        row = {"command": OPERATION, "kind": OPERATIONS.index(operation.kind), "line": number, "word": operation.word}
        return row | {"value": self.design.bits_of(operation.value), "expected": self.design.bits_of(operation.expected)}

    def _elsewhere(self) -> None:
        """A message to a home or to another cache, or an operation of another cache."""
        entry = self.rng.choice(self.flight) if self.flight else None
        if entry is None or entry[1].target == 0 or self.rng.random() < 0.3:
            other = self.caches[self.rng.randrange(1, CACHES)]
            if not other.pending:
                for line, outcome in other.ask(self.rng.choice(self.numbers), self._operation()) or ():
                    self._send(line, outcome)
            return
        number, message = entry
        if message.target != HOME:
            self.flight.remove(entry)
            self._send(number, self.caches[message.target].receive(number, message))
        elif coherence.receivable(self.caches[0].lines[number], message):
            self.flight.remove(entry)
            outcome = coherence.receive(self.caches[0].lines[number], message, wrap=self.design.add)
            self.caches[0].lines[number] = outcome.line
            self._send(number, outcome)

    def _send(self, number: int, outcome: coherence.Outcome) -> None:
        self.flight += [(number, message) for message in outcome.messages]
