"""The ledger's column "from gates": what synthesis of our own circuits says of a claim, by arithmetic on `from_gates.json`.

The file is measured by `make rtl` (`trainyard.rtl.measurements`): circuits that equal the simulator cycle by cycle, mapped to an
open 0.18 um library. No constant is fitted. Ratios need no scaling; absolute figures are scaled to the paper's node by
`hardware.tables.library_scaling`. Cells alone are counted: no wires, no tree of the clock, no SRAM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any

from trainyard.hardware.tables.library_scaling import area_at, energy_at

FILE = "from_gates.json"
SIGMA_NM, SIGMA_HZ = 28, 500e6  # Fig. 8; the clock is assumed, as in `arrays.sigma.components`
DIRECT_NM, DIRECT_HZ = 28, 350e6  # Sec. VI-A; the clock is assumed, as in `hardware.agau.unit`
LANES, DPES = 128, 128  # Fig. 8
FOLDS_STREAM = 1000  # Sec. IV-A2: vectors of a fold
JUDGED_BY_GATES = ("sigma.area", "sigma.power", "sigma.area_overhead_over_tpu")
"""Claims on which our tables are calibrated: their verdict is that of the gates, on which nothing is."""


@dataclass(frozen=True, slots=True)
class GateFigure:
    """A claim's figure from gates, and in a sentence what was counted."""

    value: float
    note: str


@cache
def content() -> Mapping[str, Any]:
    """The file; empty where it has not been measured."""
    source = resources.files("trainyard.papers").joinpath(FILE)
    measured: dict[str, Any] = json.loads(source.read_text(encoding="utf-8")) if source.is_file() else {"measurements": {}}
    return measured


def measurement(key: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = content()["measurements"][key]
    return found


def figure(claim: str) -> GateFigure | None:
    """None where no circuit of ours bears on the claim, or the file lacks its measurements."""
    if claim not in FIGURES:
        return None
    try:
        return FIGURES[claim]()
    except KeyError:
        return None


# ---- SIGMA


def network_area(kind: str, lanes: int) -> float:
    """Square microns of the adders with their links: without routing and select registers, which a chain hardly has."""
    found = measurement(f"{kind}/{lanes}")
    return float(found["area_um2"] if kind == "chain" else found["area_by_part"]["tree"])


def network_energy(kind: str, lanes: int, load: str = "one") -> float:
    """Picojoules of a cycle with a new vector."""
    found = measurement(f"{kind}/{lanes}")["energy"][load]
    if kind == "chain":
        return float(found["pj_per_cycle"])
    return float(found["by_part"]["tree"] + found["inputs_pj"])


def sizes(kind: str = "fan") -> list[int]:
    return sorted(int(key.partition("/")[2]) for key in content()["measurements"] if key.startswith(f"{kind}/"))


def _over_chain(kind: str, what: Callable[[str, int], float], lanes: int = 512) -> GateFigure:
    ratio = what(kind, lanes) / what("chain", lanes)
    whole, cells = measurement(f"{kind}/{lanes}"), measurement(f"chain/{lanes}")
    if what is network_area:
        routing = 100 * (whole["area_um2"] / whole["area_by_part"]["tree"] - 1)
        registers = {"fan": "forwarding links through a register at each level", "art": "a second adder in nearly every node"}[kind]
        note = f"Adders with {registers}; comparators and select registers would add {routing:.0f} %."
    else:
        mixed = 100 * (network_energy(kind, lanes, "mixed") / network_energy("chain", lanes, "mixed") - 1)
        clock = 100 * whole["energy"]["one"]["clock_pj"] / cells["energy"]["one"]["clock_pj"]
        note = f"One dot product over all lanes ({mixed:.0f} % with random ones); clock pins take {clock:.0f} % of the chain's."
    return GateFigure(100 * (ratio - 1), note)


def power_over_chain(kind: str, lanes: int) -> float:
    """Between measured sizes straight in the logarithm of the lanes."""
    known = sizes(kind)
    if not known or not known[0] <= lanes <= known[-1]:
        raise KeyError(f"{kind}/{lanes}")
    below = max(size for size in known if size <= lanes)
    above = min(size for size in known if size >= lanes)
    low, high = (network_energy(kind, size) / network_energy("chain", size) for size in (below, above))
    share = 0.0 if above == below else math.log(lanes / below) / math.log(above / below)
    return low + (high - low) * share


def edp_over_chain(kind: str, lanes: int) -> float:
    """Power times the square of time: a fold takes 1000 + N cycles in a chain, 1000 + log2 N in a tree."""
    time = (FOLDS_STREAM + math.log2(lanes)) / (FOLDS_STREAM + lanes)
    return power_over_chain(kind, lanes) * time**2


def _edp_below(other: str) -> GateFigure:
    ours = edp_over_chain("fan", 512)
    theirs = 1.0 if other == "chain" else edp_over_chain(other, 512)
    return GateFigure(100 * (1 - ours / theirs), "Energies of a cycle from gates, cycles as the simulator counts them.")


def _edp_wins_from() -> GateFigure:
    ratios = {lanes: edp_over_chain("fan", lanes) for lanes in (16, 32, 64, 128, 256, 512)}
    first = next((lanes for lanes, ratio in ratios.items() if ratio < 1), 512)
    return GateFigure(first, f"At {first} lanes the EDP is {ratios[first]:.2f} of the chain's.")


def lane_area(part: str) -> float:
    """Square microns of a lane of a Flex-DPE of 128: its multiplier, its share of the networks, its registers."""
    small = measurement("flex-dpe/16")["area_by_part"]
    by_part: dict[str, float] = {
        "multiplier": small["multiplier"] / 16,
        "registers": small["top"] / 16,
        "distribution": measurement("benes/128")["area_um2"] / LANES,
        "reduction": measurement("fan/128")["area_um2"] / LANES,
    }
    return by_part[part]


def lane_energy(part: str) -> float:
    small = measurement("flex-dpe/16")["energy"]["busy"]["by_part"]
    by_part: dict[str, float] = {
        "multiplier": small["multiplier"] / 16,
        "registers": small["top"] / 16,
        "distribution": measurement("benes/128")["energy"]["busy"]["pj_per_cycle"] / LANES,
        "reduction": measurement("fan/128")["energy"]["one"]["pj_per_cycle"] / LANES,
    }
    return by_part[part]


PARTS = ("multiplier", "registers", "distribution", "reduction")


def _cells() -> tuple[float, float]:
    """Area and energy of a cell of the systolic array."""
    found = measurement("systolic/4x4")
    return found["area_um2"] / 16, found["energy"]["busy"]["pj_per_cycle"] / 16


def _sigma_area() -> GateFigure:
    total = sum(map(lane_area, PARTS)) * LANES * DPES
    shares = ", ".join(f"{part} {100 * lane_area(part) * LANES * DPES / total:.0f} %" for part in PARTS)
    return GateFigure(area_at(total, SIGMA_NM) * 1e-6, f"Cells of 128 Flex-DPEs at 28 nm, without the NoC: {shares}.")


def _sigma_power() -> GateFigure:
    total = sum(map(lane_energy, PARTS)) * LANES * DPES
    return GateFigure(
        energy_at(total, SIGMA_NM) * 1e-12 * SIGMA_HZ,
        f"Toggles of cells at 28 nm and {SIGMA_HZ / 1e6:.0f} MHz with a new vector in every cycle, without the NoC.",
    )


def _sigma_over_tpu(which: int) -> GateFigure:
    lane = sum(map(lane_area if which == 0 else lane_energy, PARTS))
    ratio = lane / _cells()[which]
    note = "A lane of a Flex-DPE over a weight-stationary cell with the same FP32 units, without NoC and wires."
    return GateFigure(100 * (ratio - 1) if which == 0 else ratio, note)


def _controller() -> GateFigure:
    small, large = measurement("controller/16"), measurement("controller/32")
    each = (large["area_um2"] - small["area_um2"]) / 16
    return GateFigure(
        area_at(each * LANES * DPES, SIGMA_NM) * 1e-6,
        f"What one more multiplier adds to a controller of 16 ({each:,.0f} um2 in 0.18 um: its table entry and its share of the "
        "logic that fills it), for 16384.",
    )


# ---- TensorDash


def _table_iv(parts: Mapping[str, float], total: float) -> dict[str, float]:
    rows = {
        "cores": parts["element"],
        "schedulers and B multiplexers": parts["row"] + parts.get("multiplexers_b", 0.0),
        "A multiplexers": parts.get("multiplexers_a", 0.0),
        "staging buffers": parts.get("buffer_a", 0.0) + parts.get("buffer_b", 0.0) + parts["control"],
    }
    return {**rows, "rest": total - sum(rows.values())}


def tile_parts(key: str) -> dict[str, float]:
    """Square microns by the rows of Table IV: arithmetic, schedulers with the multiplexers of B, those of A, staging buffers."""
    found = measurement(key)
    return _table_iv(found["area_by_part"], found["area_um2"])


def tile_energies(key: str, load: str = "50 % zeros") -> dict[str, float]:
    """Picojoules of a cycle by the same rows."""
    found = measurement(key)["energy"][load]
    return _table_iv(found["by_part"], found["pj_per_cycle"])


def _tile_area(key: str, dense: str | None) -> float:
    """The tile over the dense one with the same arithmetic."""
    base = measurement(key)["area_by_part"]["element"] if dense is None else measurement(dense)["area_um2"]
    return float(measurement(key)["area_um2"] / base)


def tile_energy(key: str, load: str = "50 % zeros") -> float:
    """Energy of a busy tile over that of its arithmetic, which is the dense tile's."""
    found = measurement(key)["energy"][load]
    return float(found["pj_per_cycle"] / found["by_part"]["element"])


def _tile_area_figure(key: str, dense: str | None, *, percent: bool) -> GateFigure:
    ratio, parts = _tile_area(key, dense), tile_parts(key)
    shares = ", ".join(f"{name} {100 * value / parts['cores']:.1f}" for name, value in parts.items() if name != "cores")
    return GateFigure(100 * (ratio - 1) if percent else ratio, f"In per cent of the cores: {shares}; no transposers.")


def _tile_energy_figure(key: str, *, percent: bool) -> GateFigure:
    ratio = tile_energy(key)
    others = ", ".join(f"{100 * (tile_energy(key, f'{share} % zeros') - 1):.1f} % at {share} %" for share in (0, 90))
    note = f"A tile that works in every cycle, half of its scheduled operands zero ({others})."
    return GateFigure(100 * (ratio - 1) if percent else ratio, note)


# ---- DIRECT


def _direct_area() -> GateFigure:
    agau, dsc = (area_at(measurement(key)["area_um2"], DIRECT_NM) * 1e-6 for key in ("agau/8", "dsc/256"))
    wide = content()["measurements"].get("agau/16")
    other = "" if wide is None else f"; of 16 {area_at(wide['area_um2'], DIRECT_NM) * 1e-6:.2f}"
    return GateFigure(
        agau + dsc,
        f"Of DIRECT: adders, averaging and control of an AGAU of 8 inputs ({agau:.2f} mm2{other}) and the token arbiter of 256 "
        f"clusters ({dsc:.3f}), without buffers and cache.",
    )


def _direct_power() -> GateFigure:
    loads = {"agau/8": "busy", "dsc/256": "random"}
    energies = [energy_at(measurement(key)["energy"][load]["pj_per_cycle"], DIRECT_NM) for key, load in loads.items()]
    agau, dsc = (value * 1e-12 * DIRECT_HZ * 1e3 for value in energies)
    return GateFigure(agau + dsc, f"Of DIRECT at {DIRECT_HZ / 1e6:.0f} MHz: AGAU {agau:.0f} mW, token arbiter {dsc:.1f} mW.")


# fmt: off
FIGURES: Mapping[str, Callable[[], GateFigure]] = {
    "sigma.fan.area_overhead_over_linear_512":   partial(_over_chain, "fan", network_area),
    "sigma.fan.power_overhead_over_linear_512":  partial(_over_chain, "fan", network_energy),
    "sigma.art.area_overhead_over_linear_512":   partial(_over_chain, "art", network_area),
    "sigma.art.power_overhead_over_linear_512":  partial(_over_chain, "art", network_energy),
    "sigma.fan.edp_below_linear_512":            partial(_edp_below, "chain"),
    "sigma.fan.edp_below_art_512":               partial(_edp_below, "art"),
    "sigma.fan.edp_wins_from":                   _edp_wins_from,
    "sigma.area":                                _sigma_area,
    "sigma.power":                               _sigma_power,
    "sigma.area_overhead_over_tpu":              partial(_sigma_over_tpu, 0),
    "sigma.power_over_tpu":                      partial(_sigma_over_tpu, 1),
    "sigma.controller_area":                     _controller,
    "tensordash.area_overhead.core":             partial(_tile_area_figure, "tile/fp16", "dense/fp16", percent=True),
    "tensordash.power_overhead.core":            partial(_tile_energy_figure, "tile/fp16", percent=True),
    "tensordash.power_overhead.core_total":      partial(_tile_energy_figure, "tile/fp16", percent=True),
    "tensordash.bfloat16.area.core":             partial(_tile_area_figure, "tile/bf16", "dense/bf16", percent=False),
    "tensordash.bfloat16.power.core":            partial(_tile_energy_figure, "tile/bf16", percent=False),
    "tensordash.wide16.area_overhead.core":      partial(_tile_area_figure, "tile/fp16/lanes16", None, percent=True),
    "direct.area":                               _direct_area,
    "direct.power":                              _direct_power,
}
# fmt: on
