"""A product as an inference engine sees it: weights [outputs, K] and input vectors [vectors, K], with their zeros.

EIE, SCNN and Cambricon-X were built for y = W x. Either operand of a product may take the weights' role: the rows of a or the
columns of b are then the outputs, and those of the other operand are the vectors. Both matrices are written with K along their
columns.

The stationary matrix has to be loaded into the elements. The engines' own papers assume that it is there already; SIGMA's Table II
(HPCA 2020) loads it before anything else happens, and so it is counted here unless `loading` says otherwise:

    loading = ceil(stationary non-zeros / elements that enter in a cycle), once for each product
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.arrays.execution import Execution, require_product_shapes
from trainyard.errors import MaskError
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Dense, Density, MatMul
from trainyard.masks.contraction import Mask, bitmap_of

Matrix = npt.NDArray[np.float64]
Weights = Literal["a", "b", "best"]
Loading = Literal["counted", "left out"]
LOADED = "what is kept still is loaded first, as SIGMA's Table II has it, or lies there already, as its own paper counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsAndInputs:
    """Weights of [outputs, depth] and inputs of [vectors, depth]: as bitmaps where both operands have masks, else as densities."""

    outputs: int
    vectors: int
    depth: int
    weight_operand: Literal["a", "b"]
    weights: Bitmap | None
    inputs: Bitmap | None
    weight_density: float
    input_density: float

    @property
    def is_dense(self) -> bool:
        return self.weights is None and self.weight_density == self.input_density == 1.0

    @property
    def weight_count(self) -> float:
        """Non-zero weights; of a density, the expected number."""
        return self.weight_density * self.outputs * self.depth if self.weights is None else self.weights.nonzeros

    @property
    def input_count(self) -> float:
        """Non-zero inputs; of a density, the expected number."""
        return self.input_density * self.vectors * self.depth if self.inputs is None else self.inputs.nonzeros

    @property
    def useful_products(self) -> float:
        """Multiplications of two non-zeros; of densities, the expected number."""
        if self.weights is None or self.inputs is None:
            return self.weight_density * self.input_density * self.outputs * self.vectors * self.depth
        return int(self.weights.column_counts() @ self.inputs.column_counts())

    def port_events(self, weights: float, inputs: float, *, port: str = "scratchpad_read") -> dict[str, float]:
        """Elements that pass a port, named by operand (`scratchpad_read_a`, ...)."""
        input_operand = "b" if self.weight_operand == "a" else "a"
        return {f"{port}_{self.weight_operand}": weights, f"{port}_{input_operand}": inputs}


def role_assignments(op: MatMul, a: Mask, b: Mask, weights: Weights = "best") -> list[WeightsAndInputs]:
    """The product with each operand as the weights that `weights` allows. Beside a density, a mask counts by its own density.

    >>> [roles.outputs for roles in role_assignments(MatMul(2, 3, 4), Dense(), Dense())]
    [2, 3]
    """
    operands = (a, b)
    is_mask = [not isinstance(operand, Dense | Density) for operand in operands]
    if op.count > 1 and any(is_mask):
        raise MaskError(f"{op} with a mask: give its {op.count} products one by one, each with its own mask")
    shapes = ((op.M, op.K), (op.K, op.N))
    bits = [bitmap_of(operands[i], shapes[i], "ab"[i]) if is_mask[i] else None for i in (0, 1)]
    density = [_density(operands[i], bits[i]) for i in (0, 1)]
    if any(isinstance(operand, Density) for operand in operands):
        bits = [None, None]
    elif any(is_mask):
        left, right = (Bitmap.random(*shapes[i], nonzero=1.0, seed=0) if (own := bits[i]) is None else own for i in (0, 1))
        bits = [left, right.transposed()]
    extents = (op.M, op.N)
    return [
        WeightsAndInputs(
            outputs=extents[i], vectors=extents[1 - i], depth=op.K, weight_operand="a" if i == 0 else "b",
            weights=bits[i], inputs=bits[1 - i], weight_density=density[i], input_density=density[1 - i],
        )
        for i in (0, 1) if weights in ("best", "ab"[i])
    ]  # fmt: skip


def _density(operand: Mask, bits: Bitmap | None) -> float:
    if isinstance(operand, Density):
        return operand.nonzero
    return 1.0 if bits is None else bits.density


def load_cycles(nonzeros: float, bandwidth: int, loading: Loading) -> int:
    """Cycles until the stationary non-zeros are in the elements; of a density, from their expected number.

    >>> load_cycles(256, 128, "counted"), load_cycles(257, 128, "counted"), load_cycles(257, 128, "left out")
    (2, 3, 0)
    """
    return -(-round(nonzeros) // bandwidth) if loading == "counted" else 0


def load(matrix: Matrix, bandwidth: int, loading: Loading) -> tuple[Matrix, int]:
    """Loads the non-zeros of a stationary matrix, `bandwidth` in a cycle: the matrix as loaded, and the cycles."""
    if loading == "left out":
        return matrix, 0
    loaded, remaining, cycles = np.zeros_like(matrix), np.flatnonzero(matrix), 0
    while len(remaining):
        loaded.flat[remaining[:bandwidth]] = matrix.flat[remaining[:bandwidth]]
        remaining, cycles = remaining[bandwidth:], cycles + 1
    return loaded, cycles


def fastest_execution(
    weights: Weights, a: npt.NDArray[Any], b: npt.NDArray[Any], run: Callable[[Matrix, Matrix], Execution]
) -> Execution:
    """Runs a product with each operand as the weights that `weights` allows, and returns the faster run.

    `run` takes weights [outputs, K] and inputs [vectors, K] and computes [outputs, vectors].
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    require_product_shapes(left, right)
    executions = []
    if weights in ("best", "a"):
        executions.append(run(left, right.T))
    if weights in ("best", "b"):
        transposed = run(right.T, left)
        executions.append(replace(transposed, product=transposed.product.T))
    return min(executions, key=lambda execution: execution.cycles)
