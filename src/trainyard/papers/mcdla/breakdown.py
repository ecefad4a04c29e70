"""Figs. 11 and 12: what compute, synchronisation and paging would take alone, and what paging asks of the CPUs' memory.

The three latencies of Fig. 11 are sums of durations, not exposed time: its caption says that they overlap. An example is bound by
paging where that is the longest of the three.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.machines.presets.mcdla import DC_DLA, DESIGNS, HC_DLA
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, Parallel, Ran, listed, ran
from trainyard.papers.mcdla.performance import ASSUMED, all_designs
from trainyard.papers.mcdla.printed import implied_by_cut, proof_of_scaling, said
from trainyard.systems.node.systems import Node

CLASSES = ("compute", "synchronisation", "copy")
SOCKETS = 2  # Sec. IV: eight devices share two


def examples(node: Node) -> dict[str, Ran]:
    """The sixteen training examples."""
    all_designs()
    return {f"{network} {parallel}": ran(node, network, parallel) for parallel in PARALLEL for network in NETWORKS}


def stacks(parallel: Parallel) -> Mapping[str, Mapping[tuple[str, str], float]]:
    """Fig. 11: latency by class of each network and design, over the highest stack of the network."""
    all_designs()
    found: dict[str, dict[tuple[str, str], float]] = {name: {} for name in CLASSES}
    for network in NETWORKS:
        runs = {design: ran(node, network, parallel).alone_s for design, node in DESIGNS.items()}
        highest = max(sum(one.get(name, 0.0) for name in CLASSES) for one in runs.values())
        for design, one in runs.items():
            for name in CLASSES:
                found[name][network, design] = one.get(name, 0.0) / highest
    return found


def bound_by_paging(node: Node = DC_DLA) -> list[str]:
    return [name for name, one in examples(node).items() if one.copy_s > max(one.compute_s, one.synchronisation_s)]


def _bound() -> Measured:
    found = examples(DC_DLA)
    others = [f"{name} ({_longest(one)})" for name, one in found.items() if name not in bound_by_paging()]
    shares = listed({name: 100 * one.exposed_s.get("copy", 0.0) / one.time_s for name, one in found.items()}, 0)
    return Measured(
        len(bound_by_paging()),
        note=f"copies are the longest of the three latencies; not in {', '.join(others) or 'none'}. Per cent of the step in which "
        f"only copies run: {shares}. {ASSUMED}",
    )


def _longest(one: Ran) -> str:
    return max(CLASSES, key=lambda name: one.alone_s.get(name, 0.0))


def _average(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def cuts() -> dict[str, float]:
    """Per cent of DC-DLA's copy latency that HC-DLA saves."""
    dc, hc = examples(DC_DLA), examples(HC_DLA)
    return {name: 100 * (1 - hc[name].copy_s / dc[name].copy_s) for name in dc if dc[name].copy_s}


def increases() -> dict[str, float]:
    """Per cent that HC-DLA's synchronisation takes longer."""
    dc, hc = examples(DC_DLA), examples(HC_DLA)
    return {name: 100 * (hc[name].synchronisation_s / dc[name].synchronisation_s - 1) for name in dc if dc[name].synchronisation_s}


def _cut() -> Measured:
    found = cuts()
    printed = implied_by_cut(said("hc.virtualisation_latency_cut") / 100) / 1e9
    return Measured(
        _average(found),
        note=f"arithmetic mean: {listed(found, 0)}. The printed cut means {printed:.1f} GB/s of PCIe for a device; it cannot hold "
        f"beside the printed scaling: {proof_of_scaling(4)}. That this one is judged and scaling.dc called contradicted was chosen "
        f"after seeing what comes out. {ASSUMED}",
    )


def _increase() -> Measured:
    found = increases()
    return Measured(
        _average(found),
        note=f"arithmetic mean: {listed(found, 0)}. Half the rings make what is long twice as long and keep latencies as they are",
    )


# ---- Fig. 12
def usage(node: Node) -> dict[str, float]:
    """Per cent of both sockets' bandwidth over the step."""
    width = getattr(node, "socket_bytes_per_s", 0.0)
    return {name: 100 * one.host_bytes / one.time_s / (SOCKETS * width) if width else 0.0 for name, one in examples(node).items()}


def peaks(node: Node) -> dict[str, float]:
    """Per cent of a socket's bandwidth, at its largest."""
    width = getattr(node, "socket_bytes_per_s", 0.0)
    return {name: 100 * one.host_peak / width if width else 0.0 for name, one in examples(node).items()}


def _usage() -> Measured:
    found = usage(HC_DLA)
    return Measured(
        max(found.values()),
        note=f"the largest mean over a step, {max(found, key=found.__getitem__)}; all: {listed(found, 0)}; mean "
        f"{_average(found):.0f}. DC-DLA: at most {max(usage(DC_DLA).values()):.0f} % of 80 GB/s a socket",
    )


def _peak() -> Measured:
    found = peaks(HC_DLA)
    return Measured(
        max(found.values()),
        note=f"{max(found, key=found.__getitem__)}; of one copy, or of several while they are under way together. A socket "
        "serves copies out and back together, so that more than 100 % would be a fault of the simulation",
    )


def _none() -> Measured:
    used = {name: sum(one.host_bytes for one in examples(DESIGNS[name]).values()) for name in ("mcdla-s", "mcdla-l", "mcdla-b")}
    return Measured(
        sum(used.values()),
        note="bytes of host memory in all sixteen examples of (S), (L) and (B); 0 by construction: their graphs have no socket",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "mcdla.dc.virtualisation_bound":       _bound,
    "mcdla.hc.virtualisation_latency_cut": _cut,
    "mcdla.hc.sync_increase":              _increase,
    "mcdla.hc.cpu_bandwidth":              _usage,
    "mcdla.hc.cpu_bandwidth.max":          _peak,
    "mcdla.mc.cpu_bandwidth":              _none,
}
# fmt: on
