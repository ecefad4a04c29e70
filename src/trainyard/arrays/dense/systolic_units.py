"""Several equal systolic arrays that share the work of a product fold by fold, as the matrix units of a TPU core do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from trainyard.arrays.dense.systolic import Dataflow, Systolic
from trainyard.construction import part
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, one_after_another
from trainyard.ir.folds import Folds, Tiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution


@part
class SystolicUnits:
    """`units` systolic arrays of `rows` x `columns` cells; each takes the next fold when it has ended one.

    A product takes as long as the busiest unit: ceil(folds / units) folds of `Systolic`'s, whose sums along K meet in the
    scratchpad whichever unit they come from. Every unit reads its own operands. The defaults are those of a TPU v2 chip.

    >>> op = MatMul(512, 256, 512)  # 4 x 2 folds of a 128 x 128 array
    >>> SystolicUnits(units=1, rows=128, columns=128).cost(op).cycles == Systolic(rows=128, columns=128).cost(op).cycles
    True
    >>> SystolicUnits(units=4, rows=128, columns=128).cost(op).cycles  # two folds of 2 * 128 + 128 + 512 - 2 cycles
    1787
    """

    units: int = 2
    rows: int = 128
    columns: int = 128
    dataflow: Dataflow = "ws"
    pipelined: bool = False

    @property
    def unit(self) -> Systolic:
        """One of them."""
        return _unit(self.rows, self.columns, self.dataflow, self.pipelined)

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.units * self.unit.peak_macs_per_cycle

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed form of the busiest unit, for the tile search."""
        return (_form(self.unit, self.units),)

    def granule(self) -> tuple[int, int, int]:
        """One unit's; a tile with a fold for every unit is for the tile search to find."""
        return self.unit.granule()

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        """Cycles of one tile inside an accelerator, without the closing -1 of a whole op."""
        return self.folds[0].cycles(m, n, k)

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Stall-free cycles of the busiest unit over the whole op, and the events of all; zeros in the operands change nothing."""
        cycles = self.folds[0].cycles(op.M, op.N, op.K, op.count) - 1
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self.unit.events(op))

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """Events of many tiles at once: those of a single array, since every fold reads and writes what it does there."""
        return self.unit.tile_events(tiles)

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiplies two small matrices, every fold cell by cell on the unit that takes it: the product, and the cycles."""
        from trainyard.arrays.dense.execution import execute_units

        return execute_units(self, a, b)


@cache
def _unit(rows: int, columns: int, dataflow: Dataflow, pipelined: bool) -> Systolic:
    return Systolic(rows=rows, columns=columns, dataflow=dataflow, pipelined=pipelined)


@cache
def _form(unit: Systolic, units: int) -> Folds:
    return replace(unit.folds[0], units=units)
