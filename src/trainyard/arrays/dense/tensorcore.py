"""Tiles of dot-product units, like Tensor Cores: the baseline that TensorDash extends.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020, Sec. III, Table III.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from trainyard.construction import part
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DENSE, ArrayCost, MaskView, MatMul, Operand, Product, Structured, assumed, one_after_another
from trainyard.ir.folds import Folds, Tiles, elementwise_max, elementwise_min

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.tables.area import ComponentArea
    from trainyard.hardware.tables.energy import Component
    from trainyard.ir.ops import ProductOf


STREAM_STEPS = 64
"""Steps that a tile's piece of K should have: TensorDash gains 1.92x on 32 of them where it gains 1.99x on 1024 (60 % zeros)."""


@part
class TensorCore:
    """`tiles` tiles of `rows` x `columns` processing elements, each with `lanes` multipliers that add into one output.

    A tile computes a block of rows x columns outputs in ceil(K / lanes) steps; blocks are distributed over the tiles.

        cycles = ceil(ceil(M/rows) * ceil(N/columns) / tiles) * ceil(K/lanes)

    Where an operand comes with its tensor (a MaskView), the steps are those of the memory layout: each tap of a convolution starts
    a new step, and so does each sample of a weight gradient (`masks.streams`). With `structured` multipliers an operand of n:m
    structure (2:4) takes n/m of the steps: a lane selects the other operand's value by the index of the non-zero
    (`hardware.formats.structured`; A. Mishra et al., 2021).

    >>> TensorCore().cost(MatMul(256, 256, 64)).cycles  # 64 x 64 blocks, 16 for each tile, of 16 steps
    256
    """

    lanes: int = 4
    rows: int = 4
    columns: int = 4
    tiles: int = 256
    scratchpads_bytes: int = 256 * 1024
    structured: bool = True
    # fmt: off
    multicast: bool = assumed(
        True, "tiles that work on the same rows or columns share one read of the chip's memories", False)
    # fmt: on
    operand_aware: ClassVar[bool] = True

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.tiles * self.rows * self.columns * self.lanes

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed forms with operand a on the rows of a tile, and with operand b."""
        shapes = dict.fromkeys(((self.rows, self.columns), (self.columns, self.rows)))
        reads = {"columns_per_read": self.columns, "rows_per_read": self.rows, "shared_by": self.tiles if self.multicast else 0}
        return tuple(Folds(m=m, n=n, k=self.lanes, stream="k", units=self.tiles, **reads) for m, n in shapes)

    @property
    def local_bytes(self) -> int:
        """One of a tile's three scratchpads (A, B and C)."""
        return max(1, self.scratchpads_bytes // self.tiles // 3)

    @property
    def transposers(self) -> int:
        """Transposers between the chip's memories and the tiles: the paper prints their total, their number is assumed."""
        from trainyard.arrays.tensordash.components import transposers

        return transposers(self.tiles)

    def transposers_needed(self, op: MatMul, product: ProductOf, speedup: float = 1.0) -> int:
        """Transposers that keep the tiles busy: blocks of transposed operands read in a cycle, at `speedup` times the dense speed.

        >>> [TensorCore().transposers_needed(MatMul(1024, 1024, 1024), p) for p in ("forward", "grad_input", "grad_weight")]
        [0, 64, 128]
        """
        from trainyard.hardware.formats.bank_layout import TRANSPOSED, transposers_needed

        cost = self.cost(op)
        sides = ("a" if letter == "A" else "b" for letter in TRANSPOSED[product])  # W and G stand on the right
        return transposers_needed(sum(cost.events[f"scratchpad_read_{side}"] for side in sides) / self.lanes, cost.cycles / speedup)

    @property
    def components(self) -> tuple[Component, ...]:
        from trainyard.arrays.tensordash.components import core_components

        return core_components()

    @property
    def component_areas(self) -> tuple[ComponentArea, ...]:
        from trainyard.arrays.tensordash.components import core_areas

        return core_areas(
            lanes=self.lanes, rows=self.rows, columns=self.columns, tiles=self.tiles, scratchpads_bytes=self.scratchpads_bytes
        )

    def granule(self) -> tuple[int, int, int]:
        """Keeps all tiles busy, and K long enough for streams to be scheduled well: a cut of K cuts them."""
        across = math.isqrt(self.tiles)
        return self.rows * across, self.columns * across, self.lanes * STREAM_STEPS

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return min(form.cycles(m, n, k) for form in self.folds)

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        """Cycles of the busiest tile, and the `events`. Of zeros, only those of an n:m structured operand are skipped."""
        pattern = next((side for side in (a, b) if isinstance(side, Structured)), None)
        if pattern is not None:
            return self._structured_cost(op, pattern, a)
        steps = self.stream_steps(op, a, b)
        blocks = min(-(-op.M // form.m) * -(-op.N // form.n) for form in self.folds)
        cycles = -(-blocks // self.tiles) * steps * op.count
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self.events(op, cycles))

    def stream_steps(self, op: MatMul, a: Operand, b: Operand) -> int:
        """Steps of one output's stream: by the memory layout where an operand is a MaskView, else ceil(K / lanes)."""
        for side, operand in (("a", a), ("b", b)):
            if isinstance(operand, MaskView):
                from trainyard.masks.streams import layout

                if op.count > 1:
                    raise BadInput(f"{op} with recorded zeros: give its {op.count} products one by one, each with its own view")
                return sum(layout(operand, side, self.lanes).steps)  # type: ignore[arg-type]  # a or b
        return -(-op.K // self.lanes)

    def _structured_cost(self, op: MatMul, pattern: Structured, a: Operand) -> ArrayCost:
        """The cost of a product whose K has the non-pruned elements alone; the other operand is still read in full."""
        if not self.structured:
            raise NotModelled(f"TensorCore: an operand of {pattern.kept}:{pattern.of} structure needs structured=True")
        short = replace(op, K=-(-op.K * pattern.kept // pattern.of))
        cost = self.cost(short)
        unpruned = self.events(op, cost.cycles)
        other = "b" if isinstance(a, Structured) else "a"
        events = {name: unpruned[name] if name.endswith(f"_{other}") else count for name, count in cost.events.items()}
        return ArrayCost(cycles=cost.cycles, finish=cost.finish, events=events)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def utilisation(self, op: MatMul) -> float:
        """Share of the multipliers that do useful work over the whole op."""
        return op.macs / (self.cost(op).cycles * self.peak_macs_per_cycle)

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """The events of many dense tiles at once."""
        blocks = reduce(elementwise_min, (-(-tiles.M // form.m) * -(-tiles.N // form.n) for form in self.folds))
        return self.events(tiles, -(-blocks // self.tiles) * -(-tiles.K // self.lanes) * tiles.count)

    def events(self, op: MatMul | Tiles, cycles: Any) -> dict[str, float]:
        """MACs, lane slots of the busy time, and elements at the ports of the chip's memories and of the tiles' scratchpads.

        A tile's scratchpads hold a piece of the streams at a time: each block reads its rows and columns again. With multicast,
        the tiles form a grid whose rows share reads of operand a and whose columns share reads of operand b.
        """
        high, wide = -(-op.M // self.rows), -(-op.N // self.columns)
        across = elementwise_min(wide, elementwise_max(math.isqrt(self.tiles), self.tiles // high)) if self.multicast else 1
        down = elementwise_min(high, elementwise_max(1, self.tiles // across)) if self.multicast else 1
        left, right = op.M * op.K * op.count, op.K * op.N * op.count
        return {
            "mac": op.macs,
            "core_slot": cycles * self.peak_macs_per_cycle,
            "transposer_cycle": cycles * self.transposers,
            "array_pass": -(-high * wide // self.tiles) * op.count,
            "scratchpad_read_a": left * -(-wide // across),
            "scratchpad_read_b": right * -(-high // down),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": op.M * op.N * op.count,
            "local_write_a": left * wide,
            "local_read_a": left * wide,
            "local_write_b": right * high,
            "local_read_b": right * high,
            "local_write_out": op.M * op.N * op.count,
            "local_read_out": op.M * op.N * op.count,
        }

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiplies two small matrices block by block: the product, and the cycles of the busiest tile."""
        from trainyard.arrays.dense.execution import execute_tensorcore

        return execute_tensorcore(self, a, b)
