"""SIGMA. E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM
Accelerator with Flexible Interconnects for DNN Training. HPCA 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import MatMul
from trainyard.papers.ledger import Measured

# fmt: off
TPU_ARRAY = Systolic(rows=128, columns=128, dataflow="ws")  # Sec. III-B: 128x128; Sec. III-C: KN stationary
TPU = Accelerator(
    array            = TPU_ARRAY,  # Sec. VI-A: 16384 PEs
    clock_hz         = 500e6,      # assumed: not printed; it makes the peak 16.4 TFLOPS, of which Fig. 8's 10.8 are 66 %
    scratchpad_bytes = 16 * 2**20, # assumed: the paper leaves SRAM out; a core of TPUv2, one of the Cloud TPUs it cites, has 16 MiB
    dram_bytes_per_s = 350e9,      # assumed: the paper leaves DRAM out; TPUv2 has 350 GB/s per 128x128 array (IGO, Sec. 6.4)
)

# The evaluated GEMMs, M-N-K as on the axis of Fig. 12.
SUITE = tuple(MatMul(M, N, K) for M, N, K in (
    ( 128,  2048,   4096), ( 320,  3072, 4096), ( 1632, 36548, 1024), (2048, 4096,   32), (1024,  16, 500000),
    (  35,  8457,   2560), (31999, 1024,   84), (   84,  1024, 4096), (2048,    1,  128), ( 256, 256,   2048),
))

SQUARE = ((128, 128),)                          # Sec. VI-C
RECTANGLES = (*SQUARE, (256, 64), (512, 32))    # Fig. 12a
MIRRORED = (*RECTANGLES, (64, 256), (32, 512))  # Fig. 11, of SIGMA_FI: "and vice versa"

# Sparsity of MK and KN: weights 80 %, inputs 10 to 50 % (Sec. VI-A), either one being MK.
SPARSITIES = tuple(pair for inputs in (0.1, 0.3, 0.5) for pair in ((0.8, inputs), (inputs, 0.8)))
NARROW = MatMul(1024, 16, 500000)               # Sec. VI-B and VI-C: KN, 500000 x 16, is stationary
# fmt: on

CASE = ("transformer-324m", "tpu")


def stationary_utilisation(array: Systolic, op: MatMul) -> float:
    """Share of the cells that hold an element of the stationary operand, over all its folds."""
    held = op.K * op.N if array.dataflow == "ws" else op.M * op.K
    return held / (array.cost(op).events["array_pass"] * array.peak_macs_per_cycle)


def efficiency(op: MatMul, shapes: Iterable[tuple[int, int]]) -> float:
    """Useful MACs over MACs possible in the total latency (Table II), the better stationary operand and shape counting."""
    arrays = (Systolic(rows=r, columns=c, dataflow=flow) for r, c in shapes for flow in ("ws", "is"))
    return max(array.utilisation(op) for array in arrays)


def _narrow_utilisation() -> Measured:
    percent = 100 * stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(percent, note=f"1024-16-500000 with KN stationary fills {percent:.2f} % of 128x128 over all folds")


def _narrow_drop() -> Measured:
    full = stationary_utilisation(TPU_ARRAY, MatMul(NARROW.M, TPU_ARRAY.columns, NARROW.K))
    narrow = stationary_utilisation(TPU_ARRAY, NARROW)
    return Measured(100 * (1 - narrow / full), note="against the same GEMM with N = 128")


def _suite_means(useful: float = 1.0) -> tuple[float, float, float]:
    """Mean efficiency over the suite in per cent: the square array, the three shapes of Fig. 12a, those and their mirror images."""
    square, printed, mirrored = (100 * useful * fmean(efficiency(op, s) for op in SUITE) for s in (SQUARE, RECTANGLES, MIRRORED))
    return square, printed, mirrored


def _dense_efficiency() -> Measured:
    square, printed, mirrored = _suite_means()
    return Measured(
        printed,
        note=f"mean over the suite, best of the three shapes that Sec. VI-C names; 128x128 alone gives {square:.1f} %; mirrored "
        f"shapes too would give {mirrored:.1f} %, but 'and vice versa' is said in Fig. 11, of SIGMA_FI, not of the TPU",
    )


def _sparse_efficiency() -> Measured:
    square, printed, mirrored = _suite_means(useful=fmean((1 - a) * (1 - b) for a, b in SPARSITIES))
    return Measured(
        printed,
        note="zeros independent, weights 80 % and inputs 10, 30, 50 % sparse, none of them skipped; best of three shapes "
        f"(128x128 alone {square:.1f} %, with mirrored shapes {mirrored:.1f} %)",
    )


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """What the systolic baseline alone can answer.

    Sec. III-B's "common to have less than 50 %" is not among them: how common is not printed, and stationary utilisation (4 of 10
    GEMMs below 50 %, mean 58 %) and overall efficiency (6 of 10, mean 47 %) would answer it differently.
    """
    return {
        "sigma.tpu.utilisation_16_wide": _narrow_utilisation,
        "sigma.tpu.utilisation_drop_n16": _narrow_drop,
        "sigma.dense.efficiency.tpu": _dense_efficiency,
        "sigma.sparse.efficiency.tpu_below": _sparse_efficiency,
    }
