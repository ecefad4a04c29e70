"""Fig. 2: four CNNs on one device of five generations, and the overhead of paging over PCIe gen3.

The paper names no device. Assumed: the best training accelerator of each generation up to its time, NVIDIA's K40, M40, P100 and
V100 and Google's TPUv2. Each is the device of Table II with its data sheet's peak and bandwidth: Table II has V100's 125 TFLOPS as
125 MACs x 1024 elements x 1 GHz, and the others are counted in the same way, the array clocked to the peak. Two FLOPs a MAC halve
all clocks (`flops_per_mac`). Links, buffers and the policy stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from trainyard.machines.presets.mcdla import DC_DLA, DEVICE
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import CNNS, Networks, listed, matrix, prefetch, step_times
from trainyard.systems.node.systems import DeviceCentric


@dataclass(frozen=True, slots=True)
class Generation:
    """Figures of a device's data sheet."""

    name: str
    year: int
    flops: float
    dram_bytes_per_s: float


# fmt: off
GENERATIONS = (
    Generation("K40",   2013,   4.29e12,  288e9),  # NVIDIA Tesla K40 board specification: fp32 at base clock
    Generation("M40",   2015,   6.84e12,  288e9),  # NVIDIA Tesla M40 data sheet: 7 TFLOPS fp32; 3072 cores x 2 x 1.114 GHz
    Generation("P100",  2016,  21.2e12,   732e9),  # NVIDIA Tesla P100 data sheet, SXM2: fp16
    Generation("V100",  2017, 125e12,     900e9),  # NVIDIA Tesla V100 data sheet, SXM2: tensor cores; Table II
    Generation("TPUv2", 2017, 180e12,    2400e9),  # Google, I/O 2017: a board; J. Dean, NIPS 2017: 4 x 600 GB/s
)
# fmt: on
K40_BOOST = 5.04e12  # NVIDIA Tesla K40 board specification: 2880 cores x 2 x 875 MHz
BATCH = 64  # assumed: one device's share of Sec. IV's 512; what one device runs is not said


def node(generation: Generation, *, paged: bool, flops_per_mac: int = 1) -> DeviceCentric:
    """One device alone on PCIe gen3 x16."""
    peak = generation.flops / flops_per_mac
    device = replace(
        DEVICE, clock_hz=peak / DEVICE.array.peak_macs_per_cycle, dram_bytes_per_s=generation.dram_bytes_per_s
    )  # fmt: skip
    return replace(DC_DLA, device=device, devices=1, overlay="all" if paged else "off")


@cache
def times(network: str, *, paged: bool, flops_per_mac: int = 1) -> Mapping[str, float]:
    """Seconds of a step on each generation."""
    every = [
        node(one, paged=both, flops_per_mac=flops_per_mac) for one in GENERATIONS for both in (False, True)
    ]  # fmt: skip
    prefetch(matrix(every, CNNS, ("data",), (BATCH,)))
    nodes = {one.name: node(one, paged=paged, flops_per_mac=flops_per_mac) for one in GENERATIONS}
    return {name: step_times(chosen, network, "data", BATCH).time_s for name, chosen in nodes.items()}


def faster(flops_per_mac: int = 1) -> Networks:
    """How many times the last is faster than the first, nothing paged."""
    ratios = {}
    for network in CNNS:
        seconds = times(network, paged=False, flops_per_mac=flops_per_mac)
        ratios[network] = seconds[GENERATIONS[0].name] / seconds[GENERATIONS[-1].name]
    return ratios


def overheads(network: str) -> Mapping[str, float]:
    """Per cent that paging adds to a step, by generation."""
    plain, paged = times(network, paged=False), times(network, paged=True)
    return {name: 100 * (paged[name] / plain[name] - 1) for name in plain}


def _faster() -> Measured:
    ratios, other = faster(), faster(2)
    last = ", ".join(f"{name} {overheads(CNNS[-1])[name]:.0f}" for name in (one.name for one in GENERATIONS))
    return Measured(
        [min(ratios.values()), max(ratios.values())],
        note=f"From {GENERATIONS[0].name} to {GENERATIONS[-1].name}, batch {BATCH}; the five devices are assumed, the paper names "
        f"none. The least, {min(ratios, key=ratios.__getitem__)}, waits most for memory, whose bandwidth grows "
        f"{GENERATIONS[-1].dram_bytes_per_s / GENERATIONS[0].dram_bytes_per_s:.1f} times where peaks grow "
        f"{GENERATIONS[-1].flops / GENERATIONS[0].flops:.0f}.",
        details=f"{listed(ratios, 1)}; with two FLOPs a MAC {listed(other, 1)}. {CNNS[-1]}, per cent that paging adds: {last}. "
        f"{GENERATIONS[0].name} is at its base clock, the others at boost; at boost ({K40_BOOST / 1e12:g} TFLOPS) the range "
        f"shrinks by up to {100 * (1 - GENERATIONS[0].flops / K40_BOOST):.0f} %.",
    )


EXPERIMENTS: Experiments = {"mcdla.device_generations": _faster}
