"""One row of a TensorDash tile: its zero vector Z in registers, and the scheduler that reads and updates it.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-A, Fig. 4 and 7.

Comparators make Z as rows arrive, so that a pair that was multiplied is marked in the same bits. A row that could advance further
than the others keeps what it has done: its Z says which pairs of the remaining steps are left.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.rtl.tensordash.scheduler import PromotionScheduler
from trainyard.rtl.tensordash.staging_buffer import refilled, require_banks


class RowScheduler(Component):
    """Z of the rows that are held, and MS and AS of this cycle; `zeros` are the comparators' bits of the rows that arrive."""

    def __init__(self, scheduler: Scheduler, *, banks: int) -> None:
        self.scheduler, self.banks = scheduler, require_banks("RowScheduler", scheduler.depth, banks)
        super().__init__(
            {
                "zeros": In(banks * scheduler.lanes),
                "present": In(scheduler.depth),
                "working": In(1),
                "shift": In(range(scheduler.depth + 1)),
                "kept": In(range(scheduler.depth + 1)),
                "ms": Out(scheduler.lanes * len(scheduler.options)),
                "advance": Out(range(scheduler.depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes, depth = self.scheduler.lanes, self.scheduler.depth
        m.submodules.scheduler = scheduler = PromotionScheduler(self.scheduler)
        z = [Signal(lanes, name=f"z{step}") for step in range(depth)]
        left = [z[0]]  # a cycle of work always drains the current step: its Z needs no marks
        for step in range(1, depth):
            left.append(Mux(self.working & self.present[step], scheduler.remaining.word_select(step, lanes), z[step]))
        incoming = [self.zeros.word_select(number, lanes) for number in range(self.banks)]
        for row, value in zip(z, refilled(left, incoming, self.shift, self.kept), strict=True):
            m.d.sync += row.eq(value)
        m.d.comb += [
            scheduler.present.eq(self.present),
            scheduler.z.eq(Cat(row | ~self.present[step].replicate(lanes) for step, row in enumerate(z))),
            self.ms.eq(Mux(self.working, scheduler.ms, 0)),
            self.advance.eq(scheduler.advance),
        ]
        return m
