"""TensorDash. M. Mahmoud, I. Edo, A. H. Zadeh, O. M. Awad, G. Pekhimenko, J. Albericio, A. Moshovos: TensorDash: Exploiting
Sparsity to Accelerate Deep Neural Network Training. MICRO 2020.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.arrays import TensorCore, TensorDash
from trainyard.devices import Accelerator

# fmt: off
TENSORCORE = Accelerator(
    array               = TensorCore(lanes=4, rows=4, columns=4, tiles=256, scratchpads_bytes=256 * 2**10),  # Table III
    clock_hz            = 500e6,                  # Table III: 500 MHz
    scratchpad_bytes    = 3 * 64 * 128 * 2**10,   # Table III: AM, BM, CM of 64 banks of 128 KB
    scratchpad_banks    = 3 * 64,                 # Table III
    dram_bytes_per_s    = 4 * 3200e6 * 2,         # Table III: 4-channel LPDDR4-3200; assumed: 16-bit channels, as JEDEC has them
    dram_capacity_bytes = 16e9,                   # Table III: 16 GB
    dram_kind           = "lpddr4",               # Table III
    dma                 = "zero_compressed",      # Sec. IV: both chips compress zeros off-chip
    precision           = "fp16",                 # Sec. III: FP16 products, FP32 sums
    grad_input          = "dilated",              # Table II, Eq. 6
    order               = "cost",                 # Sec. III: both products of a layer's gradients, which should not leave the chip
    technology_nm       = 65,                     # Table III
)

TENSORDASH = replace(
    TENSORCORE,
    array = TensorDash(lanes=4, depth=4, rows=4, columns=4, tiles=256, scratchpads_bytes=256 * 2**10),  # Table III
)
# fmt: on
