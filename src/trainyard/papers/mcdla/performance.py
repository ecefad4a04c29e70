"""Fig. 13: MC-DLA beside DC-DLA, HC-DLA and the oracle, data- and model-parallel; means harmonic, as Sec. V says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

from trainyard.machines.presets.mcdla import DC_DLA, DC_DLA_ORACLE, DESIGNS, HC_DLA, MCDLA_B, MCDLA_L, MCDLA_S
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, Networks, Parallel, ahead, listed, matrix, means, ran, speedups
from trainyard.papers.mcdla.printed import (
    harmonic,
    least_of_hc,
    proof_of_hc,
    proof_of_mean,
    said,
)
from trainyard.systems.node.systems import Node

Both = Mapping[tuple[str, Parallel], float]


def all_designs() -> None:
    """The whole matrix of Figs. 11 to 13, on as many cores as there are."""
    ahead(matrix(DESIGNS.values()))


def over_dc(node: Node, parallel: Parallel) -> Networks:
    all_designs()
    return speedups(node, DC_DLA, parallel)


def both(fast: Node, slow: Node) -> dict[str, float]:
    """Speedups of all 16, by network and parallelism."""
    all_designs()
    return {f"{network} {parallel}": value for parallel in PARALLEL for network, value in speedups(fast, slow, parallel).items()}


def speedup() -> float:
    """Of (B) over DC-DLA, all sixteen."""
    return harmonic(both(MCDLA_B, DC_DLA).values())


def told_mean() -> str:
    found = both(MCDLA_B, DC_DLA).values()
    return f"harmonic mean of sixteen; arithmetic {fmean(found):.2f}"


def _speedup() -> Measured:
    halves = [harmonic(over_dc(MCDLA_B, parallel).values()) for parallel in PARALLEL]
    return Measured(
        speedup(),
        verdict="contradicted",
        proof=proof_of_mean(),
        note=f"ours: {means(both(MCDLA_B, DC_DLA))}; arithmetic mean of the two parallelisms' harmonic ones {fmean(halves):.2f}",
    )


def _by_parallel(parallel: Parallel) -> Measured:
    found = over_dc(MCDLA_B, parallel)
    oracle = speedups(DC_DLA_ORACLE, DC_DLA, parallel)
    return Measured(
        harmonic(found.values()),
        note=f"{means(found)}: {listed(found)}. No design can pass the oracle's {harmonic(oracle.values()):.2f}. {ASSUMED}",
    )


ASSUMED = (
    f"Assumed: PCIe gen3 x16 carries {DC_DLA.pcie_bytes_per_s / 1e9:g} GB/s each way, {DC_DLA.devices_per_switch} devices share "
    "it; fp32; the rest in trainyard whatif mcdla"
)


def _hc(parallel: Parallel) -> Measured:
    found = over_dc(HC_DLA, parallel)
    ours = harmonic(over_dc(MCDLA_B, parallel).values())
    note = f"{means(found)}: {listed(found)}. Ours must be at least half of our (B), {least_of_hc(ours):.2f}. {ASSUMED}"
    value = 100 * (harmonic(found.values()) - 1)
    if parallel == "model":
        return Measured(value, note=f"{note}. The bound of hc.data allows +{100 * (least_of_hc(said('speedup.model')) - 1):.0f} %")
    return Measured(value, note=note, verdict="contradicted", proof=proof_of_hc())


def _of_oracle() -> Measured:
    found = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(100 * harmonic(found.values()), note=f"{means(found)}: {listed(found)}")


def _oracle_least() -> Measured:
    found = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(100 * min(found.values()), note=f"{min(found, key=found.__getitem__)}")


def _oracle_most() -> Measured:
    found = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(
        100 * max(found.values()),
        note=f"{max(found, key=found.__getitem__)}; a weak claim: one network that is bound by exchanges suffices, where paging "
        "hides behind the rings",
    )


def losses() -> dict[str, float]:
    """Per cent of (B)'s performance that (S) lacks."""
    return {name: 100 * (1 - value) for name, value in both(MCDLA_S, MCDLA_B).items()}


def _star_loss() -> Measured:
    found = both(MCDLA_S, MCDLA_B)
    balanced = both(replace(MCDLA_S, split="balanced"), MCDLA_B)
    return Measured(
        100 * (1 - harmonic(found.values())),
        note=f"performance of (S) over (B), {means(found)}: {listed(found)}. Of Fig. 7b only hop counts are printed: its wires are "
        "our reading; rings get equal parts of a message, so that the longest ends last. With parts such that they end together "
        f"(split=balanced) the loss is {100 * (1 - harmonic(balanced.values())):.1f} %, at most "
        f"{100 * (1 - min(balanced.values())):.1f} %",
    )


def _star_most() -> Measured:
    found = losses()
    return Measured(max(found.values()), note=f"{max(found, key=found.__getitem__)}; all: {listed(found, 1)}")


def _local() -> Measured:
    found = both(MCDLA_L, MCDLA_B)
    return Measured(100 * harmonic(found.values()), note=f"{means(found)}: {listed(found)}")


def table(parallel: Parallel) -> Mapping[str, Networks]:
    """Fig. 13's bars: performance of each design over DC-DLA's."""
    all_designs()
    times = {name: {network: ran(node, network, parallel).time_s for network in NETWORKS} for name, node in DESIGNS.items()}
    return {name: {network: times["dc-dla"][network] / time for network, time in one.items()} for name, one in times.items()}


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.speedup":          _speedup,
    "mcdla.speedup.data":     partial(_by_parallel, "data"),
    "mcdla.speedup.model":    partial(_by_parallel, "model"),
    "mcdla.hc.data":          partial(_hc, "data"),
    "mcdla.hc.model":         partial(_hc, "model"),
    "mcdla.of_oracle":        _of_oracle,
    "mcdla.of_oracle.min":    _oracle_least,
    "mcdla.of_oracle.max":    _oracle_most,
    "mcdla.star_loss":        _star_loss,
    "mcdla.star_loss.max":    _star_most,
    "mcdla.local_of_bwaware": _local,
}
# fmt: on
