"""The paper's figures, drawn from our measurements with the paper's printed values beside them, and three that go beyond it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from trainyard.arrays import TensorDash
from trainyard.papers import ledger
from trainyard.papers.figures import MEAN, PAPER_DARK, Series, chart, from_printed, paper, series_of, with_mean
from trainyard.papers.tensordash import beyond, energies, over_time, overheads, performance, random_tensors
from trainyard.papers.tensordash.models import MODELS, NAMES, OPERATIONS, recorded
from trainyard.papers.tensordash.performance import OF_CLAIM
from trainyard.papers.tensordash.printed import INPUTS, printed
from trainyard.papers.tensordash.products import Source
from trainyard.papers.tensordash.sweeps import COLUMNS, DEPTHS, PAPER, ROWS, WIDE
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

COLOURS = {"A*W": PHASES["forward"], "W*G": PHASES["grad_input"], "A*G": PHASES["grad_weight"], "all": SPARE[0]}
PARTS = {"DRAM": PHASES["copy"], "core": PHASES["forward"], "SRAM": PHASES["grad_input"]}
LINES = dict(zip(NAMES, (*PHASES.values(), *SPARE), strict=False))
SPEEDUP = "speedup over the baseline"
DATA = "Ours: zeros of real training on stand-in data."


stated = partial(ledger.stated, "tensordash")


def _speedups(source: Source, array: TensorDash = PAPER) -> dict[str, float]:
    return with_mean(performance.each(source, array))


def figure_1() -> go.Figure:
    ours = {wanted: with_mean(performance.potentials(recorded, wanted)) for wanted in OPERATIONS.values()}
    total = with_mean(performance.potentials(recorded))
    theirs = {name: stated(f"potential.{claim}") for claim, name in OF_CLAIM.items()} | {MEAN: stated("potential")}
    second = {name: value for name, value in performance.potentials(printed).items() if name not in INPUTS}
    return chart(
        [
            *series_of(ours, COLOURS),
            Series(name="all three", values=total, colour=COLOURS["all"]),
            paper(theirs, "paper, all three"), from_printed(second),
        ],
        "Fig. 1: potential",
        f"All MACs over those whose targeted operand is not zero. {DATA} Mean {total[MEAN]:.2f}, paper {stated('potential')}.",
        y="all MACs / remaining MACs", unity=True, ceiling=1.15 * max(*total.values(), *theirs.values()),
    )  # fmt: skip


def figure_8() -> go.Figure:
    bars = {wanted: with_mean(performance.each(recorded, PAPER, wanted)) for wanted in OPERATIONS.values()}
    total = _speedups(recorded)
    return chart(
        [
            *series_of(bars, COLOURS),
            Series(name="all three", values=total, colour=COLOURS["all"]),
            paper({MEAN: stated("speedup")}), from_printed(_speedups(printed)),
        ],
        "Fig. 8: speedup of the array", f"{DATA} Mean {total[MEAN]:.2f}, paper {stated('speedup')}.", y=SPEEDUP, unity=True,
    )  # fmt: skip


def figure_9() -> go.Figure:
    named = over_time.names()
    lines = [Series(name=name, colour=LINES[name], kind="line", values=over_time.curve(name)) for name in named]
    kept = [
        Series(name=f"{name}, kept layers", colour=LINES[name], kind="quiet", values=over_time.curve(name, whole=False))
        for name in named
    ]
    return chart(
        [*lines, *kept, paper({100.0: stated("resnet50_pruned.stable")}, "paper, RsNt50_S")],
        "Fig. 9: speedup as training goes on",
        f"{DATA} Thick: whole models, zeros at random of the shares recorded at each epoch. Thin: real masks of a few layers.",
        x="training done [%]", y=SPEEDUP, unity=True, height=460, numbers=True,
    )  # fmt: skip


def figure_10() -> go.Figure:
    core, chip = (
        with_mean({name: function(recorded(name), PAPER) for name in NAMES})
        for function in (energies.core_efficiency, energies.chip_efficiency)
    )
    return chart(
        [
            Series(name="compute logic", values=core, colour=PARTS["core"]),
            Series(name="whole chip", values=chip, colour=COLOURS["all"]),
            paper({MEAN: stated("energy.core")}, "paper, compute logic"),
            paper({MEAN: stated("energy.chip")}, "paper, whole chip", PAPER_DARK),
        ],
        "Fig. 10: energy efficiency", f"{DATA} Whole-chip energies are predicted by our SRAM and DRAM tables.",
        y="energy of the baseline / energy", unity=True,
    )  # fmt: skip


def figure_11() -> go.Figure:
    places: dict[str, dict[tuple[str, str], float]] = {part: {} for part in PARTS}
    for name in NAMES:
        before, after = (energies.joules(recorded(name), which) for which in (PAPER.baseline, PAPER))
        for part in PARTS:
            for label, parts in (("TC", before), ("TD", after)):
                places[part][name, label] = 100 * parts[part] / sum(before.values())
    return chart(
        series_of(places, PARTS),
        "Fig. 11: where the energy goes",
        f"{DATA} Off-chip DRAM, compute logic and on-chip SRAM, without (TC) and with TensorDash (TD); without it is 100 %.",
        y="energy [% of the baseline]", stacked=True, digits=1,
    )  # fmt: skip


def _along(axis: str, names: Mapping[int, str], theirs: Mapping[int, float]) -> list[Series]:
    ours, second = (
        {names[value]: fmean(by_model.values()) for value, by_model in performance.sweep(source, axis).items()}
        for source in (recorded, printed)
    )
    faint = [
        Series(name=name, colour=LINES[name], kind="faint",
               values={names[value]: by_model[name] for value, by_model in performance.sweep(recorded, axis).items()})
        for name in NAMES
    ]  # fmt: skip
    return [
        *faint,
        Series(name="mean", values=ours, colour=COLOURS["all"], kind="line"),
        paper({names[value]: figure for value, figure in theirs.items()}, "paper, mean"),
        from_printed(second),
    ]


def figure_12() -> go.Figure:
    theirs = {steps: stated(f"depth.{steps}") for steps in (2, 4, 5)}
    return chart(
        _along("depth", {steps: str(steps) for steps in DEPTHS}, theirs),
        "Fig. 12: depth of the staging buffers", f"{DATA} 2 and 3 deep have four promotions, 4 and 5 deep eight.",
        x="steps", y=SPEEDUP, unity=True,
    )  # fmt: skip


def figure_13() -> go.Figure:
    rows = _along("rows", {count: f"{count} x 4" for count in ROWS}, {count: stated(f"rows.{count}") for count in (1, 16)})
    wider = performance.sweep(recorded, "columns")
    columns = {f"4 x {count}": fmean(wider[count].values()) for count in COLUMNS}
    return chart(
        [*rows, Series(name="mean, more columns", values=columns, colour=PARTS["DRAM"], kind="line")],
        "Fig. 13: rows and columns of a tile", f"{DATA} The number of tiles keeps the chip's multipliers.",
        x="rows x columns of a tile", y=SPEEDUP, unity=True,
    )  # fmt: skip


def figure_14() -> go.Figure:
    narrow, wide = _speedups(recorded), _speedups(recorded, WIDE)
    return chart(
        [
            Series(name="4 lanes, 4 deep", values=narrow, colour=PARTS["SRAM"]),
            Series(name="16 lanes, 3 deep", values=wide, colour=PARTS["core"]),
            paper({MEAN: stated("wide16.speedup")}, "paper, 16 lanes"),
            from_printed(_speedups(printed, WIDE), "16 lanes, from printed inputs"),
        ],
        "Fig. 14: wider processing elements", f"{DATA} Each over a baseline of its own width.", y=SPEEDUP, unity=True,
    )  # fmt: skip


def figure_15() -> go.Figure:
    levels = [random_tensors.level(sparsity) for sparsity in random_tensors.LEVELS]
    limit = float(PAPER.depth)

    def line(name: str, quantity: Callable[[random_tensors.Level], float], colour: str) -> Series:
        return Series(name=name, values={level.sparsity: quantity(level) for level in levels}, colour=colour, kind="line")

    theirs = {20.0: stated("random.20"), 90.0: stated("random.90"), 99.0: stated("random.99")}
    return chart(
        [
            line("ideal, 4 at most", lambda one: min(limit, one.ideal), SPARE[4]),
            line("speedup", lambda one: one.speedup, COLOURS["all"]),
            line("energy, compute logic", lambda one: one.core, PARTS["core"]),
            line("energy, whole chip", lambda one: one.chip, PARTS["SRAM"]),
            paper(theirs, "paper, speedup"),
            paper({99.99: stated("random.core_energy_limit")}, "paper, compute logic", PAPER_DARK),
            paper({99.99: stated("random.chip_energy_limit")}, "paper, whole chip", "#FDAE6B"),
        ],
        "Fig. 15: random tensors",
        f"fire2 expand3x3 of SqueezeNet, all three operations, mean of {random_tensors.SAMPLES} tensors at each level.",
        x="zeros [%]", y="over the baseline", unity=True, numbers=True,
    )  # fmt: skip


def table_4() -> go.Figure:
    cases = {
        "area": (PAPER, overheads.areas, "fp16"), "area, bfloat16": (PAPER, overheads.areas, "bf16"),
        "area, 16 lanes": (WIDE, overheads.areas, "fp16"), "power": (PAPER, overheads.powers, "fp16"),
        "power, bfloat16": (PAPER, overheads.powers, "bf16"),
    }  # fmt: skip
    parts: dict[str, dict[str, float]] = {"scheduler": {}, "mux": {}, "staging": {}}
    for label, (array, what, number) in cases.items():
        base = sum(value for part, value in what(array.baseline, number).items() if part in overheads.COMPUTE)
        for part, values in parts.items():
            values[label] = 100 * what(array, number)[part] / base
    theirs = {
        "area": stated("area_overhead.core"), "area, bfloat16": 100 * (stated("bfloat16.area.core") - 1),
        "area, 16 lanes": stated("wide16.area_overhead.core"), "power": stated("power_overhead.core"),
        "power, bfloat16": 100 * (stated("bfloat16.power.core") - 1),
    }  # fmt: skip
    names = {"scheduler": "schedulers and B-side muxes", "mux": "A-side muxes", "staging": "staging buffers"}
    shades = dict(zip(names, (PHASES["grad_weight"], PHASES["update"], PHASES["loss"]), strict=True))
    return chart(
        [*(Series(name=names[part], values=values, colour=shades[part]) for part, values in parts.items()), paper(theirs)],
        "Table IV: what TensorDash adds",
        "Area and power of compute logic by the paper's rows; bfloat16 and 16 lanes predicted from them.",
        y="added [% of the baseline]", stacked=True, digits=1,
    )  # fmt: skip


def readings() -> go.Figure:
    shades = dict(zip(beyond.READINGS, (COLOURS["all"], *PHASES.values()), strict=False))
    bars = [Series(name=name, values=with_mean(beyond.reading(name)), colour=shades[name]) for name in beyond.READINGS]
    return chart(
        bars, "Beyond: both sides, other readings",
        f"{DATA} The first is the default. Both sides: a scheduler for each element, zeros of either operand skipped.",
        y=SPEEDUP, unity=True,
    )  # fmt: skip


def footprint() -> go.Figure:
    kinds = {"bitmap": "zero-compressed", "padded": "pre-scheduled, padded", "gapless": "pre-scheduled, gapless"}
    shades = dict(zip(kinds, (PHASES["update"], PHASES["grad_input"], PHASES["forward"]), strict=True))
    values: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for name in beyond.STORED:
        for letter, (one, _) in beyond.footprints(name).items():
            for kind in kinds:
                values[kind][f"{name} {letter}"] = one.ratio(kind)
    return chart(
        [Series(name=kinds[kind], values=values[kind], colour=shades[kind]) for kind in kinds],
        "Beyond: storage scheduled ahead",
        f"{DATA} Recorded tensors in the order of their first use, FP16, starts and selects included.",
        y="dense bytes / bytes", unity=True,
    )  # fmt: skip


assert all(model.name in LINES for model in MODELS)

# fmt: off
FIGURES: Figures = {
    "Fig. 1": figure_1, "Fig. 8": figure_8, "Fig. 9": figure_9, "Fig. 10": figure_10, "Fig. 11": figure_11, "Fig. 12": figure_12,
    "Fig. 13": figure_13, "Fig. 14": figure_14, "Fig. 15": figure_15, "Table IV": table_4,
    "Both sides and other readings": readings, "Storage scheduled ahead": footprint,
}
# fmt: on
