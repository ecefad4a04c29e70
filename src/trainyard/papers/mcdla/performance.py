"""Fig. 13: MC-DLA beside DC-DLA, HC-DLA and the oracle, data- and model-parallel; means harmonic, as Sec. V says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

from trainyard.machines.presets.mcdla import DC_DLA, DC_DLA_ORACLE, DESIGNS, HC_DLA, MCDLA_B, MCDLA_L, MCDLA_S
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import (
    NETWORKS,
    PARALLEL,
    Networks,
    Parallel,
    listed,
    matrix,
    means,
    prefetch,
    speedups,
    step_times,
)
from trainyard.papers.mcdla.printed import (
    details_of_hc,
    harmonic,
    least_of_hc,
    proof_of_hc,
    proof_of_mean,
    stated,
)
from trainyard.systems.node.systems import Node

Both = Mapping[tuple[str, Parallel], float]


def all_designs() -> None:
    """Runs the matrix of Figs. 11 to 13 on all cores."""
    prefetch(matrix(DESIGNS.values()))


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


def _speedup() -> Measured:
    halves = [harmonic(over_dc(MCDLA_B, parallel).values()) for parallel in PARALLEL]
    return Measured(
        speedup(),
        verdict="contradicted",
        proof=proof_of_mean(),
        details=f"Ours: {means(both(MCDLA_B, DC_DLA))}; the arithmetic mean of the two parallelisms' harmonic means is "
        f"{fmean(halves):.2f}.",
    )


def _by_parallel(parallel: Parallel) -> Measured:
    over = over_dc(MCDLA_B, parallel)
    oracle = speedups(DC_DLA_ORACLE, DC_DLA, parallel)
    return Measured(
        harmonic(over.values()),
        note=f"Harmonic mean of eight networks; the oracle, which no design can pass, reaches {harmonic(oracle.values()):.2f}.",
        details=f"{listed(over)}; {means(over)}. {ASSUMED}",
    )


ASSUMED = (
    f"Assumed: PCIe gen3 x16 carries {DC_DLA.pcie_bytes_per_s / 1e9:g} GB/s each way, {DC_DLA.devices_per_switch} devices share "
    "it; fp32; the rest is in `trainyard whatif mcdla`."
)


def _hc(parallel: Parallel) -> Measured:
    over = over_dc(HC_DLA, parallel)
    least = least_of_hc(harmonic(over_dc(MCDLA_B, parallel).values()))
    value = 100 * (harmonic(over.values()) - 1)
    details = f"Ours: {listed(over)}; {means(over)}. It must be at least half of our (B), {least:.2f}. {ASSUMED}"
    if parallel == "model":
        allowed = f"The bound of hc.data allows +{100 * (least_of_hc(stated('speedup.model')) - 1):.0f} %."
        return Measured(value, note="Harmonic mean of eight networks over DC-DLA.", details=f"{allowed} {details}")
    return Measured(value, verdict="contradicted", proof=proof_of_hc(), details=f"{details_of_hc()} {details}")


def _of_oracle() -> Measured:
    of_oracle = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(
        100 * harmonic(of_oracle.values()), note="Harmonic mean of sixteen.", details=f"{listed(of_oracle)}; {means(of_oracle)}."
    )


def _oracle_least() -> Measured:
    of_oracle = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(100 * min(of_oracle.values()), note=f"The least of sixteen is {min(of_oracle, key=of_oracle.__getitem__)}.")


def _oracle_most() -> Measured:
    of_oracle = both(MCDLA_B, DC_DLA_ORACLE)
    return Measured(
        100 * max(of_oracle.values()),
        note=f"The most of sixteen is {max(of_oracle, key=of_oracle.__getitem__)}.",
        details="A weak claim: one network that is bound by exchanges suffices, where paging hides behind the rings.",
    )


def losses() -> dict[str, float]:
    """Per cent of (B)'s performance that (S) lacks."""
    return {name: 100 * (1 - value) for name, value in both(MCDLA_S, MCDLA_B).items()}


def _star_loss() -> Measured:
    over_b = both(MCDLA_S, MCDLA_B)
    balanced = both(replace(MCDLA_S, split="balanced"), MCDLA_B)
    return Measured(
        100 * (1 - harmonic(over_b.values())),
        note="From the harmonic mean of (S) over (B); the wires of Fig. 7b are our reading of its hop counts.",
        details=f"{listed(over_b)}; {means(over_b)}. Rings get equal parts of a message, so that the longest ends last. With "
        f"parts such that they end together (split=balanced) the loss is {100 * (1 - harmonic(balanced.values())):.1f} %, at most "
        f"{100 * (1 - min(balanced.values())):.1f} %.",
    )


def _star_most() -> Measured:
    lost = losses()
    return Measured(max(lost.values()), note=f"The largest is {max(lost, key=lost.__getitem__)}.", details=f"{listed(lost, 1)}.")


def _local() -> Measured:
    over_b = both(MCDLA_L, MCDLA_B)
    return Measured(
        100 * harmonic(over_b.values()), note="Harmonic mean of sixteen.", details=f"{listed(over_b)}; {means(over_b)}."
    )


def table(parallel: Parallel) -> Mapping[str, Networks]:
    """Fig. 13's bars: performance of each design over DC-DLA's."""
    all_designs()
    times = {name: {network: step_times(node, network, parallel).time_s for network in NETWORKS} for name, node in DESIGNS.items()}
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
