"""Area and power of the units that DIRECT adds, and the overhead of synchronisation through a CPU over the DSC's."""

from __future__ import annotations

from dataclasses import replace

from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.dsc.unit import Dsc
from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.papers.direct.printed import UNITS, overhead_conflict, stated
from trainyard.papers.ledger import Experiments, Measured

SQUARE_MM = 1e-6
TREES = (16, 32)  # inputs of a reduction tree, beside the preset's 8: the paper prints none


def parts(inputs: int | None = None) -> tuple[Agau, Dsc]:
    """Of the preset, or with a tree of so many inputs."""
    agau, dsc = DIRECT.agau, DIRECT.dsc
    assert agau is not None
    assert dsc is not None
    return agau if inputs is None else replace(agau, inputs=inputs), dsc


def areas_mm2(inputs: int | None = None) -> dict[str, float]:
    """Of one AGAU and of the DSC, by component, at 28 nm."""
    agau, dsc = parts(inputs)
    return {name: area / SQUARE_MM for name, area in {**agau.areas, **dsc.areas}.items()}


def crossbar_mm2() -> dict[str, float]:
    """Of all switches of 2048 DPUs: cells, lines, and buffers for messages."""
    by_part = {"cells": 0.0, "lines": 0.0, "buffers": 0.0}
    for name, area in DIRECT.crossbar.areas.items():
        by_part[name.rpartition("_")[2]] += area / SQUARE_MM
    return by_part


def powers_mw(inputs: int | None = None) -> dict[str, float]:
    """While they are as busy as they can be, leakage included."""
    agau, dsc = parts(inputs)
    busy = {name: 1e3 * watts for name, watts in agau.busy_w.items()}
    return {**busy, "agau leakage": 1e3 * agau.static_w, "dsc": 1e3 * dsc.busy_w}


def _area() -> Measured:
    switches = crossbar_mm2()
    agau, dsc = (sum(area for name, area in areas_mm2().items() if name.startswith(unit)) for unit in ("agau", "dsc"))
    others = ", ".join(f"{inputs} {sum(areas_mm2(inputs).values()):.2f}" for inputs in TREES)
    return Measured(
        [0.0, agau + dsc],
        verdict="contradicted",
        proof=overhead_conflict("area", "mm2"),
        note=f"DIRECT's half alone: one AGAU ({agau:.3f} mm2) and the DSC ({dsc:.3f} mm2) at 28 nm, {agau + dsc:.2f} for a printed "
        f"{stated('area')[1]:g}; with trees of more inputs: {others}.",
        details=f"{DIRECT.clusters} AGAUs and the DSC are {DIRECT.clusters * agau + dsc:.1f} mm2. Switches of all levels take "
        f"{switches['cells'] + switches['lines']:.2f} mm2, their buffers for messages of {DIRECT.crossbar.message_bytes} bytes "
        f"{switches['buffers']:.0f} mm2, which the paper's figure does not contain.",
    )


def _power() -> Measured:
    milliwatts = powers_mw()
    total = DIRECT.clusters * sum(milliwatts.values()) - (DIRECT.clusters - 1) * milliwatts["dsc"]
    by_component = ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in milliwatts.items())
    others = ", ".join(f"{inputs} {sum(powers_mw(inputs).values()):.0f}" for inputs in TREES)
    return Measured(
        [0.0, sum(milliwatts.values())],
        verdict="contradicted",
        proof=overhead_conflict("power", "mW"),
        note=f"DIRECT's half alone: one AGAU that sums in every cycle, and the DSC while the token never rests, "
        f"{sum(milliwatts.values()):.0f} mW for a printed {stated('power')[1]:g}; with trees of more inputs: {others}.",
        details=f"By component in mW: {by_component}. {DIRECT.clusters} AGAUs and the DSC draw {total:.0f} mW.",
    )


def overhead_ratio(dpus: int) -> float:
    """O_sync of Eq. 1 over O_dsc of Eq. 2."""
    _, dsc = parts()
    return PIM_OPT.host.exchange(dpus, 0).sync_s / dsc.overhead_s(max(1, dpus // DIRECT.dpus_per_cluster))


def _overhead() -> Measured:
    _, dsc = parts()
    host = PIM_OPT.host.exchange(UNITS, 0).sync_s
    ratios = ", ".join(f"{dpus} DPUs {overhead_ratio(dpus):.0f}" for dpus in (32, 256, UNITS))
    return Measured(
        overhead_ratio(UNITS),
        note=f"{1e6 * host:.0f} us to launch and poll {UNITS // PIM_OPT.host.rank_dpus} ranks over "
        f"{1e6 * dsc.overhead_s(DIRECT.clusters):.2f} us until {DIRECT.clusters} clusters have had the token. Both rest on "
        "assumptions of ours: 20 us for a rank, of which the ratio is a multiple, may be 5 or 100.",
        details=f"{ratios}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "direct.area":               _area,
    "direct.power":              _power,
    "direct.dsc_overhead_ratio": _overhead,
}
# fmt: on
