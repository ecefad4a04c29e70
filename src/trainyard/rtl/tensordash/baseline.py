"""The dense tile that TensorDash is compared with: the same arithmetic, one step a cycle, nothing skipped.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Fig. 2, Table IV.
The simulator's part is `arrays.tensordash.element.tile` with `skips="none"`. A row of each scratchpad goes straight to the
multipliers: no staging buffers, no schedulers, no multiplexers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np
from amaranth.hdl import Cat, Module, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.element import tile
from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.checks import require_positive
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register
from trainyard.rtl.tensordash import parameters
from trainyard.rtl.tensordash.dot_product import DotProduct, Numbers, numbers_of, require_pipeline
from trainyard.rtl.tensordash.streams import LONGEST, packed, unpacked


class DenseTile(Component):
    """Rows x columns elements; `a` has a step of each column, `b` one of each row; `total` has the accumulators row by row."""

    def __init__(self, numbers: Numbers, *, lanes: int, rows: int, columns: int, pipeline: int = 0) -> None:
        require_positive("DenseTile", lanes=lanes, rows=rows, columns=columns)
        self.numbers, self.lanes, self.rows, self.columns, self.pipeline = numbers, lanes, rows, columns, pipeline
        super().__init__(
            {
                "working": In(1),
                "ends": In(1),
                "a": In(columns * lanes * numbers.operand_bits),
                "b": In(rows * lanes * numbers.operand_bits),
                "total": Out(rows * columns * numbers.sum_bits),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        step_bits = self.lanes * self.numbers.operand_bits
        totals, done = list[Value](), list[Value]()
        for row in range(self.rows):
            for column in range(self.columns):
                element = DotProduct(numbers=self.numbers, lanes=self.lanes, pipeline=self.pipeline)
                m.submodules[f"element{row}_{column}"] = element
                m.d.comb += [
                    element.a.eq(self.a.word_select(column, step_bits)),
                    element.b.eq(self.b.word_select(row, step_bits)),
                    element.working.eq(self.working),
                    element.ends.eq(self.ends),
                ]
                totals.append(element.total)
                done.append(element.done)
        m.d.comb += [self.total.eq(Cat(*totals)), self.done.eq(done[0])]
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineDesign(Design):
    """The dense tile; its inputs are whole output blocks of random lengths, with idle cycles between some of them."""

    name: ClassVar[str] = "tensordash-baseline"
    word: ClassVar[str] = "the dense tile of the same arithmetic (TensorDash, MICRO 2020, Sec. III, Fig. 2)"

    # fmt: off
    lanes: int    = parameter(4, parameters.LANES)
    rows: int     = parameter(4, "rows of elements")
    columns: int  = parameter(4, "elements of a row")
    number: str   = parameter("int8", parameters.NUMBER)
    pipeline: int = parameter(0, parameters.PIPELINE)
    # fmt: on

    def __post_init__(self) -> None:
        require_positive(self.name, lanes=self.lanes, rows=self.rows, columns=self.columns)
        require_pipeline(self.name, self.pipeline)
        _ = self.numbers

    @property
    def numbers(self) -> Numbers:
        return numbers_of(self.name, self.number)

    def build(self) -> DenseTile:
        return DenseTile(self.numbers, lanes=self.lanes, rows=self.rows, columns=self.columns, pipeline=self.pipeline)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        rng, draw, table = Random(seed), np.random.default_rng(seed), list[Inputs]()
        while True:
            steps = rng.randint(1, LONGEST)
            idle: list[Inputs] = [{}] * rng.choice((0, 0, 0, 1, 3))
            if len(table) + len(idle) + steps + self.pipeline + 1 > cycles:
                return table + [{}] * (cycles - len(table))
            table += idle
            for step in range(steps):
                words = [
                    packed(self.numbers.random(draw, (count, self.lanes)), self.numbers.operand_bits)
                    for count in (self.columns, self.rows)
                ]
                table.append({"working": 1, "ends": int(step == steps - 1), "a": words[0], "b": words[1]})

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """By the simulator's dense schedule."""
        table: list[dict[str, int]] = [{"done": 0} for _ in stimulus]
        scheduler, numbers = Scheduler(lanes=self.lanes, depth=1), self.numbers
        collected: list[Inputs] = []
        for cycle, row in enumerate(stimulus):
            if not row.get("working"):
                continue
            collected.append(row)
            if not row["ends"]:
                continue
            sides = []
            for port, count in (("a", self.columns), ("b", self.rows)):
                steps = [unpacked(each[port], count * self.lanes, numbers.operand_bits) for each in collected]
                sides.append(numbers.values(np.stack(steps).reshape(len(steps), count, self.lanes).transpose(1, 0, 2).copy()))
            execution = tile(sides[0], sides[1], scheduler, numbers.simulated, skips="none")
            assert execution.cycles == len(collected)
            table[cycle + 1 + self.pipeline] = {"done": 1, "total": packed(numbers.total_bits(execution.product), numbers.sum_bits)}
            collected = []
        return list(table)
