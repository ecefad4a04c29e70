"""EIE: weights compressed by columns and dealt out row by row, one non-zero input broadcast in each cycle.

S. Han, X. Liu, H. Mao, J. Pu, A. Pedram, M. A. Horowitz, W. J. Dally: EIE: Efficient Inference Engine on Compressed Deep Neural
Network. ISCA 2016.

Row i of the weights is stored on processing element i mod P as compressed sparse columns. The non-zeros of an input vector are
broadcast to all elements one after the other; each element queues them and multiplies its own weights of that column, one in a
cycle. While any queue is full, nothing is broadcast. Sums stay in their element until the vector ends; then the next vector begins.
Before the first vector the weights are loaded (`weights_and_inputs`); the paper assumes that they are resident.

Its limitation (SIGMA, HPCA 2020, Table III): every input goes to all elements, over a link of one element per cycle. More elements
than rows do not help, and no product takes fewer cycles than its inputs have non-zeros.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from trainyard.arrays.rivals.expectation import sampled_ratio
from trainyard.arrays.rivals.weights_and_inputs import (
    LOADED,
    WeightsAndInputs,
    fastest_execution,
    load,
    load_cycles,
    role_assignments,
)
from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds, Pooled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

VECTORS, DEPTH = 16, 64
"""Vectors and inputs that a tile should have at least: all queues run empty at the end of each vector."""
DRAWN_DEPTH, DRAWN_VECTORS = 2048, 8
"""Length of K and vectors of the random masks that stand for a density where queues have to be simulated."""


@part
class Eie:
    """`elements` processing elements of one multiplier each, behind queues of `queue` inputs.

        cycles             = ceil(non-zero weights / bandwidth) + those of all vectors
        cycles of a vector = its non-zeros, where no element has more than one row (outputs <= elements)
                             else simulated: broadcast j waits until the slowest element has done input j - queue

    Fewer non-zeros, of either operand, never take longer. A vector takes at least as many cycles as it has non-zeros, and as the
    busiest element has weights for them. `weights` says which operand is distributed: a by rows, b by columns, or the faster one.
    Where queues are simulated, at most `sample` vectors are, and the result carries a 95 % interval. The pipeline's fill (four
    stages) is not counted.

    >>> import numpy as np
    >>> inputs = np.array([[1, 0], [0, 0], [1, 1]])
    >>> Eie(weights="a").cost(MatMul(128, 2, 3), a=np.ones((128, 3)), b=inputs).cycles  # 3 cycles to load, 3 inputs are not zero
    6
    >>> Eie(weights="a", elements=64, loading="left out").cost(MatMul(128, 2, 3)).cycles  # two rows in each element, six inputs
    12
    """

    # fmt: off
    elements: int = 16384                 # SIGMA, Sec. VI-A: all designs at 16384; the paper's own chip has 64
    bandwidth: int = 128                  # SIGMA, Sec. VI-A: elements per cycle that enter, the same for all designs
    queue: int = 8                        # EIE, Fig. 8: deeper queues gain little
    index_bits: int = 4                   # EIE: zeros before an entry are counted in four bits; past 15 a zero is stored
    local_bytes: int = assumed(128 * 1024, "memory of one element's weights, which sets the energy of reading it")
    weights: Literal["best", "a", "b"] = assumed(
        "best", "which operand is compressed and dealt out to the elements", "a", "b", choice=True)
    loading: Literal["counted", "left out"] = assumed("counted", LOADED, "left out")
    empty: NonNegativeInt = assumed(1, "cycles that an input takes in an element without a weight for it: its pointers are read", 0)
    # fmt: on
    sample: int | None = None
    seed: NonNegativeInt = 0
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.empty not in (0, 1):
            raise BadInput(f"Eie: empty must be 0 or 1 cycles, got {self.empty!r}")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements

    @property
    def folds(self) -> tuple[Folds | Pooled, ...]:
        """The closed form of dense operands: each input keeps the busiest element busy for ceil(outputs / elements) cycles.

        With loading that is a pool of `elements` weights that all belong to one input: a pass for each k.
        """
        forms: dict[str, Folds | Pooled] = {
            "a": Folds(m=self.elements, n=1, k=1, stream="k", columns_per_read=0, rows_per_read=0),
            "b": Folds(m=1, n=self.elements, k=1, stream="k", columns_per_read=0, rows_per_read=0),
        }
        if self.loading == "counted":
            forms = {
                "a": Pooled(pool=self.elements, load=self.bandwidth, stream="n", drain=0, chunk=1, buffered=True),
                "b": Pooled(pool=self.elements, load=self.bandwidth, stream="m", drain=0, chunk=1, buffered=True),
            }
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    def granule(self) -> tuple[int, int, int]:
        """Tiles may grow along either side that `weights` allows; at least as many vectors and inputs as queues need to balance."""
        many = max(VECTORS, self.elements)
        return many if self.weights == "a" else VECTORS, many if self.weights == "b" else VECTORS, DEPTH

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        """Cycles and events with the faster operand as the weights, of those that `weights` allows."""
        roles = role_assignments(op, a, b, self.weights)
        return min((self._cost(product, op.count) for product in roles), key=lambda cost: cost.cycles)

    def _cost(self, product: WeightsAndInputs, count: int) -> ArrayCost:
        rows = -(-product.outputs // self.elements)
        half_width = 0.0
        if product.is_dense:
            cycles = product.vectors * product.depth * rows
        elif rows == 1:
            cycles = round(product.input_count)
        elif product.weights is None or product.inputs is None:
            densities = product.weight_density, product.input_density
            cycles_per_input, half_width = _drawn_cycles_per_input(self, product.outputs, product.depth, *densities)
            cycles, half_width = round(cycles_per_input * product.input_count), half_width * product.input_count
        else:
            cycles, half_width = self._queue_cycles(product.weights, product.inputs)
        cycles = (cycles + load_cycles(product.weight_count, self.bandwidth, self.loading)) * count
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self._events(product, count), uncertainty=half_width * count)

    def _events(self, product: WeightsAndInputs, count: int) -> dict[str, float]:
        """Weights are written to their elements once and read there for every non-zero input; an input is read once for all."""
        useful, weights = product.useful_products, product.weight_count
        events = {
            "mac": useful,
            **product.port_events(weights, product.input_count),
            **product.port_events(weights, 0, port="local_write"),
            **product.port_events(useful, 0, port="local_read"),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": product.outputs * product.vectors,
        }
        return {name: number * count for name, number in events.items()}

    def _entries(self, weights: Bitmap) -> npt.NDArray[np.uint16]:
        """Stored entries of each column on each element [columns, elements], those that only bridge long runs of zeros included."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import column_entries

        entries = np.zeros((weights.columns, min(self.elements, weights.rows)), np.uint16)
        column_entries(weights.transposed().words, weights.rows, entries.shape[1], 2**self.index_bits, entries)
        return entries

    def _queue_cycles(self, weights: Bitmap, inputs: Bitmap) -> tuple[int, float]:
        """Cycles of all vectors, or of a sample of them scaled by their non-zeros, and half of the 95 % interval."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import queue_cycles

        words, nonzeros = inputs.words, inputs.row_counts()
        sampled = self.sample is not None and self.sample < inputs.rows
        if sampled:
            assert self.sample is not None
            chosen = np.sort(np.random.default_rng(self.seed).choice(inputs.rows, max(2, self.sample), replace=False))
            words = words[chosen]
        cycles = np.zeros(len(words), np.int64)
        queue_cycles(self._entries(weights), words, self.queue, self.empty, cycles)
        if not sampled:
            return int(cycles.sum()), 0.0
        cycles_per_input, half_width = sampled_ratio(cycles, nonzeros[chosen], len(words) / inputs.rows)
        return round(cycles_per_input * float(nonzeros.sum())), half_width * float(nonzeros.sum())

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiplies two small matrices cycle by cycle: loading, lists, queues, broadcasts. "best" returns the faster run."""
        return fastest_execution(self.weights, a, b, self._execute)

    def _execute(self, weights: npt.NDArray[np.float64], inputs: npt.NDArray[np.float64]) -> Execution:
        import numpy as np

        from trainyard.arrays.execution import Execution

        loaded, cycles = load(weights, self.bandwidth, self.loading)
        vectors = [self._vector(loaded, vector) for vector in inputs]
        product = np.array([sums for sums, _ in vectors]).T
        return Execution(product=product, cycles=cycles + sum(vector_cycles for _, vector_cycles in vectors))

    def _vector(self, weights: npt.NDArray[np.float64], vector: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
        """Sums of one input vector, and its cycles."""
        import numpy as np

        lists = [self._lists(weights[element :: self.elements]) for element in range(min(self.elements, len(weights)))]
        sums = np.zeros(len(weights))
        remaining = deque(k for k in range(len(vector)) if vector[k])
        queues: list[deque[tuple[float, deque[tuple[int, float]]]]] = [deque() for _ in lists]
        cycles = 0
        while remaining or any(queues):
            if remaining and all(len(waiting) < self.queue for waiting in queues):
                k = remaining.popleft()
                for own, waiting in zip(lists, queues, strict=True):
                    waiting.append((float(vector[k]), deque(own[k])))
            for element, waiting in enumerate(queues):
                self._skip(waiting)
                if waiting:
                    value, entries = waiting[0]
                    if entries:
                        row, weight = entries.popleft()
                        sums[element + row * self.elements] += weight * value
                    if not entries:
                        waiting.popleft()
                self._skip(waiting)
            cycles += 1
        return sums, cycles

    def _skip(self, waiting: deque[tuple[float, deque[tuple[int, float]]]]) -> None:
        """Drops inputs without weights from the front of a queue where they take no time."""
        while not self.empty and waiting and not waiting[0][1]:
            waiting.popleft()

    def _lists(self, rows: npt.NDArray[np.float64]) -> list[list[tuple[int, float]]]:
        """An element's part of each column as (row, value) entries, the rows counted from runs of zeros as the hardware does."""
        reach, columns = 2**self.index_bits, []
        for column in rows.T:
            entries: list[tuple[int, float]] = []
            at = -1
            for row, value in enumerate(column):
                if value:
                    while row - at - 1 >= reach:
                        at += reach
                        entries.append((at, 0.0))
                    entries.append((row, float(value)))
                    at = row
            columns.append(entries)
        return columns


@lru_cache(maxsize=1024)
def _drawn_cycles_per_input(
    array: Eie, outputs: int, depth: int, weight_density: float, input_density: float
) -> tuple[float, float]:
    """Cycles for each non-zero input on random masks of these densities, and half of the 95 % interval."""
    import numpy as np

    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.kernels.arrays.rivals import queue_cycles

    drawn_depth = min(depth, DRAWN_DEPTH)
    vectors = Bitmap.random(DRAWN_VECTORS, drawn_depth, nonzero=input_density, seed=array.seed)
    cycles = np.zeros(DRAWN_VECTORS, np.int64)
    entries = array._entries(Bitmap.random(outputs, drawn_depth, nonzero=weight_density, seed=array.seed + 1))
    queue_cycles(entries, vectors.words, array.queue, array.empty, cycles)
    return sampled_ratio(cycles, vectors.row_counts())
