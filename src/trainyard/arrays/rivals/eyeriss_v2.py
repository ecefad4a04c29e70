"""Eyeriss v2: both operands compressed in the processing elements, sums passed on from neighbour to neighbour.

Y.-H. Chen, T.-J. Yang, J. Emer, V. Sze: Eyeriss v2: A Flexible Accelerator for Emerging Deep Neural Networks on Mobile Devices.
IEEE JETCAS 2019.

A GEMM here: one operand is stationary in the elements' memories, block by block (`high` outputs by `deep` k's, no larger than the
memories hold without zeros). The other operand's non-zeros are streamed; for each, an element takes its block's non-zeros at that k
from the compressed list, `simd` in a cycle. So zeros of both operands are skipped and an element takes

    sum over its k of ceil(non-zeros of its block at k / simd) * non-zeros of the other operand at k

cycles; elements run from queues of their own, and the slowest decides when a pass ends. The partial sums over k are on a column of
elements and are added along it, one element per cycle (a linear reduction), before the next blocks are loaded. Loading takes the
stationary non-zeros at `bandwidth` elements per cycle, each sent once to all copies. Both operands stay in local memory: the
streamed one is fetched once, however many passes there are, over the same bandwidth and while the elements work (`limited`).

The block is one of a few that the shape allows (`kernels/arrays/passes.py`), whichever is fastest with the zeros at hand; none
depends on the zeros, so fewer non-zeros never take longer.

Limitation (SIGMA, Table III): blocks of one shape for all elements (limited weight distribution), and the linear reduction.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, Dense, Density, MatMul, Product, assumed, one_after_another

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

Stationary = Literal["a", "b", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EyerissV2Cost(ArrayCost):
    """Cycles of loading, of the slowest elements and of the reduction, over all passes; the stationary operand and its blocks.

    `block` is (outputs, k's, copies of all blocks side by side).
    """

    loading: int
    working: int
    add: int
    passes: int
    stationary: str
    block: tuple[int, int, int]


class Mapping(NamedTuple):
    """Blocks of `high` x `deep`, as `copies` side by side or in `passes` one after the other, with their cycles.

    An output's sums come from `chains` columns of elements.
    """

    high: int
    deep: int
    copies: int
    passes: int
    loading: int
    working: int
    add: int
    chains: int


@part
class EyerissV2:
    """`rows` x `columns` processing elements of `simd` multipliers; sums run along a column.

    `weights`, `sums` and `activations` are the capacities of an element's memories, in values. `stationary` is the operand that is
    kept in blocks: "best" is the one that takes fewer cycles. `seed` draws a random mask for a density beside a mask.

    >>> array = EyerissV2(rows=2, columns=1, simd=2, weights=4, sums=2, activations=2, bandwidth=4, stationary="a")
    >>> cost = array.cost(MatMul(2, 3, 4))
    >>> cost.loading, cost.working, cost.add, cost.passes  # two blocks of 2 x 2: 8 weights; 3 columns of 2 cycles; a chain of 2
    (2, 6, 2, 1)
    """

    rows: int = 128  # SIGMA, Sec. VI-A: 16384 multipliers; assumed: columns as long as the sides of SIGMA's 128 x 128 TPU
    columns: int = 64
    simd: int = 2  # the paper's element: two multiply-accumulates per cycle
    weights: int = 192  # the paper's element: 96 words of two compressed weights
    sums: int = 32  # the paper's element
    activations: int = 16  # the paper's element
    stationary: Stationary = "best"  # SIGMA, Sec. VI-D: the best of the combinations of matrices counts
    seed: NonNegativeInt = 0
    # fmt: off
    bandwidth: int = assumed(
        128, "elements per cycle that the hierarchical mesh brings from the global buffer, as SIGMA's and the TPU's SRAM", 64, 256)
    streaming: Literal["wide", "limited"] = assumed(
        "limited", "what comes by is fetched within `bandwidth`, or as fast as it is taken (as SIGMA's paper allows SIGMA)", "wide")
    # fmt: on
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sums > 255:
            raise BadInput(f"EyerissV2: an element keeps at most 255 sums, got {self.sums}")

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements * self.simd

    @property
    def local_bytes(self) -> int:
        """Memories of one element, at four bytes an entry."""
        return 4 * (self.weights + self.sums + self.activations)

    def granule(self) -> tuple[int, int, int]:
        """As deep as a column of elements, and long enough to hide the reduction along it."""
        deep = min(self.activations, max(1, self.weights // self.sums)) * self.rows
        return (self.sums, self.sums, deep)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def mappings(self, m: int, k: int, n: int) -> list[Mapping]:
        """All mappings of a stationary (m, k) operand and n columns of the streamed one."""
        rows, count, _ = self._mapping_table(m, k, n)
        return [Mapping(*row) for row in rows[:count].tolist()]

    def _mapping_table(self, m: int, k: int, n: int) -> tuple[npt.NDArray[np.int64], int, int]:
        """Rows of `Mapping` with dense cycles, their number, and the row of the fastest."""
        import numpy as np

        from trainyard.kernels.arrays.passes import MOST, block_choices

        rows = np.empty((MOST, len(Mapping._fields)), np.int64)
        sizes = (self.elements, self.rows, self.simd, self.weights, self.sums, self.activations, self.bandwidth)
        count, fastest = block_choices(m, k, n, sizes, self.streaming == "limited", rows)
        return rows, count, fastest

    def cost(self, op: MatMul, *, a: Mask = DENSE, b: Mask = DENSE) -> EyerissV2Cost:
        """Cycles and events with the stationary operand and the mapping that take the fewest cycles."""
        sides = ("a", "b") if self.stationary == "best" else (self.stationary,)
        a, b = (DENSE if isinstance(mask, Density) and mask.nonzero == 1 else mask for mask in (a, b))
        if isinstance(a, Dense) and isinstance(b, Dense):
            candidates = [(self._dense(*_extents(op, side)), side) for side in sides]
            return self._cost(op, *min(candidates, key=_cycles_first), op.M * op.K, op.K * op.N, op.M * op.N * op.K)
        from trainyard.masks.operand_pairs import density_of, operand_bits, zeros_at_random

        if zeros_at_random(a, b):
            p, q = density_of(a), density_of(b)
            sizes = round(p * op.M * op.K), round(q * op.K * op.N), round(p * q * op.M * op.N * op.K)
            return self._cost(op, *self._expected(op, sides, p, q)[0], *sizes)
        left, right = operand_bits(op, a, b, self.seed)
        useful = int(left.column_counts() @ right.row_counts())
        return self._cost(op, *self._counted(op, sides, left, right, useful), left.nonzeros, right.nonzeros, useful)

    def _dense(self, m: int, k: int, n: int) -> Mapping:
        rows, _, fastest = self._mapping_table(m, k, n)
        return Mapping(*rows[fastest].tolist())

    def _counted(self, op: MatMul, sides: Sequence[str], left: Bitmap, right: Bitmap, useful: int) -> tuple[Mapping, str]:
        """The fastest mapping with the actual zeros, tried in the order expected; those that cannot win are skipped."""
        loads = {"a": left.nonzeros // self.bandwidth, "b": right.nonzeros // self.bandwidth}
        operands: dict[str, tuple[Bitmap, Bitmap, npt.NDArray[np.int64]]] = {}
        best: tuple[Mapping, str] | None = None
        for candidate, side in self._expected(op, sides, left.density, right.density):
            most = sys.maxsize if best is None else _cycles(best[0]) - loads[side] - candidate.add - 1
            if most < useful // self.peak_macs_per_cycle:
                continue
            if side not in operands:
                stationary, streamed = (left, right) if side == "a" else (right.transposed(), left.transposed())
                operands[side] = stationary, streamed, streamed.row_counts()
            mapping = self._slowest(candidate, most, *operands[side])
            if mapping is not None and (best is None or _cycles(mapping) < _cycles(best[0])):
                best = mapping, side
        assert best is not None  # the first mapping is always tried
        return best

    def _slowest(
        self, plan: Mapping, most: int, stationary: Bitmap, streamed: Bitmap, streamed_counts: npt.NDArray[np.int64]
    ) -> Mapping | None:
        """A mapping with the cycles of its slowest elements, None where they work for more than `most`.

        `stationary` is (m, k), `streamed` is (k, n) and has `streamed_counts` non-zeros at each k.
        """
        import numpy as np

        from trainyard.kernels.arrays.passes import range_counts, slowest_elements

        (m, k), n = stationary.shape, streamed.columns
        counts = streamed_counts[None]
        if plan.copies > 1:
            counts = np.zeros((plan.copies, k), np.int64)
            range_counts(streamed.words, -(-n // plan.copies), counts)
        across = -(-m // plan.high)
        taken = self.elements if plan.copies == 1 else across * -(-k // plan.deep)
        nonzeros, worst = np.zeros(plan.passes, np.int64), np.zeros(plan.passes, np.int64)
        if not slowest_elements(stationary.words, counts, (plan.high, plan.deep), taken, self.simd, most, nonzeros, worst):
            return None
        if self.streaming == "limited":  # a k is fetched in the first pass that needs it, and stays for later passes
            reached = np.minimum(-(-np.arange(1, plan.passes + 1) * taken // across) * plan.deep, k)
            fetched = np.diff(np.cumsum(streamed_counts)[reached - 1], prepend=0)
            worst = np.maximum(worst, -(-fetched // self.bandwidth))
        return plan._replace(loading=int((-(-nonzeros // self.bandwidth)).sum()), working=int(worst.sum()))

    def _expected(self, op: MatMul, sides: Sequence[str], p: float, q: float) -> list[tuple[Mapping, str]]:
        """Every mapping with its expected cycles at densities p of A and q of B, the fastest first."""
        mappings = []
        for side in sides:
            size, densities = _extents(op, side), (p, q) if side == "a" else (q, p)
            mappings += [(self._expected_mapping(mapping, size, *densities), side) for mapping in self.mappings(*size)]
        return sorted(mappings, key=_cycles_first)

    def _expected_mapping(self, plan: Mapping, size: tuple[int, int, int], p: float, q: float) -> Mapping:
        """From densities p (stationary) and q (streamed): the slowest of elements with normally distributed work."""
        from trainyard.arrays.rivals.expectation import blom_normal_maximum

        m, k, n = size
        share, blocks = -(-n // plan.copies), -(-m // plan.high) * -(-k // plan.deep)
        mean, square = _issues(plan.high, p, self.simd)
        streamed = share * q
        spread = math.sqrt(max(0.0, plan.deep * (square * (streamed * (1.0 - q) + streamed**2) - (mean * streamed) ** 2)))
        slow = plan.deep * mean * streamed + spread * blom_normal_maximum(blocks * plan.copies / plan.passes)
        slow = min(slow, plan.deep * -(-plan.high // self.simd) * share)
        if self.streaming == "limited":
            slow = max(slow, q * n * k / plan.passes / self.bandwidth)
        least = math.ceil(p * q * m * n * k / self.peak_macs_per_cycle)
        return plan._replace(loading=math.ceil(p * m * k / self.bandwidth), working=max(math.ceil(slow * plan.passes), least))

    def _cost(self, op: MatMul, plan: Mapping, side: str, left: int, right: int, useful: int) -> EyerissV2Cost:
        outputs, count = op.M * op.N, op.count
        events = {
            "mac": useful * count,
            "scratchpad_read_a": left * count,  # both once: they stay in local memory
            "scratchpad_read_b": right * count,
            "scratchpad_write_out": outputs * plan.chains * count,
            "scratchpad_read_out": outputs * (plan.chains - 1) * count,
            "local_read_a": useful * count,
            "local_read_b": useful * count,
            "local_read_out": useful * count,
            "local_write_out": useful * count,
        }
        cycles = max(1, _cycles(plan)) * count
        return EyerissV2Cost(
            cycles=cycles, finish=(cycles,), events=events, loading=plan.loading * count, working=plan.working * count,
            add=plan.add * count, passes=plan.passes * count, stationary=side, block=(plan.high, plan.deep, plan.copies),
        )  # fmt: skip

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiplies two small matrices element by element, with queues, compressed blocks and reduction chains."""
        from trainyard.arrays.execution import Execution

        chosen = self.cost(MatMul(a.shape[0], b.shape[1], a.shape[1]), a=a != 0, b=b != 0)
        is_transposed = chosen.stationary == "b"
        product, cycles = _execute(self, chosen.block, b.T if is_transposed else a, a.T if is_transposed else b)
        return Execution(product=product.T if is_transposed else product, cycles=cycles)


def _extents(op: MatMul, side: str) -> tuple[int, int, int]:
    """Rows and k's of the stationary operand, columns of the streamed one."""
    return (op.M, op.K, op.N) if side == "a" else (op.N, op.K, op.M)


def _cycles(mapping: Mapping) -> int:
    return mapping.loading + mapping.working + mapping.add


def _cycles_first(candidate: tuple[Mapping, str]) -> int:
    return _cycles(candidate[0])


@lru_cache(maxsize=1024)
def _issues(high: int, p: float, simd: int) -> tuple[float, float]:
    """Mean and mean square of ceil(X / simd), X binomial in `high` and p."""
    chance, mean, square = (1.0 - p) ** high, 0.0, 0.0
    if p >= 1.0:
        return float(-(-high // simd)), float(-((-high // simd) ** 2))
    for number in range(high + 1):
        issues = -(-number // simd)
        mean, square = mean + chance * issues, square + chance * issues * issues
        chance *= (high - number) / (number + 1) * p / (1.0 - p)
    return mean, square


def _execute(
    array: EyerissV2, block: tuple[int, int, int], stationary: npt.NDArray[Any], streamed: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], int]:
    """Every element works off its queue with its compressed block; its sums are added along its column."""
    import numpy as np

    (m, k), n, (high, deep, copies) = stationary.shape, streamed.shape[1], block
    across, chunks, share = -(-m // high), -(-k // deep), -(-n // copies)
    taken = array.elements if copies == 1 else across * chunks
    product, cycles, fetched = np.zeros((m, n)), 0, 0
    for start in range(0, across * chunks, taken):
        loaded, slow, chain = 0, 0, set()
        for slot in range(start, min(start + taken, across * chunks)):
            chunk, number = divmod(slot, across)
            chain.add(chunk)
            rows, ks = range(number * high, min(m, (number + 1) * high)), range(chunk * deep, min(k, (chunk + 1) * deep))
            compressed = {k_at: [(row, stationary[row, k_at]) for row in rows if stationary[row, k_at] != 0] for k_at in ks}
            loaded += sum(map(len, compressed.values()))
            for left in range(0, n, share):
                queue = [(k_at, column) for column in range(left, min(n, left + share)) for k_at in ks]
                busy, sums = 0, np.zeros((m, n))
                for k_at, column in queue:
                    value, weights = streamed[k_at, column], compressed[k_at]
                    for first in range(0, len(weights) if value != 0 else 0, array.simd):
                        busy += 1
                        for row, weight in weights[first : first + array.simd]:
                            sums[row, column] += weight * value
                slow = max(slow, busy)
                product += sums  # along the column
        if array.streaming == "limited":
            reached = min(k, (max(chain) + 1) * deep)
            slow = max(slow, -(-int(np.count_nonzero(streamed[fetched:reached])) // array.bandwidth))
            fetched = reached
        cycles += -(-loaded // array.bandwidth) + slow + min(array.rows, len(chain))
    return product, max(1, cycles)
