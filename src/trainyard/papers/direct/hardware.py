"""Area and power of what DIRECT adds, and what synchronisation through a CPU takes over the DSC's."""

from __future__ import annotations

from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.dsc.unit import Dsc
from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.printed import UNITS, told_of_overhead
from trainyard.papers.ledger import Experiments, Measured

SQUARE_MM = 1e-6


def parts() -> tuple[Agau, Dsc]:
    agau, dsc = DIRECT.agau, DIRECT.dsc
    assert agau is not None
    assert dsc is not None
    return agau, dsc


def areas_mm2() -> dict[str, float]:
    """Of one AGAU and of the DSC, by component, at 28 nm."""
    agau, dsc = parts()
    return {name: area / SQUARE_MM for name, area in {**agau.areas, **dsc.areas}.items()}


def crossbar_mm2() -> dict[str, float]:
    """Of all switches of 2048 DPUs: cells, lines, and buffers for messages."""
    found = {"cells": 0.0, "lines": 0.0, "buffers": 0.0}
    for name, area in DIRECT.crossbar.areas.items():
        found[name.rpartition("_")[2]] += area / SQUARE_MM
    return found


def powers_mw() -> dict[str, float]:
    """While they are as busy as they can be, leakage included."""
    agau, dsc = parts()
    found = {name: 1e3 * watts for name, watts in agau.busy_w.items()}
    return {**found, "agau leakage": 1e3 * agau.static_w, "dsc": 1e3 * dsc.busy_w}


def _area() -> Measured:
    found, switches = areas_mm2(), crossbar_mm2()
    of = {unit: sum(area for name, area in found.items() if name.startswith(unit)) for unit in ("agau", "dsc")}
    whole = DIRECT.clusters * of["agau"] + of["dsc"]
    return Measured(
        [0.0, of["agau"] + of["dsc"]],
        note=f"ours is one AGAU, {of['agau']:.3f}, and the DSC, {of['dsc']:.3f}, at 28 nm; {DIRECT.clusters} AGAUs and the DSC are "
        f"{whole:.1f} mm2. "
        f"Switches of all levels {switches['cells'] + switches['lines']:.2f}, their buffers for whole messages of "
        f"{DIRECT.crossbar.message_bytes} bytes {switches['buffers']:.0f}: not in the paper's figure. In the paper "
        + told_of_overhead("area", "mm2"),
    )


def _power() -> Measured:
    found = powers_mw()
    whole = DIRECT.clusters * sum(found.values()) - (DIRECT.clusters - 1) * found["dsc"]
    return Measured(
        [0.0, sum(found.values())],
        note="ours is one AGAU that sums without a pause and the DSC while a token goes round without one, mW: "
        + ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in found.items())
        + f". {DIRECT.clusters} AGAUs and the DSC {whole:.0f} mW. In the paper "
        + told_of_overhead("power", "mW"),
    )


def overhead_ratio(dpus: int) -> float:
    """O_sync of Eq. 1 over O_dsc of Eq. 2."""
    _, dsc = parts()
    return PIM_OPT.host.exchange(dpus, 0).sync_s / dsc.overhead_s(max(1, dpus // DIRECT.dpus_per_cluster))


def _overhead() -> Measured:
    _, dsc = parts()
    host = PIM_OPT.host.exchange(UNITS, 0).sync_s
    told = ", ".join(f"{dpus} DPUs {overhead_ratio(dpus):.0f}" for dpus in (32, 256, UNITS))
    return Measured(
        overhead_ratio(UNITS),
        note=f"{1e6 * host:.0f} us to launch and poll {UNITS // PIM_OPT.host.rank_dpus} ranks, "
        f"{1e6 * dsc.overhead_s(DIRECT.clusters):.2f} us until {DIRECT.clusters} clusters have had the token and heard of it: "
        f"{told}. Both rest on assumptions of ours",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "direct.area":               _area,
    "direct.power":              _power,
    "direct.dsc_overhead_ratio": _overhead,
}
# fmt: on
