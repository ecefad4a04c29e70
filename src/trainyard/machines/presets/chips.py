"""Training chips other than GPUs, by their makers' papers and data sheets: Google's TPUs, Intel's Gaudi 2, Amazon's Trainium.

TPU v2, v3: N. Jouppi et al.: Ten Lessons From Three Generations Shaped Google's TPUv4i. ISCA 2021, Table 1; T. Norrie et al.: The
Design Process for Google's Training Chips: TPUv2 and TPUv3. IEEE Micro 2021. TPU v4: N. Jouppi et al.: TPU v4: An Optically
Reconfigurable Supercomputer for Machine Learning with Hardware Support for Embeddings. ISCA 2023, Table 4. Gaudi 2: Habana Gaudi2
White Paper, 2022; R. Kaplan: Intel Gaudi 3 AI Accelerator. Hot Chips 2024 (a table of all generations). Trainium: AWS Neuron
documentation, NeuronCore-v2 and the Trainium architecture guide.

Each is one chip as one device: its matrix units take the folds of a product in turn, and its memories on chip are one scratchpad.
How the makers' compilers divide work among cores and memories is not public. Twice the MACs of the units times the clock is the
printed FLOP/s: 46, 123, 275, 432 and 183 T. Gaudi 2's MMEs are taken to be 256 x 256 cells, as those of Gaudi 3. Activations and
gradients are in bf16, which is what the matrix units multiply; parameters stay in fp32.
"""

from __future__ import annotations

from trainyard.arrays import SystolicUnits
from trainyard.devices import Accelerator

MIXED = {"input": "bf16", "activation": "bf16", "gradient": "bf16"}
# fmt: off
TPU_V2 = Accelerator(
    array               = SystolicUnits(units=2, rows=128, columns=128, pipelined=True),  # Table 1: 2 cores, an MXU each
    clock_hz            = 700e6,      # ISCA 2021, Table 1: 700 MHz
    scratchpad_bytes    = 32 * 2**20, # ISCA 2021, Table 1: 32 MB on chip
    dram_bytes_per_s    = 700e9,      # ISCA 2021, Table 1: HBM, 700 GB/s
    dram_capacity_bytes = 16 * 2**30, # ISCA 2021, Table 1: 16 GB
    vector_lanes        = 2 * 1024,   # IEEE Micro 2021: each core has 128 lanes of 8
    technology_nm       = 16,         # ISCA 2021, Table 1: 16 nm
    dram_kind           = "hbm2",     # ISCA 2021, Table 1: HBM
    precision           = MIXED,      # IEEE Micro 2021: bf16 products, fp32 sums
)
TPU_V3 = Accelerator(
    array               = SystolicUnits(units=4, rows=128, columns=128, pipelined=True),  # Table 1: 2 cores, 2 MXUs each
    clock_hz            = 940e6,      # ISCA 2021, Table 1: 940 MHz
    scratchpad_bytes    = 32 * 2**20, # ISCA 2021, Table 1: 32 MB on chip
    dram_bytes_per_s    = 900e9,      # ISCA 2021, Table 1: HBM, 900 GB/s
    dram_capacity_bytes = 32 * 2**30, # ISCA 2021, Table 1: 32 GB
    vector_lanes        = 2 * 1024,   # IEEE Micro 2021: each core has 128 lanes of 8
    technology_nm       = 16,         # ISCA 2021, Table 1: 16 nm
    dram_kind           = "hbm2",     # ISCA 2021, Table 1: HBM
    precision           = MIXED,      # IEEE Micro 2021: bf16 products, fp32 sums
)
TPU_V4 = Accelerator(
    array               = SystolicUnits(units=8, rows=128, columns=128, pipelined=True),  # Table 4: 2 cores, 4 MXUs each
    clock_hz            = 1050e6,      # ISCA 2023, Table 4: 1050 MHz
    scratchpad_bytes    = 160 * 2**20, # ISCA 2023, Table 4: 128 MiB CMEM and 32 MiB VMEM; assumed: one memory
    dram_bytes_per_s    = 1200e9,      # ISCA 2023, Table 4: HBM, 1200 GB/s
    dram_capacity_bytes = 32 * 2**30,  # ISCA 2023, Table 4: 32 GiB
    vector_lanes        = 2 * 1024,    # assumed: as TPU v2 and v3
    technology_nm       = 7,           # ISCA 2023, Table 4: 7 nm
    dram_kind           = "hbm2",      # ISCA 2023, Table 4: HBM
    precision           = MIXED,       # ISCA 2023, Table 4: bf16
)
GAUDI2 = Accelerator(
    array               = SystolicUnits(units=2, rows=256, columns=256, dataflow="os", pipelined=True),  # paper: 2; assumed: size
    clock_hz            = 1.65e9,      # assumed: what gives the 432 TFLOP/s of BF16 of the Hot Chips table
    scratchpad_bytes    = 48 * 10**6,  # paper: 48 MB of SRAM
    dram_bytes_per_s    = 2450e9,      # paper: HBM2E, 2.45 TB/s
    dram_capacity_bytes = 96 * 10**9,  # paper: 96 GB
    vector_lanes        = 24 * 64,     # paper: 24 TPCs; assumed: 2048 bits of fp32 each, as their programming guide has it
    technology_nm       = 7,           # Hot Chips 2024: 7 nm
    dram_kind           = "hbm2",      # assumed: HBM2E as HBM2
    precision           = MIXED,       # paper: bf16 products, fp32 sums
)
TRAINIUM = Accelerator(
    array               = SystolicUnits(units=2, rows=128, columns=128, pipelined=True),  # guide: 2 cores, an engine each
    clock_hz            = 2.8e9,       # assumed: what gives the more than 90 TFLOP/s of BF16 of each core
    scratchpad_bytes    = 48 * 2**20,  # guide: 24 MiB of state buffer in each core
    dram_bytes_per_s    = 820e9,       # guide: 2 HBM stacks, 820 GB/s
    dram_capacity_bytes = 32 * 2**30,  # guide: 32 GiB
    vector_lanes        = 256,         # assumed: 128 lanes of the vector engines, less their lower clock, with the scalar engines
    technology_nm       = 7,           # assumed: not printed
    dram_kind           = "hbm2",      # guide: HBM
    precision           = MIXED,       # documentation: bf16 inputs, fp32 sums
)
# fmt: on
