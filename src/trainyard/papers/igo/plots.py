"""The paper's figures, drawn from our runs, with the means that the paper prints beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trainyard.devices.accelerator.ordered import part_of
from trainyard.mapping.gradient_order.partition import NAMES, SCHEMES
from trainyard.mapping.gradient_order.scratchpad import TENSORS, algorithm_1, traffic
from trainyard.mapping.gradient_order.tile_streams import Partition
from trainyard.papers.figures import Series, chart, panels, paper, series_of
from trainyard.papers.igo import beyond, breakdown, gpu, longest, performance, sweeps
from trainyard.papers.igo.baselines import CASES, ELEMENT_BYTES, LARGE, TILES, Case
from trainyard.papers.igo.measuring import Networks, each, faster, mean, ran, reductions
from trainyard.papers.igo.networks import ABBREVIATIONS, NETWORKS, layers_of
from trainyard.papers.igo.partitioning import TWO_CORES, by_ideal, by_knn, table
from trainyard.papers.igo.performance import JOINT, said
from trainyard.report.colours import PHASES, SPARE
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

MEAN = "mean"
FITS = 0.7
"""Of the size of a sheet, so that it stands beside other figures."""
COLOURS = (PHASES["forward"], PHASES["grad_input"], PHASES["grad_weight"], PHASES["update"], *SPARE)
SEARCHED_COLOURS = {"searched, sequential": SPARE[-1], "searched together": SPARE[0]}


def with_mean(values: Networks) -> dict[str, float]:
    return {**values, MEAN: mean(values)}


def left(shorter: Networks) -> dict[str, float]:
    """Time over the baseline's, from per cent that it is shorter.

    >>> left({"a": 25.0, "b": -5.0})
    {'a': 0.75, 'b': 1.05, 'mean': 0.9}
    """
    return {name: round(1 - value / 100, 9) for name, value in with_mean(shorter).items()}


def printed_for(number: int, values: Mapping[Any, float], name: str) -> Series:
    """What the paper prints, in the colour of the bars that it belongs to."""
    return replace(paper(values, name), colour=COLOURS[number])


def figure_5() -> go.Figure:
    names = {"of reads and writes": False, "of reads": True}
    bars = [
        Series(name=name, values=with_mean(performance.shares(LARGE, reads=reads)), colour=COLOURS[number])
        for number, (name, reads) in enumerate(names.items())
    ]
    tall, searched = ([mean(performance.shares(LARGE, tile, reads)) for reads in names.values()] for tile in TILES)
    printed = {MEAN: said("dy_share.all_traffic")}, {MEAN: said("dy_share.reads"), "dlrm": said("dy_share.reads.dlrm")}
    return chart(
        [*bars, printed_for(0, printed[0], "paper, of reads and writes"), printed_for(1, printed[1], "paper, of reads")],
        "Fig. 5: what dY is of the gradients' traffic",
        f"Large NPU, sequential, fixed tall tile: mean {tall[0]:.0f} % of all and {tall[1]:.0f} % of reads; paper "
        f"{said('dy_share.all_traffic'):g} and {said('dy_share.reads'):g} %. With searched tiles {searched[0]:.0f} and "
        f"{searched[1]:.0f} %.",
        y="% of bytes", digits=1,
    )  # fmt: skip


def figure_6() -> go.Figure:
    bars, told = [], []
    for number, (npu, case) in enumerate(CASES.items()):
        for shade, tile in enumerate(TILES):
            found = with_mean(each(partial(performance.potential, case, tile=tile)))
            bars.append(Series(name=f"{npu} NPU, {tile} tile", values=found, colour=COLOURS[number + 2 * shade]))
            told.append(f"{npu} NPU with the {tile} tile {found[MEAN]:.2f}")
    return chart(
        [*bars, *(printed_for(n, {MEAN: said(f"potential.{npu}")}, f"paper, {npu} NPU") for n, npu in enumerate(CASES))],
        "Fig. 6: dY for nothing when dW needs it",
        f"Speedup of a step, mean: {', '.join(told)}; paper {said('potential.small'):g} and {said('potential.large'):g}.",
        y="speedup", unity=True,
    )  # fmt: skip


EXAMPLE_LAYER = "T5_5"  # of the large NPU: a feed-forward layer, neither square nor small


def figure_7() -> go.Figure:
    """The overview: one layer, one transformation after the other."""
    layer = next(one for one in layers_of("T5") if one.name == EXAMPLE_LAYER)
    op, machine, order = layer.op, LARGE.machine(), algorithm_1(layer.op)
    cuts = [Partition(axis=axis, parts=LARGE.parts) for axis in SCHEMES]
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
    parts = {tensor: {name: one.by_tensor[tensor] / 1e6 for name, one in moved.items()} for tensor in TENSORS}
    told = ", ".join(f"{name} {one.total_bytes / 1e6:.0f}" for name, one in moved.items())
    return chart(
        series_of(parts, COLOURS),
        "Fig. 7: the three steps on one layer",
        f"{layer.name}, M, N, K = {op.M}, {op.N}, {op.K}, large NPU, fixed tall tile; MB: {told}. Rearranged as Algorithm 1 says; "
        "parts one after the other on one core.",
        y="MB of DRAM traffic", stacked=True, digits=0,
    )  # fmt: skip


def figure_8() -> go.Figure:
    """The walk-through of `explain igo` on a layer that fits beside the other figures, its orders by name alone."""
    from trainyard.mapping.gradient_order.walkthrough import SHOWN, example
    from trainyard.report.walkthroughs.canvas import LEGEND_SIZE
    from trainyard.report.walkthroughs.igo import figure

    shown = figure(example((2, 2, 2)))
    for trace in shown.data:
        if trace.mode == "text" and trace.textfont.size == LEGEND_SIZE:
            trace.text = [name if name in SHOWN else "" for name in (text.partition(":")[0] for text in trace.text)]
        elif trace.mode == "text":
            trace.textfont.size *= FITS
    shown.layout.meta["description"] += " Orange: dX, green: dW; filled: read from the DRAM; round: T0."
    return shown.update_layout(
        width=None, height=FITS * shown.layout.height, title={"text": "Figs. 8 to 10: the orders, tile by tile"}
    )


def figure_11() -> go.Figure:
    shares = {"m": "W is shared, dW summed", "n": "X is shared, dX summed", "k": "dY is shared, nothing summed"}  # Sec. 5
    rows = table(TWO_CORES)
    bars = []
    for number, scheme in enumerate(SCHEMES):
        counted = dict.fromkeys(ABBREVIATIONS, 0)
        for layer, costs in rows:
            counted[layer.network] += layer.repeats * (min(SCHEMES, key=costs.cycles.__getitem__) == scheme)
        whole = {n: sum(layer.repeats for layer, _ in rows if layer.network == n) for n in counted}
        values = {n: 100 * count / whole[n] for n, count in counted.items()}
        bars.append(Series(name=f"{scheme}, {NAMES[scheme]}: {shares[scheme]}", values=values, colour=COLOURS[number]))
    return chart(
        bars,
        "Fig. 11: which partition is the cheapest",
        "Per cent of the layers with both gradients, two cores of the large NPU, fixed tall tile, Algorithm 1 for each part.",
        y="% of layers", stacked=True, digits=0,
    )  # fmt: skip


def _bars_12(case: Case) -> go.Figure:
    # fmt: off
    steps = {
        "Interleaving":                  left(reductions(case, order="interleaved")),
        "+Rearrangement":                left(reductions(case, order="paper")),
        "+DataPartitioning, neighbours": left(by_knn(case)),
        "+DataPartitioning, cheapest":   left(by_ideal(case)),
    }
    # fmt: on
    bars = series_of(steps, COLOURS)
    for name, order in (("searched, sequential", {}), ("searched together", JOINT)):
        values = with_mean(each(lambda n: ran(case, n, "searched", **order).cycles / ran(case, n).cycles))  # noqa: B023
        bars.append(Series(name=name, values=values, colour=SEARCHED_COLOURS[name]))
    claimed = {"Interleaving": "interleaving", "+Rearrangement": "rearrangement", "+DataPartitioning": "all"}
    printed = {name: said(f"{case.npu}.{step}") for name, step in claimed.items()}
    marks = [
        printed_for(number, {MEAN: 1 - value / 100}, f"paper, {named}") for number, (named, value) in enumerate(printed.items())
    ]
    return chart([*bars, *marks], unity=True)


def figure_12() -> go.Figure:
    told = "; ".join(
        f"{npu}: {mean(reductions(case, order='interleaved')):.1f}, {mean(reductions(case, order='paper')):.1f}, "
        f"{mean(by_knn(case)):.1f} ({mean(by_ideal(case)):.1f} with the cheapest partition), paper "
        f"{said(f'{npu}.interleaving'):g}, {said(f'{npu}.rearrangement'):g}, {said(f'{npu}.all'):g}"
        for npu, case in CASES.items()
    )
    fast = ", ".join(f"{mean(faster(case)):.2f} ({npu})" for npu, case in CASES.items())
    return panels(
        {f"{npu} NPU": _bars_12(case) for npu, case in CASES.items()},
        "Fig. 12: time of a step over the baseline's with a fixed tall tile",
        f"Per cent shorter, mean of the three steps: {told}. A baseline whose tiles are searched is {fast} times faster than "
        "the one with the tall tile; fused orders on top of it are the last bars.",
        columns=1, height=790, below=100,
    )  # fmt: skip


def figure_13() -> go.Figure:
    found = sorted(longest.bars(), key=lambda bar: bar.shallow)
    parts = {"traffic": {}, "time": {}, "time, searched together over searched": {}}  # type: dict[str, dict[str, float]]
    other = {bar.layer.name: bar for bar in longest.bars("searched")}
    for bar in found:
        name = f"{bar.layer.name}{' (shallow)' if bar.shallow else ''}"
        parts["traffic"][name] = bar.traffic
        parts["time"][name] = bar.time
        parts["time, searched together over searched"][name] = other[bar.layer.name].time
    figure = chart(
        series_of(parts, COLOURS),
        f"Fig. 13: the {len(found)} longest layers",
        f"+Rearrangement over the baseline. Large NPU, forward and backward pass, fixed tall tile. Mean: "
        f"{longest.told()}. Deep layers left, shallow ones right.",
        y="over the baseline", unity=True, height=470,
    )  # fmt: skip
    figure.update_xaxes(tickangle=-90)
    return figure


def _sweep(title: str, cases: Mapping[str, Case], printed: Mapping[str, str]) -> go.Figure:
    bars = [
        Series(name=name, values=left(by_knn(case)), colour=COLOURS[number]) for number, (name, case) in enumerate(cases.items())
    ]  # fmt: skip
    marks = [
        printed_for(number, {MEAN: 1 - said(claim) / 100}, f"paper, {name}") for number, (name, claim) in enumerate(printed.items())
    ]
    told = "; ".join(
        f"{name}: {mean(by_knn(case)):.1f} % ({mean(by_ideal(case)):.1f} with the cheapest partition, "
        f"{mean(sweeps.searched(case)):.1f} against searched tiles), paper {said(printed[name]):g}"
        for name, case in cases.items()
    )
    return chart(
        [*bars, *marks], title, f"All three steps, fixed tall tile. Mean that a step is shorter, {told}.",
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
    bars = [
        Series(name=variant, values=with_mean(gpu.reductions(variant)), colour=COLOURS[number])
        for number, variant in enumerate(gpu.VARIANTS.values())
    ]
    ours = gpu.reductions(gpu.OURS, gpu.LIBRARY)
    bars.append(Series(name="ours, against the library or one kernel", values=with_mean(ours), colour=COLOURS[3]))
    marks = [
        printed_for(number, {MEAN: said(f"gpu.{claim}")}, f"paper, {variant}")
        for number, (claim, variant) in enumerate(gpu.VARIANTS.items())
    ]
    told = ", ".join(f"{variant} {mean(gpu.reductions(variant)):.1f}" for variant in gpu.VARIANTS.values())
    printed = ", ".join(f"{said(f'gpu.{claim}'):g}" for claim in gpu.VARIANTS)
    return chart(
        [*bars, *marks],
        f"Fig. 17: the backward pass on {gpu.device()}",
        f"Per cent shorter than the better of two kernels and one without interleaving, mean: {told}; paper, RTX 3090: {printed}. "
        f"{gpu.told_of_ours()}.",
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
            printed[model] = said(f"params.{claim}")
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
