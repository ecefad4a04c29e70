"""Packed systolic array: columns of a sparse filter matrix combined, so that one column of cells does the work of several.

H. T. Kung, B. McDanel, S. Q. Zhang: Packing Sparse Convolutional Neural Networks for Efficient Systolic Array Implementations:
Column Combining Under Joint Optimization. ASPLOS 2019.

A filter matrix has a row for each output and a column for each input, that is, for each k. Columns with no two non-zeros in one
row share a column of cells: a cell holds the one weight and selects its input from the group's inputs. With G groups instead of K
columns the array is a weight-stationary one (`systolic.py`) for an (M, G) x (G, N) product. Rows of a group without a weight stay
zeros, and zeros of the inputs are streamed like other values.

Where two columns conflict in a row, the paper prunes the smaller weight (groups of up to 8 columns, on average no more than half a
conflict per row) and retrains: the network is made to fit. Random zeros do not fit: of columns with 4096 rows at 80 % zeros no two
can be combined. Hence two rules; the first is the default, since it is what the paper's design expects of a network:

  - `factor`: as many groups as there would be, had training moved each output's weights into groups of their own: K over the
    factor, but no fewer than the weights of the fullest output. Never more groups where there are fewer non-zeros.
  - `measured`: columns of the very mask are combined, densest first, each into the fullest group it fits; `conflicts` above 0
    prune, and the cost says how much. A heuristic: fewer non-zeros may pack worse.

Limitation (SIGMA, Table III): needs algorithmic adjustments, and still holds stationary zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from trainyard.arrays.dense.systolic import Systolic
from trainyard.construction import NonNegative, NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, Dense, MatMul, Product, assumed, one_after_another

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.ir.folds import Folds
    from trainyard.masks.contraction import Mask, Side

Stationary = Literal["a", "b", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCost(ArrayCost):
    """`groups` of columns, the operand they are of, and the share of its non-zeros that packing would prune."""

    groups: int
    stationary: str
    pruned: float = 0.0


class Packed(NamedTuple):
    """A packed filter matrix: groups, columns with any non-zero, non-zeros, and those pruned."""

    groups: int
    columns: int
    nonzeros: int
    pruned: int = 0


@part
class PackedSystolic:
    """`rows` x `columns` cells, each of which takes one of up to `factor` inputs.

    `stationary` is the operand that is packed: "best" is the one that takes fewer cycles. `window` bounds the groups tried for a
    column; `seed` draws a random mask for a density where bits are needed. Cycles are those of tiles, without the closing -1 of a
    whole op; zeros that stay in cells are multiplied (they count as `mac`).

    >>> import numpy as np
    >>> weights = np.array([[1, 0], [0, 1], [1, 1]])  # K = 3 columns of two outputs: the first two go together
    >>> PackedSystolic(rows=2, columns=2, packing="measured", stationary="b").cost(MatMul(4, 2, 3), b=weights).groups
    2
    """

    rows: int = 128  # SIGMA, Sec. VI-A: 16384 in every design
    columns: int = 128
    factor: int = 8  # the paper's groups of up to 8
    conflicts: NonNegative = 0.0  # on average per row; 0.5 in the paper, whose network is trained on
    stationary: Stationary = "best"
    window: int = 256
    seed: NonNegativeInt = 0
    # fmt: off
    packing: Literal["factor", "measured"] = assumed(
        "factor", "columns combine as those of a network trained for it, or as the mask given lets them", "measured")
    # fmt: on
    operand_aware: ClassVar[bool] = True

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.rows * self.columns

    @property
    def folds(self) -> tuple[Folds, ...]:
        """Dense columns do not combine: the forms of the systolic array, with either operand stationary."""
        return tuple(form for side in self._sides for form in _systolic(self, side).folds)

    @property
    def _sides(self) -> tuple[Side, ...]:
        return ("a", "b") if self.stationary == "best" else (self.stationary,)

    def granule(self) -> tuple[int, int, int]:
        """Deep enough for `factor` columns to a group: packing would leave folds of shallower tiles half empty."""
        m, n, k = _systolic(self, self._sides[-1]).granule()
        return (m, n, k * self.factor)

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return min(form.cycles(m, n, k) for form in self.folds)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Mask = DENSE, b: Mask = DENSE) -> PackedCost:
        """Cycles and events of a weight-stationary array on the packed operand, the faster one where `stationary` is "best"."""
        costs = [self._cost(op, side, self._packed(op, side, a if side == "a" else b)) for side in self._sides]
        return min(costs, key=lambda cost: cost.cycles)

    def pack(self, weights: Bitmap) -> tuple[npt.NDArray[np.int64], int, int]:
        """Combines the columns of a filter matrix [k, outputs]: the group of each k (-1: empty), groups, elements pruned."""
        import numpy as np

        from trainyard.kernels.arrays.packing import NONE, combine

        counts = weights.row_counts()
        order = np.argsort(-counts, kind="stable")[: int(np.count_nonzero(counts))]
        groups = np.full(weights.rows, NONE, np.int64)
        count, pruned = combine(weights.words, order, self.factor, int(self.conflicts * weights.columns), self.window, groups)
        return groups, int(count), int(pruned)

    def _packed(self, op: MatMul, side: Side, operand: Mask) -> Packed:
        from trainyard.masks.operand_pairs import density_of, operand_bitmap, zeros_at_random

        outputs = op.M if side == "a" else op.N
        if isinstance(operand, Dense):
            return Packed(op.K, op.K, op.K * outputs)
        if self.packing == "factor" and zeros_at_random(operand):
            return self._expected(op.K, outputs, density_of(operand))
        bits = operand_bitmap(op, operand, side, self.seed)
        weights = bits.transposed() if side == "a" else bits
        if self.packing == "measured":
            groups, count, pruned = self.pack(weights)
            return Packed(max(1, count), int((groups >= 0).sum()), bits.nonzeros, pruned)
        filled, fullest = int((weights.row_counts() > 0).sum()), int(weights.column_counts().max())
        return Packed(max(1, -(-filled // self.factor), fullest), filled, bits.nonzeros)

    def _expected(self, depth: int, outputs: int, share: float) -> Packed:
        """From a density: the fullest of `outputs` outputs with binomial numbers of weights, taken as normal."""
        from trainyard.arrays.rivals.expectation import blom_normal_maximum

        fullest, filled = depth * share, round(depth * (1.0 - (1.0 - share) ** outputs))
        if outputs > 1 and 0.0 < share < 1.0:
            fullest += blom_normal_maximum(outputs) * math.sqrt(depth * share * (1.0 - share))
        groups = max(1, -(-filled // self.factor), min(depth, round(fullest)))
        return Packed(groups, filled, round(depth * outputs * share))

    def _cost(self, op: MatMul, side: Side, packed: Packed) -> PackedCost:
        """An edge fold costs as much as a full one; inputs of all columns of a group stream through its cells."""
        systolic = _systolic(self, side)
        cycles = systolic.folds[0].cycles(op.M, op.N, packed.groups, op.count)
        events = systolic.events(MatMul(op.M, op.N, packed.groups, op.count))
        across = -(-(op.M if side == "a" else op.N) // self.columns)
        streamed = packed.columns * (op.N if side == "a" else op.M) * across * op.count
        stationary = (packed.nonzeros - packed.pruned) * op.count
        reads = (stationary, streamed) if side == "a" else (streamed, stationary)
        events["scratchpad_read_a"], events["scratchpad_read_b"] = reads
        return PackedCost(
            cycles=cycles, finish=(cycles,), events=events, groups=packed.groups, stationary=side,
            pruned=packed.pruned / max(1, packed.nonzeros),
        )  # fmt: skip

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Packs one operand and multiplies fold by fold: the product of the weights left after pruning, and the cycles."""
        from trainyard.arrays.execution import Execution

        if self.packing != "measured":
            raise BadInput("PackedSystolic: a mask is not packed by a factor, training would change it; give packing='measured'")
        side = self.cost(MatMul(a.shape[0], b.shape[1], a.shape[1]), a=a != 0, b=b != 0).stationary
        product, cycles = _execute(self, b.T, a.T) if side == "a" else _execute(self, a, b)
        return Execution(product=product.T if side == "a" else product, cycles=cycles)


@lru_cache(maxsize=64)
def _systolic(array: PackedSystolic, side: Side) -> Systolic:
    return Systolic(rows=array.rows, columns=array.columns, dataflow="is" if side == "a" else "ws")


def _execute(array: PackedSystolic, inputs: npt.NDArray[Any], weights: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], int]:
    """R groups by C outputs at a time; each cell selects its input from the group's inputs."""
    import numpy as np

    from trainyard.hardware.formats.bitmaps import Bitmap

    groups, count, _ = array.pack(Bitmap.of(weights))
    cells, chosen = np.zeros((max(1, count), weights.shape[1])), np.zeros((max(1, count), weights.shape[1]), np.int64)
    for k in np.flatnonzero(groups >= 0):
        larger = np.abs(weights[k]) > np.abs(cells[groups[k]])  # of two weights in conflict, the smaller one is pruned
        cells[groups[k], larger], chosen[groups[k], larger] = weights[k, larger], k
    form = _systolic(array, "b").folds[0]
    product, cycles = np.zeros((inputs.shape[0], weights.shape[1])), 0
    for top in range(0, cells.shape[0], array.rows):
        for left in range(0, cells.shape[1], array.columns):
            for row, column in np.ndindex(cells[top : top + array.rows, left : left + array.columns].shape):
                cell = top + row, left + column
                product[:, cell[1]] += inputs[:, chosen[cell]] * cells[cell]
            cycles += form.fixed + inputs.shape[0]
    return product, cycles
