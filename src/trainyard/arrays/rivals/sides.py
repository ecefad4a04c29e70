"""A product as an inference engine sees it: weights that stay, inputs that come; and what is known of the zeros of both.

EIE, SCNN and Cambricon-X were built for y = W x. Of a product either operand may be the weights: the rows of a or the columns of b
are then the outputs, those of the other the vectors. Both are written with K along their columns.

What an engine keeps in its elements has to get there. Their own papers count as if it lay there already; SIGMA's Table II (HPCA
2020) loads it first, with nothing else going on, and so it is counted here unless it is left out:

    loading = ceil(non-zeros that are kept / elements that enter in a cycle), once for each product
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Dense, Density, MatMul
from trainyard.masks.contraction import Mask, bitmap_of

Weights = Literal["a", "b", "best"]
CHOICES: tuple[Weights, ...] = ("best", "a", "b")
Loading = Literal["counted", "left out"]
LOADINGS: tuple[Loading, ...] = ("counted", "left out")
LOADED = "what is kept still is loaded first, as SIGMA's Table II has it, or lies there already, as its own paper counts"
NORMAL_95 = 1.96  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Weights of [outputs, depth] and inputs of [vectors, depth]: their bits where both have some, else shares of non-zeros."""

    outputs: int
    vectors: int
    depth: int
    which: Literal["a", "b"]
    weights: Bitmap | None
    inputs: Bitmap | None
    weight_density: float
    input_density: float

    @property
    def dense(self) -> bool:
        return self.weights is None and self.weight_density == self.input_density == 1.0

    @property
    def weight_count(self) -> float:
        return self.weight_density * self.outputs * self.depth if self.weights is None else self.weights.nonzeros

    @property
    def input_count(self) -> float:
        return self.input_density * self.vectors * self.depth if self.inputs is None else self.inputs.nonzeros

    @property
    def useful(self) -> float:
        """Multiplications of two non-zeros; of densities, expected."""
        if self.weights is None or self.inputs is None:
            return self.weight_density * self.input_density * self.outputs * self.vectors * self.depth
        return int(self.weights.column_counts() @ self.inputs.column_counts())

    def ports(self, weights: float, inputs: float, *, at: str = "scratchpad_read") -> dict[str, float]:
        """Elements at a port, under the names of the operands."""
        other = "b" if self.which == "a" else "a"
        return {f"{at}_{self.which}": weights, f"{at}_{other}": inputs}


def require_choice(owner: str, weights: str, loading: str) -> None:
    for name, value, known in (("weights", weights, CHOICES), ("loading", loading, LOADINGS)):
        if value not in known:
            raise UnknownName(name, str(value), known, where=owner)


def load_cycles(kept: float, bandwidth: int, loading: Loading) -> int:
    """Cycles until `kept` non-zeros lie in the elements; of densities, as many as are expected.

    >>> load_cycles(256, 128, "counted"), load_cycles(257, 128, "counted"), load_cycles(257, 128, "left out")
    (2, 3, 0)
    """
    return -(-round(kept) // bandwidth) if loading == "counted" else 0


def load(kept: npt.NDArray[np.float64], bandwidth: int, loading: Loading) -> tuple[npt.NDArray[np.float64], int]:
    """What lies in the elements once the non-zeros have come in, `bandwidth` in a cycle, and how many cycles that took."""
    if loading == "left out":
        return kept, 0
    held, coming, cycles = np.zeros_like(kept), np.flatnonzero(kept), 0
    while len(coming):
        held.flat[coming[:bandwidth]] = kept.flat[coming[:bandwidth]]
        coming, cycles = coming[bandwidth:], cycles + 1
    return held, cycles


def sides(op: MatMul, a: Mask, b: Mask, weights: Weights = "best") -> list[Sides]:
    """Each way to see the product that `weights` allows. Where one operand is a density, the other counts by its own density.

    >>> [side.outputs for side in sides(MatMul(2, 3, 4), Dense(), Dense())]
    [2, 3]
    """
    known = [a, b]
    masked = [not isinstance(operand, Dense | Density) for operand in known]
    if op.count > 1 and any(masked):
        raise MaskError(f"{op} with a mask: give its {op.count} products one by one, each with its own mask")
    shapes = ((op.M, op.K), (op.K, op.N))
    bits = [bitmap_of(known[i], shapes[i], "ab"[i]) if masked[i] else None for i in (0, 1)]
    density = [_density(known[i], bits[i]) for i in (0, 1)]
    if any(isinstance(operand, Density) for operand in known):
        bits = [None, None]
    elif any(masked):
        whole = [Bitmap.random(*shapes[i], nonzero=1.0, seed=0) if bits[i] is None else bits[i] for i in (0, 1)]
        bits = [whole[0], whole[1].transposed() if whole[1] is not None else None]
    extents = (op.M, op.N)
    return [
        Sides(
            outputs=extents[i], vectors=extents[1 - i], depth=op.K, which="a" if i == 0 else "b",
            weights=bits[i], inputs=bits[1 - i], weight_density=density[i], input_density=density[1 - i],
        )
        for i in (0, 1) if weights in ("best", "ab"[i])
    ]  # fmt: skip


def _density(operand: Mask, bits: Bitmap | None) -> float:
    if isinstance(operand, Density):
        return operand.nonzero
    return 1.0 if bits is None else bits.density


def multiplied(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Two matrices that go together, as numbers."""
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not left.size or not right.size:
        raise BadInput(f"execute: shapes {left.shape} and {right.shape} do not multiply")
    return left, right


def binomial(trials: int, probability: float) -> npt.NDArray[np.float64]:
    """How likely each number of non-zeros from 0 to `trials` is.

    >>> binomial(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    found = np.zeros(trials + 1)
    if probability in (0.0, 1.0):
        found[trials if probability else 0] = 1.0
        return found
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    hits = np.arange(trials + 1)
    found[:] = np.exp(logs[-1] - logs - logs[::-1] + hits * math.log(probability) + (trials - hits) * math.log1p(-probability))
    return np.asarray(found / found.sum())


def in_steps(likely: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """How likely each number of steps is, `width` non-zeros in a step, the last one perhaps not full.

    >>> in_steps(binomial(2, 0.5), 2).tolist()
    [0.25, 0.75]
    """
    steps = -(-np.arange(len(likely)) // width)
    return np.asarray(np.bincount(steps, weights=likely), dtype=np.float64)


def longest(likely: npt.NDArray[np.float64], among: int) -> float:
    """Expected maximum of `among` independent numbers that start at 0.

    >>> longest(binomial(1, 0.5), 2)
    0.75
    """
    return float(np.sum(1.0 - np.cumsum(likely)[:-1].clip(0.0, 1.0) ** among))


def ratio(found: npt.NDArray[Any], against: npt.NDArray[Any], share: float = 0.0) -> tuple[float, float]:
    """Sum of one over sum of the other in a sample, and half of its 95 % interval; `share` of all there are were looked at.

    >>> ratio(np.array([2, 4, 6]), np.array([1, 2, 3]))
    (2.0, 0.0)
    """
    whole = float(against.sum())
    if whole == 0.0:
        return 1.0, 0.0
    value = float(found.sum()) / whole
    free = len(found) - 1
    if not free:
        return value, 0.0
    z = NORMAL_95
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)  # Abramowitz and Stegun 26.7.5
    spread = float(np.sqrt(np.sum((found - value * against) ** 2) / free))
    return value, t * spread * math.sqrt(len(found)) / whole * math.sqrt(max(0.0, 1.0 - share))
