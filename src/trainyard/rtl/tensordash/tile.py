"""A tile of TensorDash elements in registers and gates: a scheduler a row, staging buffers a row and a column, in lockstep.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-B, Fig. 7.
The simulator's part is `arrays.tensordash.element.tile` with `skips="b"` and `sync="lockstep"`.

    B of row r     -> staging buffer -> multiplexers --> shared by the elements of the row
                           +-> Z -> scheduler -> MS ---> all multiplexers of the row
    A of column c  -> staging buffer ----------------> multiplexers of each element of the column

All buffers shift together, by the smallest AS of the rows. With as many banks as the buffers are deep, outputs follow each other
without a gap, in the simulator's cycles. With fewer they do not: the simulator has all `depth` steps of every output there before
its first cycle, which banks that are busy with the output before cannot bring (4 deep, 3 banks, 90 % zeros: 33 % more cycles for
outputs of 4 steps, 8 % for 16, 0.6 % for 48).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.checks import require_positive
from trainyard.rtl.catalogue import parameter, register
from trainyard.rtl.tensordash.dot_product import DotProduct, Numbers
from trainyard.rtl.tensordash.element import zeros_of
from trainyard.rtl.tensordash.row_scheduler import RowScheduler
from trainyard.rtl.tensordash.staging_buffer import PromotionMultiplexers, StagingBuffer, WindowControl
from trainyard.rtl.tensordash.streams import Bench, StreamDesign


def smallest(m: Module, name: str, values: Sequence[Value]) -> Value:
    """The minimum, by a tree of comparators."""
    level, stage = list(values), 0
    while len(level) > 1:
        pairs: list[Value] = []
        for place in range(0, len(level) - 1, 2):
            less = Signal(len(level[place]), name=f"{name}{stage}_{place // 2}")
            m.d.comb += less.eq(Mux(level[place] < level[place + 1], level[place], level[place + 1]))
            pairs.append(less)
        level, stage = pairs + level[2 * len(pairs) :], stage + 1
    return level[0]


class Tile(Component):
    """Rows x columns elements; the ports of `ProcessingElement`, with operands, selects, AS and totals of all of them side by side.

    `a` has the columns in turn, `b` the rows, each with `banks` rows of the scratchpad; `ms` and `advance` have the rows of the
    tile; `total` has the accumulators row by row.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        numbers: Numbers,
        *,
        rows: int = 4,
        columns: int = 4,
        banks: int | None = None,
        pipeline: int = 0,
    ) -> None:
        require_positive("Tile", rows=rows, columns=columns)
        self.scheduler, self.numbers, self.pipeline = scheduler, numbers, pipeline
        self.rows, self.columns = rows, columns
        self.banks = banks = scheduler.depth if banks is None else banks
        port_bits = banks * scheduler.lanes * numbers.operand_bits
        super().__init__(
            {
                "enable": In(1),
                "available": In(range(banks + 1)),
                "marks": In(banks),
                "a": In(columns * port_bits),
                "b": In(rows * port_bits),
                "take": Out(range(banks + 1)),
                "ms": Out(rows * scheduler.lanes * len(scheduler.options)),
                "advance": Out(rows * len(Signal(range(scheduler.depth + 1)))),
                "working": Out(1),
                "ends": Out(1),
                "total": Out(rows * columns * numbers.sum_bits),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.control = control = WindowControl(depth=self.scheduler.depth, banks=self.banks)
        schedulers = [self._row(m, row, control) for row in range(self.rows)]
        on_rows = [self._buffer(m, f"b{row}", self.b, row, control) for row in range(self.rows)]
        on_columns = [self._buffer(m, f"a{column}", self.a, column, control) for column in range(self.columns)]
        totals, done = list[Value](), list[Value]()
        for row, scheduler in enumerate(schedulers):
            b = self._multiplexed(m, f"b{row}", on_rows[row], scheduler)
            for column in range(self.columns):
                m.submodules[f"element{row}_{column}"] = element = DotProduct(
                    numbers=self.numbers, lanes=self.scheduler.lanes, pipeline=self.pipeline
                )
                a = self._multiplexed(m, f"a{row}_{column}", on_columns[column], scheduler)
                m.d.comb += [element.a.eq(a), element.b.eq(b), element.working.eq(control.working), element.ends.eq(control.ends)]
                totals.append(element.total)
                done.append(element.done)
        m.d.comb += [
            control.enable.eq(self.enable),
            control.available.eq(self.available),
            control.marks.eq(self.marks),
            control.advance.eq(smallest(m, "least", [scheduler.advance for scheduler in schedulers])),
            self.take.eq(control.take),
            self.ms.eq(Cat(scheduler.ms for scheduler in schedulers)),
            self.advance.eq(Cat(scheduler.advance for scheduler in schedulers)),
            self.working.eq(control.working),
            self.ends.eq(control.ends),
            self.total.eq(Cat(*totals)),
            self.done.eq(done[0]),
        ]
        return m

    def _row(self, m: Module, row: int, control: WindowControl) -> RowScheduler:
        m.submodules[f"row{row}"] = scheduler = RowScheduler(self.scheduler, banks=self.banks)
        m.d.comb += [
            scheduler.zeros.eq(zeros_of(self.numbers, self._port(self.b, row))),
            scheduler.present.eq(control.present),
            scheduler.working.eq(control.working),
            scheduler.shift.eq(control.shift),
            scheduler.kept.eq(control.kept),
        ]
        return scheduler

    def _port(self, operand: Value, number: int) -> Value:
        return operand.word_select(number, self.banks * self.scheduler.lanes * self.numbers.operand_bits)

    def _buffer(self, m: Module, name: str, operand: Value, number: int, control: WindowControl) -> StagingBuffer:
        row_bits = self.scheduler.lanes * self.numbers.operand_bits
        m.submodules[f"buffer_{name}"] = buffer = StagingBuffer(row_bits=row_bits, depth=self.scheduler.depth, banks=self.banks)
        m.d.comb += [buffer.incoming.eq(self._port(operand, number)), buffer.shift.eq(control.shift), buffer.kept.eq(control.kept)]
        return buffer

    def _multiplexed(self, m: Module, name: str, buffer: StagingBuffer, scheduler: RowScheduler) -> Value:
        design = self.scheduler
        m.submodules[f"multiplexers_{name}"] = multiplexers = PromotionMultiplexers(
            bits=self.numbers.operand_bits, lanes=design.lanes, depth=design.depth, options=design.options
        )
        m.d.comb += [multiplexers.rows.eq(buffer.rows), multiplexers.ms.eq(scheduler.ms)]
        return multiplexers.values


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TileDesign(StreamDesign):
    """A tile between its scratchpads; its inputs are whole output blocks of random lengths and sparsities."""

    name: ClassVar[str] = "tensordash-tile"
    word: ClassVar[str] = "a tile of elements in lockstep (TensorDash, MICRO 2020, Sec. III-B, Fig. 7)"

    rows: int = parameter(4, "rows of elements, each with a scheduler")
    columns: int = parameter(4, "elements of a row, which share its scheduler")

    @property
    def bench(self) -> Bench:
        scheduler, numbers, banks = self.scheduler, self.numbers, self.banks or self.depth
        return Bench(
            scheduler=scheduler, numbers=numbers, rows=self.rows, columns=self.columns, banks=banks, pipeline=self.pipeline
        )

    def build(self) -> Tile:
        bench = self.bench
        return Tile(
            bench.scheduler,
            bench.numbers,
            rows=self.rows,
            columns=self.columns,
            banks=bench.banks,
            pipeline=self.pipeline,
        )
