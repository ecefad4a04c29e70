"""The ten GEMMs of Fig. 12 on SIGMA and on its baseline, with drawn masks; all experiments of a process share the results.

Zeros are independent of each other. A mask is drawn once for each operand and sparsity and stays packed: an eighth of a byte for
each element, about 0.3 GB for all of the suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from statistics import fmean, geometric_mean
from typing import Any, Literal
from zlib import crc32

from trainyard.arrays import Sigma, Systolic
from trainyard.arrays.sigma.array import SigmaCost
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import DENSE, MatMul
from trainyard.machines.presets.sigma import SIGMA
from trainyard.papers import ledger

# fmt: off
# The evaluated GEMMs, M-N-K as on the axis of Fig. 12.
SUITE = tuple(MatMul(M, N, K) for M, N, K in (
    ( 128,  2048,   4096), ( 320,  3072, 4096), ( 1632, 36548, 1024), (2048, 4096,   32), (1024,  16, 500000),
    (  35,  8457,   2560), (31999, 1024,   84), (   84,  1024, 4096), (2048,    1,  128), ( 256, 256,   2048),
))

# The TPUs of Fig. 12a: the paper's name -> rows and columns of `Systolic`, which has K along its rows. The paper has it along the
# columns: by Sec. VI-C a K of 32 fits those of 512x32, and is too short for the other two.
TPU_SHAPES = {"128x128": (128, 128), "256x64": (64, 256), "512x32": (32, 512)}
K_ALONG_COLUMNS = tuple(TPU_SHAPES.values())
K_ALONG_ROWS = tuple((columns, rows) for rows, columns in K_ALONG_COLUMNS)  # the other reading of the paper's names
SQUARE = (TPU_SHAPES["128x128"],)                    # Sec. VI-C
ALL_SHAPES = tuple(dict.fromkeys(K_ALONG_COLUMNS + K_ALONG_ROWS))  # Fig. 11, of SIGMA_FI: "and vice versa"

# Sparsity of MK and KN: weights 80 %, inputs 10 to 50 % (Sec. VI-A), either one being MK. The pairs of Fig. 12b are not printed:
# the two ends of the range and its middle.
SPARSITIES = tuple(pair for inputs in (0.1, 0.3, 0.5) for pair in ((0.8, inputs), (inputs, 0.8)))
NARROW = MatMul(1024, 16, 500000)               # Sec. VI-B and VI-C: KN, 500000 x 16, is stationary
SMALL = MatMul(2048, 1, 128)                    # Sec. VI-C: the small GEMM that the text names
# fmt: on

Pair = tuple[float, float]
"""Sparsity of MK and of KN."""
Shapes = tuple[tuple[int, int], ...]
Side = Literal["a", "b"]
Streaming = Literal["wide", "limited"]

NO_ZEROS: Pair = (0.0, 0.0)
stated = partial(ledger.stated, "sigma")
"""The value that the paper prints for a claim."""
PES = SIGMA.array.peak_macs_per_cycle
Case = tuple[MatMul, Pair]
DENSE_CASES: tuple[Case, ...] = tuple((op, NO_ZEROS) for op in SUITE)
SPARSE_CASES: tuple[Case, ...] = tuple((op, pair) for op in SUITE for pair in SPARSITIES)


def label(op: MatMul) -> str:
    """As on the axis of Fig. 12.

    >>> label(NARROW)
    '1024-16-500000'
    """
    return f"{op.M}-{op.N}-{op.K}"


def stationary_utilisation(array: Systolic, op: MatMul) -> float:
    """Share of the cells that hold an element of the stationary operand, over all its folds."""
    stationary = op.K * op.N if array.dataflow == "ws" else op.M * op.K
    return stationary / (array.cost(op).events["array_pass"] * array.peak_macs_per_cycle)


def efficiency(op: MatMul, shapes: Iterable[tuple[int, int]]) -> float:
    """Useful MACs over MACs possible in the total latency (Table II), the better stationary operand and shape counting."""
    arrays = (Systolic(rows=r, columns=c, dataflow=flow) for r, c in shapes for flow in ("ws", "is"))
    return max(array.utilisation(op) for array in arrays)


@cache
def mask(op: MatMul, side: Side, sparsity: float) -> Bitmap:
    """Of MK or KN; every one has a seed of its own."""
    rows, columns = (op.M, op.K) if side == "a" else (op.K, op.N)
    return Bitmap.random(rows, columns, nonzero=1 - sparsity, seed=crc32(f"{side} {rows} {columns} {sparsity}".encode()))


def operands(op: MatMul, pair: Pair) -> tuple[Any, Any]:
    """Masks of MK and KN, or `DENSE` where there are no zeros."""
    left, right = (mask(op, side, zeros) if zeros else DENSE for side, zeros in zip(("a", "b"), pair, strict=True))
    return left, right


@cache
def sigma(streaming: Streaming = "wide") -> Sigma:
    from dataclasses import replace

    assert isinstance(SIGMA.array, Sigma)
    return replace(SIGMA.array, streaming=streaming)


@cache
def stationary_cost(op: MatMul, pair: Pair, stationary: Literal["a", "b", "none"], streaming: Streaming = "wide") -> SigmaCost:
    """One dataflow: MK stationary (a), KN stationary (b), no local reuse (none)."""
    a, b = operands(op, pair)
    return sigma(streaming).cost(op, a=a, b=b, stationary=stationary)


def cost(op: MatMul, pair: Pair = NO_ZEROS, streaming: Streaming = "wide") -> SigmaCost:
    """The better stationary operand (Sec. IV-D)."""
    return min((stationary_cost(op, pair, side, streaming) for side in ("a", "b")), key=lambda one: one.cycles)


@cache
def unpruned_cycles(op: MatMul, pair: Pair) -> int:
    """SIGMA without step ii: stationary non-zeros are held even where no streaming value meets them."""
    a, b = operands(op, pair)
    return min(sigma().cost(op, a=a, stationary="a").cycles, sigma().cost(op, b=b, stationary="b").cycles)


@cache
def tpu_cycles(
    op: MatMul, shapes: Shapes = SQUARE, flows: tuple[Literal["ws", "is"], ...] = ("ws", "is"), load: bool = True
) -> int:
    """The best shape and stationary operand; zeros are multiplied. Without `load`, a fold does not wait for its elements."""
    candidates = []
    for rows, columns in shapes:
        for flow in flows:
            folds = Systolic(rows=rows, columns=columns, dataflow=flow).cost(op)
            candidates.append(folds.cycles - (0 if load else rows * int(folds.events["array_pass"])))
    return min(candidates)


def speedups(cases: Iterable[Case], *, streaming: Streaming = "wide", shapes: Shapes = SQUARE) -> list[float]:
    return [tpu_cycles(op, shapes) / cost(op, pair, streaming).cycles for op, pair in cases]


def efficiencies(cases: Iterable[Case], streaming: Streaming = "wide") -> list[float]:
    return [cost(op, pair, streaming).overall_efficiency for op, pair in cases]


def tpu_efficiencies(cases: Iterable[Case], shapes: Shapes = SQUARE) -> list[float]:
    """Products of two non-zeros over what the array could multiply in the same cycles."""
    return [cost(op, pair).useful / (tpu_cycles(op, shapes) * PES) for op, pair in cases]


def means(values: Sequence[float]) -> str:
    """Both kinds of mean, since the paper names none."""
    return f"geometric mean {geometric_mean(values):.2f}, arithmetic {fmean(values):.2f}"


def both(values: Sequence[float]) -> str:
    """Geometric / arithmetic mean."""
    return f"{geometric_mean(values):.2f} / {fmean(values):.2f}"


def evaluate() -> tuple[SigmaCost, ...]:
    """The dense cases, then ten GEMMs with six pairs of sparsity."""
    return tuple(cost(op, pair) for op, pair in (*DENSE_CASES, *SPARSE_CASES))
