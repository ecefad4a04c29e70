"""DIRECT. P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication."""

from __future__ import annotations

from trainyard.devices.dpu.presets import UPMEM
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar.hierarchy import Crossbar
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.hardware.dsc.unit import Dsc
from trainyard.machines.presets.gpus import A100
from trainyard.mapping.algorithms import Direct, ModelAveraging
from trainyard.systems.pim.systems import DpuToDpu, HostMediated
from trainyard.systems.scale_out.replicas import Replicas

# fmt: off
PIM_OPT = HostMediated(
    dpu              = UPMEM,                     # Sec. V-A3: PIM-Opt, whose system is UPMEM's
    dpus             = 2048,                      # Table II
    host             = HostLink(),                # Eq. 1; UPMEM's measured figures
    transfers        = "ranks_in_turn",           # Eq. 1: 2 N transfers at the available bandwidth; real systems: rank_parallel
    algorithm        = ModelAveraging(period=1),  # PIM-Opt: MA-SGD, an exchange after every mini-batch (416 in an epoch)
)
DIRECT = DpuToDpu(
    dpu              = UPMEM,                     # assumed: the paper names no DPU; its baseline's
    dpus             = 2048,                      # Table I: up to 2048
    crossbar         = Crossbar(),                # Table I: four levels
    agau             = Agau(),                    # Sec. III-A: 256 bits
    dsc              = Dsc(),                     # Sec. III-B: token-based
    algorithm        = Direct(31),                # Algorithm 1; assumed: tau is not printed
)
A100_CLUSTER = Replicas(
    device           = A100,                      # Sec. V-A3: NVIDIA A100
    devices          = 8,                         # 1 to 2048; a batch of 8 is the least that all of the zoo divides
    link_bytes_per_s = 25e9,                      # assumed: one 200 Gb/s HDR InfiniBand port for each GPU, as in a DGX A100
    link_latency_s   = 2e-6,                      # assumed: one message between GPUs over InfiniBand, switch included
)
# fmt: on
