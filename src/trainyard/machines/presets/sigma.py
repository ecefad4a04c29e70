"""SIGMA. E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM
Accelerator with Flexible Interconnects for DNN Training. HPCA 2020.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.arrays import CambriconX, Eie, EyerissV2, OuterSpace, PackedSystolic, Scnn, Sigma, Systolic
from trainyard.devices import Accelerator

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
# fmt: on
