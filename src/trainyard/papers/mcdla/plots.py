"""Figs. 2, 5, 7 to 9 and 11 to 14, Table IV, Secs. V-B and V-D from our runs, with the paper's values as diamonds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from trainyard.machines.presets.mcdla import DC_DLA, HC_DLA, MCDLA_B, MCDLA_S
from trainyard.papers import figures
from trainyard.papers.figures import COLOURS, Series, chart, panels, paper, series_of
from trainyard.papers.mcdla import breakdown, generations, performance, power, scaling, sensitivity, wiring
from trainyard.papers.mcdla.measuring import CNNS, PARALLEL, Parallel, mean_of_both, means
from trainyard.papers.mcdla.printed import harmonic, stated
from trainyard.report.colours import CLASSES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

MEAN = "harmonic mean"
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
LOG = {"type": "log", "rangemode": "normal", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
DESIGN_COLOURS = (*COLOURS[:5], SPARE[4])  # the oracle is grey
# fmt: off
NAMES = {"dc-dla": "DC-DLA", "hc-dla": "HC-DLA", "mcdla-s": "MC-DLA(S)", "mcdla-l": "MC-DLA(L)", "mcdla-b": "MC-DLA(B)",
         "dc-dla-oracle": "DC-DLA(O)"}
SHORT = {"dc-dla": "DC", "hc-dla": "HC", "mcdla-s": "S", "mcdla-l": "L", "mcdla-b": "B", "dc-dla-oracle": "O"}
# fmt: on


with_mean = partial(figures.with_mean, mean=harmonic, name=MEAN)


def figure_2() -> go.Figure:
    first = generations.GENERATIONS[0].name
    names = [one.name for one in generations.GENERATIONS]
    time, over = [], []
    for number, network in enumerate(CNNS):
        plain = generations.times(network, paged=False)
        time.append(
            Series(name=network, values={name: plain[name] / plain[first] for name in names}, colour=COLOURS[number])
        )  # fmt: skip
        over.append(Series(name=network, values=dict(generations.overheads(network)), colour=COLOURS[number]))
    ratios = generations.faster()
    left = chart(time, y=f"time over {first}'s (log)")
    left.update_yaxes(**LOG)
    figure = panels(
        {"A step without paging": left, "What paging over PCIe gen3 adds": chart(over, y="% of the step")},
        "Fig. 2: five generations of one device",
        f"Time of a step of {generations.BATCH} samples without paging, and per cent that paging adds. {names[-1]} is "
        f"{min(ratios.values()):.0f} to {max(ratios.values()):.0f} times faster than {first}; paper 20 to 34, devices not named.",
        columns=2, height=430,
    )  # fmt: skip
    for number, domain in enumerate(((0, 0.43), (0.57, 1))):  # room for the right axis' name
        figure.layout["xaxis2" if number else "xaxis"].domain = domain
        figure.layout.annotations[number].x = sum(domain) / 2
    return figure


def figure_hops() -> go.Figure:
    # fmt: off
    nodes = {"Fig. 5: cube mesh": DC_DLA, "Fig. 7a: star": wiring.STAR, "Fig. 7b: folded, (S)": MCDLA_S,
             "Figs. 7c, 8: rings, (L), (B)": MCDLA_B}
    printed = {"Fig. 7a: star": (8, 8, 24), "Fig. 7b: folded, (S)": (8, 12, 20)}
    # fmt: on
    hops_of = {name: wiring.hops(node) for name, node in nodes.items()}
    bars = [
        Series(name=f"ring {number + 1}", values={name: hops[number] for name, hops in hops_of.items()}, colour=COLOURS[number])
        for number in range(3)
    ]
    counts = "; ".join(f"{name} {'/'.join(map(str, hops))}" for name, hops in hops_of.items())
    return chart(
        bars, "Figs. 5, 7 and 8: hops of the three rings",
        f"Rings derived from the wires; hops: {counts}. Paper: Fig. 7a {'/'.join(map(str, printed['Fig. 7a: star']))}, Fig. 7b "
        f"{'/'.join(map(str, printed['Fig. 7b: folded, (S)']))}. GB/s between a device and its memories: "
        f"{', '.join(f'{name} {wiring.to_memory(node) / 1e9:g}' for name, node in nodes.items())}.",
        y="hops", digits=0,
    )  # fmt: skip


def figure_9() -> go.Figure:
    lines = []
    for number, kind in enumerate(wiring.KINDS):  # all-reduce orange, to be seen on all-gather's blue
        for reading in wiring.READINGS:
            forwards = reading != wiring.READINGS[0]
            name = f"{kind.replace('_', '-')}{', every second node forwards' if forwards else ''}"
            drawn_as: Literal["faint", "line"] = "faint" if forwards else "line"
            lines.append(Series(name=name, values=wiring.by_nodes(kind, reading), colour=COLOURS[-number % 3], kind=drawn_as))
    ratios = ", ".join(
        f"{kind.replace('_', '-')} {wiring.doubled(kind, wiring.READINGS[1]):.3f} ({wiring.doubled(kind, wiring.READINGS[0]):.3f})"
        for kind in wiring.KINDS
    )
    figure = chart(
        lines, "Fig. 9: collectives on larger rings",
        f"8 MB in messages of 4 KB, 25 GB/s each way, over a ring of two. 16 nodes over 8, memory-nodes forwarding (all taking "
        f"part): {ratios}.",
        x="nodes in the ring", y="latency over that of two nodes", numbers=True, height=430,
    )  # fmt: skip
    for trace in figure.data:
        if trace.name.startswith("all-reduce"):  # it lies on all-gather: twice the rounds for any number of nodes
            trace.line.dash = "dash"
        if trace.name.startswith("all-gather"):
            trace.line.width *= 3
            trace.marker.size = 12
    return figure


def _stacks(parallel: Parallel) -> go.Figure:
    series = [
        Series(
            name="paging" if name == "copy" else name,
            values={(network, SHORT[design]): value for (network, design), value in values.items()},
            colour=CLASSES[name],
        )
        for name, values in breakdown.stacks(parallel).items()
    ]
    return chart(series, stacked=True)


def figure_11() -> go.Figure:
    bound = breakdown.bound_by_paging()
    cut, more = breakdown.cuts(), breakdown.increases()
    figure = panels(
        {f"{parallel}-parallel": _stacks(parallel) for parallel in PARALLEL},
        "Fig. 11: what each part would take alone",
        f"Sums of durations over the highest stack of each network. DC-DLA is bound by paging in {len(bound)} of 16 (paper "
        f"{stated('dc.virtualisation_bound'):g}); HC-DLA cuts paging by {sum(cut.values()) / len(cut):.0f} % (paper "
        f"{stated('hc.virtualisation_latency_cut'):g}) and adds {sum(more.values()) / len(more):.0f} % of synchronisation (paper "
        f"{stated('hc.sync_increase'):g}).",
        columns=1, height=820, below=30,
    )  # fmt: skip
    figure.update_xaxes(dtick=1, tickangle=-90, tickfont={"size": 9})
    return figure.update_layout(barmode="stack")


def figure_12() -> go.Figure:
    parts = {"DC-DLA, mean": (DC_DLA, breakdown.usage), "DC-DLA, largest": (DC_DLA, breakdown.peaks),
             "HC-DLA, mean": (HC_DLA, breakdown.usage), "HC-DLA, largest": (HC_DLA, breakdown.peaks),
             "MC-DLA(B)": (MCDLA_B, breakdown.usage)}  # fmt: skip
    bars = {}
    for name, (node, shares) in parts.items():
        width = getattr(node, "socket_bytes_per_s", 0.0) / 1e9
        bars[name] = {key: value / 100 * width for key, value in shares(node).items()}
    figure = chart(
        series_of(bars), "Fig. 12: bandwidth of CPU memory in use",
        f"GB/s at each socket, of 80 (DC-DLA) and 300 (HC-DLA). HC-DLA: mean at most {max(breakdown.usage(HC_DLA).values()):.0f} % "
        f"(paper {stated('hc.cpu_bandwidth'):g}), largest {max(breakdown.peaks(HC_DLA).values()):.0f} % (paper 100); MC-DLA none.",
        y="GB/s at a socket", digits=0, height=470,
    )  # fmt: skip
    return figure.update_xaxes(tickangle=-45)


def _speedups(parallel: Parallel) -> go.Figure:
    speedups = performance.table(parallel)
    bars = series_of({NAMES[design]: with_mean(values) for design, values in speedups.items()}, DESIGN_COLOURS)
    colours = dict(zip(speedups, DESIGN_COLOURS, strict=True))
    printed = {"mcdla-b": stated(f"speedup.{parallel}"), "hc-dla": 1 + stated(f"hc.{parallel}") / 100}
    marks = [paper({MEAN: value}, f"paper, {NAMES[design]}", colours[design]) for design, value in printed.items()]
    return chart([*bars, *marks], y="over DC-DLA (log)", unity=True).update_yaxes(**LOG)


def figure_13() -> go.Figure:
    summaries = "; ".join(
        f"(B), {parallel}-parallel: {means(performance.over_dc(MCDLA_B, parallel))}, paper {stated(f'speedup.{parallel}'):g}; HC "
        f"{means(performance.over_dc(HC_DLA, parallel))}, paper {1 + stated(f'hc.{parallel}') / 100:g}"
        for parallel in PARALLEL
    )
    return panels(
        {f"{parallel}-parallel": _speedups(parallel) for parallel in PARALLEL},
        "Fig. 13: performance over DC-DLA",
        f"{summaries}. The oracle pages nothing and computes nothing again; with copies that take no time (B) reaches "
        f"{100 * performance.mean(MCDLA_B, performance.FREE_COPIES):.0f} % of it (paper {stated('of_oracle'):g}).",
        columns=1, height=820, below=50,
    )  # fmt: skip


def figure_14() -> go.Figure:
    speedups = sensitivity.by_batch()
    charts = {
        f"{parallel}-parallel": chart(
            series_of({f"batch {batch}": with_mean(one[parallel]) for batch, one in speedups.items()}),
            "", "", y="over DC-DLA (log)", unity=True,
        ).update_yaxes(**LOG)
        for parallel in PARALLEL
    }  # fmt: skip
    ours = harmonic(mean_of_both(one) for one in speedups.values())
    return panels(
        charts,
        "Fig. 14: MC-DLA(B) over DC-DLA by batch",
        f"Harmonic mean over the batches {ours:.2f}, paper {stated('batch_sweep'):g}. The batches are assumed.",
        columns=1, height=760, below=40,
    )  # fmt: skip


def figure_sensitivity() -> go.Figure:
    # fmt: off
    gaps = {
        "as in Fig. 13":    (performance.speedup(),                                        stated("speedup")),
        "PCIe gen4":        (mean_of_both(sensitivity.gaps(MCDLA_B, sensitivity.GEN4)),             stated("pcie4.gap")),
        "TPUv2-like":       (mean_of_both(sensitivity.gaps(*sensitivity.with_device(sensitivity.TPU_V2))), stated("tpuv2.gap")),
        "DGX-2-like":       (mean_of_both(sensitivity.gaps(*sensitivity.switched())),               stated("dgx2.gap")),
        "cDMA (CNNs)":      (mean_of_both(sensitivity.gaps(MCDLA_B, sensitivity.COMPRESSED, CNNS)), stated("cdma.cnn_gap")),
    }
    # fmt: on
    means_text = ", ".join(f"{name} {ours:.2f} (paper {theirs:g})" for name, (ours, theirs) in gaps.items())
    return chart(
        [
            Series(name="MC-DLA(B) over DC-DLA", values={name: ours for name, (ours, _) in gaps.items()}, colour=COLOURS[0]),
            paper({name: theirs for name, (_, theirs) in gaps.items()}),
        ],
        "Sec. V-B: other links, devices and nodes", f"Means of both parallelisms: {means_text}.", y="speedup", unity=True,
    )  # fmt: skip


def figure_scaling() -> go.Figure:
    names = {"dc-dla-oracle": "DC-DLA without paging", "mcdla-b": "MC-DLA(B)", "dc-dla": "DC-DLA"}
    lines = [
        Series(
            name=name,
            values={count: harmonic(scaling.scaled(design, count).values()) for count in scaling.DEVICES},  # type: ignore[arg-type]
            colour=COLOURS[number],
            kind="line",
        )
        for number, (design, name) in enumerate(names.items())
    ]
    paged, unpaged = ({n: stated(f"scaling.{name}.{n}") for n in (4, 8)} for name in ("dc", "dc_no_virtualisation"))
    marks = paper(paged, "paper, DC-DLA", COLOURS[2]), paper(unpaged, "paper, without paging", COLOURS[0])
    summaries = "; ".join(
        f"{one.name} {', '.join(f'{count} devices {value:.2f}' for count, value in one.values.items())}" for one in lines
    )
    return chart(
        [*lines, *marks],
        "Sec. V-D: more devices",
        f"Four CNNs, data-parallel, {scaling.EACH} samples a device, harmonic mean of how much sooner as many are done: "
        f"{summaries}.",
        x="devices", y="speedup over one", numbers=True,
    )  # fmt: skip


def table_4() -> go.Figure:
    ours = {name: node.power_w for name, node in power.NODES.items()}
    density = {name: node.gb_per_w for name, node in power.NODES.items()}
    printed = (dict(zip(ours, power.PRINTED_W, strict=True)), dict(zip(ours, power.PRINTED_GB_PER_W, strict=True)))
    charts = [
        chart([Series(name="ours", values=values, colour=COLOURS[0]), paper(theirs)])
        for values, theirs in zip((ours, density), printed, strict=True)
    ]
    return panels(
        {"W of a memory-node": charts[0], "GB a watt": charts[1]},
        "Table IV: power of a memory-node",
        "Ten modules a node. Eight nodes add "
        + " to ".join(f"{power.increase(node):.2f} %" for node in (power.LEAN, power.LARGE))
        + " to a DGX's 3200 W; paper 7 and 31.",
        columns=2, height=420,
    )  # fmt: skip


# fmt: off
FIGURES: Figures = {
    "Fig. 2":           figure_2,
    "Fig. 7":           figure_hops,
    "Fig. 9":           figure_9,
    "Fig. 11":          figure_11,
    "Fig. 12":          figure_12,
    "Fig. 13":          figure_13,
    "Fig. 14":          figure_14,
    "Sec. V-B":         figure_sensitivity,
    "Table IV":         table_4,
    "Sec. V-D":         figure_scaling,
}
# fmt: on
