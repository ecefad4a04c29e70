"""Why a figure from gates is farther from the paper's than 25 %: what was counted, in numbers of the measurements themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from trainyard.arrays.tensordash.components import CORE, STAGING
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.hardware.tables.library_scaling import area_at
from trainyard.papers import gates
from trainyard.papers.gates import measurement
from trainyard.papers.ledger import claims
from trainyard.rtl.reduction.art import nodes_of

FLIP_FLOP_UM2 = 96
"""Of the library's DFFPOSX1."""
LANES, BITS = 512, 32
STORED_BITS = 16
"""Of a value in a staging buffer: fp16 or bf16."""


def explained(claim: str) -> str:
    """Empty where nothing has to be said."""
    return EXPLAINED[claim]() if claim in EXPLAINED else ""


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}"


def paper(claim: str) -> float:
    """The figure that the paper prints."""
    value = next(each.value for each in claims() if each.id == claim)
    assert isinstance(value, int | float)
    return float(value)


# ---- SIGMA


def flip_flops(kind: str, lanes: int = LANES) -> int:
    """Of the adders and links alone: FAN's second registers of level 0 and those of links, ART's two of each node."""
    registers = {
        "chain": lanes,
        "fan": lanes - 1 + lanes // 2 + sum(link.flip_flops for link in Fan(lanes=lanes).links),
        "art": 2 * (lanes - 1),
    }
    return BITS * registers[kind]


def clock_energy(kind: str) -> float:
    """Picojoules a cycle at the clock pins of these registers."""
    found = measurement(f"{kind}/{LANES}")
    return float(found["energy"]["one"]["clock_pj"]) * flip_flops(kind) / int(found["flip_flops"])


def fan_area() -> str:
    chain, most = measurement(f"chain/{LANES}"), paper("sigma.fan.area_overhead_over_linear_512")
    adder, extra = chain["area_by_part"]["adder"] / (LANES - 1), gates.network_area("fan", LANES) - chain["area_um2"]
    registers = FLIP_FLOP_UM2 * (flip_flops("fan") - flip_flops("chain"))
    needed = (100 * extra / most - chain["area_by_part"]["top"]) / (LANES - 1) / adder
    return (
        f"FAN's extra cells are {percent(extra, chain['area_um2'])} % of the chain: {percent(registers, chain['area_um2'])} % are "
        f"the flip-flops of links and bypasses ({flip_flops('fan'):,} against {flip_flops('chain'):,}), the rest multiplexers. An "
        f"FP32 adder here is one cycle of logic without registers, {adder:,.0f} um2 or {adder / FLIP_FLOP_UM2:.0f} flip-flops; the "
        f"extra cells would be {most:.0f} % beside an adder {needed:.1f} times as large, as one that is placed, routed and "
        "pipelined for a fast clock may be."
    )


def fan_power() -> str:
    chain = gates.network_energy("chain", LANES)
    extra, clock = gates.network_energy("fan", LANES) - chain, clock_energy("fan") - clock_energy("chain")
    return (
        f"Of the {percent(extra, chain)} %, {percent(clock, chain)} are the clock pins of the links' registers, which are clocked "
        f"in every cycle, and {percent(extra - clock, chain)} what toggles. As for the area, a larger adder would make both shares "
        "smaller."
    )


def fan_below_art() -> str:
    fan, art, chain = (gates.network_energy(kind, LANES) for kind in ("fan", "art", "chain"))
    fan_clock, art_clock = clock_energy("fan"), clock_energy("art")
    fan_logic, art_logic = fan - fan_clock, art - art_clock
    printed = [paper(f"sigma.{kind}.power_overhead_over_linear_512") for kind in ("fan", "art")]
    return (
        f"FAN draws {percent(fan - chain, chain)} % more than the chain ({printed[0]:.0f} in the paper), ART "
        f"{percent(art - chain, chain)} % ({printed[1]:.0f}); the paper's two give "
        f"{percent(printed[1] - printed[0], 100 + printed[1])} % themselves. FAN's {flip_flops('fan'):,} flip-flops take "
        f"{percent(fan_clock, fan)} % of its energy at their clock pins, ART's {flip_flops('art'):,} take "
        f"{percent(art_clock, art)} %: without clock pins FAN lies {percent(art_logic - fan_logic, art_logic)} % below ART. ART's "
        f"{art_adders():,} adders take {art_logic / art_adders():.0f} pJ each with their multiplexers, FAN's {LANES - 1} take "
        f"{fan_logic / (LANES - 1):.0f}: in one dot product over all lanes no sibling sends anything, so every second adder of a "
        "node adds -0 and hands its sum on."
    )


def art_adders() -> int:
    return sum(1 if node.sibling(LANES) is None else 2 for node in nodes_of(LANES))


def fan_wins_from() -> str:
    allowed = ((gates.FOLDS_STREAM + 128) / (gates.FOLDS_STREAM + math.log2(128))) ** 2
    printed = paper("sigma.fan.power_overhead_over_linear_512")
    return (
        f"It follows from the power: at 128 lanes FAN may draw {100 * (allowed - 1):.0f} % more than the chain, less than the "
        f"{printed:.0f} % that the paper prints for 512; it draws {100 * (gates.power_over_chain('fan', 128) - 1):.0f} %."
    )


def art_area() -> str:
    fused = "a fused adder of three inputs may be smaller"
    return f"{art_adders():,} adders of two inputs, with multiplexers before and behind them; {fused}."


def sigma_area() -> str:
    multipliers = area_at(gates.lane_area("multiplier") * gates.LANES * gates.DPES, gates.SIGMA_NM) * 1e-6
    return (
        f"The FP32 multipliers alone, {gates.lane_area('multiplier'):,.0f} um2 each in 0.18 um, are {multipliers:.0f} mm2. Cells "
        "without a layout, scaled over six generations; shares are more certain than the sum."
    )


def lane_shares() -> str:
    total = sum(map(gates.lane_energy, gates.PARTS))
    return ", ".join(f"{part} {percent(gates.lane_energy(part), total)} %" for part in gates.PARTS)


def sigma_power() -> str:
    return f"Of a lane's energy: {lane_shares()}. Toggles without glitches and wires, scaled over six generations."


def power_over_tpu() -> str:
    cell, lane = measurement("systolic/4x4")["energy"]["busy"]["pj_per_cycle"] / 16, sum(map(gates.lane_energy, gates.PARTS))
    return (
        f"A lane takes {lane:.0f} pJ a cycle in 0.18 um ({lane_shares()}), a cell {cell:.0f}. Toggles of cells alone: the lines of "
        "the networks, which a layout has and neighbouring cells do not need, would add to the lane."
    )


def controller() -> str:
    small, large = measurement("controller/16"), measurement("controller/32")
    registers, area = ((large[name] - small[name]) / 16 for name in ("flip_flops", "area_um2"))
    return (
        f"One more multiplier brings {registers:.0f} flip-flops ({percent(registers * FLIP_FLOP_UM2, area)} % of that area); the "
        "rest places values and pairs them. The paper prints a list of parts without their widths (see the ledger)."
    )


# ---- TensorDash


def staging_area(key: str) -> str:
    found, sizes = measurement(key), measurement(key)["parameters"]
    bits = (sizes["rows"] + sizes["columns"]) * sizes["lanes"] * sizes["depth"] * STORED_BITS
    cores, buffers = found["area_by_part"]["element"], found["area_by_part"]["buffer_a"] + found["area_by_part"]["buffer_b"]
    return (
        f"The staging buffers are the difference: a bit of them is {buffers / bits:.0f} um2, its flip-flop {FLIP_FLOP_UM2}. A row "
        "may move by any number of steps and is refilled in the same cycle, a choice for each bit, and the library has no "
        f"flip-flop with an enable; flip-flops alone would be {100 * FLIP_FLOP_UM2 * bits / cores:.1f} % of the cores. Schedulers "
        "and multiplexers are as large as in Table IV (below)."
    )


def staging_energy() -> str:
    found, dense = measurement("tile/fp16"), measurement("dense/fp16")
    load, printed = found["energy"]["50 % zeros"], 100 * STAGING.milliwatts / CORE.milliwatts
    added = 1 - dense["flip_flops"] / found["flip_flops"]  # share of the registers that the dense tile does not have
    cores, buffers = load["by_part"]["element"], load["by_part"]["buffer_a"] + load["by_part"]["buffer_b"]
    return (
        f"The staging buffers take {percent(buffers, cores)} % of the cores' energy ({printed:.1f} in Table IV, below). No clock "
        f"is gated here: the clock pins of the added registers alone take {percent(added * load['clock_pj'], cores)} %, and every "
        "row moves in every cycle."
    )


EXPLAINED: Mapping[str, Callable[[], str]] = {
    "sigma.fan.area_overhead_over_linear_512": fan_area,
    "sigma.fan.power_overhead_over_linear_512": fan_power,
    "sigma.fan.edp_below_art_512": fan_below_art,
    "sigma.fan.edp_wins_from": fan_wins_from,
    "sigma.art.area_overhead_over_linear_512": art_area,
    "sigma.area": sigma_area,
    "sigma.power": sigma_power,
    "sigma.power_over_tpu": power_over_tpu,
    "sigma.area_overhead_over_tpu": lambda: "Cells alone: the NoC and the repeaters of long lines are not there.",
    "sigma.controller_area": controller,
    "tensordash.area_overhead.core": partial(staging_area, "tile/fp16"),
    "tensordash.wide16.area_overhead.core": partial(staging_area, "tile/fp16/lanes16"),
    "tensordash.power_overhead.core": staging_energy,
    "tensordash.power_overhead.core_total": staging_energy,
    "direct.area": lambda: "The paper prints no structure; buffers and the parameter cache, which are SRAM, are not counted.",
    "direct.power": lambda: "As for the area: logic alone, without memories, scaled over six generations.",
}
