"""TensorDash's processing element in registers and gates: staging buffers, scheduler, multiplexers, multipliers, accumulator.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-A, Fig. 4.
The simulator's part is `arrays.tensordash.element.processing_element`.

    scratchpads -> staging buffers A, B -> multiplexers A, B -> multipliers -> adder tree -> accumulator
                        |                        ^ MS
                        +-> Z -> scheduler ------+---- AS: shift and refill

`skips="b"` makes Z from B's zeros, `skips="both"` from those of either operand, with one comparator more a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Cat, Module, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.checks import require_choice
from trainyard.rtl.catalogue import parameter, register
from trainyard.rtl.tensordash.dot_product import DotProduct, Numbers
from trainyard.rtl.tensordash.row_scheduler import RowScheduler
from trainyard.rtl.tensordash.staging_buffer import PromotionMultiplexers, StagingBuffer, WindowControl
from trainyard.rtl.tensordash.streams import Bench, StreamDesign


def zeros_of(numbers: Numbers, incoming: Value) -> Value:
    """The comparators: a bit for each operand in `incoming`, set where it is zero."""
    bits = numbers.operand_bits
    return Cat(numbers.is_zero(incoming.word_select(place, bits)) for place in range(len(incoming) // bits))


class ProcessingElement(Component):
    """One element. `a` and `b` are the next `banks` rows of its scratchpads, of which it fetches `take`.

    | port                           | meaning                                                                              |
    |--------------------------------|--------------------------------------------------------------------------------------|
    | `enable`, `available`, `marks` | as of `WindowControl`                                                                |
    | `a`, `b`                       | banks x lanes operands, the first row in the lowest bits                             |
    | `take`, `ms`, `advance`        | rows fetched, selects and AS of this cycle                                           |
    | `working`, `ends`              | a cycle of the schedule, and an output's last one                                    |
    | `total`, `done`                | the accumulator, and whether it holds a finished dot product                         |
    """

    def __init__(
        self, scheduler: Scheduler, numbers: Numbers, *, skips: str = "b", banks: int | None = None, pipeline: int = 0
    ) -> None:
        require_choice("ProcessingElement", skips=(skips, ("b", "both")))
        self.scheduler, self.numbers, self.skips, self.pipeline = scheduler, numbers, skips, pipeline
        self.banks = banks = scheduler.depth if banks is None else banks
        row_bits = scheduler.lanes * numbers.operand_bits
        super().__init__(
            {
                "enable": In(1),
                "available": In(range(banks + 1)),
                "marks": In(banks),
                "a": In(banks * row_bits),
                "b": In(banks * row_bits),
                "take": Out(range(banks + 1)),
                "ms": Out(scheduler.lanes * len(scheduler.options)),
                "advance": Out(range(scheduler.depth + 1)),
                "working": Out(1),
                "ends": Out(1),
                "total": Out(numbers.sum_bits),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        scheduler, numbers, lanes = self.scheduler, self.numbers, self.scheduler.lanes
        depth, banks, bits = scheduler.depth, self.banks, numbers.operand_bits
        m.submodules.control = control = WindowControl(depth=depth, banks=banks)
        m.submodules.row = row = RowScheduler(scheduler, banks=banks)
        m.submodules.dot_product = dot_product = DotProduct(numbers=numbers, lanes=lanes, pipeline=self.pipeline)
        for name, incoming, operand in (("a", self.a, dot_product.a), ("b", self.b, dot_product.b)):
            buffer = StagingBuffer(row_bits=lanes * bits, depth=depth, banks=banks)
            multiplexers = PromotionMultiplexers(bits=bits, lanes=lanes, depth=depth, options=scheduler.options)
            m.submodules[f"buffer_{name}"], m.submodules[f"multiplexers_{name}"] = buffer, multiplexers
            m.d.comb += [
                buffer.incoming.eq(incoming),
                buffer.shift.eq(control.shift),
                buffer.kept.eq(control.kept),
                multiplexers.rows.eq(buffer.rows),
                multiplexers.ms.eq(row.ms),
                operand.eq(multiplexers.values),
            ]
        zeros = zeros_of(numbers, self.b)
        m.d.comb += row.zeros.eq(zeros | zeros_of(numbers, self.a) if self.skips == "both" else zeros)
        m.d.comb += [
            control.enable.eq(self.enable),
            control.available.eq(self.available),
            control.marks.eq(self.marks),
            control.advance.eq(row.advance),
            row.present.eq(control.present),
            row.working.eq(control.working),
            row.shift.eq(control.shift),
            row.kept.eq(control.kept),
            dot_product.working.eq(control.working),
            dot_product.ends.eq(control.ends),
            self.take.eq(control.take),
            self.ms.eq(row.ms),
            self.advance.eq(row.advance),
            self.working.eq(control.working),
            self.ends.eq(control.ends),
            self.total.eq(dot_product.total),
            self.done.eq(dot_product.done),
        ]
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ElementDesign(StreamDesign):
    """One processing element between its scratchpads; its inputs are whole dot products of random lengths and sparsities."""

    name: ClassVar[str] = "tensordash-element"
    word: ClassVar[str] = "a processing element that skips zero pairs (TensorDash, MICRO 2020, Sec. III-A, Fig. 4)"

    skips: str = parameter("b", "whose zeros are skipped: b (one operand's), or both (of either operand)")

    @property
    def bench(self) -> Bench:
        banks = self.banks or self.depth
        return Bench(scheduler=self.scheduler, numbers=self.numbers, banks=banks, skips=self.skips, pipeline=self.pipeline)

    def build(self) -> ProcessingElement:
        bench = self.bench
        return ProcessingElement(bench.scheduler, bench.numbers, skips=self.skips, banks=bench.banks, pipeline=self.pipeline)
