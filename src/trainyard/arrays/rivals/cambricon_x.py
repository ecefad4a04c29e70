"""Cambricon-X: weights without their zeros, each processing element a fixed adder tree that sums one output at a time.

S. Zhang, Z. Du, L. Zhang, H. Lan, S. Liu, L. Li, Q. Guo, T. Chen, Y. Chen: Cambricon-X: An Accelerator for Sparse Neural Networks.
MICRO 2016.

An element stores the non-zero weights of its outputs with the distances between them; an indexing module picks the inputs that they
need from the vector that all elements share. In a cycle an element multiplies as many pairs as its tree has leaves, all of one
output. Inputs are dense: their zeros are multiplied like any other value. Before the first vector the weights are loaded
(`weights_and_inputs`), which the paper leaves out.

Its limitation (SIGMA, HPCA 2020, Table III): a tree adds up one output at a time. Leaves that the last cycle of an output does not
fill stay idle, and only the zeros of one operand are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainyard.arrays.rivals.expectation import binomial, expected_maximum, step_distribution
from trainyard.arrays.rivals.weights_and_inputs import (
    LOADED,
    WeightsAndInputs,
    fastest_execution,
    load,
    load_cycles,
    role_assignments,
)
from trainyard.construction import part
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds, Pooled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.masks.contraction import Mask

VECTORS, TREES = 16, 64
"""Vectors and trees along K that a tile should have: an output with a tenth of its weights fills six trees and part of one."""


@part
class CambriconX:
    """`elements` processing elements with trees of `leaves` multipliers; output i of a vector lies on element i mod elements.

        cycles              = ceil(non-zero weights / bandwidth) + those of all vectors
        cycles of an output = ceil(its non-zero weights / leaves)
        cycles of a vector  = over rounds of `elements` outputs, the slowest of each round

    Vectors come one after the other. Fewer weights never take longer; zeros of the inputs change nothing and are multiplied (they
    count as `mac`). `weights` says which operand is compressed: a by rows, b by columns, or the one that is faster so.

    >>> import numpy as np
    >>> array = CambriconX(elements=2, weights="a")  # two rounds of 3 cycles, of 1; one cycle to load 120 weights, or 3
    >>> array.cost(MatMul(3, 5, 40)).cycles, array.cost(MatMul(3, 5, 40), a=np.eye(3, 40)).cycles
    (31, 11)
    """

    # fmt: off
    elements: int = 1024                  # SIGMA, Sec. VI-A: all designs at 16384 multipliers; the paper's own chip has 16
    leaves: int = 16                      # Cambricon-X: multipliers of an element, and inputs of its adder tree
    bandwidth: int = 128                  # SIGMA, Sec. VI-A: elements per cycle that enter, the same for all designs
    local_bytes: int = assumed(2 * 1024, "memory of one element's weights, which sets the energy of reading it")
    weights: Literal["best", "a", "b"] = assumed("best", "which operand is compressed in the elements", "a", "b", choice=True)
    loading: Literal["counted", "left out"] = assumed("counted", LOADED, "left out")
    waits: Literal["round", "vector"] = assumed(
        "round", "elements wait for the slowest after each output, or run on by themselves to the end of a vector", "vector")
    # fmt: on
    operand_aware: ClassVar[bool] = True

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements * self.leaves

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed form of dense weights: every output takes ceil(K / leaves). None where loading is counted."""
        if self.loading == "counted":
            return ()
        forms = {
            "a": Folds(m=self.elements, n=1, k=self.leaves, stream="k", columns_per_read=0),
            "b": Folds(m=1, n=self.elements, k=self.leaves, stream="k", rows_per_read=0),
        }
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    @property
    def guides(self) -> tuple[Pooled, ...]:
        """With loading: a pool of as many weights as there are multipliers, `leaves` of K at a time. Exact where that divides K."""
        pool = Pooled(pool=self.peak_macs_per_cycle, load=self.bandwidth, stream="n", drain=0, chunk=self.leaves)
        forms = {"a": pool, "b": replace(pool, stream="m")}
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    def granule(self) -> tuple[int, int, int]:
        """Tiles may grow along either side that `weights` allows. K stays long: each piece of it ends in a partly filled cycle."""
        many, deep = max(VECTORS, self.elements), self.leaves * TREES
        return many if self.weights == "a" else VECTORS, many if self.weights == "b" else VECTORS, deep

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        """Cycles and events with the faster operand as the weights, of those that `weights` allows."""
        roles = role_assignments(op, a, b, self.weights)
        return min((self._cost(product, op.count) for product in roles), key=lambda cost: cost.cycles)

    def _cost(self, product: WeightsAndInputs, count: int) -> ArrayCost:
        if product.weights is not None:
            cycles = self._vector_cycles(-(-product.weights.row_counts() // self.leaves)) * product.vectors
        else:
            cycles = round(_expected_vector_cycles(self, product.outputs, product.depth, product.weight_density) * product.vectors)
        cycles += load_cycles(product.weight_count, self.bandwidth, self.loading)
        return ArrayCost(cycles=cycles * count, finish=(cycles * count,), events=self._events(product, count))

    def _vector_cycles(self, output_cycles: npt.NDArray[np.int64]) -> int:
        """Cycles of one vector from those of its outputs."""
        import numpy as np

        rounds = np.zeros((-(-len(output_cycles) // self.elements), self.elements), np.int64)
        rounds.flat[: len(output_cycles)] = output_cycles
        return int(rounds.max(axis=1).sum() if self.waits == "round" else rounds.sum(axis=0).max())

    def _events(self, product: WeightsAndInputs, count: int) -> dict[str, float]:
        """Weights are written to their elements once and read for each vector; a round reads the vector once for all elements."""
        weights, macs = product.weight_count, product.weight_count * product.vectors
        rounds = -(-product.outputs // self.elements)
        events = {
            "mac": macs,
            **product.port_events(weights, product.vectors * product.depth * rounds),
            **product.port_events(weights, 0, port="local_write"),
            **product.port_events(macs, 0, port="local_read"),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": product.outputs * product.vectors,
        }
        return {name: number * count for name, number in events.items()}

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiplies two small matrices cycle by cycle: loading, indexed inputs, trees. "best" returns the faster run."""
        return fastest_execution(self.weights, a, b, self._execute)

    def _execute(self, weights: npt.NDArray[np.float64], inputs: npt.NDArray[np.float64]) -> Execution:
        import numpy as np

        from trainyard.arrays.execution import Execution

        product = np.zeros((len(weights), len(inputs)))
        loaded, cycles = load(weights, self.bandwidth, self.loading)
        for column, vector in enumerate(inputs):
            waiting = [list(range(element, len(weights), self.elements)) for element in range(min(self.elements, len(weights)))]
            while any(waiting):
                started = [
                    [own.pop(0)] if self.waits == "round" else [own.pop(0) for _ in range(len(own))] for own in waiting if own
                ]
                chunks = [self._chunks(loaded, outputs) for outputs in started]
                for cycle in range(max(len(own) for own in chunks)):
                    for own in chunks:
                        if cycle < len(own):
                            row, ks = own[cycle]
                            product[row, column] += tree(loaded[row, ks] * vector[ks])
                    cycles += 1
        return Execution(product=product, cycles=cycles)

    def _chunks(self, weights: npt.NDArray[np.float64], outputs: list[int]) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """What an element does in each cycle: an output, and the k of the weights that it multiplies."""
        import numpy as np

        chunks = []
        for row in outputs:
            ks = np.flatnonzero(weights[row])
            chunks += [(row, ks[first : first + self.leaves]) for first in range(0, len(ks), self.leaves)]
        return chunks


def tree(values: npt.NDArray[np.float64]) -> float:
    """The sum, level by level, neighbours first; idle leaves carry zero.

    >>> import numpy as np
    >>> tree(np.array([1.0, 2.0, 4.0]))
    7.0
    """
    level = [float(value) for value in values]
    while len(level) > 1:
        level = [sum(level[first : first + 2]) for first in range(0, len(level), 2)]
    return level[0] if level else 0.0


@lru_cache(maxsize=4096)
def _expected_vector_cycles(array: CambriconX, outputs: int, depth: int, density: float) -> float:
    """Expected cycles of a vector where weights are non-zero independently of each other."""
    import numpy as np

    output_cycles = step_distribution(binomial(depth, density), array.leaves)
    rounds, rest = divmod(outputs, array.elements)
    if array.waits == "round":
        return rounds * expected_maximum(output_cycles, array.elements) + (expected_maximum(output_cycles, rest) if rest else 0.0)
    shorter = np.ones(1)
    for _ in range(rounds):
        shorter = np.convolve(shorter, output_cycles)
    if not rest:
        return expected_maximum(shorter, array.elements)
    longer = np.cumsum(np.convolve(shorter, output_cycles)).clip(0.0, 1.0)
    below = np.cumsum(np.pad(shorter, (0, len(longer) - len(shorter)))).clip(0.0, 1.0)
    return float(np.sum(1.0 - (longer**rest * below ** (array.elements - rest))[:-1]))
