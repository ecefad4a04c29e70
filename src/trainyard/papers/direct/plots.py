"""Figs. 2 and 3, Table II's energy, and two beyond the paper; the paper's values as diamonds."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from trainyard.papers.direct import accuracy, contributions, efficiency, studies, table
from trainyard.papers.direct.measuring import COUNTS, RESNET18, SYSTEMS, WORKLOADS, Workload, listed, slashed, system
from trainyard.papers.direct.printed import UNITS, by_eq_1, half_units, stated
from trainyard.papers.figures import Series, chart, panels, paper
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

COLOURS = (PHASES["forward"], PHASES["grad_input"], PHASES["grad_weight"], PHASES["loss"], PHASES["update"], *SPARE)
MANY = (*COLOURS, "#2F4F4F", "#A0522D")
"""For figures of up to twelve series."""
COLOUR_OF = {
    "PIM-Opt": COLOURS[1],
    "PIM-Opt, rank-parallel": COLOURS[5],
    "PIM-Opt, DPU by DPU": COLOURS[4],
    "DIRECT": COLOURS[0],
    "A100": COLOURS[2],
}
TICKS = (32, 64, 128, 256, 512, 1024, 2048)
LOG_UNITS = {"type": "log", "tickvals": TICKS, "ticktext": [str(tick) for tick in TICKS]}


def _curves(workload: Workload) -> go.Figure:
    lines = [
        Series(name=name, values=efficiency.curve(name, workload), colour=COLOUR_OF[name], kind="line") for name in efficiency.DRAWN
    ]
    lines += [
        Series(name=literal.name, values=efficiency.literal_curve(literal, workload), colour=colour, kind="line")
        for literal, colour in zip(efficiency.LITERALS, (COLOURS[3], COLOURS[4]), strict=True)
    ]
    host = "fig2" if workload is RESNET18 else "linear"
    printed = stated("efficiency.resnet18.fig2" if workload is RESNET18 else "efficiency.linear")
    half = half_units(printed[0])
    lines.append(
        Series(
            name="Eq. 1's shape, calibrated on PIM-Opt at 2048", values={n: by_eq_1(n, half) for n in COUNTS},
            colour=COLOUR_OF["PIM-Opt"], kind="faint",
        )
    )  # fmt: skip
    marks = {name: {UNITS: value} for name, value in zip(SYSTEMS, printed, strict=True)}
    if host == "fig2":
        marks["DIRECT"][32] = stated("efficiency.resnet18.at_32")[0]
    lines += [paper(values, f"paper, {name}", COLOUR_OF[name]) for name, values in marks.items()]
    figure = chart(lines, x="units", y="parallel efficiency", numbers=True)
    return figure.update_xaxes(**LOG_UNITS)


def _tokens() -> go.Figure:
    """Exposed parts of an optimizer step of DIRECT, in per cent of it; only the token grows with the clusters."""
    lines = []
    for number, workload in enumerate(WORKLOADS):
        points = efficiency.points("DIRECT", workload)
        for kind, name in (("line", "token"), ("faint", "exchange")):
            values = {units: 100 * one.acts_s[name] / one.time_s for units, one in points.items() if one.acts_s.get(name)}
            lines.append(Series(name=f"{name}, {workload.name}", values=values, colour=COLOURS[number], kind=kind))  # type: ignore[arg-type]
        for literal, kind in zip(efficiency.LITERALS, ("faint", "line"), strict=True):
            shares = {units: share for units, share in efficiency.literal_share(literal, workload).items() if share}
            name = f"as printed, tau = {literal.tau}: rounds and token, {workload.name}"
            lines.append(Series(name=name, values=shares, colour=COLOURS[3 + number], kind=kind))  # type: ignore[arg-type]
    figure = chart(lines, x="DPUs", y="% of the step (log)", numbers=True)
    figure.update_yaxes(type="log", rangemode="normal", exponentformat="power")
    return figure.update_xaxes(**LOG_UNITS)


def figure_2() -> go.Figure:
    shares = {one.name: 1e6 * system("DIRECT", one).acts_s["token"] / system("DIRECT", one).time_s for one in WORKLOADS}
    return panels(
        {
            "ResNet-18": _curves(RESNET18),
            "Linear model": _curves(WORKLOADS[0]),
            "DIRECT: token and exchange": _tokens(),
        },
        "Fig. 2: parallel efficiency by number of units",
        f"Batch of a unit kept. At {UNITS} PIM-Opt, DIRECT, A100: ResNet-18 {slashed(efficiency.at_full(RESNET18))}, paper "
        f"{slashed(stated('efficiency.resnet18.fig2'))}; linear {slashed(efficiency.at_full(WORKLOADS[0]))}, paper "
        f"{slashed(stated('efficiency.linear'))}. Waiting for the token: {listed(shares)} millionths of DIRECT's step.",
        columns=1, height=1250, below=80,
    )  # fmt: skip


def figure_3() -> go.Figure:
    bars = []
    number = 0
    for transfers in contributions.TRANSFERS:
        for workload in WORKLOADS:
            seconds = contributions.times(workload, transfers)
            name = f"{workload.name}, {transfers.replace('_', '-')}"
            for kind, of in (("Shapley", contributions.shapley), ("in order", contributions.in_order)):
                shares = of(seconds)
                bars.append(Series(name=f"{name}: {kind}", values=dict(shares), colour=MANY[number]))
                number += 1
    bars.append(paper(dict(zip(contributions.PARTS, stated("contribution"), strict=True))))
    figure = chart(
        bars, "Fig. 3: what AGAU, DSC and LAA contribute",
        "Shares of the logarithm of DIRECT's speedup over PIM-Opt that transfers rank after rank or rank-parallel. Shapley: mean "
        "over all orders. In order: AGAU, then DSC, then LAA.",
        y="% of the speedup", digits=0, height=470,
    )  # fmt: skip
    return figure.update_yaxes(rangemode="normal")


def table_2() -> go.Figure:
    """Joules of an epoch by component."""
    charts = {}
    joules_of = [table.epoch_joules(name, workload) for workload in WORKLOADS for name in table.PIM]
    names = dict.fromkeys(part for joules in joules_of for part, value in joules.items() if value > 0)
    colours = dict(zip(names, cycle(MANY), strict=False))
    for workload in WORKLOADS:
        parts = {name: table.epoch_joules(name, workload) for name in table.PIM}
        stacks = [
            Series(name=part, values={name: parts[name].get(part, 0.0) for name in table.PIM}, colour=colour)
            for part, colour in colours.items()
            if any(joules.get(part, 0.0) > 0 for joules in parts.values())
        ]
        stacks.append(paper(dict(zip(table.PIM, stated(f"energy.{workload.name}"), strict=False))))
        charts[workload.name] = chart(stacks, y="J an epoch", stacked=True, digits=1)
    joules_text = "; ".join(
        f"{one.name} {slashed([table.epoch_j(name, one) for name in SYSTEMS], 0)} J, "
        f"paper {slashed(stated(f'energy.{one.name}'), 0)}"
        for one in WORKLOADS
    )
    figure = panels(
        charts, "Table II: energy of an epoch by component",
        f"PIM-Opt, DIRECT, A100: {joules_text}. The paper's joules over its seconds are 3.5 to 3.7 W.", columns=2, height=470,
    )  # fmt: skip
    return figure.update_layout(barmode="stack")


def tau_sweep() -> go.Figure:
    histories = studies.by_tau()
    # fmt: off
    columns = {
        "accuracy [%]":              {tau: 100 * one.accuracy for tau, one in histories.items()},
        "global exchanges":          {tau: float(len(one.exchanges)) for tau, one in histories.items()},
        "simulated time [ms]": {tau: 1e3 * one.time_s for tau, one in histories.items()},
        "parameter age [ms]":   {tau: 1e3 * one.age_s.mean for tau, one in histories.items()},
    }
    # fmt: on
    charts = {}
    for number, (name, values) in enumerate(columns.items()):
        lines = [Series(name=name, values={str(tau): value for tau, value in values.items()}, colour=COLOURS[number], kind="line")]
        charts[f"{name} by tau"] = chart(lines)
    least, most = (choose(columns["accuracy [%]"].values()) for choose in (min, max))
    charts["accuracy [%] by tau"].update_yaxes(rangemode="normal", range=[least - 1, most + 1])
    return panels(
        charts, "Threshold tau",
        f"Linear model, {accuracy.WORKERS} DPUs in clusters of 64, {studies.STEPS} steps of batch 8, averaging. Not in the paper.",
        columns=2, height=620,
    )  # fmt: skip


def over_time() -> go.Figure:
    lines = []
    for number, (name, one) in enumerate(studies.by_algorithm().items()):
        curve = one.curve()
        values = {1e3 * at: 100 * value for at, value in zip(curve["time_s"], curve["accuracy"], strict=True)}
        lines.append(Series(name=name, values=values, colour=COLOURS[number % len(COLOURS)], kind="line"))
    figure = chart(
        lines, "Accuracy against simulated time",
        f"Linear model, {accuracy.WORKERS} DPUs, {studies.STEPS} steps each, one learning rate; averaging and literal on DIRECT, "
        "all others on PIM-Opt, rank after rank. Averaging, MA-SGD and D-PSGD are judged on the mean of all models, "
        "the others on the last global one. Not in the paper.",
        x="simulated time [ms]", y="accuracy [%]", numbers=True, height=430,
    )  # fmt: skip
    ends = [100 * one.accuracy for one in studies.by_algorithm().values()]
    return figure.update_yaxes(rangemode="normal", range=[min(ends) - 4, max(ends) + 1])


# fmt: off
FIGURES: Figures = {
    "Fig. 2":                 figure_2,
    "Fig. 3":                 figure_3,
    "Table II":               table_2,
    "Threshold tau":          tau_sweep,
    "Accuracy over time":     over_time,
}
# fmt: on
