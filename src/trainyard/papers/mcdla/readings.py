"""Readings of what the paper leaves open about its nodes, searched jointly against nine figures of Secs. V-A and V-B.

A run of all takes minutes, so that `scripts/mcdla_readings.py` writes the results, which the ledger's open claims quote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from trainyard.machines.presets.mcdla import DC_DLA, HC_DLA, MCDLA_B, MCDLA_L, MCDLA_S
from trainyard.papers.evidence import Search
from trainyard.papers.ledger import searched
from trainyard.papers.mcdla.measuring import (
    NETWORKS,
    PARALLEL,
    Networks,
    Parallel,
    job,
    mean_of_both,
    prefetch,
    speedups,
    step_times,
)
from trainyard.papers.mcdla.performance import FREE_COPIES
from trainyard.papers.mcdla.printed import harmonic
from trainyard.systems.node.systems import Node

STORED = "samples/mcdla/readings.json"
VARIED = (
    "PCIe, latency of links, when recurrent layers reduce dW, parts of a message on unequal rings, what model-parallel devices "
    "exchange and store"
)


class Reading(NamedTuple):
    """Fields of all nodes; `reduce` is of data-parallel training, the two last are of model-parallel."""

    pcie_gb_per_s: float
    latency_ns: float
    reduce: str
    split: str
    exchange: str
    stored: str

    @property
    def name(self) -> str:
        return (
            f"PCIe of {self.pcie_gb_per_s:g} GB/s, links of {self.latency_ns:g} ns, dW reduced "
            f"{'once' if self.reduce == 'once' else 'at every step'}, {self.split} parts, {self.exchange.replace('_', '-')} of dX, "
            f"{'maps stored in parts' if self.stored == 'shard' else 'whole maps stored'}"
        )

    def node(self, plain: Node, parallel: Parallel) -> Node:
        """A design under this reading; fields without effect on it stay, so that equal runs are made once."""
        changes: dict[str, Any] = {"link_latency_s": self.latency_ns / 1e9}
        if plain is DC_DLA:
            changes["pcie_bytes_per_s"] = self.pcie_gb_per_s * 1e9
        if plain is MCDLA_S:
            changes["split"] = self.split
        changes |= {"exchange": self.exchange, "stored": self.stored} if parallel == "model" else {"reduce": self.reduce}
        return replace(plain, **changes)


LEDGER = Reading(16, 100, "once", "equal", "all_reduce", "shard")
"""The reading of the presets."""


def readings() -> Iterator[Reading]:
    nodes = product((16, 12), (100, 500), ("once", "every_call"), ("equal", "balanced"))
    return (Reading(*chosen, *model) for chosen in nodes for model in product(("all_reduce", "reduce_scatter"), ("shard", "whole")))


def results(reading: Reading, networks: tuple[str, ...] = NETWORKS) -> dict[str, float]:
    """The nine figures."""
    designs = (DC_DLA, HC_DLA, MCDLA_S, MCDLA_L, MCDLA_B, FREE_COPIES)
    prefetch(
        job(reading.node(one, parallel), network, parallel) for network in networks for parallel in PARALLEL for one in designs
    )

    def ratios(fast: Node, slow: Node) -> dict[Parallel, Networks]:
        return {one: speedups(reading.node(fast, one), reading.node(slow, one), one, networks) for one in PARALLEL}

    over, host = ratios(MCDLA_B, DC_DLA), ratios(HC_DLA, DC_DLA)
    cut, more = [], []
    for parallel, network in product(PARALLEL, networks):
        dc, hc = (step_times(reading.node(one, parallel), network, parallel) for one in (DC_DLA, HC_DLA))
        cut.append(100 * (1 - hc.copy_s / dc.copy_s))
        more.append(100 * (hc.synchronisation_s / dc.synchronisation_s - 1))
    return {
        "mcdla.speedup.data": harmonic(over["data"].values()),
        "mcdla.speedup.model": harmonic(over["model"].values()),
        "mcdla.hc.data": 100 * (harmonic(host["data"].values()) - 1),
        "mcdla.hc.model": 100 * (harmonic(host["model"].values()) - 1),
        "mcdla.of_oracle": 100 * mean_of_both(ratios(MCDLA_B, FREE_COPIES)),
        "mcdla.star_loss": 100 * (1 - mean_of_both(ratios(MCDLA_S, MCDLA_B))),
        "mcdla.local_of_bwaware": 100 * mean_of_both(ratios(MCDLA_L, MCDLA_B)),
        "mcdla.hc.virtualisation_latency_cut": fmean(cut),
        "mcdla.hc.sync_increase": fmean(more),
    }


@cache
def stored() -> Mapping[str, Mapping[str, float]]:
    """The results of all readings, as the script wrote them."""
    text = resources.files("trainyard.papers").joinpath(STORED).read_text(encoding="utf-8")
    found: dict[str, dict[str, float]] = json.loads(text)
    return found


@cache
def search() -> Search:
    return searched(VARIED, stored(), LEDGER.name, "no sentence is for it, and it has the same claims off")
