"""SIGMA's bitmap controller as a circuit: from bitmaps, line by line, to the source and the vecID of every multiplier.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-E,
steps i to vii. The paper gives no cycles for them; here a line of a bitmap is taken in each cycle, and its answer is there in the
next one.

| command     | `bits`                             | what happens                                                        |
|-------------|------------------------------------|---------------------------------------------------------------------|
| 1 `CLEAR`   |                                    | a new product: REGOR becomes 0                                      |
| 2 `GATHER`  | a column of the streaming bitmap   | steps i, ii: REGOR becomes REGOR or the column                      |
| 3 `FOLD`    |                                    | the tables become empty; fold `fold` of stationary values follows   |
| 4 `PLACE`   | the next row of the stationary one | steps ii to v: stationary' is row and REGOR; its ones are placed    |
| 5 `STREAM`  | a column of the streaming bitmap   | steps v to vii: its counters, a source for every pair of two ones   |

Value e of stationary' goes to multiplier e modulo all multipliers in fold e div all multipliers. Step vi is the paper's naive
routing (source minus destination); select bits of a Benes network come from a router outside. The accumulation id (the row) becomes
a vecID by counting the changes of row in a Flex-DPE. Where a column has more ones than a Flex-DPE has ports, the sources are its
ones among those k that the Flex-DPE holds (as in `arrays.sigma.execution.ports`).
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.sigma.controller import IDLE, Controller, Pass, Placement, Table
from trainyard.arrays.sigma.execution import Vectors, ports
from trainyard.checks import require_positive
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register, require_power_of_two

CLEAR, GATHER, FOLD, PLACE, STREAM = 1, 2, 3, 4, 5
MOST_FOLDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the circuit is built for: bitmaps of rows x depth, and the multipliers of all Flex-DPEs."""

    rows: int
    depth: int
    multipliers: int
    dpes: int

    @property
    def pool(self) -> int:
        return self.multipliers * self.dpes

    @property
    def count_bits(self) -> int:
        """Of a number of stationary values."""
        return (self.rows * self.depth).bit_length()

    @property
    def k_bits(self) -> int:
        return max(1, (self.depth - 1).bit_length())

    @property
    def row_bits(self) -> int:
        return max(1, (self.rows - 1).bit_length())

    @property
    def source_bits(self) -> int:
        """Of a port of a Flex-DPE."""
        return max(1, (self.multipliers - 1).bit_length())


class ControllerCircuit(Component):
    """Bitmaps in, SRC-DEST tables out."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        signature: dict[str, Any] = {"command": In(3), "bits": In(sizes.depth), "fold": In(MOST_FOLDS.bit_length())}
        signature |= {"regor": Out(sizes.depth), "useful": Out(sizes.count_bits)}
        signature |= {"flex_dpes": Out(sizes.count_bits + 1), "folds": Out(sizes.count_bits + 1)}
        signature |= {"occupied": Out(sizes.pool), "listening": Out(sizes.pool), "streamed": Out(1), "output_bits": Out(sizes.rows)}
        for slot in range(sizes.pool):
            signature |= {f"k_{slot}": Out(sizes.k_bits), f"row_{slot}": Out(sizes.row_bits)}
            signature |= {f"vec_id_{slot}": Out(sizes.source_bits), f"source_{slot}": Out(sizes.source_bits)}
            signature |= {f"distance_{slot}": Out(sizes.source_bits + 1)}
        super().__init__(signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self._sizes
        row = Signal(range(sizes.rows + 1))
        bitmap = [Signal(sizes.depth, name=f"stationary_{number}") for number in range(sizes.rows)]
        pruned = Signal(sizes.depth)
        m.d.comb += pruned.eq(self.bits & self.regor)
        with m.Switch(self.command):
            with m.Case(CLEAR):
                m.d.sync += self.regor.eq(0)
            with m.Case(GATHER):
                m.d.sync += self.regor.eq(self.regor | self.bits)
            with m.Case(FOLD):
                m.d.sync += [row.eq(0), self.useful.eq(0), self.occupied.eq(0)]
                m.d.sync += [stored.eq(0) for stored in bitmap]
            with m.Case(PLACE):
                m.d.sync += row.eq(row + 1)
                with m.Switch(row):
                    for number, stored in enumerate(bitmap):
                        with m.Case(number):
                            m.d.sync += stored.eq(pruned)
        self._allocate(m)
        self._place(m, row, pruned)
        self._accumulation_ids(m)
        self._pair(m, bitmap)
        return m

    def _allocate(self, m: Module) -> None:
        """Step iii: as many Flex-DPEs as the ones of stationary' fill, and the folds that they take."""
        sizes = self._sizes
        for port, each in ((self.flex_dpes, sizes.multipliers), (self.folds, sizes.pool)):
            m.d.comb += port.eq((self.useful + (each - 1)) >> (each.bit_length() - 1))

    def _place(self, m: Module, row: Any, pruned: Any) -> None:
        """Step iv: each one of stationary' into the multiplier of its number, if it lies in this fold."""
        sizes = self._sizes
        fold = Signal(len(self.fold))
        first = Signal(sizes.count_bits + MOST_FOLDS.bit_length() + sizes.pool.bit_length())  # number of the fold's first value
        m.d.comb += first.eq(fold << (sizes.pool.bit_length() - 1))
        with m.If(self.command == FOLD):
            m.d.sync += fold.eq(self.fold)
        counts = counters(m, "stationary", pruned)
        places = []
        for k in range(sizes.depth):
            place = Signal(len(first) + 1, name=f"place_{k}")  # beyond the multipliers where it belongs to another fold
            m.d.comb += place.eq(self.useful + counts[k] - first)
            places.append(place)
        with m.If(self.command == PLACE):
            m.d.sync += self.useful.eq(self.useful + counts[-1])
            for slot in range(sizes.pool):
                hits = [pruned[k] & (places[k] == slot) for k in range(sizes.depth)]
                with m.If(reduce(operator.or_, hits)):
                    m.d.sync += [
                        self.occupied[slot].eq(1),
                        getattr(self, f"k_{slot}").eq(reduce(operator.or_, (Mux(hit, k, 0) for k, hit in enumerate(hits)))),
                        getattr(self, f"row_{slot}").eq(row),
                    ]

    def _accumulation_ids(self, m: Module) -> None:
        """Step vii: the vecID of a multiplier is how often the row changed before it in its Flex-DPE."""
        sizes = self._sizes
        for slot in range(sizes.pool):
            here = getattr(self, f"vec_id_{slot}")
            if slot % sizes.multipliers == 0:
                m.d.comb += here.eq(0)
            else:
                changes = getattr(self, f"row_{slot}") != getattr(self, f"row_{slot - 1}")
                m.d.comb += here.eq(getattr(self, f"vec_id_{slot - 1}") + changes)

    def _pair(self, m: Module, bitmap: list[Any]) -> None:
        """Steps v and vi: the counter of the streaming value that each multiplier takes, and the output bitmap's column."""
        sizes = self._sizes
        m.d.sync += self.streamed.eq(self.command == STREAM)
        total = counters(m, "streaming", self.bits)[-1]
        for dpe in range(sizes.dpes):
            slots = range(dpe * sizes.multipliers, (dpe + 1) * sizes.multipliers)
            stationary = [getattr(self, f"k_{slot}") for slot in slots]
            needed = Signal(sizes.depth, name=f"needed_{dpe}")
            held = [
                [self.occupied[slot] & (k == number) for slot, k in zip(slots, stationary, strict=True)]
                for number in range(sizes.depth)
            ]
            m.d.comb += needed.eq(Cat(*(reduce(operator.or_, any_slot) for any_slot in held)))
            counted = Signal(sizes.depth, name=f"counted_{dpe}")
            m.d.comb += counted.eq(Mux(total > sizes.multipliers, self.bits & needed, self.bits))
            counts = counters(m, f"dpe_{dpe}", counted)
            for lane, (slot, k) in enumerate(zip(slots, stationary, strict=True)):
                source = Signal(sizes.source_bits, name=f"counter_{slot}")
                with m.Switch(k):
                    for number in range(sizes.depth):
                        with m.Case(number):
                            m.d.comb += source.eq(counts[number])
                with m.If(self.command == STREAM):
                    m.d.sync += [
                        getattr(self, f"source_{slot}").eq(source),
                        getattr(self, f"distance_{slot}").eq(source - lane),
                        self.listening[slot].eq(self.occupied[slot] & self.bits.bit_select(k, 1)),
                    ]
        with m.If(self.command == STREAM):
            m.d.sync += self.output_bits.eq(Cat(*((stored & self.bits).any() for stored in bitmap)))


def counters(m: Module, name: str, bits: Any) -> list[Any]:
    """For each bit the ones before it, and at the end all ones: a counter for each bit, in a chain of halves."""
    width = (len(bits)).bit_length()
    sums: list[Any] = [bits[index] for index in range(len(bits))]
    reach, level = 1, 0
    while reach < len(bits):
        longer = []
        for index, value in enumerate(sums):
            total = Signal(width, name=f"{name}_ones_{level}_{index}")
            m.d.comb += total.eq(value + sums[index - reach] if index >= reach else value)
            longer.append(total)
        sums, reach, level = longer, 2 * reach, level + 1
    return [0, *sums]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDesign(Design):
    """The circuit beside `arrays.sigma.controller.Controller`."""

    name: ClassVar[str] = "controller"
    word: ClassVar[str] = "bitmap controller, steps i to vii (SIGMA, HPCA 2020, Sec. IV-E)"
    rows: int = parameter(4, "rows of the stationary bitmap")
    depth: int = parameter(8, "columns of the stationary bitmap, which are the rows of the streaming one")
    multipliers: int = parameter(4, "multipliers of a Flex-DPE; a power of two")
    dpes: int = parameter(2, "Flex-DPEs; a power of two, or 1")

    def __post_init__(self) -> None:
        require_positive(self.name, rows=self.rows, depth=self.depth)
        require_power_of_two(self.name, multipliers=self.multipliers)
        if self.dpes != 1:
            require_power_of_two(self.name, dpes=self.dpes)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(rows=self.rows, depth=self.depth, multipliers=self.multipliers, dpes=self.dpes)

    def build(self) -> Component:
        return ControllerCircuit(self._sizes)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        chance = random.Random(seed)
        lines: list[Inputs] = []
        while len(lines) < cycles:
            nonzero = chance.choice((0.2, 0.5, 0.8, 1.0))
            stationary = [_line(self.depth, nonzero, chance) for _ in range(self.rows)]
            columns = [_line(self.depth, chance.choice((0.1, 0.5, 0.9)), chance) for _ in range(chance.randint(1, 6))]
            lines += product_commands(self._sizes, stationary, columns)
        return lines[:cycles]

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        return Episodes(self._sizes).outputs(stimulus)


def _line(depth: int, nonzero: float, chance: random.Random) -> int:
    return sum((chance.random() < nonzero) << k for k in range(depth))


def product_commands(sizes: Sizes, stationary: Sequence[int], columns: Sequence[int]) -> list[Inputs]:
    """The commands of one product: every column gathered, then for each fold all rows placed and all columns streamed."""
    regor = reduce(operator.or_, columns, 0)
    useful = sum((row & regor).bit_count() for row in stationary)
    lines: list[Inputs] = [{"command": CLEAR}, *({"command": GATHER, "bits": column} for column in columns)]
    for fold in range(min(max(1, -(-useful // sizes.pool)), MOST_FOLDS)):
        lines.append({"command": FOLD, "fold": fold})
        lines += [{"command": PLACE, "bits": row} for row in stationary]
        lines += [{"command": STREAM, "bits": column} for column in columns]
    return lines


class Episodes:
    """What the simulator's controller says to a sequence of commands: its tables once all rows of a fold are placed."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._controller = Controller(multipliers=sizes.multipliers, dpes=sizes.dpes)
        self._columns: list[int] = []
        self._rows: list[int] = []
        self._fold = 0
        self._tables: dict[str, int] | None = None
        self._placement: Placement | None = None

    def outputs(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        answers: list[Outputs] = [{"streamed": 0, "regor": 0}]
        for line in stimulus:
            answers.append(self._answer(line))
        return answers[: len(stimulus)]

    def _answer(self, line: Inputs) -> Outputs:
        """What is seen one cycle after a command."""
        command, bits = line.get("command", 0), line.get("bits", 0)
        if command == CLEAR:
            self._columns, self._tables = [], None
        elif command == GATHER:
            self._columns, self._tables = [*self._columns, bits], None
        elif command == FOLD:
            self._rows, self._fold, self._tables = [], line.get("fold", 0), None
        elif command == PLACE:
            self._rows = [*self._rows, bits]
            if len(self._rows) == self._sizes.rows:
                self._tables = self._placed()
        streaming = self._bitmap(self._columns).transposed()
        answer = {"regor": _word(self._controller.row_or(streaming)), "streamed": int(command == STREAM), **(self._tables or {})}
        if command == STREAM and self._tables is not None:
            answer |= self._paired(bits)
        return answer

    def _bitmap(self, lines: Sequence[int]) -> Bitmap:
        bits = [[line >> k & 1 for k in range(self._sizes.depth)] for line in lines]
        return Bitmap.of(np.array(bits, np.float32).reshape(len(lines), self._sizes.depth))

    def _placed(self) -> dict[str, int]:
        controller = self._controller
        streaming = self._bitmap(self._columns).transposed()
        pruned = controller.prune(self._bitmap(self._rows), controller.row_or(streaming))
        allocation = controller.allocate(pruned)
        self._placement = controller.place(pruned)
        tables = {"useful": allocation.useful, "flex_dpes": allocation.flex_dpes, "folds": allocation.folds, "occupied": 0}
        for unit in self._units():
            first = unit.number * self._sizes.multipliers
            rows = [row for row in dict.fromkeys(unit.vec_ids.tolist()) if row != IDLE]
            for lane, (k, row) in enumerate(zip(unit.k.tolist(), unit.row.tolist(), strict=True)):
                if k != IDLE:
                    tables["occupied"] |= 1 << (first + lane)
                    tables |= {f"k_{first + lane}": k, f"row_{first + lane}": row, f"vec_id_{first + lane}": rows.index(row)}
        return tables

    def _pass(self) -> Pass | None:
        assert self._placement is not None
        return next((each for each in self._placement.passes if each.fold == self._fold), None)

    def _units(self) -> list[Any]:
        assert self._placement is not None
        pass_ = self._pass()
        return [] if pass_ is None else list(self._controller.flex_dpes(self._placement, pass_))

    def _paired(self, column: int) -> dict[str, int]:
        values = np.array([[column >> k & 1 for k in range(self._sizes.depth)]], np.float32)
        answer, listening = dict[str, int](), 0
        pass_ = self._pass()
        for unit in self._units():
            assert pass_ is not None
            first = unit.number * self._sizes.multipliers
            sources, _, _ = ports(unit, pass_, Vectors.of(values, None))
            pairs = tuple((source, lane) for lane, source in enumerate(sources[0].tolist()) if source != IDLE)
            table = Table(flex_dpe=unit.number, vector=0, pairs=pairs)
            for (source, lane), distance in zip(pairs, table.naive_routing(), strict=True):
                listening |= 1 << (first + lane)
                answer[f"source_{first + lane}"] = source
                answer[f"distance_{first + lane}"] = distance % (1 << (self._sizes.source_bits + 1))
        gathered = self._controller.gather(self._bitmap(self._rows), self._bitmap([column]).transposed())
        outputs = self._controller.output_bitmap(gathered).bits()[:, 0]
        return {**answer, "listening": listening, "output_bits": _word(outputs)}


def _word(bits: Any) -> int:
    return sum(int(bit) << index for index, bit in enumerate(bits))
