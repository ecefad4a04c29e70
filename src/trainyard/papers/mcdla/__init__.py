"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018."""

from __future__ import annotations

from trainyard.arrays import Spatial
from trainyard.devices import Accelerator

# fmt: off
DEVICE = Accelerator(
    array = Spatial(
        elements         = 1024,       # Table II: number of PEs
        macs_per_element = 125,        # Table II: MACs per PE
        buffer_bytes     = 32 * 2**10, # Table II: local SRAM buffer of 32 KB per PE
    ),
    clock_hz         = 1e9,            # Table II: 1 GHz
    scratchpad_bytes = 32 * 2**20,     # assumed: the local buffers of all PEs together; the paper names no shared one
    dram_bytes_per_s = 900e9,          # Table II: 900 GB/s
    dram_latency_s   = 100e-9,         # Table II: 100 cycles
)
# fmt: on

CASE = ("resnet34", "spatial")
