"""Readings of what the paper leaves open, searched jointly against the claims that no one of them meets.

The linear model: how PIM-Opt transfers, how A100s sum their gradients, and their batch. ResNet-18: also the MACs a cycle of a DPU
that the paper does not name, and its batch. What a part contributes: the baseline's transfers, and how gains are attributed.
Crossbars are counted in closed form here (`fidelity="analytic"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.assumptions import with_lanes, with_room
from trainyard.papers.direct.contributions import TRANSFERS, in_order, mean, shapley
from trainyard.papers.direct.efficiency import by_trees
from trainyard.papers.direct.measuring import BATCH, LINEAR, RESNET18, Workload, machine, on, one_gpu, step_cost
from trainyard.papers.direct.table import epoch_s
from trainyard.papers.evidence import Figure, Search
from trainyard.papers.ledger import searched

Results = Mapping[str, Mapping[str, Figure]]
PICKED = "picked by its results: the paper prints neither"
NAMES = {"ranks_in_turn": "rank after rank", "rank_parallel": "rank-parallel", "serial": "DPU by DPU"}
LANES = (8, 16, 32)
BATCHES = (8, 32)


class Reading(NamedTuple):
    """One combination; `tree` is how A100s sum, else by the ring."""

    transfers: str
    tree: bool
    gpu_batch: int
    lanes: int = 0
    batch: int = BATCH

    @property
    def name(self) -> str:
        dpu = f", DPUs of {self.lanes} MACs a cycle and batch {self.batch}" if self.lanes else ""
        return f"host {NAMES[self.transfers]}, A100s by {'trees' if self.tree else 'a ring'} with batch {self.gpu_batch}{dpu}"


def readings(workload: Workload) -> Iterator[Reading]:
    batches = (workload.gpu_batch, 32, 8)
    dpus = tuple(product(LANES, BATCHES)) if workload is RESNET18 else ((0, BATCH),)
    for transfers, tree, gpu_batch, (lanes, batch) in product(TRANSFERS, (True, False), batches, dpus):
        yield Reading(transfers, tree, gpu_batch, lanes, batch)


def changed(workload: Workload, reading: Reading) -> Workload:
    """On the reading's DPU with its batch."""
    dpu = workload.dpu
    if reading.lanes:
        dpu = with_room(reading.batch, with_lanes(reading.lanes, dpu))
    return replace(workload, dpu=dpu, batch=reading.batch)


def results(workload: Workload, reading: Reading) -> Mapping[str, Figure]:
    """The claims of a workload under a reading."""
    own, boards_own = changed(workload, reading), replace(workload, gpu_batch=reading.gpu_batch)
    host, direct = (
        step_cost(on(PIM_OPT, own, transfers=reading.transfers), own),
        step_cost(on(DIRECT, own, fidelity="analytic"), own),
    )
    boards = by_trees(boards_own) if reading.tree else step_cost(machine("A100", boards_own), boards_own).efficiency
    found: dict[str, Figure] = {f"direct.efficiency.{own.name}": (host.efficiency, direct.efficiency, boards)}
    if workload is RESNET18:
        gpu = one_gpu(boards_own)[0]
        found["direct.time.resnet18"] = (own.steps * host.time_s, own.steps * direct.time_s, gpu)
        linear = [epoch_s(name, LINEAR) for name in ("PIM-Opt", "DIRECT", "A100")]
        found["direct.speedup.pim_opt"] = (linear[0] / linear[1], host.time_s / direct.time_s)
        found["direct.speedup.gpu"] = (linear[2] / linear[1], gpu / (own.steps * direct.time_s))
    return found


@cache
def search(workload: Workload) -> Search:
    """All readings of a workload; the ledger's own is rank after rank, trees, and a DPU of 16 MACs with batch 8."""
    found = {one.name: results(workload, one) for one in readings(workload)}
    lanes = workload.dpu.mac_lanes if workload is RESNET18 else 0
    nearest = Reading("ranks_in_turn", True, workload.gpu_batch, lanes).name
    varied = "transfers, sums of A100s, their batch" + (", MACs and batch of a DPU" if workload is RESNET18 else "")
    return searched(varied, found, nearest, PICKED)


@cache
def search_contributions() -> Search:
    """Baselines and attributions; the ledger's own are Shapley shares over PIM-Opt rank after rank."""
    kinds = {"Shapley shares": shapley, "gains in the paper's order": in_order}
    found = {
        f"{name}, host {NAMES[transfers]}": {"direct.contribution": tuple(mean(kind, transfers))}
        for name, kind in kinds.items()
        for transfers in TRANSFERS
    }
    return searched("baseline and attribution", found, f"Shapley shares, host {NAMES[TRANSFERS[0]]}", PICKED)
