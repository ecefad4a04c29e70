"""Two DPUs: the one that is sold, and one with a MAC array for convolutional networks.

UPMEM: J. Gomez-Luna et al., IEEE Access 10, 2022 (PrIM); S. Rhyner et al.: PIM-Opt, PACT 2024; UPMEM's data sheet.
MAC_DPU is hypothetical. Its processing unit is that of a DRAM which does (AiM): S. Lee et al.: A 1ynm 1.25V 8Gb, 16Gb/s/pin
GDDR6-based Accelerator-in-Memory supporting 1TFLOPS MAC Operation, ISSCC 2022; SK hynix, Hot Chips 2023 (1 GHz units, 512 GB/s
inside a channel of 16 banks). 1 TFLOP/s over 32 banks at 1 GHz are 16 multipliers a bank. ResNet-18 in DIRECT's Table II takes
8.8 GMAC/s of each DPU; the peak here is 16.
Energy at full load: an instruction of a simple core (Horowitz), HBM2's energy a bit, and a static power that is calibrated on
383 W for 2556 DPUs (PrIM); the events alone are 0.04 W of those 0.15.
"""

from __future__ import annotations

from trainyard.devices.dpu.device import Dpu

# fmt: off
UPMEM = Dpu(
    name                   = "upmem",      # PrIM: the system of 2556 DPUs
    clock_hz               = 350e6,        # PrIM: 350 MHz
    tasklets               = 16,           # assumed: 11 and more fill the pipeline, and 16 leave WRAM for blocks of 1 KiB
    most_tasklets          = 24,           # PrIM: 24 hardware threads
    interval               = 11,           # PrIM: an instruction of a tasklet every 11 cycles
    wram_bytes             = 64 * 1024,    # PrIM: 64 KB
    iram_bytes             = 24 * 1024,    # PrIM: 24 KB
    mram_bytes             = 64 * 2**20,   # PrIM: 64 MB
    dma_read_cycles        = 77,           # PrIM: a read takes 77 + 0.5 cycles a byte
    dma_write_cycles       = 61,           # PrIM: a write takes 61 + 0.5 cycles a byte
    dma_cycles_per_byte    = 0.5,          # PrIM: see above; 651 MB/s at 2048 bytes, measured 628
    longest_transfer_bytes = 2048,         # UPMEM's SDK: mram_read and mram_write
    number                 = "fixed32",    # PIM-Opt: 32-bit fixed point
    mac_lanes              = 0,            # PrIM: multiplication is software
    wram_bytes_per_cycle   = 8,            # PrIM: loads and stores of up to 64 bits
    technology_nm          = 28,           # assumed: a DRAM process of the 20 nm class, whose gates are larger and slower
    mram_j_per_byte        = 31.4e-12,     # assumed: HBM2's 3.92 pJ a bit (O'Connor et al. 2017), mostly rows and wires of the die
    static_w               = 0.107,        # assumed: calibrated, 383 W / 2556 (PrIM) less the events at full load
)
MAC_DPU = Dpu(
    name                   = "mac-dpu",    # assumed: no such product
    clock_hz               = 1.0e9,        # AiM: a processing unit works at 1 GHz
    tasklets               = 16,           # assumed: as UPMEM
    most_tasklets          = 24,           # assumed: as UPMEM
    interval               = 11,           # assumed: as UPMEM
    wram_bytes             = 64 * 1024,    # assumed: as UPMEM; four times that make ResNet-18 2 % faster
    iram_bytes             = 24 * 1024,    # assumed: as UPMEM
    mram_bytes             = 512 * 2**20,  # assumed: an eighth of a 32 Gb DDR5 die; ResNet-18 at batch 8 needs 0.23 GB
    dma_read_cycles        = 30,           # assumed: precharge and activate a row, 15 ns each
    dma_write_cycles       = 30,           # assumed: as a read
    dma_cycles_per_byte    = 1 / 32,       # AiM: 512 GB/s over 16 banks, 256 bits in every nanosecond
    longest_transfer_bytes = 2048,         # assumed: a row of 2 KB
    number                 = "bf16",       # AiM: bf16 multipliers; assumed: weights and sums in fp32, as mixed precision trains
    mac_lanes              = 16,           # AiM: 1 TFLOP/s over 32 banks at 1 GHz
    wram_bytes_per_cycle   = 64,           # assumed: 16 operands of each side in a cycle, 2 bytes each
    technology_nm          = 28,           # assumed: as UPMEM
    mram_j_per_byte        = 31.4e-12,     # assumed: as UPMEM
    static_w               = 0.107,        # assumed: as UPMEM
)
# fmt: on
