"""EIE: weights compressed by columns and dealt out row by row, one non-zero input broadcast in each cycle.

S. Han, X. Liu, H. Mao, J. Pu, A. Pedram, M. A. Horowitz, W. J. Dally: EIE: Efficient Inference Engine on Compressed Deep Neural
Network. ISCA 2016.

Row i of the weights lies on processing element i mod P as compressed sparse columns. The non-zeros of an input vector are found one
after the other and broadcast to all elements; each keeps them in a queue and works through its own weights of that column, one in a
cycle. Where any queue is full, nothing is broadcast. Sums stay in their element until the vector ends; then comes the next vector.
Before the first vector the weights are loaded (`arrays.rivals.sides`); the paper has them lie there for good.

Its limitation (SIGMA, HPCA 2020, Table III): every input goes to all elements, over a link of one element per cycle. More elements
than rows do not help, and no product takes fewer cycles than its inputs have non-zeros.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from trainyard.arrays.rivals.sides import LOADED, Sides, load, load_cycles, multiplied, ratio, require_choice, sides
from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds, Pooled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.dense.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

VECTORS, DEPTH = 16, 64
"""Vectors and inputs that a tile should have: each vector ends with all queues empty."""
DRAWN_DEPTH, DRAWN_VECTORS = 2048, 8
"""How much of K and how many vectors are drawn for a density, where queues have to be played through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eie:
    """`elements` processing elements of one multiplier each, behind queues of `queue` inputs.

        cycles             = ceil(non-zero weights / bandwidth) + those of all vectors
        cycles of a vector = its non-zeros, where no element has more than one row (outputs <= elements)
                             else played through: broadcast j waits for the slowest element to end input j - queue

    Fewer non-zeros, of either operand, never take longer. A vector takes at least as many cycles as it has non-zeros, and as the
    longest element has weights for them. `weights` says which operand is dealt out: a by rows, b by columns, or the faster of both.
    Where queues are played through, `sample` vectors at most are looked at and the result carries a 95 % interval. The pipeline's
    fill (four stages) is not counted.

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
    empty: int = assumed(1, "cycles that an input takes in an element without a weight for it: its pointers are read", 0)
    # fmt: on
    sample: int | None = None
    seed: int = 0
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(
            "Eie", elements=self.elements, bandwidth=self.bandwidth, queue=self.queue, index_bits=self.index_bits,
            local_bytes=self.local_bytes, **({} if self.sample is None else {"sample": self.sample}),
        )  # fmt: skip
        require_choice("Eie", self.weights, self.loading)
        if self.empty not in (0, 1):
            raise BadInput(f"Eie: empty must be 0 or 1 cycles, got {self.empty!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise BadInput(f"Eie: seed must be a whole number of at least 0, got {self.seed!r}")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements

    @property
    def folds(self) -> tuple[Folds | Pooled, ...]:
        """Of dense operands: each input keeps the element with the most rows busy for ceil(outputs / elements) cycles.

        With loading that is a pool of `elements` weights that all belong to one input: a pass for each k.
        """
        forms: dict[str, Folds | Pooled] = {
            "a": Folds(m=self.elements, n=1, k=1, stream="k"),
            "b": Folds(m=1, n=self.elements, k=1, stream="k"),
        }
        if self.loading == "counted":
            forms = {
                "a": Pooled(pool=self.elements, load=self.bandwidth, stream="n", drain=0, chunk=1),
                "b": Pooled(pool=self.elements, load=self.bandwidth, stream="m", drain=0, chunk=1),
            }
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    def granule(self) -> tuple[int, int, int]:
        """Where the weights' side is open, tiles may grow along either; no fewer vectors and inputs than queues can even out."""
        many = max(VECTORS, self.elements)
        return many if self.weights == "a" else VECTORS, many if self.weights == "b" else VECTORS, DEPTH

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        return min((self._cost(side, op.count) for side in sides(op, a, b, self.weights)), key=lambda cost: cost.cycles)

    def _cost(self, side: Sides, count: int) -> ArrayCost:
        rows = -(-side.outputs // self.elements)
        if side.dense:
            cycles, half = side.vectors * side.depth * rows, 0.0
        elif rows == 1:
            cycles, half = round(side.input_count), 0.0
        elif side.weights is None or side.inputs is None:
            each, half = _drawn(self, side.outputs, side.depth, side.weight_density, side.input_density)
            cycles, half = round(each * side.input_count), half * side.input_count
        else:
            cycles, half = self._queued(side.weights, side.inputs)
        cycles += load_cycles(side.weight_count, self.bandwidth, self.loading)
        cycles, events = cycles * count, self._events(side, count)
        return ArrayCost(cycles=cycles, finish=(cycles,), events=events, uncertainty=half * count)

    def _events(self, side: Sides, count: int) -> dict[str, float]:
        """Weights go to their elements once and are read there for every input that meets them; an input is read once for all."""
        useful, held = side.useful, side.weight_count
        counted = {
            "mac": useful,
            **side.ports(held, side.input_count),
            **{name: held if name[-1] == side.which else 0 for name in ("local_write_a", "local_write_b")},
            **{name: useful if name[-1] == side.which else 0 for name in ("local_read_a", "local_read_b")},
            "scratchpad_read_out": 0,
            "scratchpad_write_out": side.outputs * side.vectors,
        }
        return {name: number * count for name, number in counted.items()}

    def _entries(self, weights: Bitmap) -> npt.NDArray[np.uint16]:
        import numpy as np

        from trainyard.kernels.arrays.rivals import column_entries

        found = np.zeros((weights.columns, min(self.elements, weights.rows)), np.uint16)
        column_entries(weights.transposed().words, weights.rows, found.shape[1], 2**self.index_bits, found)
        return found

    def _queued(self, weights: Bitmap, inputs: Bitmap) -> tuple[int, float]:
        """Cycles of all vectors, or of a sample of them in proportion to the non-zeros, and half of the interval."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import queue_cycles

        words, counted = inputs.words, inputs.row_counts()
        sampled = self.sample is not None and self.sample < inputs.rows
        if sampled:
            assert self.sample is not None
            chosen = np.sort(np.random.default_rng(self.seed).choice(inputs.rows, max(2, self.sample), replace=False))
            words = words[chosen]
        cycles = np.zeros(len(words), np.int64)
        queue_cycles(self._entries(weights), words, self.queue, self.empty, cycles)
        if not sampled:
            return int(cycles.sum()), 0.0
        each, half = ratio(cycles, counted[chosen], len(words) / inputs.rows)
        return round(each * float(counted.sum())), half * float(counted.sum())

    def execute(self, a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Execution:
        """Multiply two small matrices: loading, lists, queues, broadcasts, cycle by cycle. "best" takes the faster way."""
        import numpy as np

        from trainyard.arrays.dense.execution import Execution

        left, right = multiplied(a, b)
        found = []
        for side in ("a", "b"):
            if self.weights in ("best", side):
                weights, inputs = (left, right.T) if side == "a" else (right.T, left)
                held, loading = load(weights, self.bandwidth, self.loading)
                done = [self._vector(held, vector) for vector in inputs]
                product = np.array([sums for sums, _ in done])
                cycles = loading + sum(cycles for _, cycles in done)
                found.append(Execution(product=product.T if side == "a" else product, cycles=cycles))
        return min(found, key=lambda done: done.cycles)

    def _vector(self, weights: npt.NDArray[np.float64], vector: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
        import numpy as np

        lists = [self._lists(weights[element :: self.elements]) for element in range(min(self.elements, len(weights)))]
        sums = np.zeros(len(weights))
        coming = deque(k for k in range(len(vector)) if vector[k])
        queues: list[deque[tuple[float, deque[tuple[int, float]]]]] = [deque() for _ in lists]
        now = 0
        while coming or any(queues):
            if coming and all(len(waiting) < self.queue for waiting in queues):
                k = coming.popleft()
                for own, waiting in zip(lists, queues, strict=True):
                    waiting.append((float(vector[k]), deque(own[k])))
            for element, waiting in enumerate(queues):
                self._skip(waiting)
                if waiting:
                    value, entries = waiting[0]
                    if entries:
                        place, weight = entries.popleft()
                        sums[element + place * self.elements] += weight * value
                    if not entries:
                        waiting.popleft()
                self._skip(waiting)
            now += 1
        return sums, now

    def _skip(self, waiting: deque[tuple[float, deque[tuple[int, float]]]]) -> None:
        """Where empty inputs take no time, they leave as soon as they stand in front."""
        while not self.empty and waiting and not waiting[0][1]:
            waiting.popleft()

    def _lists(self, rows: npt.NDArray[np.float64]) -> list[list[tuple[int, float]]]:
        """An element's part of each column: (place, value), found by adding up the zeros in between as the hardware does."""
        reach, found = 2**self.index_bits, []
        for column in rows.T:
            entries: list[tuple[int, float]] = []
            at = -1
            for place, value in enumerate(column):
                if value:
                    while place - at - 1 >= reach:
                        at += reach
                        entries.append((at, 0.0))
                    entries.append((place, float(value)))
                    at = place
            found.append(entries)
        return found


@lru_cache(maxsize=1024)
def _drawn(array: Eie, outputs: int, depth: int, weights: float, inputs: float) -> tuple[float, float]:
    """Cycles for each non-zero input, of drawn masks, and half of the interval."""
    import numpy as np

    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.kernels.arrays.rivals import queue_cycles

    deep = min(depth, DRAWN_DEPTH)
    vectors = Bitmap.random(DRAWN_VECTORS, deep, nonzero=inputs, seed=array.seed)
    cycles = np.zeros(DRAWN_VECTORS, np.int64)
    entries = array._entries(Bitmap.random(outputs, deep, nonzero=weights, seed=array.seed + 1))
    queue_cycles(entries, vectors.words, array.queue, array.empty, cycles)
    return ratio(cycles, vectors.row_counts())
