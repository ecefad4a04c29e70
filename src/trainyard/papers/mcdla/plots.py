"""Figs. 2, 5, 7 to 9 and 11 to 14, Table IV, Secs. V-B and V-D: what was measured here, what the paper prints as diamonds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from trainyard.machines.presets.mcdla import DC_DLA, HC_DLA, MCDLA_B, MCDLA_S
from trainyard.papers.figures import Series, chart, panels, paper
from trainyard.papers.mcdla import breakdown, generations, performance, power, scaling, sensitivity, wiring
from trainyard.papers.mcdla.measuring import CNNS, PARALLEL, Networks, Parallel, means
from trainyard.papers.mcdla.printed import harmonic, said
from trainyard.report.colours import CLASSES, PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

MEAN = "harmonic mean"
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
LOG = {"type": "log", "rangemode": "normal", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
COLOURS = (PHASES["forward"], PHASES["grad_input"], PHASES["grad_weight"], PHASES["update"], *SPARE)
DESIGN_COLOURS = (*COLOURS[:5], SPARE[4])  # the oracle is grey
# fmt: off
NAMES = {"dc-dla": "DC-DLA", "hc-dla": "HC-DLA", "mcdla-s": "MC-DLA(S)", "mcdla-l": "MC-DLA(L)", "mcdla-b": "MC-DLA(B)",
         "dc-dla-oracle": "DC-DLA(O)"}
SHORT = {"dc-dla": "DC", "hc-dla": "HC", "mcdla-s": "S", "mcdla-l": "L", "mcdla-b": "B", "dc-dla-oracle": "O"}
# fmt: on


def with_mean(values: Networks) -> dict[str, float]:
    return {**values, MEAN: harmonic(values.values())}


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
    found = generations.faster()
    left = chart(time, y=f"time over {first}'s (log)")
    left.update_yaxes(**LOG)
    figure = panels(
        {"A step without paging": left, "What paging over PCIe gen3 adds": chart(over, y="% of the step")},
        "Fig. 2: five generations of one device",
        f"Time of a step of {generations.BATCH} samples without paging, and per cent that paging adds. {names[-1]} is "
        f"{min(found.values()):.0f} to {max(found.values()):.0f} times faster than {first}; paper 20 to 34, devices not named.",
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
    found = {name: wiring.hops(node) for name, node in nodes.items()}
    bars = [
        Series(name=f"ring {number + 1}", values={name: hops[number] for name, hops in found.items()}, colour=COLOURS[number])
        for number in range(3)
    ]
    told = "; ".join(f"{name} {'/'.join(map(str, hops))}" for name, hops in found.items())
    return chart(
        bars, "Figs. 5, 7 and 8: hops of the three rings",
        f"Rings derived from the wires; hops: {told}. Paper: Fig. 7a {'/'.join(map(str, printed['Fig. 7a: star']))}, Fig. 7b "
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
    told = ", ".join(
        f"{kind.replace('_', '-')} {wiring.doubled(kind, wiring.READINGS[1]):.3f} ({wiring.doubled(kind, wiring.READINGS[0]):.3f})"
        for kind in wiring.KINDS
    )
    figure = chart(
        lines, "Fig. 9: collectives on larger rings",
        f"8 MB in messages of 4 KB, 25 GB/s each way, over a ring of two. 16 nodes over 8, memory-nodes forwarding (all taking "
        f"part): {told}.",
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
    found = breakdown.stacks(parallel)
    series = [
        Series(
            name="paging" if name == "copy" else name,
            values={(network, SHORT[design]): value for (network, design), value in values.items()},
            colour=CLASSES[name],
        )
        for name, values in found.items()
    ]
    return chart(series, stacked=True)


def figure_11() -> go.Figure:
    bound = breakdown.bound_by_paging()
    cut, more = breakdown.cuts(), breakdown.increases()
    figure = panels(
        {f"{parallel}-parallel": _stacks(parallel) for parallel in PARALLEL},
        "Fig. 11: what each part would take alone",
        f"Sums of durations over the highest stack of each network. DC-DLA is bound by paging in {len(bound)} of 16 (paper "
        f"{said('dc.virtualisation_bound'):g}); HC-DLA cuts paging by {sum(cut.values()) / len(cut):.0f} % (paper "
        f"{said('hc.virtualisation_latency_cut'):g}) and adds {sum(more.values()) / len(more):.0f} % of synchronisation (paper "
        f"{said('hc.sync_increase'):g}).",
        columns=1, height=820, below=30,
    )  # fmt: skip
    figure.update_xaxes(dtick=1, tickangle=-90, tickfont={"size": 9})
    return figure.update_layout(barmode="stack")


def figure_12() -> go.Figure:
    parts = {"DC-DLA, mean": (DC_DLA, breakdown.usage), "DC-DLA, largest": (DC_DLA, breakdown.peaks),
             "HC-DLA, mean": (HC_DLA, breakdown.usage), "HC-DLA, largest": (HC_DLA, breakdown.peaks),
             "MC-DLA(B)": (MCDLA_B, breakdown.usage)}  # fmt: skip
    bars = []
    for number, (name, (node, what)) in enumerate(parts.items()):
        width = getattr(node, "socket_bytes_per_s", 0.0) / 1e9
        bars.append(
            Series(name=name, values={key: value / 100 * width for key, value in what(node).items()}, colour=COLOURS[number])
        )
    figure = chart(
        bars, "Fig. 12: bandwidth of CPU memory in use",
        f"GB/s at each socket, of 80 (DC-DLA) and 300 (HC-DLA). HC-DLA: mean at most {max(breakdown.usage(HC_DLA).values()):.0f} % "
        f"(paper {said('hc.cpu_bandwidth'):g}), largest {max(breakdown.peaks(HC_DLA).values()):.0f} % (paper 100); MC-DLA none.",
        y="GB/s at a socket", digits=0, height=470,
    )  # fmt: skip
    return figure.update_xaxes(tickangle=-45)


def _speedups(parallel: Parallel) -> go.Figure:
    found = performance.table(parallel)
    bars = [
        Series(name=NAMES[design], values=with_mean(values), colour=DESIGN_COLOURS[number])
        for number, (design, values) in enumerate(found.items())
    ]
    marks = {"mcdla-b": said(f"speedup.{parallel}"), "hc-dla": 1 + said(f"hc.{parallel}") / 100}
    order = [*found]
    for design, value in marks.items():
        bars.append(
            replace(paper({MEAN: value}, f"paper, {NAMES[design]}"), colour=DESIGN_COLOURS[order.index(design)])
        )  # fmt: skip
    return chart(bars, y="over DC-DLA (log)", unity=True).update_yaxes(**LOG)


def figure_13() -> go.Figure:
    told = "; ".join(
        f"(B), {parallel}-parallel: {means(performance.over_dc(MCDLA_B, parallel))}, paper {said(f'speedup.{parallel}'):g}; HC "
        f"{means(performance.over_dc(HC_DLA, parallel))}, paper {1 + said(f'hc.{parallel}') / 100:g}"
        for parallel in PARALLEL
    )
    return panels(
        {f"{parallel}-parallel": _speedups(parallel) for parallel in PARALLEL},
        "Fig. 13: performance over DC-DLA",
        f"{told}. The oracle pages nothing.",
        columns=1, height=820, below=50,
    )  # fmt: skip


def figure_14() -> go.Figure:
    found = sensitivity.by_batch()
    shown = {
        parallel: chart(
            [
                Series(name=f"batch {batch}", values=with_mean(one[parallel]), colour=COLOURS[number])
                for number, (batch, one) in enumerate(found.items())
            ],
            "", "", y="over DC-DLA (log)", unity=True,
        ).update_yaxes(**LOG)
        for parallel in PARALLEL
    }  # fmt: skip
    every = [value for one in found.values() for by in one.values() for value in by.values()]
    return panels(
        {f"{parallel}-parallel": one for parallel, one in shown.items()},
        "Fig. 14: MC-DLA(B) over DC-DLA by batch",
        f"Harmonic mean of all {harmonic(every):.2f}, paper {said('batch_sweep'):g}. The batches are assumed.",
        columns=1, height=760, below=40,
    )  # fmt: skip


def figure_sensitivity() -> go.Figure:
    # fmt: off
    found = {
        "as in Fig. 13":    (performance.speedup(),                                        said("speedup")),
        "PCIe gen4":        (_gap(sensitivity.gaps(MCDLA_B, sensitivity.GEN4)),             said("pcie4.gap")),
        "TPUv2-like":       (_gap(sensitivity.gaps(*sensitivity.with_device(sensitivity.TPU_V2))), said("tpuv2.gap")),
        "DGX-2-like":       (_gap(sensitivity.gaps(*sensitivity.switched())),               said("dgx2.gap")),
        "cDMA (CNNs)":      (_gap(sensitivity.gaps(MCDLA_B, sensitivity.COMPRESSED, CNNS)), said("cdma.cnn_gap")),
    }
    # fmt: on
    told = ", ".join(f"{name} {ours:.2f} (paper {theirs:g})" for name, (ours, theirs) in found.items())
    return chart(
        [
            Series(name="MC-DLA(B) over DC-DLA", values={name: ours for name, (ours, _) in found.items()}, colour=COLOURS[0]),
            paper({name: theirs for name, (_, theirs) in found.items()}),
        ],
        "Sec. V-B: other links, devices and nodes", f"Harmonic means of both parallelisms: {told}.", y="speedup", unity=True,
    )  # fmt: skip


def _gap(found: Mapping[Parallel, Networks]) -> float:
    return harmonic(value for one in found.values() for value in one.values())


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
    marks = paper({4: said("scaling.dc.4"), 8: said("scaling.dc.8")}, "paper, DC-DLA")
    plain = paper({4: said("scaling.dc_no_virtualisation.4"), 8: said("scaling.dc_no_virtualisation.8")}, "paper, without paging")
    told = "; ".join(
        f"{one.name} {', '.join(f'{count} devices {value:.2f}' for count, value in one.values.items())}" for one in lines
    )
    return chart(
        [*lines, replace(marks, colour=COLOURS[2]), replace(plain, colour=COLOURS[0])],
        "Sec. V-D: devices for the same batch",
        f"Four CNNs, data-parallel, 512 samples in all, harmonic mean of how many times shorter a step is: {told}.",
        x="devices", y="speedup over one", numbers=True,
    )  # fmt: skip


def table_4() -> go.Figure:
    ours = {name: node.power_w for name, node in power.NODES.items()}
    density = {name: node.gb_per_w for name, node in power.NODES.items()}
    printed = (
        dict(zip(ours, (29.0, 66.0, 87.0, 102.0, 127.0), strict=True)),
        dict(zip(ours, (2.8, 2.4, 3.7, 6.3, 10.1), strict=True)),
    )
    shown = [
        chart([Series(name="ours", values=values, colour=COLOURS[0]), paper(theirs)])
        for values, theirs in zip((ours, density), printed, strict=True)
    ]
    return panels(
        {"W of a memory-node": shown[0], "GB a watt": shown[1]},
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
