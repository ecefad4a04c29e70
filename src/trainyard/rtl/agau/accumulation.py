"""The AGAU around its tree: contributions come in over the ports in rounds, partial sums wait between two rounds.

P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-A. The simulator's part is
`hardware.agau.unit.Agau`, whose `cycles` and `reduce` this unit has to keep.

    ports -> input registers -> tree -> total --+--> averaging stage -> mean
                 ^ leaf 0                       |
                 +------- partial sums <--------+

A round's partial sum can leave the tree in the very cycle in which the other leaves of the next round are complete. It then goes
from the tree's output register straight to the first adder; a cycle later it is written to leaf 0; later it comes from the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from trainyard.errors import BadInput
from trainyard.hardware.agau.unit import BITS, Agau
from trainyard.rtl.agau.reduction_tree import RECIPROCAL_BITS, AveragingStage, ReductionTree, delayed
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register

COUNT_BITS = 12
"""Bits of the number of contributions: up to all 2048 DPUs."""
BEAT_BITS = 20
"""Bits of the number of beats of a reduction."""


class AccumulationUnit(Component):
    """One reduction after the other; `contributions` and `beats` are read with `start`, in a cycle in which it is not `busy`.

    | port                    | meaning                                                                                       |
    |-------------------------|-----------------------------------------------------------------------------------------------|
    | `start`                 | begin a reduction of so many `contributions` of so many `beats`                               |
    | `reciprocal`            | 1 / contributions, for the averaging stage, while sums leave the tree                         |
    | `words`                 | the next words of the contributions, one for each port                                        |
    | `ready`                 | the words are taken in this cycle                                                             |
    | `total`, `total_valid`  | a beat of the sum                                                                             |
    | `mean`, `mean_valid`    | a beat of the mean                                                                            |
    """

    def __init__(self, agau: Agau) -> None:
        self.agau = agau
        self.ports = agau.ports or agau.inputs
        super().__init__(
            {
                "start": In(1),
                "contributions": In(COUNT_BITS),
                "beats": In(BEAT_BITS),
                "reciprocal": In(RECIPROCAL_BITS),
                "words": In(self.ports * agau.width_bits),
                "busy": Out(1),
                "ready": Out(1),
                "total": Out(agau.width_bits),
                "total_valid": Out(1),
                "mean": Out(agau.width_bits),
                "mean_valid": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        agau = self.agau
        available, from_tree, entering = Signal(), Signal(), Signal()
        complete, partial, last, share, loaded = self._rounds(m, available)
        m.d.sync += entering.eq(complete)
        m.submodules.tree = tree = ReductionTree(agau)
        leaves = self._leaves(m, share, loaded, partial)
        leaf_zero = Mux(from_tree, tree.total, leaves[0])
        m.d.comb += tree.leaves.eq(Cat(leaf_zero, *leaves[1:]))
        filled = Signal(agau.inputs)
        m.d.sync += filled.eq(Cat(leaf < share + partial for leaf in range(agau.inputs)))
        m.d.comb += tree.filled.eq(filled)
        was_last = Signal()
        m.d.sync += was_last.eq(last)
        leaving = delayed(m, "valid", entering, agau.tree_cycles - 1)
        leaving_last = delayed(m, "last", was_last, agau.tree_cycles - 1)
        arriving = Signal()  # a partial sum is written to the tree's output register at the end of this cycle
        m.d.comb += arriving.eq(leaving & ~leaving_last)
        m.d.sync += self.total_valid.eq(leaving & leaving_last)
        m.d.comb += self.total.eq(tree.total)
        m.d.comb += available.eq(self._partial_sums(m, arriving, complete & partial, tree.total, leaves[0], from_tree))
        m.submodules.averaging = averaging = AveragingStage(agau)
        m.d.comb += [averaging.total.eq(tree.total), averaging.reciprocal.eq(self.reciprocal), self.mean.eq(averaging.mean)]
        m.d.comb += self.mean_valid.eq(delayed(m, "mean_valid", self.total_valid, agau.multiplier_cycles))
        return m

    def _rounds(self, m: Module, available: Signal) -> tuple[Signal, Signal, Signal, Signal, Signal]:
        """The counters of passes, rounds, beats and words: whether a beat is complete in this cycle, and what it consists of.

        `available`: the partial sum of this beat has left the tree, or does so at the end of this cycle.
        """
        agau, ports = self.agau, self.ports
        most = agau.buffer_bytes * 8 // agau.width_bits
        contributions, beats = Signal(COUNT_BITS), Signal(BEAT_BITS)  # of this reduction; beats that are left from this pass on
        left, beat = Signal(COUNT_BITS), Signal(BEAT_BITS)  # contributions that are left from this round on; beat of the pass
        share, loaded = Signal(range(agau.inputs + 1)), Signal(range(agau.inputs + 1))
        partial, last, complete = Signal(), Signal(), Signal()
        size, now = Signal(BEAT_BITS), Signal(range(agau.inputs + ports + 1))
        inside = Mux(partial, agau.inputs - 1, agau.inputs)
        m.d.comb += [
            partial.eq(left != contributions),
            last.eq(left <= inside),
            share.eq(Mux(last, left, inside)),
            now.eq(Mux(loaded + ports < share, loaded + ports, share)),
            size.eq(Mux((contributions > agau.inputs) & (beats > most), most, beats)),
            self.ready.eq(self.busy & (loaded < share)),
            complete.eq(self.busy & (now == share) & (~partial | available)),
        ]
        with m.If(~self.busy & self.start):
            m.d.sync += [self.busy.eq(1), contributions.eq(self.contributions), left.eq(self.contributions), beats.eq(self.beats)]
        with m.Elif(complete):
            m.d.sync += [loaded.eq(0), beat.eq(beat + 1)]
            with m.If(beat + 1 == size):
                m.d.sync += [beat.eq(0), left.eq(left - share)]
                with m.If(last):
                    m.d.sync += [left.eq(contributions), beats.eq(beats - size), self.busy.eq(beats != size)]
        with m.Elif(self.busy):
            m.d.sync += loaded.eq(now)
        return complete, partial, last, share, loaded

    def _leaves(self, m: Module, share: Value, loaded: Value, partial: Value) -> list[Signal]:
        """The input registers: port p of this cycle goes to leaf loaded + p, one further where leaf 0 is a partial sum."""
        agau = self.agau
        leaves = [Signal(agau.width_bits, name=f"leaf{leaf}") for leaf in range(agau.inputs)]
        for port in range(self.ports):
            target = loaded + port + partial
            with m.If(self.ready & (loaded + port < share)):
                for leaf in range(port, agau.inputs):
                    with m.If(target == leaf):
                        m.d.sync += leaves[leaf].eq(self.words.word_select(port, agau.width_bits))
        return leaves

    def _partial_sums(self, m: Module, arriving: Signal, taken: Value, total: Value, leaf: Signal, from_tree: Signal) -> Value:
        """The buffer, a queue: what arrives is in the tree's output register a cycle later, and in the memory after that.

        Returns whether one is there for the next beat.
        """
        width, most = self.agau.width_bits, self.agau.buffer_bytes * 8 // self.agau.width_bits
        m.submodules.buffer = memory = Memory(shape=width, depth=most, init=[])
        write = memory.write_port()
        read = memory.read_port(transparent_for=(write,))
        waiting, arrived = Signal(range(most + 1)), Signal()
        first, behind, first_next = Signal(range(most)), Signal(range(most)), Signal(range(most))
        m.d.comb += [
            write.en.eq(arrived),
            write.addr.eq(behind),
            write.data.eq(total),
            first_next.eq(Mux(taken, Mux(first == most - 1, 0, first + 1), first)),
            read.addr.eq(first_next),
            read.en.eq(1),
        ]
        m.d.sync += [arrived.eq(arriving), waiting.eq(waiting + arriving - taken), first.eq(first_next), from_tree.eq(0)]
        with m.If(arrived):
            m.d.sync += behind.eq(Mux(behind == most - 1, 0, behind + 1))
        with m.If(taken):
            with m.If(waiting == 0):
                m.d.sync += from_tree.eq(1)
            with m.Elif((waiting == 1) & arrived):
                m.d.sync += leaf.eq(total)
            with m.Else():
                m.d.sync += leaf.eq(read.data)
        return (waiting != 0) | arriving


@dataclass(frozen=True, slots=True)
class BeatTimes:
    """The cycles of one beat of a round, counted from the first word at the ports: its words, and when the tree has its sum."""

    first_row: int
    share: int
    beat: int
    begin: int
    complete: int
    is_last: bool


def beat_times(agau: Agau, contributions: int, beats: int) -> Iterator[BeatTimes]:
    """All beats in the order of the ports; a later round's beat waits for the partial sum of the round before."""
    elements, now, first_beat = beats * agau.lanes, 0, 0
    shares = agau.shares(contributions)
    for size, times in agau.passes(contributions, elements):
        for _ in range(times):
            row, count = 0, size // agau.lanes
            partial_at = [0] * count
            for number, share in enumerate(shares):
                for beat in range(count):
                    complete = max(now + agau.interval(share), partial_at[beat])
                    yield BeatTimes(row, share, first_beat + beat, now, complete, number == len(shares) - 1)
                    now, partial_at[beat] = complete, complete + agau.tree_cycles
                row += share
            first_beat += count


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AgauDesign(Design):
    """The accumulation unit; its inputs are whole reductions of random numbers of contributions and beats."""

    name: ClassVar[str] = "agau"
    word: ClassVar[str] = "AGAU, the atomic gradient accumulation unit (DIRECT, Sec. III-A)"

    # fmt: off
    inputs: int            = parameter(8, "leaves of the reduction tree")
    width_bits: int        = parameter(256, "bits of a SIMD word")
    number: str            = parameter("fp32", "fp32 or int32")
    ports: int             = parameter(0, "contributions that hand in a word in one cycle; 0: all inputs")
    adder_cycles: int      = parameter(3, "registers of an adder, 1 to 3")
    multiplier_cycles: int = parameter(3, "registers of the averaging multiplier, 1 to 3")
    buffer_bytes: int      = parameter(4096, "partial sums between two rounds")
    # fmt: on

    def __post_init__(self) -> None:
        _ = self.agau
        for name in ("adder_cycles", "multiplier_cycles"):
            if not 1 <= getattr(self, name) <= 3:
                raise BadInput(f"agau: {name} must be 1 to 3, the registers of an arithmetic unit here, got {getattr(self, name)}")

    @property
    def agau(self) -> Agau:
        return Agau(
            inputs=self.inputs,
            width_bits=self.width_bits,
            number=cast(Literal["fp32", "int32"], self.number),
            ports=self.ports or None,
            adder_cycles=self.adder_cycles,
            multiplier_cycles=self.multiplier_cycles,
            buffer_bytes=self.buffer_bytes,
        )

    def build(self) -> AccumulationUnit:
        return AccumulationUnit(self.agau)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        """Reductions one behind the other; the next begins when the last mean is out, because there is one reciprocal."""
        rng, draw, table = Random(seed), np.random.default_rng(seed), list[Inputs]()
        most = self.buffer_bytes * 8 // self.width_bits
        while True:
            contributions = rng.randint(1, rng.choice((self.inputs, 3 * self.inputs)))
            beats = rng.randint(1, rng.choice((2, 12, 2 * most + 3)))
            rows = self._random(draw, contributions, beats)
            part = self.reduction(rows, idle=rng.choice((0, 0, 2)))
            if len(table) + len(part) > cycles:
                return table + [{}] * (cycles - len(table))
            table += part

    def _random(self, draw: np.random.Generator, contributions: int, beats: int) -> npt.NDArray[np.uint32]:
        shape = contributions, beats * self.agau.lanes
        if self.number == "int32":
            return draw.integers(0, 1 << 32, shape, dtype=np.uint32)
        signed = draw.standard_normal(shape, dtype=np.float32) * np.exp2(draw.integers(-20, 20, shape)).astype(np.float32)
        return np.where(draw.random(shape) < 0.1, -np.zeros(shape, np.float32), signed).astype(np.float32).view(np.uint32)

    def reduction(self, rows: npt.NDArray[np.uint32], idle: int = 0) -> list[Inputs]:
        """The inputs of one reduction of [contributions, elements], from its start until its last mean has left."""
        agau, (contributions, elements) = self.agau, rows.shape
        ports, beats = agau.ports or agau.inputs, elements // agau.lanes
        drained = agau.cycles(contributions, elements, average=True)
        table: list[dict[str, int]] = [{} for _ in range(idle + 1 + drained + 1)]
        table[idle] = {"start": 1, "contributions": contributions, "beats": beats}
        for times in beat_times(agau, contributions, beats):
            for number in range(times.share):
                row = table[idle + 1 + times.begin + number // ports]
                values = rows[times.first_row + number, times.beat * agau.lanes : (times.beat + 1) * agau.lanes]
                word = sum(int(value) << (lane * BITS) for lane, value in enumerate(values))
                row["words"] = row.get("words", 0) | word << (number % ports * agau.width_bits)
        for row in table[idle + 1 :]:
            row["reciprocal"] = self.reciprocal(contributions)
        return list(table)

    def reciprocal(self, contributions: int) -> int:
        """What the averaging stage multiplies by, as `hardware.agau.unit.scale` does."""
        if self.number == "int32":
            return (2 * (1 << BITS) + contributions) // (2 * contributions)
        return int(np.float32(1 / contributions).view(np.uint32))

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """Sums and means by `Agau.reduce`, the last ones in the cycle that `Agau.cycles` says."""
        table: list[dict[str, int]] = [{"busy": 0, "ready": 0, "total_valid": 0, "mean_valid": 0} for _ in stimulus]
        for cycle, row in enumerate(stimulus):
            if row.get("start"):
                self._enter(table, stimulus, cycle + 1, row["contributions"], row["beats"])
        return list(table)

    def _enter(self, table: list[dict[str, int]], stimulus: Sequence[Inputs], start: int, contributions: int, beats: int) -> None:
        agau = self.agau
        ports, lanes = agau.ports or agau.inputs, agau.lanes
        rows = np.zeros((contributions, beats * lanes), np.uint32)
        results: dict[int, int] = {}
        for times in beat_times(agau, contributions, beats):
            for cycle in range(start + times.begin, start + times.complete):
                table[cycle]["busy"] = 1
            for number in range(times.share):
                at = start + times.begin + number // ports
                table[at]["ready"] = 1
                word = stimulus[at].get("words", 0) >> (number % ports * agau.width_bits)
                for lane in range(lanes):
                    rows[times.first_row + number, times.beat * lanes + lane] = word >> (lane * BITS) & 0xFFFFFFFF
            if times.is_last:
                results[times.beat] = times.complete + agau.tree_cycles
        assert max(results.values()) == agau.cycles(contributions, beats * lanes), "beat_times and Agau.cycles differ"
        values = rows.view(np.float32 if self.number == "fp32" else np.int32)
        for port, average, later in (("total", False, 0), ("mean", True, agau.multiplier_cycles)):
            reduced = agau.reduce(values, average=average).view(np.uint32).reshape(beats, lanes)
            for beat, at in results.items():
                table[start + at + later][f"{port}_valid"] = 1
                table[start + at + later][port] = sum(int(value) << (lane * BITS) for lane, value in enumerate(reduced[beat]))
