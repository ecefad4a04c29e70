"""Sec. V-D: the four CNNs on 1, 4 and 8 devices, 512 samples in all, data-parallel, with and without paging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from trainyard.machines.presets.mcdla import DC_DLA, DC_DLA_ORACLE, MCDLA_B
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import BATCH, CNNS, Networks, listed, matrix, means, prefetch, speedups
from trainyard.papers.mcdla.performance import ASSUMED
from trainyard.papers.mcdla.printed import details_of_scaling, harmonic, proof_of_scaling
from trainyard.papers.mcdla.printed import scaled as allowed
from trainyard.papers.mcdla.wiring import to_memory
from trainyard.systems.node.systems import Node

DEVICES = (1, 4, 8)
Design = Literal["dc-dla", "dc-dla-oracle", "mcdla-b"]
DESIGNS: Mapping[Design, Node] = {"dc-dla": DC_DLA, "dc-dla-oracle": DC_DLA_ORACLE, "mcdla-b": MCDLA_B}


def sized(design: Design, devices: int) -> Node:
    return replace(DESIGNS[design], devices=devices)


def alone(design: Design) -> Node:
    """One device; MC-DLA's has a single memory-node, at the end of all its six wires."""
    return sized(design, 1)


def scaled(design: Design, devices: int, batch: int = BATCH) -> Networks:
    """Speedup of a step of the same batch over one device of the design."""
    every = [sized(one, count) for one in DESIGNS for count in DEVICES]
    prefetch(matrix(every, CNNS, ("data",), (batch,)))
    return speedups(sized(design, devices), alone(design), "data", CNNS, batch)


def _paged(devices: int) -> Measured:
    scaling, memory = scaled("dc-dla", devices), scaled("mcdla-b", devices)
    each = to_memory(sized("dc-dla", devices)) / 1e9
    first = to_memory(alone("dc-dla")) / 1e9
    return Measured(
        harmonic(scaling.values()),
        verdict="contradicted",
        proof=proof_of_scaling(devices),
        details=f"{details_of_scaling(devices)} Ours: {listed(scaling)}; {means(scaling)}; {each:g} GB/s of PCIe a device, "
        f"{first:g} alone. The bound does not excuse our miss: {each:g} is below the {allowed(devices).most / 1e9:.2f} that the "
        "printed scaling allows. That the cut is judged and not the scaling was decided after seeing the results. MC-DLA(B), one "
        f"device alone with one memory-node at all six wires: {means(memory)}. {ASSUMED}",
    )


def _unpaged(devices: int) -> Measured:
    scaling = scaled("dc-dla-oracle", devices)
    return Measured(
        harmonic(scaling.values()),
        note=f"Harmonic mean of four CNNs, {BATCH} samples in all.",
        details=f"{listed(scaling)}; {means(scaling)}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.scaling.dc.4":                   partial(_paged, 4),
    "mcdla.scaling.dc.8":                   partial(_paged, 8),
    "mcdla.scaling.dc_no_virtualisation.4": partial(_unpaged, 4),
    "mcdla.scaling.dc_no_virtualisation.8": partial(_unpaged, 8),
}
# fmt: on
