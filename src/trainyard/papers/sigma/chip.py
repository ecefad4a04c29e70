"""Figs. 8, 13 and Sec. V: area, power and energy, from the bills of `arrays.sigma.components`.

Energy is power times time with every unit busy, as the paper computes it (Sec. VI-C: twice the power, about six times as fast, a
third of the energy). Times are those of both designs on the suite by Table II with independent zeros, by expected counts and
without step ii (`suite`). Where the paper names no mean, the geometric one is judged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING

from trainyard.arrays import Sigma
from trainyard.arrays.sigma.array import SigmaCost
from trainyard.arrays.sigma.components import (
    CLOCK_HZ,
    CONTROLLER_M2,
    LAYOUT,
    NM,
    NUMBER,
    Part,
    areas,
    components,
    sigma_parts,
    systolic_parts,
    watts,
)
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, MUX_UM2
from trainyard.hardware.tables.technology import area_factor, gate_energy
from trainyard.ir import Density, MatMul
from trainyard.papers.evidence import Undefined
from trainyard.papers.figures import PAPER_DARK, Series, chart, paper, series_of, with_mean
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import SPARSITIES, SUITE, means, stated, tpu_cycles
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

Case = tuple[MatMul, float, float]
"""A product and the sparsity of MK and of KN."""

PES = 16384  # Sec. VI-A
SPARSE: tuple[Case, ...] = tuple((op, *pair) for op in SUITE for pair in SPARSITIES)
DENSE: tuple[Case, ...] = tuple((op, 0.0, 0.0) for op in SUITE)
SIGMA_ARRAY = Sigma(dpes=128, multipliers=128, bandwidth=128)  # Sec. V
TPU_PARTS = systolic_parts(PES)
PEAK_TFLOPS = 2 * PES * CLOCK_HZ / 1e12


def parts_of(array: Sigma) -> tuple[Part, ...]:
    return sigma_parts(dpes=array.dpes, multipliers=array.multipliers, bandwidth=array.bandwidth)


def area_mm2(parts: tuple[Part, ...]) -> float:
    """Of the compute array: neither SRAM nor the controller is in Fig. 8's figure."""
    return sum(row.m2 for row in areas(parts)) * 1e6


def power_w(parts: tuple[Part, ...]) -> float:
    return sum(watts(parts).values())


@cache
def cost(array: Sigma, case: Case, *, step_ii: bool = False) -> SigmaCost:
    """The better stationary operand; without step ii all its non-zeros are held, as in `suite`."""
    op, left, right = case
    mechanism = array.cost(op, a=Density(1 - left), b=Density(1 - right))
    if step_ii:
        return mechanism
    held = array.cost(op, a=Density(1 - left), stationary="a"), array.cost(op, b=Density(1 - right), stationary="b")
    return replace(min(held, key=lambda one: one.cycles), useful=mechanism.useful)


def speedup(case: Case, array: Sigma = SIGMA_ARRAY, *, step_ii: bool = False) -> float:
    return tpu_cycles(case[0]) / cost(array, case, step_ii=step_ii).cycles


def energy_ratio(case: Case) -> float:
    """The TPU's energy over SIGMA's."""
    return speedup(case) * power_w(TPU_PARTS) / power_w(parts_of(SIGMA_ARRAY))


def moved_joules(cost: SigmaCost, array: Sigma = SIGMA_ARRAY) -> float:
    """Energy by events instead of busy time: a unit without an operand draws no power but its clock's."""
    events = dict(cost.events)
    events.setdefault("multiplication", events["mac"])
    events.setdefault("broadcast", events["scratchpad_read_a"] + events["scratchpad_read_b"])
    return sum(row.joules * events.get(row.event, 0.0) for row in components(parts_of(array)))


def _area() -> Measured:
    rows = {row.component: row.m2 * 1e6 for row in areas(parts_of(SIGMA_ARRAY))}
    total, units = sum(rows.values()), rows["multiplier"] + rows["adder"]
    return Measured(
        total,
        note=f"Calibrated on this claim; our tables alone give {total / LAYOUT:.0f} mm2.",
        details=f"Multipliers and adders are {100 * units / total:.0f} % of it, Benes networks "
        f"{100 * rows['distribution'] / total:.0f} %, the NoC {100 * rows['noc'] / total:.0f} %.",
    )


def _area_overhead() -> Measured:
    ours, tpu = (parts_of(SIGMA_ARRAY), TPU_PARTS)
    cells = [sum(part.there.cells_m2 for part in parts) for parts in (ours, tpu)]
    return Measured(
        100 * (area_mm2(ours) / area_mm2(tpu) - 1),
        note=f"Calibrated on this claim by the repeaters of lines; cells alone give {100 * (cells[0] / cells[1] - 1):.1f} %.",
        details=f"Our tables make the TPU's array {cells[1] / LAYOUT * 1e6:.0f} mm2; the paper's figures make it 65.1 / 1.377 = "
        "47.3 mm2.",
    )


def _power() -> Measured:
    return Measured(
        power_w(parts_of(SIGMA_ARRAY)),
        note=f"Calibrated on this claim, at an assumed clock of {CLOCK_HZ / 1e6:.0f} MHz.",
        details=f"Distribution and NoC take {100 * _share('distribution', 'noc'):.0f} % of it.",
    )


def _share(*names: str) -> float:
    by_part = watts(parts_of(SIGMA_ARRAY))
    return sum(by_part[name] for name in names) / sum(by_part.values())


def _power_over_tpu() -> Measured:
    return Measured(
        power_w(parts_of(SIGMA_ARRAY)) / power_w(TPU_PARTS),
        note="Predicted from counted muxes, registers and lines; only SIGMA's total was calibrated, not this ratio.",
    )


def controller_mm2(entry_bits: int = 21, copies: int = 1) -> float:
    """From Sec. V's list: gates, counters of 7 bits, and 128 tables of 128 entries in enabled flip-flops.

    An entry has 21 bits if source, destination and row are lanes of a Flex-DPE, 7 bits each; `copies` is 2 where the next table is
    written while one is in use.
    """
    gate_um2, half_adder_um2 = 1.064, 2.66  # Nangate 45 nm Open Cell Library: AND2_X1 and OR2_X1, HA_X1
    counters = 1024 * LANE_BITS * (FLIP_FLOP_UM2 + half_adder_um2)
    tables = copies * 128 * 128 * entry_bits * (FLIP_FLOP_UM2 + MUX_UM2)
    return (2 * 1024 * gate_um2 + counters + tables) * area_factor(NM) * LAYOUT * 1e-6


LANE_BITS = 7  # of 128 lanes
WIDE_BITS = LANE_BITS + (500_000 - 1).bit_length() + (31_999 - 1).bit_length()
"""An entry whose source counts to the suite's longest column (K of 500,000, Sec. IV-E step v) and whose row to its largest M."""


def _controller() -> Measured:
    """The list of Sec. V names the tables and gives no size of them."""
    entries = {f"entries of {bits} bits": bits for bits in (3 * LANE_BITS, WIDE_BITS)}
    readings = {
        f"{name}{', double-buffered' * (copies == 2)}": controller_mm2(bits, copies)
        for name, bits in entries.items()
        for copies in (1, 2)
    }
    return Measured(
        controller_mm2(),
        verdict="undefined",
        evidence=Undefined(
            missing="how wide the entries of a SRC-DEST table are and whether tables are double-buffered",
            looked_in=("Sec. IV-C", "Sec. IV-E", "Sec. V"),
            readings=readings,
        ),
        note=f"Counted in cells; tables are nearly all of it, and the readings span {min(readings.values()):.2f} to "
        f"{max(readings.values()):.2f} mm2.",
        details=f"The printed 1.4 mm2 would be tables {CONTROLLER_M2 * 1e6 / controller_mm2():.1f} times as large as the smallest. "
        "The array of the preset has the printed 1.4 mm2.",
    )


def _energy() -> Measured:
    ratios = [energy_ratio(case) for case in SPARSE]
    tpu_slot = components(TPU_PARTS)[0].joules * PES
    moved = [tpu_cycles(case[0]) * tpu_slot / moved_joules(cost(SIGMA_ARRAY, case, step_ii=True)) for case in SPARSE]
    printed = stated("sparse.speedup_over_tpu.fig12b") * power_w(TPU_PARTS) / power_w(parts_of(SIGMA_ARRAY))
    return Measured(
        geometric_mean(ratios),
        printed=printed,
        note=f"It follows from the sparse speedup here ({means(ratios)}); with the paper's speedup of 6 it is {printed:.2f}.",
        details=f"Speedup over 128x128: {means([speedup(case) for case in SPARSE])}. If idle multipliers and networks draw no "
        f"power: {means(moved)}.",
    )


def _perf_per_area() -> Measured:
    more = area_mm2(parts_of(SIGMA_ARRAY)) / area_mm2(TPU_PARTS)
    per_area = [speedup(case) / more for case in SPARSE]
    claim, printed = stated("perf_per_area.over_tpu"), 1 + stated("area_overhead_over_tpu") / 100
    needed, speedups = claim * printed, (stated("sparse.speedup_over_tpu"), stated("sparse.speedup_over_tpu.fig12b"))
    return Measured(
        geometric_mean(per_area),
        printed=speedups[1] / printed,
        verdict="contradicted",
        proof=f"{claim:g}x performance per area on {printed:.3f}x the area needs {needed:.2f}x performance, but the paper prints "
        f"{speedups[0]} and {speedups[1]:g}.",
        details=f"The printed speedups make {speedups[0] / printed:.2f}x (abstract) and {speedups[1] / printed:.2f}x (Fig. 12b). "
        f"Ours: {means(per_area)}.",
    )


def mean_efficiency(cases: tuple[Case, ...]) -> float:
    return fmean(cost(SIGMA_ARRAY, case).overall_efficiency for case in cases)


def tpu_mean_efficiency(cases: tuple[Case, ...]) -> float:
    return fmean(op.macs * (1 - left) * (1 - right) / (tpu_cycles(op) * PES) for op, left, right in cases)


def _effective_tflops() -> Measured:
    dense, sparse = mean_efficiency(DENSE), mean_efficiency(SPARSE)
    claim = stated("effective_tflops")
    printed = [stated(f"{kind}.efficiency.sigma") / 100 for kind in ("dense", "sparse")]
    return Measured(
        PEAK_TFLOPS * (dense + sparse) / 2,
        note=f"The paper prints neither the clock nor which GEMMs count: {CLOCK_HZ / 1e6:.0f} MHz and the mean of dense "
        f"({PEAK_TFLOPS * dense:.1f}) and sparse ({PEAK_TFLOPS * sparse:.1f}) GEMMs are assumed.",
        details="Fig. 8 multiplies the peak by the average efficiency of Sec. VI, but neither the clock is printed nor which "
        f"GEMMs count. At {CLOCK_HZ / 1e6:.0f} MHz the peak is {PEAK_TFLOPS:.1f} TFLOPS, of which {claim} are "
        f"{100 * claim / PEAK_TFLOPS:.0f} %: neither the {100 * printed[0]:.0f} % (dense) nor the {100 * printed[1]:.0f} % "
        f"(sparse) of Sec. VI-C, whose mean is {50 * sum(printed):.0f} %. A clock of about "
        f"{claim / printed[0] / PEAK_TFLOPS * CLOCK_HZ / 1e6:.0f} MHz would make it {100 * printed[0]:.0f} %.",
    )


def _tflops_per_watt() -> Measured:
    gain = mean_efficiency(SPARSE) / tpu_mean_efficiency(SPARSE)
    more = power_w(parts_of(SIGMA_ARRAY)) / power_w(TPU_PARTS)
    claim, twice = stated("tflops_per_watt_over_tpu"), stated("power_over_tpu")
    low, high = stated("sparse.speedup_over_tpu"), stated("sparse.speedup_over_tpu.fig12b")
    return Measured(
        gain / more,
        note=f"Mean efficiency {100 * mean_efficiency(SPARSE):.1f} % over {100 * tpu_mean_efficiency(SPARSE):.1f} %, divided by "
        f"{more:.2f}x the power.",
        details=f"From speedups instead: {means([speedup(case) / more for case in SPARSE])}. Sec. V derives it from the speedups "
        f"of Sec. VI-C ({low} to {high:g}), which at twice the power make {low / twice:.2f} to {high / twice:.2f}. {claim} needs "
        f"{low / claim:.1f} to {high / claim:.1f}x the power, for which 'twice' may stand: it is not excluded, so it is judged.",
    )


# Data sheets: FP32 TFLOPS and watts.
K20X, T4 = (3.93, 235.0), (8.1, 70.0)  # NVIDIA Tesla K20X (28 nm, 2012), Tesla T4 (12 nm, 2018)


def node_gain() -> float:
    """Operations per joule of SIGMA's own parts at 12 nm over 28 nm, each by its law of `hardware.tables.energy`."""
    parts = parts_of(SIGMA_ARRAY)
    busy = {part.component: part.busy for part in parts}
    before, after = (sum(row.at(nm, NUMBER) * busy[row.component] for row in components(parts)) for nm in (NM, 12))
    return before / after


def _scaling() -> Measured:
    """As the paper says that it is derived: FP32 performance per watt of two GPUs."""
    (old, old_w), (new, new_w) = K20X, T4
    return Measured(
        new / new_w / (old / old_w),
        printed=2 * 3.5,
        note=f"From the data sheets of the two GPUs that the paper names: {new / old:.2f}x the TFLOPS at {old_w / new_w:.2f}x less "
        "power (K20X to T4).",
        details=f"Six years of design, clocks and binning are in it besides the node: by our tables of whole units the same design "
        f"gains {node_gain():.2f}x at 12 nm, bare gates {gate_energy(NM) / gate_energy(12):.1f}x, and area shrinks to "
        f"{area_factor(12) / area_factor(NM):.2f}.",
    )


COLOURS = (*(colour for name, colour in PHASES.items() if name not in ("copy", "idle")), *SPARE)
"""Copies have the colour of the paper's figures, idleness a grey much like that of the last spare one."""


def figure_8() -> go.Figure:
    ours, tpu = parts_of(SIGMA_ARRAY), TPU_PARTS
    bars: dict[str, dict[tuple[str, str], float]] = {part.component: {} for part in (*tpu, *ours)}
    for label, parts in (("TPU", tpu), ("SIGMA", ours)):
        for row in areas(parts):
            bars[row.component]["area [mm2]", label] = row.m2 * 1e6
        for name, value in watts(parts).items():
            bars[name]["power [W]", label] = value
    tpu_mm2 = stated("area") / (1 + stated("area_overhead_over_tpu") / 100)
    tpu_w = stated("power") / stated("power_over_tpu")
    theirs = {("area [mm2]", "TPU"): tpu_mm2, ("area [mm2]", "SIGMA"): stated("area"), ("power [W]", "TPU"): tpu_w,
              ("power [W]", "SIGMA"): stated("power")}  # fmt: skip
    return chart(
        [
            *series_of(bars, COLOURS),
            paper(theirs, "paper, total"),
        ],
        "Fig. 8: area and power at 28 nm",
        f"Compute array without SRAM. SIGMA's totals and its area over the TPU are calibrated, shares and power over the TPU "
        f"({power_w(ours) / power_w(tpu):.2f}x, paper about 2x) are not.",
        y="mm2, W", stacked=True,
    )  # fmt: skip


def figure_13() -> go.Figure:
    more = area_mm2(parts_of(SIGMA_ARRAY)) / area_mm2(TPU_PARTS)
    energy, performance = (
        {f"{op.M}-{op.N}-{op.K}": geometric_mean(what((op, *pair)) for pair in SPARSITIES) for op in SUITE}
        for what in (energy_ratio, lambda case: speedup(case) / more)
    )
    energy, performance = (with_mean(values, geometric_mean) for values in (energy, performance))
    return chart(
        [
            Series(name="energy reduction", values=energy, colour=PHASES["forward"]),
            Series(name="performance/area", values=performance, colour=PHASES["grad_input"]),
            paper({"mean": stated("energy.over_tpu")}, "paper, energy"),
            paper({"mean": stated("perf_per_area.over_tpu")}, "paper, performance/area", PAPER_DARK),
        ],
        "Fig. 13: energy, performance per area",
        f"Sparse suite, geometric means over the sparsities: energy {energy['mean']:.2f}x less, performance/area "
        f"{performance['mean']:.2f}x; paper 3 and 5.",
        x="M-N-K", y="over TPU 128 x 128", unity=True,
    )  # fmt: skip


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.area":                       _area,
    "sigma.area_overhead_over_tpu":     _area_overhead,
    "sigma.power":                      _power,
    "sigma.power_over_tpu":             _power_over_tpu,
    "sigma.controller_area":            _controller,
    "sigma.energy.over_tpu":            _energy,
    "sigma.perf_per_area.over_tpu":     _perf_per_area,
    "sigma.effective_tflops":           _effective_tflops,
    "sigma.tflops_per_watt_over_tpu":   _tflops_per_watt,
    "sigma.scaling_12nm":               _scaling,
}
FIGURES: Figures = {"Fig. 8": figure_8, "Fig. 13": figure_13}
# fmt: on
