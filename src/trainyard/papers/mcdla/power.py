"""Table IV, Sec. V-C: capacity and power of memory-nodes, and performance per watt."""

from __future__ import annotations

from functools import partial

from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.memory_node.dimms import MODULES
from trainyard.machines.presets.mcdla import MCDLA_B
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.printed import harmonic, stated

SYSTEM_W = 3200.0  # Sec. V-C: TDP of a DGX
DEVICE_W = 300.0  # Sec. V-C: of a V100
PRINTED_W = (29.0, 66.0, 87.0, 102.0, 127.0)  # Table IV
PRINTED_GB_PER_W = (2.8, 2.4, 3.7, 6.3, 10.1)  # Table IV
NODES = {name: MemoryNode(dimm=name) for name in MODULES}
LEAN, LARGE = NODES["8 GB RDIMM"], NODES["128 GB LRDIMM"]  # Sec. V-C


def added_w(node: MemoryNode) -> float:
    return node.power_w * MCDLA_B.devices  # as many memory-nodes as devices (Sec. III-B)


def increase(node: MemoryNode) -> float:
    """Per cent of the system's TDP."""
    return 100 * added_w(node) / SYSTEM_W


def per_watt(speedup: float, node: MemoryNode) -> float:
    return speedup / (1 + increase(node) / 100)


def _power_low() -> Measured:
    return Measured(increase(LEAN), note=f"{added_w(LEAN):g} W of {SYSTEM_W:g}.")


def _power_high() -> Measured:
    return Measured(
        increase(LARGE),
        verdict="contradicted",
        proof=f"8 x {LARGE.power_w:g} = {added_w(LARGE):g} W of {SYSTEM_W:g} are {increase(LARGE):.2f} %, rounded 32 and not "
        f"{stated('power.high'):g}.",
    )


def _per_watt(node: MemoryNode) -> Measured:
    from trainyard.papers.mcdla.performance import speedup

    ours, printed, own = speedup(), stated("speedup"), harmonic((stated("speedup.data"), stated("speedup.model")))
    return Measured(
        per_watt(ours, node),
        note=f"A speedup of {ours:.2f} (harmonic mean of sixteen) at {increase(node):.2f} % more power.",
        details=f"The paper's {printed:g}x would give {per_watt(printed, node):.2f}, the harmonic mean of its two speedups "
        f"{per_watt(own, node):.2f}.",
    )


def _capacity() -> Measured:
    return Measured(
        LARGE.capacity_bytes * MCDLA_B.devices / 1e12,
        note="Eight times ten modules of 128 GB; the 1.28 TB of a node are printed as 1.3.",
    )


def _bandwidth() -> Measured:
    bandwidths = [MemoryNode(speed=speed).memory_bytes_per_s / 1e9 for speed in ("PC4-17000", "PC4-25600")]
    printed = MemoryNode(speed="PC4-19200").memory_bytes_per_s / 1e9
    return Measured(
        bandwidths, note=f"Ten modules; Table IV's power is of PC4-19200 (DDR4-2400), of which ten give {printed:g} GB/s."
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.power.low":          _power_low,
    "mcdla.power.high":         _power_high,
    "mcdla.power.added":        lambda: Measured([added_w(LEAN), added_w(LARGE)], note="Eight memory-nodes."),
    "mcdla.perf_per_watt.low":  partial(_per_watt, LARGE),
    "mcdla.perf_per_watt.high": partial(_per_watt, LEAN),
    "mcdla.capacity":           _capacity,
    "mcdla.tdp.dgx":            lambda: Measured([SYSTEM_W, DEVICE_W * MCDLA_B.devices]),
    "mcdla.node.dimm_tdp":      lambda: Measured([node.module.tdp_w for node in NODES.values()], note=_bandwidth().note),
    "mcdla.node.tdp":           lambda: Measured([node.power_w for node in NODES.values()], note="Ten modules a node."),
    "mcdla.node.gb_per_watt":   lambda: Measured([node.gb_per_w for node in NODES.values()], note="Capacity over power of a node."),
    "mcdla.node.bandwidth":     _bandwidth,
    "mcdla.node.capacity":      lambda: Measured([LEAN.capacity_bytes / 1e9, LARGE.capacity_bytes / 1e9], note="Ten modules."),
}
# fmt: on
