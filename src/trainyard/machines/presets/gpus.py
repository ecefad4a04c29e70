"""Boards, by their vendors' papers.

V100: NVIDIA Tesla V100 GPU Architecture, WP-08608-001, 2017. A100: NVIDIA A100 Tensor Core GPU Architecture, 2020.
H100, H200: NVIDIA H100 Tensor Core GPU Architecture, V1.04 (the same processor), and the H200 data sheet, 2024.
B200: NVIDIA Blackwell data sheet, 2024 (HGX B200, 1000 W). MI300X: AMD Instinct MI300X data sheet and AMD CDNA 3 white paper, 2023.
How much of its peak a board reaches was measured on an H200 alone; the others take the same shares as assumptions.
MACs are per multiprocessor and cycle; twice that times multiprocessors and clock is the printed FLOP/s.
Energy: HBM2 takes 3.92 pJ a bit (M. O'Connor et al.: Fine-Grained DRAM. MICRO 2017); a MAC is what is left of the board's power.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.devices.gpu.device import Gpu

# fmt: off
V100 = Gpu(
    name                = "V100-SXM2",    # paper, Table 1
    technology          = "12 nm FFN",    # paper, Table 1
    die_m2              = 815e-6,         # paper, Table 1: 815 mm2
    sms                 = 80,             # paper, Table 1
    clock_hz            = 1.530e9,        # paper, Table 1: boost clock
    fp32_macs           = 64,             # paper, Table 1: 64 FP32 cores/SM; 15.7 TFLOP/s
    tf32_macs           = 0,              # paper: the tensor cores take fp16 only
    half_macs           = 512,            # paper: 8 tensor cores of 64 FMA/SM; 125 TFLOP/s
    fp64_macs           = 32,             # paper, Table 1: 32 FP64 cores/SM; 7.8 TFLOP/s
    bf16                = False,          # paper: the tensor cores take fp16 only
    l2_bytes            = 6 * 2**20,      # paper, Table 1: 6144 KB
    l2_bytes_per_s      = 2048 * 1.53e9,  # A100 paper: V100's L2 reads 2048 B a clock
    on_chip_bytes       = 96 * 2**10,     # paper, Table 1: up to 96 KB of shared memory/SM
    dram_bytes_per_s    = 900e9,          # paper, Table 1: HBM2, 900 GB/s
    dram_capacity_bytes = 16 * 2**30,     # paper, Table 1: 16 GB
    idle_w              = 40.0,           # assumed: a board at rest with its clocks up
    mac_j               = 3.7e-12,        # assumed: (300 W - idle - DRAM at full rate) over 62.7 T MAC/s
    dram_byte_j         = 31.4e-12,       # O'Connor et al. 2017: HBM2, 3.92 pJ a bit
)
V100_32GB = replace(
    V100,
    name                = "V100-SXM2-32GB",  # data sheet, 2020
    dram_capacity_bytes = 32 * 2**30,        # data sheet, 2020: 32 GB
)
A100 = Gpu(
    name                = "A100-SXM4-40GB",  # paper, Table 4
    technology          = "7 nm N7",         # paper, Table 4
    die_m2              = 826e-6,            # paper, Table 4: 826 mm2
    sms                 = 108,               # paper, Table 4
    clock_hz            = 1.410e9,           # paper, Table 4: boost clock
    fp32_macs           = 64,                # paper, Table 4: 64 FP32 cores/SM; 19.5 TFLOP/s
    tf32_macs           = 512,               # paper, Table 4: 156 TFLOP/s dense
    half_macs           = 1024,              # paper, Table 4: 4 tensor cores of 256 FMA/SM; 312 TFLOP/s dense
    fp64_macs           = 64,                # paper, Table 4: 19.5 TFLOP/s on tensor cores
    bf16                = True,              # paper, Table 4: 312 TFLOP/s
    int8_macs           = 2048,              # paper, Table 4: 624 TOP/s dense
    l2_bytes            = 40 * 2**20,        # paper, Table 4: 40960 KB
    l2_bytes_per_s      = 5120 * 1.41e9,     # paper: the L2 reads 5120 B a clock
    on_chip_bytes       = 164 * 2**10,       # paper, Table 5: up to 164 KB of shared memory/SM
    dram_bytes_per_s    = 1555e9,            # paper, Table 4: HBM2, 1555 GB/s
    dram_capacity_bytes = 40 * 2**30,        # paper, Table 4: 40 GB
    structured          = True,              # paper, Table 4: 624 TFLOP/s in fp16 with 2:4 sparse weights
    idle_w              = 50.0,              # assumed: a board at rest with its clocks up
    mac_j               = 1.9e-12,           # assumed: (400 W - idle - DRAM at full rate) over 156 T MAC/s
    dram_byte_j         = 31.4e-12,          # O'Connor et al. 2017: HBM2, 3.92 pJ a bit
)
A100_80GB = replace(
    A100,
    name                = "A100-SXM4-80GB",  # data sheet, 2021
    dram_bytes_per_s    = 2039e9,            # data sheet, 2021: HBM2e, 2039 GB/s
    dram_capacity_bytes = 80 * 2**30,        # data sheet, 2021: 80 GB
)
H200 = Gpu(
    name                = "H200-SXM",        # data sheet
    technology          = "4N",              # H100 paper, Table 3: TSMC 4N
    die_m2              = 814e-6,            # H100 paper, Table 3: 814 mm2
    sms                 = 132,               # H100 paper, Table 3: SXM5
    clock_hz            = 1.980e9,           # H100 paper, Table 3: 1980 MHz boost; the driver reports it as maximum
    fp32_macs           = 128,               # H100 paper, Table 3: 128 FP32 cores/SM; 67 TFLOP/s
    tf32_macs           = 1024,              # H100 paper, Table 3: 494.7 TFLOP/s dense, at 1.83 GHz
    half_macs           = 2048,              # H100 paper, Table 3: 989.4 TFLOP/s dense, at 1.83 GHz
    fp64_macs           = 128,               # H100 paper, Table 3: 66.9 TFLOP/s on tensor cores
    bf16                = True,              # H100 paper, Table 3: 989.4 TFLOP/s
    fp8_macs            = 4096,              # H100 paper, Table 3: 1978.9 TFLOP/s dense, at 1.83 GHz
    int8_macs           = 4096,              # H100 paper, Table 3: 1978.9 TOP/s dense, at 1.83 GHz
    structured          = True,              # H100 paper, Table 3: 1978.9 TFLOP/s in fp16 with 2:4 sparse weights
    l2_bytes            = 60 * 2**20,        # measured: what the driver reports; H100 paper, Table 3: 50 MB
    l2_bytes_per_s      = 5120 * 1.98e9,     # assumed: as many bytes a clock as A100's
    on_chip_bytes       = 228 * 2**10,       # H100 paper, Table 4: up to 228 KB of shared memory/SM
    dram_bytes_per_s    = 4.8e12,            # data sheet: HBM3e, 4.8 TB/s
    dram_capacity_bytes = 141 * 10**9,       # data sheet: 141 GB
    idle_w              = 75.0,              # assumed: a board at rest with its clocks up
    mac_j               = 0.96e-12,          # assumed: (700 W - idle - DRAM at full rate) over 495 T MAC/s
    dram_byte_j         = 31.4e-12,          # assumed: HBM3e as HBM2, 3.92 pJ a bit
    tiles               = ((256, 128, 64), (128, 128, 64), (128, 64, 64), (64, 64, 64), (64, 32, 64)),  # assumed: CUTLASS's tiles
    # How much of it eager torch 2.11 reaches, with CUDA 13.0 and cuDNN 9.19, in three runs. docs/gpu.md holds it against training.
    tensor_fraction      = 0.75,             # measured: products of 2048 to 8192 in bf16 and TF32
    vector_fraction      = 0.75,             # measured: products of 256 to 8192 in fp32
    attention_fraction   = 1.0,              # measured: fused attention of fifteen shapes in bf16
    copy_fraction        = 0.89,             # measured: copies of 0.25 to 4 GiB
    l2_fraction          = 0.65,             # measured: copies of 4 and 16 MiB that stay in the L2, less a tiny kernel's time
    l2_share             = 0.5,              # assumed: half of it, as both halves of the chip keep what they read
    block_share          = 0.7,              # measured: batch norm of 64 channels against 256 and more
    loads_per_cycle      = 2.8,              # measured: products with rows of 50257; TF32 products whose operands lie across
    heavy_instructions   = 60.0,             # measured: norms, softmax, dropout, GELU, bias gradients of maps, NHWC copies
    strided_instructions = 110.0,            # measured: copies of permuted and transposed attention heads
    window_instructions  = 300.0,            # measured: max pooling, 2 x 2 and 3 x 3
    score_instructions   = 10.0,             # measured: fused attention of fifteen shapes in bf16, fp32 and fp16
    ramp_s               = 1.2e-6,           # measured: the profiler's time of additions to a few elements
    gap_s                = 0.6e-6,           # measured: period of queued tiny kernels, less their own time
    fill_s               = 1.5e-6,           # measured: products of 256 to 1024; batch norm of 1024 and 2048 channels
    call_s               = 39e-6,            # calibrated: host time of resnet50's and bert-base's forward passes, second run
    node_s               = 34e-6,            # calibrated: host time of resnet50's and bert-base's backward passes, second run
    launch_s             = 9.4e-6,           # measured: in-place addition to one element, host time
    list_s               = 2.6e-6,           # calibrated: host time of resnet50's and bert-base's updates, second run
    step_s               = 0.25e-3,          # measured: the smallest training step, less its calls
    queue                = 1024,             # assumed: the driver's usual depth
)
H100 = Gpu(
    name                = "H100-SXM5-80GB",  # H100 paper, Table 3
    technology          = "4N",              # H100 paper, Table 3: TSMC 4N
    die_m2              = 814e-6,            # H100 paper, Table 3: 814 mm2
    sms                 = 132,               # H100 paper, Table 3: SXM5
    clock_hz            = 1.980e9,           # H100 paper, Table 3: 1980 MHz boost
    fp32_macs           = 128,               # H100 paper, Table 3: 128 FP32 cores/SM; 67 TFLOP/s
    tf32_macs           = 1024,              # H100 paper, Table 3: 494.7 TFLOP/s dense, at 1.83 GHz
    half_macs           = 2048,              # H100 paper, Table 3: 989.4 TFLOP/s dense, at 1.83 GHz
    fp64_macs           = 128,               # H100 paper, Table 3: 66.9 TFLOP/s on tensor cores
    bf16                = True,              # H100 paper, Table 3: 989.4 TFLOP/s
    fp8_macs            = 4096,              # H100 paper, Table 3: 1978.9 TFLOP/s dense, at 1.83 GHz
    int8_macs           = 4096,              # H100 paper, Table 3: 1978.9 TOP/s dense, at 1.83 GHz
    structured          = True,              # H100 paper, Table 3: 1978.9 TFLOP/s in fp16 with 2:4 sparse weights
    l2_bytes            = 50 * 2**20,        # H100 paper, Table 3: 51200 KB
    l2_bytes_per_s      = 5120 * 1.98e9,     # assumed: as many bytes a clock as A100's
    on_chip_bytes       = 228 * 2**10,       # H100 paper, Table 4: up to 228 KB of shared memory/SM
    dram_bytes_per_s    = 3352e9,            # H100 paper, Table 3: HBM3, 3352 GB/s
    dram_capacity_bytes = 80 * 2**30,        # H100 paper, Table 3: 80 GB
    idle_w              = 75.0,              # assumed: as the H200's
    mac_j               = 1.05e-12,          # assumed: (700 W - idle - DRAM at full rate) over 495 T MAC/s
    dram_byte_j         = 31.4e-12,          # assumed: HBM3 as HBM2, 3.92 pJ a bit
    tiles               = H200.tiles,        # assumed: CUTLASS's tiles
)
B200 = Gpu(
    name                = "B200-SXM",        # data sheet
    technology          = "4NP",             # data sheet: TSMC 4NP
    sms                 = 148,               # assumed: as public lists of boards have it; the data sheet does not say
    clock_hz            = 1.965e9,           # assumed: the highest clock of public lists; the printed rates are at 1.85 GHz
    fp32_macs           = 128,               # assumed: as Hopper's; 75 TFLOP/s
    tf32_macs           = 2048,              # data sheet: 1.1 PFLOP/s dense, at 1.85 GHz
    half_macs           = 4096,              # data sheet: 2.25 PFLOP/s dense, at 1.85 GHz
    fp64_macs           = 64,                # data sheet: 37 TFLOP/s
    bf16                = True,              # data sheet: 2.25 PFLOP/s
    fp8_macs            = 8192,              # data sheet: 4.5 PFLOP/s dense, at 1.85 GHz
    int8_macs           = 8192,              # data sheet: 4.5 POP/s dense, at 1.85 GHz
    structured          = True,              # data sheet: 4.5 PFLOP/s in fp16 with 2:4 sparse weights
    l2_bytes            = 126 * 2**20,       # assumed: as public lists of boards have it
    l2_bytes_per_s      = 10240 * 1.965e9,   # assumed: two dies, each with as many bytes a clock as A100
    on_chip_bytes       = 228 * 2**10,       # assumed: as Hopper's
    dram_bytes_per_s    = 8e12,              # data sheet: HBM3e, 8 TB/s
    dram_capacity_bytes = 180 * 10**9,       # data sheet: 180 GB of an HGX board
    idle_w              = 100.0,             # assumed: a board at rest with its clocks up
    mac_j               = 0.58e-12,          # assumed: (1000 W - idle - DRAM at full rate) over 1125 T MAC/s
    dram_byte_j         = 31.4e-12,          # assumed: HBM3e as HBM2, 3.92 pJ a bit
    tiles               = H200.tiles,        # assumed: as Hopper's
)
MI300X = Gpu(
    name                = "MI300X",          # data sheet
    technology          = "5 nm",            # data sheet: 5 nm and 6 nm FinFET
    sms                 = 304,               # data sheet: 304 compute units
    clock_hz            = 2.1e9,             # data sheet: 2100 MHz peak engine clock
    fp32_macs           = 128,               # data sheet: 163.4 TFLOP/s of fp32 vectors
    tf32_macs           = 512,               # data sheet: 653.7 TFLOP/s dense
    half_macs           = 1024,              # data sheet: 1307.4 TFLOP/s dense
    fp64_macs           = 128,               # data sheet: 163.4 TFLOP/s of fp64 matrices
    bf16                = True,              # data sheet: 1307.4 TFLOP/s
    fp8_macs            = 2048,              # data sheet: 2614.9 TFLOP/s dense
    int8_macs           = 2048,              # data sheet: 2614.9 TOP/s dense
    structured          = True,              # data sheet: 2614.9 TFLOP/s in fp16 with structured sparsity
    l2_bytes            = 256 * 2**20,       # data sheet: 256 MB Infinity Cache; assumed: it is the last cache, as an L2
    l2_bytes_per_s      = 17.2e12,           # white paper: 17.2 TB/s of the Infinity Cache
    on_chip_bytes       = 64 * 2**10,        # white paper: 64 KB of local data share in each compute unit
    dram_bytes_per_s    = 5.3e12,            # data sheet: HBM3, 5.3 TB/s
    dram_capacity_bytes = 192 * 10**9,       # data sheet: 192 GB
    idle_w              = 100.0,             # assumed: a board at rest with its clocks up
    mac_j               = 0.74e-12,          # assumed: (750 W - idle - DRAM at full rate) over 654 T MAC/s
    dram_byte_j         = 31.4e-12,          # assumed: HBM3 as HBM2, 3.92 pJ a bit
)
# fmt: on
