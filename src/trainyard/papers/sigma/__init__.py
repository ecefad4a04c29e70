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

# Sec. VI-A: the rivals, each scaled to 16384 multipliers, behind the same memory. What one of their elements has is in their own
# papers, and from memory: no section of them is named.
EIE = replace(TPU, array=Eie(
    elements = 16384,  # Sec. VI-A
    queue    = 8,      # EIE's paper; assumed: from memory
))
SCNN = replace(TPU, array=Scnn(
    elements = 1024,   # Sec. VI-A: 16384 multipliers
    wide     = 4,      # SCNN's paper: 4x4; assumed: from memory
    high     = 4,      # SCNN's paper: 4x4; assumed: from memory
    banks    = 32,     # SCNN's paper: twice as many as multipliers; assumed: from memory
))
OUTERSPACE = replace(TPU, array=OuterSpace(elements=16384))  # Sec. VI-A
EYERISS_V2 = replace(TPU, array=EyerissV2(
    rows      = 128,   # assumed: 16384 multipliers (Sec. VI-A), their shape is not printed
    columns   = 64,    # assumed: 16384 multipliers (Sec. VI-A), their shape is not printed
    simd      = 2,     # Eyeriss v2's paper; assumed: from memory
    bandwidth = 128,   # Sec. V: 128 words per cycle, there of SIGMA and the TPU
))
PACKED_SYSTOLIC = replace(TPU, array=PackedSystolic(
    rows    = 128,     # assumed: as the TPU
    columns = 128,     # assumed: as the TPU
    factor  = 8,       # Kung et al.: groups of up to 8; assumed: from memory
))
CAMBRICON_X = replace(TPU, array=CambriconX(
    elements = 1024,   # Sec. VI-A: 16384 multipliers
    leaves   = 16,     # Cambricon-X's paper; assumed: from memory
))

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
    from trainyard.report.sigma import figure

    if given and not given.isdigit():
        raise BadInput(f"explain sigma {given}: give nothing (the paper's example), or a seed such as 7 for another one")
    chosen = told.example(int(given)) if given else told.EXAMPLE
    return told.walkthrough(chosen), lambda: figure(chosen)


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.sigma.plots import FIGURES

    return FIGURES
