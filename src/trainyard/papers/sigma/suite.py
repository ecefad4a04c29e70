"""The ten GEMMs of Fig. 12 on SIGMA and on its baseline, with drawn masks; all experiments of a process share the results.

Both designs are judged by Table II, which the paper says its evaluation graphs use (Sec. VI-A): loading, streaming and add latency
of every fold, none of them hidden. Of a systolic array of N cells, loading and reduction take the square root of N each (Table I,
Sec. VI-B), whatever the product's size (Secs. III-C, IV-A2): 128 cycles for 16384 cells, of any aspect ratio, which is also what
128 words per cycle take to load them (Sec. V). Against it stands that the TPU was modelled with SCALE-Sim (Sec. VI-A): its counts
are among the other `Counting`s.

The paper's figures come from an analytic model that is given sizes, bandwidth and dataflow (Sec. VI-A), not matrices: all
non-zeros of the stationary operand are held, and step ii of Sec. IV-E, which leaves out those that no streaming value meets, is not
counted. It stays the default of the array (`step_ii=True` here).

Zeros are independent of each other. A mask is drawn once for each operand and sparsity and stays packed: an eighth of a byte for
each element, about 0.3 GB for all of the suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isqrt
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
Flow = Literal["a", "b", "none"]

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
    return op.macs / (tpu_cycles(op, tuple(shapes)) * PES)


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
    assert isinstance(SIGMA.array, Sigma)
    return replace(SIGMA.array, streaming=streaming)


@cache
def _mechanism(op: MatMul, pair: Pair, stationary: Flow, streaming: Streaming) -> SigmaCost:
    """As the array counts by itself, step ii included."""
    a, b = operands(op, pair)
    return sigma(streaming).cost(op, a=a, b=b, stationary=stationary)


@cache
def stationary_cost(
    op: MatMul, pair: Pair, stationary: Flow, streaming: Streaming = "wide", *, step_ii: bool = False
) -> SigmaCost:  # fmt: skip
    """One dataflow: MK stationary (a), KN stationary (b), no local reuse (none). Without step ii all stationary non-zeros stay."""
    counted = _mechanism(op, pair, stationary, streaming)
    if step_ii or stationary == "none":
        return counted
    a, b = operands(op, pair)
    masks = {"a": a} if stationary == "a" else {"b": b}
    return replace(sigma(streaming).cost(op, **masks, stationary=stationary), useful=counted.useful)


def cost(op: MatMul, pair: Pair = NO_ZEROS, streaming: Streaming = "wide", *, step_ii: bool = False) -> SigmaCost:
    """The better stationary operand (Sec. IV-D)."""
    costs = (stationary_cost(op, pair, side, streaming, step_ii=step_ii) for side in ("a", "b"))
    return min(costs, key=lambda one: one.cycles)


Counting = Literal["table II", "used rows", "own rows", "no loading", "SCALE-Sim 2018", "SCALE-Sim 2020"]
"""Cycles of a fold with S vectors on R rows and C columns, r and c of them in use, D being the root of R * C: D + S + D;
r + S + D; R + S + R; S + D; 2r + c + S; 2R + C + S - 2 (the array's own, whose last fold ends a cycle earlier)."""


def fold_cycles(array: tuple[int, int], used: tuple[int, int], vectors: int, counting: Counting) -> int:
    """Of one fold.

    >>> fold_cycles((128, 128), (32, 128), 2048, "table II"), fold_cycles((128, 128), (32, 128), 2048, "SCALE-Sim 2018")
    (2304, 2240)
    """
    rows, columns = array
    side = isqrt(rows * columns)
    fixed = {
        "table II": 2 * side,
        "used rows": used[0] + side,
        "own rows": 2 * rows,
        "no loading": side,
        "SCALE-Sim 2018": 2 * used[0] + used[1],
        "SCALE-Sim 2020": 2 * rows + columns - 2,
    }
    return fixed[counting] + vectors


@cache
def tpu_cycles(
    op: MatMul, shapes: Shapes = SQUARE, flows: tuple[Literal["ws", "is"], ...] = ("ws", "is"), counting: Counting = "table II"
) -> int:
    """The best shape and stationary operand; zeros are multiplied."""
    return min(_systolic_cycles(op, shape, flow, counting) for shape in shapes for flow in flows)


def _systolic_cycles(op: MatMul, shape: tuple[int, int], flow: Literal["ws", "is"], counting: Counting) -> int:
    """Whole folds and those at the edges, times their number."""
    rows, columns = shape
    vectors, across = (op.M, op.N) if flow == "ws" else (op.N, op.M)
    along_k, along_columns = (_parts(length, side) for length, side in ((op.K, rows), (across, columns)))
    total = sum(
        high_count * wide_count * fold_cycles(shape, (high, wide), vectors, counting)
        for high, high_count in along_k
        for wide, wide_count in along_columns
    )
    return total - (counting == "SCALE-Sim 2020")


def _parts(length: int, side: int) -> list[tuple[int, int]]:
    """Sizes of the folds along one side of the array, with their numbers.

    >>> _parts(300, 128), _parts(32, 128), _parts(256, 128)
    ([(128, 2), (44, 1)], [(32, 1)], [(128, 2)])
    """
    whole, rest = divmod(length, side)
    return [(size, count) for size, count in ((side, whole), (rest, 1)) if size and count]


def speedups(
    cases: Iterable[Case],
    *,
    streaming: Streaming = "wide",
    shapes: Shapes = SQUARE,
    counting: Counting = "table II",
    step_ii: bool = False,
) -> list[float]:
    return [
        tpu_cycles(op, shapes, counting=counting) / cost(op, pair, streaming, step_ii=step_ii).cycles for op, pair in cases
    ]  # fmt: skip


def efficiencies(cases: Iterable[Case], streaming: Streaming = "wide") -> list[float]:
    return [cost(op, pair, streaming).overall_efficiency for op, pair in cases]


def tpu_efficiencies(cases: Iterable[Case], shapes: Shapes = SQUARE, counting: Counting = "table II") -> list[float]:
    """Products of two non-zeros over what the array could multiply in the same cycles."""
    return [cost(op, pair).useful / (tpu_cycles(op, shapes, counting=counting) * PES) for op, pair in cases]


def means(values: Sequence[float]) -> str:
    """Both kinds of mean, since the paper names none."""
    return f"geometric mean {geometric_mean(values):.2f}, arithmetic {fmean(values):.2f}"


def both(values: Sequence[float]) -> str:
    """Geometric / arithmetic mean."""
    return f"{geometric_mean(values):.2f} / {fmean(values):.2f}"


def evaluate() -> tuple[SigmaCost, ...]:
    """The dense cases, then ten GEMMs with six pairs of sparsity."""
    return tuple(cost(op, pair) for op, pair in (*DENSE_CASES, *SPARSE_CASES))
