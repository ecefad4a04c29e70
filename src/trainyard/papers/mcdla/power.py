"""Table IV, Sec. V-C: what memory-nodes hold and draw, and performance per watt."""

from __future__ import annotations

from functools import partial

from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.memory_node.dimms import MODULES
from trainyard.machines.presets.mcdla import MCDLA_B
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.printed import harmonic, said

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
    return Measured(increase(LEAN), note=f"{added_w(LEAN):g} W of {SYSTEM_W:g}")


def _power_high() -> Measured:
    return Measured(
        increase(LARGE),
        verdict="contradicted",
        proof=f"8 x {LARGE.power_w:g} = {added_w(LARGE):g} W of {SYSTEM_W:g} are {increase(LARGE):.2f} %, which is 32 and not "
        f"{said('power.high'):g} when rounded",
    )


def _per_watt(node: MemoryNode) -> Measured:
    from trainyard.papers.mcdla.performance import speedup, told_mean

    ours, printed, own = speedup(), said("speedup"), harmonic((said("speedup.data"), said("speedup.model")))
    return Measured(
        per_watt(ours, node),
        note=f"speedup {ours:.2f} ({told_mean()}) at {increase(node):.2f} % more power; the paper's {printed:g}x would give "
        f"{per_watt(printed, node):.2f}, the harmonic mean of its two {per_watt(own, node):.2f}",
    )


def _capacity() -> Measured:
    return Measured(
        LARGE.capacity_bytes * MCDLA_B.devices / 1e12, note="eight times ten modules of 128 GB, 1.28 TB a node, printed as 1.3"
    )


def _bandwidth() -> Measured:
    found = [MemoryNode(speed=speed).memory_bytes_per_s / 1e9 for speed in ("PC4-17000", "PC4-25600")]
    printed = MemoryNode(speed="PC4-19200").memory_bytes_per_s / 1e9
    return Measured(found, note=f"ten modules; Table IV's power is of DDR4-2400, PC4-19200, of which ten give {printed:g} GB/s")


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.power.low":          _power_low,
    "mcdla.power.high":         _power_high,
    "mcdla.power.added":        lambda: Measured([added_w(LEAN), added_w(LARGE)], note="eight memory-nodes"),
    "mcdla.perf_per_watt.low":  partial(_per_watt, LARGE),
    "mcdla.perf_per_watt.high": partial(_per_watt, LEAN),
    "mcdla.capacity":           _capacity,
    "mcdla.tdp.dgx":            lambda: Measured([SYSTEM_W, DEVICE_W * MCDLA_B.devices]),
    "mcdla.node.dimm_tdp":      lambda: Measured([node.module.tdp_w for node in NODES.values()], note=_bandwidth().note),
    "mcdla.node.tdp":           lambda: Measured([node.power_w for node in NODES.values()], note="ten modules a node"),
    "mcdla.node.gb_per_watt":   lambda: Measured([node.gb_per_w for node in NODES.values()], note="capacity over power of a node"),
    "mcdla.node.bandwidth":     _bandwidth,
    "mcdla.node.capacity":      lambda: Measured([LEAN.capacity_bytes / 1e9, LARGE.capacity_bytes / 1e9], note="ten modules"),
}
# fmt: on
