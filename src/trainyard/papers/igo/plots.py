"""The paper's figures from our runs, with the means that the paper prints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from trainyard.devices.accelerator.ordered import part_of
from trainyard.ir.folds import AXES
from trainyard.mapping.gradient_order.partition import NAMES, SCHEMES
from trainyard.mapping.gradient_order.scratchpad import TENSORS, algorithm_1, traffic
from trainyard.mapping.gradient_order.tile_streams import Partition
from trainyard.papers.figures import COLOURS, MEAN, Series, chart, panels, paper, series_of, with_mean
from trainyard.papers.igo import beyond, breakdown, gpu, longest, performance, sweeps
from trainyard.papers.igo.baselines import CASES, ELEMENT_BYTES, LARGE, TILES, Case, stated
from trainyard.papers.igo.measuring import Networks, by_network, faster, mean, reductions, step_cost
from trainyard.papers.igo.networks import ABBREVIATIONS, NETWORKS, layers_of
from trainyard.papers.igo.partitioning import TWO_CORES, by_ideal, by_knn, table
from trainyard.papers.igo.performance import JOINT
from trainyard.report.colours import SPARE
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

SCALE = 0.7
"""Size of the walk-through beside the other figures."""
SEARCHED_COLOURS = {"searched, sequential": SPARE[-1], "searched together": SPARE[0]}


def relative_time(shorter: Networks) -> dict[str, float]:
    """Time over the baseline's, from the reduction in per cent.

    >>> relative_time({"a": 25.0, "b": -5.0})
    {'a': 0.75, 'b': 1.05, 'mean': 0.9}
    """
    return {name: round(1 - value / 100, 9) for name, value in with_mean(shorter).items()}


def figure_5() -> go.Figure:
    names = {"of reads and writes": False, "of reads": True}
    bars = series_of({name: with_mean(performance.shares(LARGE, reads=reads)) for name, reads in names.items()})
    tall, searched = ([mean(performance.shares(LARGE, tile, reads)) for reads in names.values()] for tile in TILES)
    marks = [
        paper({MEAN: stated("dy_share.all_traffic")}, "paper, of reads and writes", COLOURS[0]),
        paper({MEAN: stated("dy_share.reads"), "dlrm": stated("dy_share.reads.dlrm")}, "paper, of reads", COLOURS[1]),
    ]
    return chart(
        [*bars, *marks],
        "Fig. 5: what dY is of the gradients' traffic",
        f"Large NPU, sequential, fixed tall tile: mean {tall[0]:.0f} % of all and {tall[1]:.0f} % of reads; paper "
        f"{stated('dy_share.all_traffic'):g} and {stated('dy_share.reads'):g} %. With searched tiles {searched[0]:.0f} and "
        f"{searched[1]:.0f} %.",
        y="% of bytes", digits=1,
    )  # fmt: skip


def figure_6() -> go.Figure:
    bars, means = [], []
    for number, (npu, case) in enumerate(CASES.items()):
        for shade, tile in enumerate(TILES):
            speedups = with_mean(by_network(partial(performance.potential, case, tile=tile)))
            bars.append(Series(name=f"{npu} NPU, {tile} tile", values=speedups, colour=COLOURS[number + 2 * shade]))
            means.append(f"{npu} NPU with the {tile} tile {speedups[MEAN]:.2f}")
    marks = [paper({MEAN: stated(f"potential.{npu}")}, f"paper, {npu} NPU", COLOURS[n]) for n, npu in enumerate(CASES)]
    return chart(
        [*bars, *marks],
        "Fig. 6: dY for nothing when dW needs it",
        f"Speedup of a step, mean: {', '.join(means)}; paper {stated('potential.small'):g} and {stated('potential.large'):g}.",
        y="speedup", unity=True,
    )  # fmt: skip


EXAMPLE_LAYER = "T5_5"  # of the large NPU: a feed-forward layer, neither square nor small


def figure_7() -> go.Figure:
    layer = next(layer for layer in layers_of("T5") if layer.name == EXAMPLE_LAYER)
    op, machine, order = layer.op, LARGE.machine(), algorithm_1(layer.op)
    cuts = [Partition(axis=axis, parts=LARGE.parts) for axis in AXES]
    assert not isinstance(machine.tiling, str)
    count = partial(traffic, op, tile=machine.tiling, capacity_bytes=machine.scratchpad_bytes // 2, element_bytes=ELEMENT_BYTES)
    # fmt: off
    moved = {
        "dX, then dW":      count(order="sequential"),
        "(1) interleaved":  count(order="interleaved"),
        f"(2) {order}":     count(order=order),
        **{f"(3) {cut.parts} parts, {cut.axis}": count(order=algorithm_1(part_of(op, cut)), partition=cut) for cut in cuts},
    }
    # fmt: on
    parts = {tensor: {name: bytes_.by_tensor[tensor] / 1e6 for name, bytes_ in moved.items()} for tensor in TENSORS}
    megabytes = ", ".join(f"{name} {bytes_.total_bytes / 1e6:.0f}" for name, bytes_ in moved.items())
    return chart(
        series_of(parts),
        "Fig. 7: the three steps on one layer",
        f"{layer.name}, M, N, K = {op.M}, {op.N}, {op.K}, large NPU, fixed tall tile; MB: {megabytes}. Rearranged as Algorithm 1 "
        "says; parts one after the other on one core.",
        y="MB of DRAM traffic", stacked=True, digits=0,
    )  # fmt: skip


def figure_8() -> go.Figure:
    """The walk-through of `explain igo` on a layer that fits beside the other figures, its orders by name alone."""
    from trainyard.mapping.gradient_order.walkthrough import SHOWN, example
    from trainyard.report.walkthroughs.canvas import LEGEND_SIZE
    from trainyard.report.walkthroughs.igo import figure

    small = figure(example((2, 2, 2)))
    for trace in small.data:
        if trace.mode == "text" and trace.textfont.size == LEGEND_SIZE:
            trace.text = [name if name in SHOWN else "" for name in (text.partition(":")[0] for text in trace.text)]
        elif trace.mode == "text":
            trace.textfont.size *= SCALE
    small.layout.meta["description"] += " Orange: dX, green: dW; filled: read from the DRAM; round: T0."
    return small.update_layout(
        width=None, height=SCALE * small.layout.height, title={"text": "Figs. 8 to 10: the orders, tile by tile"}
    )


def figure_11() -> go.Figure:
    shares = {"m": "W is shared, dW summed", "n": "X is shared, dX summed", "k": "dY is shared, nothing summed"}  # Sec. 5
    rows = table(TWO_CORES)
    bars = {}
    for scheme in SCHEMES:
        counted = dict.fromkeys(ABBREVIATIONS, 0)
        for layer, costs in rows:
            counted[layer.network] += layer.repeats * (min(SCHEMES, key=costs.cycles.__getitem__) == scheme)
        totals = {n: sum(layer.repeats for layer, _ in rows if layer.network == n) for n in counted}
        bars[f"{scheme}, {NAMES[scheme]}: {shares[scheme]}"] = {n: 100 * count / totals[n] for n, count in counted.items()}
    return chart(
        series_of(bars),
        "Fig. 11: which partition is the cheapest",
        "Per cent of the layers with both gradients, two cores of the large NPU, fixed tall tile, Algorithm 1 for each part.",
        y="% of layers", stacked=True, digits=0,
    )  # fmt: skip


def _bars_12(case: Case) -> go.Figure:
    # fmt: off
    steps = {
        "Interleaving":                  relative_time(reductions(case, order="interleaved")),
        "+Rearrangement":                relative_time(reductions(case, order="paper")),
        "+DataPartitioning, neighbours": relative_time(by_knn(case)),
        "+DataPartitioning, cheapest":   relative_time(by_ideal(case)),
    }
    # fmt: on
    bars = series_of(steps)
    for name, order in (("searched, sequential", {}), ("searched together", JOINT)):
        searched = {n: step_cost(case, n, "searched", **order).cycles / step_cost(case, n).cycles for n in ABBREVIATIONS}
        bars.append(Series(name=name, values=with_mean(searched), colour=SEARCHED_COLOURS[name]))
    claimed = {"Interleaving": "interleaving", "+Rearrangement": "rearrangement", "+DataPartitioning": "all"}
    marks = [
        paper({MEAN: 1 - stated(f"{case.npu}.{step}") / 100}, f"paper, {name}", colour)
        for (name, step), colour in zip(claimed.items(), COLOURS, strict=False)
    ]
    return chart([*bars, *marks], unity=True)


def figure_12() -> go.Figure:
    means = "; ".join(
        f"{npu}: {mean(reductions(case, order='interleaved')):.1f}, {mean(reductions(case, order='paper')):.1f}, "
        f"{mean(by_knn(case)):.1f} ({mean(by_ideal(case)):.1f} with the cheapest partition), paper "
        f"{stated(f'{npu}.interleaving'):g}, {stated(f'{npu}.rearrangement'):g}, {stated(f'{npu}.all'):g}"
        for npu, case in CASES.items()
    )
    fast = ", ".join(f"{mean(faster(case)):.2f} ({npu})" for npu, case in CASES.items())
    return panels(
        {f"{npu} NPU": _bars_12(case) for npu, case in CASES.items()},
        "Fig. 12: time of a step over the baseline's with a fixed tall tile",
        f"Per cent shorter, mean of the three steps: {means}. A baseline whose tiles are searched is {fast} times faster than "
        "the one with the tall tile; fused orders on top of it are the last bars.",
        columns=1, height=790, below=100,
    )  # fmt: skip


def figure_13() -> go.Figure:
    bars = sorted(longest.bars(), key=lambda bar: bar.shallow)
    parts = {"traffic": {}, "time": {}, "time, searched together over searched": {}}  # type: dict[str, dict[str, float]]
    other = {bar.layer.name: bar for bar in longest.bars("searched")}
    for bar in bars:
        name = f"{bar.layer.name}{' (shallow)' if bar.shallow else ''}"
        parts["traffic"][name] = bar.traffic
        parts["time"][name] = bar.time
        parts["time, searched together over searched"][name] = other[bar.layer.name].time
    figure = chart(
        series_of(parts),
        f"Fig. 13: the {len(bars)} longest layers",
        f"+Rearrangement over the baseline. Large NPU, forward and backward pass, fixed tall tile. Mean: "
        f"{longest.means_text()}. Deep layers left, shallow ones right.",
        y="over the baseline", unity=True, height=470,
    )  # fmt: skip
    figure.update_xaxes(tickangle=-90)
    return figure


def _sweep(title: str, cases: Mapping[str, Case], printed: Mapping[str, str]) -> go.Figure:
    bars = series_of({name: relative_time(by_knn(case)) for name, case in cases.items()})
    marks = [
        paper({MEAN: 1 - stated(claim) / 100}, f"paper, {name}", colour)
        for (name, claim), colour in zip(printed.items(), COLOURS, strict=False)
    ]
    means = "; ".join(
        f"{name}: {mean(by_knn(case)):.1f} % ({mean(by_ideal(case)):.1f} with the cheapest partition, "
        f"{mean(sweeps.searched(case)):.1f} against searched tiles), paper {stated(printed[name]):g}"
        for name, case in cases.items()
    )
    return chart(
        [*bars, *marks], title, f"All three steps, fixed tall tile. Mean that a step is shorter, {means}.",
        y="time over the baseline's", unity=True, height=430,
    )  # fmt: skip


def figure_14() -> go.Figure:
    return _sweep(
        "Fig. 14: several cores of the large NPU",
        {sweeps.counted(cores): sweeps.with_cores(cores) for cores in sweeps.CORES},
        {sweeps.counted(cores): f"cores.{cores}" for cores in sweeps.CORES},
    )


def figure_15() -> go.Figure:
    names = {name: f"{150 * share:g} GB/s" for name, share in sweeps.BANDWIDTHS.items()}
    return _sweep(
        "Fig. 15: less DRAM bandwidth",
        {names[name]: sweeps.with_bandwidth(share) for name, share in sweeps.BANDWIDTHS.items()},
        {names[name]: f"bandwidth.{name}" for name in names},
    )


def figure_16() -> go.Figure:
    return _sweep(
        "Fig. 16: larger batches",
        {f"batch {batch}": sweeps.with_batch(batch) for batch in sweeps.BATCHES},
        {f"batch {batch}": f"batch.{batch}" for batch in sweeps.BATCHES},
    )


def figure_17() -> go.Figure:
    bars = series_of({variant: with_mean(gpu.reductions(variant)) for variant in gpu.VARIANTS.values()})
    ours = gpu.reductions(gpu.OURS, gpu.LIBRARY)
    bars.append(Series(name="ours, against the library or one kernel", values=with_mean(ours), colour=COLOURS[3]))
    marks = [
        paper({MEAN: stated(f"gpu.{claim}")}, f"paper, {variant}", colour)
        for (claim, variant), colour in zip(gpu.VARIANTS.items(), COLOURS, strict=False)
    ]
    means = ", ".join(f"{variant} {mean(gpu.reductions(variant)):.1f}" for variant in gpu.VARIANTS.values())
    printed = ", ".join(f"{stated(f'gpu.{claim}'):g}" for claim in gpu.VARIANTS)
    return chart(
        [*bars, *marks],
        f"Fig. 17: the backward pass on {gpu.device()}",
        f"Per cent shorter than the better of two kernels and one without interleaving, mean: {means}; paper, RTX 3090: {printed}. "
        f"{gpu.interleave_rule()}",
        y="% shorter", digits=1,
    )  # fmt: skip


PRINTED_SIZES = {"yolo": {"small": "yolo_v2_tiny", "large": "yolo_v5"}, "bert": {"small": "bert_tiny", "large": "bert_large"},
                 "T5": {"small": "t5_small", "large": "t5_large"}}  # fmt: skip


def table_4() -> go.Figure:
    ours, printed = {}, {}
    for network, models in NETWORKS.items():
        for npu, model in models.items():
            ours[model] = float(zoo.load(model).parameters)
            claim = PRINTED_SIZES[network][npu] if network in PRINTED_SIZES else network
            printed[model] = stated(f"params.{claim}")
    figure = chart(
        [Series(name="ours", values=ours, colour=COLOURS[0]), paper(printed)],
        "Table 4: parameters of the networks",
        "What the paper prints for GoogLeNet and MobileNet is the size of no published network of these names.",
        y="parameters (log)", digits=0,
    )  # fmt: skip
    figure.update_yaxes(type="log", rangemode="normal")
    return figure


# fmt: off
FIGURES: Figures = {
    **breakdown.FIGURES,
    "Fig. 5":       figure_5,
    "Fig. 6":       figure_6,
    "Fig. 7":       figure_7,
    "Figs. 8 to 10": figure_8,
    "Fig. 11":      figure_11,
    "Fig. 12":      figure_12,
    "Fig. 13":      figure_13,
    "Fig. 14":      figure_14,
    "Fig. 15":      figure_15,
    "Fig. 16":      figure_16,
    **({"Fig. 17": figure_17} if gpu.seconds() else {}),
    "Table 4":      table_4,
    "Beyond: time":    beyond.figure_time,
    "Beyond: traffic": beyond.figure_distance,
    "Beyond: links":   beyond.figure_links,
}
# fmt: on
