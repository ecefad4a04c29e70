"""A spatial array of wide processing elements with local buffers, output-stationary (the device of MC-DLA, Table II).

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from trainyard.construction import part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds, Tiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution


@part
class Spatial:
    """`elements` processing elements, each with a dot-product unit of `macs_per_element` along K.

    The outputs of a product are distributed over a logical grid of p x q elements: element (i, j) owns the outputs whose row is
    i modulo p and whose column is j modulo q. An element finishes one output before the next, so the busiest one takes

        cycles = ceil(M/p) * ceil(N/q) * ceil(K/macs_per_element)

    and each product takes the grid (p a divisor of `elements`, q = elements / p) with the fewest cycles. Half of an element's
    buffer works while the other fills: it holds a block of sums and one K-chunk of the block's rows and columns, which sets how
    often an operand crosses the scratchpad's port. The paper does not say how it maps a product: the grid is our assumption.

    >>> Spatial(elements=1024, macs_per_element=125).cost(MatMul(64, 256, 1000)).cycles  # 16 outputs each, 8 chunks
    128
    """

    elements: int = 1024
    macs_per_element: int = 125
    buffer_bytes: int = 32 * 1024
    element_bytes: int = assumed(4, "bytes of one element in a local buffer", 2)

    def __post_init__(self) -> None:
        least = 2 * self.element_bytes * (1 + 2 * self.macs_per_element)
        if self.buffer_bytes < least:
            raise BadInput(
                f"Spatial: buffer_bytes={self.buffer_bytes} does not hold one output and its operands twice ({least} needed)"
            )

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements * self.macs_per_element

    @property
    def folds(self) -> tuple[Folds, ...]:
        """One closed form for each shape of the grid, the squarest first; a product takes the fastest."""
        return _forms(self.elements, self.macs_per_element, self.block)

    def _best(self, m: int, n: int) -> Folds:
        return min(self.folds, key=lambda form: form.count(m, n, 1))

    def grid(self, m: int, n: int) -> tuple[int, int]:
        """Shape (p, q) of the grid for an m x n output; of equally fast ones the squarest."""
        best = self._best(m, n)
        return best.m, best.n

    @property
    def block(self) -> int:
        """Side of the largest square of outputs that half a buffer holds together with one K-chunk of its operands."""
        return _block(self.buffer_bytes // 2 // self.element_bytes, self.macs_per_element)

    def granule(self) -> tuple[int, int, int]:
        height, width = self.grid(self.elements, self.elements)
        return height, width, self.macs_per_element

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return self._best(m, n).cycles(m, n, k)

    def utilisation(self, op: MatMul) -> float:
        """Share of the multipliers that do useful work over the whole op."""
        return op.macs / (self.cost(op).cycles * self.peak_macs_per_cycle)

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Cycles of the busiest element, and the MACs and port crossings of `events`. Zeros in the operands change nothing."""
        cycles = self.tile_cycles(op.M, op.N, op.K) * op.count
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self.events(op))

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def events(self, op: MatMul) -> dict[str, float]:
        """MACs, K-long dot products of the busiest element, and elements that cross the scratchpad's ports, by operand."""
        form = self._best(op.M, op.N)
        across_n = -(-op.N // (form.n * self.block))
        across_m = -(-op.M // (form.m * self.block))
        return {
            "mac": op.macs,
            "array_pass": form.count(op.M, op.N, op.K) * op.count,
            "scratchpad_read_a": op.M * op.K * op.count * across_n,
            "scratchpad_read_b": op.K * op.N * op.count * across_m,
            "scratchpad_read_out": 0,
            "scratchpad_write_out": op.M * op.N * op.count,
        }

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """`events` of many tiles at once, each on its own grid."""
        import numpy as np

        forms = self.folds
        best = np.argmin([form.count(tiles.M, tiles.N, 1) for form in forms], axis=0)
        high, wide = (np.array([getattr(form, side) for form in forms], np.float64)[best] for side in ("m", "n"))
        return {
            "mac": tiles.macs,
            "array_pass": -(-tiles.M // high) * -(-tiles.N // wide) * tiles.count,
            "scratchpad_read_a": tiles.M * tiles.K * tiles.count * -(-tiles.N // (wide * self.block)),
            "scratchpad_read_b": tiles.K * tiles.N * tiles.count * -(-tiles.M // (high * self.block)),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": tiles.M * tiles.N * tiles.count,
        }

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiplies two small matrices on the grid: the product, and the cycles of the busiest element."""
        from trainyard.arrays.dense.execution import execute_spatial

        return execute_spatial(self, a, b)


@cache
def _block(room: int, width: int) -> int:
    side = 1
    while (side + 1) ** 2 + 2 * (side + 1) * width <= room:
        side += 1
    return side


@cache
def _forms(elements: int, width: int, block: int) -> tuple[Folds, ...]:
    heights = sorted((height for height in range(1, elements + 1) if elements % height == 0), key=lambda h: abs(h - elements**0.5))
    return tuple(
        Folds(
            m=height,
            n=elements // height,
            k=width,
            stream="k",
            columns_per_read=elements // height * block,
            rows_per_read=height * block,
        )
        for height in heights
    )
