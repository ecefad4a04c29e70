"""Cambricon-X: weights without their zeros, each processing element a fixed adder tree that sums one output at a time.

S. Zhang, Z. Du, L. Zhang, H. Lan, S. Liu, L. Li, Q. Guo, T. Chen, Y. Chen: Cambricon-X: An Accelerator for Sparse Neural Networks.
MICRO 2016.

An element keeps the non-zero weights of its outputs with the distances between them; an indexing module picks the inputs that they
need from the vector that all elements share. In a cycle an element multiplies as many as its tree has leaves, all of one output.
Inputs are dense: their zeros are multiplied like any other value. Before the first vector the weights are loaded
(`arrays.rivals.sides`), which the paper leaves out.

Its limitation (SIGMA, HPCA 2020, Table III): the tree adds one common sum at a time. What an output leaves over of its last cycle
stays idle, and only the zeros of one operand are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainyard.arrays.rivals.sides import (
    LOADED,
    Sides,
    binomial,
    in_steps,
    load,
    load_cycles,
    longest,
    multiplied,
    require_choice,
    sides,
)
from trainyard.checks import require_positive
from trainyard.errors import UnknownName
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds, Pooled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.dense.execution import Execution
    from trainyard.masks.contraction import Mask

WAITS = ("round", "vector")
VECTORS, TREES = 16, 64
"""Vectors and trees along K that a tile should have: an output with a tenth of its weights fills six trees and part of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def __post_init__(self) -> None:
        require_positive(
            "CambriconX", elements=self.elements, leaves=self.leaves, bandwidth=self.bandwidth, local_bytes=self.local_bytes
        )
        require_choice("CambriconX", self.weights, self.loading)
        if self.waits not in WAITS:
            raise UnknownName("waits", str(self.waits), WAITS, where="CambriconX")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements * self.leaves

    @property
    def folds(self) -> tuple[Folds, ...]:
        """Of dense weights: every output takes ceil(K / leaves). None with loading."""
        if self.loading == "counted":
            return ()
        forms = {
            "a": Folds(m=self.elements, n=1, k=self.leaves, stream="k"),
            "b": Folds(m=1, n=self.elements, k=self.leaves, stream="k"),
        }
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    @property
    def guides(self) -> tuple[Pooled, ...]:
        """With loading, a pool of as many weights as there are multipliers, `leaves` of K at a time: exact where that divides K."""
        pool = Pooled(pool=self.peak_macs_per_cycle, load=self.bandwidth, stream="n", drain=0, chunk=self.leaves)
        forms = {"a": pool, "b": replace(pool, stream="m")}
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    def granule(self) -> tuple[int, int, int]:
        """Where the weights' side is open, tiles may grow along either. What cuts K cuts outputs: each piece has a last cycle."""
        many, deep = max(VECTORS, self.elements), self.leaves * TREES
        return many if self.weights == "a" else VECTORS, many if self.weights == "b" else VECTORS, deep

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        return min((self._cost(side, op.count) for side in sides(op, a, b, self.weights)), key=lambda cost: cost.cycles)

    def _cost(self, side: Sides, count: int) -> ArrayCost:
        if side.weights is not None:
            cycles = self._slowest(-(-side.weights.row_counts() // self.leaves)) * side.vectors
        else:
            cycles = round(_expected(self, side.outputs, side.depth, side.weight_density) * side.vectors)
        cycles += load_cycles(side.weight_count, self.bandwidth, self.loading)
        return ArrayCost(cycles=cycles * count, finish=(cycles * count,), events=self._events(side, count))

    def _slowest(self, steps: npt.NDArray[np.int64]) -> int:
        """Cycles of one vector from those of its outputs."""
        import numpy as np

        rounds = np.zeros((-(-len(steps) // self.elements), self.elements), np.int64)
        rounds.flat[: len(steps)] = steps
        return int(rounds.max(axis=1).sum() if self.waits == "round" else rounds.sum(axis=0).max())

    def _events(self, side: Sides, count: int) -> dict[str, float]:
        """Weights go to their elements once and are read for each vector; each round reads the vector once for all elements."""
        held, macs = side.weight_count, side.weight_count * side.vectors
        rounds = -(-side.outputs // self.elements)
        counted = {
            "mac": macs,
            **side.ports(held, side.vectors * side.depth * rounds),
            **side.ports(held, 0, at="local_write"),
            **side.ports(macs, 0, at="local_read"),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": side.outputs * side.vectors,
        }
        return {name: number * count for name, number in counted.items()}

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiply two small matrices, cycle by cycle: loading, indexed inputs, multipliers, trees. "best" takes the faster way."""
        from trainyard.arrays.dense.execution import Execution

        left, right = multiplied(a, b)
        found = []
        if self.weights in ("best", "a"):
            found.append(self._run(left, right.T))
        if self.weights in ("best", "b"):
            done = self._run(right.T, left)
            found.append(Execution(product=done.product.T, cycles=done.cycles))
        return min(found, key=lambda done: done.cycles)

    def _run(self, weights: npt.NDArray[np.float64], inputs: npt.NDArray[np.float64]) -> Execution:
        import numpy as np

        from trainyard.arrays.dense.execution import Execution

        out = np.zeros((len(weights), len(inputs)))
        held, now = load(weights, self.bandwidth, self.loading)
        for column, vector in enumerate(inputs):
            waiting = [list(range(element, len(weights), self.elements)) for element in range(min(self.elements, len(weights)))]
            while any(waiting):
                begun = [[own.pop(0)] if self.waits == "round" else [own.pop(0) for _ in range(len(own))] for own in waiting if own]
                chunks = [self._chunks(held, outputs) for outputs in begun]
                for cycle in range(max(len(own) for own in chunks)):
                    for own in chunks:
                        if cycle < len(own):
                            row, places = own[cycle]
                            out[row, column] += tree(held[row, places] * vector[places])
                    now += 1
        return Execution(product=out, cycles=now)

    def _chunks(self, weights: npt.NDArray[np.float64], outputs: list[int]) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """What an element does, cycle by cycle: an output, and the places of the weights that it takes of it."""
        import numpy as np

        found = []
        for row in outputs:
            places = np.flatnonzero(weights[row])
            found += [(row, places[first : first + self.leaves]) for first in range(0, len(places), self.leaves)]
        return found


def tree(values: npt.NDArray[np.float64]) -> float:
    """Sum level by level, neighbours first; idle leaves carry zero.

    >>> import numpy as np
    >>> tree(np.array([1.0, 2.0, 4.0]))
    7.0
    """
    level = [float(value) for value in values]
    while len(level) > 1:
        level = [sum(level[first : first + 2]) for first in range(0, len(level), 2)]
    return level[0] if level else 0.0


@lru_cache(maxsize=4096)
def _expected(array: CambriconX, outputs: int, depth: int, density: float) -> float:
    """Expected cycles of a vector, of weights that are non-zero independently of each other."""
    import numpy as np

    steps = in_steps(binomial(depth, density), array.leaves)
    rounds, rest = divmod(outputs, array.elements)
    if array.waits == "round":
        return rounds * longest(steps, array.elements) + (longest(steps, rest) if rest else 0.0)
    shorter = np.ones(1)
    for _ in range(rounds):
        shorter = np.convolve(shorter, steps)
    if not rest:
        return longest(shorter, array.elements)
    longer = np.cumsum(np.convolve(shorter, steps)).clip(0.0, 1.0)
    below = np.cumsum(np.pad(shorter, (0, len(longer) - len(shorter)))).clip(0.0, 1.0)
    return float(np.sum(1.0 - (longer**rest * below ** (array.elements - rest))[:-1]))
