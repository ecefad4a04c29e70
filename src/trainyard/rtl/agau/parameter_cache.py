"""The AGAU's parameter cache in registers and gates: one operation or one message of the directory a cycle.

P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-A. The simulator's parts are
`hardware.agau.parameter_cache.ParameterCache` (sizes, replacement) and `hardware.agau.coherence` (the protocol); this is the
cache's side of it, with atomics performed by the owner. The directory is not built.

    set: tag, state, age of each way --+-- hit? --> operation unit (add, compare, store) --> data of the way
    write-back buffer: lines in MI, II |                 ^ words of a way, or of a Data message
                                       +-- miss --> the pending operation, GetS or GetM, PutM of the replaced line

A line that is written back leaves its way at once and stays in a small buffer until the home has acknowledged it; the simulator's
buffer is without bounds, here it has `writebacks` entries, and an operation that finds it full is to be tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from trainyard.hardware.agau.coherence import Kind
from trainyard.hardware.agau.parameter_cache import ParameterCache
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FP32

BITS = 32
NOTHING, OPERATION, MESSAGE = range(3)
OPERATIONS: tuple[Kind, ...] = ("load", "store", "fetch_add", "compare_swap")
RECEIVED = ("Data", "Grant", "Inv", "FwdGetS", "PutAck")
SENT = ("GetS", "GetM", "Data", "Ack", "Done")
STATES = ("I", "S", "M", "IS", "IM", "SM")
INVALID, SHARED, MODIFIED, WAITS_TO_READ, WAITS_TO_WRITE, WAITS_FOR_GRANT = range(len(STATES))
STATE_BITS, KIND_BITS = 3, 3


class Way(NamedTuple):
    """A way of the set that is looked up, and whether it holds the command's line."""

    tag: Value
    state: Value
    age: Value
    words: Value
    hit: Value


class Pending(NamedTuple):
    """An operation: of the command, or the one that waits for its line."""

    kind: Value
    word: Value
    value: Value
    expected: Value


class Step(NamedTuple):
    """What a command does: an operation is performed or misses, or a message fills the line that a miss waits for."""

    hit: Value
    is_load: Value
    performs: Value
    misses: Value
    fills: Value
    message: dict[str, Value]


class Writeback(NamedTuple):
    """An entry of the write-back buffer: a line in MI or II. Both are one state here: the home asks for its words once at most."""

    waits: Signal
    line: Signal
    words: Signal


class ParameterCacheControl(Component):
    """The cache of one cluster.

    | port                                         | meaning                                                                  |
    |----------------------------------------------|--------------------------------------------------------------------------|
    | `command`                                    | 0 nothing, 1 an operation, 2 a message                                   |
    | `kind`                                       | its place in `OPERATIONS` or `RECEIVED`                                  |
    | `line`, `word`, `value`, `expected`          | of an operation; `line` of a message too                                 |
    | `words`                                      | of a `Data` message                                                      |
    | `performed`, `result`                        | an operation was performed; the word before it                           |
    | `retry`                                      | the operation was not taken: its line, or too many, are written back     |
    | `send`, `send_kind`, `send_flag`, `send_words` | a message to the home of the command's line, its place in `SENT`       |
    | `put`, `put_line`, `put_words`               | a `PutM` of the replaced line                                            |

    Outputs come in the cycle after the command, `ParameterCache.hit_cycles` = 1.
    """

    def __init__(self, cache: ParameterCache, *, line_bits: int, writebacks: int = 4) -> None:
        self.cache, self.writebacks = cache, writebacks
        self.row_bits, self.word_bits = cache.line_bytes * 8, max(1, (cache.line_words - 1).bit_length())
        self.set_bits, self.age_bits = (cache.sets - 1).bit_length(), max(1, (cache.ways - 1).bit_length())
        self.tag_bits = line_bits - self.set_bits
        super().__init__(
            {
                "command": In(2),
                "kind": In(KIND_BITS),
                "line": In(line_bits),
                "word": In(self.word_bits),
                "value": In(BITS),
                "expected": In(BITS),
                "words": In(self.row_bits),
                "performed": Out(1),
                "result": Out(BITS),
                "retry": Out(1),
                "send": Out(1),
                "send_kind": Out(KIND_BITS),
                "send_flag": Out(1),
                "send_words": Out(self.row_bits),
                "put": Out(1),
                "put_line": Out(line_bits),
                "put_words": Out(self.row_bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ways, write = self._lookup(m)
        buffer = [
            Writeback(*(Signal(bits, name=f"{name}{number}") for name, bits in self._entry())) for number in range(self.writebacks)
        ]
        chosen, hit = self._chosen(m, ways)
        way = Way(*(_selected(m, chosen, [each[field] for each in ways]) for field in range(len(Way._fields))))
        written_back = [entry.waits & (entry.line == self.line) for entry in buffer]
        entry_words = _selected(m, written_back, [entry.words for entry in buffer])
        owned = Cat(*written_back).any()
        replaced = Signal()  # an owned line has to make room
        m.d.comb += replaced.eq(~hit & (way.state == MODIFIED))
        full = Cat(*(entry.waits for entry in buffer)).all()
        operates, receives = self.command == OPERATION, self.command == MESSAGE
        message = {name: receives & (self.kind == number) for number, name in enumerate(RECEIVED)}
        is_load = self.kind == OPERATIONS.index("load")
        refused, performs, misses, fills = Signal(), Signal(), Signal(), Signal()
        waiting = (way.state == WAITS_TO_READ) | (way.state == WAITS_TO_WRITE) | (way.state == WAITS_FOR_GRANT)
        m.d.comb += [
            refused.eq(operates & (owned | (replaced & full))),
            performs.eq(operates & ~refused & hit & ((way.state == MODIFIED) | ((way.state == SHARED) & is_load))),
            misses.eq(operates & ~refused & ~performs),
            fills.eq(hit & ((message["Data"] & waiting) | (message["Grant"] & (way.state == WAITS_FOR_GRANT)))),
        ]
        new_words, old = self._operation_unit(m, Mux(message["Data"], self.words, way.words), misses, receives)
        leaves = hit & (way.state == MODIFIED) & (message["Inv"] | message["FwdGetS"])
        step = Step(hit, is_load, performs, misses, fills, message)
        self._next_set(m, ways, chosen, way, step, write, new_words)
        self._next_buffer(m, buffer, written_back, misses & replaced, way, message)
        m.d.sync += [
            self.performed.eq(performs | fills),
            self.result.eq(old),
            self.retry.eq(refused),
            self.send.eq(misses | fills | message["Inv"] | leaves | (owned & message["FwdGetS"])),
            self.send_flag.eq((misses & hit) | (leaves & message["FwdGetS"])),
            self.send_words.eq(Mux(leaves, way.words, entry_words)),
            self.put.eq(misses & replaced),
            self.put_line.eq(self._line_of(way.tag)),
            self.put_words.eq(way.words),
        ]
        with m.If(misses):
            m.d.sync += self.send_kind.eq(Mux(is_load, SENT.index("GetS"), SENT.index("GetM")))
        with m.Elif(fills):
            m.d.sync += self.send_kind.eq(SENT.index("Done"))
        with m.Else():
            m.d.sync += self.send_kind.eq(Mux(leaves | owned, SENT.index("Data"), SENT.index("Ack")))
        return m

    def _entry(self) -> tuple[tuple[str, int], ...]:
        return ("waits", 1), ("written_line", len(self.line)), ("written_words", self.row_bits)

    def _line_of(self, tag: Value) -> Value:
        return Cat(self.line[: self.set_bits], tag)

    def _lookup(self, m: Module) -> tuple[list[Way], list[Any]]:
        """The ways of the command's set, and the ports that write them: of tags, states and ages, then of the data of each way."""
        cache, ways = self.cache, list[Way]()
        bits = self.tag_bits + STATE_BITS + self.age_bits
        ages = sum(age << (age * bits + self.tag_bits + STATE_BITS) for age in range(cache.ways))
        m.submodules.tags = tags = Memory(shape=cache.ways * bits, depth=cache.sets, init=[ages] * cache.sets)
        at, write = self.line[: self.set_bits], [tags.write_port()]
        read = tags.read_port(domain="comb")
        m.d.comb += read.addr.eq(at)
        for number in range(cache.ways):
            m.submodules[f"data{number}"] = data = Memory(shape=self.row_bits, depth=cache.sets, init=[])
            port = data.read_port(domain="comb")
            m.d.comb += port.addr.eq(at)
            write.append(data.write_port())
            row = read.data.word_select(number, bits)
            tag, state = row[: self.tag_bits], row[self.tag_bits : self.tag_bits + STATE_BITS]
            hit = (state != INVALID) & (tag == self.line[self.set_bits :])
            ways.append(Way(tag, state, row[self.tag_bits + STATE_BITS :], port.data, hit))
        m.d.comb += [port.addr.eq(at) for port in write]
        return ways, write

    def _chosen(self, m: Module, ways: list[Way]) -> tuple[list[Value], Signal]:
        """The way of the line; where it is in none, a free way, or the least recently used."""
        hit, free = Signal(), Signal()
        invalid = [way.state == INVALID for way in ways]
        m.d.comb += [hit.eq(Cat(*(way.hit for way in ways)).any()), free.eq(Cat(*invalid).any())]
        chosen: list[Value] = []
        for number, way in enumerate(ways):
            first_free = invalid[number] & ~Cat(*invalid[:number]).any() if number else invalid[number]
            pick = Signal(name=f"chosen{number}")
            m.d.comb += pick.eq(Mux(hit, way.hit, Mux(free, first_free, way.age == len(ways) - 1)))
            chosen.append(pick)
        return chosen, hit

    def _operation_unit(self, m: Module, words: Value, misses: Value, receives: Value) -> tuple[Value, Value]:
        """The words after the operation and the word before it; an operation that misses is kept until its line comes."""
        names = Pending("pending_kind", "pending_word", "pending_value", "pending_expected")
        given = Pending(self.kind, self.word, self.value, self.expected)
        pending = Pending(*(Signal(len(value), name=name) for name, value in zip(names, given, strict=True)))
        with m.If(misses):
            m.d.sync += [kept.eq(value) for kept, value in zip(pending, given, strict=True)]
        performed = Pending(*(Mux(receives, kept, value) for kept, value in zip(pending, given, strict=True)))
        old, new = Signal(BITS), Signal(BITS)
        m.d.comb += old.eq(words.word_select(performed.word, BITS))
        same, total = self._compared_and_added(m, old, performed)
        with m.Switch(performed.kind):
            with m.Case(OPERATIONS.index("store")):
                m.d.comb += new.eq(performed.value)
            with m.Case(OPERATIONS.index("fetch_add")):
                m.d.comb += new.eq(total)
            with m.Case(OPERATIONS.index("compare_swap")):
                m.d.comb += new.eq(Mux(same, performed.value, old))
            with m.Default():
                m.d.comb += new.eq(old)
        after = [Mux(performed.word == place, new, words.word_select(place, BITS)) for place in range(self.row_bits // BITS)]
        return Cat(*after), old

    def _compared_and_added(self, m: Module, old: Value, operation: Pending) -> tuple[Value, Value]:
        """Whether the word is as expected, and its sum with the value; zeros of both signs are equal, a NaN equals nothing."""
        equal = old == operation.expected
        if self.cache.number == "int32":
            return equal, (old + operation.value)[:BITS]
        m.submodules.adder = adder = FloatAdder(FP32)
        m.d.comb += [adder.a.eq(old), adder.b.eq(operation.value)]
        is_nan, zeros = old[: BITS - 1] > FP32.infinity, (old | operation.expected)[: BITS - 1] == 0
        return (equal & ~is_nan) | zeros, adder.sum

    def _next_set(
        self, m: Module, ways: list[Way], chosen: list[Value], way: Way, step: Step, write: list[Any], words: Value
    ) -> None:
        """State, tag and age of the chosen way, the ages of the others, and the words of an operation that was performed."""
        state = Signal(STATE_BITS)
        m.d.comb += state.eq(way.state)
        with m.If(step.misses):
            m.d.comb += state.eq(Mux(step.hit, WAITS_FOR_GRANT, Mux(step.is_load, WAITS_TO_READ, WAITS_TO_WRITE)))
        with m.Elif(step.fills):
            m.d.comb += state.eq(Mux(way.state == WAITS_TO_READ, SHARED, MODIFIED))
        with m.Elif(step.message["Inv"] & ((way.state == MODIFIED) | (way.state == SHARED))):
            m.d.comb += state.eq(INVALID)
        with m.Elif(step.message["Inv"] & (way.state == WAITS_FOR_GRANT)):
            m.d.comb += state.eq(WAITS_TO_WRITE)
        with m.Elif(step.message["FwdGetS"] & (way.state == MODIFIED)):
            m.d.comb += state.eq(SHARED)
        used, rows = step.misses | step.performs, list[Value]()
        for other, here in zip(ways, chosen, strict=True):
            younger = Mux(used & (other.age < way.age), other.age + 1, other.age)
            age = Signal(self.age_bits)
            m.d.comb += age.eq(Mux(used & here, 0, younger))
            rows += [Mux(step.misses & here, self.line[self.set_bits :], other.tag), Mux(here, state, other.state), age]
        m.d.comb += [
            write[0].en.eq(used | (step.hit & (step.fills | step.message["Inv"] | step.message["FwdGetS"]))),
            write[0].data.eq(Cat(*rows)),
        ]
        for port, here in zip(write[1:], chosen, strict=True):
            m.d.comb += [port.en.eq(here & (step.performs | step.fills)), port.data.eq(words)]

    def _next_buffer(
        self, m: Module, buffer: list[Writeback], here: list[Value], enters: Value, way: Way, message: dict[str, Value]
    ) -> None:
        """A replaced line enters a free entry, and leaves when the home has acknowledged it."""
        before: Value = Const(1, 1)  # all entries before this one are taken
        for entry, found in zip(buffer, here, strict=True):
            with m.If(enters & before & ~entry.waits):
                m.d.sync += [entry.waits.eq(1), entry.line.eq(self._line_of(way.tag)), entry.words.eq(way.words)]
            with m.If(found & message["PutAck"]):
                m.d.sync += entry.waits.eq(0)
            before = before & entry.waits


def _selected(m: Module, chosen: Sequence[Value], values: Sequence[Value]) -> Signal:
    """The value whose select is set, 0 where none is."""
    result = Signal(max(len(value) for value in values))
    total: Value = Const(0, len(result))
    for select, value in zip(chosen, values, strict=True):
        total = total | (value & select.replicate(len(value)))
    m.d.comb += result.eq(total)
    return result
