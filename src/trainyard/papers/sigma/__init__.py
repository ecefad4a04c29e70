"""SIGMA. E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM
Accelerator with Flexible Interconnects for DNN Training. HPCA 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from trainyard.arrays import Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured

# fmt: off
# The evaluated GEMMs, M-N-K as on the axis of Fig. 12.
SUITE = tuple(MatMul(M, N, K) for M, N, K in (
    ( 128,  2048,   4096), ( 320,  3072, 4096), ( 1632, 36548, 1024), (2048, 4096,   32), (1024,  16, 500000),
    (  35,  8457,   2560), (31999, 1024,   84), (   84,  1024, 4096), (2048,    1,  128), ( 256, 256,   2048),
))

# The TPUs of Fig. 12a: the paper's name -> rows and columns of `Systolic`, which has K along its rows. The paper has it along the
# columns: by Sec. VI-C a K of 32 fits those of 512x32, and is too short for the other two.
TPU_SHAPES = {"128x128": (128, 128), "256x64": (64, 256), "512x32": (32, 512)}
RECTANGLES = tuple(TPU_SHAPES.values())
TURNED = tuple((columns, rows) for rows, columns in RECTANGLES)  # the other reading: K along the rows that the paper names
SQUARE = (TPU_SHAPES["128x128"],)                    # Sec. VI-C
MIRRORED = tuple(dict.fromkeys(RECTANGLES + TURNED))  # Fig. 11, of SIGMA_FI: "and vice versa"

# Sparsity of MK and KN: weights 80 %, inputs 10 to 50 % (Sec. VI-A), either one being MK. The pairs of Fig. 12b are not printed:
# the two ends of the range and its middle.
SPARSITIES = tuple(pair for inputs in (0.1, 0.3, 0.5) for pair in ((0.8, inputs), (inputs, 0.8)))
NARROW = MatMul(1024, 16, 500000)               # Sec. VI-B and VI-C: KN, 500000 x 16, is stationary
SMALL = MatMul(2048, 1, 128)                    # Sec. VI-C: the small GEMM that the text names
# fmt: on

CASE = ("transformer-324m", "sigma(scope=products,dram=2 TB/s)", "sparsity(W=0.8,A=0.3)")
"""The array is weighed, not the DRAM that the paper leaves out; zeros as in Sec. VI-A, of inputs the middle of its range."""


def label(op: MatMul) -> str:
    """As on the axis of Fig. 12.

    >>> label(NARROW)
    '1024-16-500000'
    """
    return f"{op.M}-{op.N}-{op.K}"


def stationary_utilisation(array: Systolic, op: MatMul) -> float:
    """Share of the cells that hold an element of the stationary operand, over all its folds."""
    held = op.K * op.N if array.dataflow == "ws" else op.M * op.K
    return held / (array.cost(op).events["array_pass"] * array.peak_macs_per_cycle)


def efficiency(op: MatMul, shapes: Iterable[tuple[int, int]]) -> float:
    """Useful MACs over MACs possible in the total latency (Table II), the better stationary operand and shape counting."""
    arrays = (Systolic(rows=r, columns=c, dataflow=flow) for r, c in shapes for flow in ("ws", "is"))
    return max(array.utilisation(op) for array in arrays)


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share the suite's masks and costs."""
    from trainyard.papers.sigma import (
        baseline,
        chip,
        context,
        dataflows,
        features,
        formats,
        gpu,
        networks,
        performance,
        rivals,
    )

    return {
        **baseline.EXPERIMENTS,
        **performance.EXPERIMENTS,
        **features.EXPERIMENTS,
        **dataflows.EXPERIMENTS,
        **rivals.EXPERIMENTS,
        **formats.EXPERIMENTS,
        **networks.EXPERIMENTS,
        **chip.EXPERIMENTS,
        **gpu.EXPERIMENTS,
        **context.EXPERIMENTS,
    }


def walkthrough(given: str = "") -> tuple[str, Callable[[], go.Figure]]:
    """The example of Fig. 5 on two Flex-DPEs of four multipliers; or, given a seed, a random one on two of eight."""
    from trainyard.arrays.sigma import walkthrough as told
    from trainyard.report.walkthroughs.sigma import figure

    if given and not given.isdigit():
        raise BadInput(f"explain sigma {given}: give nothing (the paper's example), or a seed such as 7 for another one")
    chosen = told.example(int(given)) if given else told.EXAMPLE
    return told.walkthrough(chosen), lambda: figure(chosen)


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.sigma.plots import FIGURES

    return FIGURES
