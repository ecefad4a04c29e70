"""IGO. J. Kim, S. Na, S. Lee, S. Lee, J. Huh: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for
DNN Training. MICRO 2023.
"""

from __future__ import annotations

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator

# fmt: off
NPU = Accelerator(
    array            = Systolic(rows=128, columns=128, dataflow="ws"),  # Table 3, large NPU; assumed: the dataflow is not said
    clock_hz         = 1050e6,                                          # Table 3: 1050 MHz
    scratchpad_bytes = 8 * 2**20,                                       # Table 3: 8 MB per core
    dram_bytes_per_s = 150e9,                                           # Table 3: 150 GB/s per core
)

NPU_SMALL = Accelerator(
    array            = Systolic(rows=45, columns=45, dataflow="ws"),    # Table 3, small NPU; assumed: the dataflow is not said
    clock_hz         = 1e9,                                             # Table 3: 1 GHz
    scratchpad_bytes = 2**20,                                           # Table 3: 1 MB
    dram_bytes_per_s = 22e9,                                            # Table 3: 22 GB/s
)
# fmt: on
