"""SIGMA. E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM
Accelerator with Flexible Interconnects for DNN Training. HPCA 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.arrays import Sigma, Systolic
from trainyard.arrays.cambricon_x import CambriconX
from trainyard.arrays.eie import Eie
from trainyard.arrays.eyeriss_v2 import EyerissV2
from trainyard.arrays.outerspace import OuterSpace
from trainyard.arrays.packed_systolic import PackedSystolic
from trainyard.arrays.scnn import Scnn
from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import MatMul

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured

# fmt: off
TPU_ARRAY = Systolic(rows=128, columns=128, dataflow="ws")  # Sec. III-B: 128x128; Sec. III-C: KN stationary
TPU = Accelerator(
    array            = TPU_ARRAY,  # Sec. VI-A: 16384 PEs
    clock_hz         = 500e6,      # assumed: not printed; it makes the peak 16.4 TFLOPS, of which Fig. 8's 10.8 are 66 %
    scratchpad_bytes = 16 * 2**20, # assumed: the paper leaves SRAM out; a core of TPUv2, one of the Cloud TPUs it cites, has 16 MiB
    dram_bytes_per_s = 350e9,      # assumed: the paper leaves DRAM out; TPUv2 has 350 GB/s per 128x128 array (IGO, Sec. 6.4)
    technology_nm    = 28,         # Fig. 8
)

SIGMA = replace(
    TPU,  # Sec. IV: the memory system is like the TPU's
    array = Sigma(dpes=128, multipliers=128, bandwidth=128),  # Sec. V, VI-A: 128 Flex-DPEs of 128, 128 words per cycle
)

# Sec. VI-A: the rivals, each scaled to 16384 multipliers, behind the same memory; what one of their elements has is their paper's.
EIE             = replace(TPU, array=Eie(elements=16384, queue=8))                 # Sec. VI-A; EIE, Sec. VI: 8 inputs wait
SCNN            = replace(TPU, array=Scnn(elements=1024, wide=4, high=4, banks=32))  # Sec. VI-A; SCNN, Table II: 4x4, 32 banks
OUTERSPACE      = replace(TPU, array=OuterSpace(elements=16384))                   # Sec. VI-A
EYERISS_V2      = replace(TPU, array=EyerissV2(rows=128, columns=64, simd=2, bandwidth=128))  # Sec. VI-A, V; Eyeriss v2: 2 MACs
PACKED_SYSTOLIC = replace(TPU, array=PackedSystolic(rows=128, columns=128, factor=8))  # Sec. VI-A; Kung et al.: groups of up to 8
CAMBRICON_X     = replace(TPU, array=CambriconX(elements=1024, leaves=16))         # Sec. VI-A; Cambricon-X, Sec. IV: 16 leaves

# The evaluated GEMMs, M-N-K as on the axis of Fig. 12.
SUITE = tuple(MatMul(M, N, K) for M, N, K in (
    ( 128,  2048,   4096), ( 320,  3072, 4096), ( 1632, 36548, 1024), (2048, 4096,   32), (1024,  16, 500000),
    (  35,  8457,   2560), (31999, 1024,   84), (   84,  1024, 4096), (2048,    1,  128), ( 256, 256,   2048),
))

SQUARE = ((128, 128),)                          # Sec. VI-C
RECTANGLES = (*SQUARE, (256, 64), (512, 32))    # Fig. 12a
MIRRORED = (*RECTANGLES, (64, 256), (32, 512))  # Fig. 11, of SIGMA_FI: "and vice versa"

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
    from trainyard.report.sigma import figure

    if given and not given.isdigit():
        raise BadInput(f"explain sigma {given}: give nothing (the paper's example), or a seed such as 7 for another one")
    chosen = told.example(int(given)) if given else told.EXAMPLE
    return told.walkthrough(chosen), lambda: figure(chosen)


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.sigma.plots import FIGURES

    return FIGURES
