"""MC-DLA. Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainyard.arrays import Spatial
from trainyard.devices import Accelerator
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.systems.node.systems import DeviceCentric, HostCentric, MemoryCentric, Node
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane, Switched

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

# Both picked after results had been seen (papers/mcdla/changes.py).
PCIE_BYTES_PER_S = 16e9                # Sec. IV: PCIe gen3, nominal; what copies get of it on real machines is about 12 GB/s
LINK_LATENCY_S = 100e-9                # assumed: as a memory access (Table II); Sec. III-B finds hops negligible

DC_DLA = DeviceCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    pcie_bytes_per_s   = PCIE_BYTES_PER_S,
    socket_bytes_per_s = 80e9,         # Sec. II-C: a high-end Xeon's socket
)
DC_DLA_ORACLE = DeviceCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    overlay            = "off",        # Sec. IV: infinite memory, nothing is copied
)
HC_DLA = HostCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    host_links         = 3,            # Sec. IV: half of the links; the graph writes the odd three that stay between devices as
                                       # six wires of half rate, so that they are rings (parity: hardware/topology/builders.py,
                                       # _shared_wires)
    devices_per_socket = 4,            # Sec. IV
    socket_bytes_per_s = 300e9,        # Sec. IV: hypothetical, 3 to 4 times a real socket's
)
MCDLA_B = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    shape              = "ring",       # Fig. 7c
    placement          = "bw_aware",   # Fig. 10
    memory_node        = MemoryNode(), # Table II: 256 GB/s, 100 cycles, 6 links of 25 GB/s
)
MCDLA_L = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    shape              = "ring",       # Fig. 7c
    placement          = "local",      # Fig. 10
    memory_node        = MemoryNode(), # Table II
)
MCDLA_S = MemoryCentric(
    device             = DEVICE,
    devices            = 8,            # Sec. IV
    links              = 6,            # Table II
    link_bytes_per_s   = 25e9,         # Table II
    link_latency_s     = LINK_LATENCY_S,
    shape              = "folded",     # Fig. 7b, Sec. V
    memory_node        = MemoryNode(), # Table II
)
SWITCHED_NODE = Switched(
    device           = DEVICE,
    devices          = 16,            # Sec. V-D: like DGX-2, 2 PFLOPS
    links            = 6,             # Sec. V-D: 2.4 TB/s over 16 devices are six links of 25 GB/s each
    link_bytes_per_s = 25e9,          # Table II
    link_latency_s   = LINK_LATENCY_S,
    planes           = 6,             # A. Ishii et al., Hot Chips 2018: six NVSwitches a board, one link of each device to each
    memory_nodes     = 16,            # Sec. III-B: as many memory-nodes as device-nodes
    memory_node      = MemoryNode(),  # Table II
)
PLANES = Plane(
    device           = DEVICE,
    devices          = 256,           # Sec. VI: hundreds of device-nodes
    devices_per_node = 8,             # Sec. IV
    memory_per_node  = 8,             # Sec. III-B: as many memory-nodes as device-nodes
    links            = 6,             # Table II
    link_bytes_per_s = 25e9,          # Table II
    planes           = 6,             # as DGX-2's: one link of each device to each plane
    radix            = 64,            # NVIDIA H100 white paper, 2022: third NVSwitch, 64 ports (the first, 2018, has 18)
    memory_node      = MemoryNode(),  # Table II
)
INFINIBAND = Cluster(
    device           = DEVICE,
    devices          = 256,           # as PLANES
    devices_per_node = 8,             # Sec. IV
    links            = 6,             # Table II
    link_bytes_per_s = 25e9,          # Table II
    nics             = 4,             # NVIDIA, DGX best practices: DGX-1 has four EDR cards, one beside two GPUs
    nic_bytes_per_s  = 12.5e9,        # InfiniBand Trade Association: EDR, four lanes, 100 Gb/s of data
    nic_latency_s    = 2e-6,          # assumed: between device memories, MPI's included; between hosts about 1 us
    memory_node      = MemoryNode(),  # Table II
)
INFINIBAND_HDR = replace(INFINIBAND,
    nic_bytes_per_s  = 25e9,          # InfiniBand Trade Association: HDR, four lanes, 200 Gb/s of data
    pcie_bytes_per_s = 24e9,          # assumed: an HDR card needs PCIe gen4, twice gen3's 12 GB/s
)
ETHERNET = replace(INFINIBAND,
    nics             = 1,             # assumed: one fast card a node, as most servers have
    nic_bytes_per_s  = 12.5e9,        # IEEE 802.3ba-2010: 100 Gb/s
    nic_latency_s    = 10e-6,         # assumed: TCP and MPI; 1.9 us with the kernel passed by (J. Squyres, Cisco, 2014, 40 Gb/s)
    staged           = True,          # assumed: TCP reads host memory, not the devices'
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
