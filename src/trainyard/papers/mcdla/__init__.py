"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.arrays import Spatial
from trainyard.devices import Accelerator
from trainyard.parts.memory_node import MemoryNode
from trainyard.systems.node import DeviceCentric, HostCentric, MemoryCentric, Node

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.ledger import Measured
    from trainyard.weighing import Kind, Weighing

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

DC_DLA = DeviceCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    socket_bytes_per_s = 80e9,         # Sec. II-C: a high-end Xeon's socket
)
DC_DLA_ORACLE = DeviceCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    overlay            = "off",        # Sec. IV: infinite memory, nothing is copied
)
HC_DLA = HostCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    host_links         = 3,            # Sec. IV: half of the links; the graph writes the odd three that stay between devices as
                                       # six wires of half rate, so that they are rings (parity: parts/topologies.py, _shared_wires)
    devices_per_socket = 4,            # Sec. IV
    socket_bytes_per_s = 300e9,        # Sec. IV: hypothetical, 3 to 4 times a real socket's
)
MCDLA_B = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    shape              = "ring",       # Fig. 7c
    placement          = "bw_aware",   # Fig. 10
    memory_node        = MemoryNode(), # Table II: 256 GB/s, 100 cycles, 6 links of 25 GB/s
)
MCDLA_L = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    shape              = "ring",       # Fig. 7c
    placement          = "local",      # Fig. 10
    memory_node        = MemoryNode(), # Table II
)
MCDLA_S = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    shape              = "folded",     # Fig. 7b, Sec. V
    memory_node        = MemoryNode(), # Table II
)
# fmt: on

DESIGNS: Mapping[str, Node] = {
    "dc-dla": DC_DLA,
    "hc-dla": HC_DLA,
    "mcdla-s": MCDLA_S,
    "mcdla-l": MCDLA_L,
    "mcdla-b": MCDLA_B,
    "dc-dla-oracle": DC_DLA_ORACLE,
}
"""The six of Sec. V."""

CASE = ("resnet34", "mcdla-b")


def experiments() -> Mapping[str, Callable[[], Measured]]:
    """Every claim; experiments of one process share their runs."""
    from trainyard.papers.mcdla import breakdown, context, generations, performance, power, scaling, sensitivity, wiring

    return {
        **context.EXPERIMENTS,
        **wiring.EXPERIMENTS,
        **power.EXPERIMENTS,
        **generations.EXPERIMENTS,
        **performance.EXPERIMENTS,
        **breakdown.EXPERIMENTS,
        **sensitivity.EXPERIMENTS,
        **scaling.EXPERIMENTS,
    }


def figures() -> Mapping[str, Callable[[], go.Figure]]:
    """By the name that claims give them."""
    from trainyard.papers.mcdla.plots import FIGURES

    return FIGURES


def weighing(kinds: Sequence[Kind]) -> Weighing:
    """What `whatif mcdla` weighs: assumptions of the node, by the paper's own figure of merit."""
    from trainyard.papers.mcdla.assumptions import weighing

    return weighing(kinds=kinds)
