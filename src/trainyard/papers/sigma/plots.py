"""The paper's figures from our measurements, with the values that the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING

from trainyard.hardware.formats.matrices import RLC2, RLC4
from trainyard.papers.figures import MEAN, PAPER_DARK, Series, chart, panels, paper, series_of, with_mean
from trainyard.papers.sigma import (
    chip,
    dataflows,
    every_model,
    examples,
    features,
    formats,
    gpu,
    networks,
    rivals,
    sizing,
    training,
)
from trainyard.papers.sigma.suite import (
    ALL_SHAPES,
    K_ALONG_COLUMNS,
    K_ALONG_ROWS,
    NO_ZEROS,
    PES,
    SPARSITIES,
    SQUARE,
    SUITE,
    TPU_SHAPES,
    Shapes,
    cost,
    label,
    stated,
    tpu_cycles,
)
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

STAYS: Mapping[dataflows.Flow, str] = {"a": "MK", "b": "KN"}
BEYOND = 99
"""Sorts figures without a number last."""
SCALE = 0.66
"""Size of the walk-through beside the other figures."""
PARTS = {"loading": PHASES["grad_input"], "streaming": PHASES["forward"], "add": PHASES["loss"]}
SHARES = {"utilisation": PHASES["update"], "compute efficiency": PHASES["grad_weight"], "overall efficiency": SPARE[0]}
MANY = chip.COLOURS


def figure_1b() -> go.Figure:
    sizes = {letter: {label(op): float(getattr(op, letter)) for op in SUITE} for letter in "MNK"}
    figure = chart(
        series_of(sizes, MANY),
        "Fig. 1b: shapes of the evaluated GEMMs",
        "The ten GEMMs of Fig. 12, from GNMT, Transformer, NCF and DeepBench. The line is the side of a 128x128 array.",
        x="M-N-K", y="elements (log)", digits=0,
    )  # fmt: skip
    figure.add_hline(y=128, line={"color": "#9A9A9A", "width": 1.5, "dash": "dot"})
    figure.update_yaxes(type="log", range=[0, 6], dtick=1)
    return figure


def figure_5() -> go.Figure:
    """The walk-through of `explain sigma`, made to fit beside the other figures: smaller, and without its legend."""
    from trainyard.report.walkthroughs.canvas import LEGEND_SIZE
    from trainyard.report.walkthroughs.sigma import figure

    small = figure()
    legend = [trace for trace in small.data if trace.mode == "text" and trace.textfont.size == LEGEND_SIZE]
    small.data = [trace for trace in small.data if trace not in legend]
    for trace in small.data:
        if trace.mode == "text":
            trace.textfont.size *= SCALE
    return small.update_layout(
        width=None, height=SCALE * small.layout.height, title={"text": "Fig. 5: from bitmaps to multipliers and adders"}
    )  # fmt: skip


CEILING = 8.0


def figure_7() -> go.Figure:
    """Metadata, and below it what turning each format into the controller's bitmap takes."""

    def lines(quantity: Callable[[str, float], float], names: Iterable[str], levels: Iterable[float]) -> list[Series]:
        colours = dict(zip(formats.NAMES, (SPARE[-1], *MANY), strict=False))
        return [
            Series(
                name=formats.NAMES[name], colour=colours[name], kind="line", values={100 * at: quantity(name, at) for at in levels}
            )
            for name in names
        ]

    low, high = stated("format.bitmap_beats_rlc_below_sparsity"), stated("format.rlc_beats_bitmap_above_sparsity")
    compressed = [name for name in formats.NAMES if name != "none"]
    metadata = lines(formats.overhead, compressed, formats.LEVELS)
    cycles = lines(lambda name, at: formats.front_end_cycles(name, at) / 1e3, formats.NAMES, formats.FRONT_END_LEVELS)
    above = ", ".join(f"{formats.NAMES[name]} {formats.overhead(name, 0.0):.0f}" for name in ("csr", "csc", "coo"))
    return panels(
        {
            f"metadata [bits for each element], cut at {CEILING:g}": chart(
                [*metadata, paper({low: 1.0, high: 1.0}, "paper: comparable between these")],
                numbers=True, ceiling=CEILING,
            ),
            f"front end of {formats.LANES} lanes [thousands of cycles]": chart(
                cycles, x="zeros [%]", y="", numbers=True, digits=0
            ),
        },
        "Fig. 7: compression formats",
        f"1632 x 36548, counted on masks. The bitmap crosses RLC-2 at {100 * formats.crossing(RLC2):.1f} % and RLC-4 at "
        f"{100 * formats.crossing(RLC4):.1f} %; paper about {low:.0f} and {high:.0f} %. Above the cut at 0 %: {above} bits. Below: "
        "cycles to turn a format into the controller's bitmap, not in the paper.",
        columns=1, height=680, below=50,
    )  # fmt: skip


def figure_10() -> go.Figure:
    bars: dict[str, dict[str, float]] = {part: {} for part in PARTS}
    for op in SUITE:
        for flow, stays in STAYS.items():
            for part, value in dataflows.breakdown(op, flow).items():
                bars[part][f"{label(op)} {stays}"] = value
    slower = geometric_mean(sum(dataflows.breakdown(op, "none").values()) for op in SUITE)
    figure = chart(
        series_of(bars, PARTS),
        "Fig. 10: cycles by dataflow",
        f"MK or KN stays; over the better one of each case, mean of six pairs of sparsity. Without local reuse "
        f"{slower:.0f} times that.",
        y="cycles over the better one", stacked=True, unity=True, height=470,
    )  # fmt: skip
    figure.update_xaxes(tickangle=-90)
    return figure


def figure_10_efficiency() -> go.Figure:
    names = {"a": "MK stays", "b": "KN stays", "none": "no local reuse"}
    bars = [
        Series(
            name=names[flow], colour=MANY[number],
            values={label(op): 100 * fmean(cost.overall_efficiency for cost in dataflows.costs(op, flow)) for op in SUITE},
        )
        for number, flow in enumerate(dataflows.FLOWS)
    ]  # fmt: skip
    return chart(
        bars, "Fig. 10: efficiency by dataflow", "Overall efficiency (Table II), mean of six pairs of sparsity.",
        x="M-N-K", y="%", digits=1,
    )  # fmt: skip


# Labels that fit below four bars.
SHORT: Mapping[features.Feature, str] = {"TPU": "TPU", "Fl": "Fl", "Fl+Sc": "+Sc", "Fl+Sc+Sp": "+Sp"}
GROUPS = dict(zip(features.WORKLOADS, ("dense reg.", "dense irreg.", "sparse N-sta", "sparse M-sta"), strict=True))


def figure_11() -> go.Figure:
    bars: dict[str, dict[tuple[str, str], float]] = {part: {} for part in PARTS}
    for workload in features.WORKLOADS:
        tpu = features.metrics(workload, "TPU").cycles
        for feature in features.FEATURES:
            for part in PARTS:
                bars[part][GROUPS[workload], SHORT[feature]] = getattr(features.metrics(workload, feature), part) / tpu
    return chart(
        series_of(bars, PARTS),
        "Fig. 11: features one by one",
        "Flexible dimensions (Fl), scalable interconnects (+Sc), sparsity (+Sp). 2048-2048-2048, then 1024-16-500000; sparse: "
        "MK 80 %, KN 30 %.",
        y="cycles over the TPU's", stacked=True, unity=True, height=460,
    )  # fmt: skip


def figure_11_shares() -> go.Figure:
    bars: dict[str, dict[tuple[str, str], float]] = {name: {} for name in SHARES}
    for workload in features.WORKLOADS:
        for feature in features.FEATURES:
            for name, values in bars.items():
                share = getattr(features.metrics(workload, feature), name.replace(" ", "_"))
                values[GROUPS[workload], SHORT[feature]] = 100 * share
    theirs = {
        (GROUPS[name], SHORT["Fl+Sc+Sp"]): stated("sparse.stationary_utilisation")
        for name in features.WORKLOADS
        if name.startswith("sparse")
    }
    return chart(
        [
            *series_of(bars, SHARES),
            paper({**theirs, (GROUPS["dense irregular"], "TPU"): stated("tpu.utilisation_16_wide")}, "paper, utilisation"),
        ],
        "Fig. 11: utilisation and efficiency", "The same GEMMs; metrics of Table II.",
        y="%", digits=1, height=460,
    )  # fmt: skip


def _over_tpu(shapes: Shapes) -> dict[str, float]:
    return {label(op): tpu_cycles(op) / tpu_cycles(op, shapes) for op in SUITE}


def figure_12a() -> go.Figure:
    ours = with_mean({label(op): tpu_cycles(op) / cost(op).cycles for op in SUITE}, geometric_mean)
    shapes = {f"TPU {name}": shape for name, shape in TPU_SHAPES.items() if shape not in SQUARE}
    shapes |= {f"{name}, K along rows": (columns, rows) for name, (rows, columns) in shapes.items()}
    return chart(
        [
            *(
                Series(name=name, values=with_mean(_over_tpu((shape,)), geometric_mean), colour=MANY[3 + number])
                for number, (name, shape) in enumerate(shapes.items())
            ),
            Series(name="SIGMA", values=ours, colour=PHASES["forward"]),
            paper({MEAN: stated("dense.speedup_over_tpu")}, "paper, SIGMA"),
        ],
        "Fig. 12a: dense, speedup over the TPU",
        "TPU 128x128 is 1. The better stationary operand of each; K along the columns of 256x64 and 512x32, as in Sec. VI-C, or "
        f"along their rows. SIGMA's geometric mean {ours[MEAN]:.2f}, arithmetic "
        f"{fmean(value for name, value in ours.items() if name != MEAN):.2f}; paper 2.",
        x="M-N-K", y="speedup", unity=True, height=440,
    )  # fmt: skip


def figure_12a_efficiency() -> go.Figure:
    def tpu(shapes: Shapes) -> dict[str, float]:
        return with_mean({label(op): 100 * op.macs / (PES * tpu_cycles(op, shapes)) for op in SUITE})

    ours = with_mean({label(op): 100 * cost(op).overall_efficiency for op in SUITE})
    return chart(
        [
            Series(name="TPU 128 x 128", values=tpu(SQUARE), colour=SPARE[4]),
            Series(name="best of three, K along columns", values=tpu(K_ALONG_COLUMNS), colour=PHASES["grad_input"]),
            Series(name="best of three, K along rows", values=tpu(K_ALONG_ROWS), colour=PHASES["update"]),
            Series(name="best of all five", values=tpu(ALL_SHAPES), colour=PHASES["grad_weight"]),
            Series(name="SIGMA", values=ours, colour=PHASES["forward"]),
            paper({MEAN: stated("dense.efficiency.sigma")}, "paper, SIGMA"),
            paper({MEAN: stated("dense.efficiency.tpu")}, "paper, TPU", PAPER_DARK),
        ],
        "Fig. 12a: dense, overall efficiency",
        f"SIGMA's mean {ours[MEAN]:.0f} %, paper 82 %. TPUs of 128x128, 256x64 and 512x32: {tpu(K_ALONG_COLUMNS)[MEAN]:.0f} % "
        "with K along the columns, which is judged; paper 59 %.",
        x="M-N-K", y="%", digits=1, height=440,
    )  # fmt: skip


def _from_one(figure: go.Figure) -> go.Figure:
    """Bars of a logarithmic axis rise or fall from 1, where nothing is gained."""
    figure.for_each_trace(lambda bars: bars.update(base=1, y=[value - 1 for value in bars.y]), selector={"type": "bar"})
    return figure


def _pair(pair: tuple[float, float]) -> str:
    return f"MK{100 * pair[0]:.0f} KN{100 * pair[1]:.0f}"


def figure_12b() -> go.Figure:
    bars = {
        _pair(pair): with_mean({label(op): tpu_cycles(op) / cost(op, pair).cycles for op in SUITE}, geometric_mean)
        for pair in SPARSITIES
    }
    dense = with_mean({label(op): tpu_cycles(op) / cost(op, NO_ZEROS).cycles for op in SUITE}, geometric_mean)
    mean = geometric_mean(values[MEAN] for values in bars.values())
    figure = chart(
        [
            Series(name="dense", values=dense, colour=SPARE[4]),
            *series_of(bars, MANY),
            paper({MEAN: stated("sparse.speedup_over_tpu.fig12b")}),
        ],
        "Fig. 12b: sparse, speedup over the TPU",
        f"TPU 128x128 is 1. MK80: 80 % of MK are zeros. Geometric mean of all {mean:.2f}; paper "
        f"{stated('sparse.speedup_over_tpu')} (abstract) and about 6.",
        x="M-N-K", y="speedup (log)", unity=True, height=440,
    )  # fmt: skip
    figure.update_yaxes(type="log", range=[-0.1, 1.75], tickvals=[1, 2, 5, 10, 20, 50])
    return _from_one(figure)


def figure_12b_efficiency() -> go.Figure:
    bars = {
        _pair(pair): with_mean({label(op): 100 * cost(op, pair).overall_efficiency for op in SUITE}) for pair in SPARSITIES
    }  # fmt: skip
    tpu = {label(op): fmean(100 * cost(op, pair).useful / (PES * tpu_cycles(op)) for pair in SPARSITIES) for op in SUITE}
    mean = fmean(values[MEAN] for values in bars.values())
    return chart(
        [
            *series_of(bars, MANY),
            Series(name="TPU, mean of the pairs", values=with_mean(tpu), colour=SPARE[4]),
            paper({MEAN: stated("sparse.efficiency.sigma")}, "paper, SIGMA"),
        ],
        "Fig. 12b: sparse, overall efficiency", f"Mean {mean:.0f} %, paper 40 %.", x="M-N-K", y="%", digits=1, height=440,
    )  # fmt: skip


def figure_14() -> go.Figure:
    bars = {name: with_mean(rivals.speedups(name), geometric_mean) for name in rivals.ARRAYS}
    mean = geometric_mean(values[MEAN] for values in bars.values())
    figure = chart(
        [
            *series_of(bars, MANY),
            paper({MEAN: stated("sparse_accelerators.speedup")}, "paper, mean over designs"),
        ],
        "Fig. 14: over other sparse accelerators",
        f"80 and 30 % zeros, best of four for each design. Geometric mean {mean:.2f}, paper 3. Below 1 the other "
        "design is faster.",
        x="M-N-K", y="speedup of SIGMA (log)", height=440,
    )  # fmt: skip
    figure.add_hline(y=1, line={"color": "#9A9A9A", "width": 1.5})
    figure.update_yaxes(
        type="log", range=[-1.3, 1.75], tickvals=[0.1, 0.3, 1, 3, 10, 30], ticktext=["0.1", "0.3", "1", "3", "10", "30"]
    )
    return _from_one(figure)


# fmt: off
_OWN: Figures = {
    "Fig. 1": figure_1b, "Fig. 5": figure_5, "Fig. 7": figure_7,
    "Fig. 10": figure_10, "Fig. 10, efficiency": figure_10_efficiency,
    "Fig. 11": figure_11, "Fig. 11, utilisation": figure_11_shares,
    "Fig. 12a": figure_12a, "Fig. 12a, efficiency": figure_12a_efficiency,
    "Fig. 12b": figure_12b, "Fig. 12b, efficiency": figure_12b_efficiency, "Fig. 14": figure_14,
}
# fmt: on


def _order(name: str) -> tuple[int, str]:
    """Figures in the paper's order, those without a number last.

    >>> sorted(["Fig. 12a", "Fig. 8", "Fig. 10, utilisation", "Fig. 10"], key=_order)
    ['Fig. 8', 'Fig. 10', 'Fig. 10, utilisation', 'Fig. 12a']
    """
    digits = "".join(sign for sign in name.split(",")[0] if sign.isdigit())
    return int(digits or BEYOND), name


_ALL = {
    **_OWN,
    **examples.FIGURES,
    **networks.FIGURES,
    **chip.FIGURES,
    **sizing.FIGURES,
    **gpu.FIGURES,
    **training.FIGURES,
    **every_model.FIGURES,
}
FIGURES: Figures = {name: _ALL[name] for name in sorted(_ALL, key=_order)}
