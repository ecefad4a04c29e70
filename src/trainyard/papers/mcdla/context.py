"""The paper's parameters beside those of our machines and models: context, not judged."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainyard.arrays import Spatial
from trainyard.hardware.memory_node.address_space import AddressSpace
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.ir import Phase
from trainyard.machines.presets.mcdla import DC_DLA, DEVICE, HC_DLA, MCDLA_B
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import BATCH, CNNS, RNNS
from trainyard.papers.mcdla.wiring import to_memory
from trainyard.workloads import zoo

POWER_9 = 120e9  # Sec. II-C: a socket of IBM's Power9
SOCKETS = (DC_DLA.socket_bytes_per_s, POWER_9, HC_DLA.socket_bytes_per_s)


def _device() -> Measured:
    array = DEVICE.array
    assert isinstance(array, Spatial)
    return Measured(
        (
            array.elements,
            array.macs_per_element,
            DEVICE.clock_hz / 1e9,
            array.buffer_bytes / 1024,
            DEVICE.dram_bytes_per_s / 1e9,
            DEVICE.dram_latency_s * DEVICE.clock_hz,
            MCDLA_B.links,
            MCDLA_B.link_bytes_per_s / 1e9,
        ),
        note="Machine spatial; 128,000 MACs at 1 GHz are twice V100's 125 TFLOPS if a MAC is two FLOPs.",
    )


def _node() -> Measured:
    node = MemoryNode()
    latency = node.memory_latency_s * DEVICE.clock_hz
    return Measured((node.memory_bytes_per_s / 1e9, latency, node.links, node.link_bytes_per_s / 1e9))


def _interconnect() -> Measured:
    rings, host = DC_DLA.links * DC_DLA.link_bytes_per_s, to_memory(DC_DLA)
    return Measured(rings / host, note=f"{rings / 1e9:g} GB/s to the other devices, {host / 1e9:g} of PCIe for a device.")


def _bits() -> Measured:
    bits: dict[str, Any] = {field.name: field.default for field in fields(AddressSpace)}
    return Measured((bits["virtual_bits"], bits["physical_bits"]), note="Of the driver's address space.")


def layers(network: str) -> int:
    """Layers with weights on the way from input to output; projections of shortcuts are not counted."""
    names = {op.layer for op in zoo.load(network).ops if op.is_product and op.phase is Phase.FORWARD}
    return sum("downsample" not in name for name in names)


def steps(network: str) -> int:
    """Time steps: each has one product, with the state."""
    return sum(op.is_product and op.phase is Phase.FORWARD for op in zoo.load(network).ops)


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.device":                 _device,
    "mcdla.node":                   _node,
    "mcdla.socket_bandwidth":       lambda: Measured([one / 1e9 for one in SOCKETS]),
    "mcdla.address_bits":           _bits,
    "mcdla.batch":                  lambda: Measured(BATCH),
    "mcdla.layers":                 lambda: Measured([layers(name) for name in CNNS], note=f"Of {', '.join(CNNS)}."),
    "mcdla.timesteps":              lambda: Measured([steps(name) for name in RNNS], note=f"Of {', '.join(RNNS)}."),
    "mcdla.interconnect_over_pcie": _interconnect,
}
# fmt: on
