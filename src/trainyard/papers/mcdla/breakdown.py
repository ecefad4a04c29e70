"""Figs. 11 and 12: latencies of compute, synchronisation and paging alone, and the bandwidth of CPU memory that paging uses.

The three latencies of Fig. 11 are sums of durations, not exposed time: its caption says that they overlap. An example is bound by
paging where paging is the longest of the three.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.machines.presets.mcdla import DC_DLA, DESIGNS, HC_DLA
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.mcdla.measuring import NETWORKS, PARALLEL, Parallel, StepTimes, listed, step_times
from trainyard.papers.mcdla.performance import ASSUMED, all_designs
from trainyard.papers.mcdla.printed import details_of_scaling, proof_of_scaling
from trainyard.systems.node.systems import Node

CLASSES = ("compute", "synchronisation", "copy")
SOCKETS = 2  # Sec. IV: eight devices share two


def examples(node: Node) -> dict[str, StepTimes]:
    """The sixteen training examples."""
    all_designs()
    return {f"{network} {parallel}": step_times(node, network, parallel) for parallel in PARALLEL for network in NETWORKS}


def stacks(parallel: Parallel) -> Mapping[str, Mapping[tuple[str, str], float]]:
    """Fig. 11: latency by class of each network and design, over the highest stack of the network."""
    all_designs()
    bars: dict[str, dict[tuple[str, str], float]] = {name: {} for name in CLASSES}
    for network in NETWORKS:
        runs = {design: step_times(node, network, parallel).alone_s for design, node in DESIGNS.items()}
        highest = max(sum(one.get(name, 0.0) for name in CLASSES) for one in runs.values())
        for design, one in runs.items():
            for name in CLASSES:
                bars[name][network, design] = one.get(name, 0.0) / highest
    return bars


def bound_by_paging(node: Node = DC_DLA) -> list[str]:
    return [name for name, one in examples(node).items() if one.copy_s > max(one.compute_s, one.synchronisation_s)]


def _bound() -> Measured:
    steps = examples(DC_DLA)
    others = [f"{name} ({_longest(one)})" for name, one in steps.items() if name not in bound_by_paging()]
    shares = listed({name: 100 * one.exposed_s.get("copy", 0.0) / one.time_s for name, one in steps.items()}, 0)
    return Measured(
        len(bound_by_paging()),
        note=f"Copies are the longest of the three latencies in all but {', '.join(others) or 'none'}.",
        details=f"Per cent of the step in which only copies run: {shares}. {ASSUMED}",
    )


def _longest(one: StepTimes) -> str:
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
    return Measured(
        _average(cuts()),
        note="Arithmetic mean of sixteen; the printed cut and the printed scaling on 4 devices exclude each other.",
        details=f"{listed(cuts(), 0)}. {proof_of_scaling(4)} {details_of_scaling(4)} That this claim is judged and scaling.dc "
        f"called contradicted was decided after seeing the results. {ASSUMED}",
    )


def _increase() -> Measured:
    return Measured(
        _average(increases()),
        note="Arithmetic mean of sixteen; half the rings double the time of bytes and leave latencies as they are.",
        details=f"{listed(increases(), 0)}.",
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
    used = usage(HC_DLA)
    return Measured(
        max(used.values()),
        note=f"The largest mean over a step, that of {max(used, key=used.__getitem__)}.",
        details=f"{listed(used, 0)}; mean {_average(used):.0f}. DC-DLA uses at most {max(usage(DC_DLA).values()):.0f} % of the 80 "
        "GB/s of a socket.",
    )


def _peak() -> Measured:
    used = peaks(HC_DLA)
    return Measured(
        max(used.values()),
        note=f"The largest is {max(used, key=used.__getitem__)}, of one copy or of several that overlap.",
        details="A socket serves copies out and back together, so that more than 100 % would be an error of the simulation.",
    )


def _none() -> Measured:
    used = {name: sum(one.host_bytes for one in examples(DESIGNS[name]).values()) for name in ("mcdla-s", "mcdla-l", "mcdla-b")}
    return Measured(
        sum(used.values()),
        note="Bytes of host memory of (S), (L) and (B) in all sixteen examples; 0 by construction, since their graphs have no "
        "socket.",
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
