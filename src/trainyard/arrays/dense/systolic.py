"""Systolic arrays: weight-, output- and input-stationary, with SCALE-Sim's stall-free cycle counts in closed form.

A. Samajdar et al.: A Systematic Methodology for Characterizing Scalability of DNN Accelerators using SCALE-Sim. ISPASS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from trainyard.construction import part
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, one_after_another
from trainyard.ir.folds import SEQUENTIAL, Folds, Tiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution

Dataflow = Literal["ws", "os", "is"]


@part
class Systolic:
    """R rows by C columns of multiply-accumulate cells; an edge fold costs as much as a full one.

    | dataflow | folds                   | cycles of a fold |
    |----------|-------------------------|------------------|
    | ws       | ceil(K/R) * ceil(N/C)   | 2R + C + M - 2   |
    | is       | ceil(K/R) * ceil(M/C)   | 2R + C + N - 2   |
    | os       | ceil(M/R) * ceil(N/C)   | R + C + K - 2    |

    Folds follow each other, and the whole op (all `count` products of a batched one) ends one cycle before the last fold would.
    `pipelined` arrays fill the next fold while this one drains: a cell has a second weight register (ws, is), a column drains one
    finished sum per cycle (os), so that folds start max(streamed, R) cycles apart. A single fold costs the same either way.

    >>> Systolic(rows=128, columns=128, dataflow="ws").cost(MatMul(512, 256, 300)).cycles
    5363
    >>> Systolic(rows=128, columns=128, dataflow="ws", pipelined=True).cost(MatMul(512, 256, 300)).cycles
    3453
    """

    rows: int
    columns: int
    dataflow: Dataflow = "ws"
    pipelined: bool = False

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.rows * self.columns

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed form of this array, for the tile search."""
        return (_form(self.rows, self.columns, self.dataflow, self.pipelined),)

    def granule(self) -> tuple[int, int, int]:
        """One array high, wide and deep; the streamed dimension takes the larger side, to hide the fill."""
        side = max(self.rows, self.columns)
        return {
            "ws": (side, self.columns, self.rows),
            "is": (self.columns, side, self.rows),
            "os": (self.rows, self.columns, side),
        }[self.dataflow]

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        """Cycles of one tile inside an accelerator, without the closing -1 of a whole op."""
        return self.folds[0].cycles(m, n, k)

    def utilisation(self, op: MatMul) -> float:
        """Share of the multipliers that do useful work over the whole op."""
        return op.macs / (self.cost(op).cycles * self.peak_macs_per_cycle)

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Stall-free cycles of the whole op (SCALE-Sim's number), and the `events`. Zeros in the operands change nothing."""
        cycles = self.folds[0].cycles(op.M, op.N, op.K, op.count) - 1
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self.events(op))

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def events(self, op: MatMul | Tiles) -> dict[str, float]:
        """MACs, folds, and elements that cross the scratchpad's ports, by operand.

        The stationary operand is read once, a streamed one once for each fold across it; partial sums of the folds along K are
        written and read again, except where they stay in the cells (os).
        """
        left, right, out = op.M * op.K * op.count, op.K * op.N * op.count, op.M * op.N * op.count
        form = self.folds[0]
        along_k = 1 if self.dataflow == "os" else -(-op.K // self.rows)
        across_n = 1 if self.dataflow == "is" else -(-op.N // form.n)
        across_m = 1 if self.dataflow == "ws" else -(-op.M // form.m)
        return {
            "mac": op.macs,
            "array_pass": across_m * across_n * along_k * op.count,
            "scratchpad_read_a": left * across_n,
            "scratchpad_read_b": right * across_m,
            "scratchpad_read_out": out * (along_k - 1),
            "scratchpad_write_out": out * along_k,
        }

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """`events` of many tiles at once."""
        return self.events(tiles)

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiplies two small matrices cell by cell and cycle by cycle: the product, and the cycles."""
        from trainyard.arrays.dense.execution import execute_systolic

        return execute_systolic(self, a, b)


@cache
def _form(rows: int, columns: int, dataflow: Dataflow, pipelined: bool) -> Folds:
    fill = rows if dataflow != "os" else 0  # the stationary operand shifts down row by row
    fixed = fill + rows + columns - 2
    floor = rows if pipelined else SEQUENTIAL
    if dataflow == "os":
        return Folds(m=rows, n=columns, k=1, stream="k", fixed=fixed, floor=floor)
    if dataflow == "ws":
        return Folds(m=1, n=columns, k=rows, stream="m", fixed=fixed, floor=floor)
    return Folds(m=columns, n=1, k=rows, stream="n", fixed=fixed, floor=floor)
