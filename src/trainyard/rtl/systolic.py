"""A weight-stationary systolic array as a circuit: the common baseline, cell by cell as in `arrays.dense.execution`.

Inputs travel right and sums down, one cell a cycle. A cell adds its weight times its input to the sum from above, in one cycle. The
edges are fed staggered, as the simulator feeds them: row r of the inputs r cycles late, column c of the weights c cycles late.

| port              | meaning                                                                                               |
|-------------------|-------------------------------------------------------------------------------------------------------|
| `input_<row>`     | what enters a row; a bit of `valid` says that it is there, one of `first` that it is a fold's first      |
| `weight_<column>` | what enters a column at the top, the weight of the bottom row first                                   |
| `load`            | of column 0; it moves one column a cycle. Weights of a column move down while it is set. In a           |
|                   | `pipelined` array they always move; it is set in the cycle in which all of a column are in their rows  |
| `sum_<column>`    | what leaves at the bottom, where the column's bit of `leaves` is set                                  |

A `pipelined` cell has three weight registers (moving, waiting, active), as the simulator's has, so that the next fold's weights
come while this one's are in use; a plain one has a single register.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.dense.execution import weight_stationary_sums
from trainyard.arrays.dense.systolic import Systolic
from trainyard.checks import require_flag, require_positive
from trainyard.errors import UnknownName
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FORMATS, FP32, FloatFormat, format_of, to_bits, to_float
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register


class SystolicCell(Component):
    """One multiply-accumulate cell: operands of `kind`, sums in FP32."""

    def __init__(self, kind: FloatFormat, pipelined: bool = False) -> None:
        self._kind, self._pipelined = kind, pipelined
        signature: dict[str, Any] = {}
        for name, width in (("input", kind.width), ("valid", 1), ("first", 1), ("weight", kind.width), ("sum", FP32.width)):
            signature |= {f"{name}_in": In(width), f"{name}_out": Out(width)}
        super().__init__({**signature, "load": In(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.multiplier = multiplier = FloatMultiplier(self._kind, FP32)
        m.submodules.adder = adder = FloatAdder(FP32)
        m.d.comb += [
            multiplier.a.eq(self.input_in),
            multiplier.b.eq(self._weight(m)),
            adder.a.eq(self.sum_in),
            adder.b.eq(multiplier.product),
        ]
        m.d.sync += [
            self.input_out.eq(self.input_in),
            self.valid_out.eq(self.valid_in),
            self.sum_out.eq(adder.sum),
        ]
        return m

    def _weight(self, m: Module) -> Any:
        """The weight that this cycle's input is multiplied with."""
        if not self._pipelined:
            with m.If(self.load):
                m.d.sync += self.weight_out.eq(self.weight_in)
            return self.weight_out
        waiting, active, now = (Signal(self._kind.width, name=name) for name in ("waiting", "active", "now"))
        m.d.comb += now.eq(Mux(self.first_in, waiting, active))
        m.d.sync += [self.weight_out.eq(self.weight_in), active.eq(now), self.first_out.eq(self.first_in)]
        with m.If(self.load):
            m.d.sync += waiting.eq(self.weight_in)
        return now


class SystolicArray(Component):
    """Rows x columns of cells."""

    def __init__(self, rows: int, columns: int, kind: FloatFormat, pipelined: bool = False) -> None:
        self._rows, self._columns, self._kind, self._pipelined = rows, columns, kind, pipelined
        signature: dict[str, Any] = {f"input_{row}": In(kind.width) for row in range(rows)}
        signature |= {"valid": In(rows), "first": In(rows), "load": In(1)}
        signature |= {f"weight_{column}": In(kind.width) for column in range(columns)}
        signature |= {f"sum_{column}": Out(FP32.width) for column in range(columns)}
        super().__init__({**signature, "leaves": Out(columns)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        cells = {
            (row, column): SystolicCell(self._kind, self._pipelined) for row in range(self._rows) for column in range(self._columns)
        }
        load = [self.load]
        for column in range(1, self._columns):
            load.append(Signal(name=f"load_{column}"))
            m.d.sync += load[column].eq(load[column - 1])
        for (row, column), cell in cells.items():
            m.submodules[f"cell_{row}_{column}"] = cell
            left, above = cells.get((row, column - 1)), cells.get((row - 1, column))
            m.d.comb += [
                cell.input_in.eq(left.input_out if left else getattr(self, f"input_{row}")),
                cell.valid_in.eq(left.valid_out if left else self.valid[row]),
                cell.first_in.eq(left.first_out if left else self.first[row]),
                cell.weight_in.eq(above.weight_out if above else getattr(self, f"weight_{column}")),
                cell.sum_in.eq(above.sum_out if above else Const(0, FP32.width)),
                cell.load.eq(load[column]),
            ]
        bottom = [cells[self._rows - 1, column] for column in range(self._columns)]
        m.d.comb += [getattr(self, f"sum_{column}").eq(cell.sum_out) for column, cell in enumerate(bottom)]
        m.d.comb += self.leaves.eq(Cat(*(cell.valid_out for cell in bottom)))
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SystolicDesign(Design):
    """The array beside `arrays.dense.execution`: every sum in the cycle in which it leaves its column there."""

    name: ClassVar[str] = "systolic"
    word: ClassVar[str] = "weight-stationary systolic array, the common baseline (SCALE-Sim, ISPASS 2020)"
    rows: int = parameter(2, "rows of cells")
    columns: int = parameter(2, "columns of cells")
    number: str = parameter("fp32", "format of the operands: fp32, fp16 or bf16; sums are fp32")
    pipelined: bool = parameter(False, "cells with weight registers for the next fold, as `Systolic(pipelined=True)`")

    def __post_init__(self) -> None:
        require_positive(self.name, rows=self.rows, columns=self.columns)
        require_flag(self.name, pipelined=self.pipelined)
        if self.number not in FORMATS:
            raise UnknownName("number", str(self.number), FORMATS, where=self.name)

    def build(self) -> Component:
        return SystolicArray(self.rows, self.columns, format_of(self.number), self.pipelined)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        """Folds of random length as the simulator spaces them; all sums are exact in FP32, as the simulator adds in FP64."""
        chance, kind = random.Random(seed), format_of(self.number)
        rows: list[dict[str, int]] = [{} for _ in range(cycles)]
        start, interval = self.rows, 0
        while start < cycles:
            length = chance.choice((1, 2, self.rows, self.rows + 3, 12))
            a, b = (
                np.array([[chance.randint(-9, 9) for _ in range(wide)] for _ in range(high)])
                for high, wide in ((length, self.rows), (self.rows, self.columns))
            )
            self._feed(rows, start, kind, a, b)
            interval = max(length, self.rows) if self.pipelined else 2 * self.rows + self.columns + length - 2
            start += interval + chance.choice((0, 0, 1))
        return list(rows)

    def _feed(self, rows: list[dict[str, int]], start: int, kind: FloatFormat, a: Any, b: Any) -> None:
        """One fold: its weights from `rows` cycles before its first input on."""

        def put(cycle: int, port: str, value: int) -> None:
            if cycle < len(rows):
                rows[cycle][port] = rows[cycle].get(port, 0) | value

        begin = start - self.rows
        for step in range(self.rows):
            if not self.pipelined or step == self.rows - 1:
                put(begin + step, "load", 1)
            for column in range(self.columns):
                put(begin + step + column, f"weight_{column}", to_bits(kind, float(b[self.rows - 1 - step, column])))
        for position in range(len(a)):
            for row in range(self.rows):
                put(start + position + row, f"input_{row}", to_bits(kind, float(a[position, row])))
                put(start + position + row, "valid", 1 << row)
                put(start + position + row, "first", int(position == 0) << row)

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """Each fold as a product of its own on the simulator's array, which loads it `rows` cycles before its first input."""
        array = Systolic(rows=self.rows, columns=self.columns, dataflow="ws", pipelined=self.pipelined)
        table: list[dict[str, int]] = [{"leaves": 0} for _ in stimulus]
        starts = [cycle for cycle, row in enumerate(stimulus) if row.get("first", 0) & 1]
        for start, following in zip(starts, [*starts[1:], len(stimulus)], strict=True):
            length = next((c for c in range(start, following) if not stimulus[c].get("valid", 0) & 1), following) - start
            a, b = self._operands(stimulus, start, length)
            for leaving in weight_stationary_sums(array, a, b):
                cycle = start - self.rows + leaving.cycle + 1
                if cycle < len(stimulus):
                    table[cycle]["leaves"] |= 1 << leaving.column
                    table[cycle][f"sum_{leaving.column}"] = to_bits(FP32, leaving.value)
        return list(table)

    def _operands(self, stimulus: Sequence[Inputs], start: int, length: int) -> tuple[Any, Any]:
        """The inputs and weights of a fold, read from the staggered edges."""
        kind = format_of(self.number)

        def read(cycle: int, port: str) -> float:
            return to_float(kind, stimulus[cycle].get(port, 0)) if cycle < len(stimulus) else 0.0

        a = [[read(start + position + row, f"input_{row}") for row in range(self.rows)] for position in range(length)]
        b = [
            [read(start - 1 - row + column, f"weight_{column}") for column in range(self.columns)] for row in range(self.rows)
        ]  # row r of the weights enters r cycles before the last one
        return np.array(a), np.array(b)
