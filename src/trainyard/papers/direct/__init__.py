"""DIRECT. P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.devices.dpu_presets import UPMEM
from trainyard.devices.gpu_presets import A100
from trainyard.mapping.algorithms import Direct, ModelAveraging
from trainyard.parts.agau import Agau
from trainyard.parts.crossbar import Crossbar
from trainyard.parts.dsc import Dsc
from trainyard.parts.host_link import HostLink
from trainyard.systems.pim import DpuToDpu, HostMediated
from trainyard.systems.replicas import Replicas

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured
    from trainyard.weighing import Kind, Weighing

# fmt: off
PIM_OPT = HostMediated(
    dpu              = UPMEM,                     # Sec. V-A3: PIM-Opt, whose system is UPMEM's
    dpus             = 2048,                      # Table II
    host             = HostLink(),                # Eq. 1; UPMEM's measured figures
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

CASE = ("linear", "direct")


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share their runs."""
    from trainyard.papers.direct import accuracy, context, contributions, efficiency, hardware, table

    return {
        **table.EXPERIMENTS,
        **efficiency.EXPERIMENTS,
        **contributions.EXPERIMENTS,
        **hardware.EXPERIMENTS,
        **accuracy.EXPERIMENTS,
        **context.EXPERIMENTS,
    }


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.direct.plots import FIGURES

    return FIGURES


def weighing(kinds: Sequence[Kind]) -> Weighing:
    """What `whatif direct` weighs: assumptions of both machines, by the speedup of one over the other."""
    from trainyard.papers.direct.assumptions import weighing

    return weighing(kinds=kinds)
