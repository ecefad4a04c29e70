"""OuterSPACE: outer products without zeros, then a merge of what they left.

S. Pal, J. Beaumont, D.-H. Park, A. Amarnath, S. Feng, C. Chakrabarti, H.-S. Kim, D. Blaauw, T. Mudge, R. Dreslinski: OuterSPACE:
An Outer Product Based Sparse Matrix Multiplication Accelerator. HPCA 2018.

*Multiply*: column k of A times row k of B, non-zeros alone. A chunk is one element of the column times the row: as many products as
the row has non-zeros, one per cycle, on the first free processing element. The products of a chunk are a sorted list that is
chained to its output row. *Merge*: an output row of n partial products in r lists is merged by keeping the heads of its lists
sorted. The next element of a list is inserted by binary search, ceil(log2 r) comparisons, so that the row takes n * ceil(log2 r)
steps (n where there is one list: it is passed on). The two phases follow each other. The output may also be stored by columns: then
an element of B goes with a column of A.

Limitation (SIGMA, Table III): partial sums are accumulated in linked lists, at best O(N log N). This is that best case: insertion
by binary search, and the steps of all rows spread evenly over the elements that merge, however few the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, Dense, MatMul, Product, assumed, one_after_another

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

Lists = Literal["rows", "columns", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSpaceCost(ArrayCost):
    """Cycles of the two phases, and whether rows or columns of the output were merged."""

    multiply: int
    merge: int
    lists: str


@part
class OuterSpace:
    """`elements` processing elements of one multiplier each, a share of which stays awake to merge.

    `lists` says whether linked lists form output rows, output columns, or whichever takes fewer cycles. `seed` draws a random mask
    for a density beside a mask.

    >>> import numpy as np
    >>> array = OuterSpace(elements=4, merge_share=0.5, lists="rows")
    >>> cost = array.cost(MatMul(2, 2, 4), a=np.array([[1, 1, 1, 1], [0, 0, 0, 1]]), b=np.ones((4, 2)))
    >>> cost.multiply, cost.merge  # 5 chunks of 2 products; 8 products of 4 lists and 2 of 1 list: 8 * 2 + 2 steps on 2 elements
    (4, 9)
    """

    elements: int = 16384  # SIGMA, Sec. VI-A: every design is scaled to 16384; the chip of the paper has 16 tiles of 16
    lists: Lists = "best"  # the output may be compressed by rows or by columns, as the inputs are
    seed: NonNegativeInt = 0
    # fmt: off
    merge_share: float = assumed(
        0.5, "share of the elements that merge, one comparison per cycle each; the others sleep (the paper's tiles wake 8 of 16)",
        0.25, 1.0)
    # fmt: on
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.merge_share, bool) or not isinstance(self.merge_share, int | float) or not 0 < self.merge_share <= 1:
            raise BadInput(f"OuterSpace: merge_share is a share of the elements above 0 and up to 1, got {self.merge_share!r}")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements

    @property
    def merging(self) -> int:
        """Comparisons per cycle in the merge phase."""
        return max(1, int(self.elements * self.merge_share))

    def granule(self) -> tuple[int, int, int]:
        """Tiles that cut k merge shorter lists: earlier tiles leave sums in the scratchpad, no lists."""
        side = max(1, math.isqrt(self.elements))
        return (side, side, side)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Mask = DENSE, b: Mask = DENSE) -> OuterSpaceCost:
        """Cycles of both phases and events, with lists by rows or by columns, whichever is faster where `lists` is "best"."""
        best = min((cost for cost in self._costs(op, a, b) if self.lists in (cost.lists, "best")), key=lambda cost: cost.cycles)
        return best if op.count == 1 else _repeated(best, op.count)

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiplies two small matrices through lists of partial products, and counts the cycles of both phases."""
        from trainyard.arrays.execution import Execution

        chosen = self.cost(MatMul(a.shape[0], b.shape[1], a.shape[1]), a=a != 0, b=b != 0).lists
        product, cycles = _execute(self, a, b) if chosen == "rows" else _execute(self, b.T, a.T)
        return Execution(product=product if chosen == "rows" else product.T, cycles=cycles)

    def _costs(self, op: MatMul, a: Mask, b: Mask) -> list[OuterSpaceCost]:
        """One product with lists by rows and by columns, as far as `lists` allows."""
        if isinstance(a, Dense) and isinstance(b, Dense):
            return [self._dense(op)]
        allowed = [lists for lists in ("rows", "columns") if self.lists in (lists, "best")]
        from trainyard.masks.operand_pairs import density_of, operand_bits, zeros_at_random

        if zeros_at_random(a, b):
            p, q = density_of(a), density_of(b)
            arguments = {"rows": (op, p, q), "columns": (op.transposed(), q, p)}
            return [self._expected(*arguments[lists], lists) for lists in allowed]
        left, right = operand_bits(op, a, b, self.seed)
        column_counts, row_counts = left.column_counts(), right.row_counts()
        by_lists = {"rows": (left, column_counts, row_counts), "columns": (right.transposed(), row_counts, column_counts)}
        return [self._counted(op, *by_lists[lists], lists) for lists in allowed]

    def _dense(self, op: MatMul) -> OuterSpaceCost:
        """All chunks have one length; the merge takes the same steps by rows and by columns."""
        rows, columns = -(-op.M * op.K // self.elements) * op.N, -(-op.N * op.K // self.elements) * op.M
        by_rows = self.lists == "rows" or (self.lists == "best" and rows <= columns)
        products, operands = op.M * op.N * op.K, (op.M * op.K, op.K * op.N)
        steps = products * max(1, (op.K - 1).bit_length())
        cycles, read = (rows, operands) if by_rows else (columns, operands[::-1])
        return self._cost(cycles, steps, products, read, op.M * op.N, "rows" if by_rows else "columns")

    def _counted(
        self, op: MatMul, left: Bitmap, chunks: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], lists: str
    ) -> OuterSpaceCost:
        """From bits: `left` has a row for each output list; each k has so many `chunks` of so many products (`lengths`)."""
        import numpy as np

        from trainyard.kernels.arrays.dealing import list_schedule
        from trainyard.kernels.arrays.merging import merge_steps

        padded = np.zeros(left.words.shape[1] * 64, np.int64)
        padded[: lengths.size] = lengths
        rows = np.empty((left.rows, 3), np.int64)
        merge_steps(left.words, padded, rows)
        products, steps = int(rows[:, 0].sum()), int(rows[:, 1].sum())
        across = op.N if lists == "rows" else op.M
        read = int(chunks[lengths > 0].sum()), int(lengths[chunks > 0].sum())
        merged = np.maximum(rows[:, 2], 1)
        outputs = round(float((across * (1.0 - (1.0 - rows[:, 0] / (merged * across)) ** merged)).sum()))
        return self._cost(int(list_schedule(chunks, lengths, self.elements)), steps, products, read, outputs, lists)

    def _expected(self, op: MatMul, p: float, q: float, lists: str) -> OuterSpaceCost:
        """From densities p of A and q of B with independent zeros."""
        length, some = q * op.N, 1.0 - (1.0 - q) ** op.N
        chunks = p * op.M * op.K
        multiply = math.ceil(math.ceil(round(chunks * some, 6) / self.elements) * length / some) if p * q else 0
        steps = round(op.M * length / some * _insertions(op.K, p * some)) if p * q else 0
        products = round(p * q * op.macs / op.count)
        outputs = round(op.M * op.N * (1.0 - (1.0 - p * q) ** op.K))
        read = round(chunks * some), round(q * op.N * op.K * (1.0 - (1.0 - p) ** op.M))
        return self._cost(multiply, steps, products, read, outputs, lists)

    def _cost(self, multiply: int, steps: int, products: int, read: tuple[int, int], outputs: int, lists: str) -> OuterSpaceCost:
        merge = -(-steps // self.merging)
        read_a, read_b = read if lists == "rows" else read[::-1]
        events = {
            "mac": products,
            "merge_step": steps,
            "scratchpad_read_a": read_a,  # outer products read every useful non-zero once
            "scratchpad_read_b": read_b,
            "scratchpad_write_out": products + outputs,  # then sums, as if the columns of a row's lists were independent
            "scratchpad_read_out": products,
        }
        cycles = max(1, multiply + merge)
        return OuterSpaceCost(cycles=cycles, finish=(cycles,), events=events, multiply=multiply, merge=merge, lists=lists)


def _repeated(cost: OuterSpaceCost, count: int) -> OuterSpaceCost:
    cycles, events = cost.cycles * count, {name: number * count for name, number in cost.events.items()}
    return replace(
        cost, cycles=cycles, finish=(cycles,), events=events, multiply=cost.multiply * count, merge=cost.merge * count
    )  # fmt: skip


def _insertions(depth: int, share: float) -> float:
    """Expected lists of a row times comparisons of an insertion, where each of `depth` k leaves a list with probability `share`.

    A row of r lists takes max(1, number of j with r > 2^j) comparisons. Of r, binomial, E[r; r > t] = depth * share * P[r' >= t]
    with r' binomial in depth - 1, here as a normal distribution; no r can be above `depth`.
    """
    mean = depth * share
    if share >= 1.0:
        return mean * max(1, (depth - 1).bit_length())
    centre, spread = (depth - 1) * share, math.sqrt(max((depth - 1) * share * (1.0 - share), 1e-12))
    tails = (0.5 * math.erfc((2.0**j - 0.5 - centre) / spread / math.sqrt(2.0)) for j in range(1, (depth - 1).bit_length()))
    return mean * (1.0 + sum(tails))


def _execute(array: OuterSpace, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], int]:
    """Output by rows: each chunk runs on one element, each list is merged into its row."""
    import heapq

    import numpy as np

    from trainyard.kernels.arrays.merging import merge_lists

    free = [0] * array.elements
    lists: list[list[tuple[Any, Any]]] = [[] for _ in range(a.shape[0])]
    last = 0
    for k in range(a.shape[1]):
        columns = np.flatnonzero(b[k])
        for row in np.flatnonzero(a[:, k]) if columns.size else ():
            lists[row].append((columns, a[row, k] * b[k, columns]))
            last = max(last, free[0] + columns.size)
            heapq.heapreplace(free, free[0] + columns.size)
    product = np.zeros((a.shape[0], b.shape[1]))
    steps = 0
    for number, chained in enumerate(lists):
        if chained:
            starts = np.cumsum([0, *(columns.size for columns, _ in chained)])
            columns, values = (np.concatenate(part) for part in zip(*chained, strict=True))
            steps += merge_lists(columns, values.astype(np.float64), starts, product[number])
    return product, max(1, last + -(-steps // array.merging))
